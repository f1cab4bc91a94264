package pve

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/wait"
)

// uptimeSlack is what is lost between the uptime of a host, in whole seconds, and
// when we learn of it.
const uptimeSlack = 5 * time.Second

// worker is what the task is called that carries out a change.
type worker struct{ host, kind, id string }

func vmWorker(vm cluster.VM, kind string) worker {
	return worker{vm.Host, kind, strconv.Itoa(int(vm.ID))}
}

// knownTasks holds the tasks whose names we were told. It is safe for concurrent use.
type knownTasks struct {
	mu    sync.Mutex
	upids map[string]bool
}

func (k *knownTasks) add(upid string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.upids == nil {
		k.upids = map[string]bool{}
	}
	k.upids[upid] = true
}

func (k *knownTasks) has(upid string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.upids[upid]
}

// startedSince finds the task that our token started for a request that was sent
// at that time, and whose name we were never told; "" if there is none. No clock
// has a part in it, each of which may be wrong, or be set meanwhile: the name of a
// task says when its worker began, counted from the boot of its host (pve-common,
// RESTEnvironment.pm, fork_worker), and how long ago that was the host's uptime
// says. One that began before that boot can't be found: it has ended with its
// host, and what it was to do is looked at. That another process with the same
// token did the same at the same time is possible: the caller looks at what was done.
func (c *Client) startedSince(ctx context.Context, w worker, sent time.Time) (string, error) {
	query := url.Values{"source": {"all"}, "typefilter": {w.kind}, "limit": {"500"}}
	path := "/nodes/" + url.PathEscape(w.host) + "/tasks?" + query.Encode()
	var rows []struct{ UPID string }
	err := c.get(ctx, path, &rows)
	if err != nil || len(rows) == 0 {
		return "", prefixed(err, "look for task %s %s on %s", w.kind, w.id, w.host)
	}
	up, err := c.uptime(ctx, w.host)
	if err != nil {
		return "", prefixed(err, "look for task %s %s on %s", w.kind, w.id, w.host)
	}
	from, until := up.ago(time.Since(sent)+uptimeSlack), up.ago(-uptimeSlack)
	var found []UPID
	for _, row := range rows {
		u, err := ParseUPID(row.UPID)
		if err != nil {
			return "", err
		}
		ours := u.User == c.tokenID && u.Type == w.kind && u.ID == w.id && u.Ticks >= from && u.Ticks <= until
		// A task that ends just now is listed twice: Proxmox reads the list of those
		// that run first, then that of those that have ended (API2/Tasks.pm, node_tasks).
		if ours && !c.workers.has(u.Raw) && !slices.Contains(found, u) {
			found = append(found, u)
		}
	}
	switch len(found) {
	case 0:
		return "", nil
	case 1:
		c.workers.add(found[0].Raw)
		return found[0].Raw, nil
	}
	return "", wait.Stop(fmt.Errorf("%d tasks could be the one: %s and %s", len(found), found[0].Raw, found[1].Raw))
}

// uptime is for how long a host has been up, as one of its files in /proc says.
type uptime struct {
	seconds float64
	hz      float64 // ticks of a second
}

// ago is what a process that began so long ago has as its start, in ticks; 0 where
// the host was not up then.
func (u uptime) ago(d time.Duration) uint64 { return uint64(max(0, u.seconds-d.Seconds()) * u.hz) }

// userHz is what a host that does not say counts in; every Linux for PCs does.
const userHz = 100

// uptime reads for how long a host has been up, which takes Sys.Audit on it.
func (c *Client) uptime(ctx context.Context, host string) (uptime, error) {
	var answer struct {
		Uptime  json.Number
		CPUInfo struct {
			HZ json.Number `json:"user_hz"`
		}
	}
	if err := c.get(ctx, "/nodes/"+url.PathEscape(host)+"/status", &answer); err != nil {
		return uptime{}, err
	}
	seconds, err := answer.Uptime.Float64()
	if err != nil || seconds <= 0 {
		return uptime{}, fmt.Errorf("%s does not tell for how long it has been up", host)
	}
	hz, err := answer.CPUInfo.HZ.Float64()
	if err != nil || hz <= 0 {
		hz = userHz
	}
	return uptime{seconds, hz}, nil
}

func prefixed(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// clock reads a host's clock, which takes Sys.Audit on it.
func (c *Client) clock(ctx context.Context, host string) (time.Time, error) {
	var answer struct{ Time flexInt }
	if err := c.get(ctx, "/nodes/"+url.PathEscape(host)+"/time", &answer); err != nil {
		return time.Time{}, err
	}
	if answer.Time <= 0 {
		return time.Time{}, fmt.Errorf("%s does not tell what time it is", host)
	}
	return time.Unix(int64(answer.Time), 0), nil
}
