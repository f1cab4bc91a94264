package world

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// replicated is a job's state: the target's snapshot of each volume, by the volume's name
// at that time.
type replicated struct {
	remote map[string]int64
	syncs  int64
}

// RunReplication runs a VM's job once, like pvesr: it fails if the target has a different
// volume of the same name (pve-guest-common, Replication.pm,
// find_common_replication_snapshot).
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

// replicatable is get_replicatable_volumes (qemu-server, QemuConfig.pm).
func (w *World) replicatable(v *vm) (map[string]*volume, error) {
	out := map[string]*volume{}
	for _, key := range driveKeys(v.config) {
		d, err := parseDrive(key, v.config[key])
		if err != nil || d.empty() || d.cdrom() || slices.Contains([]string{"0", "off", "no", "false"}, strings.ToLower(cmp.Or(d.options["replicate"], "1"))) {
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
