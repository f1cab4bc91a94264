package ui

import (
	"bytes"
	"testing"
)

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
