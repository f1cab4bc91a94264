package simtest

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
	"github.com/recast-sh/recast/pipeline/setup"
	"github.com/recast-sh/recast/schematics"
)

// TestInit runs init in labs of every shape: its files have the builds that the nodes run,
// so that drift finds nothing and a plan has nothing to do.
func TestInit(t *testing.T) {
	shapes := map[string]struct {
		o    sim.Options
		want []setup.InitNode
	}{
		"BIOS and UEFI": {sim.Options{Workers: 1, Layouts: []sim.Layout{{Data: 1}, {Data: 1, SeaBIOS: true}}}, []setup.InitNode{
			{Name: "cp1", ControlPlane: true, VMID: 9001, Host: "pve1", Firmware: "UEFI", Schematic: "control-plane", SystemDisk: "scsi0 10G"},
			{Name: "wk1", VMID: 9031, Host: "pve1", Firmware: "BIOS", Schematic: "worker", SystemDisk: "scsi0 10G", Persistent: []string{"scsi1 20G"}},
		}},
		"data VMs": {sim.Options{Holder: true, Hosts: 2}, []setup.InitNode{
			{Name: "cp1", ControlPlane: true, VMID: 9001, Host: "pve1", Firmware: "UEFI", Schematic: "control-plane", SystemDisk: "scsi0 10G"},
			{Name: "wk1", VMID: 9031, Host: "pve2", Firmware: "UEFI", Schematic: "worker", SystemDisk: "scsi0 10G", Persistent: []string{"scsi1 20G of VM 9202"}, Holder: 9202},
			{Name: "wk2", VMID: 9032, Host: "pve1", Firmware: "UEFI", Schematic: "worker", SystemDisk: "scsi0 10G", Persistent: []string{"scsi1 20G of VM 9201"}, Holder: 9201},
		}},
		"several disks": {sim.Options{Workers: 1, Layouts: []sim.Layout{{Data: 3}, {Bus: "virtio", Data: 3}}}, []setup.InitNode{
			{Name: "cp1", ControlPlane: true, VMID: 9001, Host: "pve1", Firmware: "UEFI", Schematic: "control-plane", SystemDisk: "scsi0 10G"},
			{Name: "wk1", VMID: 9031, Host: "pve1", Firmware: "UEFI", Schematic: "worker", SystemDisk: "virtio0 10G", Persistent: []string{"virtio1 20G", "virtio2 21G", "virtio3 22G"}},
		}},
		"a single control plane": {sim.Options{Workers: sim.None, EtcdOnData: true}, []setup.InitNode{
			{Name: "cp1", ControlPlane: true, VMID: 9001, Host: "pve1", Firmware: "UEFI", Schematic: "default", SystemDisk: "scsi0 10G", Persistent: []string{"scsi1 20G"}},
		}},
		"two schematics": {sim.Options{ControlPlanes: 3, Workers: 3, Hosts: 3}, nil},
	}
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "BIOS and UEFI" {
				t.Skip("long: make stories")
			}
			inLab(t, shape.o, func(t *testing.T, lab *Lab) {
				me := lab.Client()
				res := valueOf(me.Init(t.Context(), t.TempDir(), setup.InitOptions{}))(t)
				if diff := cmp.Diff(shape.want, res.Nodes); shape.want != nil && diff != "" {
					t.Errorf("nodes (-want +got):\n%s", diff)
				}
				requireNone(t, res.Warnings, "it warns")
				requireSameBuilds(t, lab, me)
				requireInitInSync(t, me)
				if !testing.Short() {
					lab.rollFrom(t, me)
				}
			})
		})
	}
}

// rollFrom rolls an extension patch to every node with the files that init wrote.
func (l *Lab) rollFrom(t *testing.T, me *Client) {
	t.Helper()
	must(t, errOf(l.Lab.Patch(t.Context(), sim.CommonExtension, true)))
	must(t, errOf(me.Lock(t.Context(), pipeline.LockOptions{Update: true})))
	rep := valueOf(me.Roll(t.Context(), planning.Policy{}))(t)
	require(t, rep.Outcome == "done" && len(rep.Plan.Work()) == len(l.Nodes),
		"a roll by what init has written, %+v", rep.Outcome)
	requireInitInSync(t, me)
	l.RequireIntact()
}

// requireSameBuilds requires that the files that init wrote result in the very images that
// the lab's machines were installed from.
func requireSameBuilds(t *testing.T, lab *Lab, me *Client) {
	t.Helper()
	builds := func(dir string) map[string]string {
		conf := valueOf(config.Load(filepath.Join(dir, "recast.yaml"), config.Options{}))(t)
		lock := valueOf(schematics.ReadLock(filepath.Join(dir, "recast.lock")))(t)
		out := map[string]string{}
		for _, n := range conf.Nodes {
			out[n.Name] = lock.Schematics[n.Schematic].BuildID
		}
		return out
	}
	requireSame(t, builds(lab.Dir), builds(me.Dir), "builds of the nodes (-installed +init)")
}

