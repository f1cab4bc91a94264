package survey

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// tree is an access tree as one token sees it: an entry overrides those above it.
type tree map[string]cluster.Privileges

func (tree) TokenID() string { return "recast@pve!roll" }

func (t tree) Permissions(_ context.Context, path string) (cluster.Privileges, error) {
	for _, at := range pathAndAbove(path) {
		out := cluster.Privileges{}
		for p, propagates := range t[at] {
			if at == path || propagates {
				out[p] = propagates
			}
		}
		if t[at] != nil && (at == path || len(out) > 0) {
			return out, nil
		}
	}
	return cluster.Privileges{}, nil
}

// Standing is that of a token which may not see what its user has.
func (t tree) Standing(ctx context.Context, paths []string) (map[string]cluster.Standing, error) {
	out := map[string]cluster.Standing{}
	for _, path := range paths {
		held, _ := t.Permissions(ctx, path)
		out[path] = cluster.Standing{Token: held}
	}
	return out, nil
}

// giving has an entry at each path, with what is needed there.
func giving(needs Needs) tree {
	t := tree{}
	for _, n := range needs {
		if t[n.Path] == nil {
			t[n.Path] = cluster.Privileges{}
		}
		t[n.Path][n.Privilege] = true
	}
	return t
}

// byPath is what a plan needs, without the reasons.
func byPath(n Needs) map[string][]string {
	out := map[string][]string{}
	for _, need := range n {
		out[need.Path] = append(out[need.Path], need.Privilege)
	}
	return out
}

func TestNeedsByStrategy(t *testing.T) {
	t.Parallel()
	claim := []string{"VM.Allocate", "VM.Audit", "VM.Config.Memory", "VM.Config.Options"}
	reimage := []string{
		"VM.Allocate", "VM.Audit", "VM.Config.CDROM", "VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Options", "VM.PowerMgmt",
	}
	recreate := []string{
		"VM.Allocate", "VM.Audit", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.HWType",
		"VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt",
	}
	audit := []string{"Sys.Audit"}
	space, iso := []string{"Datastore.AllocateSpace", "Datastore.Audit"}, []string{"Datastore.AllocateTemplate", "Datastore.Audit"}
	use, share := []string{"SDN.Use"}, []string{"Mapping.Use"}
	type row struct {
		strategy cluster.Strategy
		change   func(*planning.NodePlan)
		want     map[string][]string
	}
	must.Each(t, map[string]row{
		"in-place": {cluster.InPlace, nil, map[string][]string{"/": audit, "/vms": claim}},
		"reimage":  {cluster.Reimage, nil, map[string][]string{"/": audit, "/vms": reimage, "/storage/fast": space, "/storage/isos": iso}},
		"rollback": {cluster.Rollback, nil, map[string][]string{"/": audit, "/vms": cluster.Where(reimage, func(p string) bool { return p != "VM.Config.HWType" }), "/storage/fast": space}},
		"recreate": {cluster.Recreate, nil, map[string][]string{
			"/": {"Sys.Audit", "Sys.Modify"}, "/vms": recreate, "/storage/fast": space, "/storage/bulk": space, "/storage/isos": iso,
			"/sdn/zones/localnetwork/vmbr0": use, "/mapping/dir/share": share,
		}},
		"put-back, which may have to create": {cluster.PutBack, nil, map[string][]string{
			"/": {"Sys.Audit", "Sys.Modify"}, "/vms": recreate, "/storage/fast": space, "/storage/bulk": space,
			"/sdn/zones/localnetwork/vmbr0": use, "/mapping/dir/share": share,
		}},
		"HA": {cluster.Reimage, func(n *planning.NodePlan) { n.Found.VM.HA = true }, map[string][]string{
			"/": {"Sys.Audit", "Sys.Console"}, "/vms": reimage, "/storage/fast": space, "/storage/isos": iso,
		}},
		"HA, taken out already": {cluster.Reimage, func(n *planning.NodePlan) { n.Found.VM, n.Found.Ties.HA = nil, &cluster.HAResource{} }, map[string][]string{
			"/": {"Sys.Audit", "Sys.Console"}, "/vms": reimage, "/storage/fast": space, "/storage/isos": iso,
		}},
		"a VM that is migrated": {cluster.InPlace, func(n *planning.NodePlan) {
			n.VM = shape.Differences{{Key: "host", Wanted: "pve2", When: shape.Live}}
		}, map[string][]string{"/": audit, "/vms": append(slices.Clone(claim), "VM.Migrate")}},
		"one that is not": {cluster.InPlace, func(n *planning.NodePlan) {
			n.VM = shape.Differences{{Key: "host", Wanted: "pve2", When: shape.Never}}
		}, map[string][]string{"/": audit, "/vms": claim}},
		"HA in place": {cluster.InPlace, func(n *planning.NodePlan) { n.Found.VM.HA = true }, map[string][]string{"/": audit, "/vms": claim}},
		"a holder's disk, while the VM stays": {cluster.Reimage, withHolder, map[string][]string{
			"/": audit, "/vms": reimage, "/storage/fast": space, "/storage/isos": iso,
		}},
		"a holder's disk, for a VM made again": {cluster.Recreate, withHolder, map[string][]string{
			"/": audit, "/vms": recreate, "/storage/fast": space, "/storage/isos": iso, "/storage/held": {"Datastore.Audit"},
		}},
		"single settings": {cluster.Recreate, withSettings, map[string][]string{
			"/": {"Sys.Audit", "Sys.Modify"}, "/vms": recreate, "/storage/fast": space, "/storage/bulk": space, "/storage/isos": iso,
			"/storage/states": {"Datastore.AllocateSpace"}, "/storage/media": {"Datastore.Audit"}, "/storage/old": {"Datastore.Audit"},
			"/mapping/cpu/talos": share, "/mapping/hwrng": share, "/mapping/pci/gpu": share,
		}},
	}, func(t *testing.T, tc row) {
		n := planning.NodePlan{
			Strategy: tc.strategy, VMID: 9002,
			Carried: []planning.DiskPlan{{Key: "scsi1", Volid: "bulk:9002/vm-9002-disk-1.raw"}},
			System:  &planning.DiskPlan{Key: "scsi0", Volid: "fast:vm-9002-disk-0"},
			Wanted:  cluster.Wanted{VMID: 9002, ISOStorages: []string{"isos"}},
			Found: observe.Found{VM: &cluster.VM{ID: 9002, Config: map[string]string{
				"net0": "virtio=AA,bridge=vmbr0", "startup": "order=1", "virtiofs0": "dirid=share,cache=auto",
			}}},
		}
		if tc.change != nil {
			tc.change(&n)
		}
		needs := NeedsOf(planning.Plan{Nodes: []planning.NodePlan{n}}, false)
		must.Equal(t, "by path", tc.want, byPath(needs))
		for _, need := range needs {
			must.Hold(t, len(need.Why) != 0, "%s on %s is needed for nothing", need.Privilege, need.Path)
		}
	})
}

