package simtest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/machineconfig"
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
				diff := cmp.Diff(shape.want, res.Nodes)
				require(t, shape.want == nil || diff == "", "nodes (-want +got):\n%s", diff)
				requireNone(t, res.Warnings, "it warns")
				requireSame(t, buildsIn(t, lab.Dir), buildsIn(t, me.Dir), "builds of the nodes (-installed +init)")
				requireInitInSync(t, me)
				if testing.Short() {
					return
				}
				must(t, errOf(lab.Lab.Patch(t.Context(), sim.CommonExtension, true)))
				must(t, errOf(me.Lock(t.Context(), pipeline.LockOptions{Update: true})))
				rep := me.mustRoll(planning.Policy{})
				require(t, rep.Outcome == "done" && len(rep.Plan.Work()) == len(lab.Nodes),
					"a roll by what init has written: %+v", rep)
				requireInitInSync(t, me)
			})
		})
	}
}

// buildsIn are the builds of all nodes by the files in a directory.
func buildsIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	conf := valueOf(config.Load(filepath.Join(dir, "recast.yaml"), config.Options{}))(t)
	lock := valueOf(schematics.ReadLock(filepath.Join(dir, "recast.lock")))(t)
	out := map[string]string{}
	for _, n := range conf.Nodes {
		out[n.Name] = lock.Schematics[n.Schematic].BuildID
	}
	return out
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
			requireError(t, errOf(c.Init(t.Context(), dir, o)), want...)
			requireNone(t, valueOf(filepath.Glob(dir))(t), what+": it has made")
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
		res := valueOf(me.Init(t.Context(), t.TempDir(), setup.InitOptions{Exclude: []string{"wk1"}}))(t)
		require(t, len(res.Nodes) == 1 && slices.Equal(res.Left, []string{"wk1"}),
			"without wk1 it found %+v, left %q", res.Nodes, res.Left)
		requireSays(t, read(t, me.Dir, "recast.yaml"), "# wk1 was left out")
		requireInitInSync(t, me)

		before := tree(t, me.Dir)
		err := errOf(lab.Client().Init(t.Context(), me.Dir, setup.InitOptions{Exclude: []string{"wk1"}}))
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
		for file, ours := range map[string]string{"default": "control-plane", "storage": "worker"} {
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
	return valueOf(schematics.Parse(name, []byte(read(t, dir, "schematics/"+name+".yaml"))))(t).ID()
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	return string(readFile(t, filepath.Join(dir, name)))
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
	requireSame(t, want, valueOf(os.Stat(filepath.Join(dir, name)))(t).Mode(), "mode of %s (-want +got)", name)
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
		const claim = `claim: container 9000 "dns" on pve1 has its number`
		const other = `proxmox.vmids: container 9099 "proxy" on pve1 has one of its numbers: a roll that needs that number stops`
		want := map[string]checkup.State{claim: checkup.Problem, other: checkup.Warning}
		requireSame(t, want, found, "what doctor says of containers (-want +got)")
		me := lab.Client()
		must(t, errOf(me.Init(t.Context(), t.TempDir(), setup.InitOptions{})))
		requireSays(t, read(t, me.Dir, "recast.yaml"), "vmids: 9200-9299")
		requireError(t, errOf(lab.Client().Init(t.Context(), t.TempDir(), setup.InitOptions{VMIDs: "9100-9199"})),
			`container 9100 "mail" on pve1 has the first number of 9100-9199`)
	})
}

// ofNew are the answers for a cluster of that many control planes and workers beside the lab's own.
func ofNew(controlPlanes, workers int) (setup.InitOptions, setup.NewOptions) {
	return setup.InitOptions{Cluster: "home", Talos: sim.TalosVersion}, setup.NewOptions{
		ControlPlanes: &controlPlanes, Workers: &workers, Prefix: "home-", Kubernetes: sim.KubernetesVersion,
		Addresses: []string{"127.42.7.101-127.42.7.120/24"}, Gateway: "127.42.7.1",
	}
}

