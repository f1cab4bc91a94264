package planning

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/strategy"
)

// TestAFileOfTypeInit: no machine with an empty etcd directory, or one that may be, gets such a file.
func TestAFileOfTypeInit(t *testing.T) {
	t.Parallel()
	runs := &cluster.Machine{ControlPlane: true, TypeInit: true}
	for name, tc := range map[string]struct {
		plan    NodePlan
		machine *cluster.Machine
		refused bool
	}{
		"a new node":               {NodePlan{Strategy: cluster.Create, EtcdKept: true}, nil, true},
		"the first of a cluster":   {NodePlan{Strategy: cluster.Create, EtcdKept: true, Bootstraps: true}, nil, true},
		"a machine that was reset": {NodePlan{Strategy: cluster.InstallReset, EtcdKept: true, Resume: true}, nil, true},
		"a rebuild":                {NodePlan{Strategy: cluster.Remove, Rebuild: "sum", EtcdKept: true}, nil, true},
		"an unfinished recreate":   {NodePlan{Strategy: cluster.Recreate, Resume: true}, nil, true},
		"the same, its data kept":  {NodePlan{Strategy: cluster.Recreate, Resume: true, EtcdKept: true}, nil, false},
		"a recreate, data kept":    {NodePlan{Strategy: cluster.Recreate, EtcdKept: true}, runs, false},
		"an upgrade in place":      {NodePlan{Strategy: cluster.InPlace, EtcdKept: true}, runs, false},
		"nothing":                  {NodePlan{}, runs, false},
	} {
		for _, typeInit := range []bool{true, false} {
			n := tc.plan
			n.Found = observe.Found{Machine: tc.machine, File: &cluster.FoundFile{Role: cluster.ControlPlane, TypeInit: typeInit}}
			n.refuseInit()
			if got := strings.Contains(strings.Join(n.Refused, ""), strategy.BeginsAlone); got != (tc.refused && typeInit) {
				t.Errorf("%s, %v: refused %q", name, typeInit, n.Refused)
			}
		}
	}
}
