package simtest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/step"
)

// mesh has all nodes take part in KubeSpan, by the main document or by one of its own.
func (l *Lab) mesh(document bool) {
	l.t.Helper()
	s, err := l.Client().connect(l.t.Context())
	must(l.t, err)
	defer s.end()
	for _, name := range []string{"cp1", "wk1"} {
		n := l.node(name)
		text, err := s.machines.Talos.MachineConfig(l.t.Context(), n.Addr)
		must(l.t, err)
		on := strings.Replace(string(text), "machine:\n", "machine:\n    network: {kubespan: {enabled: true}}\n", 1)
		if document {
			on = string(text) + "\n---\napiVersion: v1alpha1\nkind: KubeSpanConfig\nenabled: true\n"
		}
		must(l.t, s.machines.Talos.ReplaceConfig(l.t.Context(), n.Addr, n.UUID, cluster.Secret(on)))
		must(l.t, s.machines.Talos.Reboot(l.t.Context(), n.Addr, n.UUID, "")) // it registers anew
		time.Sleep(5 * time.Minute)
	}
}

// TestKubeSpan: a node that gets another system disk is a second peer with the address of its old one. Where the old one
// lists first, it is not reached until discovery has forgotten that: the plan says so, and the roll waits for it.
func TestKubeSpan(t *testing.T) {
	for name, tc := range map[string]struct {
		ids      string
		document bool
		late     bool
	}{
		"the new one lists first": {ids: "!"},
		"the old one lists first": {ids: "~", document: true, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.mesh(tc.document)
				lab.Patch(sim.PatchedExtension)
				lab.NodeIDsBegin(tc.ids)
				n := planOf(t, lab, "wk1")
				if !n.KubeSpan || !slices.Contains(n.Notes, planning.OldPeer) || planning.Outage(n) != planning.PeerLasts {
					t.Fatalf("planned %v, %s, notes %q", n.KubeSpan, planning.Outage(n), n.Notes)
				}
				c := lab.Client()
				var said []string
				note := notes("wait-healthy", &said)
				c.Emit = func(e step.Event) { note(e) }
				began := time.Now()
				must(t, c.roll(onlyWorker)(context.WithoutCancel(t.Context())))
				if took := time.Since(began); took > planning.PeerLasts != tc.late {
					t.Errorf("it took %s", took)
				}
				text := strings.Join(said, "\n")
				if tc.late && !strings.Contains(text, planning.OldPeer) {
					t.Errorf("said %s", text)
				}
				requireInSync(t, lab)
			})
		})
	}
}
