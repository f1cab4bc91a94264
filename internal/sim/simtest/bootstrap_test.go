package simtest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/adminconfig"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline/configs"
	"github.com/recast-sh/recast/schematics"
)

// draft is a cluster that is not there yet.
type draft struct {
	controlPlanes, workers, hosts int

	later     []string          // nodes that are not in recast.yaml yet
	documents []string          // of the workers' configurations
	ours      *talosapi.Cluster // shared, so that two worlds can be compared; nil: made
}

// drafted is a draft that is written.
type drafted struct {
	nodes []string
	ours  *talosapi.Cluster
	lock  schematics.Lock
	lines map[string]string // of recast.yaml, by node
}

func (l *Lab) newCluster(controlPlanes, workers, hosts int) (nodes []string) {
	l.t.Helper()
	return l.draft(draft{controlPlanes: controlPlanes, workers: workers, hosts: hosts}).nodes
}

// draft writes the files of a cluster that is not there yet, as recast init --new does: its nodes
// are cp1, cp2 … and wk1, wk2 …, spread over the hosts.
func (l *Lab) draft(d draft) drafted {
	l.t.Helper()
	if d.ours == nil {
		d.ours = valueOf(talosapi.NewCluster(sim.ClusterName, "https://127.42.7.10:6443", sim.TalosVersion, sim.KubernetesVersion))(l.t)
	}
	l.canary.addBundle(d.ours.Secrets)
	l.allowShape()
	const class = "{memory: 4096, onboot: true, cloudinit: fast, nics: [{bridge: vmbr0}], disks: [{slot: scsi0, storage: fast, size: 10G, system: true}%s]}\n"
	var text strings.Builder
	fmt.Fprintf(&text, "vmClasses:\n  control-plane: "+class+"  worker: "+class+"nodes:\n", "", ", {slot: scsi1, storage: fast, size: 5G}")
	files, made := configFiles{}, drafted{ours: d.ours, lines: map[string]string{}}
	add := func(node, class string, number int) {
		line := fmt.Sprintf("  - {name: %s, schematic: default, class: %s, host: pve%d, vm: {ipconfig: ['ip=127.42.7.%d/24,gw=127.42.7.1']}}\n", node, class, 1+len(files)%d.hosts, number)
		if made.lines[node] = line; !slices.Contains(d.later, node) {
			made.nodes = append(made.nodes, node)
			text.WriteString(line)
		}
		m := talosapi.Machine{Hostname: node, ControlPlane: class == "control-plane", Installer: "ghcr.io/siderolabs/installer:" + sim.TalosVersion}
		if !m.ControlPlane {
			m.Documents = d.documents
		}
		files[node] = valueOf(d.ours.MachineConfig(m))(l.t)
	}
	for i := range d.controlPlanes {
		add(fmt.Sprintf("cp%d", i+1), "control-plane", 11+i)
	}
	for i := range d.workers {
		add(fmt.Sprintf("wk%d", i+1), "worker", 31+i)
	}
	l.Write("recast.yaml", []byte(l.Config(text.String())))
	for name, content := range l.Schematics() {
		l.Write(name, content)
	}
	made.lock = l.lockSchematics()
	l.Replace("recast.yaml", "roll:\n", fmt.Sprintf("roll:\n  maxUnavailable: {workers: 1, perHost: %d}\n", d.controlPlanes+d.workers))
	l.MachineConfig = files.read
	p := valueOf(l.Client().Project())(l.t)
	config, endpoints, err := configs.Begin(l.t.Context(), p, files.read, "cp1")
	must(l.t, err)
	access := valueOf(adminconfig.Of(sim.ClusterName, config, endpoints))(l.t)
	l.Write("talosconfig", access.Talosconfig)
	l.Write("kubeconfig", access.Kubeconfig)
	return made
}

