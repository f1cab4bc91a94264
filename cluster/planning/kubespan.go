package planning

import (
	"fmt"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/strategy"
)

// PeerLasts is how long Talos' discovery lists a machine that was stopped (defaultDiscoveryTTL in
// internal/app/machined/pkg/controllers/cluster/discovery_service.go).
const PeerLasts = 30 * time.Minute

// OldPeer says why an outage may last longer if a node gets another system disk: its KubeSpan identity is on the
// old disk. Of two peers with the same address the one with the lower node ID keeps it, and IDs are random
// (internal/app/machined/pkg/controllers/kubespan/peer_spec.go).
var OldPeer = fmt.Sprintf("KubeSpan: until discovery forgets its old peer, up to %s after its stop, other nodes may send there what is for it (talos#4562)", PeerLasts)

// heedKubeSpan marks the nodes that become other peers of KubeSpan, and expects the longer outage.
func heedKubeSpan(p *Plan, o observe.Observation) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		leaves := strategy.DiskLeaves(n.Strategy, n.Wanted) || n.Strategy.From() == cluster.Nowhere && n.Rebuild != ""
		if n.Strategy.VM() == cluster.VMGone || !leaves && n.Previous == nil || !meshed(n.Found, o) {
			continue
		}
		if !leaves {
			n.FallbackKubeSpan = true
			continue
		}
		n.KubeSpan = true
		n.Notes = append(n.Notes, OldPeer)
		if n.OutageSeconds = max(n.OutageSeconds, int(PeerLasts.Seconds())); n.OutageFrom != "" {
			n.OutageFrom = "at most, because of KubeSpan"
		}
	}
}

// meshed says whether a node takes part in KubeSpan. A node that does not say counts as one if any other takes
// part.
func meshed(f observe.Found, o observe.Observation) bool {
	if on, known := kubeSpan(f); known {
		return on
	}
	return slices.ContainsFunc(o.Found, func(f observe.Found) bool {
		on, _ := kubeSpan(f)
		return on
	})
}

func kubeSpan(f observe.Found) (on, known bool) {
	if f.Machine == nil || len(f.Machine.Configs.Active) == 0 {
		return false, false
	}
	docs, err := config.Parse(f.Machine.Configs.Active)
	return docs.KubeSpan() && docs.DiscoveryService(), err == nil
}
