package simtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/imager"
	"github.com/recast-sh/recast/internal/machineconfig"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	imagersim "github.com/recast-sh/recast/internal/sim/imager"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
	"github.com/recast-sh/recast/pipeline/setup"
	"github.com/recast-sh/recast/schematics"
)

// TestInit: the files of init have the builds that the nodes run, so that a plan has nothing to do.
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
		"with a domain":  {sim.Options{ControlPlanes: 3, Workers: 1, Domain: ".example.org"}, nil},
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
				require(t, rep.Outcome == "done" && len(rep.Plan.Work()) == len(lab.Nodes), "rolled by the new files: %+v", rep)
				requireInitInSync(t, me)
			})
		})
	}
}

func buildsIn(t *testing.T, dir string) map[string]string {
	conf := valueOf(config.Load(filepath.Join(dir, "recast.yaml"), config.Options{}))(t)
	lock := valueOf(schematics.ReadLock(filepath.Join(dir, "recast.lock")))(t)
	out := map[string]string{}
	for _, n := range conf.Nodes {
		out[n.Name] = lock.Schematics[n.Schematic].BuildID
	}
	return out
}

func requireInitInSync(t *testing.T, me *Client) {
	drift := valueOf(me.Drift(t.Context()))(t)
	require(t, drift.InSync, "drift: %+v", drift.Nodes)
	requireNone(t, valueOf(me.Plan(t.Context(), planning.Policy{}))(t).Work(), "there is something to do")
}

// TestInitRefuses: for any fault of the cluster, init writes nothing.
func TestInitRefuses(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 1}, func(t *testing.T, lab *Lab) {
		refused := func(what string, c *Client, o setup.InitOptions, want ...string) {
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
		require(t, len(res.Nodes) == 1 && slices.Equal(res.Left, []string{"wk1"}), "found %+v, left %q", res.Nodes, res.Left)
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

// TestInitForeign: init keeps the schematics of machines that were not installed from a lock; drift calls them unknown.
func TestInitForeign(t *testing.T) {
	longParts(t)
	inBubble(t, func(t *testing.T) {
		lab := NewForeign(t, sim.Options{Workers: 1})
		me := lab.Client()
		res := valueOf(me.Init(t.Context(), t.TempDir(), setup.InitOptions{}))(t)
		for file, ours := range map[string]string{"default": "control-plane", "storage": "worker"} {
			requireSame(t, idOf(t, lab.Dir, file), idOf(t, me.Dir, ours), "schematic ID of %s (-installed +init)", ours)
		}
		drift := valueOf(me.Drift(t.Context()))(t)
		requireSame(t, drift.Nodes, res.Drift, "what init said (-drift +init)")
		for _, d := range drift.Nodes {
			require(t, len(d.Reasons) == 1 && d.Reasons[0].Code == "unknown-build", "%s is stale for %+v", d.Node, d.Reasons)
		}
	})
}

func idOf(t *testing.T, dir, name string) string {
	return valueOf(schematics.Parse(name, []byte(read(t, dir, "schematics/"+name+".yaml"))))(t).ID()
}

func read(t *testing.T, dir, name string) string {
	return string(readFile(t, filepath.Join(dir, name)))
}

func tree(t *testing.T, dir string) map[string]string {
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

// TestInitAfterARoll: a second recast.yaml gets the numbers of the first, or none. The nodes' schematic has a secret.
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

// TestInitNew: every node of a cluster from nothing has a whole VM, and a configuration that Talos takes.
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
		require(t, !strings.Contains(read(t, me.Dir, "recast.yaml"), "<no value>"), "recast.yaml: a place is empty")
	})
}

