package simtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/machineconfig"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/pipeline/setup"
	"github.com/recast-sh/recast/schematics"
)

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
		"one and two": {1, 2, "", func(*setup.NewOptions) {}, []string{
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
		if s.talos != "" {
			o.Talos = s.talos
		}
		s.change(&n)
		res := valueOf(me.InitNew(t.Context(), t.TempDir(), o, n))(t)
		var nodes []string
		for _, n := range res.Nodes {
			nodes = append(nodes, fmt.Sprintf("%s %s %s on %s: %s", n.Name, n.Role(), n.Address, n.Host, n.Disks()))
		}
		requireSame(t, s.nodes, nodes, "nodes (-want +got)")
		diff := cmp.Diff(s.files, res.Files)
		require(t, diff == "" && res.Endpoint == s.endpoint && strings.Contains(strings.Join(res.Warnings, "\n"), s.warns),
			"files (-want +got):\n%s\nendpoint %s, warnings %q", diff, res.Endpoint, res.Warnings)
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
		lacks := shape.Lacks(w)
		require(t, len(lacks) == 0, "%s lacks %q", w.Name, lacks)
		text, _, err := source.Config(t.Context(), w.Name)
		must(t, err)
		cfg := valueOf(configloader.NewFromBytes(text))(t)
		if _, err := cfg.ValidateAsClient(machine{}); err != nil {
			t.Errorf("the configuration of %s: %v", w.Name, err)
		}
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
		_, err := me.InitNew(t.Context(), t.TempDir(), o, n)
		must(t, err)
		before := tree(t, me.Dir)
		o.Force = true
		_, err = lab.Client().InitNew(t.Context(), me.Dir, o, n)
		requireFault(t, err, fault.Config, "secrets.yaml is there already, and is never replaced")
		requireSame(t, before, tree(t, me.Dir), "refused, it has changed (-before +after)")
		must(t, os.Remove(filepath.Join(me.Dir, "secrets.yaml")))
		_, err = lab.Client().InitNew(t.Context(), me.Dir, o, n)
		must(t, err)

		lab.DefineVM(9050, map[string]string{"name": "parking", "description": `recast-record: {"version":1,"cluster":"home","node":"home-wk9","uuid":"u"}`})
		_, err = lab.Client().InitNew(t.Context(), t.TempDir(), o, n)
		requireRefused(t, err, "VM 9050 \"parking\" on pve1 is recast's own, for a cluster of the name home")
	})
}

// TestInitNewHosts: no VM is put on a host that is offline, and VMs there are seen by their names.
func TestInitNewHosts(t *testing.T) {
	inLab(t, sim.Options{Workers: 1, Hosts: 3}, func(t *testing.T, lab *Lab) {
		lab.World.CrashHost("pve2")
		o, n := ofNew(1, 2)
		res := valueOf(lab.Client().InitNew(t.Context(), t.TempDir(), o, n))(t)
		var on []string
		for _, n := range res.Nodes {
			on = append(on, n.Host)
		}
		diff := cmp.Diff([]string{"pve1", "pve3", "pve1"}, on)
		require(t, diff == "" && strings.Contains(strings.Join(res.Warnings, "\n"), "no VM is to be on pve2: offline"),
			"hosts (-want +got):\n%s\nwarnings %q", diff, res.Warnings)
	})
}
