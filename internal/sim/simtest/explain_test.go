package simtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// Explain is recast plan --explain.
func (c *Client) Explain(t *testing.T, node string) survey.Explanation {
	t.Helper()
	e := valueOf(connected(t.Context(), c, func(s *session) (survey.Explanation, error) {
		_, e, err := pipeline.Explain(t.Context(), s.project, s.machines, planning.Policy{}, nil, node)
		return e, err
	}))(t)
	return e
}

// TestWhatIsExplainedIsWhatRuns: recast plan --explain lists the steps of the roll in
// their order, for workers and control planes and every strategy.
func TestWhatIsExplainedIsWhatRuns(t *testing.T) {
	long(t)
	eachIn(t, func(strategy string) sim.Options {
		return sim.Options{ControlPlanes: 3, Workers: 1, Holder: strategy == "auto"}
	}, storiesOf("auto", "reimage", "in-place"), func(t *testing.T, lab *Lab, strategy string) {
		lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+strategy+"\n")
		lab.Patch(everywhere)
		nodes := []string{"cp1", "wk1"}
		want, got := map[string][]string{}, map[string][]string{}
		for _, name := range nodes {
			for _, s := range lab.Client().Explain(t, name).Steps {
				want[name] = append(want[name], s.Path)
			}
			mustBe(t, len(want[name]) >= 8, "%s: only %q are explained", name, want[name])
		}
		c := lab.Client()
		c.Emit = func(e step.Event) {
			_, node, below := planning.NodeOfStep(e.Path)
			if e.Status != step.Started && e.Status != step.Skipped || e.Kind == "" || want[node] == nil {
				return
			}
			if at := strings.Join(below, "/"); !slices.Contains(got[node], at) { // preparations run twice
				got[node] = append(got[node], at)
			}
		}
		must(t, c.roll(planning.Policy{})(t.Context()))
		for _, name := range nodes {
			requireSame(t, want[name], got[name], "%s (-explained +run)", name)
		}
	})
}

// TestDeepDriftSeesALabelThatLies: a factory that has not noticed the patch builds the old
// content under the new schematic, and a person upgrades a node to that by hand.
func TestDeepDriftSeesALabelThatLies(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		must(t, errOf(lab.Lab.Patch(t.Context(), sim.PatchedExtension, false)))
		res := valueOf(lab.Client().Lock(t.Context(), pipeline.LockOptions{Update: true}))(t)
		upgradeByHand(t, lab, res.Lock.Schematics["storage"].Schematic)
		d := requireDrift(t, lab, "wk1") // only by its configuration's install image
		for _, r := range d.Nodes[1].Reasons {
			require(t, r.Code == "install-image", "labels differ: %+v", r)
		}
		requirePatchedFile(t, lab)
		p := valueOf(lab.Client().Provenance(t.Context(), "wk1"))(t)
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
	res := valueOf(lab.Client().DeepDrift(t.Context()))(t)
	var found []cluster.Reason
	for _, d := range res.Nodes {
		require(t, len(d.Unread) == 0 && strings.Contains(strings.Join(d.Notes, "\n"), "of its extensions compared"),
			"%s: unread %q, notes %q", d.Node, d.Unread, d.Notes)
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
	s := lab.session()
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
