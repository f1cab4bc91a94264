package api

import (
	"crypto/x509"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

var missingPrivilege = regexp.MustCompile(`Permission check failed \(([^,()]+), ([^()]+)\)`)

// The ways in which Proxmox says that pmxcfs lets nothing be written (PVE/Cluster.pm,
// check_cfs_quorum; a file below /etc/pve is read-only then), and that a storage
// can't be used just now (activate_storage of pve-storage's Storage.pm and plugins).
var (
	noQuorum  = regexp.MustCompile(`no quorum[?!]|unable to open file '/etc/pve/[^']*' - Permission denied`)
	noStorage = regexp.MustCompile(`unable to activate storage '|activating storage '[^']*' failed|storage '[^']*' is not online`)
)

// Explain attaches what is known about mending an error, and its kind.
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

// hintGateway says who did not answer whom: the node that was asked is well.
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

// namesOf are the names and addresses that a certificate is for, as others use them.
func namesOf(c *x509.Certificate) []string {
	names := slices.DeleteFunc(slices.Clone(c.DNSNames), func(name string) bool { return name == "localhost" })
	for _, ip := range c.IPAddresses {
		if !ip.IsLoopback() {
			names = append(names, ip.String())
		}
	}
	return names
}

// isCertificate says that the server's certificate was not trusted.
func isCertificate(err error) bool {
	why, _ := Untrusted(err)
	return why != ""
}

var (
	// lockTimeout matches a lock that was not acquired in time (PVE/Tools.pm,
	// lock_file_full; pve-cluster, Cluster.pm, cfs_lock). It must be the whole
	// message: within a longer one, or for one parameter of several, other work was
	// done.
	lockTimeout = regexp.MustCompile(`^(?:unable to create VM \d+ - )?(?:can't lock file '[^']+' - got timeout|cfs-lock '[^']+' error: got lock request timeout)\s*$`)
	// vmLocked matches the lock in a VM's configuration (AbstractConfig.pm,
	// check_lock).
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

// hintLock says what to do about a lock.
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
