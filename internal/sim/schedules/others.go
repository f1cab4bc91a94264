package schedules

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/simtest"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// others holds other people's VMs, and what is known of the calls so far.
type others struct {
	mu      sync.Mutex
	squats  map[int]bool              // numbers of nodes' VMs that other people take as soon as they are free
	vms     map[int]map[string]string // other people's VMs, as they made them
	calls   int                       // to Proxmox
	sent    map[string]int            // changes by their full content: number of the call
	looked  map[string]int            // VMs: call that last read them; "": the list of all
	quorum  int                       // call in which recast last found quorum
	changed map[string]int            // VMs: call that last changed them
}

// otherKinds returns faults with other people's VMs that recast could mistake for its own.
func otherKinds() []kind {
	return []kind{
		// Proxmox offers the lowest free number for a new VM.
		{name: "squat", weight: 2, onNode: true, foreign: true, act: func(p *play, s *struck) (func(), error) {
			id := p.lab.Nodes[s.Where].VMID
			p.others.mu.Lock()
			defer p.others.mu.Unlock()
			p.others.squats[id] = true
			return func() { p.removeTheirs(id) }, nil
		}},
	}
}

func (p *play) isOver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over
}

// define makes another person's VM.
func (p *play) define(host string, id int, config map[string]string) error {
	p.others.mu.Lock()
	defer p.others.mu.Unlock()
	if p.others.vms[id] != nil {
		return errNothing
	}
	if err := p.lab.World.DefineVM(host, id, config, nil); err != nil {
		return err
	}
	vm, err := p.lab.World.LookupVM(host, id)
	p.others.vms[id] = vm.Config
	return err
}

// removeTheirs removes another person's VM, as the person does on request.
func (p *play) removeTheirs(id int) {
	p.others.mu.Lock()
	made := p.others.vms[id] != nil
	delete(p.others.squats, id)
	delete(p.others.vms, id)
	p.others.mu.Unlock()
	vm, there := p.vm(id)
	if !made || !there {
		return
	}
	if vm.Running {
		_ = p.task(p.lab.World.Stop("", vm.Host, id)) // it may have ended already
	}
	if err := p.task(p.lab.World.DestroyVM("", vm.Host, world.DestroyRequest{ID: id})); err != nil {
		p.tell("remove VM %d: %v", id, err)
	}
}

// squat takes the numbers that have become free and kills the process: the next process finds the VM.
func (p *play) squat(vms []world.VM) {
	p.others.mu.Lock()
	ids := slices.Sorted(maps.Keys(p.others.squats))
	p.others.mu.Unlock()
	for _, id := range ids {
		if _, taken := numbered(vms, id); taken || p.isOver() {
			continue
		}
		i := slices.IndexFunc(p.lab.Nodes, func(n sim.Node) bool { return n.VMID == id })
		err := p.define(p.lab.Nodes[i].Host, id, map[string]string{
			"name": "theirs", "memory": "512", "ostype": "l26", "smbios1": "uuid=99999999-8888-7777-6666-555555555555",
		})
		p.others.mu.Lock()
		delete(p.others.squats, id)
		p.others.mu.Unlock()
		p.tell("a person makes VM %d: %v", id, err)
		p.kill(false)
	}
}

// lookAtTheirs checks that other people's VMs are unchanged.
func (p *play) lookAtTheirs(vms []world.VM, after string) {
	p.squat(vms)
	p.others.mu.Lock()
	made := maps.Clone(p.others.vms)
	p.others.mu.Unlock()
	if len(made) == 0 {
		return
	}
	vms = p.lab.World.VMs()
	for _, id := range slices.Sorted(maps.Keys(made)) {
		vm, there := numbered(vms, id)
		if !there {
			p.failTheirs(id, "VM %d, which somebody else made, is gone (after %s)", id, after)
			continue
		}
		for key, value := range vm.Config {
			if want, had := made[id][key]; !had && !slices.Contains([]string{"digest", "vmgenid", "meta", "parent"}, key) || had && want != value {
				p.failTheirs(id, "%s of VM %d, which somebody else made, is %q (after %s)", key, id, value, after)
			}
		}
	}
}

// failTheirs fails unless the VM was removed meanwhile.
func (p *play) failTheirs(id int, format string, args ...any) {
	p.others.mu.Lock()
	still := p.others.vms[id] != nil
	p.others.mu.Unlock()
	if still {
		p.fail(format, args...)
	}
}

