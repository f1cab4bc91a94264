package world

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

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

// replicatesTo reports whether a job copies the VM to that host.
func (w *World) replicatesTo(vmid int, target string) bool {
	return slices.ContainsFunc(w.replication, func(j ReplicationJob) bool { return j.Guest == vmid && j.Target == target })
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
	w.mu.Lock()
	defer w.mu.Unlock()
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
