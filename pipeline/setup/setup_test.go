package setup

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

func TestNameSchematics(t *testing.T) {
	t.Parallel()
	cp, wk := survey.Discovered{Name: "cp1", Machine: cluster.Machine{ControlPlane: true}}, survey.Discovered{Name: "wk1"}
	of := func(extension string, nodes ...survey.Discovered) plannedSchematic {
		text := "customization: {}\n"
		if extension != "" {
			text = "customization:\n  systemExtensions:\n    officialExtensions:\n      - siderolabs/qemu-guest-agent\n      - siderolabs/" + extension + "\n"
		}
		s := must.Get(schematics.Parse("test", []byte(text)))(t)
		return plannedSchematic{Schematic: s, nodes: nodes}
	}
	for name, c := range map[string]struct {
		plans []plannedSchematic
		want  []string
	}{
		"one":                   {[]plannedSchematic{of("", cp, wk)}, []string{"default"}},
		"one of workers":        {[]plannedSchematic{of("", wk)}, []string{"default"}},
		"by role":               {[]plannedSchematic{of("", cp), of("a", wk)}, []string{"control-plane", "worker"}},
		"both roles":            {[]plannedSchematic{of("", cp, wk), of("a", wk)}, []string{"default", "worker"}},
		"by extension":          {[]plannedSchematic{of("", cp), of("a", wk), of("b", wk)}, []string{"control-plane", "worker-a", "worker-b"}},
		"nothing tells":         {[]plannedSchematic{of("", wk), of("a", wk), of("a", wk)}, []string{"worker", "worker-qemu-guest-agent", "worker-qemu-guest-agent-2"}},
		"an extension and none": {[]plannedSchematic{of("", wk), of("a", wk)}, []string{"worker", "worker-qemu-guest-agent"}},
	} {
		nameSchematics(c.plans)
		got := cluster.Each(c.plans, func(p plannedSchematic) string { return p.name })
		must.Equal(t, name, c.want, got)
	}
}

// TestAMachineOfOmniIsNoted: drift compares it, and a roll refuses it.
func TestAMachineOfOmniIsNoted(t *testing.T) {
	t.Parallel()
	n := survey.Discovered{Name: "cp1"}
	in := &initial{found: survey.Discovery{Nodes: []survey.Discovered{n}}}
	if in.nodes(); len(in.res.Warnings) > 0 {
		t.Errorf("of no machine of Omni: %q", in.res.Warnings)
	}
	in.found.Nodes[0].Machine.ConfigArgs = []string{"siderolink.api=grpc://omni.example:8090"}
	if in.nodes(); len(in.res.Warnings) != 1 || !strings.Contains(in.res.Warnings[0], "cp1 is of Omni") {
		t.Errorf("of a machine of Omni: %q", in.res.Warnings)
	}
}

func TestCameFrom(t *testing.T) {
	t.Parallel()
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for name, c := range map[string]struct {
		images          []string
		factory, mirror string
	}{
		"nobody says":    {nil, "https://factory.talos.dev", ""},
		"the public one": {[]string{"factory.talos.dev/nocloud-installer/" + id + ":v1.13.9"}, "https://factory.talos.dev", ""},
		"of before 1.10": {[]string{"factory.talos.dev/installer/" + id + ":v1.13.9"}, "https://factory.talos.dev", ""},
		"one's own":      {[]string{"f.example:8443/metal-installer-secureboot/" + id + "@sha256:aa", "", "ghcr.io/siderolabs/installer:v1.13.9"}, "https://f.example:8443", ""},
		"beside us":      {[]string{"127.0.0.1:8080/nocloud-installer/" + id + ":v1.13.9"}, "http://127.0.0.1:8080", ""},
		"a mirror":       {[]string{"ghcr.io/acme/talos:v1.13.9-abc@sha256:aa", "ghcr.io/acme/talos@sha256:bb", "r.example:5000/x"}, "https://factory.talos.dev", "ghcr.io/acme/talos"},
		"nobody's own":   {[]string{"ghcr.io/siderolabs/installer:v1.13.9"}, "https://factory.talos.dev", ""},
	} {
		in := initial{}
		for _, image := range c.images {
			in.found.Nodes = append(in.found.Nodes, survey.Discovered{Machine: cluster.Machine{InstallImage: image}})
		}
		in.cameFrom()
		must.Equal(t, name+": factory and mirror", []string{c.factory, c.mirror}, []string{in.draft.Factory, in.draft.Mirror})
	}
}

func TestClusterName(t *testing.T) {
	t.Parallel()
	for context, want := range map[string]string{"homelab": "homelab", "admin@homelab": "homelab", "": "talos", "my cluster!": "my-cluster", "@": "talos"} {
		must.Equal(t, "context "+context+" makes the cluster", want, clusterName(context))
	}
}

