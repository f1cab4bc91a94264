package schedules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/sim/simtest"
	"github.com/recast-sh/recast/internal/sim/world"
)

// surgeKinds are what happens to the VMs of surge nodes.
func surgeKinds() []kind {
	return []kind{
		{name: "surge-off", lasts: true, act: func(p *play, _ *struck) (func(), error) {
			vm, err := p.awaitSurge()
			if err != nil {
				return nil, err
			}
			return func() { p.startFound(vm.ID) }, p.lab.World.PowerOff(vm.ID)
		}},
		{name: "surge-deleted", foreign: true, act: func(p *play, _ *struck) (func(), error) {
			vm, err := p.awaitSurge()
			if err != nil {
				return nil, err
			}
			if err := p.task(p.lab.World.Stop("", vm.Host, vm.ID)); err != nil {
				return nil, err
			}
			if err := p.lab.World.SetConfig("", vm.Host, world.ChangeRequest{ID: vm.ID, Set: map[string]string{"protection": "0"}}); err != nil {
				return nil, err
			}
			return nil, p.task(p.lab.World.DestroyVM("", vm.Host, world.DestroyRequest{ID: vm.ID}))
		}},
	}
}

// surgeVMs are the VMs of surge nodes.
func surgeVMs(vms []world.VM) []world.VM {
	return slices.DeleteFunc(slices.Clone(vms), func(vm world.VM) bool { return !strings.HasPrefix(vm.Config["name"], simtest.SurgeNode) })
}

// awaitSurge waits until a surge node's VM runs.
func (p *play) awaitSurge() (vm world.VM, err error) {
	runs := func() bool {
		for _, vm = range surgeVMs(p.lab.World.VMs()) {
			if vm.Running {
				return true
			}
		}
		return false
	}
	if !p.await(runs) {
		return vm, errNothing
	}
	return vm, nil
}

// lookAtSurge checks that all surge nodes are there while a worker is out, unless a person has deleted one.
func (p *play) lookAtSurge(vms []world.VM, workers []string, after string) {
	deleted := slices.ContainsFunc(p.c.Faults, func(f Fault) bool { return f.Name == "surge-deleted" })
	if there := len(surgeVMs(vms)); len(workers) > 0 && there < p.c.Surge && !deleted {
		p.fail("workers %v are out, and %d of %d surge nodes are there (after %s)", workers, there, p.c.Surge, after)
	}
}

// endedSurge is what is left of surge nodes: nothing is to be.
func (p *play) endedSurge() (problems []string) {
	for _, vm := range surgeVMs(p.lab.World.VMs()) {
		problems = append(problems, fmt.Sprintf("VM %d %s is there still", vm.ID, vm.Config["name"]))
	}
	for i := range p.c.Surge {
		name := fmt.Sprintf("%s%d", simtest.SurgeNode, i+1)
		if _, err := p.lab.Kube.NodeNow(p.ctx, name); err == nil {
			problems = append(problems, fmt.Sprintf("Node %s is there still", name))
		}
	}
	return problems
}

// preparedKinds are what other people do to a system disk that is prepared on a parking VM.
func preparedKinds() []kind {
	return []kind{{name: "prepared-gone", foreign: true, act: func(p *play, _ *struck) (func(), error) {
		var park world.VM
		var disk parking.KeptDisk
		prepared := func() (there bool) {
			park, disk, there = preparedDisk(p.lab.World.VMs())
			return there
		}
		if !p.await(prepared) {
			return nil, errNothing
		}
		set := func(set map[string]string, del ...string) error {
			return p.lab.World.SetConfig("", park.Host, world.ChangeRequest{ID: park.ID, Set: set, Delete: del})
		}
		volid, _, _ := strings.Cut(park.Config[disk.Key], ",")
		if err := set(map[string]string{"protection": "0"}); err != nil {
			return nil, err
		}
		if err := set(nil, disk.Key); err != nil {
			return nil, err
		}
		now, _ := p.vm(park.ID)
		for key, value := range now.Config {
			if strings.HasPrefix(key, "unused") && value == volid {
				return nil, set(nil, key)
			}
		}
		return nil, errNothing // it was handed over meanwhile
	}}}
}

// preparedDisk finds a prepared disk on a parking VM.
func preparedDisk(vms []world.VM) (park world.VM, disk parking.KeptDisk, there bool) {
	for _, vm := range vms {
		rec, found, err := parking.ReadRecord(cluster.VM{Config: vm.Config})
		if err != nil || !found || !rec.Open || rec.Prepared == "" {
			continue
		}
		if disk, known := rec.SpareEntry(rec.Run, rec.SpareKey); known && vm.Config[disk.Key] != "" {
			return vm, disk, true
		}
	}
	return world.VM{}, parking.KeptDisk{}, false
}
