package simtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/pipeline"
)

// TestDeepDriftSeesALabelThatLies: a factory that has not noticed the patch builds the old
// content under the new schematic, and a person upgrades a node to that by hand.
func TestDeepDriftSeesALabelThatLies(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		must(t, errOf(lab.Lab.Patch(t.Context(), sim.PatchedExtension, false)))
		res, err := lab.Client().Lock(t.Context(), pipeline.LockOptions{Update: true})
		must(t, err)
		upgradeByHand(t, lab, res.Lock.Schematics["storage"].Schematic)
		d := requireDrift(t, lab, "wk1") // only by its configuration's install image
		for _, r := range d.Nodes[1].Reasons {
			if r.Code != "install-image" {
				t.Errorf("labels differ: %+v", r)
			}
		}
		requirePatchedFile(t, lab)
		p, err := lab.Client().Provenance(t.Context(), "wk1")
		must(t, err)
		files := slices.IndexFunc(p.Links, func(l observe.ProvenanceLink) bool { return l.Name == "files" })
		if files < 0 || p.Links[files].Certainty != observe.Contradicted || p.Build != p.Wanted || p.Origin != observe.FromLock {
			t.Errorf("provenance of wk1: %+v", p)
		}
	})
}

// requirePatchedFile: drift --deep reports one file of the patched extension, and compares
// every node's.
func requirePatchedFile(t *testing.T, lab *Lab) {
	t.Helper()
	res, err := lab.Client().DeepDrift(t.Context())
	must(t, err)
	var found []cluster.Reason
	for _, d := range res.Nodes {
		if len(d.Unread) > 0 || !strings.Contains(strings.Join(d.Notes, "\n"), "of its extensions compared") {
			t.Errorf("%s: unread %q, notes %q", d.Node, d.Unread, d.Notes)
		}
		for _, r := range d.Reasons {
			if r.Code == "extension-file" {
				found = append(found, r)
			}
		}
	}
	if len(found) != 1 || !strings.HasPrefix(found[0].Text, "/usr/local/sbin/iscsid of extension iscsi-tools v0.2.0: sha256:") ||
		!strings.HasPrefix(found[0].Old, "sha256:") || !strings.HasPrefix(found[0].New, "sha256:") || found[0].Old == found[0].New {
		t.Errorf("files that differ: %+v", found)
	}
}

// upgradeByHand installs what the factory builds from a schematic, as talosctl upgrade does.
func upgradeByHand(t *testing.T, lab *Lab, schematic string) {
	t.Helper()
	s, err := lab.Client().connect(t.Context())
	must(t, err)
	defer s.end()
	id, _, err := s.images.Factory.Register(t.Context(), schematic)
	must(t, err)
	n, before := lab.node("wk1"), lab.machine("wk1")
	repository := s.images.Factory.InstallerRepository(images.ISORequest{SchematicID: id, Platform: "nocloud"})
	lab.installBy(t, n.Name, repository+":"+before.TalosVersion)
	must(t, s.machines.Talos.Reboot(t.Context(), n.Addr, n.UUID, ""))
	for {
		m, err := s.machines.Talos.Machine(t.Context(), n.Addr)
		if err == nil && m.BootID != before.BootID && m.Ready && m.Stage == "running" {
			return
		}
		time.Sleep(time.Second)
	}
}