func requireMakes(t *testing.T, me *Client) {
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
			"an endpoint of none":   {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Endpoint = "10.0.0.10" }, "not the URL of a Kubernetes API", ""},
			"an unknown storage":    {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Storage = "fats" }, "storage fats does not take disks", "--storage: one that does: fast"},
			"a storage for ISOs":    {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Storage = sim.ISOStorage }, "storage isos does not take disks", ""},
			"a host that is none":   {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Hosts = []string{"pve9"} }, "pve9 is not a Proxmox node that is online", "pve1, pve2"},
			"names of VMs":          {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Prefix = "" }, `VM 9001 "cp1" on pve1, VM 9031 "wk1" on pve2`, "--prefix home- gives"},
			"names that are none":   {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Prefix = "Home_" }, "nodes[0].name: ", "--prefix gives the nodes other names"},
			"no workers below zero": {func(_ *setup.InitOptions, n *setup.NewOptions) { n.Workers = new(-1) }, "--workers: \"-1\" is not a number from 0", ""},
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
	long(t)
	inLab(t, sim.Options{Workers: 1}, func(t *testing.T, lab *Lab) {
		me := lab.Client()
		o, n := ofNew(1, 0)
		must(t, errOf(me.InitNew(t.Context(), t.TempDir(), o, n)))
		before := tree(t, me.Dir)
		o.Force = true
		requireFault(t, errOf(lab.Client().InitNew(t.Context(), me.Dir, o, n)), fault.Config,
			"secrets.yaml already exists, and is never replaced")
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
	long(t)
	inLab(t, sim.Options{Workers: 1, Hosts: 3}, func(t *testing.T, lab *Lab) {
		lab.World.CrashHost("pve2")
		o, n := ofNew(1, 2)
		res := valueOf(lab.Client().InitNew(t.Context(), t.TempDir(), o, n))(t)
		on := ofEach(res.Nodes, func(n setup.InitNode) string { return n.Host })
		requireSame(t, []string{"pve1", "pve3", "pve1"}, on, "hosts (-want +got)")
		requireSays(t, strings.Join(res.Warnings, "\n"), "no VM is to be on pve2: offline")
	})
}

const ownRepository = "127.0.0.1:5000/acme/frr"

func push(t *testing.T, lab *Lab, ref string, images v1.ImageIndex) string {
	tag := valueOf(name.NewTag(ref))(t)
	must(t, remote.WriteIndex(tag, images, remote.WithContext(t.Context()), remote.WithTransport(lab.Registry.Transport())))
	return valueOf(images.Digest())(t).String()
}

// frr is a user's own extension, of that version and content.
func frr(t *testing.T, version, content string) v1.ImageIndex {
	return valueOf(artefact.ExtensionIndex(artefact.Extension{
		Name: "frr", Version: version, Author: "Acme", Files: map[string][]byte{"/usr/local/bin/frr": []byte(content)},
	}))(t)
}

// TestLockOfOwnExtension: an extension in no list is resolved in its own registry; its tag is followed on request.
func TestLockOfOwnExtension(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		one := push(t, lab, ownRepository+":1.7", frr(t, "1.7.15", "one"))
		lab.Replace("recast.yaml", "images:\n", "images:\n  mirror: 127.0.0.1:5000/acme/talos\n  imager: {command: [imager, \"{out}\"]}\n")
		lab.Replace("recast.yaml", "storage: schematics/storage.yaml", "storage: {file: schematics/storage.yaml, extensions: ["+ownRepository+":1.7]}")
		lock := func(o pipeline.LockOptions) (schematics.Extension, pipeline.LockResult) {
			res := valueOf(lab.Client().Lock(t.Context(), o))(t)
			list := res.Lock.Schematics["storage"].Extensions
			return list[len(list)-1], res
		}
		locked := func(digest string) schematics.Extension {
			return schematics.Extension{Name: "frr", Version: "1.7.15", Ref: ownRepository, Digest: digest, Explicit: true, Tag: "1.7"}
		}
		got, res := lock(pipeline.LockOptions{})
		diff := cmp.Diff(locked(one), got)
		require(t, diff == "" && res.Written, "at first (-want +got):\n%s", diff)
		two := push(t, lab, ownRepository+":1.7", frr(t, "1.7.15", "two"))
		got, res = lock(pipeline.LockOptions{})
		require(t, got.Digest == one && !res.Differs, "without --update: %+v, differs %t", got, res.Differs)
		got, res = lock(pipeline.LockOptions{Update: true})
		requireSame(t, locked(two), got, "with --update (-want +got)")
		want := []string{"extension frr 1.7.15: " + one + " → " + two}
		require(t, len(res.Changes) == 1 && cmp.Equal(want, res.Changes[0].Reasons) &&
			cmp.Equal([]string{"wk1"}, res.Changes[0].Nodes), "changes %+v", res.Changes)

		lab.Replace("recast.yaml", ownRepository+":1.7", ownRepository+":1.7@"+one)
		got, res = lock(pipeline.LockOptions{})
		requireSame(t, locked(one), got, "with its digest (-want +got)")
		require(t, len(res.Warnings) == 1 && res.Warnings[0].Kind == schematics.TagMoved && res.Warnings[0].Locked == one &&
			res.Warnings[0].Found == two, "warnings %+v", res.Warnings)
	})
}

