package report

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestUI opens the pages of recast ui as a person does: by the URL that it prints, on a
// phone and on a desktop, in light and dark mode, with the keyboard alone, and while a roll
// runs.
func TestUI(t *testing.T) {
	l := newLab(t)
	first := l.start("http://127.0.0.1:", "ui", "--open=false")
	origin := first[:strings.LastIndex(first, "/")]
	ctx, complaints := browserFor(t, origin)
	u := ui{t, ctx}
	u.do(chromedp.Navigate(first))
	u.await("3 of 4 nodes are stale")
	var base string
	u.do(chromedp.Location(&base))
	if strings.Contains(base, strings.TrimPrefix(first, origin)) {
		t.Errorf("the token stays in the address: %s", base)
	}
	u.looks(base, "", "plan", "nodes/wk1", "history", "run", "runbooks", "runbooks/no-quorum")
	u.do(chromedp.EmulateViewport(1100, 800), scheme("light"), chromedp.Navigate(base))
	compare(t, ctx, "../../../docs/images/ui-nodes.png")
	u.keyboard(base)

	roll := l.command("roll", "--yes")
	var said bytes.Buffer
	roll.Stderr = &said
	mustDo(t, roll.Start())
	u.do(chromedp.EmulateViewport(390, 800), scheme("dark"), chromedp.Navigate(base+"run"))
	u.await("1 of 3 nodes done, 1 in progress")
	compare(t, ctx, "../../../docs/images/ui-run.png")
	u.looks(base, "run")
	if err := roll.Wait(); err != nil {
		t.Errorf("recast roll: %v\n%s", err, &said)
	}
	u.await("done iscsi-tools")
	u.do(chromedp.Navigate(base + "history"))
	u.await("new digest")
	u.looks(base, "history")
	u.do(chromedp.Click("main td a, main th a", chromedp.ByQuery))
	u.await("The whole run")
	if said := complaints(); len(said) > 0 {
		t.Errorf("the browser complains: %q", said)
	}
}

// TestUIWithoutScripts: the first URL leads to the nodes, and a reading to its result.
func TestUIWithoutScripts(t *testing.T) {
	l := newLab(t)
	first := l.start("http://127.0.0.1:", "ui", "--open=false")
	ctx, _ := browserFor(t, first[:strings.LastIndex(first, "/")])
	u := ui{t, ctx}
	u.do(emulation.SetScriptExecutionDisabled(true), chromedp.Navigate(first))
	u.await("nodes are stale")
	u.do(chromedp.Click(`a[href$="/nodes/wk1"]`), chromedp.WaitVisible(`button[value="node/wk1"]`), chromedp.Click(`button[value="node/wk1"]`))
	u.await("proven about the node")
}

// ui is a browser with the pages of recast ui.
type ui struct {
	t   *testing.T
	ctx context.Context
}

func (u ui) do(actions ...chromedp.Action) {
	u.t.Helper()
	mustDo(u.t, chromedp.Run(u.ctx, actions...))
}

// await waits until the page shows one of the texts, without loading it again.
func (u ui) await(texts ...string) {
	u.t.Helper()
	var text string
	for range 400 {
		err := chromedp.Run(u.ctx, chromedp.Text("body", &text, chromedp.ByQuery)) // it may be loading
		for _, want := range texts {
			if err == nil && strings.Contains(text, want) {
				return
			}
		}
		select {
		case <-u.ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	u.t.Fatalf("the page never showed %q:\n%s", texts, text)
}

// looks checks pages in every size and colour.
func (u ui) looks(base string, paths ...string) {
	u.t.Helper()
	for _, path := range paths {
		for _, width := range []int64{360, 1280} {
			for _, colours := range []string{"light", "dark"} {
				var got found
				u.do(chromedp.EmulateViewport(width, 740), scheme(colours), chromedp.Navigate(base+path), chromedp.Evaluate(look, &got))
				if got.Wide > got.Width || len(got.Pale)+len(got.Dumb) > 0 {
					u.t.Errorf("%q, %d px, %s: %+v", path, width, colours, got)
				}
			}
		}
	}
}

// focused is the element that has the focus: its text, and whether one sees that it has it.
const focused = `(() => { const e = document.activeElement, s = getComputedStyle(e), r = e.getBoundingClientRect();
	return { Text: e.textContent.trim(), Ring: s.outlineStyle !== "none" && parseFloat(s.outlineWidth) > 1, Seen: r.right > 0 && r.bottom > 0 } })()`

// walk presses the Tab key, which leads from one element to the next, and shows which one has the focus.
func (u ui) walk(base, want string) {
	u.t.Helper()
	u.do(chromedp.Navigate(base))
	var walked []string
	for range strings.SplitSeq(want, ", ") {
		var at struct {
			Text       string
			Ring, Seen bool
		}
		u.do(chromedp.KeyEvent(kb.Tab), chromedp.Evaluate(focused, &at))
		if walked = append(walked, at.Text); !at.Ring || !at.Seen {
			u.t.Errorf("nothing shows that %q has the focus: %+v", at.Text, at)
		}
	}
	if got := strings.Join(walked, ", "); got != want {
		u.t.Errorf("the Tab key leads to %s", got)
	}
}

// keyboard walks through the nodes with the Tab key, and goes on to the plan.
func (u ui) keyboard(base string) {
	u.t.Helper()
	u.walk(base, "To the content, Nodes, Plan, Run, History, Runbooks, Read again, wk1, wk2, wk3, cp1")
	var at, text string
	u.do(chromedp.Navigate(base), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter), chromedp.Evaluate("document.activeElement.id", &at))
	u.do(chromedp.KeyEvent(kb.Tab), chromedp.Evaluate("document.activeElement.value", &text), chromedp.KeyEvent(kb.Enter))
	if at != "main" || text != "drift" {
		u.t.Errorf("the link to the content leads to %q, and then to %q", at, text)
	}
	u.await("0s ago", "being read now", "1s ago")
	u.do(chromedp.Navigate(base), chromedp.KeyEvent(kb.Tab+kb.Tab+kb.Tab), chromedp.KeyEvent(kb.Enter))
	u.await("carried over:")
	u.do(chromedp.Location(&at))
	if at != base+"plan" {
		u.t.Errorf("the third link leads to %s", at)
	}
}

// compare compares a screenshot of the documentation with the page.
func compare(t *testing.T, ctx context.Context, file string) {
	t.Helper()
	var got []byte
	mustDo(t, chromedp.Run(ctx, chromedp.CaptureScreenshot(&got)))
	if *update {
		mustDo(t, os.WriteFile(file, got, 0o644))
	}
	want := must(os.ReadFile(file))(t)
	if len(want) > 300<<10 {
		t.Errorf("%s has %d bytes", file, len(want))
	}
	if share := difference(t, want, got); share > 0.1 {
		t.Errorf("%.0f %% of %s look otherwise now", 100*share, file)
	}
}