// TestNeedsOfWhatFollows: what comes after the planned strategy on the same node is refused before it, not then.
func TestNeedsOfWhatFollows(t *testing.T) {
	t.Parallel()
	type row struct {
		node  planning.NodePlan
		after cluster.Strategy
	}
	must.Each(t, map[string]row{
		"in-place, or else a reimage": {planning.NodePlan{Strategy: cluster.InPlace, Previous: &cluster.Build{}}, cluster.Reimage},
		"removed, to be made again":   {planning.NodePlan{Strategy: cluster.Remove, Rebuild: "sum"}, cluster.Create},
	}, func(t *testing.T, tc row) {
		n := tc.node
		n.VMID, n.System = 9002, &planning.DiskPlan{Key: "scsi0", Volid: "fast:vm-9002-disk-0"}
		n.Wanted = cluster.Wanted{VMID: 9002, ISOStorages: []string{"isos"}, Shape: cluster.Shape{Pool: "talos", Devices: map[string]string{"net0": "bridge=vmbr0"}}}
		n.Found = observe.Found{VM: &cluster.VM{ID: 9002}}
		after := n
		after.Strategy, after.Previous = tc.after, nil
		got := NeedsOf(planning.Plan{Nodes: []planning.NodePlan{n}}, false)
		for _, need := range NeedsOf(planning.Plan{Nodes: []planning.NodePlan{after}}, false) {
			if !slices.ContainsFunc(got, func(n Need) bool { return compareNeeds(n, need) == 0 && len(n.spots) >= len(need.spots) }) {
				t.Errorf("%s on %s is not among them: %v", need.Privilege, need.Path, byPath(got))
			}
		}
	})
}