func (l *Lab) lockImages(line string) {
	l.Replace("recast.yaml", "images:\n", "images:\n  "+line+"\n")
	must(l.t, errOf(l.Client().Lock(l.t.Context(), pipeline.LockOptions{})))
}

// TestImagesForAnotherArchitecture: every node is stale, and none is taken down for that.
func TestImagesForAnotherArchitecture(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		boots := lab.boots()
		lab.lockImages("arch: arm64")
		want := []cluster.Reason{{Code: "arch", Text: "architecture amd64 → arm64", Old: "amd64", New: "arm64"}}
		for _, d := range requireDrift(t, lab, "cp1", "wk1").Nodes {
			requireSame(t, want, d.Reasons, "%s (-want +got)", d.Node)
		}
		const reason = "the images are for arm64, and the machine is amd64: set images.arch to amd64, then recast lock"
		config := lab.Read("recast.yaml")
		for s, refused := range map[cluster.Strategy]string{
			cluster.Auto: "recreate, reimage, in-place: " + reason, cluster.Recreate: reason, cluster.Reimage: reason, cluster.InPlace: reason,
		} {
			strategy(s)(lab)
			before := len(lab.Recorder.Calls())
			rep, err := lab.Client().Roll(t.Context(), onlyWorker)
			requireSame(t, []string{"wk1: " + refused}, rep.Plan.Refused(), "%s (-want +got)", s)
			requireFault(t, err, fault.Refused)
			lab.requireNothingSent(before)
			lab.Write("recast.yaml", config)
		}
		requireSame(t, boots, lab.boots(), "boots (-before +after)")
	})
}

// TestImagesForAnotherPlatform: a node changes its platform with its image, unless its address comes from the old one.
func TestImagesForAnotherPlatform(t *testing.T) {
	eachLong(t, oneWorker(), storiesOf(cluster.Recreate, cluster.Reimage, cluster.InPlace), func(t *testing.T, lab *Lab, s cluster.Strategy) {
		strategy(s)(lab)
		whileOff(change("ide0=fast:cloudinit", "ipconfig0=ip=127.42.7.31/24"))(lab)
		lab.lockImages("platform: metal")
		const reason = "the VM's cloud-init drive gives a fixed address (ipconfig0: ip=127.42.7.31/24), which platforms nocloud and metal do not both read: keep platform nocloud (images.platform), or have DHCP give the node its address and remove that"
		requireSame(t, []string{reason}, planOf(t, lab, "wk1").Refused, "with a fixed address (-want +got)")
		whileOff(change("ipconfig0=ip=dhcp"))(lab)
		const note = "platform nocloud → metal: " +
			"network settings that are in neither its machine configuration nor DHCP will change"
		notes := lab.Client().mustRoll(onlyWorker).Plan.Work()[0].Notes
		require(t, len(notes) != 0 && notes[0] == note, "notes: %q", notes)
		lab.requireUpgraded(t, "wk1")
		requireSame(t, "metal", lab.machine("wk1").Platform, "platform (-want +got)")
	})
}

func requireTrouble(t *testing.T, err error, code fault.Code, safe string) {
	requireSame(t, code, fault.CodeOf(err), "code …, of: %v (-want +got)", err)
	requireSays(t, strings.Join(fault.Safe(err), "\n"), safe)
}

// TestTheLockIsGoneBetweenTwoPlans: what has finished another one's work must not say that nothing was touched.
func TestTheLockIsGoneBetweenTwoPlans(t *testing.T) {
	inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.rollKilledWhen("wk1/take-down/stop")
		next := lab.second().hears(whenStarted("wk1/bring-up/finish", func() { lab.Replace("recast.lock", "", "") }))
		err := next.roll(planning.Policy{})(t.Context())
		requireFault(t, err, fault.Config)
		requireTrouble(t, err, fault.LockStale, "wk1: finished, with all their disks")
	})
}

func installerBase(t *testing.T) v1.ImageIndex {
	img := valueOf(random.Image(512, 1))(t)
	config := valueOf(img.ConfigFile())(t).DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	img = valueOf(mutate.ConfigFile(img, config))(t)
	return mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}},
	})
}

