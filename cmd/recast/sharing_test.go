package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
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

// TestSecretsAreNotShared: what this machine keeps secret is removed from a log that quotes it, however plain it looks.
func TestSecretsAreNotShared(t *testing.T) {
	t.Parallel()
	mirror := httptest.NewServer(factoryapi.NewRegistry(record.New()))
	defer mirror.Close()
	p := pipeline.Project{Config: &config.Config{Cluster: "c", Dir: t.TempDir()}}
	p.Config.Images.Mirror = strings.TrimPrefix(mirror.URL, "http://") + "/acme/talos"
	p.Config.History.Share = config.ShareAuto
	j, err := journal.Open(p.Runs().Dir, journal.Options{Run: "r"})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	s := &streams{err: &console{Writer: io.Discard}}
	var cl closers
	shareRuns(t.Context(), s, p, &cl)("r", j.Dir())
	if err := j.PutSecret("wk1/config", []byte("machine: {token: plainly-a-word}\n")); err != nil {
		t.Fatal(err)
	}
	there := p
	there.Config = &config.Config{Cluster: "c", Dir: t.TempDir(), Images: p.Config.Images, History: p.Config.History}
	fetch := func() { fetchRuns(t.Context(), s, there, 0, func(text string) { t.Error(text) }) }
	for began := time.Now(); ; fetch() { // until the first copy
		if known, err := there.Runs().List(); err != nil || time.Since(began) > 10*shareSoon {
			t.Fatalf("it was not shared: %v", err)
		} else if len(known) > 0 {
			break
		}
		time.Sleep(shareSoon / 10)
	}
	err = errors.Join(
		j.Delete("wk1/config"), // as of a node that is done
		os.WriteFile(filepath.Join(j.Dir(), story.LogName), []byte(`{"msg":"Talos said: plainly-a-word"}`+"\n"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	cl.close()
	fetch()
	run, err := there.Runs().Find("r", past.Options{})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(run.Dirs[0], story.LogName))
	if want := `{"msg":"Talos said: [redacted]"}` + "\n"; string(log) != want || err != nil {
		t.Errorf("%s, %v", log, err)
	}
}
