// Package fault gives errors a [Kind], which decides the exit code, a [Code], which names a runbook, and a hint,
// which says what to do about the error.
package fault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
)

// Code names a sort of error, for recast runbook CODE. Codes never change. The page of each code is
// docs/runbooks/CODE.md.
type Code string

// The codes. The first ones are for errors that have no code of their own, only a kind.
const (
	FailedCode      Code = "failed"
	RefusedCode     Code = "refused"
	ConfigInvalid   Code = "config-invalid"
	ClaimHeld       Code = "claim-held"
	InterruptedCode Code = "interrupted"

	NotConfirmed Code = "not-confirmed"
	ClaimLost    Code = "claim-lost"
	Differs      Code = "differs"
	Unread       Code = "unread"
	ThisMachine  Code = "this-machine"
	DoctorFound  Code = "doctor-problems"

	// images
	LockStale         Code = "lock-stale"
	ExtensionUnknown  Code = "extension-unknown"
	BuildFailed       Code = "build-failed"
	ImageDiffers      Code = "image-differs"
	ISODiffers        Code = "iso-differs"
	NotPullable       Code = "installer-unpullable"
	RehearsalFailed   Code = "rehearsal-failed"
	StorageFull       Code = "storage-full"
	StorageUnusable   Code = "storage-unusable"
	StorageBusy       Code = "storage-busy"
	PlanRefused       Code = "plan-refused"
	PlanMoved         Code = "plan-moved"
	GateClosed        Code = "gate-closed"
	HookFailed        Code = "hook-failed"
	KubernetesUpgrade Code = "kubernetes-upgrade"

	// connections to servers
	Unreachable     Code = "unreachable"
	TLS             Code = "tls"
	Credentials     Code = "credentials"
	TokenPrivileges Code = "token-privileges"

	// Proxmox
	NoQuorum        Code = "no-quorum"
	HostAway        Code = "host-away"
	VMLocked        Code = "vm-locked"
	VMChanged       Code = "vm-changed"
	TaskFailed      Code = "task-failed"
	ParkedHalf      Code = "parked-half"
	VolumeAmbiguous Code = "volume-ambiguous"
	DiskMismatch    Code = "disk-mismatch"
	NoWayBack       Code = "no-way-back"
	PruneRefused    Code = "prune-refused"

	// machines
	UUIDMismatch       Code = "uuid-mismatch"
	SystemDiskUnproven Code = "system-disk-unproven"
	MachineConfig      Code = "machine-config"
	EtcdUnhealthy      Code = "etcd-unhealthy"
	EtcdSnapshot       Code = "etcd-snapshot"
	DrainBlocked       Code = "drain-blocked"
	NoBoot             Code = "no-boot"
	NoJoin             Code = "no-join"
	RolledBackByItself Code = "rolled-back-by-itself"
	UpgradeStuck       Code = "upgrade-stuck"
)

// AllCodes lists every code, sorted.
func AllCodes() []Code {
	all := []Code{
		BuildFailed, ClaimHeld, ClaimLost, ConfigInvalid, Credentials, Differs, DiskMismatch, DoctorFound, DrainBlocked,
		EtcdSnapshot, EtcdUnhealthy, ExtensionUnknown, FailedCode, GateClosed, HookFailed, HostAway, ImageDiffers, NotPullable,
		InterruptedCode, ISODiffers, KubernetesUpgrade, LockStale, MachineConfig, NoBoot, NoJoin, NoQuorum, NoWayBack, NotConfirmed, PruneRefused,
		ParkedHalf, PlanMoved, PlanRefused, RefusedCode, RehearsalFailed, RolledBackByItself, StorageBusy, StorageFull, StorageUnusable,
		SystemDiskUnproven, TaskFailed, ThisMachine, TLS, TokenPrivileges, Unreachable, Unread, UpgradeStuck, UUIDMismatch, VMChanged, VMLocked, VolumeAmbiguous,
	}
	slices.Sort(all)
	return all
}