func requireInitInSync(t *testing.T, me *Client) {
	t.Helper()
	drift := valueOf(me.Drift(t.Context()))(t)
	require(t, drift.InSync, "drift: %+v", drift.Nodes)
	plan := valueOf(me.Plan(t.Context(), planning.Policy{}))(t)
	requireNone(t, plan.Work(), "there is something to do")
}

// TestInitRefuses: for any fault of the cluster, init writes nothing.
func TestInitRefuses(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 1}, func(t *testing.T, lab *Lab) {
		refused := func(what string, c *Client, o setup.InitOptions, want ...string) {
			t.Helper()
			dir := filepath.Join(t.TempDir(), "new")
			_, err := c.Init(t.Context(), dir, o)
			if err == nil {
				t.Errorf("%s: no error", what)
				return
			}
			said := err.Error() + "\n" + strings.Join(fault.Hints(err), "\n")
			for _, text := range want {
				require(t, strings.Contains(said, text), "%s: it does not say %q, but\n%s", what, text, said)
			}
			if files, err := os.ReadDir(dir); err == nil {
				t.Errorf("%s: it has made a directory with %v", what, files)
			}
		}
		poor := lab.Client()
		poor.Token = cluster.Secret(sim.PoorToken)
		refused("a token that sees nothing", poor, setup.InitOptions{}, "it lacks Sys.Audit on /, VM.Audit on /vms", "--roles PVEAuditor")
		wrong := lab.Client()
		wrong.Token = cluster.Secret("recast@pve!lab=5ec0ffee-1ab0-4000-8000-00000000ffff")
		refused("a wrong token", wrong, setup.InitOptions{}, "does not accept the API token recast@pve!lab")
		refused("a node that is not there", lab.Client(), setup.InitOptions{Exclude: []string{"wk7"}}, "--exclude wk7: there is no node of that name", "the cluster has: cp1, wk1")
		refused("nothing left", lab.Client(), setup.InitOptions{Exclude: []string{"wk1", "cp1"}}, "every node was left out")
		refused("VMIDs that are none", lab.Client(), setup.InitOptions{VMIDs: "5-7"}, "out of bounds")

		refused("a storage without ISOs", lab.Client(), setup.InitOptions{ISOStorage: []string{sim.DiskStorage}}, "storage fast does not take ISOs")
		refused("a storage that is not there", lab.Client(), setup.InitOptions{ISOStorage: []string{"nope"}}, "storage nope does not take ISOs")

		lab.DefineVM(300, map[string]string{"name": "twin", "smbios1": "uuid=" + lab.Nodes[1].UUID})
		refused("two VMs with one UUID", lab.Client(), setup.InitOptions{}, "node wk1: 2 VMs have its SMBIOS UUID", "or leave it out: --exclude wk1")
		lab.EditVM(300, "smbios1", "uuid=00000000-0000-4000-8000-000000000300")
		lab.EditVM(9031, "smbios1", "uuid=00000000-0000-4000-8000-000000000301")
		refused("a node without a VM", lab.Client(), setup.InitOptions{}, "node wk1: no VM has its SMBIOS UUID", "VM.Audit", "--exclude wk1")

		me := lab.Client()
		res, err := me.Init(t.Context(), t.TempDir(), setup.InitOptions{Exclude: []string{"wk1"}})
		must(t, err)
		require(t, len(res.Nodes) == 1 && slices.Equal(res.Left, []string{"wk1"}),
			"without wk1 it found %+v, left %q", res.Nodes, res.Left)
		text := read(t, me.Dir, "recast.yaml")
		require(t, strings.Contains(text, "# wk1 was left out"), "recast.yaml does not say who was left out:\n%s", text)
		requireInitInSync(t, me)

		before := tree(t, me.Dir)
		_, err = lab.Client().Init(t.Context(), me.Dir, setup.InitOptions{Exclude: []string{"wk1"}})
		requireFault(t, err, fault.Config, "recast.yaml, recast.lock are there already")
		requireSame(t, before, tree(t, me.Dir), "refused, it has changed (-before +after)")
		must(t, errOf(lab.Client().Init(t.Context(), me.Dir, setup.InitOptions{Exclude: []string{"wk1"}, Force: true})))
		after := tree(t, me.Dir)
		maps.DeleteFunc(after, func(name, _ string) bool { return strings.HasPrefix(name, ".recast/") })
		requireSame(t, before, after, "forced, it has written something else (-before +after)")

		// The role PVEAuditor is enough.
		lab.World.AddRole("Auditor", "Sys.Audit", "VM.Audit", "Datastore.Audit")
		for _, who := range []string{"poor@pve", "poor@pve!lab"} {
			lab.World.Grant(world.ACL{Path: "/", Who: who, Role: "Auditor", Propagate: true})
		}
		must(t, errOf(poor.Init(t.Context(), t.TempDir(), setup.InitOptions{Exclude: []string{"wk1"}})))
	})
}

