// Package linstor reads which volumes LINSTOR keeps on which nodes, and how their copies are, from the REST API
// of its controller. The few fields that are read are structs of our own: golinstor, the client of LINSTOR's
// authors, would add a second HTTP client with its own retries, credentials and log, and four modules, for six requests.
package linstor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/wait"
)

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

// defaultEvictAfter is how many minutes LINSTOR waits if no property says otherwise (getFailedPeers in
// ReconnectorTask.java).
const defaultEvictAfter = "720"

// Get reads the answer to a path of the API, such as /v1/nodes, from JSON.
type Get func(ctx context.Context, path string, into any) error

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

// System reads the volumes once. The error is that of Get, or of a hold that can't be parsed.
func (c Controller) System(ctx context.Context) (replica.System, error) {
	get, a := c.Get, answers{}
	read := func(path string, into any) func() error {
		return func() error { return get(ctx, path, into) }
	}
	// The first answer says whether the controller answers the other requests.
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
	settings := a.settings(c)
	if s.Held, err = replica.Held(settings); err != nil {
		return s, err
	}
	for i, n := range a.nodes {
		waits, err := a.evicts(n, settings[i].Own)
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

// evicts returns how long LINSTOR waits for a node by itself before it evicts the node; replica.Forever: it does not
// evict. LINSTOR makes the copies of an evicted node on other nodes, and does not connect to the node again until a
// person restores it. A node's property has precedence over the controller's. own returns the node's evictAfter.
func (a answers) evicts(n node, own func() (string, error)) (time.Duration, error) {
	allowed, set := n.Props[evictAllowed]
	if !set {
		allowed = a.properties[evictAllowed]
	}
	if !strings.EqualFold(allowed, "true") || slices.Contains(n.Flags, "EVICTED") {
		return replica.Forever, nil
	}
	value, err := own()
	if err != nil {
		return 0, err
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

// volumes returns the volumes of a resource definition: one, whose copies DRBD keeps the same or, without DRBD, one
// for each resource.
func (a answers) volumes(name string) []replica.Volume {
	all := slices.DeleteFunc(slices.Clone(a.resources), func(r resource) bool { return r.Name != name })
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
	for _, r := range all {
		switch {
		case !r.diskless():
			v.Replicas = append(v.Replicas, r.replica(all, a.online))
		case !r.leaves():
			v.Witnesses = append(v.Witnesses, r.Node)
		}
	}
	v.Wanted = cmp.Or(a.group(name).Select.Copies, len(v.Replicas))
	v.Alone = v.Wanted == 1
	v.Robust = v.Whole()
	v.Majority = a.majority(name)
	return []replica.Volume{v}
}

func (a answers) definition(name string) definition {
	return find(a.definitions, func(d definition) bool { return d.Name == name })
}

// find returns the first that is, else the zero value.
func find[T any](all []T, is func(T) bool) (found T) {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i]
	}
	return found
}

// claim returns the claim that a volume was made for; "" if that is unknown.
func (a answers) claim(name string) string {
	props := a.definition(name).Props
	if props[claimName] == "" {
		return ""
	}
	return foreign.Line(props[claimNamespace] + "/" + props[claimName])
}

// group returns the resource group of a resource definition.
func (a answers) group(name string) group {
	in := a.definition(name).Group
	return find(a.groups, func(g group) bool { return g.Name == in })
}

// majority says whether DRBD stops the volume if it loses its quorum (CtrlRscAutoQuorumHelper.java): a property of
// the definition has precedence over its group's and the controller's.
func (a answers) majority(name string) bool {
	for _, props := range []map[string]string{a.definition(name).Props, a.group(name).Props, a.properties} {
		if value, set := props[quorum]; set {
			return value == "majority"
		}
	}
	return false
}

// resource is a ResourceWithVolumes: the copy of a volume on a node, or the node's access to copies elsewhere.
type resource struct {
	Name  string   `json:"name"`
	Node  string   `json:"node_name"`
	Flags []string `json:"flags"`
	Layer layer    `json:"layer_object"`
	State struct {
		InUse bool `json:"in_use"` // the copy is DRBD's primary, so it is written to
	} `json:"state"`
	Volumes []struct {
		State struct {
			Disk string `json:"disk_state"`
			// Replication is by peer. Versions that don't have it write "SyncTarget(12.50%)" as the state of the
			// disk (diskStateInfo in DrbdVolume.java).
			Replication map[string]struct {
				State string `json:"replication_state"`
			} `json:"replication_states"`
		} `json:"state"`
	} `json:"volumes"`
}

type layer struct {
	Type string `json:"type"`
	DRBD *struct {
		// Connections is by peer, and missing while the node is not connected to the controller
		// (apiToResourceWithVolumes in Json.java).
		Connections map[string]struct {
			Connected bool `json:"connected"`
		} `json:"connections"`
	} `json:"drbd"`
	Children []layer `json:"children"`
}

// drbd returns the layer of DRBD; nil if there is none.
func (l layer) drbd() *layer {
	if l.Type == "DRBD" {
		return &l
	}
	for _, child := range l.Children {
		if found := child.drbd(); found != nil {
			return found
		}
	}
	return nil
}

// diskless says whether the resource has no data of its own: a client of copies elsewhere, or a tiebreaker (Resource.Flags).
func (r resource) diskless() bool {
	return slices.ContainsFunc(r.Flags, func(flag string) bool {
		return slices.Contains([]string{"DISKLESS", "DRBD_DISKLESS", "TIE_BREAKER", "NVME_INITIATOR"}, flag)
	})
}

// leaves says whether the resource is being removed, or is not connected on purpose.
func (r resource) leaves() bool {
	return slices.ContainsFunc(r.Flags, func(flag string) bool {
		return slices.Contains([]string{"DELETE", "DRBD_DELETE", "INACTIVE", "INACTIVATING", "EVICTED"}, flag)
	})
}

// replica returns the state of the copy. DRBD calls a disk UpToDate by what the disk's node knows: a copy that lost
// its connection can be behind another one that is written to. So an UpToDate copy is current only if it is itself
// the one that is written to, or is connected to all others that run.
func (r resource) replica(all []resource, online func(node string) bool) replica.Replica {
	out := replica.Replica{Node: r.Node, Rebuilt: r.syncs() && online(r.Node)}
	current := len(r.Volumes) > 0 && !r.leaves() && online(r.Node)
	for _, v := range r.Volumes {
		current = current && v.State.Disk == "UpToDate"
	}
	out.Healthy = current && (r.State.InUse || r.connected(all, online))
	return out
}

// syncs says whether the copy is being filled (ReplState.java).
func (r resource) syncs() bool {
	for _, v := range r.Volumes {
		if strings.HasPrefix(v.State.Disk, "SyncTarget") {
			return true
		}
		for _, with := range v.State.Replication {
			if slices.Contains([]string{"SyncTarget", "PausedSyncT", "WFBitMapT", "StartingSyncT"}, with.State) {
				return true
			}
		}
	}
	return false
}

func (r resource) connected(all []resource, online func(node string) bool) bool {
	drbd := r.Layer.drbd()
	if drbd == nil || drbd.DRBD == nil {
		return false
	}
	return !slices.ContainsFunc(all, func(peer resource) bool {
		return peer.Node != r.Node && !peer.leaves() && online(peer.Node) && !drbd.DRBD.Connections[peer.Node].Connected
	})
}

const (
	// holdMemo is the property of a node with a replica.Memo, as JSON, about the node's evictAfter. Whoever may
	// change a node may set any property below Aux (fillProperties in CtrlPropsHelper.java).
	holdMemo = "Aux/recast.dev/hold"
	// applied is the property with a list, as JSON, of the node's properties that Piraeus sets back each minute;
	// Piraeus leaves others alone (piraeus-operator, pkg/linstorhelper/properties.go and
	// internal/controller/linstorsatellite_controller.go).
	applied = "Aux/piraeus.io/last-applied"
)

type Controller struct {
	Get   Get
	Put   func(ctx context.Context, path string, body any) error
	Place string // what comes before a path of the API in "kubectl replace --raw"
}

// change is a NodeModify, which is one transaction (modifyInTransaction in CtrlNodeApiCallHandler.java).
type change struct {
	Set    map[string]string `json:"override_props"`
	Delete []string          `json:"delete_props"`
}

// turn returns the change after which the node has that value of evictAfter and that memo, "" for none.
func (n node) turn(value, memo string) change {
	c := change{Set: map[string]string{}, Delete: []string{}}
	put := func(key, value string) {
		if value == "" {
			c.Delete = append(c.Delete, key)
		} else {
			c.Set[key] = value
		}
	}
	if value != n.Props[evictAfter] {
		put(evictAfter, value)
	}
	put(holdMemo, memo)
	return c
}

// minutes parses a node's evictAfter; "" stands for the controller's value or LINSTOR's default.
func (a answers) minutes(value string) (int, error) {
	return strconv.Atoi(cmp.Or(value, a.properties[evictAfter], defaultEvictAfter))
}

// fixed says whether Piraeus would set the node's evictAfter back.
func (n node) fixed() bool {
	var keys []string
	_ = json.Unmarshal([]byte(n.Props[applied]), &keys) // another text is not Piraeus'
	return slices.Contains(keys, evictAfter)
}

// Settings returns the settings that say how long LINSTOR waits before it evicts each node.
func (c Controller) Settings(ctx context.Context) ([]replica.Setting, error) {
	var a answers
	if err := c.Get(ctx, "/v1/nodes", &a.nodes); err != nil {
		return nil, err
	}
	if err := c.Get(ctx, "/v1/controller/properties", &a.properties); err != nil {
		return nil, err
	}
	return a.settings(c), nil
}

func (a answers) settings(c Controller) (all []replica.Setting) {
	for _, n := range a.nodes {
		what := evictAfter + " of " + foreign.Line(n.Name)
		all = append(all, replica.Setting{
			System: Name, Name: what, Node: n.Name, Called: what + " in LINSTOR", Said: what + " in LINSTOR",
			Value: n.Props[evictAfter], Unset: "the controller's", Unit: time.Minute, Number: a.minutes,
			Beside: n.Props, Key: holdMemo, At: fmt.Sprintf("property %s of LINSTOR's node %s", holdMemo, foreign.Line(n.Name)),
			Forget: fmt.Sprintf("see that %s of the node has the value that you want, then remove the other: linstor node set-property --aux %s recast.dev/hold", evictAfter, foreign.Line(n.Name)),
			Undo:   func(m replica.Memo) (string, error) { return c.undo(n, m) },
			// LINSTOR can't refuse a write because someone else wrote since our read. So only changed properties are
			// written, and runs of recast hold a claim.
			Write: func(ctx context.Context, value string, m replica.Memo) error {
				memo, err := m.Text()
				if err != nil {
					return err
				}
				return c.Put(ctx, "/v1/nodes/"+n.Name, n.turn(value, memo))
			},
		})
	}
	return all
}

// undo returns the command that gives back the value in the memo.
func (c Controller) undo(n node, m replica.Memo) (string, error) {
	value, _ := m.Without(n.Props[evictAfter], m.For()...)
	body, err := json.Marshal(n.turn(value, ""))
	if err != nil {
		return "", fmt.Errorf("encode a change of LINSTOR's node: %w", err)
	}
	return fmt.Sprintf("echo '%s' | kubectl replace --raw %s/v1/nodes/%s -f -", body, c.Place, url.PathEscape(n.Name)), nil
}
