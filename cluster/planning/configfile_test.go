package planning

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
)

// patchesNothing refuses a configuration with the word refused, and leaves others unchanged.
type patchesNothing struct{ cluster.Maintenance }

func (patchesNothing) PatchConfig(config cluster.Secret, _ cluster.ConfigPatch) (cluster.Secret, error) {
	if strings.Contains(string(config), "refused") {
		return nil, fault.MachineConfig.Refusedf("Talos would refuse it: refused")
	}
	return config, nil
}

func (patchesNothing) ConfigEffect(_, wanted cluster.Secret) (effect cluster.ConfigEffect, err error) {
	if strings.Contains(string(wanted), "udev") {
		effect.Reboot = []string{"machine.udev"}
	}
	if strings.Contains(string(wanted), "controlplane") {
		effect.Identity = []string{"the node's role"}
	}
	if strings.Contains(string(wanted), "foreign") {
		effect.Identity = append(effect.Identity, "the cluster's ID", "the CA of etcd")
	}
	return effect, nil
}

func (patchesNothing) TrustedCA(text cluster.Secret) (trusted, known bool, err error) {
	return !strings.Contains(string(text), "foreign"), !strings.Contains(string(text), "no CA"), nil
}

func (patchesNothing) ConfigVolumes(cluster.Secret, string) ([]cluster.ConfigVolume, error) {
	return nil, nil
}

func (patchesNothing) Selectors(context.Context, netip.Addr, bool, cluster.Secret, string) ([]cluster.DiskSelector, error) {
	return nil, nil
}

// filed is the paused world with a file of wk1, as Observe returns it; edit changes what was
// found of wk1.
func filed(t *testing.T, runs, file string, edit func(*observe.Found)) func([]cluster.Wanted, *observe.Observation) {
	t.Helper()
	return func(wanted []cluster.Wanted, o *observe.Observation) {
		f := &o.Found[1]
		src := observe.Sources{
			Maintenance:   patchesNothing{},
			MachineConfig: fileOf("wk1", file),
		}
		if edit != nil {
			edit(f)
		}
		if runs != "" && f.Machine != nil {
			m := *f.Machine
			m.Configs = cluster.Configs{Stored: cluster.Secret(runs), Active: cluster.Secret(runs)}
			f.Machine = &m
		}
		observe.ObserveFiles(t.Context(), src, wanted, o.Found)
	}
}

// fileOf are files of which only one node has one; "": none has.
func fileOf(name, file string) func(context.Context, string) (cluster.Secret, bool, error) {
	return func(_ context.Context, node string) (cluster.Secret, bool, error) {
		return cluster.Secret(file), node == name && file != "", nil
	}
}

const (
	hasToken = "machine: {token: abcdef.0123456789abcdef, nodeLabels: {a: x}}"
	hasOther = "machine: {token: ghijkl.0123456789abcdef, nodeLabels: {a: y}}"
)

