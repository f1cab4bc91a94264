package setup

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/pipeline"
)

// numbers is a Proxmox with containers.
type numbers struct {
	pipeline.Hypervisor
	containers []cluster.Container
}

func (n numbers) Containers(context.Context) ([]cluster.Container, error) { return n.containers, nil }

func TestFreeRange(t *testing.T) {
	t.Parallel()
	for want, ids := range map[string][]cluster.VMID{"9000-9099": {101, 8999, 9100}, "9200-9299": {9099, 9100}} {
		in, other := &initial{}, &initial{}
		for _, id := range ids {
			in.found.VMs = append(in.found.VMs, cluster.VM{ID: id})
			other.containers = append(other.containers, cluster.Container{ID: id})
		}
		for what, got := range map[string]string{"VMs": in.freeRange().String(), "containers": other.freeRange().String()} {
			if got != want {
				t.Errorf("beside the %s %v: %s, want %s", what, ids, got, want)
			}
		}
	}
	in := &initial{}
	in.found.Nodes = make([]survey.Discovered, 99)
	if got := in.freeRange().String(); got != "9000-9199" {
		t.Errorf("99 nodes have %s", got)
	}
}

// TestVMIDs: a range is proposed only where no other recast.yaml can have one, and an
// unusable range is refused.
func TestVMIDs(t *testing.T) {
	t.Parallel()
	vm := func(id cluster.VMID, description string) cluster.VM {
		return cluster.VM{ID: id, Name: "vm", Host: "pve1", Config: map[string]string{"description": description}}
	}
	parking := vm(9001, `recast-record: {"version":1,"cluster":"homelab","node":"wk1","uuid":"u"}`)
	claim := vm(9000, `recast-claim: {"version":1,"cluster":"homelab","run":"r1"}`)
	const rolled, range9100 = "recast has run on these nodes before", "9100-9199"
	for name, tc := range map[string]struct {
		vms        []cluster.VM // beside that of the node, 101
		containers []cluster.Container
		made       string // description of the node's VM
		given      string // --vmids
		asked      string
		proposed   string
		answer     string // to the question; "": what is proposed
		want       string
		warns      string
		err        string
	}{
		"nobody was here":            {asked: "Which VMIDs may recast use", proposed: "9000-9099", want: "9000-9099"},
		"given":                      {given: range9100, want: range9100},
		"disks are parked":           {vms: []cluster.VM{parking}, asked: rolled + " (its own: VM 9001). ", answer: "9000-9099", want: "9000-9099", warns: "must start with 9000 too, or each refuses what the other has left"},
		"disks are parked elsewhere": {vms: []cluster.VM{parking}, given: range9100, err: `VM 9001 "vm" on pve1 is recast's own: it belongs to a recast.yaml with other proxmox.vmids than 9100-9199`},
		"parked where the claim is":  {vms: []cluster.VM{parking}, given: "9001-9099", err: "is recast's own, and not its claim"},
		"a run is at work":           {vms: []cluster.VM{claim}, asked: rolled, answer: "9000-9199", want: "9000-9199"},
		"at work, another range":     {vms: []cluster.VM{claim}, given: range9100, err: "is the claim of a run"},
		"at work, another first one": {vms: []cluster.VM{claim}, given: "8999-9099", err: "is the claim of a run"},
		"another cluster's":          {vms: []cluster.VM{vm(9001, `recast-record: {"version":1,"cluster":"other","uuid":"x"}`)}, asked: "Which", proposed: range9100, want: range9100},
		"nothing is left of it":      {made: "recast: run=r1 build=b", asked: rolled + " (it has created the VM of wk1). ", answer: "9300-9399", want: "9300-9399", warns: "must start with 9300 too, or each refuses what the other has left"},
		"others are among them":      {vms: []cluster.VM{vm(9150, "")}, containers: []cluster.Container{{ID: 9151, Name: "dns", Host: "pve2"}}, given: range9100, want: range9100, warns: `VM 9150 "vm" on pve1, container 9151 "dns" on pve2`},
		"a VM has the first":         {vms: []cluster.VM{vm(9100, "")}, given: range9100, err: `VM 9100 "vm" on pve1 has the first number of 9100-9199, which is the claim's`},
		"a container has the first":  {containers: []cluster.Container{{ID: 9100, Name: "dns", Host: "pve2"}}, given: range9100, err: `container 9100 "dns" on pve2 has the first number`},
		"a node has the first":       {given: "101-199", err: "VM 101, which is or has disks of node wk1, has the first number"},
		"none":                       {given: "5-7", err: "out of bounds"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := vm(101, tc.made)
			in := &initial{InitOptions: InitOptions{VMIDs: tc.given}}
			in.draft.Cluster = "homelab"
			in.found.Nodes, in.found.VMs = []survey.Discovered{{Name: "wk1", VM: node}}, append([]cluster.VM{node}, tc.vms...)
			asked := ""
			in.src = InitSources{Proxmox: numbers{containers: tc.containers}, Ask: func(_ context.Context, q Question) (string, error) {
				asked = q.Text
				if q.Default != tc.proposed {
					t.Errorf("it proposes %q, want %q", q.Default, tc.proposed)
				}
				if tc.answer == "" {
					return q.Default, nil
				}
				return tc.answer, q.Check(tc.answer)
			}}
			err := in.vmids(t.Context())
			if !strings.HasPrefix(asked, tc.asked) || tc.asked == "" && asked != "" {
				t.Errorf("it asks %q, want %q", asked, tc.asked)
			}
			if tc.err != "" {
				if !strings.Contains(fmt.Sprint(err), tc.err) || tc.given != "5-7" && !strings.Contains(strings.Join(fault.Hints(err), "\n"), "--vmids: ") {
					t.Errorf("err = %v %q, want %q", err, fault.Hints(err), tc.err)
				}
				return
			}
			if err != nil || in.draft.VMIDs.String() != tc.want {
				t.Errorf("%s, %v; want %s", in.draft.VMIDs, err, tc.want)
			}
			if said := strings.Join(in.res.Warnings, "\n"); !strings.HasSuffix(said, tc.warns) || tc.warns == "" && said != "" {
				t.Errorf("it warns %q, want %q", said, tc.warns)
			}
		})
	}
}

