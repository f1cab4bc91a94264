package schedules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/simtest"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// Fault is one fault: its kind, its node or host, its begin and its duration.
type Fault struct {
	Name  string
	Where int           // index of the node whose VM or host it affects; -1: none
	Call  int           // at recast's n-th changing call, from 1; 0: After
	After time.Duration // time since the first roll began
	For   time.Duration // 0: momentary, or reverted at the end
}

// String returns the fault's text: "kill@57", "host:2@57+2m0s", "mute:0@1m30s+40s".
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.Name)
	if f.Where >= 0 {
		fmt.Fprintf(&b, ":%d", f.Where)
	}
	if f.Call > 0 {
		fmt.Fprintf(&b, "@%d", f.Call)
	} else {
		fmt.Fprintf(&b, "@%s", f.After)
	}
	if f.For > 0 {
		fmt.Fprintf(&b, "+%s", f.For)
	}
	return b.String()
}

// longest limits both the begin and the duration of a fault.
const longest = 24 * time.Hour

func ParseFault(s string) (f Fault, err error) {
	what, when, found := strings.Cut(s, "@")
	if !found {
		return Fault{}, fmt.Errorf("%s: no @", s)
	}
	name, where, onNode := strings.Cut(what, ":")
	f.Name, f.Where = name, -1
	k, found := kindOf(name)
	if !found {
		return Fault{}, fmt.Errorf("%s: no such fault", s)
	}
	if onNode {
		f.Where, err = strconv.Atoi(where)
	}
	if err != nil || f.Where < -1 || onNode != k.onNode || onNode && f.Where < 0 {
		return Fault{}, fmt.Errorf("%s: on which node?", s)
	}
	when, long, lasts := strings.Cut(when, "+")
	if f.Call, err = strconv.Atoi(when); err != nil {
		f.Call = 0
		f.After, err = time.ParseDuration(when)
	} else if f.Call < 1 {
		err = errors.New("calls are counted from 1")
	}
	if lasts && err == nil {
		f.For, err = time.ParseDuration(long)
	}
	if err != nil {
		return Fault{}, fmt.Errorf("%s: %w", s, err)
	}
	if f.After < 0 || f.After > longest || f.For < 0 || f.For > longest || lasts != (f.For > 0) || lasts != k.lasts && !k.mayLast {
		return Fault{}, fmt.Errorf("%s: when, and how long?", s)
	}
	return f, nil
}

type kind struct {
	name   string
	weight int  // relative frequency
	onNode bool // it affects a node, or its host
	lasts  bool // it has a duration
	atCall bool // it can only begin at a call
	// mayLast says that a duration is optional.
	mayLast bool
	// foreign says that a person causes it and reverts it on request.
	foreign bool
	// etcd says that it can make a member of etcd unavailable.
	etcd bool
	// litters says that it can leave an unreferenced volume behind.
	litters bool
	// before runs before the server acts and drops the request if it returns an error; after runs after the server has
	// acted, before the answer is sent. act runs independently of the call. Each may be nil.
	before func(p *play, s *struck) error
	after  func(p *play, s *struck)
	act    func(p *play, s *struck) (end func(), err error)
	// holds makes Proxmox process a request late; *holds is the answer that the sender gets meanwhile. sent, if set,
	// then affects the sender. See late.
	holds *record.Answer
	sent  func(p *play)
}

func kindOf(name string) (kind, bool) {
	all := kinds()
	i := slices.IndexFunc(all, func(k kind) bool { return k.name == name })
	if i < 0 {
		return kind{}, false
	}
	return all[i], true
}

func (p *play) aim() {
	for _, f := range p.c.Faults {
		k, _ := kindOf(f.Name) // it was parsed or drawn
		s := &struck{Fault: f, kind: k}
		p.list = append(p.list, s)
		if f.Call == 0 {
			p.mu.Lock()
			s.timer = time.AfterFunc(f.After, func() {
				if p.begin(s) {
					p.strike(s)
				}
			})
			p.mu.Unlock()
		}
	}
}

