package simtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/step"
)

// chat simulates a slow webhook.
type chat struct {
	takes time.Duration
	err   error

	mu  sync.Mutex
	got []cluster.Notice
}

func (c *chat) Notify(ctx context.Context, n cluster.Notice) error {
	c.mu.Lock()
	c.got = append(c.got, n)
	c.mu.Unlock()
	select {
	case <-time.After(c.takes):
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// require compares the notices, without their times.
func (c *chat) require(t *testing.T, want ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var got []string
	for _, n := range c.got {
		text, _, _ := strings.Cut(n.Text, " after ")
		got = append(got, fmt.Sprintf("%s %s %s %s %q %q: %s", n.Event, n.Command, n.Run, n.Outcome, n.Nodes, n.Error, text))
		require(t, !n.Started.IsZero() && n.Ended.IsZero() == (n.Event == cluster.NoticeStart) && n.Host == "test",
			"started %s, ended %s on %s", n.Started, n.Ended, n.Host)
	}
	requireSame(t, want, got, "notices (-want +got)")
	c.got = nil
}

// A run sends notices when it begins and ends, and does not wait for those in between.
func TestNotices(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 2}, func(t *testing.T, lab *Lab) {
		lab.setRoll("canary: false")
		c, h := withHooks(lab, failAt("afterNode wk1"))
		told := &chat{takes: 5 * time.Minute}
		c.Notify = told
		var began, gone time.Time
		begins := whenStarted("before-run", func() { began = time.Now() })
		goes := whenStarted("wk1/take-down", func() { gone = time.Now() })
		c.Emit = func(e step.Event) { begins(e); goes(e) }
		mustBe(t, c.roll(planning.Policy{})(t.Context()) != nil, "no failure")
		took := gone.Sub(began)
		require(t, !gone.IsZero() && took <= time.Minute, "the first node went %s after the start", took)
		const err = `roll/workers/wk1/run-hooks-again: wk1 is done and takes pods, but no other node is to follow: hook \"h\": h ended with 3: at afterNode wk1`
		told.require(t, `start roll 20000101-0000-feed  {[] [] ["wk1" "wk2"]} "": recast roll of lab has started, to do: wk1, wk2`,
			`failure roll 20000101-0000-feed failed {[] ["wk1"] ["wk2"]} "`+err+`": recast roll of lab: failed`)

		h.do, told.takes = nil, 0
		again := h.next(lab)
		again.Notify = told
		must(t, again.roll(planning.Policy{})(t.Context()))
		told.require(t, `start roll `+again.Run+`  {[] [] ["wk2"]} "": recast roll of lab has started, to do: wk2`,
			`end roll `+again.Run+` done {["wk2"] [] []} "": recast roll of lab: done`)

		// With nothing to do there is no notice.
		idle := lab.second()
		idle.Notify = told
		must(t, idle.roll(planning.Policy{})(t.Context()))
		told.require(t)
	})
}

// An unreachable webhook does not fail a roll; the report says so.
func TestNoticesThatDoNotArrive(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		c.Notify = &chat{err: errors.New("webhook h: notice: it answers with 500\nwebhook i: it is not set")}
		rep := valueOf(c.Roll(t.Context(), planning.Policy{}))(t)
		require(t, rep.Outcome == "done", "%q", rep.Outcome)
		const h, i = "webhook h: notice: it answers with 500", "webhook i: it is not set"
		requireSame(t, []string{h, i, h, i}, rep.Unsent, "unsent notices (-want +got)")
		requireDrift(t, lab)
	})
}

// A refused roll sends notices too; a declined one does not, and after a second Ctrl-C
// recast waits for no webhook.
func TestNoticesOfARunThatDidNotBegin(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		told := &chat{}
		c := lab.Client()
		c.Notify = told
		c.Confirm = func(planning.Plan) (bool, error) { return false, nil }
		mustBe(t, c.roll(planning.Policy{})(t.Context()) != nil, "it was confirmed")
		told.require(t)
		mustBe(t, c.roll(planning.Policy{Only: []string{"wk9"}})(t.Context()) != nil, "there is a wk9")
		told.require(t, `failure roll  failed {[] [] []} "no node \"wk9\" in the configuration, did you mean \"wk1\"?": recast roll of lab: failed`)

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c = lab.second()
		told.takes = time.Hour
		c.Notify = told
		var pressed time.Time
		c.Emit = whenStarted("wk1/bring-up", func() { pressed = time.Now(); cancel() })
		mustBe(t, c.roll(planning.Policy{})(ctx) != nil, "it was not interrupted")
		took := time.Since(pressed)
		require(t, took <= time.Minute, "it took %s to end", took)
		n := len(told.got)
		require(t, n == 2 && told.got[1].Outcome == "interrupted" && told.got[1].Event == cluster.NoticeFailure,
			"told %+v", told.got)
	})
}
