package exchange

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

type openRecord struct {
	px   cluster.Proxmox
	id   cluster.VMID // of the parking VM
	run  string
	node string
	late *Late // measures the record's requests
}

func (r openRecord) vm(ctx context.Context) (cluster.VM, error) {
	park, err := ConfigOf(ctx, r.px, r.id)
	return park, fault.Prefix(fmt.Sprintf("look up parking VM %d", r.id), err)
}

func (r openRecord) read(ctx context.Context) (cluster.VM, parking.Record, error) {
	park, err := r.vm(ctx)
	if err != nil {
		return park, parking.Record{}, err
	}
	rec, ok, err := parking.ReadRecord(park)
	if err == nil && !ok {
		err = parking.DescriptionChanged(park, r.node)
	}
	return park, rec, err
}

func (r openRecord) update(ctx context.Context, change func(*parking.Record)) error {
	park, err := r.vm(ctx)
	if err != nil {
		return err
	}
	return r.change(ctx, park, change)
}

// change is update for a parking VM that was just read: its digest proves that nothing has changed since. It also
// removes the requests that can't come any more.
func (r openRecord) change(ctx context.Context, park cluster.VM, change func(*parking.Record)) error {
	return ChangeRecord(ctx, r.px, park, r.run, r.late.Forgetting(park.ID, change))
}

// mayCome reports whether any of these requests, of the record as read, may still come.
func (r openRecord) mayCome(rec parking.Record, which ...string) bool {
	return r.late.left(r.id, rec.Sent, which) > 0
}

func (r openRecord) await(ctx context.Context, say func(string), which ...string) error {
	return r.awaitUnless(ctx, say, func(context.Context) (bool, error) { return false, nil }, which...)
}

func (r openRecord) awaitUnless(
	ctx context.Context, say func(string), so func(context.Context) (bool, error), which ...string,
) error {
	park, rec, err := r.read(ctx)
	if err != nil {
		return err
	}
	return r.late.awaitUnless(ctx, []parking.Parking{{VM: park, Record: rec}}, which, say, so)
}

// sending records a request, sends it, and removes it from the record once it is answered. within is how long
// Proxmox may take for the request. If an earlier request of the same kind is unanswered, the record stays: an
// answer to the new request proves nothing about the old one.
func (r openRecord) sending(
	ctx context.Context, what string, within time.Duration, send func(context.Context) error,
) error {
	park, rec, err := r.read(ctx)
	if err != nil {
		return err
	}
	earlier := r.mayCome(rec, what)
	if !earlier {
		r.late.restart(r.id, what)
	}
	if now := rec.Sent.With(what, within); !maps.Equal(now, rec.Sent) {
		if err := r.change(ctx, park, func(rec *parking.Record) { rec.Sent = rec.Sent.With(what, within) }); err != nil {
			return err
		}
	}
	sendCtx, unanswered := cluster.WithUnanswered(ctx)
	err = send(sendCtx)
	switch {
	case fault.KindOf(err) == fault.Claimed: // the record belongs to another run
		return err
	case unanswered() || ctx.Err() != nil || errors.Is(err, cluster.ErrLostAnswer) || errors.Is(err, context.DeadlineExceeded):
		r.late.restart(r.id, what)
		return err
	case earlier:
		return err
	}
	r.late.answered(r.id, what)
	return errors.Join(err, r.update(ctx, func(rec *parking.Record) { rec.Sent = rec.Sent.Without(what) }))
}

// ChangeRecord changes the open record of a run on its parking VM.
func ChangeRecord(ctx context.Context, px cluster.Editor, park cluster.VM, run string, change func(*parking.Record)) error {
	rec, ok, err := parking.ReadRecord(park)
	switch {
	case err != nil:
		return err
	case !ok:
		return parking.DescriptionChanged(park, "a node")
	case !rec.Open || rec.Run != run:
		return fault.ParkedHalf.Refusedf("%s no longer has an open record of run %s: another run was here", park, run)
	}
	change(&rec)
	return WriteRecord(ctx, px, park, rec)
}

// WriteRecord replaces the record of the parking VM. Proxmox accepts a change if the digest is that of what was
// read, and the digest covers only the content (PVE/QemuServer.pm, parse_vm_config). So no two records of a VM may
// be equal. Otherwise, when another process has brought the VM back to the same content, a late write by a dead
// process could still match, and close the record in the middle of the other's work.
func WriteRecord(ctx context.Context, px cluster.Editor, park cluster.VM, rec parking.Record) error {
	was, _, err := parking.ReadRecord(park)
	if err != nil {
		return err
	}
	rec.Parking, rec.Written = park.ID, was.Written+1
	description, err := rec.Description()
	if err != nil {
		return err
	}
	err = px.SetConfig(ctx, park, map[string]string{"description": description, "protection": "1"}, nil)
	return fault.Prefix("write the record into "+park.String(), err)
}

