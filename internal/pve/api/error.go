package api

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/wait"
)

var ErrNoSpace = errors.New("no space left")

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

// Said returns the server's message: that of the body, which proxies do not lose, or else that of the status line.
func (e *Error) Said() string { return cmp.Or(e.Message, e.Reason) }

// text returns the server's whole answer, in which callers look for known wordings.
func (e *Error) text() string {
	params := cluster.Each(slices.Sorted(maps.Keys(e.Params)), func(name string) string { return e.Params[name] })
	return strings.Join(append([]string{e.Reason, e.Message}, params...), "\n")
}

// Unwrap returns the sentinels that match the answer.
func (e *Error) Unwrap() []error {
	errs := sentinels(e.text())
	temporary := e.Status >= http.StatusInternalServerError || e.Status == http.StatusTooManyRequests
	if e.Method == http.MethodGet && len(errs) == 0 && temporary {
		errs = append(errs, cluster.ErrNotNow)
	}
	if e.Method != http.MethodGet && (isGateway(e.Status) || isSuccess(e.Status)) {
		errs = append(errs, cluster.ErrLostAnswer)
	}
	return errs
}

// isGateway reports whether the entry node, or a proxy in front, got no answer from the server that does the work.
// Proxmox uses 595, 596 and 599.
func isGateway(status int) bool {
	return status >= 590 && status <= 599 ||
		status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

// StopOnAnswer ends a wait if the error is Proxmox's own answer; a missing answer may be temporary.
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
	e.Reason = strings.TrimSpace(strings.TrimPrefix(statusLine, fmt.Sprint(status)))
	var answer struct {
		Message any            `json:"message"`
		Errors  map[string]any `json:"errors"`
	}
	// A body that is not Proxmox's JSON adds nothing to the status line: it is a proxy's page, or the HTTP server's
	// plain text, which starts with the same words (pve-http-server, AnyEvent.pm, error). If a proxy dropped the
	// reason, that text is used.
	if err := json.Unmarshal(body, &answer); err != nil {
		if e.Reason == "" && !bytes.HasPrefix(bytes.TrimSpace(body), []byte("<")) {
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

// noUser reports whether Proxmox failed, before doing anything, because it lost the request's user. Each pvedaemon
// process keeps the user in one variable: auth_handler sets the variable, and the end of any request clears it, even
// while another request's body is still being read (pve-manager, HTTPServer.pm).
func (e *Error) noUser() bool {
	return e.Status == http.StatusInternalServerError && strings.TrimSpace(e.Said()) == "user name not set"
}

func (e *Error) redact(clean func(string) string) {
	e.Reason, e.Message = clean(e.Reason), clean(e.Message)
	for name, what := range e.Params {
		e.Params[name] = clean(what)
	}
}

// IsForbidden reports whether the token lacks a privilege for the request.
func IsForbidden(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == http.StatusForbidden
}

// IsUnanswered reports whether the entry node got no answer from the host to which it forwarded the request.
func IsUnanswered(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status >= 590 && e.Status <= 599
}

// busyRename matches pve-storage's errors for a volume that it could not rename because it was briefly in use, or
// because renaming took too long. LVM has no such error: it renames volumes in use and waits for its own locks.
var busyRename = regexp.MustCompile(`(?m)` +
	// ZFSPoolPlugin.pm, rename_volume, zfs_request: udev or multipathd has just opened the device, or a replication
	// takes a snapshot. Proxmox itself retries a destroy (zfs_delete_zvol), but not a rename.
	`^zfs error: cannot rename '[^']*': dataset is busy\s*$` +
	// In a worker, the limit of 5 s becomes 5 min (zfs_request). The command is then killed (pve-common, Cmd.pm,
	// run_command), but the kernel goes on.
	`|^command 'zfs rename [^']*' failed: got timeout\s*$` +
	// RBDPlugin.pm, rename_volume, run_rbd_command: another client holds the image, or the cluster is slow.
	`|^could not rename image '[^']*' to '[^']*': rbd: rename error: \((?:16|110)\) ` +
	// Plugin.pm and BTRFSPlugin.pm, rename_volume: a server of NFS or CIFS has the file open.
	`|^rename '[^']*' to '[^']*' failed - Device or resource busy\s*$`)

var missingPrivilege = regexp.MustCompile(`Permission check failed \(([^,()]+), ([^()]+)\)`)

// noQuorum matches the errors of a pmxcfs that accepts no writes (PVE/Cluster.pm, check_cfs_quorum; a file below
// /etc/pve is read-only then). noStorage matches the errors of a storage that can't be used just now
// (activate_storage of pve-storage's Storage.pm and plugins).
var (
	noQuorum  = regexp.MustCompile(`no quorum[?!]|unable to open file '/etc/pve/[^']*' - Permission denied`)
	noStorage = regexp.MustCompile(`unable to activate storage '|activating storage '[^']*' failed|storage '[^']*' is not online`)
)

// Explain adds the kind of an error, and a hint at the remedy if one is known.
func (c *Conn) Explain(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		switch e.Status {
		case http.StatusUnauthorized:
			return fault.WithHint(fault.Credentials.Of(err), "Proxmox does not accept the API token %s: check that it exists and has not expired (pveum user token list %s); "+
				"PROXMOX_VE_API_TOKEN is user@realm!id=uuid; a new one is made by: %s", c.TokenID, c.User(), strings.Join(cluster.NewToken(c.TokenID), "; "))
		case http.StatusForbidden:
			return fault.As(fault.Refused, c.hintForbidden(e, err))
		}
		if isGateway(e.Status) {
			return hintGateway(e, err)
		}
	}
	if e, ok := errors.AsType[*FingerprintError](err); ok {
		return fault.WithHint(fault.TLS.Of(err), "read the right fingerprint on the node itself: "+
			"openssl x509 -noout -fingerprint -sha256 -in /etc/pve/local/pveproxy-ssl.pem (or pve-ssl.pem where that is missing); "+
			"what is served now: openssl s_client -connect %s </dev/null | openssl x509 -noout -fingerprint -sha256", e.Addr)
	}
	if e, ok := errors.AsType[x509.HostnameError](err); ok {
		hint := "the certificate has no names: pvecm updatecerts --force on that node makes one with its names"
		if names := namesOf(e.Certificate); len(names) > 0 {
			hint = "name the endpoint as the certificate does: " + strings.Join(names, ", ")
		}
		return fault.WithHint(fault.TLS.Of(err), "%s. With proxmox.fingerprint, names are not checked", hint)
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		return fault.WithHint(fault.TLS.Of(err), "check this machine's clock; an expired certificate is renewed on its node: pvecm updatecerts --force, or pvenode acme cert renew")
	}
	if isCertificate(err) {
		return fault.WithHint(fault.TLS.Of(err), "set proxmox.caFile to a copy of /etc/pve/pve-root-ca.pem, or proxmox.fingerprint to the node's own")
	}
	if _, ok := errors.AsType[*unreachableError](err); ok {
		return fault.WithHint(fault.Unreachable.Of(err), "check proxmox.endpoints, and that port 8006 can be reached from here")
	}
	said := ""
	if e, ok := errors.AsType[*Error](err); ok {
		said = e.text()
	} else if e, ok := errors.AsType[*TaskError](err); ok {
		said = e.Exit
	}
	switch {
	case noStatus.MatchString(said):
		return fault.WithHint(fault.TaskFailed.Of(err), "the task's worker was killed, or its node went down: run the same command again, which looks at what was done")
	case errors.Is(err, ErrNoSpace):
		return fault.WithHint(fault.StorageFull.Of(err), "free space on that storage or choose another one")
	case errors.Is(err, cluster.ErrChanged):
		return fault.WithHint(fault.VMChanged.Of(err), "another process changed that VM at the same time: look at its tasks in Proxmox, then run the same command again")
	case noQuorum.MatchString(said):
		return fault.WithHint(fault.NoQuorum.Of(err), "without quorum nothing can be written to /etc/pve: look at pvecm status on a Proxmox node, then run the same command again")
	case noStorage.MatchString(said):
		return fault.WithHint(fault.StorageUnusable.Of(err), "see what is wrong with that storage on its node (pvesm status), then run the same command again")
	}
	return hintLock(err)
}

func (c *Conn) hintForbidden(e *Error, err error) error {
	m := missingPrivilege.FindStringSubmatch(e.text())
	if m == nil {
		return fault.WithHint(fault.TokenPrivileges.Of(err), "see what the token may do: pveum user token permissions %s", strings.Replace(c.TokenID, "!", " ", 1))
	}
	return c.HintPrivilege(err, m[1], m[2])
}

func (c *Conn) HintPrivilege(err error, path, privilege string) error {
	return fault.WithHint(fault.TokenPrivileges.Of(err), "the token %s needs %s on %s, and so does its user: recast doctor says what else is missing and prints the commands; "+
		"an ACL entry made by hand overrides those above it", c.TokenID, privilege, path)
}

// hintGateway adds a hint that names who did not answer whom.
func hintGateway(e *Error, err error) error {
	if e.Status < 590 {
		return fault.WithHint(fault.Unreachable.Of(err), "a proxy in front of Proxmox did not get an answer from it: name the nodes themselves in proxmox.endpoints")
	}
	rest, ok := strings.CutPrefix(e.Path, "/nodes/")
	if !ok {
		return fault.WithHint(fault.Unreachable.Of(err), "pveproxy of the node that was asked does not reach its own pvedaemon: systemctl status pvedaemon there")
	}
	node, _, _ := strings.Cut(rest, "/")
	return fault.WithHint(fault.HostAway.Of(err), "the node that was asked does not reach %s: see whether that one is up, and its pveproxy and pvedaemon", node)
}

// namesOf returns the names and addresses of a certificate, except those of the local host.
func namesOf(c *x509.Certificate) []string {
	names := cluster.Where(c.DNSNames, func(name string) bool { return name != "localhost" })
	ips := cluster.Where(c.IPAddresses, func(ip net.IP) bool { return !ip.IsLoopback() })
	return append(names, cluster.Each(ips, net.IP.String)...)
}

func isCertificate(err error) bool {
	why, _ := Untrusted(err)
	return why != ""
}

var (
	// lockTimeout matches a lock that was not acquired in time (PVE/Tools.pm, lock_file_full; pve-cluster,
	// Cluster.pm, cfs_lock). The pattern matches only a whole message: in a longer message, or in the message for one
	// of several parameters, Proxmox has done other work.
	lockTimeout = regexp.MustCompile(`^(?:unable to create VM \d+ - )?(?:can't lock file '[^']+' - got timeout|cfs-lock '[^']+' error: got lock request timeout)\s*$`)
	// vmLocked matches the lock in a VM's configuration (AbstractConfig.pm, check_lock).
	vmLocked = regexp.MustCompile(`^(?:VM|CT) is locked(?: \([^()]*\))?\s*$`)
)

func isLock(err error, what *regexp.Regexp) bool {
	if errors.Is(err, cluster.ErrLostAnswer) {
		return false
	}
	if e, ok := errors.AsType[*TaskError](err); ok {
		return what.MatchString(e.Exit)
	}
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == http.StatusInternalServerError && len(e.Params) == 0 && what.MatchString(e.Said())
}

// IsLockTimeout reports whether nothing was done because a lock was not acquired.
func IsLockTimeout(err error) bool { return isLock(err, lockTimeout) }

// IsVMLocked reports whether nothing was done because of the lock in a VM's configuration.
func IsVMLocked(err error) bool { return isLock(err, vmLocked) }

func hintLock(err error) error {
	switch {
	case IsVMLocked(err):
		return fault.WithHint(fault.VMLocked.Of(err), "a backup, a migration or a snapshot holds the VM's lock, or failed and left it: wait for it; "+
			"qm unlock removes the lock, which is right only if no task of the VM is running")
	case IsLockTimeout(err):
		return fault.WithHint(fault.VMLocked.Of(err), "Proxmox is at work on the same VM or storage: see its running tasks, then run this again")
	}
	return err
}

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
	// The status of a plain failure repeats the last line of the log; these statuses need the log.
	if len(e.Log) > 0 && (IsWarnings(e.Exit) || noStatus.MatchString(e.Exit)) {
		s += " (" + strings.Join(e.Log, " | ") + ")"
	}
	return foreign.Line(s)
}

// Unwrap returns the sentinels that match the task's exit status.
func (e *TaskError) Unwrap() []error {
	errs := sentinels(e.Exit)
	if noStatus.MatchString(e.Exit) {
		errs = append(errs, cluster.ErrLostAnswer)
	}
	return errs
}

// noStatus matches the status of a task whose worker was killed, for example with its node. The last line of the log,
// if not lost too, is then not the line with which a worker ends (PVE/Tools.pm, upid_read_status). How far the task
// got is unknown.
var noStatus = regexp.MustCompile(`^(?:unexpected status|unable to extract last line|unable to read tail \(got \d* bytes\)|unable to open file - .*)$`)

func IsWarnings(exit string) bool { return strings.HasPrefix(exit, "WARNINGS:") }

func (u UPID) Path(what string) string {
	return "/nodes/" + url.PathEscape(u.Node) + "/tasks/" + url.PathEscape(u.Raw) + "/" + what
}