func withSettings(n *planning.NodePlan) {
	n.Found.Ties.Tags = []string{"gold"}
	n.Found.VM.Config = map[string]string{
		"cpu": "custom-talos,flags=+aes", "vmstatestorage": "states", "ide0": "cdrom,media=cdrom", "ide2": "old:iso/talos.iso,media=cdrom",
		"ide3": "media:iso/virtio.iso,media=cdrom", "rng0": "source=/dev/hwrng", "hostpci0": "mapping=gpu,pcie=1", "usb1": "host=spice",
		"net0": "virtio=AA,bridge=vnet1", "ipconfig0": "ip=dhcp", "sata0": "local:vm-9002-cloudinit,media=cdrom",
	}
}

func withHolder(n *planning.NodePlan) {
	n.Found.VM.Config = nil
	n.Carried = []planning.DiskPlan{{Key: "scsi4", Volid: "held:vm-200-disk-0"}}
}

func TestNeedsOfNoWork(t *testing.T) {
	t.Parallel()
	must.Equal(t, "nothing to do needs", 0, len(NeedsOf(planning.Plan{}, false)))
}

// TestPropagation is about where in the tree a privilege is granted: VMs are deleted and
// created again, and their own entries are deleted with them.
func TestPropagation(t *testing.T) {
	t.Parallel()
	n := planning.NodePlan{
		Strategy: cluster.Recreate, Host: "pve1", Wanted: cluster.Wanted{VMID: 9002}, Carried: []planning.DiskPlan{{Key: "scsi4", Volid: "held:vm-200-disk-0"}},
		Found: observe.Found{VM: &cluster.VM{ID: 9002, Pool: "talos", Config: map[string]string{"net0": "virtio=AA,bridge=vmbr0,tag=7", "net1": "virtio=BB,bridge=vmbr1,trunks=3-5"}}},
	}
	needs := NeedsOf(planning.Plan{Nodes: []planning.NodePlan{n}}, false)
	own := cluster.Privileges{"VM.Audit": true, "VM.Config.Disk": true}
	type row struct {
		change func(tree)
		want   string
	}
	must.Each(t, map[string]row{
		"all":                          {func(tree) {}, ""},
		"flat at /vms":                 {func(t tree) { t["/vms"]["VM.Config.CPU"] = false }, "VM.Config.CPU on /vms"},
		"an entry of the VM's own":     {func(t tree) { t["/vms/9002"] = cluster.Privileges{} }, "VM.Allocate, VM.Audit, VM.Config.CDROM, VM.Config.CPU, VM.Config.Disk, VM.Config.HWType, VM.Config.Memory, VM.Config.Network, VM.Config.Options, VM.PowerMgmt on /vms/9002"},
		"one of the holder's, enough":  {func(t tree) { t["/vms/200"] = own }, ""},
		"one of the holder's, too few": {func(t tree) { t["/vms/200"] = cluster.Privileges{"VM.Audit": true} }, "VM.Config.Disk on /vms/200"},
		"the pool does for its members": {func(t tree) {
			delete(t["/vms"], "VM.Config.CPU")
			t["/pool/talos"] = cluster.Privileges{"VM.Config.CPU": true}
		}, ""},
		"but not for the claim": {func(t tree) {
			delete(t["/vms"], "VM.Allocate")
			t["/pool/talos"] = cluster.Privileges{"VM.Allocate": true}
		}, "VM.Allocate on /vms"},
		"flat at the root": {func(t tree) { t["/"]["Sys.Audit"] = false }, "Sys.Audit on /"},
		"none on a host":   {func(t tree) { t["/nodes/pve1"] = cluster.Privileges{} }, "Sys.Audit on /nodes/pve1"},
		"a VLAN of the bridge": {func(t tree) {
			delete(t, "/sdn/zones/localnetwork/vmbr0")
			t["/sdn/zones/localnetwork/vmbr0/7"] = cluster.Privileges{"SDN.Use": false}
		}, ""},
		"not another": {func(t tree) {
			delete(t, "/sdn/zones/localnetwork/vmbr0")
			t["/sdn/zones/localnetwork/vmbr0/8"] = cluster.Privileges{"SDN.Use": false}
		}, "SDN.Use on /sdn/zones/localnetwork/vmbr0"},
		"trunks need all of them": {func(t tree) { t["/sdn/zones/localnetwork/vmbr1"]["SDN.Use"] = false }, "SDN.Use on /sdn/zones/localnetwork/vmbr1"},
	}, func(t *testing.T, tc row) {
		held := giving(needs)
		tc.change(held)
		missing := must.Get(needs.Missing(t.Context(), held))(t)
		must.Equal(t, "string", tc.want, missing.String())
	})
}