// begin reports whether a fault may strike now.
func (p *play) begin(s *struck) bool {
	p.lookAtEtcdBefore(s)
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.begun || p.over {
		return false
	}
	s.begun = true
	p.beside.Add(1)
	return true
}

// strike runs a fault's act, and ends it in time.
func (p *play) strike(s *struck) {
	defer p.beside.Done()
	if s.act == nil {
		p.came(s, nil)
		return
	}
	end, err := s.act(p, s)
	p.came(s, err)
	if err != nil {
		return
	}
	p.mu.Lock()
	s.end, s.since = end, time.Now()
	late := p.calm && !s.foreign || p.over
	if s.For > 0 && !late {
		s.timer = time.AfterFunc(s.For, func() { p.finish(s) })
	}
	p.mu.Unlock()
	if late {
		p.finish(s)
	}
}

func (p *play) came(s *struck, err error) {
	p.tell("%s: %v", s.Fault, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.res.Struck[s.Name]++
	}
}

// finish ends a fault, once.
func (p *play) finish(s *struck) {
	p.mu.Lock()
	end := s.end
	s.end = nil
	p.mu.Unlock()
	if end != nil {
		end()
		p.tell("%s is over", s.Fault)
	}
}

// endAll ends every fault and prevents new faults; people says whether to revert people's changes too.
func (p *play) endAll(people bool) {
	p.mu.Lock()
	list := slices.Clone(p.list)
	p.calm = true
	for _, s := range list {
		if s.begun = true; s.timer != nil {
			s.timer.Stop()
		}
	}
	p.mu.Unlock()
	for _, s := range list {
		if people || !s.foreign {
			p.finish(s)
		}
	}
	p.lab.World.NoMoreFailures()
}

// isOurs reports whether a call is a change by recast.
func isOurs(call record.Call) bool {
	return call.Mutation && (call.Proto == "proxmox" || call.Proto == "talos" || call.Proto == "kubernetes")
}

// before is the hook of all servers that runs before a server acts.
func (p *play) before(call record.Call) error {
	if call.Late { // recast can't prevent the late request any more
		return nil
	}
	p.deliverBefore(call)
	p.mu.Lock()
	away := p.apiAway > 0 && call.Proto == "kubernetes"
	var due []*struck
	if isOurs(call) && !away {
		p.calls++
		due = p.dueAt(p.calls, call)
	}
	p.mu.Unlock()
	p.lookAtEtcdBefore(due...)
	due = p.beginAt(call, due)
	p.lookBefore(call)
	p.lookAtCall(call)
	if away {
		return errStruck
	}
	var dropped error
	for _, s := range due {
		if s.kind.before != nil {
			if err := s.kind.before(p, s); err != nil {
				dropped = err
			}
		}
	}
	held := dropped
	for _, s := range due {
		switch {
		case s.kind.holds != nil && dropped == nil:
			held = p.hold(s, call)
		case s.kind.after == nil || dropped != nil: // otherwise it strikes after the server has acted
			go p.strike(s)
		}
	}
	return held
}

// dueAt returns the faults that strike at call n, including at most one that waits for a request to hold; p.mu must
// be held.
func (p *play) dueAt(n int, call record.Call) (due []*struck) {
	held := false
	for _, s := range p.list {
		switch {
		case s.begun:
		case s.kind.holds == nil && s.Call == n:
			due = append(due, s)
		case s.kind.holds != nil && s.Call <= n && !held && s.mayHold(call):
			held = true
			due = append(due, s)
		}
	}
	return due
}

// beginAt begins the due faults, unless no fault may begin any more.
func (p *play) beginAt(call record.Call, due []*struck) []*struck {
	p.mu.Lock()
	defer p.mu.Unlock()
	due = slices.DeleteFunc(due, func(s *struck) bool { return s.begun })
	for _, s := range due {
		s.begun, s.call = true, call
		p.beside.Add(1)
	}
	return due
}

