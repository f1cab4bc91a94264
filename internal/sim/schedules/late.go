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

// longestLate is when a request is processed at the latest if its worst moment does not
// come.
const longestLate = 4 * time.Minute

// late is a request held by Proxmox whose sender no longer waits.
type late struct {
	call  record.Call
	vmid  int // VM that it affects; 0: none
	genID string
	since time.Time
	held  *record.Held
}

// lateKinds are requests that Proxmox processes after their sender got a timeout, lost the
// connection, or died: after the fault's duration, or at the worst moment if it has none.
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

// mayHold says whether a fault applies to a call. Only calls that Proxmox processes
// whatever the VM's state, without a digest, have a worst moment.
func (s *struck) mayHold(call record.Call) bool {
	if call.Proto != "proxmox" || strings.HasSuffix(pathOf(call), "/upload") {
		return false
	}
	return s.For > 0 || slices.Contains([]string{"qmdestroy", "qmshutdown", "qmstop", "qmstart", "qmcreate"}, taskOf(call))
}

// hold holds a request, and returns the error that makes the server do so.
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

// deliver processes a held request and waits for its worker; a shutdown takes as long as
// its guest.
func (p *play) deliver(l *late) {
	l.held.Deliver()
	p.tell("%s %s is carried out, %s late", l.call.Method, l.call.Path, time.Since(l.since).Round(time.Second))
	for _, task := range p.lab.World.Tasks() {
		if task.Running && task.Type == taskOf(l.call) && task.ID == strconv.Itoa(l.vmid) && task.Type != "qmshutdown" {
			p.lab.World.WaitTask(task.UPID)
		}
	}
}

// deliverBefore delivers the requests whose worst moment is before the next change of
// recast.
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

// isWorst says whether a request does the most harm right before another one.
func (p *play) isWorst(l *late, next record.Call) bool {
	vm, there := p.vm(l.vmid)
	node := p.nodeWhere(func(n sim.Node) bool { return n.VMID == l.vmid })
	about := next.Proto == "proxmox" && vmOfCall(next) == strconv.Itoa(l.vmid)
	switch taskOf(l.call) {
	case "qmdestroy": // the number has a new VM: a node's has all its disks when it is about to start
		starts := about && taskOf(next) == "qmstart"
		return there && !vm.Running && vm.Config["vmgenid"] != l.genID && (starts || node < 0)
	case "qmshutdown", "qmstop":
		return there && vm.Running && p.isMissed(node, vm, l.since)
	case "qmstart": // its disks are being moved
		return there && !vm.Running && about && (taskOf(next) == "qmmove" || taskOf(next) == "qmdestroy")
	case "qmcreate": // recast has just seen that there is none
		return !there && about && taskOf(next) == "qmcreate"
	}
	return false
}

// isMissed says whether a node must not go down now: another control plane is down, or, if
// it is the only one, it has just come back.
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
