package world

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/record"
)

var errInterrupted = errors.New("received interrupt")

// Task is a snapshot of a worker task.
type Task struct {
	UPID, Host, Type, ID, User string
	PID, PStart                int
	Start, End                 time.Time // by the host's clock
	Running                    bool
	ExitStatus                 string // "OK", "WARNINGS: 1" or the error
	Log                        []string
}

type task struct {
	Task
	world    *World
	stop     chan struct{}
	stopped  bool
	killed   bool // by kill -9 or with the host: nothing cleans up
	warnings int
	failure  failure // the injected failure
	began    time.Time
	done     chan struct{}
}

// startTask starts a worker; mu must be held. run is called without mu. After Close, the task has ended before it
// begins.
func (w *World) startTask(host, kind, id, user string, run func(*task) error) string {
	user = cmp.Or(user, "root@pam") // as in a host's shell
	w.lastPID++
	now, ticks := w.now(host), int(w.uptime(host)/(time.Second/100)) // since the boot (proc_pid_stat(5), starttime)
	t := &task{world: w, began: time.Now(), stop: make(chan struct{}), done: make(chan struct{})}
	t.Task = Task{
		Host: host, Type: kind, ID: id, User: user, PID: 1000 + w.lastPID, PStart: ticks,
		Start: now, Running: true,
	}
	t.UPID = fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:%s:", host, t.PID, t.PStart, now.Unix(), kind, id, user)
	w.tasks = append(w.tasks, t)
	t.failure = w.takeFailure(func(match string) bool { return match == kind })
	if !w.spawn(func() { t.finish(run(t)) }) {
		t.Running, t.ExitStatus, t.End = false, "unexpected status", now
		close(t.done)
	}
	return t.UPID
}

var upidPattern = regexp.MustCompile(`^UPID:([a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{8,9}):([0-9A-Fa-f]{8}):([^:\s]+):([^:\s]*):([^:\s]+):$`)

// ParseUPID reads the node and the user from a UPID (UPID.pm).
func ParseUPID(upid string) (node, user string, ok bool) {
	match := upidPattern.FindStringSubmatch(upid)
	if match == nil {
		return "", "", false
	}
	return match[1], match[8], true
}

// begin waits for the duration of the work, then returns an injected failure. Every worker calls it before it acts.
func (t *task) begin(d time.Duration) error {
	if err := t.delay(d); err != nil {
		return err
	}
	if t.failure.message != "" && !t.failure.warns {
		return errors.New(t.failure.message)
	}
	return nil
}

func (t *task) finish(err error) {
	t.world.mu.Lock()
	defer t.world.mu.Unlock()
	t.Running, t.End = false, t.world.now(t.Host)
	t.world.timeline.Add(record.Delay{VMIDs: vmidsIn(t.ID), What: t.Type, From: t.began, To: time.Now()})
	if t.failure.warns && err == nil && !t.killed {
		t.warnf("%s", t.failure.message)
	}
	switch {
	case errors.Is(err, ErrClosed), t.killed:
		t.ExitStatus = "unexpected status"
	case err != nil:
		t.ExitStatus = taskMessage(err)
	case t.warnings > 0:
		t.ExitStatus = fmt.Sprintf("WARNINGS: %d", t.warnings)
	default:
		t.ExitStatus = "OK"
	}
	if !t.killed {
		t.Log = append(t.Log, map[bool]string{true: "TASK ", false: "TASK ERROR: "}[err == nil]+t.ExitStatus)
	}
	t.world.noteNames()
	close(t.done)
}

var vmidPattern = regexp.MustCompile(`\d{3,}`)

// vmidsIn returns the VMs of a task: two for a disk move ("100-scsi1>200-scsi5").
func vmidsIn(id string) []int {
	var ids []int
	for _, s := range vmidPattern.FindAllString(id, -1) {
		ids = append(ids, NumberOr(s, 0))
	}
	return ids
}

// taskMessage returns an error in one line, including messages about single parameters.
func taskMessage(err error) string {
	e, ok := errors.AsType[*Error](err)
	if !ok || len(e.Params) == 0 {
		return err.Error()
	}
	var parts []string
	for name, problem := range e.Params {
		parts = append(parts, name+": "+strings.TrimSpace(problem))
	}
	slices.Sort(parts)
	return e.Message + " " + strings.Join(parts, "; ")
}

func (t *task) delay(d time.Duration) error { return t.world.delay(d, t.stop) }

// logf adds a line to the log; mu must be held.
func (t *task) logf(format string, args ...any) { t.Log = append(t.Log, fmt.Sprintf(format, args...)) }

// printf does the work of logf for callers that don't hold mu.
func (t *task) printf(format string, args ...any) {
	defer t.world.mu.changing()()
	t.logf(format, args...)
}

// warnf adds a warning to the log; mu must be held.
func (t *task) warnf(format string, args ...any) {
	t.warnings++
	t.logf("WARN: "+format, args...)
}