// after is the hook that runs when the server has acted and the answer is not sent yet.
func (p *play) after(call record.Call) {
	p.mu.Lock()
	var due []*struck
	for _, s := range p.list {
		if s.begun && s.kind.after != nil && s.call.Seq == call.Seq && call.Seq != 0 {
			due = append(due, s)
			s.call.Seq = 0
		}
	}
	p.res.Calls++
	p.mu.Unlock()
	for _, s := range due {
		s.kind.after(p, s)
		p.strike(s)
	}
	p.lookAfter(call)
}

func said(err error) string {
	if err == nil {
		return "done"
	}
	return err.Error() + " | " + strings.Join(fault.Hints(err), " | ")
}

var particular = regexp.MustCompile(`(cp|wk|pve)\d+|\d+[.:\d]*`)

// person counts errors that need a person, and checks that recast says what to do.
func (p *play) person(err error) {
	if err == nil {
		return
	}
	if len(fault.Hints(err)) == 0 {
		p.fail("it needs a person, and does not say what to do: %v", err)
	}
	reason := particular.ReplaceAllString(err.Error(), "N")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.res.Persons[reason[max(0, len(reason)-200):]]++
}

// surgeKinds returns the faults of the VMs of surge nodes.
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
			if err := p.set(vm, map[string]string{"protection": "0"}); err != nil {
				return nil, err
			}
			return nil, p.task(p.lab.World.DestroyVM("", vm.Host, world.DestroyRequest{ID: vm.ID}))
		}},
	}
}

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

// lookAtSurge checks that all surge nodes are there while a worker is out, unless a person has deleted a surge node.
func (p *play) lookAtSurge(vms []world.VM, workers []string, after string) {
	deleted := slices.ContainsFunc(p.c.Faults, func(f Fault) bool { return f.Name == "surge-deleted" })
	if there := len(surgeVMs(vms)); len(workers) > 0 && there < p.c.Surge && !deleted {
		p.fail("workers %v are out, and %d of %d surge nodes are there (after %s)", workers, there, p.c.Surge, after)
	}
}

// endedSurge returns what is left of surge nodes; nothing should be left.
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

// preparedKinds returns other people's changes of a system disk that is prepared on a parking VM.
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
		freed, err := p.free(park, disk.Key)
		if err == nil && !freed {
			err = errNothing // it was handed over meanwhile
		}
		return nil, err
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

// longestLate is the longest time until a held request is processed, if its worst moment does not come.
const longestLate = 4 * time.Minute

// late is a request held by Proxmox whose sender no longer waits.
type late struct {
	call  record.Call
	vmid  int // VM that it affects; 0: none
	genID string
	since time.Time
	held  *record.Held
}

// lateKinds returns the faults in which Proxmox processes a request after its sender got a timeout, lost the
// connection, or died: after the fault's duration, or at the worst moment if the fault has no duration.
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

// mayHold reports whether a fault applies to a call. Only a call without a digest that Proxmox processes in any state
// of the VM has a worst moment.
func (s *struck) mayHold(call record.Call) bool {
	if call.Proto != "proxmox" || strings.HasSuffix(pathOf(call), "/upload") {
		return false
	}
	return s.For > 0 || slices.Contains([]string{"qmdestroy", "qmshutdown", "qmstop", "qmstart", "qmcreate"}, taskOf(call))
}

// hold holds a request, and returns the error that makes the server hold the request.
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

// deliver processes a held request and waits for its worker; a shutdown takes as long as its guest.
func (p *play) deliver(l *late) {
	l.held.Deliver()
	p.tell("%s %s is carried out, %s late", l.call.Method, l.call.Path, time.Since(l.since).Round(time.Second))
	for _, task := range p.lab.World.Tasks() {
		if task.Running && task.Type == taskOf(l.call) && task.ID == strconv.Itoa(l.vmid) && task.Type != "qmshutdown" {
			p.lab.World.WaitTask(task.UPID)
		}
	}
}

