package schedules

import (
	"fmt"
	"maps"
	"path/filepath"
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
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/simtest"
	"github.com/recast-sh/recast/internal/sim/talosapi"
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

func (p *play) startFound(id int) {
	node := p.nodeWhere(func(n sim.Node) bool { return n.VMID == id })
	if node >= 0 {
		p.startAgain(node)
	} else if vm, there := p.vm(id); there {
		p.tell("start VM %d: %s", id, said(p.task(p.lab.World.Start("", vm.Host, vm.ID))))
	}
}

func (p *play) reboot(node int) {
	vm, err := p.vmOf(node)
	if err == nil {
		err = p.task(p.lab.World.Reset("root@pam", vm.Host, vm.ID))
	}
	p.tell("reboot %s: %s", p.lab.Nodes[node].Name, said(err))
	sleep(p.ctx, 2*time.Minute)
}

func (p *play) giveUp(name string) {
	c := p.lab.Client()
	c.Run = p.nextRun()
	_, err := c.Recover(p.ctx, name)
	p.tell("recover %s: %s", name, said(err))
}

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
		p.mu.Lock()
		over := p.over
		p.mu.Unlock()
		if _, taken := numbered(vms, id); taken || over {
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
	defer p.others.mu.Unlock()
	if p.others.vms[id] != nil {
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

// settleIn makes another person's VM with a disk; both are removed in the end.
func (p *play) settleIn(host string, id int) (func(), error) {
	name := fmt.Sprintf("stranger-%d", id)
	media := world.NewMedia([]byte("what is on " + name)) // it must never be lost
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
