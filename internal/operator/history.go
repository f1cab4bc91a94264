package operator

import (
	"cmp"
	"context"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// History is the ImageRolls of a cluster, the oldest first.
type History []v1alpha1.ImageRoll

// RollsOf reads the ImageRolls of a cluster from the cache.
func RollsOf(ctx context.Context, c client.Reader, namespace, cluster string) (History, error) {
	var list v1alpha1.ImageRollList
	if err := c.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{indexCluster: cluster}); err != nil {
		return nil, err
	}
	h := History(list.Items)
	h.Sort()
	return h, nil
}

// Sort puts them in order.
func (h History) Sort() {
	slices.SortFunc(h, func(a, b v1alpha1.ImageRoll) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})
}

// active is the oldest one that is not finished, nil if all are.
func (h History) active() *v1alpha1.ImageRoll {
	for i := range h {
		if !h[i].Status.Phase.Finished() {
			return &h[i]
		}
	}
	return nil
}

// rolling says whether one has begun that is not finished.
func (h History) rolling() bool {
	return slices.ContainsFunc(h, func(r v1alpha1.ImageRoll) bool { return !r.Status.Phase.Finished() && r.Status.Started != nil })
}

// Newest is the active one, else the last one; nil if there is none.
func (h History) Newest() *v1alpha1.ImageRoll {
	if active := h.active(); active != nil || len(h) == 0 {
		return active
	}
	return &h[len(h)-1]
}

// named returns the one of that name, nil if there is none.
func (h History) named(name string) *v1alpha1.ImageRoll {
	if i := slices.IndexFunc(h, func(r v1alpha1.ImageRoll) bool { return r.Name == name }); i >= 0 {
		return &h[i]
	}
	return nil
}

// finished is the name of the last one that is finished, "" if none is.
func (h History) finished() string {
	for _, r := range slices.Backward(h) {
		if r.Status.Phase.Finished() {
			return r.Name
		}
	}
	return ""
}