// requireNodes fails the test unless nothing is stale, each node has one VM, and etcd's members are the control planes.
func (l *Lab) requireNodes(t *testing.T, nodes []string) {
	t.Helper()
	requireInSync(t, l)
	var planes []string
	for _, node := range nodes {
		requireSame(t, 1, l.made([]string{node}), "there are … VMs %s (-want +got)", node)
		if strings.HasPrefix(node, "cp") {
			planes = append(planes, node)
		}
	}
	requireSame(t, planes, l.memberNames(), "members of etcd (-want +got)")
}

// memberNames are the members of etcd, in order.
func (l *Lab) memberNames() (names []string) {
	for _, m := range l.EtcdMembers() {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

// requireCluster fails the test unless the nodes are there, Ready, and nothing of them is twice.
func requireCluster(t *testing.T, l *Lab, nodes ...string) {
	t.Helper()
	l.requireNodes(t, nodes)
	l.requireEtcd()
}

// TestBootstrap makes clusters from nothing. Eight nodes take no longer than one control plane, and then one worker.
func TestBootstrap(t *testing.T) {
	long(t)
	took := func(controlPlanes, workers int) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			lab := New(t, sim.Options{Empty: true, Hosts: 3})
			nodes := lab.newCluster(controlPlanes, workers, 3)
			began := time.Now()
			must(t, errOf(lab.Client().Bootstrap(t.Context(), "cp1")))
			took = time.Since(began)
			requireCluster(t, lab, nodes...)
			again := valueOf(lab.Client().Bootstrap(t.Context(), "cp1"))(t)
			require(t, again.Outcome == "nothing to do", "again: %s", again.Outcome)
		})
		return took
	}
	took(1, 0)
	chain, all := took(1, 1), took(3, 5)
	ratio := float64(all) / float64(chain)
	t.Logf("%s for one control plane and a worker, %s for 3 + 5 nodes: %.2f times", chain, all, ratio)
	require(t, ratio <= 1.1, "3 + 5 nodes take %.2f times as long as one control plane and then a worker", ratio)
}

type founding struct {
	*Lab
	nodes []string
}

// TestBootstrapKilled kills a bootstrap at points of every kind, and goes on with its journal or without:
// there is one cluster in the end.
func TestBootstrapKilled(t *testing.T) {
	long(t)
	killGrid[founding]{
		begin: func(t *testing.T) founding {
			lab := New(t, sim.Options{Empty: true, Hosts: 2})
			return founding{lab, lab.newCluster(2, 1, 2)}
		},
		do:     func(ctx context.Context, c *Client) error { return errOf(c.Bootstrap(ctx, "cp1")) },
		choose: chosenPoints,
		end:    func(t *testing.T, f founding) string { requireCluster(t, f.Lab, f.nodes...); return "" },
	}.killEverywhere(t)
}

// destroyVM destroys a VM as an administrator, or a dead host, does.
func (l *Lab) destroyVM(id int) {
	l.t.Helper()
	must(l.t, l.World.PowerOff(id))
	l.done(l.World.DestroyVM("root@pam", l.hostOf(id), world.DestroyRequest{ID: id}))
}

// squatter is a blank machine at an address.
func squatter(addr string) func(*Lab, drafted) func() {
	return func(l *Lab, d drafted) func() {
		l.founder(d.ours, d.lock, sim.TalosVersion).startAt(600, "squatter", netip.MustParseAddr(addr))
		time.Sleep(time.Minute)
		return func() { l.destroyVM(600) }
	}
}

// otherFile gives a node another file; nil: none.
func otherFile(node string, edit func(cluster.Secret) cluster.Secret) func(*Lab, drafted) func() {
	return func(l *Lab, _ drafted) func() {
		right := l.MachineConfig
		l.MachineConfig = func(ctx context.Context, of string) (cluster.Secret, bool, error) {
			text, there, err := right(ctx, of)
			if of == node {
				text = edit(text)
			}
			return text, there && text != nil, err
		}
		return func() { l.MachineConfig = right }
	}
}

