package world

import (
	"slices"
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

// AddReplication gives a VM a replication job.
func (w *World) AddReplication(j ReplicationJob) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.replication = append(w.replication, j)
}

// RemoveReplication removes a replication job.
func (w *World) RemoveReplication(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.replication = slices.DeleteFunc(w.replication, func(j ReplicationJob) bool { return j.ID == id })
}

// Replication lists the replication jobs.
func (w *World) Replication() []ReplicationJob {
	w.mu.Look()
	defer w.mu.Unlock()
	return slices.Clone(w.replication)
}

// replicates is the first job that replicates a VM; "" if there is none.
func (w *World) replicates(vmid int) string {
	for _, j := range w.replication {
		if j.Guest == vmid {
			return j.ID
		}
	}
	return ""
}

// replicatesTo says whether a job copies the VM to that host.
func (w *World) replicatesTo(vmid int, target string) bool {
	return slices.ContainsFunc(w.replication, func(j ReplicationJob) bool { return j.Guest == vmid && j.Target == target })
}

// AddBackupJob adds an entry to the backup schedule. It never runs on its own: see StartBackup.
func (w *World) AddBackupJob(j BackupJob) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.backups = append(w.backups, j)
}

// RemoveBackupJob removes an entry from the backup schedule.
func (w *World) RemoveBackupJob(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.backups = slices.DeleteFunc(w.backups, func(j BackupJob) bool { return j.ID == id })
}

// BackupJobs lists the backup schedule.
func (w *World) BackupJobs() []BackupJob {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.backups)
}

// purgeJobs removes a VM from every job.
func (w *World) purgeJobs(vmid int) {
	w.replication = slices.DeleteFunc(w.replication, func(j ReplicationJob) bool { return j.Guest == vmid })
	for i := range w.backups {
		other := func(id int) bool { return id == vmid }
		w.backups[i].VMIDs = slices.DeleteFunc(slices.Clone(w.backups[i].VMIDs), other)
		w.backups[i].Exclude = slices.DeleteFunc(slices.Clone(w.backups[i].Exclude), other)
	}
}
