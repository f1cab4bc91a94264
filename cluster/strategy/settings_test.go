package strategy

import (
	"slices"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest/vmsetting"
)

// The exchange itself sets two keys.
func TestEverySettingIsListed(t *testing.T) {
	t.Parallel()
	for _, key := range slices.Concat(cluster.RootOnly, carried, hidden, cluster.NeverCarried) {
		if _, listed := vmsetting.Every[key]; !listed && !slices.Contains([]string{"boot", "description", "digest", "onboot"}, key) {
			t.Errorf("%s has no sample", key)
		}
	}
	for _, list := range [][]string{cluster.RootOnly, carried, cluster.CarriedBuses, hidden} {
		if !slices.IsSorted(list) {
			t.Errorf("the lists are compared by eye with Proxmox's source: keep them sorted: %q", list)
		}
	}
}

// TestEverySettingIsJudged: a setting that a new VM can't have is an obstacle before anything is
// changed.
func TestEverySettingIsJudged(t *testing.T) {
	t.Parallel()
	for key, setting := range vmsetting.Every {
		w, f, o := staleNode()
		w.Strategy = cluster.Recreate
		if setting.Value != "" {
			f.VM.Config[key] = setting.Value
		}
		if refused := judge(w, f, o).Refused; (len(refused) > 0) != (setting.Fate == vmsetting.Never) {
			t.Errorf("%s=%s: refused %q, want it %s", key, setting.Value, refused, setting.Fate)
		}
	}
}
