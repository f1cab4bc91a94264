package cluster

import (
	"slices"
	"testing"
)

// Every setting that a token can't write is one that a create can't carry over.
func TestRootOnlyIsSorted(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(RootOnly) || !slices.IsSorted(Reassigns) {
		t.Error("the lists are compared by eye with Proxmox's source: keep them sorted")
	}
}