// LookupTask reads a task; false if no task has that UPID.
func (w *World) LookupTask(upid string) (Task, bool) {
	defer w.mu.looking()()
	t := w.task(upid)
	if t == nil {
		return Task{}, false
	}
	return t.view(), true
}

// Tasks lists all tasks, latest first.
func (w *World) Tasks() []Task {
	defer w.mu.looking()()
	var list []Task
	for _, t := range slices.Backward(w.tasks) {
		list = append(list, t.view())
	}
	return list
}

// RotateTasks drops the tasks that have ended from the hosts' lists, as Proxmox does with old ones: API2/Tasks.pm reads
// /var/log/pve/tasks/index and index.1 only.
func (w *World) RotateTasks() {
	defer w.mu.changing()()
	w.tasks = slices.DeleteFunc(w.tasks, func(t *task) bool { return !t.Running })
}

// kill ends a worker where it is; mu must be held.
func (t *task) kill() {
	t.killed = true
	if !t.stopped {
		t.stopped = true
		close(t.stop)
	}
}

// KillTask ends a running task's worker, like kill -9.
func (w *World) KillTask(upid string) {
	defer w.mu.changing()()
	if t := w.task(upid); t != nil && t.Running {
		t.kill()
	}
}

// StopTask ends a running task.
func (w *World) StopTask(upid string) {
	defer w.mu.changing()()
	if t := w.task(upid); t != nil && !t.stopped {
		t.stopped = true
		close(t.stop)
	}
}

// WaitTask waits until a task has ended and returns it.
func (w *World) WaitTask(upid string) (Task, bool) {
	if t := look(w, func() *task { return w.task(upid) }); t != nil {
		<-t.done
	}
	return w.LookupTask(upid)
}

func (w *World) task(upid string) *task {
	i := slices.IndexFunc(w.tasks, func(t *task) bool { return t.UPID == upid })
	if i < 0 {
		return nil
	}
	return w.tasks[i]
}

func (t *task) view() Task {
	out := t.Task
	out.Log = slices.Clone(t.Log)
	return out
}

type failure struct {
	match   string
	message string
	warns   bool // the task does its work and warns
}

// FailNext makes the next task of a type ("qmcreate"), or the next request ("POST /nodes/pve1/qemu", path
// without /api2/json, by prefix), fail with message and without any effect.
func (w *World) FailNext(match, message string) {
	w.set(func() { w.failures = append(w.failures, failure{match: match, message: message}) })
}

// WarnNext makes the next task of a type do its work and end with a warning.
func (w *World) WarnNext(taskType, message string) {
	w.set(func() { w.failures = append(w.failures, failure{match: taskType, message: message, warns: true}) })
}

// PendingFailures lists the failures of FailNext, WarnNext and StopNextMove that have not happened yet.
func (w *World) PendingFailures() (pending []string) {
	defer w.mu.looking()()
	for _, f := range w.failures {
		pending = append(pending, f.match+": "+f.message)
	}
	for _, stop := range w.moveStops {
		pending = append(pending, fmt.Sprintf("a move stops: %+v", stop))
	}
	return pending
}

// NoMoreFailures cancels failures of FailNext, WarnNext, StopNextMove and BusyStorage that have not happened yet.
func (w *World) NoMoreFailures() {
	defer w.mu.changing()()
	w.failures, w.moveStops = nil, nil
	for _, s := range w.storages {
		s.busy = 0
	}
}

// FailRequest consumes and returns the failure for this request; nil if none is pending.
func (w *World) FailRequest(method, path string) error {
	defer w.mu.looking()()
	f := w.takeFailure(func(match string) bool {
		return strings.Contains(match, " ") && strings.HasPrefix(method+" "+path, match)
	})
	if f.match == "" {
		return nil
	}
	return failf("%s", f.message)
}

// takeFailure consumes and returns the first failure of that match; the zero failure if none is pending.
func (w *World) takeFailure(is func(match string) bool) failure {
	i := slices.IndexFunc(w.failures, func(f failure) bool { return is(f.match) })
	if i < 0 {
		return failure{}
	}
	f := w.failures[i]
	w.failures = slices.Delete(w.failures, i, i+1)
	return f
}

// FillStorage leaves no free space on a storage until FreeStorage.
func (w *World) FillStorage(id string) { w.ofStorage(id, func(s *storage) { s.full = true }) }

// FreeStorage undoes FillStorage.
func (w *World) FreeStorage(id string) { w.ofStorage(id, func(s *storage) { s.full = false }) }

// ReplicationJob copies a VM's volumes to another host.
type ReplicationJob struct {
	ID       string // "101-0": the VMID and a number
	Guest    int
	Target   string // the other host
	Schedule string
	Comment  string
	Disabled bool
	NextSync time.Time // zero: never
	Running  bool
	LastSync time.Time // zero: none yet
	Fails    int       // since then
	Error    string    // of the latest failure
	done     *replicated
}

