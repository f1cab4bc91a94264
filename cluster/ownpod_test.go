package cluster_test

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestFromEnv(t *testing.T) {
	t.Parallel()
	type testCase struct {
		env  map[string]string
		want cluster.OwnPod
		err  string // a part of it; "": none
	}
	must.Each(t, map[string]testCase{
		"no pod": {},
		"a pod": {
			env:  map[string]string{"RECAST_POD_NAMESPACE": "recast", "RECAST_POD_NAME": "roll-x", "RECAST_POD_UID": "u1"},
			want: cluster.OwnPod{Namespace: "recast", Name: "roll-x", UID: "u1"},
		},
		"only its name":   {env: map[string]string{"RECAST_POD_NAME": "roll-x"}, err: "RECAST_POD_NAMESPACE and RECAST_POD_UID not set"},
		"without its UID": {env: map[string]string{"RECAST_POD_NAMESPACE": "recast", "RECAST_POD_NAME": "roll-x"}, err: ": RECAST_POD_UID not set"},
	}, func(t *testing.T, c testCase) {
		got, err := cluster.OwnPodFromEnv(func(key string) string { return c.env[key] })
		switch {
		case c.err == "" && (err != nil || got != c.want):
			t.Errorf("pod %+v, %v; want %+v", got, err, c.want)
		case c.err != "" && (fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), c.err) || got != cluster.OwnPod{}):
			t.Errorf("pod %+v, %v; want a usage error with %q", got, err, c.err)
		}
	})
}
