package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

var errPlain = errors.New("plain")

func TestKindOf(t *testing.T) {
	t.Parallel()
	type example struct {
		err  error
		want fault.Kind
	}
	cases := map[string]example{
		"none":                    {nil, fault.Failed},
		"plain":                   {errPlain, fault.Failed},
		"config":                  {fault.Configf("line %d", 3), fault.Config},
		"refused, wrapped":        {fmt.Errorf("gate: %w", fault.Refusedf("no quorum")), fault.Refused},
		"below a hint":            {fault.WithHint(fault.As(fault.Claimed, errPlain), "wait"), fault.Claimed},
		"the outermost counts":    {fault.As(fault.Interrupted, fault.Refusedf("no quorum")), fault.Interrupted},
		"the first of several":    {errors.Join(errPlain, fault.Configf("a"), fault.Refusedf("b")), fault.Config},
		"failed hides what it is": {fault.As(fault.Failed, fault.Configf("a")), fault.Failed},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		must.Equal(t, "kind", c.want, fault.KindOf(c.err))
	})
}

func TestHints(t *testing.T) {
	t.Parallel()
	type example struct {
		err  error
		want []string
	}
	cases := map[string]example{
		"none":      {errPlain, nil},
		"formatted": {fault.WithHint(errPlain, "set %q", "iso.storage"), []string{`set "iso.storage"`}},
		"outermost first, each once": {
			fault.WithHint(fmt.Errorf("a: %w", fault.WithHint(fault.WithHint(errPlain, "inner"), "outer")), "outer"),
			[]string{"outer", "inner"},
		},
		"of every branch": {
			errors.Join(fault.WithHint(errPlain, "one"), fault.As(fault.Config, fault.WithHint(errPlain, "two"))),
			[]string{"one", "two"},
		},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		must.Equal(t, "hints", c.want, fault.Hints(c.err))
	})
}

// A kind and a hint do not change an error's message and what it wraps.
func TestMarksKeepTheError(t *testing.T) {
	t.Parallel()
	err := fault.WithHint(fault.As(fault.Refused, errPlain), "try again")
	if err.Error() != "plain" || !errors.Is(err, errPlain) {
		t.Errorf("err = %q, wraps plain: %t", err, errors.Is(err, errPlain))
	}
	if err := fault.As(fault.Refused, nil); err != nil {
		t.Errorf("As(nil) = %v", err)
	}
	if err := fault.WithHint(nil, "try again"); err != nil {
		t.Errorf("WithHint(nil) = %v", err)
	}
}

func TestCodes(t *testing.T) {
	t.Parallel()
	cut := fault.As(fault.Interrupted, fmt.Errorf("drain: %w", fault.DrainBlocked.Of(context.Canceled)))
	type example struct {
		err  error
		want []fault.Code
	}
	cases := map[string]example{
		"of its kind: failed":      {errPlain, []fault.Code{fault.FailedCode}},
		"of its kind: config":      {fault.Configf("x"), []fault.Code{fault.ConfigInvalid}},
		"of its kind: refused":     {fault.Refusedf("x"), []fault.Code{fault.RefusedCode}},
		"of its kind: claimed":     {fault.As(fault.Claimed, errPlain), []fault.Code{fault.ClaimHeld}},
		"its own":                  {fmt.Errorf("a: %w", fault.WithHint(fault.NoQuorum.Refusedf("x"), "h")), []fault.Code{fault.NoQuorum}},
		"the outermost counts":     {fault.NoBoot.Of(fmt.Errorf("a: %w", fault.Unreachable.Of(errPlain))), []fault.Code{fault.NoBoot}},
		"of every branch, once":    {errors.Join(fault.NoBoot.Of(errPlain), errPlain, fault.NoJoin.Of(errPlain), fault.NoBoot.Of(errPlain)), []fault.Code{fault.NoBoot, fault.NoJoin}},
		"interrupted says it all":  {cut, []fault.Code{fault.InterruptedCode}},
		"cancelled, too":           {fault.DrainBlocked.Of(context.Canceled), []fault.Code{fault.InterruptedCode}},
		"nobody said yes":          {fault.NotConfirmed.Of(fault.As(fault.Interrupted, errPlain)), []fault.Code{fault.NotConfirmed}},
		"cut off beside a failure": {fault.As(fault.Failed, errors.Join(cut, fault.NoJoin.Of(errPlain))), []fault.Code{fault.NoJoin}},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		must.Equal(t, "codes", c.want, fault.Codes(c.err))
	})
	must.Equal(t, "CodeOf(nil)", fault.Code(""), fault.CodeOf(nil))
}

func TestElse(t *testing.T) {
	t.Parallel()
	type example struct {
		err  error
		want fault.Code
	}
	cases := map[string]example{
		"without a code":         {errPlain, fault.NoBoot},
		"with one further in":    {fmt.Errorf("a: %w", fault.TLS.Of(errPlain)), fault.TLS},
		"bad configuration":      {fault.Configf("x"), fault.ConfigInvalid},
		"the claim is another's": {fault.As(fault.Claimed, errPlain), fault.ClaimHeld},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		must.Equal(t, "code", c.want, fault.CodeOf(fault.NoBoot.Else(c.err)))
	})
	must.Hold(t, fault.NoBoot.Else(nil) == nil && fault.Code("").Else(errPlain) == errPlain,
		"no error, or no code, makes one")
}

func TestSafe(t *testing.T) {
	t.Parallel()
	err := fault.WithSafe(fmt.Errorf("a: %w", fault.WithSafe(errPlain, "inner")), "one", "two")
	diff := cmp.Diff([]string{"one", "two"}, fault.Safe(err))
	must.Hold(t, diff == "" && err.Error() == "a: plain", "%v is safe (-want +got):\n%s", err, diff)
	must.Hold(t, fault.WithSafe(nil, "one") == nil && fault.Safe(errPlain) == nil, "safe out of nothing")
}

// TestThisMachine: what this machine lacks takes the place of hints about servers, but not of what is unfinished.
func TestThisMachine(t *testing.T) {
	t.Parallel()
	for want, cause := range map[string]error{
		"this machine lets recast open too few files: ulimit -n 1024, then run the same command again":                                   syscall.EMFILE,
		"make room on this machine, where that file is (recast prune --only cache frees some), then run the same command again":          syscall.ENOSPC,
		"recast has to write there: make that file system writable, or work in a copy of the directory; then run the same command again": syscall.EROFS,
		"this user may not use .recast/cache, or its directory: ls -ld shows whose it is; change that, or run recast as that user":       &fs.PathError{Op: "mkdir", Path: ".recast/cache", Err: syscall.EACCES},
	} {
		err := fault.WithNext(fmt.Errorf("roll: %w", fault.WithHint(fault.LockStale.Of(fmt.Errorf("node wk1: %w", cause)), "look at its console")), "wk1 is unfinished")
		if got := fault.Hints(err); !slices.Equal(got, []string{want, "wk1 is unfinished"}) {
			t.Errorf("%v: %q", cause, got)
		}
		must.Equal(t, cause.Error(), fault.ThisMachine, fault.CodeOf(err))
	}
	for _, cause := range []error{errors.New("x"), &fs.PathError{Op: "fork/exec", Path: "hook.sh", Err: syscall.EACCES}, &fs.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}} {
		other := fault.WithHint(fault.LockStale.Of(cause), "look at its console")
		if got := append(fault.Hints(other), string(fault.CodeOf(other))); !slices.Equal(got, []string{"look at its console", "lock-stale"}) {
			t.Errorf("%v: %q", cause, got)
		}
	}
}