// TestInitForeign has machines that were not installed from a lock, like those of new
// users. Init keeps their schematics, and drift reports them as unknown.
func TestInitForeign(t *testing.T) {
	longParts(t)
	inBubble(t, func(t *testing.T) {
		lab := NewForeign(t, sim.Options{Workers: 1})
		me := lab.Client()
		res := valueOf(me.Init(t.Context(), t.TempDir(), setup.InitOptions{}))(t)
		for _, file := range []string{"default", "storage"} {
			ours := map[string]string{"default": "control-plane", "storage": "worker"}[file]
			requireSame(t, idOf(t, lab.Dir, file), idOf(t, me.Dir, ours),
				"schematics/%s.yaml has another schematic ID than what the nodes run", ours)
		}
		drift := valueOf(me.Drift(t.Context()))(t)
		requireSame(t, drift.Nodes, res.Drift, "what init said (-drift +init)")
		for _, d := range drift.Nodes {
			require(t, len(d.Reasons) == 1 && d.Reasons[0].Code == "unknown-build", "%s is stale for %+v", d.Node, d.Reasons)
		}
	})
}

func idOf(t *testing.T, dir, name string) string {
	t.Helper()
	s := valueOf(schematics.Parse(name, []byte(read(t, dir, "schematics/"+name+".yaml"))))(t)
	return s.ID()
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b := readFile(t, filepath.Join(dir, name))
	return string(b)
}

// tree is every file below a directory with its content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		out[name] = read(t, dir, name)
		return err
	}))
	return out
}

// TestInitAfterARoll: the cluster was rolled with another recast.yaml; a second one gets
// the same numbers, or none. The nodes' present schematic contains a secret.
func TestInitAfterARoll(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 1, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.Write("schematics/storage.yaml", append(lab.Read("schematics/storage.yaml"), "  extraKernelArgs: [talos.environment=http_proxy=http://me:hunter2@proxy.example]\n"...))
		lab.Patch(sim.PatchedExtension)
		requireMode(t, lab.Dir, "recast.lock", 0o600)
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		requireMode(t, lab.Dir, ".recast/.gitignore", 0o600)

		for vmids, want := range map[string]string{"": "recast has run on these nodes before (its own: VM 9002", "9100-9199": "is recast's own: it belongs to a recast.yaml with other proxmox.vmids"} {
			dir := filepath.Join(t.TempDir(), "new")
			requireError(t, errOf(lab.Client().Init(t.Context(), dir, setup.InitOptions{VMIDs: vmids})), want)
			require(t, errOf(os.Stat(dir)) != nil, "--vmids %q: it has made a directory", vmids)
		}
		me := lab.Client()
		res := valueOf(me.Init(t.Context(), t.TempDir(), setup.InitOptions{VMIDs: "9000-9099"}))(t)
		if said := strings.Join(res.Warnings, "\n"); !strings.Contains(said, "schematics/worker.yaml and recast.lock hold secrets, as the image of wk1 does (the kernel argument talos.environment): commit neither") ||
			strings.Contains(said, "hunter2") || strings.Join(res.Secret, " ") != "recast.lock schematics/worker.yaml" {
			t.Errorf("it warns %q, and calls %q secret", said, res.Secret)
		}
		for name, mode := range map[string]os.FileMode{"recast.lock": 0o600, "schematics/worker.yaml": 0o600, "schematics/control-plane.yaml": 0o644, "recast.yaml": 0o644} {
			requireMode(t, me.Dir, name, mode)
		}
		requireInitInSync(t, me)
	})
}

func requireMode(t *testing.T, dir, name string, want os.FileMode) {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, name))
	if err != nil {
		t.Error(err)
	} else if info.Mode() != want {
		t.Errorf("%s has mode %v, want %v", name, info.Mode(), want)
	}
}

// TestContainersHaveNumbers: they are listed with the VMs, and a claim can't use their numbers.
func TestContainersHaveNumbers(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		for id, name := range map[int]string{9000: "dns", 9099: "proxy", 9100: "mail"} {
			must(t, lab.World.DefineContainer(world.Container{ID: id, Name: name, Host: "pve1"}))
		}
		found := map[string]checkup.State{}
		for _, c := range diagnosis(t, lab.Client()).Checks {
			if strings.Contains(c.Seen, "container") {
				found[c.What+": "+c.Seen] = c.State
			}
		}
		if len(found) != 2 || found[`claim: container 9000 "dns" on pve1 has its number`] != checkup.Problem ||
			found[`proxmox.vmids: container 9099 "proxy" on pve1 has one of its numbers: a roll that needs that number stops`] != checkup.Warning {
			t.Errorf("doctor says of containers: %v", found)
		}
		me := lab.Client()
		must(t, errOf(me.Init(t.Context(), t.TempDir(), setup.InitOptions{})))
		text := read(t, me.Dir, "recast.yaml")
		require(t, strings.Contains(text, "vmids: 9200-9299"), "it proposes numbers of containers:\n%s", text)
		_, err := lab.Client().Init(t.Context(), t.TempDir(), setup.InitOptions{VMIDs: "9100-9199"})
		requireError(t, err, `container 9100 "mail" on pve1 has the first number of 9100-9199`)
	})
}