// TestGrants: an entry overrides those above it, so what is printed for a path is all that is
// needed there, not only what is missing.
func TestGrants(t *testing.T) {
	t.Parallel()
	needs := NeedsToRoll([]string{"isos"}, []string{"pve1"}, cluster.InPlace)
	needs.add("/vms", "attach", []spot{{path: "/vms/200"}}, "VM.Config.Disk")
	type row struct {
		held tree
		want []string
	}
	must.Each(t, map[string]row{
		"nothing": {tree{}, []string{
			"pveum role add RecastCluster", "pveum role modify RecastCluster --append 1 --privs Sys.Audit",
			"pveum role add RecastVMs", "pveum role modify RecastVMs --append 1 --privs VM.Allocate,VM.Audit,VM.Config.Disk,VM.Config.Memory,VM.Config.Options",
			"pveum acl modify / --users recast@pve --tokens 'recast@pve!roll' --roles RecastCluster",
			"pveum acl modify /vms --users recast@pve --tokens 'recast@pve!roll' --roles RecastVMs",
		}},
		"one": {tree{"/": {"Sys.Audit": true}, "/vms": {"VM.Allocate": true, "VM.Audit": true, "VM.Config.Disk": true, "VM.Config.Options": true}}, []string{
			"pveum role add RecastVMs", "pveum role modify RecastVMs --append 1 --privs VM.Allocate,VM.Audit,VM.Config.Disk,VM.Config.Memory,VM.Config.Options",
			"pveum acl modify /vms --users recast@pve --tokens 'recast@pve!roll' --roles RecastVMs",
		}},
		"an entry below": {tree{"/": {"Sys.Audit": true, "VM.Allocate": true, "VM.Audit": true, "VM.Config.Disk": true, "VM.Config.Memory": true, "VM.Config.Options": true}, "/vms/200": {}}, []string{
			"pveum role add RecastVMs", "pveum role modify RecastVMs --append 1 --privs VM.Config.Disk",
			"pveum acl modify /vms/200 --users recast@pve --tokens 'recast@pve!roll' --roles RecastVMs",
		}},
	}, func(t *testing.T, tc row) {
		missing := must.Get(needs.Missing(t.Context(), tc.held))(t)
		must.Equal(t, "grants", tc.want, missing.Grants().Lines(missing.Token))
	})
	err := needs.Check(t.Context(), tree{})
	if hints := fault.Hints(err); len(hints) != 1 || !strings.Contains(hints[0], "pveum acl modify /vms") || !strings.Contains(hints[0], "recast doctor") {
		t.Errorf("hints %q", hints)
	}
}

func TestLinesForRoot(t *testing.T) {
	t.Parallel()
	lines := Grants{{Path: "/", Role: "RecastCluster", Privileges: []string{"Sys.Audit"}, User: true, Token: true}}.Lines("root@pam!roll")
	must.Equal(t, "line", "pveum acl modify / --tokens 'root@pam!roll' --roles RecastCluster", lines[len(lines)-1])
	must.Equal(t, "new token", []string{"pveum user token add root@pam roll --privsep 1"}, cluster.NewToken("root@pam!roll"))
}

// TestGrantsSuffice: after the printed grants, a token that had nothing lacks nothing.
func TestGrantsSuffice(t *testing.T) {
	t.Parallel()
	for _, s := range cluster.Strategies {
		needs := NeedsToRoll([]string{"isos", "more"}, []string{"pve1", "pve2"}, s)
		granted := tree{}
		for _, g := range needs.Grants() {
			granted[g.Path] = cluster.Privileges{}
			for _, p := range g.Privileges {
				granted[g.Path][p] = true
			}
		}
		if missing, err := needs.Missing(t.Context(), granted); err != nil || len(missing.Lacks) > 0 {
			t.Errorf("%s: still missing: %s, %v", s, missing, err)
		}
		if slices.ContainsFunc(needs, func(n Need) bool {
			return strings.HasPrefix(n.Privilege, "VM.Monitor") || strings.HasPrefix(n.Privilege, "VM.GuestAgent")
		}) {
			t.Errorf("%s needs a privilege that Proxmox VE 8 and 9 call differently", s)
		}
	}
}

