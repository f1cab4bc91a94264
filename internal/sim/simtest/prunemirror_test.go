package simtest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/registry"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// PruneMirror is recast prune --only mirror --yes.
func (c *Client) PruneMirror(ctx context.Context, olderThan time.Duration) (pipeline.PruneReport, error) {
	s, err := c.connect(ctx)
	if err != nil {
		return pipeline.PruneReport{}, err
	}
	defer s.end()
	px := s.machines.Proxmox.(*pve.Client)
	return pipeline.Prune(ctx, s.project, px, px, &step.Runner{Emit: c.Emit}, pipeline.PruneOptions{
		Only: pipeline.PruneMirror, OlderThan: olderThan, Mirror: s.images.Registry.(*registry.Client),
		Holder: claim.Holder{Host: "test", Boot: "b", PID: c.pid, Start: "s"}, Dead: c.lab.isKilled,
		Confirm: func(pipeline.PruneReport) (bool, error) { return true, nil },
	})
}

// TestPruneTheMirror mirrors the builds of three locks, and removes those of the first
// with their signatures once they are an hour old: neither the present nor the previous
// lock needs them.
func TestPruneTheMirror(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const repository = "127.0.0.1:5000/acme/talos"
		lab.Replace("recast.yaml", "images:\n", "images:\n  mirror: "+repository+"\n")
		for range 3 {
			lab.Patch(sim.PatchedExtension)
			must(t, lab.Client().Publish(t.Context()))
		}
		deletes := func() (list []string) {
			for _, c := range lab.Recorder.Calls() {
				if c.Method == "DELETE" && strings.HasPrefix(c.Path, "/v2/acme/talos/manifests/") {
					list = append(list, c.Path)
				}
			}
			return list
		}
		rep, err := lab.Client().PruneMirror(t.Context(), time.Hour)
		if err != nil || len(rep.Mirror) == 0 || len(rep.GoingMirror()) != 0 {
			t.Errorf("at once: %v, %d of %d go", err, len(rep.GoingMirror()), len(rep.Mirror))
		}
		for _, v := range rep.Mirror {
			if !slices.Contains(v.Keep, "it was built less than 1h ago") || time.Since(v.Built) > time.Hour {
				t.Errorf("%s, built at %s, is kept by %q", v, v.Built, v.Keep)
			}
		}
		time.Sleep(time.Hour)
		if rep, err = lab.Client().PruneMirror(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		removed := 0
		for _, v := range rep.Mirror {
			if v.Removed != slices.Contains(deletes(), "/v2/acme/talos/manifests/"+v.Digest) || v.Removed != (len(v.Keep) == 0) {
				t.Errorf("%s: removed is %t, kept by %q", v, v.Removed, v.Keep)
			}
			if v.Removed {
				removed++
			}
		}
		// Of each: the index, its two images, the signature.
		if got := len(deletes()); removed == 0 || removed == len(rep.Mirror) || got != 4*removed {
			t.Errorf("%d of %d removed by %d requests: %q", removed, len(rep.Mirror), got, deletes())
		}
		before := len(deletes())
		if rep, err = lab.Client().PruneMirror(t.Context(), time.Hour); err != nil || len(deletes()) != before || len(rep.GoingMirror()) != 0 {
			t.Errorf("again: %v, %d more requests, %d go", err, len(deletes())-before, len(rep.GoingMirror()))
		}
		// The rest is complete: nothing is left to mirror.
		if err := lab.Client().Publish(t.Context()); err != nil {
			t.Error(err)
		}
		lab.RequireIntact()
	})
}
