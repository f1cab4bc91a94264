package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

// TestDemoNoticesAWipedDisk lets the demo's last check see what it is there for.
func TestDemoNoticesAWipedDisk(t *testing.T) {
	t.Parallel()
	before := map[string]string{"data-wk1": "a", "data-wk2": "b"}
	for name, after := range map[string]map[string]string{
		"persistent disk data-wk2 has changed: c, before b": {"data-wk1": "a", "data-wk2": "c"},
		"persistent disk data-wk1 is gone":                  {"data-wk2": "b"},
	} {
		if err := sameDisks(before, after); err == nil || err.Error() != name || fault.KindOf(err) != fault.Refused {
			t.Errorf("%v, want %s", err, name)
		}
	}
	if err := sameDisks(before, before); err != nil {
		t.Error(err)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for want, err := range map[int]error{
		exitDone: nil, exitFailed: fault.WithHint(errUnread, "h"), exitDiffers: errDiffers, exitConfig: fault.Configf("x"),
		exitRefused: fault.Refusedf("x"), exitClaimed: fault.As(fault.Claimed, errUnread), exitInterrupted: fault.As(fault.Interrupted, errUnread),
	} {
		var out bytes.Buffer
		s := &streams{err: &out}
		if got := s.exit(err); got != want {
			t.Errorf("%v: exit code %d, want %d", err, got, want)
		}
		if quiet := err == nil || err == errDiffers; quiet != (out.Len() == 0) {
			t.Errorf("%v printed %q", err, out.String())
		}
	}
	var out bytes.Buffer
	(&streams{err: &out}).exit(fault.WithHint(fault.Configf("what"), "do that"))
	if !strings.HasSuffix(out.String(), "error: what\nhint: do that\n") {
		t.Errorf("printed %q", out.String())
	}
}