// TestPermissionsNote compares docs/notes/permissions.md with what doctor prints.
func TestPermissionsNote(t *testing.T) {
	t.Parallel()
	b := must.Get(os.ReadFile("../../docs/notes/permissions.md"))(t)
	note := string(b)
	const token = "recast@pve!roll"
	for _, s := range cluster.Strategies {
		lines := NeedsToRoll([]string{"isos"}, nil, s).Grants().Lines(token)
		block := "## To roll by " + string(s) + "\n\n```sh\n" + strings.Join(lines, "\n") + "\n```\n"
		must.Contain(t, "note", note, block)
	}
	must.Contain(t, "note", note, "```sh\n"+strings.Join(cluster.NewToken(token), "\n")+"\n```\n")
	for _, o := range OptionalPrivileges([]string{"isos"}, nil, []string{"pve1"}) {
		for _, n := range o.Needs {
			must.Contain(t, "note", note, "`"+n.Privilege+"`")
		}
	}
}

func TestNeedsAreCheckedByPath(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	plan, err := planning.New("c1", wanted, o, clustertest.Past, planning.Policy{})
	must.Do(t, err)
	needs := NeedsOf(plan, false)
	all := cluster.Privileges{}
	for _, n := range needs {
		all[n.Privilege] = true
	}
	check := func(n Needs, access tree) error { return n.Check(t.Context(), access) }
	must.Pass(t, check(needs, tree{"/": all}))
	err = check(needs, tree{"/": all, "/storage/fast": {"Datastore.Audit": true}})
	want := "the Proxmox token lacks privileges: Datastore.AllocateSpace on /storage/fast"
	must.Equal(t, "error", []any{want, fault.Refused}, []any{clustertest.Message(err), fault.KindOf(err)})
	o.Found[1].VM.Config["net0"] = "virtio=AA:BB:CC:DD:EE:FF,bridge=vmbr0,tag=7"
	o.Found[1].VM.Config["hostpci0"] = "mapping=gpu,pcie=1"
	o.Found[1].VM.Config["startup"] = "order=2"
	plan = must.Get(planning.New("c1", wanted, o, clustertest.Past, planning.Policy{}))(t)
	want = "the Proxmox token lacks privileges: Sys.Modify on /; Mapping.Use on /mapping/pci/gpu; SDN.Use on /sdn/zones/localnetwork/vmbr0"
	must.Equal(t, "error", want, clustertest.Message(check(NeedsOf(plan, false), tree{"/": all})))
	must.Equal(t, "a token with nothing passes", false, check(needs, tree{}) == nil)
}

// TestPlanTellsTheBlankMachineItsAddress: which setting is set, and which privileges that needs.
func TestPlanTellsTheBlankMachineItsAddress(t *testing.T) {
	t.Parallel()
	const note = "its blank machine gets the node's address from the VM's cloud-init drive: ipconfig1 is gw=10.0.0.1,ip=10.0.0.31/24 for that boot, and as before at the end"
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		wanted, o := observetest.World()
		wanted[1].Strategy, wanted[1].Build.Platform = s, "nocloud"
		o.Found[1].Machine.Platform = "nocloud"
		o.Found[1].VM.Config["ide0"] = "fast:vm-9002-cloudinit,media=cdrom"
		observetest.Static(&o.Found[1])
		p := must.Get(planning.New("c1", wanted, o, clustertest.Past, planning.Policy{Only: []string{"wk1"}}))(t)
		if n := p.Nodes[0]; n.Strategy != s || !slices.Contains(n.Notes, note) || len(n.Refused) > 0 {
			t.Errorf("%s: %s, refused %q, notes %q", s, n.Strategy, n.Refused, n.Notes)
		}
		needs := NeedsOf(p, false)
		if !slices.ContainsFunc(needs, func(n Need) bool { return n.Privilege == "VM.Config.Network" }) {
			t.Errorf("%s: it does not ask for VM.Config.Network", s)
		}
	}
}