// deliverBefore delivers the requests whose worst moment is before the next change of recast.
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

// isWorst reports whether a request does the most harm right before another one.
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
	case "qmstart": // recast is moving the VM's disks
		return there && !vm.Running && about && (taskOf(next) == "qmmove" || taskOf(next) == "qmdestroy")
	case "qmcreate": // recast has just seen that no VM has the number
		return !there && about && taskOf(next) == "qmcreate"
	}
	return false
}

// isMissed reports whether a node must not go down now: another control plane is down, or the node is the only
// control plane and has just come back.
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

var errStruck = errors.New("struck by a fault")

// kinds returns all faults:
//
//   - kill, kill-before, kill-away: recast is killed right after a server has acted, or before; or goes on elsewhere
//   - lost, dropped: the answer is lost; the request is lost
//   - late, late-busy, late-lost, late-kill, late-away: Proxmox executes a request late: its sender got 504, lost the
//     connection, was killed
//   - clock-ahead, clock-behind, machine-ahead, machine-behind: the clock of a Proxmox node, or of a machine, jumps by a day
//   - second: another recast starts a roll elsewhere
//   - task, refused, worker: a task fails; a request is refused; a worker is killed
//   - quorum, daemon, host: of Proxmox: no quorum; pvedaemon does not answer; no power
//   - full, full-isos, busy, token, api: no space; no rename; the token has expired; no Kubernetes API
//   - slow-proxmox, slow-talos, slow-kubernetes: requests are handled late, or dropped
//   - mute, off, reset, etcd: of a machine: no answer, no power, a reset, no etcd
//   - cordon, memory, description, snapshot, locked, lock, stop, start, migrate: actions of administrators
//   - prepared-gone, surge-off, surge-deleted: a prepared disk or a surge node is gone
//   - takes-vmid, squat, squats, imposter, reuses: other people's VMs and volumes with a name, number or address that
//     recast is about to use
func kinds() []kind {
	return slices.Concat(processKinds(), lateKinds(), clockKinds(), serverKinds(), machineKinds(), foreignKinds(), strangerKinds(), preparedKinds(), surgeKinds())
}

// processKinds returns the faults of recast's own process and its answers.
func processKinds() []kind {
	die := func(away bool) func(*play, *struck) { return func(p *play, _ *struck) { p.kill(away) } }
	return []kind{
		{name: "kill", weight: 6, atCall: true, after: die(false)},
		{name: "kill-before", weight: 3, atCall: true, before: func(p *play, _ *struck) error { p.kill(false); return errStruck }},
		{name: "kill-away", weight: 4, atCall: true, after: die(true)},
		{name: "lost", weight: 4, atCall: true, after: func(p *play, _ *struck) { p.blink() }},
		{name: "dropped", weight: 3, atCall: true, before: func(*play, *struck) error { return errStruck }},
		{name: "second", weight: 2, act: func(p *play, _ *struck) (func(), error) { p.second(); return nil, nil }},
		{name: "twin", weight: 2, act: func(p *play, _ *struck) (func(), error) { p.twin(); return nil, nil }},
	}
}

