package simtest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
)

// addNode adds a node like another one to recast.yaml and to the files, with a whole class.
func (l *Lab) addNode(node, like string, more string) {
	l.t.Helper()
	config := string(l.Read("recast.yaml"))
	addr := netip.AddrFrom4([4]byte{127, 42, 7, byte(251 + strings.Count(config, ", class: "))}) // above the DHCP pool
	class := fmt.Sprintf(`{%smemory: 4096, onboot: true, tags: [talos], cloudinit: fast, nics: [{bridge: vmbr0}], disks: [{slot: scsi0, storage: fast, size: 10G, system: true}, {slot: scsi1, storage: fast, size: 5G, serial: data-%s}]}`, more, node)
	if !strings.Contains(config, "vmClasses:\n") {
		l.Replace("recast.yaml", "nodes:\n", "vmClasses:\nnodes:\n")
	}
	l.Replace("recast.yaml", "vmClasses:\n", fmt.Sprintf("vmClasses:\n  new-%s: %s\n", node, class))
	l.Replace("recast.yaml", "nodes:\n", fmt.Sprintf("nodes:\n  - {name: %s, schematic: %s, class: new-%s, host: pve1, vm: {ipconfig: ['ip=%s/24,gw=%s']}}\n", node, l.node(like).Schematic, node, addr, "127.42.7.1"))
	files := configFiles{node: cluster.Secret(strings.NewReplacer("data-"+like, "data-"+node, "hostname: "+like, "hostname: "+node, "minSize: 10GB", "minSize: 1GB").Replace(string(l.configOf(like))))}
	l.MachineConfig = files.read
}

// TestCreate makes a node that is nowhere yet.
func TestCreate(t *testing.T) {
	eachLong(t, sim.Options{ControlPlanes: 1, Workers: 1}, map[string]struct{ node, like, class string }{
		"a worker":               {"wk2", "wk1", ""},
		"a control plane":        {"cp2", "cp1", ""},
		"in a pool, and HA":      {"wk2", "wk1", "pool: talos, ha: {state: started}, "},
		"with UEFI, two sockets": {"wk2", "wk1", "bios: ovmf, machine: q35, agent: true, sockets: 2, cores: 1, description: ours, startup: 'order=3', "},
	}, func(t *testing.T, lab *Lab, s struct{ node, like, class string }) {
		lab.allowShape()
		lab.addNode(s.node, s.like, s.class)
		user := lab.Client()
		requireDrift(t, lab, s.node)
		p := lab.planOf(user, s.node, planning.Policy{})
		mustBe(t, p.Strategy == cluster.Create && len(p.Refused) == 0 && p.VMID != 0,
			"planned as %s, %s: %v", p.Strategy, p.Why, p.Refused)
		user.rollTo(t, planning.Policy{})
		must(t, errOf(lab.Kube.Node(t.Context(), s.node)))
	})
}

// TestControlPlanesComeAndGo makes three control planes of one, and one of three, each step by a command of its own.
// What would end the cluster is refused.
func TestControlPlanesComeAndGo(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		requireFault(t, errOf(lab.Client().Remove(t.Context(), "wk9")), fault.Config, `no node "wk9"`)
		requireRefused(t, errOf(lab.Client().Remove(t.Context(), "cp1")), "it is the only control plane")
		requireInSync(t, lab)
		for _, node := range []string{"cp2", "cp3"} {
			lab.addNode(node, "cp1", "")
			lab.Client().rollTo(t, planning.Policy{})
		}
		lab.requireOneEtcd("cp1", "cp2", "cp3")
		requireRefused(t, errOf(lab.Client().Remove(t.Context(), "cp1")), "the talosconfig has no other endpoint")
		for _, node := range []string{"cp3", "cp2"} {
			must(t, errOf(lab.Client().Remove(t.Context(), node)))
			lab.unlist(node)
			requireDrift(t, lab)
		}
		lab.requireOneEtcd("cp1")
	})
}

