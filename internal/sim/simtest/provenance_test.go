package simtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/provenance"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/pipeline"
)

// deepDrift is the nodes for which drift --deep reports files, with the reasons.
func deepDrift(t *testing.T, lab *Lab) map[string][]cluster.Reason {
	t.Helper()
	res, err := lab.Client().DeepDrift(t.Context())
	must(t, err)
	files := map[string][]cluster.Reason{}
	for _, d := range res.Nodes {
		compared := slices.ContainsFunc(d.Notes, func(n string) bool { return strings.Contains(n, "of its extensions compared") })
		if len(d.Unread) > 0 || !compared {
			t.Errorf("%s: unread %q, notes %q", d.Node, d.Unread, d.Notes)
		}
		for _, r := range d.Reasons {
			if r.Code == "extension-file" {
				files[d.Node] = append(files[d.Node], r)
			}
		}
	}
	return files
}

// certainty is how well one link of a node's chain is proven.
func certainty(t *testing.T, lab *Lab, node, link string) (provenance.Certainty, provenance.Provenance) {
	t.Helper()
	p, err := lab.Client().Provenance(t.Context(), node)
	must(t, err)
	i := slices.IndexFunc(p.Links, func(l provenance.Link) bool { return l.Name == link })
	if i < 0 {
		t.Fatalf("%s has no link %s: %+v", node, link, p)
	}
	return p.Links[i].Certainty, p
}

const patchedFile = "/usr/local/sbin/iscsid"

func requirePatchedFile(t *testing.T, node string, reasons []cluster.Reason) {
	t.Helper()
	if len(reasons) != 1 || !strings.HasPrefix(reasons[0].Text, patchedFile+" of extension iscsi-tools v0.2.0: sha256:") ||
		!strings.HasPrefix(reasons[0].Old, "sha256:") || !strings.HasPrefix(reasons[0].New, "sha256:") || reasons[0].Old == reasons[0].New {
		t.Errorf("%s: %+v", node, reasons)
	}
}

// TestDeepDriftFollowsAPatch: the files of a patched extension are reported until a roll has installed
// them.
func TestDeepDriftFollowsAPatch(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		if got := deepDrift(t, lab); len(got) > 0 {
			t.Errorf("a new lab: %+v", got)
		}
		lab.Patch(sim.PatchedExtension)
		got := deepDrift(t, lab)
		requirePatchedFile(t, "wk1", got["wk1"])
		if len(got) != 1 {
			t.Errorf("nodes with other files: %+v", got)
		}
		// It runs what the previous lock pins, which is at hand.
		files, p := certainty(t, lab, "wk1", "files")
		if files != provenance.Proven || p.Origin != provenance.FromLock || p.Build == p.Wanted || p.Contradicted() {
			t.Errorf("before the roll: files %s, %+v", files, p)
		}
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		if got := deepDrift(t, lab); len(got) > 0 {
			t.Errorf("after the roll: %+v", got)
		}
		if files, p := certainty(t, lab, "wk1", "files"); files != provenance.Proven || p.Build != p.Wanted || p.Contradicted() {
			t.Errorf("after the roll: files %s, %+v", files, p)
		}
	})
}

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
		requirePatchedFile(t, "wk1", deepDrift(t, lab)["wk1"])
		files, p := certainty(t, lab, "wk1", "files")
		if files != provenance.Contradicted || p.Build != p.Wanted || p.Origin != provenance.FromLock {
			t.Errorf("files %s, %+v", files, p)
		}
	})
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
	must(t, s.machines.Talos.Reboot(t.Context(), n.Addr, n.UUID))
	for {
		m, err := s.machines.Talos.Machine(t.Context(), n.Addr)
		if err == nil && m.BootID != before.BootID && m.Ready && m.Stage == "running" {
			return
		}
		time.Sleep(time.Second)
	}
}
