package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

func TestTryShow(t *testing.T) {
	t.Parallel()
	none := filepath.Join(t.TempDir(), "no-such-opener")
	var said bytes.Buffer
	s := &streams{err: &console{Writer: &said}}
	s.tryShow(t.Context(), none, "run.html")
	if got := said.String(); !strings.HasPrefix(got, "warning: open run.html: "+none) || !strings.HasSuffix(got, "; the report is written: open it by hand\n") {
		t.Errorf("it said %q", got)
	}
}