// giveUp notes in the record that the exchange is cancelled. From then on recast only puts the old system disk back.
func (r *Replace) giveUp(ctx context.Context) error {
	if r.Restore != nil {
		return fault.ParkedHalf.Refusedf("a rollback of VM %d can't be cancelled: it is finished, and then undone", r.VM.ID)
	}
	return r.record().update(ctx, func(rec *parking.Record) { rec.PutBack = true })
}

// CloseRecord ends the exchange: its record is no longer open.
func (r *Replace) CloseRecord(ctx context.Context) error {
	return r.closed(r.record().update(ctx, (*parking.Record).Close))
}

func (r *Replace) closed(err error) error {
	if err != nil || r.Forget == nil {
		return err
	}
	return r.Forget()
}

// LateQueue bounds how long Proxmox may take to begin a request. A request outlives its sender in the queues before a
// worker of pvedaemon. A proxy in front waits 60 s and then answers 504 (nginx, proxy_read_timeout); pveproxy waits 30
// s and then answers 596 (PVE/APIServer/AnyEvent.pm, proxy_request). pvedaemon has three workers, and each may be
// blocked by a lock for 10 s or by a hanging storage for a minute. After that the task itself waits up to 10 s for the
// VM's lock. Any wait that recast asks Proxmox for is added to this.
const LateQueue = 5 * time.Minute

const SentDelete, SentStart = "delete", "start"

// SwitchesOn lists the requests that would start a VM while its disks are moved.
var SwitchesOn = []string{SentStart, cluster.SentAddHA}

type lateKey struct {
	parking cluster.VMID
	what    string
}

// Late remembers since when this process has known of each unanswered request. It measures with
// this process's own clock, so no two clocks are compared. It is safe for concurrent use.
type Late struct {
	mu     sync.Mutex
	since  map[lateKey]time.Time
	looked bool // at every record of the cluster; since has all later requests
}

func (l *Late) restart(park cluster.VMID, what string) {
	l.mu.Lock()
	delete(l.since, lateKey{park, what})
	l.mu.Unlock()
	l.saw(park, parking.Sent{what: 0})
}

func (l *Late) answered(parking cluster.VMID, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.since, lateKey{parking, what})
}

// Await waits until none of these requests can come any more, and says why it waits.
func (l *Late) Await(ctx context.Context, parkings []parking.Parking, which []string, say func(string)) error {
	return l.awaitUnless(ctx, parkings, which, say, func(context.Context) (bool, error) { return false, nil })
}

func (l *Late) awaitUnless(ctx context.Context, parkings []parking.Parking, which []string, say func(string), so func(context.Context) (bool, error)) error {
	w := wait.For{Name: "late requests", Every: time.Second, Seen: say}
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		var waits []string
		for _, p := range parkings {
			for _, what := range which {
				if l.left(p.VM.ID, p.Record.Sent, []string{what}) > 0 {
					within := time.Duration(p.Record.Sent[what]) * time.Second
					waits = append(waits, fmt.Sprintf("%s: waiting until it can't any more, %s at most", p.LateOne(what), within))
				}
			}
		}
		if len(waits) == 0 {
			return true, "", nil
		}
		over, err := so(ctx)
		return over, strings.Join(waits, "; "), err
	})
}

// Forgetting extends a change of a record: it also removes requests that can't come any more.
func (l *Late) Forgetting(park cluster.VMID, change func(*parking.Record)) func(*parking.Record) {
	return func(rec *parking.Record) {
		change(rec)
		for what := range rec.Sent {
			if l.left(park, rec.Sent, []string{what}) <= 0 {
				rec.Sent = rec.Sent.Without(what)
			}
		}
	}
}

// left returns for how much longer any of these requests may come; 0: none can.
func (l *Late) left(parking cluster.VMID, s parking.Sent, which []string) (longest time.Duration) {
	if len(s) == 0 {
		return 0
	}
	l.saw(parking, s)
	l.mu.Lock()
	defer l.mu.Unlock()
	for what, seconds := range s {
		if slices.Contains(which, what) { // monotonic: setting the clock forward shortens nothing
			longest = max(longest, time.Duration(seconds)*time.Second-time.Since(l.since[lateKey{parking, what}]))
		}
	}
	return longest
}

// None reports that no record of the cluster has a request. After a look at every record this stays known, because
// the holder of the claim writes all later requests.
func (l *Late) None() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.looked && len(l.since) == 0
}

