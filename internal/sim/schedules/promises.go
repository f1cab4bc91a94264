package schedules

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

const unnamed = "no VM's configuration names its volume"

// lookAfter checks the invariants after every call, unless nothing has changed since the latest check.
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

// openRecords returns the open records in the VMs' descriptions.
func (p *play) openRecords(vms []world.VM) (open []parking.Record) {
	for _, vm := range vms {
		if rec := p.openRecord(vm); rec != nil && !onlyMeant(vm, *rec, vms) {
			open = append(open, *rec)
		}
	}
	return open
}

// onlyMeant reports whether the record's replacement has not begun: its VM runs, no disk was handed over, and no
// intent is recorded. While the record's run works on the node, the Node has a mark.
func onlyMeant(park world.VM, rec parking.Record, vms []world.VM) bool {
	handedOver := slices.ContainsFunc(slices.Collect(maps.Keys(park.Config)), cluster.IsDiskKey)
	runs := slices.ContainsFunc(vms, func(vm world.VM) bool { return vm.ID == int(rec.VMID) && vm.Running })
	return runs && !handedOver && rec.Intent == nil
}

// openRecord returns the VM's open record, cached; nil if it has none.
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

// lookAtEtcdBefore checks etcd just before a fault affects it: later problems might be the fault's.
func (p *play) lookAtEtcdBefore(faults ...*struck) {
	if i := slices.IndexFunc(faults, func(s *struck) bool { return s.etcd }); i >= 0 {
		p.lookAtEtcd("before " + faults[i].Fault.String())
	}
}

// meddled reports whether a fault has struck that can make members of etcd unavailable.
func (p *play) meddled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.list, func(s *struck) bool { return s.begun && s.etcd })
}

// lookAtEtcd checks that etcd always has a majority, and that each member with its data is still the same member.
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
	names := slices.Collect(maps.Keys(p.cordoned))
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

// inExchange reports whether recast is working on a node's VM, or has left the work half done.
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

// mostOut returns the maximum number of unavailable workers.
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

// takenOut returns the node whose machine a call stops or reboots; -1: none.
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

// isAway reports whether a fault has kept a control plane's member down for longer than grace. A powered-off member
// is back as soon as its VM was started.
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
		case !sim.Ready(k):
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
	case strings.Contains(text, "is locked by its creation (create)"): // the creation was killed: only root can remove the lock
		p.removeLocked()
	case strings.Contains(text, "could not be reimaged: boot ISO"): // the build was installed in place and not published
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
		name := p.lab.Nodes[p.nodeWhere(func(n sim.Node) bool { return n.Addr.String() == found[1] })].Name
		p.tell("reset %s: %s", name, said(p.lab.ResetNode(p.ctx, name, found[2])))
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

// atoi returns the number in a hint; the text has only digits.
func atoi(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

func (p *play) nodeWhere(is func(sim.Node) bool) int { return slices.IndexFunc(p.lab.Nodes, is) }

// startFound starts the VM with that number: a node's or a surge node's VM.
func (p *play) startFound(id int) {
	node := p.nodeWhere(func(n sim.Node) bool { return n.VMID == id })
	if node >= 0 {
		p.startAgain(node)
	} else if vm, there := p.vm(id); there {
		p.tell("start VM %d: %s", id, said(p.task(p.lab.World.Start("", vm.Host, vm.ID))))
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

// removeLocked removes VMs whose creation was interrupted, and retries if their host goes down meanwhile.
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

// back binds Kubernetes volumes to nodes' system disks and then requests a rollback to the nodes' old system disks,
// as nobody should: no node may lose its present disk. In the end the volumes are removed again.
func (p *play) back() {
	volumes, disks, policy := p.lab.Kube.Store(), map[int]*world.Media{}, p.policy()
	for i, n := range p.lab.Nodes {
		if n.ControlPlane && p.c.EtcdOnData {
			continue // EPHEMERAL is on a separate disk
		}
		if _, err := volumes.Create(p.ctx, store.Volumes(), localVolume(n.Name)); err != nil {
			p.t.Fatal(err)
		}
		disks[i], policy.Only = p.systemDisk(i), append(policy.Only, n.Name)
	}
	if len(disks) == 0 {
		return
	}
	c := p.lab.Client()
	c.Run = p.nextRun()
	_, err := c.Rollback(p.ctx, policy)
	p.tell("rollback: %s", said(err))
	for i, disk := range disks {
		if p.systemDisk(i) != disk {
			p.fail("the system disk of %s is gone, to which data of pods is bound", p.lab.Nodes[i].Name)
		}
	}
	for _, name := range policy.Only {
		if _, err := volumes.Delete(p.ctx, store.Volumes(), "", localVolume(name).Name, metav1.DeleteOptions{}); err != nil {
			p.t.Fatal(err)
		}
	}
}

// systemDisk returns the system disk of a node's VM; nil if it has none.
func (p *play) systemDisk(node int) *world.Media {
	vm, err := p.vmOf(node)
	if err != nil {
		return nil
	}
	volid, _, _ := strings.Cut(vm.Config[p.lab.Nodes[node].SystemDrive()], ",")
	return p.lab.World.Media(volid, vm.Host)
}

// localVolume returns a claimed volume in a provisioner's directory on the node's system disk.
func localVolume(node string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "local-" + node},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/var/local-path/" + node}},
			ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "data-" + node},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
}
