package pve

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
)

// uptimeSlack is the tolerance between a host's uptime, in whole seconds, and the
// moment we read it.
const uptimeSlack = 5 * time.Second

// worker identifies the task that carries out a change.
type worker struct{ host, kind, id string }

func vmWorker(vm cluster.VM, kind string) worker {
	return worker{vm.Host, kind, strconv.Itoa(int(vm.ID))}
}

// startedSince finds the task that our token started for a request sent at that
// time, and whose name we never received; "" if there is none. It uses no clock: any
// may be wrong, or be reset. A task's name says when its worker began, counted from
// its host's boot (pve-common, RESTEnvironment.pm, fork_worker), and the host's
// uptime says how long ago that was. A task from before that boot is not found: it
// ended with its host, and the caller checks its goal. Another process with the same
// token may have done the same at the same time: the caller checks what was done.
func (c *tasks) startedSince(ctx context.Context, w worker, sent time.Time) (string, error) {
	query := url.Values{"source": {"all"}, "typefilter": {w.kind}, "limit": {"500"}}
	path := "/nodes/" + url.PathEscape(w.host) + "/tasks?" + query.Encode()
	var rows []struct{ UPID string }
	var up uptime
	err := c.Get(ctx, path, &rows)
	if err == nil && len(rows) > 0 {
		up, err = readUptime(ctx, c.Conn, w.host)
	}
	if err != nil {
		return "", fmt.Errorf("look for task %s %s on %s: %w", w.kind, w.id, w.host, err)
	}
	from, until := up.ago(time.Since(sent)+uptimeSlack), up.ago(-uptimeSlack)
	var found []api.UPID
	for _, row := range rows {
		u, err := api.ParseUPID(row.UPID)
		if err != nil {
			return "", err
		}
		ours := u.User == c.TokenID && u.Type == w.kind && u.ID == w.id && u.Ticks >= from && u.Ticks <= until
		// A task that is just ending is listed twice: Proxmox reads the list of
		// running tasks first, then that of ended ones (API2/Tasks.pm, node_tasks).
		if _, known := c.workers.Load(u.Raw); ours && !known && !slices.Contains(found, u) {
			found = append(found, u)
		}
	}
	switch len(found) {
	case 0:
		return "", nil
	case 1:
		c.workers.Store(found[0].Raw, true)
		return found[0].Raw, nil
	}
	return "", wait.Stop(fmt.Errorf("%d tasks could be the one: %s and %s", len(found), found[0].Raw, found[1].Raw))
}