func (l *Late) saw(parking cluster.VMID, s parking.Sent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since == nil {
		l.since = map[lateKey]time.Time{}
	}
	for what := range s {
		if _, known := l.since[lateKey{parking, what}]; !known {
			l.since[lateKey{parking, what}] = time.Now()
		}
	}
}

// SawAll notes that every record of the cluster was read.
func (l *Late) SawAll(parkings []parking.Parking) {
	for _, p := range parkings {
		l.saw(p.VM.ID, p.Record.Sent)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looked = true
}

// Remember reads what Proxmox knows of a node's VM, and of its system disk, when its replacement opens with this
// record.
func Remember(ctx context.Context, px cluster.Proxmox, vm cluster.VM, system cluster.Disk, opening parking.Record) (parking.Memory, error) {
	vm.DropCSI()
	ha, err := px.HAResource(ctx, vm.ID)
	if err != nil {
		return parking.Memory{}, fmt.Errorf("read what Proxmox HA has of %s: %w", vm, err)
	}
	if vm.Pool, err = px.Pool(ctx, vm.ID); err != nil {
		return parking.Memory{}, err
	}
	fw, err := rememberFirewall(ctx, px, vm, opening.Strategy)
	return parking.Memory{
		Firewall: fw, VM: vm, SystemKey: system.Key, DiskSerial: DiskSerial(opening.Run, opening.Node), HA: ha,
		Old: parking.KeptDisk{Run: opening.Run, Slot: system.Key, Options: cluster.OptionString(system)},
	}, err
}

// RequirePossible finds, while the node still runs, what would stop the exchange later.
func (r *Replace) RequirePossible(ctx context.Context) error {
	switch {
	case r.Strategy.System() == cluster.SystemKept && r.Restore == nil:
		return r.nothingKept()
	case !r.Strategy.Installs():
		_, err := r.marked()
		return err
	case r.Strategy.VM() == cluster.VMAgain:
		if err := cluster.RequireRemakeable(r.VM, r.HostArch); err != nil {
			return err
		}
	}
	return r.requireMakeable(ctx)
}

// OpenParking writes the open record into the parking VM of an earlier replacement, or into a new one. It calls
// meant with the VMID before it creates a VM.
func OpenParking(ctx context.Context, px cluster.Proxmox, opening parking.Record, mem parking.Memory, earlier *parking.Parking, ids []cluster.VMID, numbers *parking.Numbers, meant func(cluster.VMID) error) (cluster.VMID, parking.Record, error) {
	rec, err := opening.Opened(mem, earlier)
	switch {
	case err != nil:
		return 0, parking.Record{}, err
	case earlier == nil:
		id, err := CreateParking(ctx, px, mem.VM, rec, ids, numbers, meant)
		return id, rec, err
	case earlier.VM.Host != mem.VM.Host:
		return 0, parking.Record{}, fault.WithHint(fault.ParkedHalf.Refusedf("%s is not on %s, where VM %d is: disks can be handed over on one host only", earlier.VM, mem.VM.Host, mem.VM.ID),
			"on %s: %s", earlier.VM.Host, cluster.MigrateCommand(earlier.VM, mem.VM.Host))
	case earlier.Record.Open && earlier.Record.Run != rec.Run:
		return 0, parking.Record{}, fault.ParkedHalf.Refusedf("%s has an open record of run %s: that replacement has to be ended first", earlier.VM, earlier.Record.Run)
	}
	return earlier.VM.ID, rec, WriteRecord(ctx, px, earlier.VM, rec)
}

// CreateParking takes the first free VMID; if another process takes it first, it tries the next. It uses an empty
// parking VM of the node, which comes from an earlier request of ours that finished late.
func CreateParking(ctx context.Context, px cluster.Proxmox, vm cluster.VM, rec parking.Record, ids []cluster.VMID, numbers *parking.Numbers, meant func(cluster.VMID) error) (id cluster.VMID, err error) {
	end, err := numbers.Turn(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { end(err == nil) }()
	for _, id := range numbers.InOrder(rec.Node, ids) {
		if numbers.Others(rec.Node, id) {
			continue
		}
		there, err := px.VMConfig(ctx, id)
		if errors.Is(err, cluster.ErrNotFound) {
			numbers.Next(rec.Node, id)
			if err := meant(id); err != nil {
				return 0, err
			}
			err = MakeParking(ctx, px, vm, rec, id)
			if err == nil || !errors.Is(err, cluster.ErrExists) {
				return id, err
			}
			there, err = px.VMConfig(ctx, id)
		}
		if err == nil {
			there, err = formed(ctx, px, there)
		}
		if err != nil {
			return 0, fmt.Errorf("look up VM %d: %w", id, err)
		}
		late, is := LateParking(there, rec.Cluster)
		switch {
		case is && late.Node == rec.Node && late.VMID == rec.VMID && there.Host == vm.Host:
			return id, errors.Join(meant(id), WriteRecord(ctx, px, there, rec))
		case is:
			numbers.Met(late.Node, id)
		}
	}
	return 0, fault.WithHint(fault.ParkedHalf.Refusedf("no VMID is free for the parking VM of %s", rec.Node), "widen proxmox.vmids")
}

// formed waits until a VM that is being created has its configuration: as long as a task of ours creates it, and up
// to CreationTakes for another token's task. A VM whose creation was killed never gets its configuration.
func formed(ctx context.Context, px cluster.Proxmox, vm cluster.VM) (cluster.VM, error) {
	within := time.Now().Add(CreationTakes)
	err := wait.Until(ctx, wait.For{Name: "creation of " + vm.String(), Every: time.Second, Timeout: OwnTasksTimeout}, func(ctx context.Context) (bool, string, error) {
		if !cluster.Forming(vm) || time.Now().After(within) {
			return true, "", nil
		}
		running, err := px.OwnTasksOf(ctx, vm.Host, vm.ID)
		if err != nil {
			return false, "", err
		}
		if len(running) > 0 {
			within = time.Now().Add(CreationTakes)
		}
		now, err := px.VMConfig(ctx, vm.ID)
		if err == nil {
			vm = now
		}
		return false, "it is locked (create)", err
	})
	return vm, err
}

// DiskSerial names the blank system disk of one node in one run, within the 20
// characters that every disk bus of QEMU passes on.
func DiskSerial(run, node string) string {
	sum := sha256.Sum256([]byte(run + "/" + node))
	return "recast-" + hex.EncodeToString(sum[:])[:12]
}

// OwnTasksTimeout bounds the wait for tasks that Proxmox still runs for an earlier recast process.
// The longest, the copy of an upload, takes minutes.
const OwnTasksTimeout = 10 * time.Minute

// CreationTakes bounds how long Proxmox takes to create a VM without disks, unless a task of ours
// shows that it still does.
const CreationTakes = 30 * time.Second

// LateParking returns the record of a parking VM of the cluster to which no disk was ever handed over.
func LateParking(vm cluster.VM, clusterName string) (parking.Record, bool) {
	rec, found, err := parking.ReadRecord(vm)
	return rec, found && err == nil && rec.Cluster == clusterName && parking.Parking{VM: vm, Record: rec}.Empty()
}

// MakeParking creates the parking VM of a record under a VMID, protected and never started.
func MakeParking(ctx context.Context, px cluster.Proxmox, vm cluster.VM, rec parking.Record, id cluster.VMID) error {
	rec.Parking = id
	description, err := rec.Description()
	if err != nil {
		return err
	}
	config := map[string]string{"name": cluster.ParkingName(rec.Node), "memory": "16", "protection": "1", "onboot": "0", "description": description}
	if vm.Pool != "" {
		config["pool"] = vm.Pool
	}
	return fault.Prefix(fmt.Sprintf("create parking VM %d on %s", id, vm.Host), px.CreateVM(ctx, vm.Host, id, config))
}

// TouchedBy returns whether an earlier run of this cluster may have sent Proxmox a request for a VM. It accepts
// recast's own VMIDs, the VMIDs and names of the nodes, and every VM that a record of the cluster names. A run of
// another cluster may use the same token at the same time; its tasks do not count.
func TouchedBy(vms []cluster.VM, clusterName string, wanted []cluster.Wanted, own func(cluster.VMID) bool) (func(cluster.VMID) bool, error) {
	ids := map[cluster.VMID]bool{}
	for _, w := range wanted {
		ids[w.VMID], ids[w.Holder] = true, true
		for _, vm := range vms {
			if vm.Name == w.Name {
				ids[vm.ID] = true
			}
		}
	}
	parkings, err := parking.Readable(vms, clusterName)
	for _, p := range parkings {
		ids[p.VM.ID], ids[p.Record.VMID] = true, true
		for _, d := range p.Record.Disks {
			ids[d.Holder] = true
		}
	}
	return func(id cluster.VMID) bool { return ids[id] || own(id) }, err
}

// AwaitOwnTasks waits until Proxmox has finished the tasks of an earlier recast process, killed
// since, for the VMs that of accepts; see TouchedBy. Such a task could change a VM during this run.
func AwaitOwnTasks(ctx context.Context, px cluster.Tasks, of func(cluster.VMID) bool, poll time.Duration, say func(string)) error {
	w := wait.For{Name: "tasks of an earlier recast to end", Every: poll, Timeout: OwnTasksTimeout, Seen: say}
	return cluster.AwaitTasks(ctx, w, func(ctx context.Context) ([]string, error) { return px.OwnTasks(ctx, of) })
}