// lookAtConfigured checks that the VM with an address (the first VM with its MAC address) is the node's.
func (p *play) lookAtConfigured(addr string) {
	i := slices.IndexFunc(p.lab.Nodes, func(n sim.Node) bool { return n.Addr.String() == addr })
	if i < 0 {
		return
	}
	n := p.lab.Nodes[i]
	var first world.VM
	for _, vm := range p.lab.World.VMs() {
		if vm.Running && strings.Contains(strings.ToUpper(vm.Config["net0"]), n.MAC) && (first.ID == 0 || vm.Started.Before(first.Started)) {
			first = vm
		}
	}
	if first.ID != 0 && first.ID != n.VMID {
		p.fail("the configuration of %s is applied to a foreign VM %d, which has its address", n.Name, first.ID)
	}
}

// vmOfCall returns the VM of a call to Proxmox; "" for none.
func vmOfCall(call record.Call) string {
	_, rest, found := strings.Cut(pathOf(call), "/qemu/")
	if !found {
		return call.Params["vmid"]
	}
	id, _, _ := strings.Cut(rest, "/")
	return id
}

// lookAtCall checks that no configuration goes to a foreign machine, that no change is
// sent again without a read in between, and that nothing is destroyed without quorum.
func (p *play) lookAtCall(call record.Call) {
	p.others.mu.Lock()
	defer p.others.mu.Unlock()
	if call.Proto == "talos" {
		if strings.HasSuffix(call.Method, "/ApplyConfiguration") {
			p.lookAtConfigured(call.Target)
		}
		return
	}
	if call.Proto != "proxmox" {
		return
	}
	p.others.calls++
	id, path := vmOfCall(call), pathOf(call)
	switch {
	case path == "/cluster/status":
		if p.lab.World.Quorate() {
			p.others.quorum = p.others.calls
		}
	case path == "/cluster/resources" && slices.Contains([]string{"", "vm"}, call.Params["type"]) || strings.HasPrefix(path, "/cluster/nextid"):
		p.others.looked[""] = p.others.calls
	case !call.Mutation && id == "": // the call reads tasks, storages or hosts
	case !call.Mutation:
		p.others.looked[id] = p.others.calls
	default:
		p.lookAtChange(call, id, path)
	}
}

func (p *play) lookAtChange(call record.Call, id, path string) {
	what := fmt.Sprint(call.Method, call.Path, call.Params)
	if before := p.others.sent[what]; before > 0 && id != "" {
		seen := p.others.looked[id]
		if strings.HasSuffix(path, "/qemu") { // the call creates a VM; the list shows whether the VM exists
			seen = max(seen, p.others.looked[""])
		}
		if seen < before {
			p.fail("%s %s is sent again without a check of its result", call.Method, call.Path)
		}
	}
	p.others.sent[what] = p.others.calls
	destroys := call.Method == "DELETE" && taskOf(call) == "qmdestroy" || taskOf(call) == "qmmove" || call.Params["force"] == "1"
	if destroys && !p.lab.World.Quorate() && p.others.quorum < p.others.changed[id] {
		p.fail("%s %s without a check of the quorum since the latest change of the VM", call.Method, call.Path)
	}
	p.others.changed[id] = p.others.calls
}

// firstStranger is the VMID of the first VM outside of the cluster.
const firstStranger = 9500

// strangerKinds returns faults with other people's VMs and volumes near recast's; their disks are protected like any
// other.
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

// theirs returns another person's disk, which must never be lost.
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

// vm returns the VM with a number on any host.
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

// elsewhere returns a free VMID far from recast's.
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

// pretend boots another VM with a node's network address, like a restored backup beside the node: the machine at the
// address is not the node.
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

// theirSerial marks the drive of a volume that replaced a parked volume.
const theirSerial = ",serial=theirs"

// reuse frees a parked old system disk by hand, and another person's new volume gets its name.
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
	if _, err := p.free(park, rec.Kept[0].Key); err != nil {
		return nil, err
	}
	path := volid[strings.LastIndexAny(volid, ":/")+1:]
	name, err := p.lab.World.AllocDisk("", park.Host, world.AllocRequest{Storage: sim.DiskStorage, VMID: park.ID, Name: path, Bytes: 1 << 30, Format: "raw"})
	if err != nil {
		return nil, err
	}
	p.lab.World.Protect(world.Protected{Serial: fmt.Sprintf("theirs-%d", node), Media: p.lab.World.Media(name, park.Host)})
	return func() { p.takeAway(park.ID, name) }, p.set(park, map[string]string{rec.Kept[0].Key: name + theirSerial, "protection": "1"})
}

