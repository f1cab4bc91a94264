package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/wait"
)

// ErrNoSpace says that a storage has no room for the request.
var ErrNoSpace = errors.New("no space left")

// Error is a Proxmox answer other than success.
type Error struct {
	Method, Path string // Path without the /api2/json prefix and the query
	Status       int
	Reason       string            // of the status line; Proxmox puts its message there
	Message      string            // of the JSON body; "" where the body was empty
	Params       map[string]string // what is wrong with each parameter of the request
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: %d", e.Method, e.Path, e.Status)
	if said := e.Said(); said != "" {
		b.WriteString(" " + said)
	}
	for i, name := range slices.Sorted(maps.Keys(e.Params)) {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%s%s: %s", sep, name, e.Params[name])
	}
	return foreign.Line(b.String())
}

// Said is the server's message: the body's, which proxies do not lose, else the
// status line's.
func (e *Error) Said() string {
	if e.Message != "" {
		return e.Message
	}
	return e.Reason
}

// text is everything that the server said, to match known wordings against.
func (e *Error) text() string {
	parts := []string{e.Reason, e.Message}
	for _, name := range slices.Sorted(maps.Keys(e.Params)) {
		parts = append(parts, e.Params[name])
	}
	return strings.Join(parts, "\n")
}

// Unwrap returns the sentinels that the answer amounts to.
func (e *Error) Unwrap() []error {
	errs := sentinels(e.text())
	if e.Method == http.MethodGet && len(errs) == 0 && e.isTemporary() {
		errs = append(errs, cluster.ErrNotNow)
	}
	if e.Method != http.MethodGet && (isGateway(e.Status) || isSuccess(e.Status)) {
		errs = append(errs, cluster.ErrLostAnswer)
	}
	return errs
}

// isTemporary reports whether the server could not answer for now: a server error, or
// too many requests.
func (e *Error) isTemporary() bool {
	return e.Status >= http.StatusInternalServerError || e.Status == http.StatusTooManyRequests
}

// isGateway reports whether the entry node, or a proxy in front, got no answer from
// the server that should have done the work. Proxmox uses 595, 596 and 599.
func isGateway(status int) bool {
	return status >= 590 && status <= 599 ||
		status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

// StopOnAnswer ends a wait if the error is Proxmox's own answer; a missing answer
// may be temporary.
func StopOnAnswer(err error) error {
	if e, ok := errors.AsType[*Error](err); ok && !isGateway(e.Status) {
		return wait.Stop(err)
	}
	return err
}

// IsInternal matches the text of an answer with status 500, which Proxmox
// returns for every error in its code, including missing objects.
func IsInternal(err error, what *regexp.Regexp) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == http.StatusInternalServerError && what.MatchString(e.text())
}

func isSuccess(status int) bool { return status >= 200 && status <= 299 }

var wordings = []struct {
	text *regexp.Regexp
	is   error
}{
	// Config writes say "checksum mismatch (file change by other user?)", move_disk
	// "detected modified configuration - file changed by other user?".
	{regexp.MustCompile(`file changed? by other user`), cluster.ErrChanged},
	{regexp.MustCompile(`(?m)^(?:VM|CT) is locked(?: \([^()]*\))?\s*$`), cluster.ErrLocked},
	{regexp.MustCompile(`(?:VM|CT) \d+ already exists on node`), cluster.ErrExists},
	{regexp.MustCompile(`storage '[^']+' (?:does not exist|is disabled|is not available on node '[^']*')`), images.ErrNoStorage},
	// The worker runs; only the task list could not be written (RESTEnvironment.pm, fork_worker).
	{regexp.MustCompile(`can't lock file '/var/log/pve/tasks/\.active\.lock'`), cluster.ErrLostAnswer},
	{busyRename, cluster.ErrStorageBusy},
	{regexp.MustCompile(`(?i)no space left|not enough (?:free )?space|insufficient free space|out of space|disk quota exceeded`), ErrNoSpace},
}

