package pve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/wait"
)

// clockSlack is how far the clocks of two hosts of one cluster may be apart, and
// the seconds that Proxmox rounds away.
const clockSlack = 5 * time.Second

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
// at that time, and whose name we were never told; "" if there is none. Our
// clock only says how long ago that was: the moment itself is reckoned back from
// Proxmox's own clock. That another process with the same token did the same at
// the same time is possible: the caller looks at what was done.
func (c *Client) startedSince(ctx context.Context, w worker, sent time.Time) (string, error) {
	query := url.Values{"source": {"all"}, "typefilter": {w.kind}, "limit": {"500"}}
	path := "/nodes/" + url.PathEscape(w.host) + "/tasks?" + query.Encode()
	var rows []struct{ UPID string }
	now, err := c.getDated(ctx, path, &rows)
	if err == nil && now.IsZero() {
		now, err = c.clock(ctx, w.host)
	}
	if err != nil {
		return "", fmt.Errorf("look for task %s %s on %s: %w", w.kind, w.id, w.host, err)
	}
	from := now.Add(-time.Since(sent) - clockSlack)
	var found []UPID
	for _, row := range rows {
		u, err := ParseUPID(row.UPID)
		if err != nil {
			return "", err
		}
		ours := u.User == c.tokenID && u.Type == w.kind && u.ID == w.id && !u.Start.Before(from)
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

// getDated is get, with the time that the answer bears; zero where a proxy in
// front of Proxmox has taken it away.
func (c *Client) getDated(ctx context.Context, path string, out any) (time.Time, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, http.NoBody)
	if err != nil {
		return time.Time{}, err
	}
	req.Header.Set("Authorization", c.auth)
	req.Header.Set("User-Agent", userAgent)
	resp, err := c.http.Do(req)
	if err != nil {
		return time.Time{}, c.clean(http.MethodGet, path, err)
	}
	answer := struct {
		Data any `json:"data"`
	}{out}
	if err := errors.Join(json.NewDecoder(resp.Body).Decode(&answer), resp.Body.Close()); err != nil {
		return time.Time{}, fmt.Errorf("GET %s: read the answer: %w", path, err)
	}
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return time.Time{}, nil
	}
	return date, nil
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
