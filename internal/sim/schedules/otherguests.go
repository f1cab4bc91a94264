package schedules

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

// firstStranger is the VMID of the first VM outside of the cluster.
const firstStranger = 9500

// strangerKinds are other people's VMs and volumes near recast's; their disks are
// protected like any other.
func strangerKinds() []kind {
	return []kind{
		{name: "takes-vmid", weight: 1, onNode: true, foreign: true, act: func(p *play, s *struck) (func(), error) {
			n := p.lab.Nodes[s.Where]
			if !p.await(func() bool { _, err := p.vmOf(s.Where); return err != nil }) {
				return nil, errNothing
			}
			return p.settleIn(n.Host, n.VMID)
		}},
		{name: "squats", weight: 1, onNode: true, foreign: true, act: func(p *play, s *struck) (func(), error) {
			for id := 9001; id < 9100; id++ {
				if !p.exists(id) {
					return p.settleIn(p.hostOf(s.Where), id)
				}
			}
			return nil, errNothing
		}},
		{name: "imposter", weight: 1, onNode: true, lasts: true, act: func(p *play, s *struck) (func(), error) {
			off := func() bool { vm, err := p.vmOf(s.Where); return err != nil || !vm.Running }
			if !p.await(off) {
				return nil, errNothing
			}
			return p.pretend(p.lab.Nodes[s.Where])
		}},
		{name: "reuses", weight: 2, onNode: true, foreign: true, act: func(p *play, s *struck) (func(), error) { return p.reuse(s.Where) }},
	}
}

// patience is how long a person waits for the right moment.
const patience = 10 * time.Minute

func (p *play) await(moment func() bool) bool {
	for range patience / time.Second {
		if moment() {
			return true
		}
		sleep(p.ctx, time.Second)
		p.mu.Lock()
		over := p.over || p.calm
		p.mu.Unlock()
		if over {
			return false
		}
	}
	return false
}

func (p *play) exists(id int) bool { _, found := p.vm(id); return found }

// theirs is another person's disk, which must never be lost.
func (p *play) theirs(what string) *world.Media { return world.NewMedia([]byte("what is on " + what)) }

// settleIn makes another person's VM with a disk; both are removed in the end.
func (p *play) settleIn(host string, id int) (func(), error) {
	name := fmt.Sprintf("stranger-%d", id)
	media := p.theirs(name)
	config := map[string]string{"name": name, "memory": "512", "scsi0": sim.DiskStorage + ":1,serial=" + name}
	if err := p.lab.World.DefineVM(host, id, config, map[string]*world.Media{"scsi0": media}); err != nil {
		return nil, errNothing // somebody was faster
	}
	p.lab.World.Protect(world.Protected{Serial: name, Media: media})
	return func() {
		if vm, found := p.vm(id); found && vm.Config["name"] == name {
			p.leave(vm)
		}
	}, nil
}

// vm is the VM with a number on any host.
func (p *play) vm(id int) (world.VM, bool) { return numbered(p.lab.World.VMs(), id) }

func numbered(vms []world.VM, id int) (world.VM, bool) {
	i := slices.IndexFunc(vms, func(vm world.VM) bool { return vm.ID == id })
	if i < 0 {
		return world.VM{}, false
	}
	return vms[i], true
}

// leave moves a VM's disk to another VM of its owner, and deletes the VM.
func (p *play) leave(vm world.VM) {
	to := p.elsewhere(vm.Host)
	if err := p.task(p.lab.World.MoveDisk("", vm.Host, world.MoveRequest{ID: vm.ID, Disk: "scsi0", Target: to, TargetDisk: "scsi0"})); err != nil {
		p.tell("VM %d stays: %v", vm.ID, err)
		return
	}
	if err := p.task(p.lab.World.DestroyVM("", vm.Host, world.DestroyRequest{ID: vm.ID})); err != nil {
		p.tell("VM %d stays: %v", vm.ID, err)
	}
}

// elsewhere is a free VMID far from recast's.
func (p *play) elsewhere(host string) int {
	id := firstStranger
	for p.exists(id) {
		id++
	}
	if err := p.lab.World.DefineVM(host, id, map[string]string{"name": fmt.Sprintf("elsewhere-%d", id), "memory": "512"}, nil); err != nil {
		p.tell("%v", err)
	}
	return id
}