// No cluster begins beside what is there, or with the wrong files. Once that is corrected, the same command makes it.
func TestBootstrapRefused(t *testing.T) {
	type story struct {
		first  string
		before func(*Lab, drafted) (after func())
		made   int // VMs of nodes that are made all the same
		etcd   int // members of etcd
		says   string
	}
	vm := func(id int, name, yaml string) func(*Lab, drafted) func() {
		return func(l *Lab, _ drafted) func() {
			l.Replace("recast.yaml", "{name: cp1,", "{name: cp1,"+yaml)
			l.DefineVM(id, map[string]string{"name": name})
			return func() { l.destroyVM(id) }
		}
	}
	eachLong(t, sim.Options{Empty: true}, map[string]story{
		"a VM has a node's name":             {"cp1", vm(500, "wk1", ""), 0, 0, `wk1: it is in recast.yaml, and there is something of it: its name has VM 500 "wk1"`},
		"a VM has a node's number":           {"cp1", vm(500, "else", " vmid: 500,"), 0, 0, `cp1: it is in recast.yaml, and there is something of it: its number has VM 500 "else"`},
		"a machine has the first's address":  {"cp1", squatter("127.42.7.11"), 0, 0, "a machine in maintenance mode answers at 127.42.7.11, which is to be the address of cp1"},
		"a machine has a worker's address":   {"cp1", squatter("127.42.7.31"), 1, 1, "a machine in maintenance mode answers at 127.42.7.31, which is to be the address of wk1"},
		"a machine of the cluster elsewhere": {"cp1", foundling, 1, 0, "Talos' discovery knows another machine of this cluster, cp3: etcd was not begun on cp1"},
		"with a worker":                      {"wk1", nil, 0, 0, "a cluster begins with a control plane, and its machine configuration is that of a worker"},
		"with a file of another cluster":     {"cp1", otherFile("wk1", withOtherToken), 0, 0, "the bootstrap token of Kubernetes: is it the file of another cluster?"},
		"without a file of the first":        {"cp1", otherFile("cp1", func(cluster.Secret) cluster.Secret { return nil }), 0, 0, "cp1: its machine configuration is not in talos.machineConfigs"},
	}, func(t *testing.T, lab *Lab, s story) {
		d := lab.draft(draft{controlPlanes: 1, workers: 1, hosts: 1})
		after := func() {}
		if s.before != nil {
			after = s.before(lab, d)
		}
		there := lab.made(d.nodes)
		requireRefused(t, errOf(lab.as(firstRun).Bootstrap(t.Context(), s.first)), s.says)
		made := lab.made(d.nodes) - there
		require(t, made == s.made && len(lab.EtcdMembers()) == s.etcd,
			"%d VMs were made, and etcd has %+v", made, lab.EtcdMembers())
		after()
		must(t, errOf(lab.as(secondRun).Bootstrap(t.Context(), "cp1")))
		requireCluster(t, lab, d.nodes...)
	})
}

// made counts the VMs with names of nodes.
func (l *Lab) made(nodes []string) (n int) {
	for _, vm := range l.World.VMs() {
		if slices.Contains(nodes, vm.Config["name"]) {
			n++
		}
	}
	return n
}

// foundling is a control plane of the cluster that is not in recast.yaml, made by hand. Discovery forgets
// it half an hour after it is gone.
func foundling(l *Lab, d drafted) func() {
	f := l.founder(d.ours, d.lock, sim.TalosVersion)
	uuid := f.start(600, "cp3")
	time.Sleep(time.Minute)
	f.configure(founded("cp3"), uuid, "cp3")
	time.Sleep(3 * time.Minute)
	return func() {
		l.destroyVM(600)
		time.Sleep(31 * time.Minute)
	}
}

// TestBootstrapAfterACluster: a cluster whose machines are gone is not made a second time while disks of it are kept.
func TestBootstrapAfterACluster(t *testing.T) {
	inLongLab(t, sim.Options{Empty: true}, func(t *testing.T, lab *Lab) {
		lab.newCluster(1, 1, 1)
		must(t, errOf(lab.as(firstRun).Bootstrap(t.Context(), "cp1")))
		must(t, errOf(lab.as(secondRun).Remove(t.Context(), "wk1")))
		lab.unlist("wk1")
		lab.destroyVM(lab.namedVM("cp1").ID)
		err := errOf(lab.as(thirdRun).Bootstrap(t.Context(), "cp1"))
		requireRefused(t, err, "has disks of node wk1 of this cluster (recast status lists them): if the cluster is gone for good, recast remove wk1 --free wk1 frees them")
	})
}

