package report

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

var update = flag.Bool("update", false, "take the screenshot of docs anew")

// reports are the golden files of internal/report, from runs of recast in the lab.
const reports = "../../../testdata/runs"

//go:embed look.js
var look string

// found is the result of look.js for a page.
type found struct {
	Width, Wide int      // of the window, and of its content
	Nodes       int      // with a drawing
	Hidden      []string // invisible drawings, or bars in them
	Pale        []string // texts with too little contrast
	Dumb        []string // drawings without a text alternative
	Long        int      // visible rows of tables
}

// browser starts Chromium without a network, and collects its errors.
func browser(t *testing.T) (ctx context.Context, complaints func() []string) {
	t.Helper()
	return browserFor(t, "file:")
}

// browserFor is browser for pages whose addresses begin with origin: everything else that
// they ask for is an error. Only files need no network at all.
func browserFor(t *testing.T, origin string) (ctx context.Context, complaints func() []string) {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, // it opens only our pages, and CI is root
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"), chromedp.Flag("disable-gpu", true), chromedp.Flag("hide-scrollbars", true),
	)
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 4*time.Minute)
	t.Cleanup(cancel)
	var mu sync.Mutex
	var said []string
	complain := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, fmt.Sprintf(format, args...))
	}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *log.EventEntryAdded:
			complain("%s: %s", e.Entry.Level, e.Entry.Text)
		case *runtime.EventConsoleAPICalled:
			complain("console: %s", e.Type)
		case *runtime.EventExceptionThrown:
			complain("exception: %s", e.ExceptionDetails.Text)
		case *network.EventRequestWillBeSent:
			if u := e.Request.URL; !strings.HasPrefix(u, origin) && !strings.HasPrefix(u, "data:") {
				complain("asks for %s", u)
			}
		}
	})
	offline := network.EmulateNetworkConditions(origin == "file:", 0, -1, -1)
	if err := chromedp.Run(ctx, network.Enable(), log.Enable(), offline); err != nil {
		t.Fatalf("start Chromium: %v\nmake e2e-deps installs it", err)
	}
	return ctx, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return said
	}
}

func address(t *testing.T, name string) string {
	t.Helper()
	path := must(filepath.Abs(filepath.Join(reports, name+".html")))(t)
	must(os.Stat(path))(t)
	return "file://" + path
}

func scheme(name string) chromedp.Action {
	return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}})
}

// TestPages: on a phone and on a desktop, in light and dark mode, nothing overflows,
// nothing is fetched, every node's bars are visible, every text is readable.
func TestPages(t *testing.T) {
	ctx, complaints := browser(t)
	nodes := map[string]int{"roll": 6, "killed": 1}
	for name, want := range nodes {
		for _, width := range []int64{360, 1280} {
			for _, colours := range []string{"light", "dark"} {
				var got found
				err := chromedp.Run(ctx, chromedp.EmulateViewport(width, 740), scheme(colours), chromedp.Navigate(address(t, name)), chromedp.Evaluate(look, &got))
				mustDo(t, err)
				t.Logf("%s, %d px, %s: %d nodes, %d px wide", name, width, colours, got.Nodes, got.Wide)
				if got.Wide > got.Width || got.Nodes != want || len(got.Hidden)+len(got.Pale)+len(got.Dumb) > 0 {
					t.Errorf("%s, %d px, %s: %+v", name, width, colours, got)
				}
			}
		}
	}
	if said := complaints(); len(said) > 0 {
		t.Errorf("the browser complains: %q", said)
	}
}

// TestPrint: collapsed parts are visible in print.
func TestPrint(t *testing.T) {
	ctx, complaints := browser(t)
	var screen, paper found
	var pdf []byte
	err := chromedp.Run(ctx, chromedp.EmulateViewport(794, 1123), chromedp.Navigate(address(t, "roll")), chromedp.Evaluate(look, &screen),
		emulation.SetEmulatedMedia().WithMedia("print"), chromedp.Evaluate(look, &paper),
		chromedp.ActionFunc(func(ctx context.Context) (err error) {
			pdf, _, err = page.PrintToPDF().WithPreferCSSPageSize(true).Do(ctx)
			return err
		}))
	mustDo(t, err)
	if paper.Long <= screen.Long || paper.Wide > paper.Width || len(paper.Hidden)+len(paper.Pale) > 0 {
		t.Errorf("on the screen %+v, on paper %+v", screen, paper)
	}
	if pages := bytes.Count(pdf, []byte("/Type /Page\n")); !bytes.HasPrefix(pdf, []byte("%PDF-")) || pages == 0 || pages > 20 {
		t.Errorf("a PDF of %d bytes with %d pages", len(pdf), pages)
	}
	if said := complaints(); len(said) > 0 {
		t.Errorf("the browser complains: %q", said)
	}
}

const screenshot = "../../../docs/images/report.png"

// TestScreenshot compares the documentation's screenshot with the report. To update it: make e2e-report UPDATE=1.
func TestScreenshot(t *testing.T) {
	ctx, _ := browser(t)
	mustDo(t, chromedp.Run(ctx, chromedp.EmulateViewport(1100, 1500), scheme("light"), chromedp.Navigate(address(t, "roll"))))
	compare(t, ctx, screenshot)
}

// difference is the share of pixels that differ; fonts vary.
func difference(t *testing.T, a, b []byte) float64 {
	t.Helper()
	var pictures [2]image.Image
	for i, data := range [][]byte{a, b} {
		p := must(png.Decode(bytes.NewReader(data)))(t)
		pictures[i] = p
	}
	size := pictures[0].Bounds()
	if size != pictures[1].Bounds() {
		return 1
	}
	other := 0
	for y := range size.Dy() {
		for x := range size.Dx() {
			r, g, b, _ := pictures[0].At(x, y).RGBA()
			r2, g2, b2, _ := pictures[1].At(x, y).RGBA()
			if apart(r, r2)+apart(g, g2)+apart(b, b2) > 1<<15 {
				other++
			}
		}
	}
	return float64(other) / float64(size.Dx()*size.Dy())
}