// TestCreateRefused: what would fail once its VM is there is refused by the plan, and a file of another cluster is not
// applied to a new node.
func TestCreateRefused(t *testing.T) {
	type story struct {
		spoil   edit
		refused string
	}
	eachInLab(t, oneWorker(), map[string]story{
		"more memory than there is": {configuration("memory: 4096", "memory: 4096000"), "its VM takes 4000 GiB of memory, and pve1 has "},
		"the address of another":    {configuration("ip=127.42.7.251/24", "ip=127.42.7.11/24"), "its address is to be 127.42.7.11, which is that of node cp1"},
		"an unknown host":           {configuration("host: pve1", "host: pve9"), "is nodes[].host, pve9, a Proxmox node?"},
		"an unknown storage":        {configuration("{slot: scsi0, storage: fast", "{slot: scsi0, storage: fats"), "Proxmox has no storage fats"},
		"a file of another cluster": {
			func(l *Lab) { otherFile("wk2", withOtherToken)(l, drafted{}) },
			"differs from wk1 in the machine's token, the bootstrap token of Kubernetes: is it the file of another cluster?",
		},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.addNode("wk2", "wk1", "")
		s.spoil(lab)
		requireSays(t, strings.Join(lab.planOf(lab.Client(), "wk2", planning.Policy{}).Refused, "\n"), s.refused)
		requireFault(t, lab.Client().roll(planning.Policy{})(t.Context()), fault.Refused, s.refused)
	})
}

// TestCreateKilled kills the making of a node at points of every kind, and goes on with its journal or without.
func TestCreateKilled(t *testing.T) {
	long(t)
	for _, s := range []struct{ node, like string }{{"wk2", "wk1"}, {"cp2", "cp1"}} {
		t.Run(s.node, killGrid[*Lab]{
			begin: func(t *testing.T) *Lab {
				lab := New(t, oneWorker())
				lab.addNode(s.node, s.like, "")
				return lab
			},
			do: rolls(planning.Policy{}), choose: chosenPoints,
			goOn: func(t *testing.T, lab *Lab, at point) bool {
				requireFault(t, errOf(lab.Client().Recover(t.Context(), s.node)), fault.Refused)
				lab.finish(t, rolls(planning.Policy{}))
				return false
			},
			end: func(t *testing.T, lab *Lab) string {
				requireInSync(t, lab)
				requireSame(t, 1, lab.made([]string{s.node}), "there are … VMs %s (-want +got)", s.node)
				return ""
			},
		}.killEverywhere)
	}
}

// Remove is recast remove --yes.
func (c *Client) Remove(ctx context.Context, node string) (pipeline.Report, error) {
	return connected(ctx, c, func(s *session) (pipeline.Report, error) {
		return pipeline.Remove(ctx, s.project, s.machines, &c.Runner, c.rollOptions(planning.Policy{}), node)
	})
}

// unlist takes a node out of recast.yaml.
func (l *Lab) unlist(node string) {
	l.t.Helper()
	var rest []string
	for line := range strings.Lines(string(l.Read("recast.yaml"))) {
		if !strings.Contains(line, "{name: "+node+",") {
			rest = append(rest, line)
		}
	}
	l.Write("recast.yaml", []byte(strings.Join(rest, "")))
}

// requireRemoved fails unless nothing of a node is left but its disks, which no prune frees.
func (l *Lab) requireRemoved(t *testing.T, node string, disks int) {
	t.Helper()
	require(t, errOf(l.Kube.Node(t.Context(), node)) != nil, "Kubernetes has node %s still", node)
	require(t, l.made([]string{node}) == 0, "VM %s is there still", node)
	require(t, !slices.Contains(l.memberNames(), node), "etcd has member %s still", node)
	kept := func() (n int) {
		res := l.status()
		for _, k := range res.Kept {
			if k.Node == node {
				n++
			}
		}
		return n
	}
	requireSame(t, disks, kept(), "status lists … disks of it (-want +got)")
	zero := 0
	must(t, errOf(l.Client().prune(t.Context(), pipeline.PruneOptions{Only: pipeline.PruneDisks, KeepDisks: &zero})))
	requireSame(t, disks, kept(), "after a prune, status lists … disks of it (-want +got)")
	l.RequireIntact()
	rep := valueOf(l.Client().prune(t.Context(), pipeline.PruneOptions{Removed: node}))(t)
	requireSame(t, 0, kept(), "once they are freed, status lists … disks of it: %+v (-want +got)", rep.Disks)
}

// TestRemove takes nodes away. Their disks stay until they are freed by name.
func TestRemove(t *testing.T) {
	eachLongStory(t, map[string][]string{
		"a worker":                    {"wk1"},
		"control planes, down to one": {"cp3", "cp1"},
	}, func(t *testing.T, nodes []string) {
		lab := New(t, sim.Options{ControlPlanes: 3, Workers: 2}) // the disks of removed nodes are freed in the end
		lab.allowShape()
		lab.World.AddHA(world.HAResource{SID: fmt.Sprintf("vm:%d", lab.node(nodes[0]).VMID), State: "started"})
		for _, node := range nodes {
			must(t, errOf(lab.Client().Remove(t.Context(), node)))
			lab.unlist(node)
			requireDrift(t, lab)
			lab.requireRemoved(t, node, map[bool]int{true: 3, false: 2}[strings.HasPrefix(node, "wk")])
		}
		requireNone(t, lab.World.HA(), "Proxmox HA has … still")
		lab.requireEtcd()
	})
}