// pretend boots another VM with a node's network address, like a restored backup beside
// it: the machine at the address is not the node.
func (p *play) pretend(n sim.Node) (func(), error) {
	isos, err := p.lab.World.Volumes(sim.ISOStorage, n.Host)
	if err != nil || len(isos) == 0 {
		return nil, errNothing
	}
	id := p.elsewhere(n.Host)
	media := world.NewMedia(nil)
	config := map[string]string{
		"name": "imposter", "memory": "4096", "cores": "2", "cpu": "host", "machine": "q35", "bios": "ovmf", "ostype": "l26", "scsihw": "virtio-scsi-single",
		"smbios1": fmt.Sprintf("uuid=0bad0bad-0000-4000-8000-%012d", id), "net0": "virtio=" + n.MAC + ",bridge=vmbr0", "boot": "order=ide2",
		"ide2": isos[len(isos)-1].Volid + ",media=cdrom", "scsi0": sim.DiskStorage + ":10,serial=imposter",
	}
	if err := p.lab.World.DefineVM(n.Host, id+100, config, map[string]*world.Media{"scsi0": media}); err != nil {
		return nil, err
	}
	p.lab.World.Protect(world.Protected{Serial: fmt.Sprintf("imposter-%d", id), Media: media})
	return func() { _ = p.lab.World.PowerOff(id + 100) }, p.lab.World.PowerOn(id + 100) // it exists
}

// theirSerial marks the drive of a volume that replaced a parked one.
const theirSerial = ",serial=theirs"

// reuse frees a parked old system disk by hand, and another person's new volume gets its
// name.
func (p *play) reuse(node int) (func(), error) {
	var park world.VM
	var rec parking.Record
	kept := func() bool {
		for _, vm := range p.lab.World.VMs() {
			r, found, err := parking.ReadRecord(cluster.VM{Config: vm.Config})
			if err != nil || !found || r.Open || r.Node != p.lab.Nodes[node].Name || len(r.Kept) == 0 {
				continue
			}
			if there := vm.Config[r.Kept[0].Key]; there != "" && !strings.Contains(there, theirSerial) {
				park, rec = vm, r
				return true
			}
		}
		return false
	}
	if !p.await(kept) {
		return nil, errNothing
	}
	volid, _, _ := strings.Cut(park.Config[rec.Kept[0].Key], ",")
	set := func(set map[string]string, del ...string) error {
		return p.lab.World.SetConfig("", park.Host, world.ChangeRequest{ID: park.ID, Set: set, Delete: del})
	}
	if err := set(map[string]string{"protection": "0"}); err != nil {
		return nil, err
	}
	if err := set(nil, rec.Kept[0].Key); err != nil {
		return nil, err
	}
	vm, _ := p.vm(park.ID)
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		if strings.HasPrefix(key, "unused") && vm.Config[key] == volid {
			if err := set(nil, key); err != nil {
				return nil, err
			}
		}
	}
	path := volid[strings.LastIndexAny(volid, ":/")+1:]
	name, err := p.lab.World.AllocDisk("", park.Host, world.AllocRequest{Storage: sim.DiskStorage, VMID: park.ID, Name: path, Bytes: 1 << 30, Format: "raw"})
	if err != nil {
		return nil, err
	}
	p.lab.World.Protect(world.Protected{Serial: fmt.Sprintf("theirs-%d", node), Media: p.lab.World.Media(name, park.Host)})
	return func() { p.takeAway(park.ID, name) }, set(map[string]string{rec.Kept[0].Key: name + theirSerial, "protection": "1"})
}

// takeAway moves another person's volume into a VM of their own.
func (p *play) takeAway(id int, volid string) {
	vm, _ := p.vm(id)
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		if at, _, _ := strings.Cut(vm.Config[key], ","); at != volid {
			continue
		}
		if err := p.task(p.lab.World.MoveDisk("", vm.Host, world.MoveRequest{ID: id, Disk: key, Target: p.elsewhere(vm.Host), TargetDisk: "scsi0"})); err != nil {
			p.tell("%s stays: %v", volid, err)
		}
		return
	}
}
