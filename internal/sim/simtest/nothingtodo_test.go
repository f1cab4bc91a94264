package simtest

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// Build is recast publish --only build.
func (c *Client) Build(ctx context.Context) error {
	p, err := c.Project()
	if err != nil {
		return err
	}
	s := &session{project: p}
	defer s.end()
	if err := c.connectImages(s); err != nil {
		return err
	}
	_, err = pipeline.Build(ctx, s.project, s.images, &step.Runner{Emit: c.Emit})
	return err
}

// TestNothingToDo: a stage whose outputs exist writes nothing, reads no content and takes less than a second, without
// requests to Talos or Kubernetes. The exceptions: lock reads the registry's list of extensions, and publish makes Proxmox
// compare the checksum of each ISO, if the token allows that, which takes its time.
func TestNothingToDo(t *testing.T) {
	eachInLab(t, oneWorker(), map[string]bool{"uploads": false, "downloads": true}, func(t *testing.T, lab *Lab, compares bool) {
		lab.Replace("recast.yaml", "images:\n", "images:\n  mirror: 127.0.0.1:5000/acme/talos\n")
		if compares {
			lab.World.AddRole("Downloads", "Sys.AccessNetwork")
			for _, who := range lab.World.ACLs() {
				lab.World.Grant(world.ACL{Path: "/", Who: who.Who, Role: "Downloads", Propagate: true})
			}
		}
		lab.Patch(sim.PatchedExtension)
		must(t, lab.Client().Publish(t.Context()))
		isos := 0
		if compares {
			isos = 2 // one for each schematic
		}
		lab.requireIdle(t, "lock", 0, func(c *Client) error { return errOf(c.Lock(t.Context(), pipeline.LockOptions{})) })
		lab.requireIdle(t, "lock --update", 0, func(c *Client) error { return errOf(c.Lock(t.Context(), pipeline.LockOptions{Update: true})) })
		lab.requireIdle(t, "build", 0, func(c *Client) error { return c.Build(t.Context()) })
		lab.requireIdle(t, "publish", isos, func(c *Client) error { return c.Publish(t.Context()) })
	})
}

// requireIdle runs a stage that only has to have that many checksums compared.
func (l *Lab) requireIdle(t *testing.T, stage string, checksums int, run func(*Client) error) {
	t.Helper()
	file := filepath.Join(l.Dir, "recast.lock")
	was, err := os.Stat(file)
	must(t, err)
	lock, calls, tasks, start := l.Read("recast.lock"), len(l.Recorder.Calls()), len(l.World.Tasks()), time.Now()
	if err := run(l.Client()); err != nil {
		t.Fatalf("%s: %v", stage, err)
	}
	took := time.Since(start)
	compared := l.World.Tasks()
	compared = compared[:len(compared)-tasks] // the latest are first
	for _, task := range compared {
		took -= task.End.Sub(task.Start)
		if log := strings.Join(task.Log, "\n"); task.Type != "download" || !strings.Contains(log, "no need to download") {
			t.Errorf("%s: task %s: %s", stage, task.UPID, log)
		}
	}
	if took >= time.Second*time.Duration(max(1, checksums)) { // each is polled for
		t.Errorf("%s took %s, the comparing of %d checksums left out", stage, took, checksums)
	}
	if len(compared) != checksums {
		t.Errorf("%s had %d checksums compared, want %d", stage, len(compared), checksums)
	}
	for _, c := range l.Recorder.Calls()[calls:] {
		if !harmless(c) {
			t.Errorf("%s: %s %s %s", stage, c.Proto, c.Method, c.Path)
		}
	}
	is, err := os.Stat(file)
	must(t, err)
	if !bytes.Equal(l.Read("recast.lock"), lock) || !is.ModTime().Equal(was.ModTime()) || !os.SameFile(was, is) {
		t.Errorf("%s wrote recast.lock", stage)
	}
}

// harmless says whether a request neither changes anything nor reads image content.
func harmless(c record.Call) bool {
	reads := c.Method == http.MethodGet || c.Method == http.MethodHead
	switch c.Proto {
	case "registry", "factory":
		list := strings.HasPrefix(c.Path, "/v2/siderolabs/extensions/blobs/")
		return reads && !strings.HasPrefix(c.Path, "/image/") && (list || !strings.Contains(c.Path, "/blobs/"))
	case "proxmox":
		return reads || strings.HasSuffix(c.Path, "/download-url") // of an existing file: its task says so
	}
	return false // no other request is allowed
}
