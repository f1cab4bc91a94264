package record_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
)

// TestKeeping holds that a lab that runs for days forgets requests and delays but counts
// them, and that an answer to a forgotten request does no harm.
func TestKeeping(t *testing.T) {
	t.Parallel()
	const kept, made = 100, 1_000_000
	r := record.Keeping(kept)
	first := must.Get(r.Begin(record.Call{Proto: "talos"}))(t)
	for range made {
		c := must.Get(r.Begin(record.Call{Proto: "kubernetes", Path: "/api/v1/nodes", Mutation: true}))(t)
		r.End(c)
		r.Timeline.Add(record.Delay{What: "boot", To: time.Unix(1, 0)})
	}
	first.Status = 200
	r.End(first)
	must.Get(r.Counted(httptest.NewRecorder(), first).Write([]byte("late")))(t)
	calls := r.Calls()
	if len(calls) < kept || len(calls) >= 2*kept || calls[len(calls)-1].Seq != made+1 || calls[0].Seq != r.Dropped()+1 {
		t.Errorf("%d calls are kept, from %d to %d, after %d dropped ones", len(calls), calls[0].Seq, calls[len(calls)-1].Seq, r.Dropped())
	}
	must.Equal(t, "delays are kept", true, len(r.Timeline.Delays()) >= kept && len(r.Timeline.Delays()) < 2*kept)
	must.Equal(t, "mutations were counted", made, r.Mutations())
	must.Equal(t, "requests", map[string]int{"talos": 1, "kubernetes": made}, r.Requests())
}

// TestKeepingAll holds that tests see every call.
func TestKeepingAll(t *testing.T) {
	t.Parallel()
	r := record.New()
	for range 10_000 {
		c := must.Get(r.Begin(record.Call{Proto: "talos"}))(t)
		c.Status = c.Seq
		r.End(c)
	}
	for i, c := range r.Calls() {
		must.Be(t, c.Seq == i+1 && c.Status == i+1, "call %d is %+v", i+1, c)
	}
	must.Equal(t, "dropped, kept", []any{0, 10_000}, []any{r.Dropped(), len(r.Calls())})
}
