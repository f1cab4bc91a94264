package simtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

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

// reshaping is a shape that a node gets, and how.
type reshaping struct {
	node, settings string
	with           func(*Lab) // what else is to be rolled
	strategy       cluster.Strategy
	starts         int // how often the VM is started
	has            map[string]string
}

func reshapings() map[string]reshaping {
	memory := map[string]string{"memory": "6144", "onboot": "1"}
	return map[string]reshaping{
		"tags and order":  {"wk1", "tags: [talos, prod], startup: 'order=3', description: a worker", nil, cluster.Reshape, 0, map[string]string{"tags": "prod;talos", "startup": "order=3", "description": "a worker"}},
		"a disk grown":    {"wk1", "disks: [{slot: scsi1, size: 30G, backup: true}]", nil, cluster.Reshape, 0, map[string]string{"scsi1": "size=30G"}},
		"a disk added":    {"wk1", "disks: [{slot: scsi2, storage: fast, size: 5G, serial: more}]", nil, cluster.Reshape, 0, map[string]string{"scsi2": "serial=more"}},
		"a pool and HA":   {"wk1", "pool: talos, ha: {state: started, max_restart: 2}", nil, cluster.Reshape, 0, nil},
		"memory":          {"wk1", "memory: 6144, cores: 4, onboot: true", nil, cluster.Reshape, 1, memory},
		"a control plane": {"cp1", "memory: 6144, onboot: true", nil, cluster.Reshape, 1, memory},
		"options of a disk, and another": {
			"wk1", "disks: [{slot: scsi1, cache: writeback, size: 25G}, {slot: sata1, storage: fast, size: 2G}]", nil, cluster.Reshape, 1, map[string]string{"scsi1": "cache=writeback", "sata1": "size=2G"},
		},
		"with another image, recreated": {
			"wk1", "memory: 6144, onboot: true, disks: [{slot: scsi1, cache: writeback, size: 25G}, {slot: sata1, storage: fast, size: 2G}]",
			func(l *Lab) { l.Patch(sim.CommonExtension) }, cluster.Recreate, 1, memory,
		},
		"with another image, reimaged": {
			"wk1", "memory: 6144, onboot: true, disks: [{slot: scsi1, cache: writeback}]",
			func(l *Lab) {
				l.Patch(sim.CommonExtension)
				l.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: reimage\n")
			}, cluster.Reimage, 1, memory,
		},
		"with another image, in place": {
			"wk1", "memory: 6144, onboot: true", func(l *Lab) { l.Patch(sim.CommonExtension); l.inPlace() }, cluster.InPlace, 1, memory,
		},
		"with a configuration":         {"wk1", "memory: 6144, onboot: true", withConfig(noReboot), cluster.ApplyConfig, 1, memory},
		"with one that needs a reboot": {"wk1", "memory: 6144, onboot: true", withConfig(needsReboot), cluster.ApplyConfig, 1, memory},
	}
}

func withConfig(line string) func(*Lab) {
	return func(l *Lab) {
		files := l.keptConfigs()
		files.set(l.t, "wk1", line)
		l.MachineConfig = files.read
	}
}

// TestReshape gives a node's VM another shape, in one outage with whatever else it gets, or in none.
func TestReshape(t *testing.T) {
	eachLong(t, sim.Options{ControlPlanes: 1, Workers: 2}, reshapings(), func(t *testing.T, lab *Lab, s reshaping) {
		lab.allowShape()
		lab.shape(s.node, s.settings)
		if s.with != nil {
			s.with(lab)
		}
		user := lab.Client()
		p := lab.planOf(user, s.node, planning.Policy{})
		mustBe(t, p.Strategy == s.strategy && len(p.VM) != 0 && len(p.Refused) == 0,
			"planned as %s, %s: %v %v", p.Strategy, p.Why, p.VM, p.Refused)
		from := len(lab.Recorder.Calls())
		must(t, user.roll(planning.Policy{Only: []string{s.node}})(t.Context()))
		starts := lab.sent(from, toVM("POST", fmt.Sprintf("/qemu/%d/status/start", lab.node(s.node).VMID)))
		require(t, len(starts) == s.starts, "its VM was started %d times, want %d", len(starts), s.starts)
		vm := lab.vmOf(s.node)
		for key, want := range s.has {
			require(t, strings.Contains(vm.Config[key], want), "%s is %q, want %q", key, vm.Config[key], want)
		}
		lab.requireServing(s.node)
		stale := lab.others(s.node)
		if s.with == nil || s.strategy == cluster.ApplyConfig {
			stale = nil
		}
		requireInSync(t, lab, stale...)
	})
}

// TestReshapeInVain: a VM that does not start with its new settings gets the old ones back, by recover
// or by another recast.yaml.
func TestReshapeInVain(t *testing.T) {
	eachLong(t, oneWorker(), map[string]func(*testing.T, *Lab){
		"recovered": func(t *testing.T, lab *Lab) {
			must(t, errOf(lab.as(secondRun).Recover(t.Context(), "wk1")))
			requireDrift(t, lab, "wk1")
		},
		"corrected": func(t *testing.T, lab *Lab) {
			lab.Replace("recast.yaml", "cores: 32", "cores: 4")
			must(t, lab.as(secondRun).roll(planning.Policy{})(t.Context()))
			requireDrift(t, lab)
		},
	}, func(t *testing.T, lab *Lab, then func(*testing.T, *Lab)) {
		before := lab.vmOf("wk1").Config
		lab.shape("wk1", "cores: 32, machine: q35, nics: [{}, {bridge: vmbr0}], disks: [{slot: scsi1, cache: writeback}]")
		err := lab.as(firstRun).roll(planning.Policy{})(t.Context())
		requireFault(t, err, fault.Failed, "MAX 16 vcpus allowed per VM on this node", "recast undo wk1 gives VM 9031 its old settings back")
		then(t, lab)
		lab.requireServing("wk1")
		lab.RequireIntact()
		if after := lab.vmOf("wk1").Config; strings.Contains(string(lab.Read("recast.yaml")), "cores: 32") {
			delete(after, "meta")
			delete(before, "meta")
			requireSame(t, before, after, "after recover (-before +after)")
		}
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
