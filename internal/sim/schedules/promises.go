package schedules

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

const unnamed = "no VM's configuration names its volume"

// lookAfter checks the invariants after every call, unless nothing has changed since the
// latest check.
func (p *play) lookAfter(call record.Call) {
	changes := p.lab.World.Changes()
	p.mu.Lock()
	changed := changes != p.changes
	p.changes = changes
	p.mu.Unlock()
	if call.Mutation || changed {
		p.look(call.Method + " " + call.Path)
	}
}

func (p *play) look(after string) {
	vms := p.lab.World.VMs()
	open := p.openRecords(vms)
	for _, v := range p.lab.World.Violations() {
		// A volume may lack a name for a moment, if a record says so.
		if strings.HasSuffix(v, unnamed) && slices.ContainsFunc(open, func(r parking.Record) bool { return r.Intent != nil }) {
			continue
		}
		p.fail("%s (after %s)", v, after)
	}
	p.lookAtEtcd(after)
	p.lookAtCordons(after)
	p.lookAtTheirs(vms, after)
	p.lookAtOutages(vms, open, after)
}

// openRecords are the open records in the VMs' descriptions.
func (p *play) openRecords(vms []world.VM) (open []parking.Record) {
	for _, vm := range vms {
		if rec := p.openRecord(vm); rec != nil && !onlyMeant(vm, *rec, vms) {
			open = append(open, *rec)
		}
	}
	return open
}

// onlyMeant says whether nothing of the record's intent was done yet. While its run works
// on the node, the Node has a mark.
func onlyMeant(park world.VM, rec parking.Record, vms []world.VM) bool {
	handedOver := slices.ContainsFunc(slices.Collect(maps.Keys(park.Config)), cluster.IsDiskKey)
	runs := slices.ContainsFunc(vms, func(vm world.VM) bool { return vm.ID == int(rec.VMID) && vm.Running })
	return runs && !handedOver && rec.Intent == nil
}

// openRecord is the VM's open record, cached; nil if it has none.
func (p *play) openRecord(vm world.VM) *parking.Record {
	text := vm.Config["description"]
	p.mu.Lock()
	rec, known := p.records[text]
	p.mu.Unlock()
	if known {
		return rec
	}
	if r, found, err := parking.ReadRecord(cluster.VM{Config: vm.Config}); err == nil && found && r.Open {
		rec = &r
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records[text] = rec
	return rec
}

// lookAtEtcdBefore checks etcd just before a fault affects it: later problems might be the
// fault's.
func (p *play) lookAtEtcdBefore(faults ...*struck) {
	if i := slices.IndexFunc(faults, func(s *struck) bool { return s.etcd }); i >= 0 {
		p.lookAtEtcd("before " + faults[i].Fault.String())
	}
}

// meddled says whether a fault has struck that can make members of etcd unavailable.
func (p *play) meddled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.list, func(s *struck) bool { return s.begun && s.etcd })
}

// lookAtEtcd checks that etcd always has a majority, and that each member with its data is
// still the same member.
func (p *play) lookAtEtcd(after string) {
	if p.c.ControlPlanes >= 3 && !p.meddled() {
		for _, v := range p.lab.EtcdViolations() {
			p.fail("etcd: %s (after %s)", v, after)
		}
	}
	if !p.c.EtcdOnData {
		return
	}
	now := p.memberIDs()
	for name, id := range p.members {
		if now[name] != id {
			p.fail("etcd: the member of %s, whose data is kept, was %s and is %q (after %s)", name, id, now[name], after)
		}
	}
}

func (p *play) memberIDs() map[string]string {
	ids := map[string]string{}
	for _, m := range p.lab.EtcdMembers() {
		ids[m.Name] = m.ID
	}
	return ids
}

// lookAtCordons checks that nodes cordoned by people stay cordoned.
func (p *play) lookAtCordons(after string) {
	p.mu.Lock()
	var names []string
	for name := range p.cordoned {
		names = append(names, name)
	}
	p.mu.Unlock()
	for _, name := range names {
		k, err := p.lab.Kube.NodeNow(p.ctx, name)
		p.mu.Lock()
		still := p.cordoned[name]
		p.mu.Unlock()
		if err == nil && still && !k.Spec.Unschedulable {
			p.fail("%s, which a person had cordoned, is schedulable (after %s)", name, after)
		}
	}
}

const rollMark = "recast.dev/roll"

// inExchange says whether recast is working on a node's VM, or has left it half done.
func (p *play) inExchange(node int) bool {
	vms := p.lab.World.VMs()
	return p.isExchanged(node, vms, p.openRecords(vms))
}

func (p *play) isOut(node int, vms []world.VM, open []parking.Record) bool {
	if p.isExchanged(node, vms, open) {
		return true
	}
	k, err := p.lab.Kube.NodeNow(p.ctx, p.lab.Nodes[node].Name)
	return err == nil && k.Annotations[rollMark] != ""
}

func (p *play) isExchanged(node int, vms []world.VM, open []parking.Record) bool {
	n := p.lab.Nodes[node]
	if slices.ContainsFunc(open, func(r parking.Record) bool { return r.Node == n.Name }) {
		return true
	}
	_, there := numbered(vms, n.VMID)
	return !there
}