// serverKinds returns the faults of Proxmox and of the API of Kubernetes.
func serverKinds() []kind {
	return []kind{
		{name: "task", weight: 3, atCall: true, litters: true, before: func(p *play, s *struck) error {
			if task := taskOf(s.call); task != "" {
				p.lab.World.FailNext(task, "command '/sbin/lvs' failed: exit code 5")
			}
			return nil
		}},
		{name: "refused", weight: 2, atCall: true, before: func(p *play, s *struck) error {
			if s.call.Proto == "proxmox" {
				p.lab.World.FailNext(s.call.Method+" "+pathOf(s.call), "unable to open file '/etc/pve/local/x' - Input/output error")
			}
			return nil
		}},
		{name: "worker", weight: 3, atCall: true, litters: true, after: func(p *play, _ *struck) {
			if tasks := p.lab.World.Tasks(); len(tasks) > 0 && tasks[0].Running {
				p.lab.World.KillTask(tasks[0].UPID)
			}
		}},
		{name: "quorum", weight: 4, lasts: true, litters: true, act: func(p *play, _ *struck) (func(), error) {
			p.lab.World.SetQuorum(false)
			return func() { p.lab.World.SetQuorum(true) }, nil
		}},
		{name: "daemon", weight: 2, onNode: true, lasts: true, act: func(p *play, s *struck) (func(), error) {
			host := p.hostOf(s.Where)
			p.lab.World.SetDaemon(host, false)
			return func() { p.lab.World.SetDaemon(host, true) }, nil
		}},
		{name: "host", weight: 3, onNode: true, lasts: true, etcd: true, litters: true, act: func(p *play, s *struck) (func(), error) {
			host := p.hostOf(s.Where)
			p.lab.World.CrashHost(host)
			return func() { p.lab.World.BootHost(host) }, nil
		}},
		full("full", sim.DiskStorage), full("full-isos", sim.ISOStorage),
		{name: "busy", weight: 2, lasts: true, act: func(p *play, _ *struck) (func(), error) {
			p.lab.World.BusyStorage(sim.DiskStorage, -1, world.RenameBusy)
			return func() { p.lab.World.BusyStorage(sim.DiskStorage, 0, 0) }, nil
		}},
		{name: "token", weight: 2, lasts: true, act: func(p *play, _ *struck) (func(), error) {
			id, _, _ := strings.Cut(p.lab.Token(), "=")
			p.lab.World.ExpireToken(id, true)
			return func() { p.lab.World.ExpireToken(id, false) }, nil
		}},
		{name: "api", weight: 2, lasts: true, act: func(p *play, _ *struck) (func(), error) {
			p.withoutAPI(1)
			return func() { p.withoutAPI(-1) }, nil
		}},
		slow("proxmox"), slow("talos"), slow("kubernetes"),
	}
}

// slow returns the fault of an API that processes requests only after the fault's end.
func slow(server string) kind {
	return kind{name: "slow-" + server, weight: 1, lasts: true, act: func(p *play, _ *struck) (func(), error) {
		return func() { _ = p.lab.Slow(server, 0) }, p.lab.Slow(server, longest) // a valid server
	}}
}

func full(name, storage string) kind {
	return kind{name: name, weight: 1, lasts: true, act: func(p *play, _ *struck) (func(), error) {
		p.lab.World.FillStorage(storage)
		return func() { p.lab.World.FreeStorage(storage) }, nil
	}}
}

// machineKinds returns the faults of the nodes' machines.
func machineKinds() []kind {
	return []kind{
		{name: "mute", weight: 2, onNode: true, lasts: true, act: func(p *play, s *struck) (func(), error) {
			id := p.lab.Nodes[s.Where].VMID
			p.mute(id, true)
			return func() { p.mute(id, false) }, nil
		}},
		{name: "off", weight: 2, onNode: true, lasts: true, etcd: true, act: toVM(runs, func(p *play, s *struck, vm world.VM) (func(), error) {
			// A person starts it again, unless recast is replacing it.
			return func() { p.startAgain(s.Where) }, p.lab.World.PowerOff(vm.ID)
		})},
		{name: "reset", weight: 1, onNode: true, etcd: true, act: toVM(runs, func(p *play, _ *struck, vm world.VM) (func(), error) {
			_, err := p.lab.World.Reset("", vm.Host, vm.ID)
			return nil, err
		})},
		{name: "etcd", weight: 2, onNode: true, lasts: true, etcd: true, act: func(p *play, s *struck) (func(), error) {
			node := p.lab.Nodes[s.Where]
			if !node.ControlPlane {
				return nil, errNothing
			}
			return func() { _ = p.lab.BreakEtcd(node.Name, talosapi.EtcdFault{}) }, p.lab.BreakEtcd(node.Name, talosapi.EtcdFault{Down: true}) // it was just found
		}},
	}
}