// TestSayable: values that no recast.yaml can have are refused, with the flag that
// helps.
func TestSayable(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change     func(*initial)
		said, hint string
	}{
		"as it should be": {func(*initial) {}, "", ""},
		"a name with a domain": {
			func(in *initial) { in.found.Nodes[0].Name = "wk1.example" },
			`nodes[0].name: "wk1.example" is not a name of a node`, "--exclude wk1.example leaves it out",
		},
		"a factory that is none":      {func(in *initial) { in.Factory = "factory.example" }, "images.factory: ", "--factory gives another one"},
		"a cluster that is none":      {func(in *initial) { in.Cluster = "my cluster" }, "cluster: ", "--cluster gives it another name"},
		"a version that is none":      {func(in *initial) { in.Talos = "1.13.9" }, "talos.version: ", "--talos-version gives another one"},
		"a version that is too old":   {func(in *initial) { in.found.Nodes[0].Machine.TalosVersion = "v1.9.5" }, "is too old", "--talos-version gives another one"},
		"a fingerprint that is none":  {func(in *initial) { in.Fingerprint = "AA" }, "proxmox.fingerprint: ", "--fingerprint gives another one"},
		"an endpoint with a password": {func(in *initial) { in.Endpoints = []string{"https://root:hunter2@pve1"} }, "proxmox.endpoints[0]: ", "--endpoint gives another one"},
	} {
		in := initial{InitOptions: InitOptions{Context: "homelab", Endpoints: []string{"https://pve1:8006"}}}
		in.found.Nodes = []survey.Discovered{{Name: "wk1", VM: cluster.VM{ID: 101}, Machine: cluster.Machine{RunningSystem: cluster.RunningSystem{TalosVersion: "v1.13.9"}}}}
		tc.change(&in)
		err := in.sayable()
		if tc.said == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		said := fmt.Sprint(err)
		if !strings.Contains(said, tc.said) || strings.Contains(said, "hunter2") || fault.KindOf(err) != fault.Config ||
			!strings.HasSuffix(strings.Join(fault.Hints(err), "; "), tc.hint) {
			t.Errorf("%s: %v %q; want %q, %q", name, err, fault.Hints(err), tc.said, tc.hint)
		}
	}
}

func TestInitNodeDisks(t *testing.T) {
	t.Parallel()
	for want, n := range map[string]InitNode{
		"system disk scsi0 32G, persistent scsi1 100G":                      {SystemDisk: "scsi0 32G", Persistent: []string{"scsi1 100G"}},
		"system disk not proven: it is one of scsi0 32G, scsi1 32G of VM 9": {Candidates: []string{"scsi0 32G", "scsi1 32G of VM 9"}},
		"system disk not proven":                                            {},
	} {
		if got := n.Disks(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
