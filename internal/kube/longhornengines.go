package kube

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/fault"
)

// longhornEngine is what an Engine of Longhorn says about replicas that it fills
// (k8s/pkg/apis/longhorn/v1beta2/engine.go, EngineStatus).
type longhornEngine struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Status   struct {
		Addresses map[string]string `json:"currentReplicaAddressMap"` // by replica
		Rebuilds  map[string]*struct {
			Rebuilding bool `json:"isRebuilding"`
			Percent    int  `json:"progress"`
		} `json:"rebuildStatus"` // by URL
	} `json:"status"`
}

// longhornRebuilds returns how much of each replica that is being filled is there, in percent, by namespace and
// name. It is only shown: without the right to list engines nothing is known (syncReplicas in
// controller/engine_controller.go looks it up likewise; GetBackendReplicaURL in engineapi).
func (c *Client) longhornRebuilds(ctx context.Context, copies []longhornReplica) (map[string]int, error) {
	filled := false
	for _, r := range copies {
		filled = filled || r.replica().Rebuilt
	}
	if !filled {
		return nil, nil
	}
	engines, err := listCustom[longhornEngine](ctx, c, longhornVersion.WithResource("engines"), "")
	if fault.KindOf(err) == fault.Refused {
		return nil, nil
	}
	percent := map[string]int{}
	for _, e := range engines {
		for name, address := range e.Status.Addresses {
			if status := e.Status.Rebuilds["tcp://"+address]; status != nil && status.Rebuilding {
				percent[e.Metadata.Namespace+"/"+name] = min(max(status.Percent, 0), 100)
			}
		}
	}
	return percent, err
}