// BackupJob is an entry of the cluster's backup schedule.
type BackupJob struct {
	ID       string // "backup-1f2e3d4c-5b6a"
	Disabled bool
	Schedule string
	Storage  string
	All      bool
	VMIDs    []int
	Exclude  []int  // of All
	Pool     string // instead of All and VMIDs
	Host     string // runs on that host only
	Mode     string // "snapshot", "suspend", "stop"
	NextRun  time.Time
	Comment  string
}

func (w *World) AddReplication(j ReplicationJob) {
	w.set(func() { w.replication = append(w.replication, j) })
}

func (w *World) RemoveReplication(id string) {
	w.set(func() {
		w.replication = slices.DeleteFunc(w.replication, func(j ReplicationJob) bool { return j.ID == id })
	})
}

func (w *World) Replication() []ReplicationJob { return cloned(w, &w.replication) }

// replicates returns the first job that replicates a VM; "" if no job does.
func (w *World) replicates(vmid int) string {
	for _, j := range w.replication {
		if j.Guest == vmid {
			return j.ID
		}
	}
	return ""
}

// AddBackupJob adds an entry to the backup schedule. It never runs on its own: see StartBackup.
func (w *World) AddBackupJob(j BackupJob) { w.set(func() { w.backups = append(w.backups, j) }) }

// RemoveBackupJob removes an entry from the backup schedule.
func (w *World) RemoveBackupJob(id string) {
	w.set(func() { w.backups = slices.DeleteFunc(w.backups, func(j BackupJob) bool { return j.ID == id }) })
}

func (w *World) BackupJobs() []BackupJob { return cloned(w, &w.backups) }

func (w *World) purgeJobs(vmid int) {
	w.replication = slices.DeleteFunc(w.replication, func(j ReplicationJob) bool { return j.Guest == vmid })
	for i := range w.backups {
		other := func(id int) bool { return id == vmid }
		w.backups[i].VMIDs = slices.DeleteFunc(slices.Clone(w.backups[i].VMIDs), other)
		w.backups[i].Exclude = slices.DeleteFunc(slices.Clone(w.backups[i].Exclude), other)
	}
}

// replicated is a job's state: the target's snapshot of each volume, by the volume's name at that time.
type replicated struct {
	remote map[string]int64
	syncs  int64
}

// RunReplication runs a VM's job once, like pvesr: the job fails if the target has a different volume of the same
// name (pve-guest-common, Replication.pm, find_common_replication_snapshot).
func (w *World) RunReplication(id string) error {
	defer w.mu.changing()()
	i := slices.IndexFunc(w.replication, func(j ReplicationJob) bool { return j.ID == id })
	if i < 0 {
		return failf("no such replication job '%s'", id)
	}
	j := &w.replication[i]
	err := w.replicate(j)
	if err != nil {
		j.Fails, j.Error = j.Fails+1, err.Error()
		return err
	}
	j.Fails, j.Error, j.LastSync = 0, "", time.Now()
	return nil
}

func (w *World) replicate(j *ReplicationJob) error {
	v := w.vms[j.Guest]
	if v == nil {
		return failf("no such guest '%d'", j.Guest)
	}
	volumes, err := w.replicatable(v)
	if err != nil {
		return err
	}
	if j.done == nil {
		j.done = &replicated{remote: map[string]int64{}}
	}
	for _, volid := range slices.Sorted(maps.Keys(volumes)) {
		have, there := j.done.remote[volid]
		if there && volumes[volid].synced[j.ID] != have {
			return failf("No common base snapshot on volume(s) %s\nPlease remove the problematic volume(s) from the replication target or delete and re-create the whole job %s", volid, j.ID)
		}
	}
	j.done.syncs++
	clear(j.done.remote) // the target removes volumes that the VM no longer has (prepare_local_job)
	for volid, vol := range volumes {
		if vol.synced == nil {
			vol.synced = map[string]int64{}
		}
		vol.synced[j.ID], j.done.remote[volid] = j.done.syncs, j.done.syncs
	}
	return nil
}

// replicatable does the work of get_replicatable_volumes (qemu-server, QemuConfig.pm).
func (w *World) replicatable(v *vm) (map[string]*volume, error) {
	out := map[string]*volume{}
	for _, d := range drivesIn(v.config) {
		if d.cdrom() || slices.Contains([]string{"0", "off", "no", "false"}, strings.ToLower(cmp.Or(d.options["replicate"], "1"))) {
			continue
		}
		s, vol, err := w.volume(d.volid, v.host)
		switch {
		case err != nil:
			return nil, err
		case s.Shared || volumeOwner(vol.name) != v.id:
		case !s.replicates():
			return nil, failf("missing replicate feature on volume '%s'", d.volid)
		default:
			out[d.volid] = vol
		}
	}
	return out, nil
}