func TestFreeingNeeds(t *testing.T) {
	t.Parallel()
	idle := planning.NodePlan{Node: "wk1", Strategy: cluster.InPlace, Host: "pve1"}
	tidy := idle
	tidy.Frees = []parking.FreePlan{{Key: "scsi30", Volid: "fast:vm-9900-disk-0"}}
	for name, tc := range map[string]struct {
		needs Needs
		want  bool
	}{
		"a roll that frees":     {NeedsOf(planning.Plan{Nodes: []planning.NodePlan{tidy}}, false), true},
		"a roll that does not":  {NeedsOf(planning.Plan{Nodes: []planning.NodePlan{idle}}, false), false},
		"prune":                 {NeedsToFree([]string{"fast"}), true},
		"prune without a disk":  {NeedsToFree(nil), false},
		"prune of ISOs":         {NeedsToPrune([]string{"fast"}, nil), false},
		"prune of other disks'": {NeedsToFree([]string{"slow"}), false},
	} {
		has := func(path, privilege string) bool {
			return slices.ContainsFunc(tc.needs, func(n Need) bool { return n.Path == path && n.Privilege == privilege })
		}
		must.Equal(t, name, tc.want, has("/vms", "VM.Config.Disk") && has("/storage/fast", "Datastore.AllocateSpace"))
	}
}

// TestOwnEntries: an entry at a VM's own number takes the place of that above it, for parking and scratch VMs, too.
func TestOwnEntries(t *testing.T) {
	t.Parallel()
	vm := cluster.VM{ID: 9900, Config: map[string]string{}}
	n := planning.NodePlan{Strategy: cluster.Reimage, VMID: 9002, System: &planning.DiskPlan{Key: "scsi0", Volid: "fast:vm-9002-disk-0"}}
	n.Found.VM, n.Found.Parking = &cluster.VM{ID: 9002}, &parking.Parking{VM: vm}
	for name, needs := range map[string]Needs{
		"prune":             NeedsToFree([]string{"fast"}, vm),
		"prune, by scratch": NeedsToClear(vm),
		"roll":              NeedsOf(planning.Plan{Nodes: []planning.NodePlan{n}}, false),
	} {
		held := giving(needs)
		held["/vms/9900"] = cluster.Privileges{}
		m, err := needs.Missing(t.Context(), held)
		if err != nil || !slices.ContainsFunc(m.Lacks, func(l Lack) bool { return l.At == "/vms/9900" && l.Privilege == "VM.Allocate" && l.Overridden }) {
			t.Errorf("%s: %v lacks %v", name, err, m)
		}
	}
}

// TestDiskImages: storages of disk images need what those of ISOs do, and only if there are any.
func TestDiskImages(t *testing.T) {
	n := planning.NodePlan{Node: "wk1", Strategy: cluster.Recreate, Host: "pve1"}
	n.Wanted.ISOStorages = []string{"isos"}
	boots := n
	boots.Wanted.DiskStorages = []string{"imports"}
	for name, tc := range map[string]struct {
		needs Needs
		want  []string // on /storage/imports
	}{
		"a roll by ISO":  {NeedsOf(planning.Plan{Nodes: []planning.NodePlan{n}}, false), nil},
		"a roll by disk": {NeedsOf(planning.Plan{Nodes: []planning.NodePlan{boots}}, false), []string{"Datastore.AllocateTemplate", "Datastore.Audit"}},
		"publish":        {NeedsToPublish([]string{"isos"}, []string{"imports"}), []string{"Datastore.AllocateTemplate", "Datastore.Audit"}},
		"prune":          {NeedsToPrune([]string{"isos"}, []string{"imports"}), []string{"Datastore.Allocate", "Datastore.AllocateTemplate", "Datastore.Audit"}},
	} {
		of := cluster.Where(tc.needs, func(n Need) bool { return n.Path == "/storage/imports" })
		got := cluster.Each(of, func(n Need) string { return n.Privilege })
		slices.Sort(got)
		must.Equal(t, name, tc.want, got)
	}
}

// TestRehearsingADisk: a scratch VM that boots a disk takes room on the storage of the node's system
// disk, and reads its image from another one.
func TestRehearsingADisk(t *testing.T) {
	n := planning.NodePlan{Node: "wk1", Host: "pve1", System: &planning.DiskPlan{Key: "scsi0"}}
	n.Wanted.ISOStorages, n.Wanted.DiskStorages = []string{"isos"}, []string{"imports"}
	n.Found.VM = &cluster.VM{ID: 101, Config: map[string]string{"scsi0": "fast:vm-101-disk-0", "scsi1": "slow:vm-101-disk-0"}}
	for boots, want := range map[planning.Medium]map[string][]string{
		{ISO: "new.iso"}:    {"/storage/isos": {"Datastore.Audit"}},
		{Disk: "new.qcow2"}: {"/storage/imports": {"Datastore.Audit"}, "/storage/fast": {"Datastore.AllocateSpace", "Datastore.Audit"}},
	} {
		got := byPath(NeedsToRehearse(planning.Plan{Trials: []planning.Trial{{Host: "pve1", Medium: boots, Model: n}}}))
		delete(got, "/")
		delete(got, "/vms")
		must.Equal(t, fmt.Sprint(boots), want, got)
	}
}