// errNothing says that the fault does not apply now.
var errNothing = errors.New("there is nothing to do it to")

// toVM returns a fault's act on a node's VM. The act does nothing unless the VM exists and is accepts it.
func toVM(is func(world.VM) bool, act func(p *play, s *struck, vm world.VM) (func(), error)) func(*play, *struck) (func(), error) {
	return func(p *play, s *struck) (func(), error) {
		vm, err := p.vmOf(s.Where)
		if err != nil || !is(vm) {
			return nil, errNothing
		}
		return act(p, s, vm)
	}
}

func runs(vm world.VM) bool     { return vm.Running }
func rests(vm world.VM) bool    { return !vm.Running }
func unlocked(vm world.VM) bool { return vm.Config["lock"] == "" }
func anyhow(world.VM) bool      { return true }

// foreignKinds returns other people's changes of the VMs, as root@pam.
func foreignKinds() []kind {
	return []kind{
		{name: "cordon", weight: 3, onNode: true, foreign: true, act: func(p *play, s *struck) (func(), error) {
			return func() { p.uncordon(s.Where) }, p.cordon(s.Where)
		}},
		edited("memory", "memory", "8192"), edited("description", "description", "Somebody was here."),
		{name: "snapshot", weight: 1, onNode: true, foreign: true, act: func(p *play, s *struck) (func(), error) {
			id := p.lab.Nodes[s.Where].VMID
			return func() { _ = p.lab.World.DeleteSnapshot(id, "theirs") }, p.lab.World.AddSnapshot(id, world.Snapshot{Name: "theirs"}) // it may be gone with its VM
		}},
		{name: "locked", weight: 1, onNode: true, lasts: true, act: func(p *play, s *struck) (func(), error) {
			release, err := p.lab.World.HoldLock(p.lab.Nodes[s.Where].VMID)
			return release, err
		}},
		{name: "lock", weight: 1, onNode: true, foreign: true, act: toVM(unlocked, func(p *play, s *struck, vm world.VM) (func(), error) {
			p.lab.World.SetLock(vm.ID, "suspended")
			// After a reboot in between, the host could not start it.
			return func() {
				p.lab.World.SetLock(vm.ID, "")
				p.startAgain(s.Where)
			}, nil
		})},
		{name: "stop", weight: 1, onNode: true, foreign: true, etcd: true, act: toVM(runs, func(p *play, s *struck, vm world.VM) (func(), error) {
			return func() { p.startAgain(s.Where) }, p.task(p.lab.World.Stop("", vm.Host, vm.ID))
		})},
		{name: "start", weight: 1, onNode: true, foreign: true, act: toVM(rests, func(p *play, _ *struck, vm world.VM) (func(), error) {
			return nil, p.task(p.lab.World.Start("", vm.Host, vm.ID))
		})},
		{name: "migrate", weight: 1, onNode: true, foreign: true, act: func(p *play, s *struck) (func(), error) {
			vm, err := p.vmOf(s.Where)
			if err != nil || p.c.Hosts < 2 || p.c.Holder {
				return nil, errNothing
			}
			hosts := p.lab.World.Hosts()
			target := hosts[0]
			if target == vm.Host {
				target = hosts[1]
			}
			return nil, p.migrate(vm, target) // recast reverts it if it has begun
		}},
	}
}

