package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for want, err := range map[int]error{
		exitDone: nil, exitFailed: fault.WithHint(errUnread, "h"), exitDiffers: errDiffers, exitConfig: fault.Configf("x"),
		exitRefused: fault.Refusedf("x"), exitClaimed: fault.As(fault.Claimed, errUnread), exitInterrupted: fault.As(fault.Interrupted, errUnread),
	} {
		var out bytes.Buffer
		s := &streams{err: &console{Writer: &out}}
		if got := s.exit(nil, err); got != want {
			t.Errorf("%v: exit code %d, want %d", err, got, want)
		}
		if quiet := err == nil || err == errDiffers; quiet != (out.Len() == 0) {
			t.Errorf("%v printed %q", err, out.String())
		}
	}
	var out bytes.Buffer
	(&streams{err: &console{Writer: &out}}).exit(nil, fault.WithHint(errUsage{errors.New("what")}, "do that"))
	if want := "error: what\nsafe: nothing was changed\nhint: do that\nrunbook: recast runbook config-invalid ("; !strings.HasPrefix(out.String(), want) {
		t.Errorf("printed %q, want %q…", out.String(), want)
	}
}
