package kube

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/foreign"
)

const (
	osdDomain  = "osd"
	hostDomain = "host" // the default (DefaultFailureDomain in Rook's pkg/apis/ceph.rook.io/v1/types.go)
	// cephCopies is Ceph's osd_pool_default_size.
	cephCopies = 3
)

// cephPool is a pool that an object of Rook describes.
type cephPool struct {
	namespace, name string
	spec            poolSpec
}

// poolSpec is the part of Rook's PoolSpec that says how data lies on OSDs (pkg/apis/ceph.rook.io/v1/types.go).
type poolSpec struct {
	Name       string `json:"name"`
	Domain     string `json:"failureDomain"`
	Class      string `json:"deviceClass"`
	Replicated struct {
		Size      int     `json:"size"`
		Ratio     float64 `json:"targetSizeRatio"`
		PerDomain int     `json:"replicasPerFailureDomain"`
		SubDomain string  `json:"subFailureDomain"`
		Hybrid    *struct {
			Primary   string `json:"primaryDeviceClass"`
			Secondary string `json:"secondaryDeviceClass"`
		} `json:"hybridStorage"`
	} `json:"replicated"`
	Coded struct {
		Data   int `json:"dataChunks"`
		Coding int `json:"codingChunks"`
	} `json:"erasureCoded"`
	Parameters map[string]string `json:"parameters"`
}

// cephStretch is that of a cluster over two sites, whose pools all have one CRUSH rule: two copies in each zone
// (createReplicatedPoolForApp in Rook's pkg/daemon/ceph/client/pool.go).
type cephStretch struct {
	SubDomain string `json:"subFailureDomain"`
}

// cephPoolOwner is each kind of Rook's objects that has pools, with all of their fields.
type cephPoolOwner struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		poolSpec                // of a CephBlockPool
		MetadataPool poolSpec   `json:"metadataPool"`
		DataPools    []poolSpec `json:"dataPools"` // of a CephFilesystem
		DataPool     poolSpec   `json:"dataPool"`  // of a CephObjectStore or a CephObjectZone
	} `json:"spec"`
}

// cephPools reads the pools of all of Rook's objects. Pools that nobody has described to Rook are not seen.
func (c *Client) cephPools(ctx context.Context) (pools []cephPool, err error) {
	served, err := c.resources(ctx, rookVersion)
	if err != nil {
		return nil, err
	}
	for _, kind := range []struct{ resource, kind string }{
		{"cephblockpools", "CephBlockPool"}, {"cephfilesystems", "CephFilesystem"}, {"cephobjectstores", "CephObjectStore"}, {"cephobjectzones", "CephObjectZone"},
	} {
		if !slices.ContainsFunc(served, func(r metav1.APIResource) bool { return r.Name == kind.resource }) {
			continue
		}
		owners, err := listCustom[cephPoolOwner](ctx, c, rookVersion.WithResource(kind.resource), "")
		if err != nil {
			return nil, err
		}
		for _, o := range owners {
			add := func(what string, spec poolSpec) {
				if spec.copies() > 0 {
					pools = append(pools, cephPool{o.Metadata.Namespace, foreign.Line(what + kind.kind + " " + o.Metadata.Name), spec})
				}
			}
			add("", o.Spec.poolSpec)
			add("metadataPool of ", o.Spec.MetadataPool)
			add("dataPool of ", o.Spec.DataPool)
			for i, spec := range o.Spec.DataPools {
				add(fmt.Sprintf("dataPools[%d] of ", i), spec)
			}
		}
	}
	return pools, nil
}

// copies is how many copies or chunks there are of an object; 0: the pool is not described.
func (p poolSpec) copies() int {
	switch {
	case p.Replicated.Size == 0 && p.Replicated.Ratio > 0:
		return cephCopies
	default:
		return p.Replicated.Size + p.Coded.Data + p.Coded.Coding
	}
}

// needs is the pool's min_size: as Rook is told to set it, else Ceph's default (prepare_pool_size in Ceph's
// src/mon/OSDMonitor.cc, get_osd_pool_default_min_size in src/common/config_proxy.h).
func (p poolSpec) needs() int {
	if set, err := strconv.Atoi(p.Parameters["min_size"]); err == nil && set > 0 {
		return set
	}
	if p.Coded.Data > 0 {
		return p.Coded.Data + max(0, min(1, p.Coded.Coding-1))
	}
	return p.copies() - p.copies()/2
}

// placement is how the pool's data may lie on nodes, by the CRUSH rules that Rook makes
// (pkg/daemon/ceph/client/crush_rule.go).
func (p cephPool) placement(d cephDaemons, stretch *cephStretch) replica.Placement {
	s := p.spec
	domain := cmp.Or(s.Domain, hostDomain)
	out := replica.Placement{Pool: p.name, Domain: foreign.Line(domain), Copies: s.copies(), Needs: s.needs(), On: map[string]int{}}
	for _, node := range d.nodes() {
		on := func(class string) spread { return d.spread(node, class) }
		n := 0
		switch r := s.Replicated; {
		case stretch != nil:
			n = min(2, on("").of(cmp.Or(stretch.SubDomain, hostDomain)))
		case r.Hybrid != nil:
			n = min(1, on(r.Hybrid.Primary).of(domain)) + on(r.Hybrid.Secondary).of(domain)
		case r.PerDomain > 1:
			n = on(s.Class).of(domain) * min(r.PerDomain, on(s.Class).of(cmp.Or(r.SubDomain, hostDomain)))
		default:
			n = on(s.Class).of(domain)
		}
		out.On[node] = min(n, s.copies())
	}
	return out
}

// spread are the OSDs of one device class on a node.
type spread []cephDaemon

func (d cephDaemons) spread(node, class string) (out spread) {
	for _, osd := range d.osds {
		if has := osd.labels["device-class"]; osd.node == node && (class == "" || has == "" || has == class) {
			out = append(out, osd)
		}
	}
	return out
}

// of counts the failure domains of a level that the OSDs are in. Rook labels an OSD with its place in CRUSH
// (getOSDTopologyLocationLabels in pkg/operator/ceph/cluster/osd/labels.go): a portable one on a claim is a host of its
// own. A level that recast does not know may be below a host.
func (s spread) of(domain string) int {
	label := "topology-location-" + domain
	places := map[string]bool{}
	for _, osd := range s {
		places[osd.labels[label]] = true
	}
	above := slices.Contains(crushLevels, domain)
	if _, labelled := places[""]; domain == osdDomain || !above && labelled {
		return len(s)
	}
	return len(places)
}

// crushLevels are those from a host on (CRUSHMapLevelsOrdered in Rook's pkg/operator/ceph/cluster/osd/topology/topology.go).
var crushLevels = []string{hostDomain, "chassis", "rack", "row", "pdu", "pod", "room", "datacenter", "zone", "region", "root"}
