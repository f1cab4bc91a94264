package report

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

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