type codeError struct {
	error
	code Code
}

func (e *codeError) Unwrap() error { return e.error }

// WithCode gives err a code, which is not part of the message. The outermost code in a chain counts, since the caller
// knows more about the context. WithCode(nil, …) is nil.
func WithCode(err error, c Code) error {
	if err == nil {
		return nil
	}
	return &codeError{error: err, code: c}
}

func (c Code) Of(err error) error { return WithCode(err, c) }

// Else gives err the code c, unless err or an error in its tree has a code already, or its kind has a code of its own.
func (c Code) Else(err error) error {
	if kind := KindOf(err); c == "" || kind != Failed && kind != Refused || len(codes(err)) > 0 {
		return err
	}
	return WithCode(err, c)
}

// Errorf returns a formatted error with the code, of kind Failed.
func (c Code) Errorf(format string, args ...any) error {
	return WithCode(fmt.Errorf(format, args...), c)
}

// Refusedf returns a formatted error with the code, of kind Refused.
func (c Code) Refusedf(format string, args ...any) error {
	return WithCode(As(Refused, fmt.Errorf(format, args...)), c)
}

// Configf returns a formatted error with the code, of kind Config.
func (c Code) Configf(format string, args ...any) error {
	return WithCode(As(Config, fmt.Errorf(format, args...)), c)
}

// Codes returns the codes of err in the order of its tree, each once. If the tree has no code, Codes returns the code
// of err's kind. If err came about because this machine lacks something, Codes returns only ThisMachine.
func Codes(err error) []Code {
	found := codes(err)
	switch kind := KindOf(err); {
	case ofThisMachine(err) != "":
		return []Code{ThisMachine}
	case len(found) > 0:
		return found
	case kind == Interrupted, kind == Failed && errors.Is(err, context.Canceled):
		return []Code{InterruptedCode}
	default:
		return []Code{[...]Code{Failed: FailedCode, Config: ConfigInvalid, Refused: RefusedCode, Claimed: ClaimHeld}[kind]}
	}
}

// CodeOf returns the first of Codes; CodeOf(nil) is "".
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return Codes(err)[0]
}

// codes returns the codes in err's tree. It skips everything below an interruption by the user: work that the
// interruption cancelled is no error of its own.
func codes(err error) []Code {
	var found []Code
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) {
		case *codeError:
			if !slices.Contains(found, e.code) && !errors.Is(e, context.Canceled) {
				found = append(found, e.code)
			}
			return
		case *kindError:
			if e.kind == Interrupted {
				return
			}
		}
		for _, e := range wrapped(err) {
			walk(e)
		}
	}
	walk(err)
	return found
}

// wrapped returns the errors that err wraps directly.
func wrapped(err error) []error {
	switch u := err.(type) {
	case interface{ Unwrap() error }:
		if e := u.Unwrap(); e != nil {
			return []error{e}
		}
	case interface{ Unwrap() []error }:
		return u.Unwrap()
	}
	return nil
}

type safeError struct {
	error
	safe []string
}

func (e *safeError) Unwrap() error { return e.error }

// WithSafe adds lines to err that say what is safe in spite of the error: what was not touched, and where detached
// disks are kept. WithSafe(nil, …) is nil.
func WithSafe(err error, lines ...string) error {
	if err == nil || len(lines) == 0 {
		return err
	}
	return &safeError{error: err, safe: lines}
}

// Safe returns the lines of the outermost WithSafe in err.
func Safe(err error) []string {
	if e, ok := errors.AsType[*safeError](err); ok {
		return e.safe
	}
	return nil
}

// Next returns what to do about an error with this code that has no hint of its own.
func (c Code) Next() string { return next[c] }

