package exchange

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/internal/fault"
)

// TestReplaceWithoutItsPreparedDisk: the node is down, so the error says how its old system disk comes back.
func TestReplaceWithoutItsPreparedDisk(t *testing.T) {
	t.Parallel()
	_, err := calls["give"].run(t, on(9900, kv{"scsi29": ""}), clustertest.Which{})
	if hints := strings.Join(fault.Hints(err), "; "); !strings.Contains(hints, "recast undo wk1 gives the VM its old system disk back") {
		t.Errorf("%v, hints %q", err, hints)
	}
}
