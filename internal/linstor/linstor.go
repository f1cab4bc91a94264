// Package linstor reads which volumes LINSTOR keeps on which nodes, and how their copies are, from the REST API
// of its controller. The few fields that are read are structs of our own: golinstor, the client of LINSTOR's
// authors, would add a second HTTP client with its own retries, credentials and log, and four modules, for six requests.
package linstor

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/wait"
)

// Name is that of the system.
const Name = "LINSTOR"

// Properties of controllers, nodes and resource definitions (linstor-common, properties.json; ReconnectorTask.java
// in linstor-server for the automatic eviction).
const (
	evictAllowed = "DrbdOptions/AutoEvictAllowEviction"
	evictAfter   = "DrbdOptions/AutoEvictAfterTime" // minutes
	quorum       = "DrbdOptions/Resource/quorum"
	// LINSTOR's CSI driver writes the claim (linstor-csi, pkg/driver/driver.go, CreateVolume).
	claimName      = "Aux/csi.storage.k8s.io/pvc/name"
	claimNamespace = "Aux/csi.storage.k8s.io/pvc/namespace"
)

// defaultEvictAfter is what LINSTOR waits if no property says otherwise (getFailedPeers in ReconnectorTask.java).
const defaultEvictAfter = "720"

// Get reads the answer to a path of the API, such as /v1/nodes, from JSON.
type Get func(ctx context.Context, path string, into any) error

// answers are those of one look.
type answers struct {
	nodes       []node
	resources   []resource
	definitions []definition
	groups      []group
	properties  map[string]string
}

// node is a Node (linstor-server, docs/rest_v1_openapi.yaml).
type node struct {
	Name   string            `json:"name"`
	Flags  []string          `json:"flags"`
	Props  map[string]string `json:"props"`
	Status string            `json:"connection_status"`
}

// definition is a ResourceDefinition.
type definition struct {
	Name  string            `json:"name"`
	Props map[string]string `json:"props"`
	Group string            `json:"resource_group_name"`
}

// group is a ResourceGroup.
type group struct {
	Name   string            `json:"name"`
	Props  map[string]string `json:"props"`
	Select struct {
		Copies int `json:"place_count"`
	} `json:"select_filter"`
}

// System looks at the volumes once. The error is that of Get, or of a hold that can't be understood.
func (c Controller) System(ctx context.Context) (replica.System, error) {
	get, a := c.Get, answers{}
	read := func(path string, into any) func() error {
		return func() error { return get(ctx, path, into) }
	}
	// The first answer says whether there are others.
	if err := get(ctx, "/v1/nodes", &a.nodes); err != nil {
		return replica.System{Name: Name}, err
	}
	err := wait.All(
		read("/v1/view/resources", &a.resources), read("/v1/resource-definitions", &a.definitions),
		read("/v1/resource-groups", &a.groups), read("/v1/controller/properties", &a.properties),
	)
	if err != nil {
		return replica.System{Name: Name}, err
	}
	return a.system(c)
}

func (a answers) system(c Controller) (s replica.System, err error) {
	s = replica.System{Name: Name, Waits: evictAfter, Holds: true, Evicts: true, Remedy: "Piraeus sets that of this node, so raise it in the LinstorSatelliteConfiguration"}
	if s.Held, err = replica.Held(a.settings(c)); err != nil {
		return s, err
	}
	for _, n := range a.nodes {
		waits, err := a.evicts(n)
		if err != nil {
			return s, err
		}
		s.Nodes = append(s.Nodes, replica.Node{Name: n.Name, Down: n.down(), Patience: waits, Fixed: n.fixed()})
		if waits < replica.Forever && (s.Patience == 0 || waits < s.Patience) {
			s.Patience = waits
		}
	}
	for _, name := range a.names() {
		s.Volumes = append(s.Volumes, a.volumes(name)...)
	}
	return s, nil
}