// TestPlanShowsTheFile: what the node's file changes is shown if it is applied, noted if it is
// not, and refused if that is unknown.
func TestPlanShowsTheFile(t *testing.T) {
	t.Parallel()
	changes := []config.Change{
		{Document: "v1alpha1", Path: "machine.nodeLabels.a", Kind: config.Changed, Found: "x", Wanted: "y"},
		{Document: "v1alpha1", Path: "machine.token", Kind: config.Changed, Found: config.Hidden, Wanted: config.Hidden},
	}
	asked := func(s cluster.Strategy) func(w []cluster.Wanted) {
		return func(w []cluster.Wanted) { w[1].Strategy = s }
	}
	for name, tc := range map[string]struct {
		runs, file string
		wanted     func(w []cluster.Wanted)
		edit       func(*observe.Found)
		applied    bool
		changes    []config.Change
		note       string
		refused    string
	}{
		"no file":  {runs: hasToken},
		"the same": {runs: hasToken, file: "# from git\n" + hasToken, applied: true},
		"recreate": {runs: hasToken, file: hasOther, applied: true, changes: changes},
		"reimage":  {runs: hasToken, file: hasOther, wanted: asked(cluster.Reimage), applied: true, changes: changes},
		"in place": {runs: hasToken, file: hasOther, wanted: asked(cluster.InPlace), applied: true, changes: changes},
		"another role": {runs: hasToken, file: "machine: {type: controlplane}", applied: true, changes: []config.Change{
			{Document: "v1alpha1", Path: "machine.nodeLabels.a", Kind: config.Removed, Found: "x"},
			{Document: "v1alpha1", Path: "machine.token", Kind: config.Removed, Found: config.Hidden},
			{Document: "v1alpha1", Path: "machine.type", Kind: config.Added, Wanted: "controlplane"},
		}, refused: "would change the node's role"},
		"in place, same":   {runs: hasToken, file: hasToken, wanted: asked(cluster.InPlace)},
		"in place, unread": {file: hasToken, wanted: asked(cluster.InPlace), note: "its file in talos.machineConfigs was not compared with what it runs: the machine shows no configuration to compare it with; this roll leaves the configuration as it is"},
		"unread":           {file: hasToken, refused: "its file in talos.machineConfigs can't be applied: the machine shows no configuration to compare it with"},
		"Talos refuses it": {runs: hasToken, file: "refused: 1", refused: "its file in talos.machineConfigs can't be applied: Talos would refuse it: refused"},
		"not comparable":   {runs: "refused: 1", file: hasToken, refused: "its file in talos.machineConfigs can't be applied: what the node runs can't be compared with it: Talos would refuse it: refused"},
		"no YAML":          {runs: hasToken, file: "{", refused: "its file in talos.machineConfigs can't be applied: not a machine configuration: line 2: not valid YAML"},
		"in sync, unread": {file: hasOther, refused: "its file in talos.machineConfigs can't be compared with what it runs: the machine shows no configuration to compare it with", edit: func(f *observe.Found) {
			m := clustertest.InSync()
			m.UUID, m.SystemDisk, m.Disks = f.Machine.UUID, f.Machine.SystemDisk, f.Machine.Disks
			f.Machine = &m
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted, o := paused(nil)
			if tc.wanted != nil {
				tc.wanted(wanted)
			}
			filed(t, tc.runs, tc.file, tc.edit)(wanted, &o)
			plan, err := New("c1", wanted, o, clustertest.Past, Policy{Only: []string{"wk1"}})
			if err != nil {
				t.Fatal(err)
			}
			n := plan.Nodes[0]
			var shown cluster.ConfigFile
			if n.ConfigFile != nil {
				shown = *n.ConfigFile
			}
			if diff := cmp.Diff(tc.changes, shown.Changes); diff != "" || shown.Applied != tc.applied {
				t.Errorf("applied %t, (-want +got):\n%s", shown.Applied, diff)
			}
			if tc.applied && (len(shown.Hash) != 64 || shown.Runs != cluster.ConfigSum([]byte(tc.runs))) {
				t.Errorf("the plan is bound to %q and %q", shown.Hash, shown.Runs)
			}
			for _, text := range []struct {
				what, want string
				got        []string
			}{{"notes", tc.note, n.Notes}, {"refusals", tc.refused, n.Refused}} {
				all := strings.Join(text.got, "\n")
				if !strings.Contains(all, text.want) || text.want == "" && strings.Contains(all, "machineConfigs") {
					t.Errorf("%s: %q, want %q", text.what, all, text.want)
				}
			}
		})
	}
}

// TestSavedPlanIsBoundToTheFile: another file, another configuration on the node, and a new
// file are differences; another style is none. A saved plan contains no secret.
func TestSavedPlanIsBoundToTheFile(t *testing.T) {
	t.Parallel()
	saved := sealed(t, filed(t, hasToken, hasOther, nil), Policy{})
	if text := string(asJSON(t, saved)); strings.Contains(text, "0123456789abcdef") || !strings.Contains(text, "machine.nodeLabels.a") {
		t.Errorf("the saved plan:\n%s", text)
	}
	for name, tc := range map[string]struct{ runs, file, want string }{
		"nothing moved":         {hasToken, hasOther, ""},
		"another style":         {hasToken, "# new\nmachine:\n  nodeLabels: {a: y}\n  token: \"ghijkl.0123456789abcdef\"\n", ""},
		"another file":          {hasToken, hasToken, "wk1: its file in talos.machineConfigs: "},
		"another secret":        {hasToken, strings.Replace(hasOther, "ghijkl", "mnopqr", 1), "wk1: its file in talos.machineConfigs: "},
		"no file":               {hasToken, "", "→ none"},
		"another configuration": {strings.Replace(hasToken, "x", "z", 1), hasOther, "wk1: the configuration that it runs: "},
	} {
		now := sealed(t, filed(t, tc.runs, tc.file, nil), Policy{})
		_, err := now.Follow(saved, false)
		if tc.want == "" && err != nil || tc.want != "" && (fault.CodeOf(err) != fault.PlanMoved || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b, err := json.Marshal(saved)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Read(b); err != nil || got.ID != saved.ID {
		t.Errorf("it does not read back: %v", err)
	}
	if other := sealed(t, filed(t, hasToken, hasToken, nil), Policy{}); other.ID == saved.ID {
		t.Error("the plan's ID does not depend on the file")
	}
}