func TestRemedyOfALack(t *testing.T) {
	t.Parallel()
	for want, l := range map[string]Lack{
		"": {},
		"/vms has it, but an entry at /vms/101 takes the place of that: remove that one, or give it all that is needed": {Need: Need{Path: "/vms"}, At: "/vms/101", Overridden: true},
		"it was granted at /vms without propagation, so it does not hold below":                                         {Need: Need{Path: "/vms"}, At: "/vms", Flat: true},
	} {
		must.Equal(t, "remedy", want, l.Remedy())
	}
}

type entry struct {
	path, who  string // "recast@pve", "recast@pve!roll", or "@admins", a group of recast@pve
	privileges string
	flat       bool
}

// acl is the list as Proxmox evaluates it (AccessControl.pm, roles; RPCEnvironment.pm).
type acl []entry

const keptUser, keptToken = "recast@pve", "recast@pve!roll"

func (acl) TokenID() string { return keptToken }

// of is what the names have at a path: the deepest entry counts, and at each path the first
// name that has one, so that a user's own comes before a group's.
func (a acl) of(path string, names ...string) cluster.Privileges {
	held := cluster.Privileges{}
	for _, at := range pathAndAbove(path) {
		for _, who := range names {
			for _, e := range a {
				if e.path == at && e.who == who && (!e.flat || at == path) {
					for p := range strings.FieldsSeq(e.privileges) {
						held[p] = held[p] || !e.flat
					}
				}
			}
			if len(held) > 0 {
				return held
			}
		}
	}
	return held
}

// pathAndAbove returns "/a/b", "/a", "/".
func pathAndAbove(path string) []string {
	out := []string{path}
	for path != "/" {
		path = path[:strings.LastIndex(path, "/")]
		if path == "" {
			path = "/"
		}
		out = append(out, path)
	}
	return out
}

func (a acl) user(path string) cluster.Privileges { return a.of(path, keptUser, "@admins") }

func (a acl) Permissions(_ context.Context, path string) (cluster.Privileges, error) {
	user, both := a.user(path), cluster.Privileges{}
	for p, propagates := range a.of(path, keptToken) {
		if ofUser, has := user[p]; has {
			both[p] = propagates && ofUser
		}
	}
	return both, nil
}

func (a acl) Standing(ctx context.Context, paths []string) (map[string]cluster.Standing, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	access, _ := a.Permissions(ctx, "/access")
	_, whole := access["Sys.Audit"]
	out := map[string]cluster.Standing{}
	for _, path := range paths {
		at := cluster.Standing{Whole: whole}
		at.Token, _ = a.Permissions(ctx, path)
		if whole {
			at.User = a.user(path)
			at.UserEntry = slices.ContainsFunc(a, func(e entry) bool { return e.path == path && e.who == keptUser && !e.flat })
			at.TokenEntry = slices.ContainsFunc(a, func(e entry) bool { return e.path == path && e.who == keptToken && !e.flat })
		}
		out[path] = at
	}
	return out, nil
}

func (a acl) obey(t *testing.T, lines []string) acl {
	t.Helper()
	a = slices.Clone(a)
	roles := map[string]string{}
	for _, line := range lines {
		words := strings.Fields(line)
		option := func(name string) string {
			if i := slices.Index(words, name); i > 0 {
				return strings.Trim(words[i+1], "'")
			}
			return ""
		}
		switch strings.Join(words[:3], " ") {
		case "pveum role add":
		case "pveum role modify":
			roles[words[3]] += " " + strings.ReplaceAll(option("--privs"), ",", " ")
		case "pveum acl modify":
			for _, who := range []string{option("--users"), option("--tokens")} {
				if who != "" {
					a = append(a, entry{words[3], who, roles[option("--roles")], option("--propagate") == "0"})
				}
			}
		default:
			t.Fatalf("what is %q?", line)
		}
	}
	return a
}