var next = map[Code]string{
	FailedCode:         "run the same command again: it checks the current state and continues; recast status shows what is unfinished",
	RefusedCode:        "fix what the message names, then run the same command again",
	ConfigInvalid:      "correct it where the message says; examples/recast.yaml shows every key",
	ClaimHeld:          "recast status shows who runs it and how far it is; wait until it ends",
	InterruptedCode:    "run the same command again to continue; recast status shows what is unfinished",
	NotConfirmed:       "recast plan shows the plan again; --yes confirms it without asking",
	ClaimLost:          "recast status shows who has the claim now and what is unfinished",
	Differs:            "recast plan shows what a roll would do about it",
	Unread:             "recast doctor says what can't be reached, and why",
	ThisMachine:        "correct that on this machine, then run the same command again",
	DoctorFound:        "do what each problem says, then run recast doctor again",
	LockStale:          "recast lock",
	ExtensionUnknown:   "correct the name or the version in the schematic, then recast lock",
	BuildFailed:        "run recast publish --only build again: it continues where it stopped",
	ImageDiffers:       "recast lock --update takes what is published now; git diff recast.lock shows what that changes",
	ISODiffers:         "recast prune shows which ISOs are not needed; then run recast publish",
	NotPullable:        "talosctl image pull, on that node, says why; recast doctor checks the registry from here",
	RehearsalFailed:    "recast roll --rehearse tries again; recast roll --rehearse=false skips it",
	StorageFull:        "recast prune frees what is no longer needed; recast doctor shows the free space of each storage",
	StorageBusy:        "stop what uses the volume, then run the same command again: it first checks whether the volume was renamed",
	StorageUnusable:    "pvesm status on that Proxmox node; recast doctor shows the content types of each storage",
	PlanRefused:        "recast plan says why, for each node",
	PlanMoved:          "recast plan shows what would be done now",
	GateClosed:         "recast doctor shows the state of the gates; once they hold, run the same command again",
	HookFailed:         "fix the program that the message names, then run the same command again",
	KubernetesUpgrade:  "run the same command again: it continues where it stopped",
	Unreachable:        "recast doctor says what can be reached from here",
	TLS:                "recast doctor shows which certificate is served, and which is expected",
	Credentials:        "recast doctor says which credentials are accepted, and until when",
	TokenPrivileges:    "recast doctor prints the pveum commands that grant what is missing",
	NoQuorum:           "pvecm status on a Proxmox node; then run the same command again",
	HostAway:           "pvecm status on another Proxmox node; once that host is back, run the same command again",
	VMLocked:           "see which task of that VM runs; when none does, run the same command again",
	VMChanged:          "recast status shows where every disk is; then run the same command again",
	TaskFailed:         "see that task's log in Proxmox; then run the same command again, which checks what was done",
	ParkedHalf:         "recast status shows where every disk is, and what to type",
	VolumeAmbiguous:    "recast status shows where every disk is; nothing was deleted, and nothing is guessed",
	DiskMismatch:       "recast status shows where every disk is; compare with the configuration of the VM",
	PruneRefused:       "recast prune shows the current state, and why each thing is kept",
	NoWayBack:          "recast status shows which system disks are kept",
	UUIDMismatch:       "talosctl get systeminformation, on that address, shows which machine answers; qm config shows the VM's smbios1",
	SystemDiskUnproven: "set nodes[].systemDisk.slot in recast.yaml, or give each drive a wwn=",
	MachineConfig:      "put the machine configuration into the directory of talos.machineConfigs, then run the same command again",
	EtcdUnhealthy:      "see talosctl etcd status and talosctl etcd alarm list; repair etcd first",
	EtcdSnapshot:       "recast backup saves a snapshot; without a leader it refuses: recast runbook etcd-unhealthy",
	DrainBlocked:       "kubectl get pods -A -o wide, and kubectl get pdb -A, show which pods are left and why",
	NoBoot:             "look at the console of the VM in Proxmox; recast roll continues, and recast status says whether recast undo NODE can cancel it",
	NoJoin:             "talosctl dmesg, on that node, says more; recast roll waits again, and recast status says whether recast undo NODE can cancel it",
	RolledBackByItself: "talosctl dmesg, on that node, shows why the new system failed",
	UpgradeStuck:       "look at the console of the VM in Proxmox; recast status says what was replaced; recast roll waits for it again",
}

