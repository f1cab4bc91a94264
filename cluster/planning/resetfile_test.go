package planning

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
)

// TestTheFileOfAMachineWithoutConfiguration: the file of a machine that was reset, or with which a cluster
// begins, is compared with what others run, else with the talosconfig, and with the node's role.
func TestTheFileOfAMachineWithoutConfiguration(t *testing.T) {
	t.Parallel()
	const (
		ours       = "machine: {type: worker, nodeLabels: {b: z}}"
		foreign    = "machine: {type: worker, nodeLabels: {b: foreign}}"
		notEqual   = "its file in talos.machineConfigs differs from cp1 in the cluster's ID, the CA of etcd: is it the file of another cluster?"
		notTrusted = "its file in talos.machineConfigs differs from the talosconfig in the CA of Talos: is it the file of another cluster?"
		onlyCA     = "only the CA of Talos was compared, with the talosconfig's"
		nothing    = "is for you to see"
	)
	blank := func(f *observe.Found) {
		f.Blank = &cluster.BlankMachine{Machine: cluster.Machine{MachineStanding: cluster.MachineStanding{Stage: "maintenance"}, SystemDisk: "sda"}}
		f.Machine, f.ConfigKnown, f.ConfigIn = nil, true, cluster.ConfigInFile
	}
	absent := func(f *observe.Found) {
		f.Absent, f.Machine, f.VM, f.Node = &observe.Absent{Host: "pve1"}, nil, nil, nil
	}
	for name, tc := range map[string]struct {
		found         func(*observe.Found)
		shows, first  bool // cp1 shows its configuration; the cluster begins with it
		file          string
		refused, note string
	}{
		"reset":                             {found: blank, shows: true, file: ours},
		"reset, of another cluster":         {found: blank, shows: true, file: foreign, refused: notEqual},
		"reset, of another role":            {found: blank, shows: true, file: "machine: {type: controlplane}", refused: "makes it a control-plane, and it is a worker: is it the file of another node?"},
		"reset, nobody shows":               {found: blank, file: ours, note: onlyCA},
		"reset, nobody shows, another CA":   {found: blank, file: foreign, refused: notTrusted},
		"reset, nothing to compare with":    {found: blank, file: ours + " # no CA", note: nothing},
		"a new node":                        {found: absent, shows: true, file: ours},
		"a new node, of another cluster":    {found: absent, shows: true, file: foreign, refused: notEqual},
		"a new node, nobody shows":          {found: absent, file: ours, refused: "whether its file in talos.machineConfigs is of this cluster can't be seen"},
		"the first":                         {found: absent, first: true, file: strings.Replace(ours, "worker", "controlplane", 1), note: onlyCA},
		"the first, of another cluster":     {found: absent, first: true, file: strings.Replace(foreign, "worker", "controlplane", 1), refused: notTrusted},
		"the first, beside workers":         {found: absent, first: true, shows: true, file: strings.Replace(ours, "worker", "controlplane", 1)},
		"the first, beside others' workers": {found: absent, first: true, shows: true, file: strings.Replace(foreign, "worker", "controlplane", 1), refused: notEqual},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted, o := paused(nil)
			for i := range o.Found {
				m := *o.Found[i].Machine
				if m.Configs = (cluster.Configs{}); tc.shows && o.Found[i].Name == "cp1" {
					m.Configs.Stored, m.Configs.Active = cluster.Secret("machine: {type: controlplane}"), cluster.Secret("machine: {type: controlplane}")
				}
				o.Found[i].Machine = &m
			}
			src := observe.Sources{Maintenance: patchesNothing{}, MachineConfig: fileOf("wk1", tc.file)}
			if tc.first {
				o.First, src.First = "wk1", "wk1"
			}
			tc.found(&o.Found[1])
			observe.ObserveFiles(t.Context(), src, wanted, o.Found)
			n := ForNode(wanted[1], o.Found[1], o, clustertest.Past, Policy{})
			refused, notes := strings.Join(n.Refused, "\n"), strings.Join(n.Notes, "\n")
			if !strings.Contains(refused, tc.refused) || tc.refused == "" && strings.Contains(refused, "machineConfigs") {
				t.Errorf("refused %q, want %q", refused, tc.refused)
			}
			if !strings.Contains(notes, tc.note) || tc.note == "" && tc.refused == "" && strings.Contains(notes, "machineConfigs") {
				t.Errorf("notes %q, want %q", notes, tc.note)
			}
		})
	}
}