// TestInitNew writes what a cluster from nothing is made of: every node has a whole VM, and a configuration
// that Talos takes.
func TestInitNew(t *testing.T) {
	type story struct {
		controlPlanes, workers int
		talos                  string
		change                 func(*setup.NewOptions)
		nodes                  []string
		endpoint               string
		files                  []string
		warns                  string
	}
	o := func(s story) sim.Options { return sim.Options{Workers: 1, Hosts: 2, TalosVersion: s.talos} }
	eachIn(t, o, map[string]story{
		"one and two": {1, 2, sim.TalosVersion, func(*setup.NewOptions) {}, []string{
			"home-cp1 control plane 127.42.7.101 on pve1: system disk scsi0 20G", "home-wk1 worker 127.42.7.102 on pve2: system disk scsi0 20G", "home-wk2 worker 127.42.7.103 on pve1: system disk scsi0 20G",
		}, "https://127.42.7.101:6443", []string{"recast.yaml", "recast.lock", "secrets.yaml", "schematics/default.yaml"}, "secrets.yaml is not encrypted"},
		"three and five": {
			3, 5, "v1.14.1", func(n *setup.NewOptions) {
				n.VIP, n.DataDisk, n.Memory, n.Install = "127.42.7.200", "100G", "8192", []string{"iscsi-tools"}
			},
			[]string{
				"home-cp1 control plane 127.42.7.101 on pve1: system disk scsi0 20G", "home-cp2 control plane 127.42.7.102 on pve2: system disk scsi0 20G", "home-cp3 control plane 127.42.7.103 on pve1: system disk scsi0 20G",
				"home-wk1 worker 127.42.7.104 on pve2: system disk scsi0 20G, persistent scsi1 100G", "home-wk2 worker 127.42.7.105 on pve1: system disk scsi0 20G, persistent scsi1 100G",
				"home-wk3 worker 127.42.7.106 on pve2: system disk scsi0 20G, persistent scsi1 100G", "home-wk4 worker 127.42.7.107 on pve1: system disk scsi0 20G, persistent scsi1 100G",
				"home-wk5 worker 127.42.7.108 on pve2: system disk scsi0 20G, persistent scsi1 100G",
			},
			"https://127.42.7.200:6443",
			[]string{"recast.yaml", "recast.lock", "patches/control-plane.yaml", "secrets.yaml", "schematics/default.yaml"},
			"home-cp1, home-cp3 are on pve1: etcd loses its majority if that host fails",
		},
	}, func(t *testing.T, lab *Lab, s story) {
		me := lab.Client()
		o, n := ofNew(s.controlPlanes, s.workers)
		o.Talos = s.talos
		s.change(&n)
		res := valueOf(me.InitNew(t.Context(), t.TempDir(), o, n))(t)
		requireSame(t, s.nodes, ofEach(res.Nodes, func(n setup.InitNode) string {
			return fmt.Sprintf("%s %s %s on %s: %s", n.Name, n.Role(), n.Address, n.Host, n.Disks())
		}), "nodes (-want +got)")
		requireSame(t, s.files, res.Files, "files (-want +got)")
		requireSame(t, s.endpoint, res.Endpoint, "endpoint (-want +got)")
		requireSays(t, strings.Join(res.Warnings, "\n"), s.warns)
		requireMode(t, me.Dir, "secrets.yaml", 0o600)
		requireMakes(t, me)
		require(t, !strings.Contains(read(t, me.Dir, "recast.yaml"), "<no value>"),
			"recast.yaml has a place that nothing filled in")
	})
}

