package schedules

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// longestLate is how late a request is carried out at most whose worst moment does not come.
const longestLate = 4 * time.Minute

// late is a request that Proxmox has and that nobody waits for any more.
type late struct {
	call  record.Call
	vmid  int // that it is about; 0: about none
	genID string
	since time.Time
	held  *record.Held
}

// lateKinds are requests that Proxmox carries out after their sender was told that
// nobody answers, has lost the connection, or is dead: so long after that as the fault
// says, or at the worst moment where it says nothing.
func lateKinds() []kind {
	die := func(away bool) func(*play) { return func(p *play) { p.kill(away) } }
	return []kind{
		{name: "late", weight: 3, atCall: true, mayLast: true, holds: &record.GatewayTimeout},
		{name: "late-busy", weight: 2, atCall: true, mayLast: true, holds: &record.BusyWorkers},
		{name: "late-lost", weight: 2, atCall: true, mayLast: true, holds: &record.NoAnswer},
		{name: "late-kill", weight: 4, atCall: true, mayLast: true, holds: &record.NoAnswer, sent: die(false)},
		{name: "late-away", weight: 3, atCall: true, mayLast: true, holds: &record.NoAnswer, sent: die(true)},
	}
}

// mayHold says whether a fault can strike at a call. Only what Proxmox carries out
// whatever the VM is by then, without a digest, has a worst moment.
func (s *struck) mayHold(call record.Call) bool {
	if call.Proto != "proxmox" || strings.HasSuffix(pathOf(call), "/upload") {
		return false
	}
	return s.For > 0 || slices.Contains([]string{"qmdestroy", "qmshutdown", "qmstop", "qmstart", "qmcreate"}, taskOf(call))
}

// hold keeps a request back, and returns what has the server do so.
func (p *play) hold(s *struck, call record.Call) error {
	defer p.beside.Done()
	l := &late{call: call, since: time.Now(), held: record.Hold(*s.kind.holds)}
	if id, err := strconv.Atoi(vmOfCall(call)); err == nil {
		l.vmid = id
	}
	if vm, found := p.vm(l.vmid); found {
		l.genID = vm.Config["vmgenid"]
	}
	p.came(s, nil)
	p.tell("%s holds %s %s %v", s.Fault, call.Method, call.Path, call.Params)
	p.mu.Lock()
	s.late, s.since, s.end = l, l.since, func() { p.deliver(l) }
	s.timer = time.AfterFunc(cmp.Or(s.For, longestLate), func() { p.finish(s) })
	calm := p.calm || p.over
	p.mu.Unlock()
	if calm { // all other faults have ended
		p.beside.Go(func() { p.finish(s) })
	}
	if s.sent != nil {
		s.sent(p)
	}
	return l.held
}

// deliver has a request carried out, and waits until its worker is done; a
// shutdown takes its guest's time.
func (p *play) deliver(l *late) {
	l.held.Deliver()
	p.tell("%s %s is carried out, %s late", l.call.Method, l.call.Path, time.Since(l.since).Round(time.Second))
	for _, task := range p.lab.World.Tasks() {
		if task.Running && task.Type == taskOf(l.call) && task.ID == strconv.Itoa(l.vmid) && task.Type != "qmshutdown" {
			p.lab.World.WaitTask(task.UPID)
		}
	}
}

// deliverBefore delivers what comes at the worst moment before a change of recast's.
func (p *play) deliverBefore(next record.Call) {
	if !isOurs(next) {
		return
	}
	p.mu.Lock()
	list := slices.DeleteFunc(slices.Clone(p.list), func(s *struck) bool { return s.late == nil || s.end == nil || s.For > 0 })
	p.mu.Unlock()
	for _, s := range list {
		if p.isWorst(s.late, next) {
			p.finish(s)
		}
	}
}

// isWorst says whether a request would do the most harm right before another one.
func (p *play) isWorst(l *late, next record.Call) bool {
	vm, there := p.vm(l.vmid)
	node := p.nodeWhere(func(n sim.Node) bool { return n.VMID == l.vmid })
	about := next.Proto == "proxmox" && vmOfCall(next) == strconv.Itoa(l.vmid)
	switch taskOf(l.call) {
	case "qmdestroy": // another VM has the number: a node's has all its disks when it is about to be started
		starts := about && taskOf(next) == "qmstart"
		return there && !vm.Running && vm.Config["vmgenid"] != l.genID && (starts || node < 0)
	case "qmshutdown", "qmstop":
		return there && vm.Running && p.isMissed(node, vm, l.since)
	case "qmstart": // its disks are on their way
		return there && !vm.Running && about && (taskOf(next) == "qmmove" || taskOf(next) == "qmdestroy")
	case "qmcreate": // somebody has just seen that there is none
		return !there && about && taskOf(next) == "qmcreate"
	}
	return false
}

// isMissed says whether a node must not go now: another control plane is away,
// or, where there is no other to hold against it, it has just come back.
func (p *play) isMissed(node int, vm world.VM, since time.Time) bool {
	if node < 0 {
		return false
	}
	if p.lab.Nodes[node].ControlPlane && p.c.ControlPlanes >= 3 {
		for i, n := range p.lab.Nodes {
			if other, err := p.vmOf(i); i != node && n.ControlPlane && (err != nil || !other.Running) {
				return true
			}
		}
		return false
	}
	return vm.Started.After(since)
}
