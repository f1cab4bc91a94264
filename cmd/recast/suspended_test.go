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