// TestRemoveKilled kills a removal at points of every kind; the same command, or a roll, goes on, with
// the journal or without.
func TestRemoveKilled(t *testing.T) {
	long(t)
	for node, disks := range map[string]int{"wk1": 3, "cp2": 2} {
		t.Run(node, killGrid[*Lab]{
			begin: func(t *testing.T) *Lab { return New(t, sim.Options{ControlPlanes: 3, Workers: 2}) },
			do:    func(ctx context.Context, c *Client) error { return errOf(c.Remove(ctx, node)) }, choose: chosenPoints,
			goOn: func(t *testing.T, lab *Lab, at point) bool {
				if at.at%3 == 0 { // cancelled, where there is something to cancel
					if _, err := lab.Client().Recover(t.Context(), node); err == nil {
						t.Attr("put-back", "1")
						requireInSync(t, lab)
						return true
					}
				}
				_, err := lab.Client().Remove(t.Context(), node)
				if err != nil && !strings.Contains(err.Error(), "Kubernetes knows no node of that name") {
					t.Fatal(err)
				}
				return false
			},
			end: func(t *testing.T, lab *Lab) string {
				lab.unlist(node)
				requireDrift(t, lab)
				lab.requireRemoved(t, node, disks)
				lab.requireEtcd()
				return ""
			},
		}.killEverywhere)
	}
}

// shape gives a node a class with these settings of its VM.
func (l *Lab) shape(node, settings string) {
	l.t.Helper()
	l.Replace("recast.yaml", "nodes:\n", "vmClasses:\n  shaped: {"+settings+"}\nnodes:\n")
	l.Replace("recast.yaml", "{name: "+node+",", "{name: "+node+", class: shaped,")
}

// shapeAll gives all nodes a class, and workers further settings.
func (l *Lab) shapeAll(all, workers string) {
	l.t.Helper()
	l.Replace("recast.yaml", "nodes:\n", "vmClasses:\n  shaped: {"+all+"}\nnodes:\n")
	for _, n := range l.Nodes {
		more := ", class: shaped,"
		if !n.ControlPlane {
			more += " vm: {" + workers + "},"
		}
		l.Replace("recast.yaml", "{name: "+n.Name+",", "{name: "+n.Name+more)
	}
}

func (l *Lab) vmOf(node string) world.VM {
	l.t.Helper()
	id := l.node(node).VMID
	return valueOf(l.World.LookupVM(l.hostOf(id), id))(l.t)
}

func withConfig(line string) edit {
	return func(l *Lab) {
		files := l.keptConfigs()
		files.set(l.t, "wk1", line)
		l.MachineConfig = files.read
	}
}

// anImage has every node stale for its image, too.
func anImage(l *Lab) { l.Patch(sim.CommonExtension) }

// imageBy is anImage that a node gets with that strategy.
func imageBy(s cluster.Strategy) edit { return all(anImage, strategy(s)) }

