package pve

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
)

// backups describes the VM's running and due backups.
func (l *look) backups(ctx context.Context, vm cluster.VM) ([]string, error) {
	tasks, errTasks := once(ctx, l, "tasks/"+vm.Host, func() ([]api.UPID, error) { return l.activeTasks(ctx, vm.Host) })
	schedule, errJobs := once(ctx, l, "backups", func() (s backupSchedule, err error) {
		s.asOf, err = l.conn.GetDated(ctx, "/cluster/backup", &s.jobs)
		return s, err
	})
	if err := errors.Join(errTasks, errJobs); err != nil {
		return nil, err
	}
	// Proxmox computed NextRun by the clock in the answer's Date header.
	jobs, now := schedule.jobs, schedule.asOf
	if now.IsZero() && len(jobs) > 0 { // a proxy removed the header
		var err error
		if now, err = l.clockOf(ctx, vm.Host); err != nil {
			return nil, err
		}
	}
	var busy []string
	if vm.Lock == "backup" {
		busy = append(busy, "locked by a backup")
	}
	for _, t := range tasks {
		switch {
		case t.Type != "vzdump":
		case t.ID == strconv.Itoa(int(vm.ID)):
			busy = append(busy, "running task "+t.String())
		case t.ID == "":
			// A backup of several VMs names none of them (API2/VZDump.pm) and locks
			// each only when its turn comes.
			busy = append(busy, "running task "+t.String()+" of several VMs")
		}
	}
	if slices.ContainsFunc(jobs, func(j backupJob) bool { return j.Pool != "" }) {
		rows, err := once(ctx, l, "pools", func() ([]resource, error) { return l.resources(ctx) })
		if err == nil {
			vm.Pool, err = poolOf(rows, vm.ID)
		}
		if err != nil {
			return nil, err
		}
	}
	for _, j := range jobs {
		if !j.includes(vm) {
			continue
		}
		if when := due(int64(j.NextRun), now); when != "" {
			busy = append(busy, "backup job "+j.ID+" "+when)
		}
	}
	return busy, nil
}

// backupSchedule is the cluster's backup schedule.
type backupSchedule struct {
	jobs []backupJob
	asOf time.Time // by the clock of the host that computed it; zero if unknown
}

// backupJob is an entry of the cluster's backup schedule.
type backupJob struct {
	ID                        string
	Enabled                   json.RawMessage // absent means on
	Node, Pool, VMID, Exclude string
	All                       json.RawMessage
	NextRun                   flexInt `json:"next-run"` // computed by Proxmox for each request
}

// includes reports whether the job is enabled and covers the VM. As in
// get_included_guests (VZDump.pm), a pool takes precedence over a list, and a list
// over all.
func (j backupJob) includes(vm cluster.VM) bool {
	if len(j.Enabled) > 0 && !toBool(j.Enabled) || j.Node != "" && j.Node != vm.Host {
		return false
	}
	id := strconv.Itoa(int(vm.ID))
	switch {
	case j.Pool != "":
		return j.Pool == vm.Pool
	case j.VMID != "":
		return slices.Contains(splitList(j.VMID), id)
	}
	// A list of exclusions alone means all others (verify_vzdump_parameters).
	return (toBool(j.All) || j.Exclude != "") && !slices.Contains(splitList(j.Exclude), id)
}

// splitList splits a Proxmox list at commas, semicolons and blanks.
func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(",; \t\n\x00", r) })
}

// due says when a backup with that start time (Unix seconds) is due; "" if later
// than cluster.BusyWithin. now is the time at the host that computed it: our clock
// may differ. 0 means that Proxmox does not report the time.
func due(unix int64, now time.Time) string {
	at := time.Unix(unix, 0)
	switch {
	case unix == 0:
		return "due at a time that Proxmox does not report"
	case at.After(now.Add(cluster.BusyWithin)):
		return ""
	}
	return "due at " + at.UTC().Format("2006-01-02 15:04 MST")
}

// replicationJobs lists the VM's replication jobs, disabled ones too: each
// makes Proxmox refuse to delete the VM (Qemu.pm, destroy_vm).
func (l *look) replicationJobs(ctx context.Context, id cluster.VMID) ([]cluster.ReplicationJob, error) {
	byGuest, err := once(ctx, l, "replication jobs", func() (map[cluster.VMID][]cluster.ReplicationJob, error) {
		var rows []struct {
			ID, Target, Schedule string
			Guest                flexInt
			Rate, Disable        json.RawMessage
		}
		err := l.conn.Get(ctx, "/cluster/replication", &rows)
		jobs := map[cluster.VMID][]cluster.ReplicationJob{}
		for _, r := range rows {
			id := cluster.VMID(r.Guest)
			jobs[id] = append(jobs[id], cluster.ReplicationJob{ID: r.ID, Target: r.Target, Schedule: r.Schedule, Rate: scalar(r.Rate), Disabled: toBool(r.Disable)})
		}
		return jobs, err
	})
	return byGuest[id], err
}

// replication is a job as its guest's host reports it.
type replication struct {
	ID    string
	Guest flexInt
	PID   flexInt // of the running worker
}

// replications describes the VM's running replication jobs. A job that is only due
// does not block: most are due every few minutes. Only the VM's host knows.
func (l *look) replications(ctx context.Context, vm cluster.VM, jobs []cluster.ReplicationJob) ([]string, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	rows, err := once(ctx, l, "replications/"+vm.Host, func() (rows []replication, err error) {
		err = l.conn.Get(ctx, "/nodes/"+url.PathEscape(vm.Host)+"/replication", &rows)
		return rows, err
	})
	if err != nil {
		return nil, err
	}
	var busy []string
	for _, r := range rows {
		if cluster.VMID(r.Guest) == vm.ID && r.PID != 0 {
			busy = append(busy, "replication job "+r.ID+" runs")
		}
	}
	return busy, nil
}

// clockOf returns the time of a host's clock.
func (l *look) clockOf(ctx context.Context, host string) (time.Time, error) {
	return once(ctx, l, "clock/"+host, func() (time.Time, error) { return l.clock(ctx, host) })
}