// down says why the copies on a node can't be used; "" if they can.
func (n node) down() string {
	switch {
	case slices.Contains(n.Flags, "EVICTED"):
		return "was evicted by LINSTOR"
	case n.Status != "ONLINE":
		return foreign.Line("is " + n.Status + " for LINSTOR")
	}
	return ""
}

// online says whether the states of resources on the node are known.
func (a answers) online(name string) bool {
	return slices.ContainsFunc(a.nodes, func(n node) bool { return n.Name == name && n.Status == "ONLINE" })
}

// evicts is how long LINSTOR waits for a node by itself before it evicts it: its copies are made on other nodes, and it is
// not connected again until a person restores it. A node's property has precedence over the controller's.
func (a answers) evicts(n node) (time.Duration, error) {
	allowed, set := n.Props[evictAllowed]
	if !set {
		allowed = a.properties[evictAllowed]
	}
	if !strings.EqualFold(allowed, "true") || slices.Contains(n.Flags, "EVICTED") {
		return replica.Forever, nil
	}
	held, err := a.memo(n)
	if err != nil {
		return 0, err
	}
	value := n.Props[evictAfter]
	if len(held.Nodes) > 0 && value == held.Set {
		value = held.Was
	}
	minutes, err := a.minutes(value)
	if err != nil {
		return 0, fault.Refusedf("%s of %s in LINSTOR is no number: %s", evictAfter, foreign.Line(n.Name), foreign.Line(value))
	}
	return max(time.Minute, time.Duration(minutes)*time.Minute), nil
}

// names lists the resource definitions that have resources, in order.
func (a answers) names() []string {
	var names []string
	for _, r := range a.resources {
		names = append(names, r.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// volumes are those of a resource definition: one, whose copies DRBD keeps the same, or where DRBD is not in
// use, one for each resource.
func (a answers) volumes(name string) []replica.Volume {
	var all []resource
	for _, r := range a.resources {
		if r.Name == name {
			all = append(all, r)
		}
	}
	v := replica.Volume{Name: foreign.Line(name), Claim: a.claim(name)}
	if !slices.ContainsFunc(all, func(r resource) bool { return r.Layer.drbd() != nil }) {
		var alone []replica.Volume
		for _, r := range all {
			if !r.diskless() {
				v := v
				v.Wanted, v.Alone, v.Robust = 1, true, a.online(r.Node)
				v.Replicas = []replica.Replica{{Node: r.Node, Healthy: v.Robust}}
				alone = append(alone, v)
			}
		}
		return alone
	}
	healthy := 0
	for _, r := range all {
		if r.diskless() {
			if !r.leaves() {
				v.Witnesses = append(v.Witnesses, r.Node)
			}
			continue
		}
		state := r.replica(all, a.online)
		if v.Replicas = append(v.Replicas, state); state.Healthy {
			healthy++
		}
	}
	v.Wanted = cmp.Or(a.group(name).Select.Copies, len(v.Replicas))
	v.Alone = v.Wanted == 1
	v.Robust = healthy == len(v.Replicas) && healthy >= v.Wanted
	v.Majority = a.majority(name)
	return []replica.Volume{v}
}

func (a answers) definition(name string) definition {
	for _, d := range a.definitions {
		if d.Name == name {
			return d
		}
	}
	return definition{}
}

// claim is the claim that a volume was made for; "" if that is unknown.
func (a answers) claim(name string) string {
	props := a.definition(name).Props
	if props[claimName] == "" {
		return ""
	}
	return foreign.Line(props[claimNamespace] + "/" + props[claimName])
}

// group is the resource group of a resource definition.
func (a answers) group(name string) group {
	in := a.definition(name).Group
	for _, g := range a.groups {
		if g.Name == in {
			return g
		}
	}
	return group{}
}

// majority says whether DRBD stops the volume without a quorum (CtrlRscAutoQuorumHelper.java): a property of the
// definition has precedence over its group's and the controller's.
func (a answers) majority(name string) bool {
	for _, props := range []map[string]string{a.definition(name).Props, a.group(name).Props, a.properties} {
		if value, set := props[quorum]; set {
			return value == "majority"
		}
	}
	return false
}
