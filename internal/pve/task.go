package pve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
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

// tasks waits for tasks of Proxmox and lists them.
type tasks struct {
	*api.Conn
	hosts     *hosts
	workers   knownTasks
	durations durations
}

// finish waits for the task that a change started. One that ends with warnings has
// done its work: they go to Options.Warn. Where a warning makes the work incomplete,
// use await.
func (c *tasks) finish(ctx context.Context, upid string) error {
	err := c.await(ctx, upid)
	if e, ok := errors.AsType[*api.TaskError](err); ok && api.IsWarnings(e.Exit) {
		c.Warn(e.Error())
		return nil
	}
	return err
}

// await waits until a task has ended and returns nil only for OK. If it gives up
// earlier, the task goes on: the error wraps cluster.ErrLostAnswer.
func (c *tasks) await(ctx context.Context, raw string) error {
	upid, err := api.ParseUPID(raw)
	if err != nil {
		return fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	c.workers.add(raw)
	exit := ""
	begun, ran := time.Now(), time.Duration(0)
	readable := begun
	w := wait.For{Name: "task " + upid.String(), First: firstPoll, Every: c.Poll, Expected: c.durations.expected(upid)}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		status, err := c.taskStatus(ctx, upid)
		if err != nil {
			// Reads also fail with 500 while the host's pmxcfs restarts.
			if e, ok := errors.AsType[*api.Error](err); ok && e.Status < http.StatusInternalServerError || time.Since(readable) > outage {
				return false, "", wait.Stop(err)
			}
			return false, "", err
		}
		readable = time.Now()
		exit = status.ExitStatus
		if status.Status != "stopped" {
			ran = time.Since(begun)
		}
		return status.Status == "stopped", status.Status, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	if exit == "OK" {
		c.durations.add(upid, ran, time.Since(begun))
		return nil
	}
	if exit == "" {
		exit = "unexpected status"
	}
	return c.Explain(&api.TaskError{UPID: upid, Exit: c.Redact(exit), Log: c.taskLog(ctx, upid)})
}

type taskStatus struct {
	Status     string `json:"status"` // "running" or "stopped"
	ExitStatus string `json:"exitstatus"`
}

func (c *tasks) taskStatus(ctx context.Context, upid api.UPID) (taskStatus, error) {
	var s taskStatus
	err := c.Get(ctx, upid.Path("status"), &s)
	if e, ok := errors.AsType[*api.Error](err); ok && e.Status == http.StatusForbidden {
		err = fault.WithHint(fault.TokenPrivileges.Of(err), "tasks of other users can only be read with Sys.Audit on /nodes/%s", upid.Node)
	}
	return s, err
}

// taskLog returns the end of a task's log; empty if it cannot be read, because it
// only illustrates an error.
func (c *tasks) taskLog(ctx context.Context, upid api.UPID) []string {
	var rows []struct {
		T json.RawMessage `json:"t"`
	}
	if err := c.Get(ctx, upid.Path("log?limit="+strconv.Itoa(logLines)), &rows); err != nil {
		return nil
	}
	var lines []string
	for _, row := range rows {
		// An empty log is shown as one line (PVE/Tools.pm, dump_logfile).
		if line := strings.TrimSpace(scalar(row.T)); line != "" && line != "no content" && !strings.HasPrefix(line, "TASK ") {
			lines = append(lines, c.Redact(line))
		}
	}
	return lines[max(0, len(lines)-logTail):]
}
