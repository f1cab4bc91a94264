package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/pipeline"
)

// TestCtrlCEndsTheLastCopy: a mirror that does not answer holds nobody who wants to go.
func TestCtrlCEndsTheLastCopy(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	mirror := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer mirror.Close()
	p := pipeline.Project{Config: &config.Config{Cluster: "c", Dir: t.TempDir()}}
	p.Config.Images.Mirror = strings.TrimPrefix(mirror.URL, "http://") + "/acme/talos"
	p.Config.History.Share = config.ShareAlways
	j, err := journal.Open(p.Runs().Dir, journal.Options{Run: "r"})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	var cl closers
	shareRuns(ctx, &streams{err: &console{Writer: io.Discard}}, p, &cl)("r", j.Dir())
	began := time.Now()
	ended := make(chan struct{})
	go func() {
		cl.close()
		close(ended)
	}()
	<-asked
	interrupt()
	<-ended
	if took := time.Since(began); took > shareWait/2 {
		t.Errorf("it took %s", took)
	}
}
