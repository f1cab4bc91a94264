package fault_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
)

var errPlain = errors.New("plain")

func TestKindOf(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err  error
		want fault.Kind
	}{
		"none":                    {nil, fault.Failed},
		"plain":                   {errPlain, fault.Failed},
		"config":                  {fault.Configf("line %d", 3), fault.Config},
		"refused, wrapped":        {fmt.Errorf("gate: %w", fault.Refusedf("no quorum")), fault.Refused},
		"below a hint":            {fault.WithHint(fault.As(fault.Claimed, errPlain), "wait"), fault.Claimed},
		"the outermost counts":    {fault.As(fault.Interrupted, fault.Refusedf("no quorum")), fault.Interrupted},
		"the first of several":    {errors.Join(errPlain, fault.Configf("a"), fault.Refusedf("b")), fault.Config},
		"failed hides what it is": {fault.As(fault.Failed, fault.Configf("a")), fault.Failed},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := fault.KindOf(c.err); got != c.want {
				t.Errorf("KindOf(%v) = %v, want %v", c.err, got, c.want)
			}
		})
	}
}

func TestHints(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err  error
		want []string
	}{
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
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, fault.Hints(c.err)); diff != "" {
				t.Errorf("hints (-want +got):\n%s", diff)
			}
		})
	}
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
