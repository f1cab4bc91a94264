package pve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
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

// UPID is the parsed name of a Proxmox task.
type UPID struct {
	Raw   string
	Node  string    // where it runs
	Type  string    // "qmcreate", "imgcopy", …
	ID    string    // what it works on: "101", "100-scsi1>200-scsi5"; may be empty
	User  string    // "user@realm" or "user@realm!token"
	Start time.Time // by the host's clock
	Ticks uint64    // when the worker began, since the boot of the host
}

// ParseUPID reads UPID:node:pid:pstart:starttime:type:id:user: with the numbers in hex.
func ParseUPID(s string) (UPID, error) {
	f := strings.Split(s, ":")
	if len(f) != 9 || f[0] != "UPID" || f[8] != "" || f[1] == "" || f[5] == "" || f[7] == "" {
		return UPID{}, fmt.Errorf("%q is not the name of a Proxmox task", s)
	}
	_, err := strconv.ParseUint(f[2], 16, 64)
	ticks, errTicks := strconv.ParseUint(f[3], 16, 64)
	if err := errors.Join(err, errTicks); err != nil {
		return UPID{}, fmt.Errorf("%q is not the name of a Proxmox task: %w", s, err)
	}
	start, err := strconv.ParseUint(f[4], 16, 32)
	if err != nil {
		return UPID{}, fmt.Errorf("%q is not the name of a Proxmox task: %w", s, err)
	}
	return UPID{Raw: s, Node: f[1], Type: f[5], ID: f[6], User: f[7], Start: time.Unix(int64(start), 0), Ticks: ticks}, nil
}

func (u UPID) String() string {
	return foreign.Line(strings.TrimSpace(u.Type+" "+u.ID) + " on " + u.Node)
}

func (u UPID) path(what string) string {
	return "/nodes/" + url.PathEscape(u.Node) + "/tasks/" + url.PathEscape(u.Raw) + "/" + what
}

// TaskError is a task that failed, or that ended with warnings where those count as failure.
type TaskError struct {
	UPID UPID
	Exit string   // Proxmox's exitstatus
	Log  []string // the end of its log
}

func (e *TaskError) Error() string {
	s := "task " + e.UPID.String() + ": " + e.Exit
	// A plain failure repeats the last line of the log; these say nothing by themselves.
	if len(e.Log) > 0 && (isWarnings(e.Exit) || noStatus.MatchString(e.Exit)) {
		s += " (" + strings.Join(e.Log, " | ") + ")"
	}
	return foreign.Line(s)
}

// Unwrap returns the sentinels that the task's exit status amounts to.
func (e *TaskError) Unwrap() []error {
	errs := sentinels(e.Exit)
	if noStatus.MatchString(e.Exit) {
		errs = append(errs, cluster.ErrLostAnswer)
	}
	return errs
}

// noStatus matches the status of a task whose worker was killed, for example with
// its node: the last line of the log, if not lost too, is none that a worker ends
// with (PVE/Tools.pm, upid_read_status). How far the task got is unknown.
var noStatus = regexp.MustCompile(`^(?:unexpected status|unable to extract last line|unable to read tail \(got \d* bytes\)|unable to open file - .*)$`)

func isWarnings(exit string) bool { return strings.HasPrefix(exit, "WARNINGS:") }

// tasks waits for tasks of Proxmox and lists them.
type tasks struct {
	*conn
	hosts     *hosts
	warn      func(string) // may be nil
	workers   knownTasks
	durations durations
}

// finish waits for the task that a change started. One that ends with warnings has
// done its work: they go to Options.Warn. Where a warning makes the work incomplete,
// use await.
func (c *tasks) finish(ctx context.Context, upid string) error {
	err := c.await(ctx, upid)
	if e, ok := errors.AsType[*TaskError](err); ok && isWarnings(e.Exit) {
		if c.warn != nil {
			c.warn(e.Error())
		}
		return nil
	}
	return err
}

// await waits until a task has ended and returns nil only for OK. If it gives up
// earlier, the task goes on: the error wraps cluster.ErrLostAnswer.
func (c *tasks) await(ctx context.Context, raw string) error {
	upid, err := ParseUPID(raw)
	if err != nil {
		return fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	c.workers.add(raw)
	exit := ""
	begun, ran := time.Now(), time.Duration(0)
	readable := begun
	w := wait.For{Name: "task " + upid.String(), First: firstPoll, Every: c.poll, Expected: c.durations.expected(upid)}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		status, err := c.taskStatus(ctx, upid)
		if err != nil {
			// Reads also fail with 500 while the host's pmxcfs restarts.
			if e, ok := errors.AsType[*Error](err); ok && e.Status < http.StatusInternalServerError || time.Since(readable) > outage {
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
	return c.explain(&TaskError{UPID: upid, Exit: c.transport.redact(exit), Log: c.taskLog(ctx, upid)})
}

type taskStatus struct {
	Status     string `json:"status"` // "running" or "stopped"
	ExitStatus string `json:"exitstatus"`
}

func (c *tasks) taskStatus(ctx context.Context, upid UPID) (taskStatus, error) {
	var s taskStatus
	err := c.get(ctx, upid.path("status"), &s)
	if e, ok := errors.AsType[*Error](err); ok && e.Status == http.StatusForbidden {
		err = fault.WithHint(fault.TokenPrivileges.Of(err), "tasks of other users can only be read with Sys.Audit on /nodes/%s", upid.Node)
	}
	return s, err
}

// taskLog returns the end of a task's log; empty if it cannot be read, because it
// only illustrates an error.
func (c *tasks) taskLog(ctx context.Context, upid UPID) []string {
	var rows []struct {
		T json.RawMessage `json:"t"`
	}
	if err := c.get(ctx, upid.path("log?limit="+strconv.Itoa(logLines)), &rows); err != nil {
		return nil
	}
	var lines []string
	for _, row := range rows {
		// An empty log is shown as one line (PVE/Tools.pm, dump_logfile).
		if line := strings.TrimSpace(scalar(row.T)); line != "" && line != "no content" && !strings.HasPrefix(line, "TASK ") {
			lines = append(lines, c.transport.redact(line))
		}
	}
	return lines[max(0, len(lines)-logTail):]
}
