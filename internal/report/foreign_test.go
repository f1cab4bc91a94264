package report_test

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/foreign"
)

// What others have written shows no markup and turns no text of the page round.
func TestForeignTextInThePage(t *testing.T) {
	t.Parallel()
	page := draw(t, failed("bad\x1b[31m <script>alert(1)</script>\u202e\u009b1A \u2028fake line"))
	if foreign.Lines(page) != page || strings.Contains(page, "<script") || !strings.Contains(page, "bad &lt;script&gt;") {
		t.Errorf("%q", page)
	}
}
