package cluster_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestStrategies says of each question which strategies answer yes.
func TestStrategies(t *testing.T) {
	t.Parallel()
	all := []cluster.Strategy{
		"", cluster.Auto, cluster.Create, cluster.Recreate, cluster.Reimage, cluster.InPlace, cluster.ApplyConfig, cluster.InstallReset, cluster.Reshape,
		cluster.Rollback, cluster.PutBack, cluster.Remove,
	}
	type strategies []cluster.Strategy
	questions := map[string]struct {
		asks func(cluster.Strategy) bool
		yes  strategies
	}{
		"KeepsVM":      {cluster.Strategy.KeepsVM, strategies{cluster.InPlace, cluster.ApplyConfig}},
		"DeletesVM":    {cluster.Strategy.DeletesVM, strategies{cluster.Recreate, cluster.Remove}},
		"MakesVM":      {cluster.Strategy.MakesVM, strategies{cluster.Create, cluster.Recreate}},
		"Upgrades":     {cluster.Strategy.Upgrades, strategies{cluster.InPlace}},
		"Replaces":     {cluster.Strategy.Replaces, strategies{cluster.Recreate, cluster.Reimage}},
		"Reshapes":     {cluster.Strategy.Reshapes, strategies{cluster.Reshape}},
		"ParksNothing": {cluster.Strategy.ParksNothing, strategies{cluster.Create, cluster.Reshape}},
		"SwapsSystem":  {cluster.Strategy.SwapsSystem, strategies{cluster.Recreate, cluster.Reimage, cluster.Rollback, cluster.PutBack}},
		"SwapsInVM":    {cluster.Strategy.SwapsInVM, strategies{cluster.Reimage, cluster.Rollback}},
		"KeepsImage":   {cluster.Strategy.KeepsImage, strategies{cluster.ApplyConfig, cluster.Reshape}},
		"BringsImage":  {cluster.Strategy.BringsImage, strategies{cluster.Create, cluster.Recreate, cluster.Reimage, cluster.InPlace}},
		"BringsConfig": {cluster.Strategy.BringsConfig, strategies{cluster.Create, cluster.Recreate, cluster.Reimage, cluster.ApplyConfig, cluster.InstallReset}},
		"BringsShape":  {cluster.Strategy.BringsShape, strategies{cluster.Create, cluster.Recreate, cluster.Reimage, cluster.InPlace, cluster.ApplyConfig, cluster.Reshape}},
		"from nowhere": {func(s cluster.Strategy) bool { return s.From() == cluster.Nowhere }, strategies{cluster.Create}},
		"from blank":   {func(s cluster.Strategy) bool { return s.From() == cluster.Blank }, strategies{cluster.InstallReset}},
		"from halfway": {func(s cluster.Strategy) bool { return s.From() == cluster.Halfway }, strategies{cluster.PutBack}},
		"VM untouched": {func(s cluster.Strategy) bool { return s.VM() == cluster.VMUntouched }, strategies{cluster.InPlace, cluster.ApplyConfig, cluster.InstallReset}},
		"new system":   {func(s cluster.Strategy) bool { return s.System() == cluster.SystemNew }, strategies{cluster.Create, cluster.Recreate, cluster.Reimage}},
		"parked":       {func(s cluster.Strategy) bool { return s.System() == cluster.SystemParked }, strategies{cluster.Remove}},
		"kept system":  {func(s cluster.Strategy) bool { return s.System() == cluster.SystemKept }, strategies{cluster.Rollback}},
	}
	for _, name := range slices.Sorted(maps.Keys(questions)) {
		q := questions[name]
		var yes strategies
		for _, s := range all {
			if q.asks(s) {
				yes = append(yes, s)
			}
		}
		must.Equal(t, name, q.yes, yes)
	}
	for _, s := range all[2:] {
		must.Hold(t, s.Outage() != 0 && s.Words().OnIt != "" && s.Words().Done != string(s), "%s has no outage or words", s)
	}
}

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
