package rolling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
)

// TestStepsAreRepeated: a step whose reads are unanswered runs again, after its Skip is asked
// again. Any clear answer ends it at once.
func TestStepsAreRepeated(t *testing.T) {
	t.Parallel()
	busy := fmt.Errorf("read it: %w", cluster.ErrNotNow)
	refused := fault.Refusedf("it is another machine")
	type testCase struct {
		errs  []error // of each attempt; then it succeeds
		did   int
		after time.Duration
		want  error
	}
	must.Bubbles(t, map[string]testCase{
		"answered":              {did: 1},
		"busy twice":            {errs: []error{busy, busy}, did: 3, after: 2 * time.Second},
		"a host is offline":     {errs: []error{&cluster.HostsAway{}}, did: 2, after: time.Second},
		"a refusal":             {errs: []error{refused}, did: 1, want: refused},
		"a refusal beside it":   {errs: []error{errors.Join(busy, refused)}, did: 1, want: refused},
		"a lost claim":          {errs: []error{fault.As(fault.Claimed, fmt.Errorf("lost: %w", errOther))}, did: 1, want: errOther},
		"a lost change":         {errs: []error{errors.Join(busy, cluster.ErrLostAnswer)}, did: 1, want: cluster.ErrLostAnswer},
		"a lost one made again": {errs: []error{Repeatable(errors.Join(busy, cluster.ErrLostAnswer))}, did: 2, after: time.Second},
		"put back already":      {errs: []error{Final(busy)}, did: 1, want: cluster.ErrNotNow},
		"silent members alone":  {errs: []error{&cluster.SilentError{Err: refused}}, did: 2, after: time.Second},
		"not found":             {errs: []error{cluster.ErrNotFound}, did: 1, want: cluster.ErrNotFound},
		"busy for ever":         {errs: slices.Repeat([]error{busy}, 1000), did: 181, after: RepeatBefore, want: cluster.ErrNotNow},
		"a refusal in between":  {errs: []error{busy, refused}, did: 2, after: time.Second, want: refused},
	}, func(t *testing.T, c testCase) {
		did, asked, said := 0, 0, 0
		n := &Node{Roll: &Roll{Say: func(string, string) { said++ }}}
		s := n.Repeating("take-down/drain", step.Step{
			Skip: func(context.Context) (string, error) { asked++; return "", nil },
			Do: func(context.Context) error {
				if did++; did <= len(c.errs) {
					return c.errs[did-1]
				}
				return nil
			},
		})
		start := time.Now()
		err := s.Do(t.Context())
		took := time.Since(start)
		must.Hold(t, did == c.did && took == c.after && errors.Is(err, c.want), "did it %d times in %s: %v", did, took, err)
		must.Hold(t, asked == did-1 && (said > 0) == (did > 1),
			"asked %d times whether it is needed, said something %d times", asked, said)
	})
}

var errOther = errors.New("to another run")

// TestRepeatingEndsWithItsContext: the end of the run, or a lost claim, ends it at once.
func TestRepeatingEndsWithItsContext(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		lost := fault.As(fault.Claimed, errOther)
		time.AfterFunc(90*time.Second, func() { cancel(lost) })
		n := &Node{Roll: &Roll{Timing: cluster.Timing{Poll: time.Minute, Join: time.Hour}, Say: func(string, string) {}}}
		start := time.Now()
		err := n.Repeating("bring-up/start", step.Step{Do: func(context.Context) error { return cluster.ErrNotNow }}).Do(ctx)
		if took := time.Since(start); took != 90*time.Second || fault.KindOf(err) != fault.Claimed || !errors.Is(err, cluster.ErrNotNow) {
			t.Errorf("after %s: %v", took, err)
		}
	})
}

// TestHowLongStepsAreRepeated: once the node may be out, as long as a node may take to come back.
func TestHowLongStepsAreRepeated(t *testing.T) {
	t.Parallel()
	n := &Node{Roll: &Roll{Timing: cluster.Timing{Join: time.Hour}}}
	for id, want := range map[string]time.Duration{"gate": RepeatBefore, "take-down/drain": RepeatBefore, "take-down/park": time.Hour, "bring-up/finish/uncordon": time.Hour} {
		must.Equal(t, id, want, n.RepeatFor(id))
	}
	n.Plan.Resume = true
	must.Equal(t, "gate of a node that is out", time.Hour, n.RepeatFor("gate"))
}

// AwaitLate is for the rows of the gate.
var AwaitLate = (*Node).awaitLate

func TestVerdict(t *testing.T) {
	t.Parallel()
	type testCase struct {
		judged   cluster.Judged
		optional bool
		holds    bool
		seen     string
		err      string
	}
	must.Each(t, map[string]testCase{
		"all hold":                {judged: failing(), holds: true},
		"one fails":               {judged: failing("a/b"), seen: "1 of 12: a/b: status.ok=false"},
		"many fail":               {judged: failing("a", "b", "c", "d", "e"), seen: "5 of 12: a: status.ok=false; b: status.ok=false; c: status.ok=false; and 2 more"},
		"an optional one fails":   {judged: failing("a"), optional: true, seen: "1 of 12: a: status.ok=false"},
		"no object":               {seen: "there is no such object"},
		"no object, optional":     {optional: true, holds: true},
		"not installed":           {judged: cluster.Judged{Unserved: "ceph.rook.io is not installed"}, err: "ceph.rook.io is not installed"},
		"not installed, optional": {judged: cluster.Judged{Unserved: "ceph.rook.io is not installed"}, optional: true, holds: true},
	}, func(t *testing.T, c testCase) {
		holds, seen, err := verdictOf(c.judged, cluster.ObjectGate{Optional: c.optional})
		must.Hold(t, holds == c.holds && seen == c.seen && (err == nil) == (c.err == ""), "%t, %q, %v", holds, seen, err)
		must.Hold(t, err == nil || err.Error() == c.err && fault.KindOf(err) == fault.Refused && len(fault.Hints(err)) == 1,
			"err = %v", err)
	})
}

func failing(names ...string) cluster.Judged {
	j := cluster.Judged{Objects: 12}
	for _, name := range names {
		j.Failing = append(j.Failing, cluster.FailingObject{Name: name, Why: "status.ok=false"})
	}
	return j
}
