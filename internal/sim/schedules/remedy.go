package schedules

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/world"
)

// Manual remedies in hints.
var (
	waitsForReboot = regexp.MustCompile(`(\S+): \S+ is installed and waits for a reboot`) // the error itself
	isOff          = regexp.MustCompile(`start VM (\d+) "\S+" on \S+ in Proxmox`)
	isOn           = regexp.MustCompile(`switch VM (\d+) off, then run`)
	staysLearner   = regexp.MustCompile(`talosctl reset -n (\S+) --graceful=false --reboot --system-labels-to-wipe (\S+),`)
	wasMoved       = regexp.MustCompile(`qm migrate (\d+) (\w+)`)
	nodeLeft       = regexp.MustCompile(`if its VM is gone for good: kubectl delete node (\S+),`)
	preparedGone   = regexp.MustCompile(`if the prepared disk is gone: recast undo (\S+) gives`)
	isCutOff       = regexp.MustCompile(`look at the console of VM (\d+): if Talos says there that it is installed already.* recast undo (\S+) cancels`)
)

// remedy applies the manual remedy that recast asks for, if it is mechanical.
func (p *play) remedy(err error) {
	if err == nil {
		return
	}
	text, hints := err.Error(), strings.Join(fault.Hints(err), "\n")
	switch {
	case strings.Contains(text, "is locked by its creation (create)"): // the creation was killed: only root can remove that lock
		p.removeLocked()
	case strings.Contains(text, "could not be reimaged: boot ISO"): // of a build that was installed in place and not published
		p.publishPrevious()
	case strings.Contains(text, "an entry is gone half an hour after its machine"):
		sleep(p.ctx, 30*time.Minute)
	case strings.Contains(text, "is never tried again with the same image"):
		p.change(changePatch)
	}
	for _, found := range waitsForReboot.FindAllStringSubmatch(text, -1) {
		p.reboot(p.nodeWhere(func(n sim.Node) bool { return n.Name == found[1] }))
	}
	for _, found := range isOff.FindAllStringSubmatch(hints, -1) {
		p.startFound(atoi(found[1]))
	}
	for _, found := range isOn.FindAllStringSubmatch(hints, -1) {
		if vm, there := p.vm(atoi(found[1])); there {
			p.tell("switch VM %d off: %s", vm.ID, said(p.task(p.lab.World.Stop("root@pam", vm.Host, vm.ID))))
		}
	}
	for _, found := range staysLearner.FindAllStringSubmatch(hints, -1) {
		p.empty(p.nodeWhere(func(n sim.Node) bool { return n.Addr.String() == found[1] }), found[2])
	}
	for _, found := range wasMoved.FindAllStringSubmatch(text+hints, -1) {
		if vm, there := p.vm(atoi(found[1])); there {
			p.tell("migrate VM %d back: %s", vm.ID, said(p.migrate(vm, found[2])))
		}
	}
	for _, found := range nodeLeft.FindAllStringSubmatch(hints, -1) {
		_, err := p.lab.Kube.Store().Delete(p.ctx, store.Nodes(), "", found[1], metav1.DeleteOptions{})
		p.tell("delete Node %s: %s", found[1], said(err))
	}
	for _, found := range preparedGone.FindAllStringSubmatch(hints, -1) {
		p.giveUp(found[1])
	}
	for _, found := range isCutOff.FindAllStringSubmatch(hints, -1) {
		if strings.Contains(p.screens.last("VM "+found[1]), "Talos is already installed to disk") {
			p.giveUp(found[2])
		}
	}
}

// atoi is the number in a hint, which has only digits.
func atoi(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

func (p *play) nodeWhere(is func(sim.Node) bool) int { return slices.IndexFunc(p.lab.Nodes, is) }

// startFound starts the VM with a number, a node's or a surge node's.
func (p *play) startFound(id int) {
	node := p.nodeWhere(func(n sim.Node) bool { return n.VMID == id })
	if node >= 0 {
		p.startAgain(node)
	} else if vm, there := p.vm(id); there {
		p.start(vm)
	}
}

// reboot resets a node's VM, and waits for it.
func (p *play) reboot(node int) {
	vm, err := p.vmOf(node)
	if err == nil {
		err = p.task(p.lab.World.Reset("root@pam", vm.Host, vm.ID))
	}
	p.tell("reboot %s: %s", p.lab.Nodes[node].Name, said(err))
	sleep(p.ctx, 2*time.Minute)
}

// empty wipes the volume with a node's etcd data.
func (p *play) empty(node int, label string) {
	name := p.lab.Nodes[node].Name
	p.tell("reset %s: %s", name, said(p.lab.ResetNode(p.ctx, name, label)))
}

// giveUp runs recast undo.
func (p *play) giveUp(name string) {
	c := p.lab.Client()
	c.Run = p.nextRun()
	_, err := c.Recover(p.ctx, name)
	p.tell("recover %s: %s", name, said(err))
}

// publishPrevious runs recast publish with the previous lock.
func (p *play) publishPrevious() {
	now := p.lab.Read("recast.lock")
	p.lab.Write("recast.lock", p.previous)
	err := p.lab.Client().Publish(p.ctx)
	p.lab.Write("recast.lock", now)
	p.tell("publish with the previous lock: %s", said(err))
}

// removeLocked removes VMs whose creation was interrupted, and retries if their host goes
// down meanwhile.
func (p *play) removeLocked() {
	half := func(id int) (world.VM, bool) {
		vm, there := p.vm(id)
		return vm, there && vm.Config["description"] == ""
	}
	remove := func(id int) bool {
		vm, there := half(id)
		if there {
			err := p.task(p.lab.World.DestroyVM("root@pam", vm.Host, world.DestroyRequest{ID: id}))
			p.tell("remove VM %d: %s", id, said(err))
			_, there = half(id)
		}
		return !there
	}
	for _, vm := range p.lab.World.VMs() {
		if vm.Config["lock"] != "create" {
			continue
		}
		p.lab.World.SetLock(vm.ID, "")
		if remove(vm.ID) {
			continue
		}
		p.beside.Go(func() {
			for range 20 {
				sleep(p.ctx, 30*time.Second)
				if remove(vm.ID) {
					return
				}
			}
		})
	}
}

// screens keeps the last line of each machine's screen.
type screens struct {
	mu    sync.Mutex
	lines map[string]string
}

// Write gets one line, prefixed with its source.
func (s *screens) Write(line []byte) (int, error) {
	who, text, _ := strings.Cut(string(line), ": ")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines[who] = text
	return len(line), nil
}

func (s *screens) last(who string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines[who]
}