// requireMakes requires a whole VM of each node, and a configuration that is valid in Talos' eyes.
func requireMakes(t *testing.T, me *Client) {
	t.Helper()
	p := valueOf(me.Project())(t)
	lock := valueOf(schematics.ReadLock(filepath.Join(me.Dir, "recast.lock")))(t)
	r := p.Config.Talos.MachineConfigs.Render
	source := valueOf(machineconfig.New(machineconfig.Options{Place: "recast.yaml", Base: me.Dir, Render: &machineconfig.Render{
		Cluster: p.Config.Cluster, Endpoint: r.Endpoint, Secrets: r.Secrets, Talos: r.Talos, Kubernetes: p.Config.Kubernetes.Version,
		Installer: "ghcr.io/siderolabs/installer:" + p.Config.Talos.Version, ControlPlanes: r.ControlPlanes, OfControls: r.Patches.ControlPlanes,
	}}))(t)
	for _, w := range p.Wanted(lock) {
		requireNone(t, shape.Lacks(w), w.Name+" lacks")
		text, _, err := source.Config(t.Context(), w.Name)
		must(t, err)
		cfg := valueOf(configloader.NewFromBytes(text))(t)
		_, err = cfg.ValidateAsClient(machine{})
		require(t, err == nil, "the configuration of %s: %v", w.Name, err)
		got := cfg.Machine().Type().IsControlPlane()
		require(t, got == strings.Contains(w.Name, "cp"), "%s is a control plane: %t", w.Name, got)
	}
}

// machine is one that has its system by its boot medium, as nocloud and metal have.
type machine struct{}

func (machine) String() string        { return "nocloud" }
func (machine) RequiresInstall() bool { return false }
func (machine) InContainer() bool     { return false }

// TestInitNewRefuses: what can't be made is refused, and nothing is written.
func TestInitNewRefuses(t *testing.T) {
	inLab(t, sim.Options{Workers: 1, Hosts: 2}, func(t *testing.T, lab *Lab) {
		lab.DefineVM(300, map[string]string{"name": "web", "ipconfig0": "ip=127.42.7.150/24,gw=127.42.7.1"})
		for name, s := range map[string]struct {
			change func(*setup.InitOptions, *setup.NewOptions)
			err    string
			hint   string
		}{
			"no name":             {func(o *setup.InitOptions, _ *setup.NewOptions) { o.Cluster = "" }, "What is the cluster to be called?", ""},
			"a name that is none": {func(o *setup.InitOptions, _ *setup.NewOptions) { o.Cluster = "my home" }, "cluster: ", "--cluster gives it another name"},
			"no addresses":        {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Addresses = nil }, "Which 3 unused addresses", ""},
			"too few addresses":   {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Addresses = []string{"127.42.7.101/24"} }, "there are 1 addresses for 3 nodes", "--addresses"},
			"an address of a VM": {func(_ *setup.InitOptions, n *setup.NewOptions) {
				n.Addresses = []string{"127.42.7.150-127.42.7.152/24"}
			}, `127.42.7.150 is the address of VM 300 "web"`, ""},
			"no gateway":            {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Gateway = "" }, "What is the gateway of 127.42.7.0/24?", ""},
			"a gateway elsewhere":   {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Gateway = "10.0.0.1" }, "the gateway 10.0.0.1 is not in 127.42.7.0/24", ""},
			"no common address":     {func(_ *setup.InitOptions, n *setup.NewOptions) { n.ControlPlanes = new(3) }, "does not go down with one of the 3 control planes", ""},
			"a VIP of a node":       {func(_ *setup.InitOptions, n *setup.NewOptions) { n.VIP = "127.42.7.102" }, "127.42.7.102 is that of the gateway or of a node", ""},
			"an endpoint of none":   {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Endpoint = "10.0.0.10" }, "no URL of the Kubernetes API", ""},
			"an unknown storage":    {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Storage = "fats" }, "storage fats does not take disks", "--storage: one that does: fast"},
			"a storage for ISOs":    {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Storage = sim.ISOStorage }, "storage isos does not take disks", ""},
			"a host that is none":   {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Hosts = []string{"pve9"} }, "pve9 is no Proxmox node that is online", "pve1, pve2"},
			"names of VMs":          {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Prefix = "" }, `VM 9001 "cp1" on pve1, VM 9031 "wk1" on pve2`, "--prefix home- gives"},
			"names that are none":   {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Prefix = "Home_" }, "nodes[0].name: ", "--prefix gives the nodes other names"},
			"no workers below zero": {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Workers = new(-1) }, "--workers: \"-1\" is no number from 0", ""},
			"little memory":         {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Memory = "512" }, "--memory: ", ""},
			"a small system disk":   {func(_ *setup.InitOptions, n *setup.NewOptions) { n.SystemDisk = "5G" }, "--system-disk: ", ""},
			"a data disk of none":   {func(_ *setup.InitOptions, n *setup.NewOptions) { n.DataDisk = "much" }, "--data-disk: ", ""},
			"no such extension":     {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Install = []string{"iscsi-tool"} }, "iscsi-tool", ""},
			"an unknown Talos":      {func(o *setup.InitOptions, _ *setup.NewOptions) { o.Talos = "v1.99.0" }, "Talos v1.99.0 is not a version", "--talos-version"},
			"which Kubernetes":      {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Kubernetes = "" }, "Which Kubernetes should run with Talos v1.13.9", ""},
		} {
			o, n := ofNew(1, 2)
			s.change(&o, &n)
			dir := filepath.Join(t.TempDir(), "new")
			_, err := lab.Client().InitNew(t.Context(), dir, o, n)
			if err == nil || !strings.Contains(err.Error(), s.err) || !strings.Contains(strings.Join(fault.Hints(err), "\n"), s.hint) {
				t.Errorf("%s: %v, hints %q; want %q, %q", name, err, fault.Hints(err), s.err, s.hint)
			}
			require(t, errOf(os.Stat(dir)) != nil, "%s: it has made the directory", name)
		}
		poor := lab.Client()
		poor.Token = cluster.Secret(sim.PoorToken)
		o, n := ofNew(1, 2)
		requireRefused(t, errOf(poor.InitNew(t.Context(), t.TempDir(), o, n)), "it lacks Sys.Audit on /, VM.Audit on /vms")
	})
}

