package pve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
)

const (
	// firstPoll is the shortest pause between two polls of a task or a VM.
	firstPoll = 20 * time.Millisecond
	// outage is how long a task's state may be unreadable before the wait gives up.
	outage = 2 * time.Minute
	// logTail is how many lines of a task's log go into its error.
	logTail = 8
	// logLines is how much of the log is read to find its tail.
	logLines = 500
)

type tasks struct {
	*api.Conn
	workers   sync.Map // by UPID: the tasks whose names we received
	durations durations
}

// finish waits for the task that a change started. A task that ends with warnings has done its work: finish passes
// the warnings to Options.Warn. Where a warning means incomplete work, use await.
func (c *tasks) finish(ctx context.Context, upid string) error {
	err := c.await(ctx, upid)
	if e, ok := errors.AsType[*api.TaskError](err); ok && api.IsWarnings(e.Exit) {
		c.Warn(e.Error())
		return nil
	}
	return err
}

// await waits until a task has ended and returns nil only for OK. If await gives up earlier, the task goes on: the
// error wraps cluster.ErrLostAnswer.
func (c *tasks) await(ctx context.Context, raw string) error {
	upid, err := api.ParseUPID(raw)
	if err != nil {
		return fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	c.workers.Store(raw, true)
	exit := ""
	begun, ran := time.Now(), time.Duration(0)
	readable := begun
	w := wait.For{Name: "task " + upid.String(), First: firstPoll, Every: c.Poll, Expected: c.durations.expected(upid)}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		status, ended, err := c.taskStatus(ctx, upid)
		if err != nil {
			// Reads also fail with 500 while the host's pmxcfs restarts.
			if e, ok := errors.AsType[*api.Error](err); ok && e.Status < http.StatusInternalServerError || time.Since(readable) > outage {
				return false, "", wait.Stop(err)
			}
			return false, "", err
		}
		readable = time.Now()
		exit = ended
		if status != "stopped" {
			ran = time.Since(begun)
		}
		return status == "stopped", status, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	if exit == "OK" {
		c.durations.add(upid, ran, time.Since(begun))
		return nil
	}
	return c.Explain(&api.TaskError{UPID: upid, Exit: c.Redact(cmp.Or(exit, "unexpected status")), Log: c.taskLog(ctx, upid)})
}

// taskStatus returns "running" or "stopped", and how a stopped task ended.
func (c *tasks) taskStatus(ctx context.Context, upid api.UPID) (status, exit string, err error) {
	var s struct{ Status, ExitStatus string }
	err = c.Get(ctx, upid.Path("status"), &s)
	if api.IsForbidden(err) {
		err = fault.WithHint(fault.TokenPrivileges.Of(err), "tasks of other users can only be read with Sys.Audit on /nodes/%s", upid.Node)
	}
	return s.Status, s.ExitStatus, err
}

// taskLog returns the end of a task's log. The result is empty if the log cannot be read, because the log only
// illustrates an error.
func (c *tasks) taskLog(ctx context.Context, upid api.UPID) []string {
	var rows []struct{ T json.RawMessage }
	if err := c.Get(ctx, upid.Path("log?limit="+strconv.Itoa(logLines)), &rows); err != nil {
		return nil
	}
	var lines []string
	for _, row := range rows {
		// Proxmox shows an empty log as one line (PVE/Tools.pm, dump_logfile).
		if line := strings.TrimSpace(scalar(row.T)); line != "" && line != "no content" && !strings.HasPrefix(line, "TASK ") {
			lines = append(lines, c.Redact(line))
		}
	}
	return lines[max(0, len(lines)-logTail):]
}

// OwnTasks implements cluster.Tasks. Tasks that a killed recast process started keep running, on any host. A token
// always sees its own tasks (API2/Tasks.pm).
func (c *Client) OwnTasks(ctx context.Context, of func(cluster.VMID) bool) ([]string, error) {
	online, _, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	var running []string
	for _, host := range online {
		tasks, errTasks := c.ownTasks(ctx, host, func(u api.UPID) bool { return slices.ContainsFunc(vmsOf(u), of) })
		running, err = append(running, tasks...), errors.Join(err, errTasks)
	}
	return running, err
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
func (c *Client) OwnTasksOf(ctx context.Context, host string, id cluster.VMID) ([]string, error) {
	return c.ownTasks(ctx, host, func(u api.UPID) bool { return u.ID == strconv.Itoa(int(id)) })
}

func (c *Client) ownTasks(ctx context.Context, host string, of func(api.UPID) bool) (running []string, err error) {
	tasks, err := c.activeTasks(ctx, host)
	for _, u := range tasks {
		if u.User == c.conn.TokenID && of(u) {
			running = append(running, u.String())
		}
	}
	return running, err
}

// activeTasks lists the tasks that run on a host: our own, and with Sys.Audit on it those of others. If some rows
// cannot be read, the other tasks are returned along with an error.
func (c *Client) activeTasks(ctx context.Context, host string) ([]api.UPID, error) {
	var rows []struct {
		UPID    string
		EndTime int64
	}
	if err := c.conn.Get(ctx, "/nodes/"+url.PathEscape(host)+"/tasks?source=active&limit=500", &rows); err != nil {
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

// uptimeSlack is the tolerance between a host's uptime, in whole seconds, and the moment we read it.
const uptimeSlack = 5 * time.Second

type worker struct{ host, kind, id string }

func vmWorker(vm cluster.VM, kind string) worker {
	return worker{vm.Host, kind, strconv.Itoa(int(vm.ID))}
}

// startedSince finds the task that our token started for a request sent at that time, if recast never received the
// task's name; "" if there is none. It uses no clock: any clock may be wrong, or be reset. A task's name says when
// its worker began, counted from its host's boot (pve-common, RESTEnvironment.pm, fork_worker), and the host's uptime
// says how long ago the boot was. startedSince does not find a task from before that boot: the task ended with its
// host, and the caller checks its goal. Another process with the same token may have made the same request at the
// same time: the caller checks what was done.
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

// durations records how long tasks took, by kind. Proxmox does not announce the end of a task, so recast polls the
// next task of the same kind when its end is due.
type durations struct {
	mu   sync.Mutex
	last map[string]estimate
}

// estimate is how long a kind of task takes: the duration of the last task, or less if the last tasks (ended in a
// row) were over at the first look.
type estimate struct {
	time  time.Duration
	ended int
}

// shorter are the divisors for the next estimate: 1/n less after one, two, … tasks
// in a row that were over at the first look.
var shorter = []time.Duration{128, 64, 32, 16, 8}

// numbers matches the VM numbers in a task's subject ("100-scsi1>200-scsi5"); the rest names the drives.
var numbers = regexp.MustCompile(`\d{3,}`)

func kindOf(u api.UPID) string { return u.Type + " " + numbers.ReplaceAllString(u.ID, "") }

// expected returns how long the task will take; 0 if unknown.
func (t *durations) expected(u api.UPID) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.last[kindOf(u)]; ok {
		return known.time
	}
	return t.last[u.Type].time
}

// add records a task that succeeded. The task still ran after ran (0: never seen running), and had ended after ended.
func (t *durations) add(u api.UPID, ran, ended time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = map[string]estimate{}
	}
	before := t.last[kindOf(u)].ended
	now := estimate{time: ran}
	switch {
	case ran == 0:
		now = estimate{ended - ended/shorter[min(before, len(shorter)-1)], before + 1}
	case ended-ran < ended/8: // otherwise the polls were too far apart for a better estimate
		now.time = ran + (ended-ran)/2
	}
	t.last[kindOf(u)] = now
	t.last[u.Type] = estimate{time: now.time} // the best estimate for other tasks of this type
}