// edited returns the fault of a changed value of a VM's key. The value is reverted in the end.
func edited(name, key, value string) kind {
	return kind{name: name, weight: 1, onNode: true, foreign: true, act: toVM(anyhow, func(p *play, s *struck, vm world.VM) (func(), error) {
		old := vm.Config[key]
		set := func(to string) error {
			return p.lab.World.SetConfig("", p.hostOf(s.Where), world.ChangeRequest{ID: vm.ID, Set: map[string]string{key: to}})
		}
		return func() {
			if now, err := p.vmOf(s.Where); err == nil && now.Merged()[key] == value {
				_ = set(old) // the VM was just found
				if now, err := p.vmOf(s.Where); err == nil && now.Merged()[key] != now.Config[key] {
					_ = set(value) // it already runs with that value, and would have to be restarted
				}
			}
		}, set(value)
	})}
}

func pathOf(call record.Call) string {
	path, _, _ := strings.Cut(strings.TrimPrefix(call.Path, "/api2/json"), "?")
	return path
}

// taskOf returns the type of the task that a call to Proxmox starts; "" for none.
func taskOf(call record.Call) string {
	path := pathOf(call)
	_, last, _ := strings.Cut(path, "/qemu/")
	_, last, _ = strings.Cut(last, "/")
	switch {
	case call.Proto != "proxmox":
		return ""
	case call.Method == "DELETE" && strings.Contains(path, "/qemu/"):
		return "qmdestroy"
	case call.Method != "POST":
		return ""
	case strings.HasSuffix(path, "/qemu"):
		return "qmcreate"
	}
	return map[string]string{
		"move_disk": "qmmove", "config": "qmconfig", "status/start": "qmstart", "status/stop": "qmstop", "status/shutdown": "qmshutdown",
	}[last]
}

func (p *play) task(upid string, err error) error {
	if err != nil {
		return err
	}
	if t, _ := p.lab.World.WaitTask(upid); t.ExitStatus != "OK" && !strings.HasPrefix(t.ExitStatus, "WARNINGS") {
		return errors.New(t.ExitStatus)
	}
	return nil
}

func (p *play) migrate(vm world.VM, target string) error {
	return p.task(p.lab.World.Migrate("", vm.Host, world.MigrateRequest{ID: vm.ID, Target: target, Online: vm.Running, WithLocalDisks: vm.Running}))
}

func (p *play) start(vm world.VM) { _ = p.task(p.lab.World.Start("", vm.Host, vm.ID)) } // callers check the result

func (p *play) startAgain(node int) {
	if !p.needsStart(node) {
		return
	}
	p.beside.Go(func() {
		for range 20 {
			sleep(p.ctx, 30*time.Second)
			if !p.needsStart(node) {
				return
			}
		}
	})
}

// needsStart tries to start a node's VM, and reports whether the VM is still stopped.
func (p *play) needsStart(node int) bool {
	vm, err := p.vmOf(node)
	if err != nil || vm.Running || p.inExchange(node) {
		return false
	}
	p.start(vm)
	vm, err = p.vmOf(node)
	return err == nil && !vm.Running
}

// cordon cordons a node like a person who does not check whether the node is cordoned already.
func (p *play) cordon(node int) error {
	name := p.lab.Nodes[node].Name
	k, err := p.lab.Kube.Node(p.ctx, name)
	if err != nil || k.Spec.Unschedulable {
		return errNothing
	}
	p.lab.Cordon(name, true)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cordoned[name] = true
	return nil
}

func (p *play) uncordon(node int) {
	name := p.lab.Nodes[node].Name
	p.mu.Lock()
	delete(p.cordoned, name)
	p.mu.Unlock()
	p.lab.Cordon(name, false)
}

// mute makes a machine accept requests without answering. The machine calls back while it
// holds Silence's lock, so the caller must not hold p.mu.
func (p *play) mute(vmid int, on bool) {
	p.mu.Lock()
	p.muted[vmid] = on
	p.mu.Unlock()
	p.lab.Silence(func(r talosapi.Request) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.muted[r.VMID]
	})
}

func (p *play) withoutAPI(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.apiAway += n
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