// TestKeepOldLock: an unreadable lock is not discarded.
func TestKeepOldLock(t *testing.T) {
	t.Parallel()
	in := &initial{InitOptions: InitOptions{Dir: t.TempDir()}}
	must.Pass(t, in.keepOldLock())
	lock := filepath.Join(in.Dir, "recast.lock")
	must.Do(t, os.WriteFile(lock, []byte("version: 2\n"), 0o600))
	must.Contain(t, "the hints", strings.Join(fault.Hints(in.keepOldLock()), "\n"), "move it elsewhere")
	must.Equal(t, "files there now", 1, len(must.Get(os.ReadDir(in.Dir))(t)))
}

// TestMoveIn: if one file can't be moved to its place, nothing is changed.
func TestMoveIn(t *testing.T) {
	t.Parallel()
	stage, dir := t.TempDir(), t.TempDir()
	write := func(dir, name, text string) {
		t.Helper()
		must.Do(t, WriteSynced(filepath.Join(dir, name), []byte(text), 0o600))
	}
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(dir, name))
		return string(b)
	}
	write(dir, "a", "old a")
	write(stage, "a", "new a")
	write(stage, "b", "new b")
	must.Hold(t, moveIn(stage, dir, []string{"a", "b", "c"}) != nil, "c, which is not there, was moved")
	must.Equal(t, "after a failure", []string{"old a", ""}, []string{read("a"), read("b")})
	write(stage, "c", "new c")
	must.Do(t, moveIn(stage, dir, []string{"a", "b", "c"}))
	must.Equal(t, "afterwards", []string{"new a", "new b", "new c"}, []string{read("a"), read("b"), read("c")})
}

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
			must.Equal(t, fmt.Sprintf("beside the %s %v", what, ids), want, got)
		}
	}
	in := &initial{}
	in.found.Nodes = make([]survey.Discovered, 99)
	must.Equal(t, "99 nodes have", "9000-9199", in.freeRange().String())
}

// TestVMIDs: a range is proposed only where no other recast.yaml can have one, and an unusable range is refused.
func TestVMIDs(t *testing.T) {
	t.Parallel()
	vm := func(id cluster.VMID, description string) cluster.VM {
		return cluster.VM{ID: id, Name: "vm", Host: "pve1", Config: map[string]string{"description": description}}
	}
	parking := vm(9001, `recast-record: {"version":1,"cluster":"homelab","node":"wk1","uuid":"u"}`)
	claim := vm(9000, `recast-claim: {"version":1,"cluster":"homelab","run":"r1"}`)
	const rolled, range9100 = "recast has run on these nodes before", "9100-9199"
	type row struct {
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
	}
	must.Each(t, map[string]row{
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
	}, func(t *testing.T, tc row) {
		node := vm(101, tc.made)
		in := &initial{InitOptions: InitOptions{VMIDs: tc.given}}
		in.draft.Cluster = "homelab"
		in.found.Nodes, in.found.VMs = []survey.Discovered{{Name: "wk1", VM: node}}, append([]cluster.VM{node}, tc.vms...)
		asked := ""
		in.src = InitSources{Proxmox: numbers{containers: tc.containers}, Ask: func(_ context.Context, q Question) (string, error) {
			asked = q.Text
			must.Equal(t, "it proposes", tc.proposed, q.Default)
			if tc.answer == "" {
				return q.Default, nil
			}
			return tc.answer, q.Check(tc.answer)
		}}
		err := in.vmids(t.Context())
		must.Hold(t, strings.HasPrefix(asked, tc.asked) && (tc.asked != "" || asked == ""),
			"it asks %q, want %q", asked, tc.asked)
		if tc.err != "" {
			if !strings.Contains(fmt.Sprint(err), tc.err) || tc.given != "5-7" && !strings.Contains(strings.Join(fault.Hints(err), "\n"), "--vmids: ") {
				t.Errorf("err = %v %q, want %q", err, fault.Hints(err), tc.err)
			}
			return
		}
		must.Pass(t, err)
		must.Equal(t, "VMIDs", tc.want, in.draft.VMIDs.String())
		if said := strings.Join(in.res.Warnings, "\n"); !strings.HasSuffix(said, tc.warns) || tc.warns == "" && said != "" {
			t.Errorf("it warns %q, want %q", said, tc.warns)
		}
	})
}

// TestSayable: values that no recast.yaml can have are refused, with the flag that helps.
func TestSayable(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change     func(*initial)
		said, hint string
	}{
		"as it should be":      {func(*initial) {}, "", ""},
		"a name with a domain": {func(in *initial) { in.found.Nodes[0].Name = "wk1.example" }, "", ""},
		"a name with an empty domain": {
			func(in *initial) { in.found.Nodes[0].Name = "wk1..example" },
			`nodes[0].name: "wk1..example" is not a name of a node`, "--exclude wk1..example leaves it out",
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
			must.Hold(t, err == nil, "%s: %v", name, err)
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
		must.Equal(t, "value", want, n.Disks())
	}
}

func TestAddressesOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"10.0.0.11/24":                         "[10.0.0.11/24]",
		"10.0.0.11-10.0.0.13/24":               "[10.0.0.11/24 10.0.0.12/24 10.0.0.13/24]",
		"10.0.0.254-10.0.1.1/16":               "[10.0.0.254/16 10.0.0.255/16 10.0.1.0/16 10.0.1.1/16]",
		"10.0.0.11/24, 10.0.1.21-10.0.1.22/24": "[10.0.0.11/24 10.0.1.21/24 10.0.1.22/24]",
		"10.0.0.0-10.0.0.1/31":                 "[10.0.0.0/31 10.0.0.1/31]",
		"10.0.0.11":                            "is not an IPv4 address with its prefix length",
		"10.0.0.11-18/24":                      "is not an IPv4 address with its prefix length",
		"10.0.0.11/33":                         "is not an IPv4 address with its prefix length",
		"fd00::11/64":                          "is not an IPv4 address with its prefix length",
		"":                                     "is not an IPv4 address with its prefix length",
		"10.0.0.11-10.0.1.11/24":               "are not in one network",
		"10.0.0.18-10.0.0.11/24":               "runs backwards",
		"10.0.0.0-10.0.0.3/24":                 "has the first or the last address of its network",
		"10.0.0.250-10.0.0.255/24":             "has the first or the last address of its network",
		"10.0.0.11-10.0.0.13/24,10.0.0.12/24":  "10.0.0.12 is there twice",
	} {
		got, err := addressesOf(strings.Split(text, ","))
		if err == nil && fmt.Sprint(got) != want || err != nil && (!strings.Contains(err.Error(), want) || fault.KindOf(err) != fault.Config) {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
	must.Equal(t, "of a large range", 1000, len(must.Get(addressesOf([]string{"10.0.0.1-10.255.255.254/8"}))(t)))
}

// TestReached: the Kubernetes API does not depend on one of several control planes.
func TestReached(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		controlPlanes         int
		vip, endpoint, answer string
		wantVIP, want, err    string
	}{
		"the only one":                {controlPlanes: 1, want: "https://10.0.0.11:6443"},
		"the only one, and a VIP":     {controlPlanes: 1, vip: "10.0.0.10", wantVIP: "10.0.0.10", want: "https://10.0.0.10:6443"},
		"a VIP":                       {controlPlanes: 3, vip: "10.0.0.10", wantVIP: "10.0.0.10", want: "https://10.0.0.10:6443"},
		"a VIP with a name":           {controlPlanes: 3, vip: "10.0.0.10", endpoint: "https://k8s.example:6443", wantVIP: "10.0.0.10", want: "https://k8s.example:6443"},
		"a load balancer":             {controlPlanes: 3, endpoint: "https://k8s.example:6443", want: "https://k8s.example:6443"},
		"the answer is an address":    {controlPlanes: 3, answer: "10.0.0.10", wantVIP: "10.0.0.10", want: "https://10.0.0.10:6443"},
		"the answer is a URL":         {controlPlanes: 3, answer: "https://k8s.example", want: "https://k8s.example"},
		"an address elsewhere":        {controlPlanes: 3, vip: "10.0.1.10", err: `"10.0.1.10" is not an address of 10.0.0.0/24`},
		"the address of a node":       {controlPlanes: 3, vip: "10.0.0.12", err: "10.0.0.12 is that of the gateway or of a node"},
		"the gateway":                 {controlPlanes: 3, vip: "10.0.0.1", err: "10.0.0.1 is that of the gateway or of a node"},
		"the address of a VM":         {controlPlanes: 3, vip: "10.0.0.50", err: "10.0.0.50 is the address of VM 300"},
		"no address":                  {controlPlanes: 3, answer: "vip", err: `"vip" is not an address`},
		"a URL without encryption":    {controlPlanes: 3, endpoint: "http://10.0.0.10:6443", err: "not the URL of a Kubernetes API"},
		"a URL that holds a password": {controlPlanes: 3, endpoint: "https://me:hush@10.0.0.10:6443", err: "not the URL of a Kubernetes API"},
	} {
		in := newCluster{initial: &initial{}, NewOptions: NewOptions{VIP: tc.vip, Endpoint: tc.endpoint}, gateway: netip.MustParseAddr("10.0.0.1")}
		in.found.VMs = []cluster.VM{{ID: 300, Name: "web", Config: map[string]string{"ipconfig1": "gw=10.0.0.1,ip=10.0.0.50/24"}}}
		in.prefixes, _ = addressesOf([]string{"10.0.0.11-10.0.0.13/24"})
		for range tc.controlPlanes {
			in.found.Nodes = append(in.found.Nodes, survey.Discovered{Machine: cluster.Machine{ControlPlane: true}})
		}
		in.src.Ask = func(context.Context, Question) (string, error) { return tc.answer, nil }
		err := in.reached(t.Context())
		if tc.err != "" {
			must.Hold(t, strings.Contains(fmt.Sprint(err), tc.err) && !strings.Contains(fmt.Sprint(err), "hush"),
				"%s: %v; want %q", name, err, tc.err)
			continue
		}
		must.Pass(t, err)
		must.Equal(t, name, []string{tc.wantVIP, tc.want}, []string{in.VIP, in.Endpoint})
	}
}