// imagerBuilds has the imager build one schematic, storage. runs is what it has built.
func imagerBuilds(t *testing.T, lab *Lab, talos string) (client *Client, runs *[]string) {
	push(t, lab, ownRepository+":1.7.15", frr(t, "1.7.15", "frr"))
	push(t, lab, "127.0.0.1:5000/siderolabs/installer-base:"+talos, installerBase(t))
	lab.Replace("recast.yaml", "images:\n", "images:\n  mirror: 127.0.0.1:5000/acme/talos\n  imager: {command: [imager, \"{out}\"]}\n")
	lab.Replace("recast.yaml", "storage: schematics/storage.yaml", `storage: {file: schematics/storage.yaml, extensions: ["`+ownRepository+`:1.7.15"]}`)
	client, runs = lab.Client(), new([]string)
	// A process can't run in a bubble: the lab's imager is called directly.
	client.Imager = valueOf(imager.New(imager.Options{
		Command: []string{"imager", "{out}"},
		Run: func(_ context.Context, args []string, profile []byte) error {
			return imagersim.Build(profile, args[1], func(kind string, _ *artefact.Image) { *runs = append(*runs, kind) })
		},
	}))(t)
	must(t, errOf(client.Lock(t.Context(), pipeline.LockOptions{})))
	return client, runs
}

// TestPreparedByImager: the imager makes the disk image of a schematic, too, from which a system disk is prepared. The imager
// of an older Talos can't: with auto the node boots the ISO, with disk it is refused.
func TestPreparedByImager(t *testing.T) {
	type story struct {
		talos, boot, refused string
		doctor               checkup.State
	}
	const old = "before Talos v1.13 the imager needs loop devices for one, and recast gives it none"
	eachLongIn(t, func(s story) sim.Options { return sim.Options{Workers: 1, TalosVersion: s.talos} }, map[string]story{
		"a disk":            {sim.TalosVersion, "disk", "", checkup.OK},
		"auto":              {sim.TalosVersion, "auto", "", checkup.OK},
		"an older Talos":    {talos12, "disk", old, checkup.Problem},
		"older, by the ISO": {talos12, "auto", old, checkup.Warning},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.BootsDisks(s.boot)
		client, runs := imagerBuilds(t, lab, s.talos)
		checks := diagnosis(t, client).Checks
		i := slices.IndexFunc(checks, func(c checkup.Check) bool { return c.What == "disk image of storage on local" })
		require(t, i >= 0 && checks[i].State == s.doctor && strings.Contains(checks[i].Seen, s.refused), "%+v", checks)
		before := lab.Disks()
		rep, err := client.Roll(t.Context(), onlyWorker)
		if s.doctor == checkup.Problem {
			requireFault(t, err, fault.Refused, "no disk image of schematic storage is made: "+s.refused)
			return
		}
		must(t, err)
		want := []string{imagersim.Installer, imagersim.ISO}
		if s.refused == "" {
			want = append(want, imagersim.Disk)
		}
		requireSame(t, want, *runs, "what the imager built (-want +got)")
		n, e := rep.Plan.Nodes[0], readLock(t, lab).Schematics["storage"]
		require(t, n.Prepared == e.Disk.Name && (n.Prepared == "") == (s.refused != ""), "%q, lock %+v", n.Prepared, e.Disk)
		requireSays(t, strings.Join(n.Notes, "; "), s.refused)
		lab.requireRolledFrom(t, before)
	})
}

// TestRollWhatTheImagerBuilt: for one lock the factory builds one schematic and the imager the other.
func TestRollWhatTheImagerBuilt(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		client, runs := imagerBuilds(t, lab, sim.TalosVersion)
		client.rollTo(t, planning.Policy{})
		require(t, len(*runs) == 2, "the imager built %q", *runs)
		for name, e := range readLock(t, lab).Schematics {
			require(t, strings.HasPrefix(e.Installer, "127.0.0.1:5000/acme/talos@") && e.ISO.SHA256 != "" &&
				(e.Signer == "") == (name == "storage"), "%s: installer %s, signer %q, ISO %+v", name, e.Installer, e.Signer, e.ISO)
		}
		p := valueOf(lab.Client().Provenance(t.Context(), "wk1"))(t)
		require(t, p.Origin == observe.FromLock && p.Build == p.Wanted && !p.Contradicted(), "provenance: %+v", p)
		requireNone(t, valueOf(os.ReadDir(filepath.Join(lab.Dir, ".recast", "cache", "imager")))(t), "left")
	})
}

