package pveapi

import (
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/world"
)

func jobRoutes() []route {
	see := []demand{{"/", []string{"Sys.Audit"}}}
	return []route{
		{method: "GET", path: "/cluster/replication", handle: replicationJobs},
		{method: "GET", path: "/nodes/{node}/replication", params: []string{"guest"}, handle: replicationStatus},
		{method: "GET", path: "/cluster/backup", permit: see, handle: backupJobs},
	}
}

func replicationJobs(c *call) (any, error) {
	list := []object{}
	for _, j := range c.Replication() {
		if !c.may(vmPath(j.Guest), "VM.Audit") {
			continue
		}
		list = append(list, replicationEntry(j))
	}
	return list, nil
}

func replicationEntry(j world.ReplicationJob) object {
	_, number, _ := strings.Cut(j.ID, "-")
	out := object{"id": j.ID, "type": "local", "guest": j.Guest, "jobnum": atoi(number), "target": j.Target}
	addText(out, map[string]string{"schedule": j.Schedule, "comment": j.Comment})
	if j.Disabled {
		out["disable"] = 1
	}
	return out
}

// replicationStatus is what the VMs' host knows of their jobs.
func replicationStatus(c *call) (any, error) {
	here := map[int]bool{}
	for _, vm := range c.VMs() {
		here[vm.ID] = vm.Host == c.node()
	}
	list := []object{}
	for _, j := range c.Replication() {
		other := c.params["guest"] != "" && c.params["guest"] != strconv.Itoa(j.Guest)
		if other || !here[j.Guest] || !c.may(vmPath(j.Guest), "VM.Audit") {
			continue
		}
		entry := replicationEntry(j)
		entry["next_sync"], entry["last_sync"], entry["last_try"], entry["fail_count"], entry["vmtype"] = 0, 0, 0, 0, "qemu"
		if !j.NextSync.IsZero() {
			entry["next_sync"] = c.dated(c.node(), j.NextSync)
		}
		if !j.LastSync.IsZero() {
			entry["last_sync"] = c.dated(c.node(), j.LastSync)
		}
		if entry["fail_count"] = j.Fails; j.Error != "" {
			entry["error"] = j.Error
		}
		if j.Running {
			entry["pid"] = 4711
		}
		list = append(list, entry)
	}
	return list, nil
}

// dated is at by the clock of host.
func (c *call) dated(host string, at time.Time) int64 {
	return c.Clock(host).Add(time.Until(at)).Unix()
}

func addText(out object, values map[string]string) {
	for name, value := range values {
		if value != "" {
			out[name] = value
		}
	}
}

func backupJobs(c *call) (any, error) {
	list := []object{}
	for _, j := range c.BackupJobs() {
		list = append(list, c.backupEntry(j))
	}
	return list, nil
}

// backupEntry shows the set properties; a disabled job has no next-run.
func (c *call) backupEntry(j world.BackupJob) object {
	out := object{"id": j.ID, "type": "vzdump", "enabled": bit(!j.Disabled)}
	addText(out, map[string]string{
		"schedule": j.Schedule, "storage": j.Storage, "pool": j.Pool, "node": j.Host, "mode": j.Mode, "comment": j.Comment,
		"vmid": numbers(j.VMIDs), "exclude": numbers(j.Exclude),
	})
	if j.All {
		out["all"] = 1
	}
	if !j.NextRun.IsZero() && !j.Disabled {
		out["next-run"] = c.dated(c.host, j.NextRun)
	}
	return out
}

func numbers(ids []int) string {
	var list []string
	for _, id := range ids {
		list = append(list, strconv.Itoa(id))
	}
	return strings.Join(list, ",")
}