// Kind decides how a command ends when an error reaches it. One switch in cmd/recast turns the kind into an exit code.
type Kind int

const (
	// Failed is every other error: unreachable, TLS, a task, a timeout.
	Failed Kind = iota
	// Config is bad usage or configuration; nothing was touched.
	Config
	// Refused is a refusal as unsafe: a gate, a mismatch, a missing privilege.
	Refused
	// Claimed says that another run holds the cluster's claim.
	Claimed
	// Interrupted says that the user stopped the run or declined to confirm.
	Interrupted
)

type kindError struct {
	error
	kind Kind
}

func (e *kindError) Unwrap() error { return e.error }

// As gives err a kind; the outermost kind in a chain counts. As(k, nil) is nil.
func As(k Kind, err error) error {
	if err == nil {
		return nil
	}
	return &kindError{error: err, kind: k}
}

func Configf(format string, args ...any) error { return As(Config, fmt.Errorf(format, args...)) }

func Refusedf(format string, args ...any) error { return As(Refused, fmt.Errorf(format, args...)) }

// KindOf returns the kind of err, Failed if it carries none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*kindError](err); ok {
		return e.kind
	}
	return Failed
}

type hintError struct {
	error
	hint   string
	always bool // show the hint whatever the cause was
}

func (e *hintError) Unwrap() error { return e.error }

// Prefix wraps err; what says what failed. Prefix(…, nil) is nil.
func Prefix(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// WithHint attaches a remedy to err. The remedy is not part of the message. WithHint(nil, …) is nil.
func WithHint(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &hintError{error: err, hint: fmt.Sprintf(format, args...)}
}

// WithNext is like WithHint, for a remedy that applies whatever the cause was.
func WithNext(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &hintError{error: err, hint: fmt.Sprintf(format, args...), always: true}
}

// Hints returns every hint in err's tree, outermost first, without repeats. If this machine lacks something, hints
// about servers are left out, since no server was heard from; hints of WithNext stay.
func Hints(err error) []string {
	var hints []string
	local := ofThisMachine(err)
	if local != "" {
		hints = append(hints, local)
	}
	seen := map[string]bool{}
	var walk func(error)
	walk = func(err error) {
		if err == nil {
			return
		}
		if h, ok := err.(*hintError); ok && !seen[h.hint] && (local == "" || h.always) {
			seen[h.hint] = true
			hints = append(hints, h.hint)
		}
		for _, e := range wrapped(err) {
			walk(e)
		}
	}
	walk(err)
	return hints
}

// ofThisMachine returns what to do if this machine caused err by lacking something; otherwise "".
func ofThisMachine(err error) string {
	is := func(list ...error) bool {
		for _, e := range list {
			if errors.Is(err, e) {
				return true
			}
		}
		return false
	}
	switch {
	case is(syscall.EMFILE, syscall.ENFILE):
		return "this machine lets recast open too few files: ulimit -n 1024, then run the same command again"
	case is(syscall.ENOSPC, syscall.EDQUOT):
		return "make room on this machine, where that file is (recast prune --only cache frees some), then run the same command again"
	case is(syscall.EROFS):
		return "recast has to write there: make that file system writable, or work in a copy of the directory; then run the same command again"
	}
	file, ok := errors.AsType[*fs.PathError](err)
	if ok && file.Op != "fork/exec" && errors.Is(file.Err, fs.ErrPermission) { // a program has its own hints
		return "this user may not use " + file.Path + ", or its directory: ls -ld shows whose it is; change that, or run recast as that user"
	}
	return ""
}