// TestPublishAndPrune delivers ISOs in every way, and removes the one that neither present nor previous lock needs.
func TestPublishAndPrune(t *testing.T) {
	eachLong(t, oneWorker(), storiesOf("upload", "download-url"), func(t *testing.T, lab *Lab, delivery string) {
		lab.Replace("recast.yaml", "iso: {storage", "iso: {delivery: "+delivery+", storage")
		lab.World.AddRole("Publishes", "Sys.AccessNetwork", "Datastore.Allocate")
		for _, who := range lab.World.ACLs() {
			lab.World.Grant(world.ACL{Path: "/", Who: who.Who, Role: "Publishes", Propagate: true})
		}
		for range 3 { // the previous lock is for rollback and stays
			lab.Patch(sim.PatchedExtension)
			must(t, lab.Client().Publish(t.Context()))
		}
		require(t, lab.asked("POST", "/"+delivery) != 0, "nothing was published by %s", delivery)
		rep := valueOf(lab.Client().prune(t.Context(), pipeline.PruneOptions{}))(t)
		removed := len(some(rep.ISOs, func(v images.Verdict) (string, bool) { return "", v.Removed }))
		deletes := lab.asked("DELETE", "/content/")
		require(t, removed != 0 && removed == deletes, "%d removed by %d requests: %q", removed, deletes, rep.ISOs)
	})
}

func (l *Lab) asked(method, part string) int {
	return len(l.sent(0, func(c record.Call) bool {
		return c.Proto == "proxmox" && c.Method == method && strings.Contains(c.Path, part)
	}))
}

// TestPublishWithoutThePrivilege: Proxmox would receive the whole upload first.
func TestPublishWithoutThePrivilege(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.World.AddRole("Recast", slices.DeleteFunc(sim.Privileges(), func(p string) bool { return p == "Datastore.AllocateTemplate" })...)
		requireRefused(t, lab.Client().Publish(t.Context()), "lacks privileges: Datastore.AllocateTemplate on /storage/isos")
		requireSame(t, 0, lab.asked("POST", "/upload"), "uploads (-want +got)")
	})
}

// TestPublishThroughTrouble: an Image Factory takes five minutes for each image, behind a proxy with a timeout of one
// minute that is down at first, and a download breaks. Everything is built once, and the user sees what takes so long.
func TestPublishThroughTrouble(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		before := len(lab.Factory.Built())
		lab.Factory.Slow(5 * time.Minute)
		lab.Factory.Strike(1, "/schematics", factoryapi.Down(502, 0))
		lab.Factory.Strike(1, "/v2/", factoryapi.Down(503, 7*time.Second))
		lab.Factory.Strike(1, "/image/", factoryapi.CutByStore(5000))
		for _, images := range []string{"/v2/", "/image/"} {
			lab.Factory.Strike(100, images, lab.Factory.Impatient(time.Minute))
		}

		var notes []string
		c := lab.Client().hears(func(e step.Event) {
			if e.Status == step.Note {
				_, name, _ := strings.Cut(strings.TrimPrefix(e.Path, "build/"), "/")
				notes = append(notes, name+": "+e.Text)
			}
		})
		must(t, c.Publish(t.Context()))
		const patience = "the factory answered 504 Gateway Timeout; the factory is still building, asking again in 10s"
		for _, want := range []string{
			"resolve-installer: the factory answered 503 Service Unavailable, trying again in 7s (2 of 5)",
			"resolve-installer: " + patience, "resolve-installer: the factory is building the installer, 4m30s",
			"fetch-iso: " + patience, "fetch-iso: the factory is building the ISO, 1m0s",
			"fetch-iso: the download broke off after 0 MiB (unexpected EOF), beginning again in 1s (2 of 5)",
		} {
			require(t, slices.Contains(notes, want), "not told: %s\n%s", want, strings.Join(notes, "\n"))
		}
		built := lab.Factory.Built()
		once := slices.Compact(slices.Sorted(slices.Values(built)))
		require(t, len(built) != before && len(once) == len(built), "built: %q, %d of them before", built, before)
	})
}

