package observe

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/internal/fault"
)

func TestNoAddress(t *testing.T) {
	t.Parallel()
	f := Found{Name: "wk1"}
	ReadMachine(t.Context(), Sources{}, nil, cluster.Wanted{Name: "wk1"}, &f)
	if len(f.Errs) != 1 || !strings.Contains(clustertest.Message(f.Errs[0]), "no address known") {
		t.Fatalf("%v", f.Errs)
	}
	if hints := strings.Join(fault.Hints(f.Errs[0]), "\n"); !strings.Contains(hints, "kubectl get node wk1") {
		t.Errorf("hints: %s", hints)
	}
}

// TestRunsFromISO: nothing else shows an interrupted installation.
func TestRunsFromISO(t *testing.T) {
	t.Parallel()
	m := clustertest.InSync()
	m.FromISO, m.BootEntry = true, ""
	for stage, want := range map[string]bool{"booting": true, "installing": true, "rebooting": true, "running": false} {
		if m.Stage = stage; m.IsBeingInstalled() != want {
			t.Errorf("stage %s: being installed is %t", stage, !want)
		}
	}
	reasons := cluster.DiffInstalled(clustertest.WantedBuild(), m.RunningSystem, "")
	if len(reasons) == 0 || reasons[0].Code != "boot-iso" || !rollable(reasons[0].Code) {
		t.Errorf("%+v", reasons)
	}
}
