package rolling

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

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
		if holds != c.holds || seen != c.seen || (err == nil) != (c.err == "") {
			t.Errorf("%t, %q, %v", holds, seen, err)
		}
		if err != nil && (err.Error() != c.err || fault.KindOf(err) != fault.Refused || len(fault.Hints(err)) != 1) {
			t.Errorf("err = %v", err)
		}
	})
}

func failing(names ...string) cluster.Judged {
	j := cluster.Judged{Objects: 12}
	for _, name := range names {
		j.Failing = append(j.Failing, cluster.FailingObject{Name: name, Why: "status.ok=false"})
	}
	return j
}
