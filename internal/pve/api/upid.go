package api

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
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
	start, errStart := strconv.ParseUint(f[4], 16, 32)
	if err := errors.Join(err, errTicks, errStart); err != nil {
		return UPID{}, fmt.Errorf("%q is not the name of a Proxmox task: %w", s, err)
	}
	return UPID{Raw: s, Node: f[1], Type: f[5], ID: f[6], User: f[7], Start: time.Unix(int64(start), 0), Ticks: ticks}, nil
}

func (u UPID) String() string {
	return foreign.Line(strings.TrimSpace(u.Type+" "+u.ID) + " on " + u.Node)
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
	if len(e.Log) > 0 && (IsWarnings(e.Exit) || noStatus.MatchString(e.Exit)) {
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

func IsWarnings(exit string) bool { return strings.HasPrefix(exit, "WARNINGS:") }

func (u UPID) Path(what string) string {
	return "/nodes/" + url.PathEscape(u.Node) + "/tasks/" + url.PathEscape(u.Raw) + "/" + what
}
