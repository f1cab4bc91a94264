package report

import (
	"bytes"
	"context"
	_ "embed"
	"flag"
	"fmt"
	"image"
	"image/png"
	"os"
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

// TestScreenshot compares the documentation's screenshot with the report. To update it:
// make e2e-report UPDATE=1.
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
