package ui

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWrapped(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word ", 25)
	for name, tc := range map[string]struct {
		columns    int
		text, want string
	}{
		"short":                       {20, "a b", "why: a b\n"},
		"nothing":                     {20, "", "why:\n"},
		"at spaces":                   {12, "aaa bbb ccc ddd", "why: aaa bbb\n  ccc ddd\n"},
		"a word that is too long":     {8, "aaa bbbbbbbbbb c", "why: aaa\n  bbbbbbbbbb\n  c\n"},
		"no terminal":                 {0, long, "why: " + strings.TrimSpace(long) + "\n"},
		"lines of its own":            {0, "a\n\nb", "why: a\n  b\n"},
		"few reasons":                 {0, reasons("a; b"), "why: a; b\n"},
		"many reasons":                {0, reasons(long + "a; b"), "why: " + long + "a;\n  b\n"},
		"colours take no room":        {12, (&page{colour: true}).paint(red, "aaa bbb") + " ccc", "why: \x1b[31maaa bbb\x1b[0m\n  ccc\n"},
		"letters count, not bytes":    {12, "äää ööö", "why: äää ööö\n"},
		"spaces are not worth a line": {12, "  aaa   bbb  ", "why: aaa bbb\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			(&page{w: &out, columns: tc.columns}).wrapped("why: ", "  ", tc.text)
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("wrapped (-want +got):\n%s", diff)
			}
		})
	}
}

func TestColoured(t *testing.T) {
	for name, c := range map[string]struct {
		no, force string
		want      bool
	}{
		"no terminal":       {"", "", false},
		"forced":            {"", "1", true},
		"forced with 0":     {"", "0", false},
		"NO_COLOR wins":     {"1", "1", false},
		"NO_COLOR is empty": {"", "yes", true},
	} {
		t.Setenv("NO_COLOR", c.no)
		t.Setenv("CLICOLOR_FORCE", c.force)
		if got := coloured(&bytes.Buffer{}); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

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