// sentinels returns the errors that callers branch on, matched by Proxmox's wording:
// its status codes do not distinguish them.
func sentinels(text string) []error {
	var errs []error
	for _, w := range wordings {
		if w.text.MatchString(text) {
			errs = append(errs, w.is)
		}
	}
	return errs
}

// parseError reads an answer other than success. Either part may be missing: 401 and
// 59x have no body, HTTP/2 proxies drop the reason.
func parseError(method, path string, status int, statusLine string, body []byte) *Error {
	e := &Error{Method: method, Path: path, Status: status}
	reason := strings.TrimPrefix(statusLine, fmt.Sprint(status))
	e.Reason = strings.TrimSpace(reason)
	var answer struct {
		Message any            `json:"message"`
		Errors  map[string]any `json:"errors"`
	}
	// A body that is not Proxmox's JSON adds nothing to the status line: it is a
	// proxy's page, or the HTTP server's plain text, which starts with the same
	// words (pve-http-server, AnyEvent.pm, error). If a proxy dropped the reason,
	// that text is used.
	if err := json.Unmarshal(body, &answer); err != nil {
		if e.Reason == "" && !isHTML(body) {
			e.Message, _, _ = strings.Cut(strings.TrimSpace(string(body)), "\n")
		}
		return e
	}
	if answer.Message != nil {
		e.Message = strings.TrimSpace(fmt.Sprint(answer.Message))
	}
	if len(answer.Errors) > 0 {
		e.Params = make(map[string]string, len(answer.Errors))
		for name, what := range answer.Errors {
			e.Params[name] = strings.TrimSpace(fmt.Sprint(what))
		}
	}
	return e
}

func isHTML(body []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(body), []byte("<")) }

// noUser reports whether Proxmox failed, before doing anything, because it lost the
// request's user: that is one variable per pvedaemon process, which auth_handler
// sets and the end of any request clears, even while another request's body is still
// being read (pve-manager, HTTPServer.pm).
func (e *Error) noUser() bool {
	return e.Status == http.StatusInternalServerError && strings.TrimSpace(e.Said()) == "user name not set"
}

func (e *Error) redact(clean func(string) string) {
	e.Reason, e.Message = clean(e.Reason), clean(e.Message)
	for name, what := range e.Params {
		e.Params[name] = clean(what)
	}
}

// IsForbidden reports whether the token may not do that.
func IsForbidden(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == http.StatusForbidden
}

// IsUnanswered reports whether the node we asked got no answer from the host that it
// forwarded the request to.
func IsUnanswered(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status >= 590 && e.Status <= 599
}

// busyRename matches pve-storage's errors for a volume that it could not rename
// because it was briefly in use, or because renaming took too long. LVM renames
// volumes in use and waits for its own locks: it has no such error.
var busyRename = regexp.MustCompile(`(?m)` +
	// ZFSPoolPlugin.pm, rename_volume, zfs_request: udev or multipathd has just
	// opened the device, or a replication takes a snapshot. Proxmox itself retries a
	// destroy (zfs_delete_zvol), but not a rename.
	`^zfs error: cannot rename '[^']*': dataset is busy\s*$` +
	// In a worker, the limit of 5 s becomes 5 min (zfs_request). The command is then
	// killed (pve-common, Cmd.pm, run_command), the kernel's work is not.
	`|^command 'zfs rename [^']*' failed: got timeout\s*$` +
	// RBDPlugin.pm, rename_volume, run_rbd_command: another client holds the image, or
	// the cluster is slow.
	`|^could not rename image '[^']*' to '[^']*': rbd: rename error: \((?:16|110)\) ` +
	// Plugin.pm and BTRFSPlugin.pm, rename_volume: a server of NFS or CIFS has the file open.
	`|^rename '[^']*' to '[^']*' failed - Device or resource busy\s*$`)
