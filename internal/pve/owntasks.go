package pve

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
)

// OwnTasks implements cluster.Tasks. Tasks of an earlier process of ours, killed
// since, keep running, on any host. A token always sees its own tasks
// (API2/Tasks.pm).
func (c *tasks) OwnTasks(ctx context.Context, of func(cluster.VMID) bool) ([]string, error) {
	var hosts []struct{ Node, Status string }
	if err := c.Get(ctx, "/nodes", &hosts); err != nil {
		return nil, fmt.Errorf("list hosts: %w", err)
	}
	var running []string
	var errs []error
	for _, h := range hosts {
		if h.Status == "offline" {
			continue // nothing runs there
		}
		tasks, err := c.activeTasks(ctx, h.Node)
		if err != nil {
			errs = append(errs, err)
		}
		for _, u := range tasks {
			if u.User == c.TokenID && slices.ContainsFunc(vmsOf(u), of) {
				running = append(running, u.String())
			}
		}
	}
	return running, errors.Join(errs...)
}

// taskVMs matches the VMs in a task's ID: "101", "100-scsi1>200-scsi5".
var taskVMs = regexp.MustCompile(`^(\d+)(?:-[a-z]+\d+>(\d+)-[a-z]+\d+)?$`)

// vmsOf returns the VMs that a task is about; none if it is about something else.
func vmsOf(u api.UPID) []cluster.VMID {
	var ids []cluster.VMID
	for _, number := range taskVMs.FindStringSubmatch(u.ID) {
		if id, err := strconv.Atoi(number); err == nil && !slices.Contains(ids, cluster.VMID(id)) {
			ids = append(ids, cluster.VMID(id))
		}
	}
	return ids
}

// OwnTasksOf implements cluster.Tasks. The ID of a task about a VM is the VM's number.
func (c *tasks) OwnTasksOf(ctx context.Context, host string, id cluster.VMID) ([]string, error) {
	tasks, err := c.activeTasks(ctx, host)
	var running []string
	for _, u := range tasks {
		if u.User == c.TokenID && u.ID == strconv.Itoa(int(id)) {
			running = append(running, u.String())
		}
	}
	return running, err
}

// activeTasks lists the tasks that run on a host: our own, and with Sys.Audit on it
// those of others. What could be read is returned along with an error.
func (c *tasks) activeTasks(ctx context.Context, host string) ([]api.UPID, error) {
	var rows []struct {
		UPID    string
		EndTime int64
	}
	if err := c.Get(ctx, "/nodes/"+url.PathEscape(host)+"/tasks?source=active&limit=500", &rows); err != nil {
		return nil, fmt.Errorf("list tasks on %s: %w", host, err)
	}
	var running []api.UPID
	var errs []error
	for _, r := range rows {
		u, err := api.ParseUPID(r.UPID)
		switch {
		case err != nil:
			errs = append(errs, err)
		case r.EndTime == 0: // the list keeps tasks for a while after their end
			running = append(running, u)
		}
	}
	return running, errors.Join(errs...)
}