// lookAtOutages checks the number of nodes that recast has made unavailable.
func (p *play) lookAtOutages(vms []world.VM, open []parking.Record, after string) {
	controls, workers, hosts := []string{}, []string{}, map[string][]string{}
	for i, n := range p.lab.Nodes {
		if !p.isOut(i, vms, open) {
			continue
		}
		if n.ControlPlane {
			controls = append(controls, n.Name)
		} else {
			workers = append(workers, n.Name)
		}
		host := n.Host
		if vm, there := numbered(vms, n.VMID); there {
			host = vm.Host
		}
		hosts[host] = append(hosts[host], n.Name)
	}
	if len(controls) > 1 {
		p.fail("control planes %v are out at a time (after %s)", controls, after)
	}
	if most := p.mostOut(); len(workers) > most {
		p.fail("workers %v are out at a time, %d may be (after %s)", workers, most, after)
	}
	p.lookAtSurge(vms, workers, after)
	migrated := slices.ContainsFunc(p.c.Faults, func(f Fault) bool { return f.Name == "migrate" })
	for host, names := range hosts {
		if len(names) > max(p.c.PerHost, 1) && !migrated {
			p.fail("%v are out at a time on %s, %d may be (after %s)", names, host, max(p.c.PerHost, 1), after)
		}
	}
}

// mostOut is the maximum number of unavailable workers.
func (p *play) mostOut() int {
	share := config.Share{Count: 1}
	if p.c.Out != "" {
		if err := share.UnmarshalText([]byte(p.c.Out)); err != nil {
			p.t.Fatal(err)
		}
	}
	return share.Of(p.c.Workers)
}

// grace is how long a member of etcd may be down unnoticed.
const grace = 2 * time.Minute

// lookBefore checks that etcd's quorum survives a call that takes a control plane down.
func (p *play) lookBefore(call record.Call) {
	if p.c.ControlPlanes < 3 || !call.Mutation {
		return
	}
	node := p.takenOut(call)
	if node < 0 || !p.lab.Nodes[node].ControlPlane {
		return
	}
	vm, err := p.vmOf(node)
	if err != nil || !vm.Running || p.isAway(node) {
		return
	}
	var away []string
	for i, n := range p.lab.Nodes {
		if i != node && n.ControlPlane && p.isAway(i) {
			away = append(away, n.Name)
		}
	}
	if p.c.ControlPlanes-len(away)-1 < p.c.ControlPlanes/2+1 {
		p.fail("etcd: %s is taken down by %s %s, though %v have been down for %s", p.lab.Nodes[node].Name, call.Method, call.Path, away, grace)
	}
}

// takenOut is the node whose machine a call stops or reboots; -1: none.
func (p *play) takenOut(call record.Call) int {
	path := pathOf(call)
	stops := call.Proto == "proxmox" && call.Method == "POST" && (strings.HasSuffix(path, "/status/stop") || strings.HasSuffix(path, "/status/shutdown"))
	stops = stops || call.Proto == "talos" && (strings.HasSuffix(call.Method, "/Upgrade") || strings.HasSuffix(call.Method, "/Reboot") || strings.HasSuffix(call.Method, "/EtcdLeaveCluster"))
	if !stops {
		return -1
	}
	for i, n := range p.lab.Nodes {
		if strings.Contains(path, fmt.Sprintf("/qemu/%d/", n.VMID)) || call.Proto == "talos" && call.Target == n.Addr.String() {
			return i
		}
	}
	return -1
}

// isAway says whether a fault has kept a control plane's member down for long. A
// powered-off one is back as soon as it was started.
func (p *play) isAway(node int) bool {
	vm, err := p.vmOf(node)
	runs := err == nil && vm.Running
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.list, func(s *struck) bool {
		return s.etcd && s.end != nil && s.Where == node && s.Name != "host" && !(runs && (s.Name == "stop" || s.Name == "off")) && time.Since(s.since) > grace
	})
}

// ended lists deviations from the required final state.
func (p *play) ended() (problems []string) {
	note := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	drift, err := p.lab.Client().Drift(p.ctx)
	if err != nil {
		return []string{"drift: " + err.Error()}
	}
	for _, d := range drift.Nodes {
		if d.Stale || len(d.Unread) > 0 {
			note("drift of %s: %+v %v", d.Node, d.Reasons, d.Unread)
		}
	}
	status, err := p.lab.Client().Status(p.ctx)
	if err != nil {
		return append(problems, "status: "+err.Error())
	}
	if len(status.Open)+len(status.Marked) > 0 || status.Claim != nil {
		note("left: open %+v, marked %+v, claim %+v", status.Open, status.Marked, status.Claim)
	}
	for _, n := range p.lab.Nodes {
		k, err := p.lab.Kube.NodeNow(p.ctx, n.Name)
		switch {
		case err != nil:
			note("Node %s: %v", n.Name, err)
		case !ready(k):
			note("Node %s is not Ready", n.Name)
		case k.Spec.Unschedulable && !p.cordonedByPeople(n.Name):
			note("Node %s is cordoned still", n.Name)
		}
	}
	members := p.memberIDs()
	for _, m := range p.lab.EtcdMembers() {
		if m.Learner {
			note("%s is a learner of etcd still", m.Name)
		}
	}
	if len(members) != p.c.ControlPlanes {
		note("members of etcd: %v", members)
	}
	return append(problems, p.endedVMs()...)
}

func (p *play) cordonedByPeople(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cordoned[name]
}

func ready(k *corev1.Node) bool {
	return slices.ContainsFunc(k.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