// TestReshape gives a node's VM another shape, in one outage with whatever else it gets, or in none.
func TestReshape(t *testing.T) {
	type story struct {
		node, settings string
		with           edit // what else is to be rolled
		strategy       cluster.Strategy
		starts         int // how often the VM is started
		has            map[string]string
	}
	const bigger = "memory: 6144, onboot: true"
	const cached = "{slot: scsi1, cache: writeback, size: 25G}, {slot: sata1, storage: fast, size: 2G}"
	none, memory := all(), map[string]string{"memory": "6144", "onboot": "1"}
	eachLong(t, sim.Options{ControlPlanes: 1, Workers: 2}, map[string]story{
		"tags and order":  {"wk1", "tags: [talos, prod], startup: 'order=3', description: a worker", none, cluster.Reshape, 0, map[string]string{"tags": "prod;talos", "startup": "order=3", "description": "a worker"}},
		"a disk grown":    {"wk1", "disks: [{slot: scsi1, size: 30G, backup: true}]", none, cluster.Reshape, 0, map[string]string{"scsi1": "size=30G"}},
		"a disk added":    {"wk1", "disks: [{slot: scsi2, storage: fast, size: 5G, serial: more}]", none, cluster.Reshape, 0, map[string]string{"scsi2": "serial=more"}},
		"a pool and HA":   {"wk1", "pool: talos, ha: {state: started, max_restart: 2}", none, cluster.Reshape, 0, nil},
		"memory":          {"wk1", "memory: 6144, cores: 4, onboot: true", none, cluster.Reshape, 1, memory},
		"a control plane": {"cp1", bigger, none, cluster.Reshape, 1, memory},

		"options of a disk, and another": {"wk1", "disks: [" + cached + "]", none, cluster.Reshape, 1, map[string]string{"scsi1": "cache=writeback", "sata1": "size=2G"}},
		"with another image, recreated":  {"wk1", bigger + ", disks: [" + cached + "]", anImage, cluster.Recreate, 1, memory},
		"with another image, reimaged":   {"wk1", bigger + ", disks: [{slot: scsi1, cache: writeback}]", imageBy(cluster.Reimage), cluster.Reimage, 1, memory},
		"with another image, in place":   {"wk1", bigger, imageBy(cluster.InPlace), cluster.InPlace, 1, memory},
		"with a configuration":           {"wk1", bigger, withConfig(noReboot), cluster.ApplyConfig, 1, memory},
		"with one that needs a reboot":   {"wk1", bigger, withConfig(needsReboot), cluster.ApplyConfig, 1, memory},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.allowShape()
		lab.shape(s.node, s.settings)
		s.with(lab)
		p := lab.planOf(lab.Client(), s.node, planning.Policy{})
		mustBe(t, p.Strategy == s.strategy && len(p.VM) != 0 && len(p.Refused) == 0,
			"planned as %s, %s: %v %v", p.Strategy, p.Why, p.VM, p.Refused)
		from := len(lab.Recorder.Calls())
		lab.Client().mustRoll(policyFor(s.node))
		starts := lab.sent(from, toVM("POST", fmt.Sprintf("/qemu/%d/status/start", lab.node(s.node).VMID)))
		require(t, len(starts) == s.starts, "its VM was started %d times, want %d", len(starts), s.starts)
		vm := lab.vmOf(s.node)
		for key, want := range s.has {
			require(t, strings.Contains(vm.Config[key], want), "%s is %q, want %q", key, vm.Config[key], want)
		}
		lab.requireServing(s.node)
		if s.strategy == cluster.Reshape || s.strategy == cluster.ApplyConfig {
			requireInSync(t, lab)
		} else { // the others lack the image
			requireInSync(t, lab, lab.others(s.node)...)
		}
	})
}

// TestReshapeInVain: a VM that does not start with its new settings gets the old ones back, by recover or by another
// recast.yaml, and its old host, if it was migrated while it was off.
func TestReshapeInVain(t *testing.T) {
	type story struct {
		o         sim.Options
		host      string // on which it does not start
		corrected bool   // in recast.yaml; else recovered
	}
	eachLongIn(t, func(s story) sim.Options { return s.o }, map[string]story{
		"recovered":           {oneWorker(), "pve1", false},
		"corrected":           {oneWorker(), "pve1", true},
		"migrated, recovered": {twoHosts(), "pve3", false},
	}, func(t *testing.T, lab *Lab, s story) {
		if s.o.Hosts > 0 {
			lab.manageByHA(startedByUs())
			lab.onto("wk1", s.host, "cores: 32")
		} else {
			lab.shape("wk1", "cores: 32, machine: q35, nics: [{}, {bridge: vmbr0}], disks: [{slot: scsi1, cache: writeback}]")
		}
		before := lab.vmOf("wk1")
		err := lab.as(firstRun).roll(planning.Policy{})(t.Context())
		requireFault(t, err, fault.Failed, "MAX 16 vcpus allowed per VM on this node", "recast undo wk1 gives VM 9031 its old settings back")
		lab.requireOn(s.host)
		if s.corrected {
			lab.Replace("recast.yaml", "cores: 32", "cores: 4")
			lab.as(secondRun).rollTo(t, planning.Policy{})
		} else {
			must(t, errOf(lab.as(secondRun).Recover(t.Context(), "wk1")))
			requireDrift(t, lab, "wk1")
			after := lab.vmOf("wk1")
			delete(after.Config, "meta")
			delete(before.Config, "meta")
			requireSame(t, before.Config, after.Config, "after recover (-before +after)")
			lab.requireOn(before.Host)
		}
		lab.requireServing("wk1")
		lab.RequireIntact()
	})
}

// TestReshapeWithLostAnswers gives VMs another shape while Proxmox's answer to every k-th change is lost.
func TestReshapeWithLostAnswers(t *testing.T) {
	eachLong(t, twoWorkers, storiesOf[int64](1, 2, 3, 5), func(t *testing.T, lab *Lab, k int64) {
		lab.shapeAll("memory: 6144, tags: [talos]", "disks: [{slot: scsi1, size: 25G, cache: writeback}, {slot: scsi2, storage: fast, size: 1G}]")
		lab.rollUnanswered(k, 3)
		requireInSync(t, lab)
	})
}
