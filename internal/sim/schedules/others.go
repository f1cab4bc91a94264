package schedules

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// others is other people's VMs, and what is known of the calls so far.
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

// otherKinds are other people's VMs that recast could mistake for its own.
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

// removeTheirs removes another person's VM, as they do on request.
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

// squat takes the numbers that have become free and kills the process: the next one finds
// the VM.
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

// lookAtConfigured checks that the VM with an address, the first one with its MAC address,
// is the node's.
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

// vmOfCall is the VM of a call to Proxmox; "" for none.
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
	case !call.Mutation && id == "": // it reads tasks, storages or hosts
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
		if strings.HasSuffix(path, "/qemu") { // it creates a VM; if there is none, the list shows that
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
