package main

import (
	"os"
	"strings"
	"testing"
)

// TestInterrupt presses Ctrl-C on a real process, once and twice.
func TestInterrupt(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	term := openLab(t)
	term.patch()

	// Once: the node in progress is finished, no other is started.
	roll := term.background("roll.err", "roll", "--yes")
	term.await("roll.err", "bring wk1 up")
	interrupt(t, roll.Process)
	code := exitCode(roll.Wait())
	story := term.read("roll.err")
	has(t, story,
		"\nstopping: the node in progress is finished first; press Ctrl-C again to stop at once",
		"✓ recreate wk1", "\nrun ", ": interrupted after ", "\n  wk1 recreated as build ", "\nerror: stopped; not started: roll/",
	)
	if code != exitInterrupted || strings.Contains(story, "▸ recreate wk2") {
		t.Errorf("exit code %d, want %d:\n%s", code, exitInterrupted, story)
	}
	if said, _ := term.typed(exitDone, "status"); !strings.Contains(said, "nobody holds it") || !strings.Contains(said, "nothing is unfinished") {
		t.Errorf("status afterwards:\n%s", said)
	}

	// Twice: it stops where it is, and says how to go on.
	roll = term.background("roll.err", "roll", "--yes")
	term.await("roll.err", "take wk2 down")
	interrupt(t, roll.Process)
	term.await("roll.err", "press Ctrl-C again")
	interrupt(t, roll.Process)
	code = exitCode(roll.Wait())
	story = term.read("roll.err")
	has(t, story, ": interrupted after ", "\n  wk2 recreate ", "\nnext: recast status shows where every disk is; recast roll continues where this one stopped", "\nerror: interrupted: roll/workers/wk2/")
	if code != exitInterrupted {
		t.Errorf("exit code %d, want %d:\n%s", code, exitInterrupted, story)
	}
	if said, _ := term.typed(exitDone, "status"); !strings.Contains(said, "nobody holds it") {
		t.Errorf("status afterwards:\n%s", said)
	}
	term.typed(exitDone, "roll", "--yes")
	term.typed(exitDone, "drift")
	term.typed(exitDone, "lab", "check", "--dir", ".")
}

func interrupt(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
}

// has requires every text in the output.
func has(t *testing.T, story string, want ...string) {
	t.Helper()
	for _, text := range want {
		if !strings.Contains(story, text) {
			t.Errorf("the story lacks %q:\n%s", text, story)
		}
	}
}
