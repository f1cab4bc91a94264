package ui

import (
	"strings"
	"testing"
)

func TestTogether(t *testing.T) {
	t.Parallel()
	for names, want := range map[string]string{
		"":                              "",
		"wk1":                           "wk1",
		"wk1 wk2 wk3":                   "wk1, wk2, wk3",
		"cp1 wk1 wk2 wk3 wk4 db":        "cp1, wk1…wk4, db",
		"wk8 wk9 wk10 wk11":             "wk8…wk11",
		"wk008 wk009 wk010 wk011 wk013": "wk008…wk011, wk013",
		"wk08 wk09 wk10 wk011 wk012":    "wk08, wk09, wk10, wk011, wk012",
		"a1 b2 c3 d4":                   "a1, b2, c3, d4",
		"wk4 wk3 wk2 wk1":               "wk4, wk3, wk2, wk1",
		"n99999999999999999999 n1":      "n99999999999999999999, n1",
		"a1 a2 a3 a4 a5 b1 b2 b3 b4 b6": "a1…a5, b1…b4, b6",
		"1 2 3 4":                       "1…4",
	} {
		if got := together(strings.Fields(names)); got != want {
			t.Errorf("%s: %q, want %q", names, got, want)
		}
	}
}
