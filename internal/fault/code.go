package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Code names a kind of error, for recast runbook CODE. Codes never change; the page of
// each is docs/runbooks/CODE.md.
type Code string

// The codes. The first ones are for errors that have only a kind.
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

// WithCode gives err a code, which is not part of the message. Of several codes in a
// chain the outermost counts, since the caller knows more about the context.
// WithCode(nil, …) is nil.
func WithCode(err error, c Code) error {
	if err == nil {
		return nil
	}
	return &codeError{error: err, code: c}
}

// Of is WithCode.
func (c Code) Of(err error) error { return WithCode(err, c) }

// Else gives err the code unless err or an error in it has one already, or its kind
// has its own code.
func (c Code) Else(err error) error {
	if kind := KindOf(err); c == "" || kind != Failed && kind != Refused || len(codes(err)) > 0 {
		return err
	}
	return WithCode(err, c)
}

// Errorf is a formatted error with the code, of kind Failed.
func (c Code) Errorf(format string, args ...any) error {
	return WithCode(fmt.Errorf(format, args...), c)
}

// Refusedf is a formatted error with the code, of kind Refused.
func (c Code) Refusedf(format string, args ...any) error {
	return WithCode(As(Refused, fmt.Errorf(format, args...)), c)
}

// Configf is a formatted error with the code, of kind Config.
func (c Code) Configf(format string, args ...any) error {
	return WithCode(As(Config, fmt.Errorf(format, args...)), c)
}

// Codes returns the codes of err in the order of its tree, each once. It returns at
// least one: that of its kind.
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

// CodeOf is the first of Codes; CodeOf(nil) is "".
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return Codes(err)[0]
}

// codes returns the codes in err's tree, except below an interruption by the user: what
// that cancelled is not an error of its own.
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

// WithSafe adds to err what is safe in spite of it: what was not touched, and where
// detached disks are kept. WithSafe(nil, …) is nil.
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
