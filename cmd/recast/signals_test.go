package main

import (
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
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

// TestSuspended stops recast status --watch and recast ui in the middle of a roll, as a laptop that is closed, and
// continues them when the roll is over: they show the present.
func TestSuspended(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	term := openLab(t)
	term.patch()
	ui := term.background("url", "ui", "--open=false")
	term.await("url", "Ctrl-C ends them")
	p, err := enterPages(regexp.MustCompile(`http://\S+`).FindString(term.read("url")))
	if err != nil {
		t.Fatal(err)
	}
	page := func(path, want string) (text string) {
		t.Helper()
		for range 1200 {
			if text, err = p.ask(http.MethodGet, path, nil); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(text, want) {
				return text
			}
			<-time.After(50 * time.Millisecond)
		}
		t.Fatalf("the page %q never held %q:\n%s", path, want, text)
		return ""
	}
	page("", "3 of 3 nodes are stale")

	watch := term.onScreen("status", "--watch")
	watch.await("nobody holds it")
	roll := term.onScreen("roll", "--yes")
	roll.awaitLogged("bring wk1 up")
	watch.await("wk1  recreate")
	page("run", `badge open">running`)
	stop := func(s syscall.Signal) {
		t.Helper()
		for _, of := range []*os.Process{watch.cmd.Process, ui.Process} {
			if err := of.Signal(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop(syscall.SIGSTOP)
	seen := len(watch.seen())
	if code := roll.end(); code != exitDone {
		t.Fatalf("exit code %d:\n%s", code, roll.seen())
	}
	stop(syscall.SIGCONT)

	watch.await(": done\r\n")
	if after := watch.seen()[seen:]; strings.Contains(after, "stood still") {
		t.Errorf("what it shows then:\n%s", after)
	}
	page("run", `badge good">done`)
	if text := page("", "3 of 3 nodes are stale"); !strings.Contains(text, " ago") || strings.Contains(text, ", 0s ago") {
		t.Errorf("an old reading passes for new:\n%s", text)
	}
	if _, err := p.ask(http.MethodPost, "read", url.Values{"what": {"drift"}}); err != nil {
		t.Fatal(err)
	}
	page("", "3 nodes in sync")

	watch.typed("\x03")
	if code := watch.end(); code != exitDone {
		t.Errorf("exit code %d of who watched:\n%s", code, watch.seen())
	}
	if err := ui.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(ui.Wait()); code != exitDone {
		t.Errorf("exit code %d of the pages:\n%s", code, term.read("url"))
	}
}