func apart(a, b uint32) uint32 { return max(a, b) - min(a, b) }

// lab is a simulated datacentre, and recast in it.
type lab struct {
	t      *testing.T
	recast string
	dir    string
	env    []string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, recast: filepath.Join(t.TempDir(), "recast"), dir: t.TempDir()}
	build := exec.Command("go", "build", "-o", l.recast, "./cmd/recast")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build recast: %v\n%s", err, out)
	}
	l.env = append(os.Environ(), "HOME="+l.dir)
	l.start("ready", "lab", "up", "--dir", ".", "--speed", "30", "--workers", "3")
	env := must(os.ReadFile(filepath.Join(l.dir, "env")))(t)
	for line := range strings.Lines(string(env)) {
		if name, value, found := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "="); found {
			l.env = append(l.env, name+"="+strings.Trim(value, "'"))
		}
	}
	l.run("lab", "patch", "iscsi-tools", "--dir", ".")
	l.run("lock", "--update")
	return l
}

func (l *lab) command(args ...string) *exec.Cmd {
	c := exec.CommandContext(l.t.Context(), l.recast, args...)
	c.Dir, c.Env = l.dir, l.env
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	return c
}

func (l *lab) run(args ...string) {
	l.t.Helper()
	if out, err := l.command(args...).CombinedOutput(); err != nil {
		l.t.Fatalf("recast %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// start starts a command, and returns the first line that it prints, which must begin so.
// The command is interrupted, and must then succeed, at the end of the test.
func (l *lab) start(want string, args ...string) string {
	l.t.Helper()
	c := l.command(args...)
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	mustDo(l.t, err)
	l.t.Cleanup(func() {
		if err := c.Wait(); !errors.Is(err, context.Canceled) { // what it returns if the interrupted command succeeds
			l.t.Errorf("recast %s: %v\n%s", strings.Join(args, " "), err, &said)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, want) {
		l.t.Fatalf("recast %s printed %q: %v", strings.Join(args, " "), line, err)
	}
	return strings.TrimSpace(line)
}

// must is the value of a call, whose error ends the test: must(os.ReadFile(name))(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		mustDo(t, err)
		return v
	}
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serveFleet serves the operator's pages of testdata/fleet, and returns their address. What is written to
// change is put among the objects.
func serveFleet(t *testing.T) (base string, change io.Writer) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "fleet")
	build := exec.Command("go", "build", "-o", program, "./internal/e2e/fleet")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the pages: %v\n%s", err, out)
	}
	c := exec.CommandContext(t.Context(), program, "../../../testdata/fleet/objects.yaml", "2026-11-28T12:00:00Z")
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.Stderr = t.Output()
	in := must(c.StdinPipe())(t)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	mustDo(t, err)
	t.Cleanup(func() {
		if err := c.Wait(); !errors.Is(err, context.Canceled) { // what it returns if the interrupted program succeeds
			t.Errorf("the pages: %v", err)
		}
	})
	line := must(bufio.NewReader(out).ReadString('\n'))(t)
	return strings.TrimSpace(line), in
}

// TestFleet opens the operator's pages on a phone and on a desktop, in light and dark mode, with the keyboard
// alone, and while a roll goes on.
func TestFleet(t *testing.T) {
	base, change := serveFleet(t)
	ctx, complaints := browserFor(t, base)
	u := ui{t, ctx}
	u.looks(base, "", "clusters/clusters/oslo-1", "clusters/clusters/bergen-1", "clusters/clusters/trondheim-1", "rolls/clusters/oslo-1-4", "rolls/clusters/bergen-2-7",
		"fleets", "fleets/clusters/autumn", "fleets/clusters/winter", "runbooks", "runbooks/no-quorum")
	u.do(chromedp.EmulateViewport(1100, 900), scheme("light"), chromedp.Navigate(base))
	compare(t, ctx, "../../../docs/images/fleet.png")

	u.walk(base, "To the content, Clusters, Fleet rolls, Runbooks, winter, autumn, kirkenes-1, autumn-kirkenes-1, oslo-1")
	u.do(chromedp.KeyEvent(kb.Enter))
	u.await("Why nodes are stale")
	u.do(chromedp.Navigate(base+"fleets"), chromedp.Click(`a[href="/fleets/clusters/autumn"]`))
	u.await("find out why kirkenes-1, stavanger-2 failed")

	u.do(chromedp.EmulateViewport(390, 800), scheme("dark"), chromedp.Navigate(base+"clusters/clusters/bergen-2"))
	u.await("3 of 6 nodes done")
	if _, err := io.WriteString(change, `apiVersion: recast.dev/v1alpha1
kind: ImageRoll
metadata: {namespace: clusters, name: bergen-2-7, creationTimestamp: 2026-11-28T11:30:00Z}
spec: {clusterName: bergen-2, action: Nodes, approved: true}
status: {phase: Rolling, progress: {done: 4, total: 6, summary: 4/6, node: wk2, message: drain wk2}}
---
`); err != nil {
		t.Fatal(err)
	}
	u.await("4 of 6 nodes done; wk2: drain wk2")
	if said := complaints(); len(said) > 0 {
		t.Errorf("the browser complains: %q", said)
	}
}

// TestUI opens the pages of recast ui as a person does: by the URL that it prints, on a phone and on a desktop, in
// light and dark mode, with the keyboard alone, and while a roll runs.
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