// TestSignatureOfTheFactory: the configuration of signatures reaches the code that verifies them.
func TestSignatureOfTheFactory(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Replace("recast.yaml", "images:\n", "images:\n  signature: require\n")
		must(t, lab.Client().Publish(t.Context()))
		for name, e := range readLock(t, lab).Schematics {
			require(t, len(e.Signer) == 64 && e.Installer != "" && e.ISO.SHA256 != "",
				"%s: signer %q of %q, %+v", name, e.Signer, e.Installer, e.ISO)
		}
		another := valueOf(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
		der := valueOf(x509.MarshalPKIXPublicKey(&another.PublicKey))(t)
		lab.Write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
		lab.Replace("recast.yaml", "images:\n", "images:\n  signingKey: key.pem\n")
		requireRefused(t, lab.Client().Publish(t.Context()), " is signed, but not by the key ")
	})
}

func readLock(t testing.TB, lab *Lab) schematics.Lock {
	return valueOf(schematics.ReadLock(filepath.Join(lab.Dir, "recast.lock")))(t)
}

// TestPruneTheMirror mirrors the builds of three locks, and removes those of the first with their signatures once they
// are an hour old: neither the present nor the previous lock needs them. The rest is complete: with it a node is
// rolled, whose machine configuration names the copy in the mirror, and which pulls that.
func TestPruneTheMirror(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const repository = "127.0.0.1:5000/acme/talos"
		lab.Replace("recast.yaml", "images:\n", "images:\n  mirror: "+repository+"\n")
		for range 3 {
			lab.Patch(sim.PatchedExtension)
			must(t, lab.Client().Publish(t.Context()))
		}
		since := 0
		asked := func(method, of string) []string {
			is := func(c record.Call) bool { return c.Method == method && strings.HasPrefix(c.Path, "/v2/acme/talos/"+of) }
			return ofEach(lab.sent(since, is), func(c record.Call) string { return c.Path })
		}
		deletes := func() []string { return asked("DELETE", "manifests/") }
		prune := func() (pipeline.PruneReport, error) {
			return lab.Client().prune(t.Context(), pipeline.PruneOptions{Only: pipeline.PruneMirror, OlderThan: time.Hour})
		}
		rep, err := prune()
		require(t, err == nil && len(rep.Mirror) != 0 && len(rep.GoingMirror()) == 0,
			"at once: %v, %d of %d go", err, len(rep.GoingMirror()), len(rep.Mirror))
		for _, v := range rep.Mirror {
			require(t, slices.Contains(v.Keep, "it was built less than 1h ago") && time.Since(v.Built) <= time.Hour,
				"%s, built at %s, is kept by %q", v, v.Built, v.Keep)
		}
		time.Sleep(time.Hour)
		rep = valueOf(prune())(t)
		removed := 0
		for _, v := range rep.Mirror {
			require(t, v.Removed == slices.Contains(deletes(), "/v2/acme/talos/manifests/"+v.Digest) &&
				v.Removed == (len(v.Keep) == 0), "%s: removed is %t, kept by %q", v, v.Removed, v.Keep)
			if v.Removed {
				removed++
			}
		}
		// Of each: the index, its two images, the signature.
		got := len(deletes())
		require(t, removed != 0 && removed != len(rep.Mirror) && got == 4*removed,
			"%d of %d removed by %d requests: %q", removed, len(rep.Mirror), got, deletes())
		before := len(deletes())
		going := valueOf(prune())(t).GoingMirror()
		require(t, len(deletes()) == before && len(going) == 0, "again: %q, %d before; %d go", deletes(), before, len(going))
		since = len(lab.Recorder.Calls())
		lab.Client().rollTo(t, planning.Policy{})
		installer := readLock(t, lab).Schematics["storage"].Installer
		_, digest, _ := strings.Cut(installer, "@")
		require(t, installer == repository+"@"+digest, "the lock names %s", installer)
		// A roll itself reads no blob of the copy.
		require(t, len(asked("GET", "manifests/"+digest)) != 0 && len(asked("GET", "blobs/")) != 0, "pulled nothing there")
	})
}

// TestSignedInstallers: a factory signs boot loader and UKI of ordinary installers, and not those of its ISOs.
func TestSignedInstallers(t *testing.T) {
	inStaleLab(t, sim.Options{Workers: 1, SignsInstallers: true}, func(t *testing.T, lab *Lab) {
		lab.Client().rollTo(t, policyFor("wk1"))
	})
}
