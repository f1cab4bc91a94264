package schedules

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestCaseTextRoundTrip draws cases and parses their text.
func TestCaseTextRoundTrip(t *testing.T) {
	t.Parallel()
	for n := range 500 {
		c := Draw(Seed(1, n))
		if err := c.check(); err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		got, err := Parse(c.String())
		if err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Fatalf("%s (-drawn +read):\n%s", c, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                                 "cp=0: from 1 to 5",
		"cp=3 hosts=1":                                     "change=0: from 1 to 3",
		"cp=3 hosts=1 change=patch colour=red":             "colour=red: no such word",
		"cp=9 hosts=1 change=patch":                        "cp=9: from 1 to 5",
		"cp=1 wk=1 hosts=1 change=patch surge=2":           "surge=2: from 0 to 1",
		"cp=1 hosts=1 change=patch boot=floppy":            "boot=floppy: one of disk, auto",
		"cp=1 hosts=1 change=patch faults=off@3":           "faults=off@3: off@3: on which node?",
		"cp=1 hosts=1 change=patch faults=off:4@3+1m":      "off:4@3+1m0s: there are 1 nodes, from 0",
		"cp=1 hosts=1 change=patch faults=kill":            "faults=kill: kill: no @",
		"cp=1 hosts=1 change=patch faults=kill@0":          "faults=kill@0: kill@0: calls are counted from 1",
		"cp=1 hosts=1 change=patch faults=quorum@3":        "faults=quorum@3: quorum@3: when, and how long?",
		"cp=1 hosts=1 change=patch faults=earthquake@3+1s": "faults=earthquake@3+1s: earthquake@3+1s: no such fault",
	} {
		if _, err := Parse(text); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestShrink minimizes a failing case.
func TestShrink(t *testing.T) {
	t.Parallel()
	c, err := Parse("cp=3 wk=5 hosts=3 bus=virtio out=50% change=patch,patch boot=auto surge=2 faults=lost@3,kill@57,quorum@60+1m0s")
	if err != nil {
		t.Fatal(err)
	}
	tries := 0
	small := Shrink(c, 100, farAway, func(c Case) bool {
		tries++
		return c.Workers >= 2 && len(c.Faults) > 0 && c.Faults[len(c.Faults)-1].Name == "quorum"
	})
	if got, want := small.String(), "cp=1 wk=2 hosts=1 change=patch faults=quorum@60+1m0s"; got != want || tries > 40 {
		t.Errorf("%s after %d tries, want %s", got, tries, want)
	}
}

func FuzzParse(f *testing.F) {
	for n := range 20 {
		f.Add(Draw(Seed(7, n)).String())
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(c.String())
		if err != nil || again.String() != c.String() {
			t.Errorf("%q is %q, and that %q, %v", text, c, again, err)
		}
	})
}

var farAway = time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)

func TestTakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if !takes(dir, 1) || takes(dir, 1<<62) || takes(dir+"/none", 1) {
		t.Errorf("a byte %t, all there is %t, a byte where nothing is %t", takes(dir, 1), takes(dir, 1<<62), takes(dir+"/none", 1))
	}
}
