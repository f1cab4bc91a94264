package observe

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
)

// TestGoneForGood: a Node that is Ready has a machine, and is not to be deleted.
func TestGoneForGood(t *testing.T) {
	t.Parallel()
	ready, not := goneForGood(&cluster.KubeNode{Name: "wk1", Ready: true}), goneForGood(&cluster.KubeNode{Name: "wk1"})
	if ready != "" || goneForGood(nil) != "" || !strings.Contains(not, "if its VM is gone for good: kubectl delete node wk1,") {
		t.Errorf("ready: %s\nnot: %s", ready, not)
	}
}