// TestInitNewAgain: the secrets of a cluster are never replaced, and a second cluster needs another name.
func TestInitNewAgain(t *testing.T) {
	inLab(t, sim.Options{Workers: 1}, func(t *testing.T, lab *Lab) {
		me := lab.Client()
		o, n := ofNew(1, 0)
		must(t, errOf(me.InitNew(t.Context(), t.TempDir(), o, n)))
		before := tree(t, me.Dir)
		o.Force = true
		requireFault(t, errOf(lab.Client().InitNew(t.Context(), me.Dir, o, n)), fault.Config,
			"secrets.yaml is there already, and is never replaced")
		requireSame(t, before, tree(t, me.Dir), "refused, it has changed (-before +after)")
		must(t, os.Remove(filepath.Join(me.Dir, "secrets.yaml")))
		must(t, errOf(lab.Client().InitNew(t.Context(), me.Dir, o, n)))

		lab.DefineVM(9050, map[string]string{"name": "parking", "description": `recast-record: {"version":1,"cluster":"home","node":"home-wk9","uuid":"u"}`})
		requireRefused(t, errOf(lab.Client().InitNew(t.Context(), t.TempDir(), o, n)),
			"VM 9050 \"parking\" on pve1 is recast's own, for a cluster of the name home")
	})
}

// TestInitNewHosts: no VM is put on a host that is offline, and VMs there are seen by their names.
func TestInitNewHosts(t *testing.T) {
	inLab(t, sim.Options{Workers: 1, Hosts: 3}, func(t *testing.T, lab *Lab) {
		lab.World.CrashHost("pve2")
		o, n := ofNew(1, 2)
		res := valueOf(lab.Client().InitNew(t.Context(), t.TempDir(), o, n))(t)
		on := ofEach(res.Nodes, func(n setup.InitNode) string { return n.Host })
		requireSame(t, []string{"pve1", "pve3", "pve1"}, on, "hosts (-want +got)")
		requireSays(t, strings.Join(res.Warnings, "\n"), "no VM is to be on pve2: offline")
	})
}
