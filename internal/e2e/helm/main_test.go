package helm

import (
	"io"
	"log"
	"log/slog"
	"os"
	"testing"
)

// TestMain silences Helm: it logs each link of the chart, and each value that is refused.
func TestMain(m *testing.M) {
	log.SetOutput(io.Discard)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}
