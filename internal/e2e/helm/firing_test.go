package helm

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"

	"github.com/recast-sh/recast/internal/sim/must"
)

const (
	scrape = 30 * time.Second
	week   = 7 * 24 * time.Hour
)

// begin is when the series begin.
var begin = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

// A line is a series: name and labels, as Prometheus writes them, and its value at a time
// after begin. Where that is NaN, there is none.
type line struct {
	series string
	at     func(after time.Duration) float64
}

func always(v float64) func(time.Duration) float64 { return func(time.Duration) float64 { return v } }

// during is v from one time to another, and missing before and after.
func during(from, to time.Duration, v float64) func(time.Duration) float64 {
	return func(after time.Duration) float64 {
		if after < from || after >= to {
			return math.NaN()
		}
		return v
	}
}

// except is f with gaps: a replica takes over, or is rolled.
func except(f func(time.Duration) float64, every, gap time.Duration) func(time.Duration) float64 {
	return func(after time.Duration) float64 {
		if after%every >= every-gap {
			return math.NaN()
		}
		return f(after)
	}
}

// TestFiring evaluates each alert over a week with Prometheus' own engine: when it fires
// first after begin, and for what.
func TestFiring(t *testing.T) {
	t.Parallel()
	const (
		stalled  = `recast_cluster_condition{namespace="a",cluster="c",type="Stalled",status="True",pod="p1"}`
		drifted  = `recast_cluster_condition{namespace="a",cluster="c",type="Drifted",status="True",pod="p1"}`
		drifted2 = `recast_cluster_condition{namespace="a",cluster="c",type="Drifted",status="True",pod="p2"}`
		due      = `recast_cluster_check_due_timestamp_seconds{namespace="a",cluster="c",pod="p1"}`
		leader   = `leader_election_master_status{job="recast-operator",name="recast-operator",pod="p1"}`
		backup   = `leader_election_master_status{job="recast-operator",name="recast-operator",pod="p2"}`
		other    = `leader_election_master_status{job="another-operator",name="recast-operator",pod="p3"}`
		approval = `recast_imageroll_phase{namespace="a",roll="r",cluster="c",phase="AwaitingApproval",pod="p1"}`
		failed   = `recast_imageroll_phase{namespace="a",roll="r",cluster="c",phase="Failed",pod="p1"}`
		member   = `recast_fleetroll_members{namespace="a",fleet="f",pod="p1",phase=`
	)
	at := func(d time.Duration) float64 { return float64(begin.Add(d).Unix()) }
	hourly := func(after time.Duration) float64 { return at(after.Truncate(time.Hour) + time.Hour) }
	cases := map[string]struct {
		alert string
		lines []line
		want  time.Duration // 0: never
		of    string
	}{
		"stalled":                       {"RecastClusterStalled", []line{{stalled, always(1)}}, 5 * time.Minute, `{cluster="c", namespace="a"}`},
		"not stalled, as a zero":        {"RecastClusterStalled", []line{{stalled, always(0)}}, 0, ""},
		"drifted":                       {"RecastClusterDrifted", []line{{drifted, always(1)}}, 24 * time.Hour, `{cluster="c", namespace="a"}`},
		"drifted every day until noon":  {"RecastClusterDrifted", []line{{drifted, except(always(1), 24*time.Hour, 12*time.Hour)}}, 0, ""},
		"drifted, the operator rolled":  {"RecastClusterDrifted", []line{{drifted, except(always(1), 6*time.Hour, 9*time.Minute)}}, 24 * time.Hour, `{cluster="c", namespace="a"}`},
		"drifted, another pod leads":    {"RecastClusterDrifted", []line{{drifted, during(0, 12*time.Hour, 1)}, {drifted2, during(12*time.Hour, week, 1)}}, 24 * time.Hour, `{cluster="c", namespace="a"}`},
		"checked every hour":            {"RecastClusterNotChecked", []line{{due, hourly}}, 0, ""},
		"checked once":                  {"RecastClusterNotChecked", []line{{due, always(at(time.Hour))}}, 13*time.Hour + 10*time.Minute, `{cluster="c", namespace="a"}`},
		"suspended, or without a check": {"RecastClusterNotChecked", []line{{due, during(0, 12*time.Hour, at(time.Hour))}}, 0, ""},
		"awaits approval":               {"RecastRollAwaitsApproval", []line{{approval, always(1)}}, 24 * time.Hour, `{cluster="c", namespace="a", roll="r"}`},
		"approved after a night":        {"RecastRollAwaitsApproval", []line{{approval, during(0, 23*time.Hour, 1)}}, 0, ""},
		"failed":                        {"RecastRollFailed", []line{{failed, during(3*time.Hour, week, 1)}}, 3*time.Hour + time.Minute, `{cluster="c", namespace="a", roll="r"}`},
		"a fleet that was stopped":      {"RecastFleetStalled", []line{{member + `"Failed"}`, always(2)}, {member + `"Waiting"}`, always(5)}, {member + `"Running"}`, during(0, 3*time.Hour, 1)}}, 4*time.Hour + 9*time.Minute, `{fleet="f", namespace="a"}`},
		"a fleet that goes on":          {"RecastFleetStalled", []line{{member + `"Failed"}`, always(1)}, {member + `"Waiting"}`, always(5)}, {member + `"Running"}`, except(always(1), 2*time.Hour, 30*time.Minute)}}, 0, ""},
		"a fleet that is done":          {"RecastFleetStalled", []line{{member + `"Failed"}`, always(1)}, {member + `"Waiting"}`, always(0)}, {member + `"Running"}`, always(0)}}, 0, ""},
		"a fleet that waits":            {"RecastFleetStalled", []line{{member + `"Failed"}`, always(0)}, {member + `"Waiting"}`, always(5)}, {member + `"Running"}`, always(0)}}, 0, ""},
		"a leader":                      {"RecastOperatorDown", []line{{leader, always(1)}, {backup, always(0)}}, 0, ""},
		"a leader now and then":         {"RecastOperatorDown", []line{{leader, except(always(1), time.Hour, 9*time.Minute)}}, 0, ""},
		"no leader":                     {"RecastOperatorDown", []line{{leader, always(0)}, {backup, always(0)}}, 10 * time.Minute, `{}`},
		"no operator":                   {"RecastOperatorDown", nil, 10 * time.Minute, `{}`},
		"a leader of another operator":  {"RecastOperatorDown", []line{{other, always(1)}}, 10 * time.Minute, `{}`},
		"no leader once, until it dies": {"RecastOperatorDown", []line{{leader, during(0, 48*time.Hour, 1)}}, 48*time.Hour + 10*time.Minute, `{}`},
	}
	all := rules(t)
	tried := map[string]bool{}
	for name, c := range cases {
		tried[c.alert] = true
		i := slices.IndexFunc(all, func(r rulefmt.Rule) bool { return r.Alert == c.alert })
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			when, of := firstFiring(t, all[i], c.lines)
			// Series are scraped, and rules evaluated, once in a while; absence is noticed when a sample is five minutes old.
			if late := when - c.want; (c.want == 0) != (when == 0) || late < 0 || late > 6*time.Minute || of != c.of {
				t.Errorf("fires after %v for %s, want %v for %s", when, of, c.want, c.of)
			}
		})
	}
	for _, r := range all {
		if !tried[r.Alert] {
			t.Errorf("no case of %s", r.Alert)
		}
	}
}

// firstFiring says when an alert fires first: its expression has had the same labels at each
// minute for as long as it asks. 0: never.
func firstFiring(t *testing.T, r rulefmt.Rule, lines []line) (when time.Duration, of string) {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 50_000_000, Timeout: time.Minute, Parser: grammar})
	t.Cleanup(func() { _ = engine.Close() })
	q := must.Get(engine.NewRangeQuery(t.Context(), stored(t, lines), nil, r.Expr, begin, begin.Add(week-time.Hour), time.Minute))(t)
	defer q.Close()
	matrix := must.Get(q.Exec(t.Context()).Matrix())(t)
	for _, series := range matrix {
		since := int64(-1)
		last := int64(-1)
		for _, p := range series.Floats {
			if last < 0 || p.T-last > time.Minute.Milliseconds() {
				since = p.T
			}
			last = p.T
			if held := time.Duration(p.T-since) * time.Millisecond; held >= time.Duration(r.For) {
				after := time.UnixMilli(p.T).Sub(begin)
				if when == 0 || after < when {
					when, of = after, series.Metric.String()
				}
				break
			}
		}
	}
	return when, of
}