// TestBootstrapOfAClusterThatIsThere makes its missing nodes, and nothing else.
func TestBootstrapOfAClusterThatIsThere(t *testing.T) {
	inLongLab(t, sim.Options{Empty: true}, func(t *testing.T, lab *Lab) {
		lab.newCluster(1, 2, 1)
		all := lab.Read("recast.yaml")
		lab.unlist("wk2")
		must(t, errOf(lab.as(firstRun).Bootstrap(t.Context(), "cp1")))
		lab.Patch(everywhere)
		requireDrift(t, lab, "cp1", "wk1")
		before := lab.World.VMs()
		lab.Write("recast.yaml", all)
		rep := valueOf(lab.as(secondRun).Bootstrap(t.Context(), "cp1"))(t)
		require(t, rep.Outcome == "done", "outcome %q", rep.Outcome)
		requireInSync(t, lab, "cp1", "wk1")
		for _, vm := range before {
			requireSame(t, vm, valueOf(lab.World.LookupVM(vm.Host, vm.ID))(t), "VM %d (-before +after)", vm.ID)
		}
	})
}

// TestBootstrapLostAnswer: the answer to Talos' Bootstrap is lost. Its command never asks a second time,
// and the next one finds out what came of it.
func TestBootstrapLostAnswer(t *testing.T) {
	const method = "/machine.MachineService/Bootstrap"
	asked := func(l *Lab) int { return len(l.sent(0, func(c record.Call) bool { return c.Method == method })) }
	stories := map[string]bool{"it was carried out": true, "it was not": false}
	eachLong(t, sim.Options{Empty: true}, stories, func(t *testing.T, lab *Lab, done bool) {
		nodes := lab.newCluster(1, 1, 1)
		c := lab.as(firstRun)
		if done {
			lab.Recorder.Hooks(nil, func(call record.Call) {
				if call.Method == method {
					c.Cut()
					time.AfterFunc(10*time.Second, c.Mend)
				}
			})
		} else {
			lab.Silence(func(r talosapi.Request) bool { return r.Method == method })
		}
		_, err := c.Bootstrap(t.Context(), "cp1")
		lab.Recorder.Hooks(nil, nil)
		lab.Silence(nil)
		requireSame(t, 1, asked(lab), "asked … times (-want +got)")
		if done {
			must(t, err)
		} else {
			requireFault(t, err, fault.Failed, "run the same command again")
		}
		must(t, errOf(lab.as(secondRun).Bootstrap(t.Context(), "cp1")))
		n := asked(lab)
		require(t, n > 1 != done, "asked %d times in the end", n)
		requireCluster(t, lab, nodes...)
	})
}

// Of two people, one makes the cluster, whatever the other's recast.yaml says of recast's own VMs.
func TestTwoBootstrapsAtOnce(t *testing.T) {
	type story struct {
		file bool // the second one has its own
		late time.Duration
	}
	eachLong(t, sim.Options{Empty: true, Hosts: 2}, map[string]story{
		"one file":            {},
		"two files":           {file: true},
		"two files, 20s late": {file: true, late: 20 * time.Second},
	}, func(t *testing.T, lab *Lab, s story) {
		nodes := lab.newCluster(1, 1, 2)
		clients := []*Client{lab.Client(), lab.second()}
		if s.file {
			clients[1] = lab.withRange("9100-9199")
		}
		ended := make(chan error, len(clients))
		for i, c := range clients {
			time.Sleep(time.Duration(i) * s.late)
			go func() { ended <- errOf(c.Bootstrap(t.Context(), "cp1")) }()
		}
		lost := 0
		for range clients {
			if err := <-ended; err != nil {
				lost++
				requireFault(t, err, fault.Claimed, "held by run")
			}
		}
		require(t, lost == 1, "%d bootstraps lost", lost)
		requireCluster(t, lab, nodes...)
	})
}