// set changes a VM's configuration like a person.
func (p *play) set(vm world.VM, set map[string]string, del ...string) error {
	return p.lab.World.SetConfig("", vm.Host, world.ChangeRequest{ID: vm.ID, Set: set, Delete: del})
}

// free frees a disk of a parking VM by hand; false: it was gone meanwhile.
func (p *play) free(park world.VM, key string) (freed bool, err error) {
	volid, _, _ := strings.Cut(park.Config[key], ",")
	if err := p.set(park, map[string]string{"protection": "0"}); err != nil {
		return false, err
	}
	if err := p.set(park, nil, key); err != nil {
		return false, err
	}
	vm, _ := p.vm(park.ID)
	for _, unused := range slices.Sorted(maps.Keys(vm.Config)) {
		if strings.HasPrefix(unused, "unused") && vm.Config[unused] == volid {
			return true, p.set(park, nil, unused)
		}
	}
	return false, nil
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

// otherRange is proxmox.vmids of another recast.yaml.
const otherRange = "9200-9299"

// second runs a second recast at the same time, on another machine.
func (p *play) second() {
	if c := p.another(""); c != nil {
		_, err := c.Roll(p.ctx, p.policy())
		p.tell("second: %s", said(err))
	}
}

// twin runs a second recast with another recast.yaml of the same cluster, with other proxmox.vmids. While the first
// recast works, the second must not reach its confirmation; otherwise the second answers no.
func (p *play) twin() {
	c := p.another(otherRange)
	if c == nil {
		return
	}
	c.Confirm = func(planning.Plan) (bool, error) {
		if p.heldMeanwhile() != "" {
			sleep(p.ctx, beats)
		}
		if claim := p.heldMeanwhile(); claim != "" && !strings.Contains(claim, `"beat":0,`) {
			p.fail("a second recast.yaml with other proxmox.vmids may begin while the claim of the first is held: %s", claim)
		}
		return false, nil
	}
	_, err := c.Roll(p.ctx, p.policy())
	p.tell("twin: %s", said(err))
}

// beats is enough time for the counter of a claim to change. It does not change while its run waits for other claims.
const beats = 45 * time.Second

// another returns a recast on another machine with a copy of the lab's files; nil if the first recast was just
// writing the files.
func (p *play) another(vmids string) *simtest.Client {
	c, err := p.lab.WithRange(filepath.Join(p.t.TempDir(), "other"), vmids)
	if err != nil {
		p.tell("another recast: %v", err)
		return nil
	}
	c.Elsewhere = true
	return c
}

// heldMeanwhile returns the claim of the first process; "" if the process does not run or has no claim.
func (p *play) heldMeanwhile() string {
	p.mu.Lock()
	life := p.current
	alive := life != nil && !life.dead
	p.mu.Unlock()
	if !alive {
		return ""
	}
	for _, vm := range p.lab.World.VMs() {
		if survey.IsClaim(cluster.VM{Config: vm.Config}) && strings.Contains(vm.Config["description"], life.client.Run) {
			return vm.Config["description"]
		}
	}
	return ""
}

// aDay is the offset of wrong clocks.
const aDay = 24 * time.Hour

// clockKinds returns the faults of clocks that jump by a day and are corrected later: clocks of Proxmox hosts, which
// date tasks, files and answers, and clocks of machines, which verify and date certificates. recast's own clock is
// right.
func clockKinds() []kind {
	host := func(name string, off time.Duration) kind {
		return kind{name: name, weight: 2, onNode: true, lasts: true, act: func(p *play, s *struck) (func(), error) {
			host := p.hostOf(s.Where)
			p.lab.World.SetClock(host, off)
			return func() { p.lab.World.SetClock(host, 0) }, nil
		}}
	}
	machine := func(name string, off time.Duration) kind {
		return kind{name: name, weight: 1, onNode: true, lasts: true, act: func(p *play, s *struck) (func(), error) {
			node := p.lab.Nodes[s.Where].Name
			return func() { _ = p.lab.Trouble(node, talosapi.Trouble{}) }, p.lab.Trouble(node, talosapi.Trouble{Clock: off}) // it was just found
		}}
	}
	return []kind{
		host("clock-ahead", aDay), host("clock-behind", -aDay),
		machine("machine-ahead", aDay), machine("machine-behind", -aDay),
	}
}
