package report_test

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/foreign"
)

// Text from others can't add markup or change the direction of the page's text.
func TestForeignTextInThePage(t *testing.T) {
	t.Parallel()
	page := draw(t, failed("bad\x1b[31m <script>alert(1)</script>\u202e\u009b1A \u2028fake line"))
	if foreign.Lines(page) != page || strings.Contains(page, "<script") || !strings.Contains(page, "bad &lt;script&gt;") {
		t.Errorf("%q", page)
	}
}
