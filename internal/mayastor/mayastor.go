// Package mayastor reads which volumes OpenEBS Mayastor keeps on which nodes, and how their replicas are, from its
// REST API.
package mayastor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/wait"
)

const Name = "Mayastor"

// pageSize is the number of volumes per request.
const pageSize = 200

// online is a state of nodes, pools, replicas, children and volumes.
const online = "Online"

// Get reads the answer to a path of the API, such as /v0/nodes, from JSON.
type Get func(ctx context.Context, path string, into any) error

// The fields that are read (mayastor-control-plane, control-plane/rest/openapi-specs/v0_api_spec.yaml).
type (
	// node has the name of its Kubernetes node (io-engine's -N in mayastor-extensions,
	// chart/templates/mayastor/io/io-engine-daemonset.yaml).
	node struct {
		ID    string `json:"id"`
		State struct {
			Status string `json:"status"`
		} `json:"state"`
	}
	pool struct {
		ID   string `json:"id"`
		Spec struct {
			Node string `json:"node"`
		} `json:"spec"`
		State struct {
			Status string `json:"status"`
		} `json:"state"`
	}
	volumes struct {
		Entries []volume `json:"entries"`
		Next    int      `json:"next_token"`
	}
	volume struct {
		Spec struct {
			UUID     string  `json:"uuid"`
			Replicas int     `json:"num_replicas"`
			Target   *target `json:"target"` // nil: not published, so no replica is written to
		} `json:"spec"`
		State struct {
			Status   string              `json:"status"`
			Replicas map[string]topology `json:"replica_topology"`
		} `json:"state"`
	}
	// target is the nexus of a volume. The nodes of the pods that use the volume, its frontends, connect to the
	// nexus; older versions are not told which (csi-driver's controller asks for the pod's node, and gets another
	// node if that one has no io-engine or is cordoned).
	target struct {
		Node      string `json:"node"`
		Frontends []struct {
			Name string `json:"name"`
		} `json:"frontend_nodes"`
	}
	topology struct {
		Node  string `json:"node"`
		State string `json:"state"`
		// Child is the state of the replica in the volume's nexus; "": the volume has no nexus, or the replica is not in it.
		Child   string `json:"child-status"`
		Rebuilt *int   `json:"rebuild-progress"` // percent; nil: no rebuild runs
	}
)

func Read(ctx context.Context, get Get) (replica.System, error) {
	s := replica.System{Name: Name}
	var nodes []node
	var pools []pool
	var all []volume
	// The first answer says whether the API answers the other requests.
	if err := get(ctx, "/v0/nodes", &nodes); err != nil {
		return s, err
	}
	err := wait.All(
		func() error { return get(ctx, "/v0/pools", &pools) },
		func() (err error) {
			all, err = list(ctx, get)
			return err
		},
	)
	if err != nil {
		return s, err
	}
	for _, n := range nodes {
		s.Nodes = append(s.Nodes, n.standing(pools))
	}
	for _, v := range all {
		s.Volumes = append(s.Volumes, v.volume())
	}
	return s, nil
}

func list(ctx context.Context, get Get) (all []volume, err error) {
	for token := 0; ; {
		var page volumes
		if err := get(ctx, fmt.Sprintf("/v0/volumes?max_entries=%d&starting_token=%d", pageSize, token), &page); err != nil {
			return nil, err
		}
		all = append(all, page.Entries...)
		if page.Next <= token {
			return all, nil
		}
		token = page.Next
	}
}

// standing says whether the node's replicas can be used.
func (n node) standing(pools []pool) replica.Node {
	out := replica.Node{Name: n.ID}
	if n.State.Status != online {
		out.Down = foreign.Line("is " + cmp.Or(n.State.Status, "unknown") + " for Mayastor")
	}
	var bad []string
	for _, p := range pools {
		if p.Spec.Node == n.ID && p.State.Status != online {
			bad = append(bad, foreign.Line(p.ID+" is "+cmp.Or(p.State.Status, "unknown")))
		}
	}
	if slices.Sort(bad); len(bad) > 0 {
		out.Lacks = "its pool " + strings.Join(bad, ", ") + " for Mayastor"
	}
	return out
}

func (v volume) volume() replica.Volume {
	published := v.Spec.Target != nil
	out := replica.Volume{Name: foreign.Line(v.Spec.UUID), Wanted: v.Spec.Replicas, Alone: v.Spec.Replicas == 1, Idle: !published && v.State.Status != "Faulted"}
	if published {
		out.Through = foreign.Line(v.Spec.Target.Node)
		for _, user := range v.Spec.Target.Frontends {
			out.Users = append(out.Users, foreign.Line(user.Name))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(v.State.Replicas)) {
		out.Replicas = append(out.Replicas, v.State.Replicas[id].replica(published))
	}
	out.Robust = v.State.Status == online && out.Whole()
	return out
}

// replica returns the state of a replica. While a volume is published, its nexus knows which replicas are current.
// Otherwise nothing shows that, and a replica that can be opened counts as current.
func (t topology) replica(published bool) replica.Replica {
	filled := t.Rebuilt != nil || t.Child == "Degraded"
	return replica.Replica{
		Node: t.Node, Healthy: t.State == online && !filled && (t.Child == online || !published && t.Child == ""),
		Rebuilt: filled && t.State == online,
	}
}