// TestGrantsTakeNothingAway: an entry at a path overrides those from above, and a group's.
// Following the hint must not take a right away.
func TestGrantsTakeNothingAway(t *testing.T) {
	t.Parallel()
	const (
		roll  = "Sys.Audit SDN.Use Datastore.AllocateSpace Datastore.AllocateTemplate Datastore.Audit VM.Allocate VM.Audit VM.Config.Memory VM.Config.Options"
		admin = roll + " Sys.Modify Permissions.Modify VM.Console Datastore.Allocate Sys.AccessNetwork VM.PowerMgmt VM.Config.Disk VM.Config.CDROM VM.Config.HWType"
	)
	rolling := NeedsToRoll([]string{"isos"}, []string{"pve1"}, cluster.Reimage)
	pruning := NeedsToPrune([]string{"isos"}, nil)
	optional := OptionalPrivileges([]string{"isos"}, nil, []string{"pve1"})
	both := func(path, privileges string) acl {
		return acl{{path, keptUser, privileges, false}, {path, keptToken, privileges, false}}
	}
	type row struct {
		held  acl
		needs Needs
		keeps []string // roles that keep existing privileges, of the token and of the user
	}
	must.Each(t, map[string]row{
		"nothing":                                 {nil, rolling, nil},
		"disks' storage that has the ISOs, too":   {both("/", roll), pruning, []string{"RecastKeep-recast-pve-storage-isos"}},
		"disks' storage, option of pruning":       {both("/", roll), rolling.With(optional[1].Needs), []string{"RecastKeep-recast-pve-storage-isos"}},
		"option of downloading":                   {both("/", roll+" Sys.Modify"), optional[0].Needs, []string{"RecastKeep-recast-pve-nodes-pve1"}},
		"prune after the roll's grants":           {acl(nil).obey(t, rolling.Grants().Lines(keptToken)), pruning, nil}, // it already has an entry there
		"an entry that another joins":             {append(both("/", "Sys.Audit VM.Clone"), both("/vms", "VM.Console VM.Audit")...), rolling, nil},
		"a user by a group at the same path":      {append(acl{{"/", "@admins", "Sys.Audit Pool.Audit Sys.Console", false}}, both("/vms", roll)...), rolling, nil},
		"an administrator by a group":             {acl{{"/", "@admins", admin, false}, {"/", keptToken, roll, false}}, pruning, []string{"RecastKeep-recast-pve-roll-storage-isos"}},
		"a group's flat entry at the root":        {acl{{"/", "@admins", "Sys.Audit Pool.Audit", true}, {"/access", keptUser, roll, false}, {"/access", keptToken, roll, false}}, rolling, []string{"RecastKeep-recast-pve-flat"}},
		"a token with less than its user":         {acl{{"/", keptUser, roll + " VM.Console", false}, {"/", keptToken, roll, false}}, rolling, []string{"RecastKeep-recast-pve-vms"}},
		"an entry in the way, with more of above": {append(both("/", admin), both("/vms/9001", "VM.Console")...), rolling, nil},
	}, func(t *testing.T, tc row) {
		missing, err := tc.needs.Missing(t.Context(), tc.held)
		must.Do(t, err)
		lines := missing.Grants().Lines(missing.Token)
		now := tc.held.obey(t, lines)
		whole := missing.Caution() == ""
		for _, path := range []string{"/", "/access", "/nodes", "/nodes/pve1", "/sdn/zones/localnetwork/vmbr0", "/storage", "/storage/isos", "/storage/fast", "/vms", "/vms/9001", "/vms/9002"} {
			before, _ := tc.held.Permissions(t.Context(), path)
			after, _ := now.Permissions(t.Context(), path)
			requireKept(t, "the token", path, before, after)
			if whole {
				requireKept(t, "its user", path, tc.held.user(path), now.user(path))
			}
		}
		if still, err := tc.needs.Missing(t.Context(), now); whole && (err != nil || len(still.Lacks) > 0) {
			t.Errorf("still missing: %s, %v", still, err)
		}
		var keeps []string
		for _, line := range lines {
			if role, is := strings.CutPrefix(line, "pveum role add RecastKeep"); is {
				keeps = append(keeps, "RecastKeep"+role)
			}
		}
		slices.Sort(keeps)
		slices.Sort(tc.keeps)
		must.Equal(t, "roles that keep", tc.keeps, keeps)
	})
}

// requireKept requires that everything that counts at a path is still there.
func requireKept(t *testing.T, who, path string, before, after cluster.Privileges) {
	t.Helper()
	for _, p := range slices.Sorted(maps.Keys(before)) {
		if propagates, has := after[p]; countsAt(path, p) && (!has || before[p] && !propagates) {
			t.Errorf("%s had %s on %s", who, p, path)
		}
	}
}
