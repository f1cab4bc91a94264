package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// Replicated is what a replication job is in the way of. Proxmox deletes no VM that
// has one. A blank system disk gets the name that the parked one had, and the
// target still has a volume of that name, of which the new one shares no snapshot:
// the whole job fails from then on (pve-guest-common, Replication.pm,
// find_common_replication_snapshot). A volume that can't be replicated Proxmox
// neither adds nor gives back to such a VM (qemu-server, API2/Qemu.pm, move_disk).
func (c Candidate) Replicated(s Strategy) []Obstacle {
	jobs := c.Found.Ties.Jobs
	if len(jobs) == 0 || s == Reimage && c.SystemErr == nil && c.leftOut(c.System) {
		return nil
	}
	var ids, remove, again []string
	for _, j := range jobs {
		ids = append(ids, j.ID)
		remove = append(remove, "pvesr delete "+j.ID)
		again = append(again, j.create())
	}
	why, lift := fmt.Sprintf("with which Proxmox neither deletes the VM nor gives it a disk on storage %s", c.System.Storage()), ""
	switch {
	case c.SystemErr != nil:
		why = "with which Proxmox does not delete the VM"
	case c.leftOut(c.System):
		why, lift = "with which Proxmox does not delete the VM", "; or use reimage"
	case c.onLocalZFS(c.System):
		why = fmt.Sprintf("with which Proxmox does not delete the VM, and which would fail for good: its target keeps the name that the new disk %s gets", c.System.Key)
		lift = fmt.Sprintf("; or leave %s out of it, and use reimage: qm set %d --%s %s",
			c.System.Key, c.VM.ID, c.System.Key, words.Quote(JoinOptions(c.System.Volid, strings.Join(c.System.With("replicate", "0"), ","))))
	}
	return []Obstacle{{Command: strings.Join(remove, " && "), Text: fmt.Sprintf("replication %s of the VM, %s: on %s %s, roll once pvesr list no longer shows it, then %s%s",
		strings.Join(ids, ", "), why, c.VM.Host, strings.Join(remove, " && "), strings.Join(again, " && "), lift)}}
}

// create makes the job again.
func (j ReplicationJob) create() string {
	command := fmt.Sprintf("pvesr create-local-job %s %s", j.ID, words.OrNone(j.Target))
	if j.Schedule != "" {
		command += " --schedule " + words.Quote(j.Schedule)
	}
	if j.Rate != "" {
		command += " --rate " + j.Rate
	}
	if j.Disabled {
		command += " --disable 1"
	}
	return command
}

// leftOut says whether replication leaves a disk alone which Proxmox would give
// back to a VM that has a job.
func (c Candidate) leftOut(d Disk) bool {
	on, said := parseBoolean(d.Option("replicate"))
	return said && !on && c.onLocalZFS(d)
}

// onLocalZFS says whether a disk is on the one kind of storage that can replicate
// (pve-storage, storage_can_replicate).
func (c Candidate) onLocalZFS(d Disk) bool {
	return slices.ContainsFunc(c.Observation.Storages, func(s Storage) bool { return s.Name == d.Storage() && s.Type == "zfspool" && !s.Shared })
}
