package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/wait"
)

const linstorName = "LINSTOR"

var piraeusVersion = schema.GroupVersion{Group: "piraeus.io", Version: "v1"}

// linstorSatellite is the part that we read of the Piraeus operator's LinstorSatellite. It has the name of its node
// and the merged LinstorSatelliteConfigurations (piraeus-operator, api/v1/linstorsatellite_types.go, storagepool.go).
type linstorSatellite struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		StoragePools []linstorPool `json:"storagePools"`
	} `json:"spec"`
}

type linstorPool struct {
	Name     string       `json:"name"`
	LVM      *linstorKind `json:"lvmPool"`
	LVMThin  *linstorKind `json:"lvmThinPool"`
	File     *linstorKind `json:"filePool"`
	FileThin *linstorKind `json:"fileThinPool"`
	ZFS      *linstorKind `json:"zfsPool"`
	ZFSThin  *linstorKind `json:"zfsThinPool"`
}

type linstorKind struct {
	VolumeGroup string `json:"volumeGroup"`
	ThinPool    string `json:"thinPool"`
	ZPool       string `json:"zPool"`
	Directory   string `json:"directory"`
}

// linstorPools finds LINSTOR's storage pools on each node. Kubernetes does not record which volumes are in which pool.
func (l *localScan) linstorPools(ctx context.Context, groups []metav1.APIGroup) error {
	if installed, err := supports(groups, piraeusVersion); !installed {
		return err
	}
	satellites, err := listCustom[linstorSatellite](ctx, l.Client, piraeusVersion.WithResource("linstorsatellites"), l.singleNode())
	if err != nil {
		return err
	}
	for _, s := range satellites {
		if n := l.byName(s.Metadata.Name); n != nil {
			n.pools = append(n.pools, cluster.Each(s.Spec.StoragePools, linstorPool.local)...)
		}
	}
	return nil
}

// local says where a pool is. Missing fields have the defaults of PoolName and DirectoryOrDefault in storagepool.go.
func (p linstorPool) local() cluster.LocalData {
	data := cluster.LocalData{Name: "linstor/" + p.Name}
	switch {
	case p.LVM != nil:
		data.Format, data.Group = cluster.FormatLVM, cmp.Or(p.LVM.VolumeGroup, p.Name)
	case p.LVMThin != nil:
		data.Format, data.Group = cluster.FormatLVM, cmp.Or(p.LVMThin.VolumeGroup, "linstor_"+cmp.Or(p.LVMThin.ThinPool, p.Name))
	case p.ZFS != nil:
		data.Format, data.Group = cluster.FormatZFS, cmp.Or(p.ZFS.ZPool, p.Name)
	case p.ZFSThin != nil:
		data.Format, data.Group = cluster.FormatZFS, cmp.Or(p.ZFSThin.ZPool, p.Name)
	case p.File != nil || p.FileThin != nil:
		dir := path.Clean("/" + cmp.Or(cmp.Or(p.File, p.FileThin).Directory, "/var/lib/linstor-pools/"+p.Name))
		data.Name, data.Path = "linstor"+dir, dir
	}
	data.What = fmt.Sprintf("LINSTOR storage pool %s (%s)", p.Name, cmp.Or(data.Path, data.Group, "of a kind that recast does not know"))
	return data
}

// The Service of LINSTOR's controller (piraeus-operator, pkg/resources/cluster/controller/controller-service.yaml).
const (
	linstorLabel = "app.kubernetes.io/component=linstor-controller"
	linstorPort  = "3370"
)

var linstorElse = replica.Off(linstorName) + " with a gate that asks linstor, see examples/gates/piraeus.yaml"

// linstorCluster is the part that we read of the Piraeus operator's LinstorCluster (api/v1/linstorcluster_types.go).
type linstorCluster struct {
	Spec struct {
		External *struct {
			URL string `json:"url"`
		} `json:"externalController"`
		TLS *struct{} `json:"apiTLS"`
	} `json:"spec"`
}

// noController says why there is no controller of LINSTOR that can be asked, and how that ends.
type noController struct{ why, ends string }

func (e noController) Error() string { return e.why }

// errNoCluster says that Piraeus is installed without a LINSTOR.
var errNoCluster = noController{why: "there is no LinstorCluster"}

// linstorController returns LINSTOR's controller; if there is none that can be asked, the error is a noController.
func (c *Client) linstorController(ctx context.Context) (controller linstorAPI, err error) {
	clusters, err := listCustom[linstorCluster](ctx, c, piraeusVersion.WithResource("linstorclusters"), "")
	if err != nil {
		return controller, err
	}
	if len(clusters) == 0 {
		return controller, errNoCluster
	}
	switch spec := clusters[0].Spec; {
	case spec.External != nil:
		return controller, noController{foreign.Line("its controller is outside of the cluster (" + spec.External.URL + "), and recast reads only one inside"), linstorElse}
	case spec.TLS != nil:
		// The controller redirects every request to a port that asks for a client certificate (initGrizzly in
		// linstor-server, GrizzlyHttpService.java), and the API server's proxy has none.
		return controller, noController{"its API asks for a client certificate (spec.apiTLS of the LinstorCluster), and the API server's proxy has none", linstorElse}
	}
	at, found, err := c.findService(ctx, linstorLabel, linstorPort)
	if err == nil && !found {
		err = noController{why: "there is no Service with " + linstorLabel}
	}
	return linstorAPI{at.get, at.put, at.place()}, err
}

// linstorReplicas reads the volumes of the LINSTOR that Piraeus runs. While LINSTOR can't be read, every node with a
// satellite may have volumes.
func (c *Client) linstorReplicas(ctx context.Context, _ schema.GroupVersion) (s replica.System, err error) {
	s = replica.System{Name: linstorName}
	controller, err := c.linstorController(ctx)
	none, away := errors.AsType[noController](err)
	switch {
	case none == errNoCluster:
		return s, nil
	case err != nil && !away:
		return s, err
	case !away:
		read, err := controller.system(ctx)
		if !errors.Is(err, errSilent) {
			return read, err
		}
		none.why = foreign.Line(err.Error())
	}
	s.Away, s.Return = none.why, none.ends
	satellites, err := listCustom[linstorSatellite](ctx, c, piraeusVersion.WithResource("linstorsatellites"), "")
	s.Holders = cluster.Each(satellites, func(s linstorSatellite) string { return s.Metadata.Name })
	return s, err
}

// linstorHeld reads how long LINSTOR waits. It lists nothing if there is no controller to ask: then recast has
// changed nothing.
func (c *Client) linstorHeld(ctx context.Context) ([]replica.Setting, error) {
	settings, err := c.linstorSettings(ctx)
	if _, away := errors.AsType[noController](err); away {
		return nil, nil
	}
	return settings, err
}

// linstorSettings reads how long LINSTOR waits, to change it.
func (c *Client) linstorSettings(ctx context.Context) ([]replica.Setting, error) {
	controller, err := c.linstorController(ctx)
	if err != nil {
		return nil, err
	}
	return controller.settings(ctx)
}

// linstorRight returns the right that a change of a node's property needs.
func (c *Client) linstorRight(ctx context.Context) (*authorizationv1.ResourceAttributes, error) {
	at, found, err := c.findService(ctx, linstorLabel, linstorPort)
	if err != nil || !found {
		return nil, err
	}
	return &authorizationv1.ResourceAttributes{
		Resource: "services", Subresource: "proxy", Verb: "update", Name: at.service.Name + ":" + linstorPort, Namespace: at.service.Namespace,
	}, nil
}

// The few fields that are read of LINSTOR's REST API are structs of our own: golinstor, the client of LINSTOR's authors,
// would add a second HTTP client with its own retries, credentials and log, and four modules, for six requests.

// Properties of controllers, nodes and resource definitions (linstor-common, properties.json; ReconnectorTask.java
// in linstor-server for the automatic eviction).
const (
	evictAllowed  = "DrbdOptions/AutoEvictAllowEviction"
	evictAfter    = "DrbdOptions/AutoEvictAfterTime" // minutes
	linstorQuorum = "DrbdOptions/Resource/quorum"
	// LINSTOR's CSI driver writes the claim (linstor-csi, pkg/driver/driver.go, CreateVolume).
	claimName      = "Aux/csi.storage.k8s.io/pvc/name"
	claimNamespace = "Aux/csi.storage.k8s.io/pvc/namespace"
)

// defaultEvictAfter is how many minutes LINSTOR waits if no property says otherwise (getFailedPeers in
// ReconnectorTask.java).
const defaultEvictAfter = "720"

type linstorAnswers struct {
	nodes       []linstorNode
	resources   []linstorResource
	definitions []linstorDefinition
	groups      []linstorGroup
	properties  map[string]string
}

// linstorNode is a Node (linstor-server, docs/rest_v1_openapi.yaml).
type linstorNode struct {
	Name   string            `json:"name"`
	Flags  []string          `json:"flags"`
	Props  map[string]string `json:"props"`
	Status string            `json:"connection_status"`
}

type linstorDefinition struct {
	Name  string            `json:"name"`
	Props map[string]string `json:"props"`
	Group string            `json:"resource_group_name"`
}

// linstorGroup is a ResourceGroup.
type linstorGroup struct {
	Name   string            `json:"name"`
	Props  map[string]string `json:"props"`
	Select struct {
		Copies int `json:"place_count"`
	} `json:"select_filter"`
}

// system reads the volumes once. The error is that of Get, or of a hold that can't be parsed.
func (c linstorAPI) system(ctx context.Context) (replica.System, error) {
	get, a := c.get, linstorAnswers{}
	read := func(path string, into any) func() error {
		return func() error { return get(ctx, path, into) }
	}
	// The first answer says whether the controller answers the other requests.
	if err := get(ctx, "/v1/nodes", &a.nodes); err != nil {
		return replica.System{Name: linstorName}, err
	}
	err := wait.All(
		read("/v1/view/resources", &a.resources), read("/v1/resource-definitions", &a.definitions),
		read("/v1/resource-groups", &a.groups), read("/v1/controller/properties", &a.properties),
	)
	if err != nil {
		return replica.System{Name: linstorName}, err
	}
	return a.system(c)
}

func (a linstorAnswers) system(c linstorAPI) (s replica.System, err error) {
	s = replica.System{Name: linstorName, Waits: evictAfter, Holds: true, Evicts: true, Remedy: "Piraeus sets that of this node, so raise it in the LinstorSatelliteConfiguration"}
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
	s.Volumes = slices.Concat(cluster.Each(a.names(), a.volumes)...)
	return s, nil
}

// down says why the copies on a node can't be used; "" if they can.
func (n linstorNode) down() string {
	switch {
	case slices.Contains(n.Flags, "EVICTED"):
		return "was evicted by LINSTOR"
	case n.Status != "ONLINE":
		return foreign.Line("is " + n.Status + " for LINSTOR")
	}
	return ""
}

// online says whether the states of resources on the node are known.
func (a linstorAnswers) online(name string) bool {
	return slices.ContainsFunc(a.nodes, func(n linstorNode) bool { return n.Name == name && n.Status == "ONLINE" })
}

// evicts returns how long LINSTOR waits for a node by itself before it evicts the node; replica.Forever: it does not
// evict. LINSTOR makes the copies of an evicted node on other nodes, and does not connect to the node again until a
// person restores it. A node's property has precedence over the controller's. own returns the node's evictAfter.
func (a linstorAnswers) evicts(n linstorNode, own func() (string, error)) (time.Duration, error) {
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
		return 0, fault.Refusedf("%s of %s in LINSTOR is not a number: %s", evictAfter, foreign.Line(n.Name), foreign.Line(value))
	}
	return max(time.Minute, time.Duration(minutes)*time.Minute), nil
}

// names lists the resource definitions that have resources, in order.
func (a linstorAnswers) names() []string {
	names := cluster.Each(a.resources, func(r linstorResource) string { return r.Name })
	slices.Sort(names)
	return slices.Compact(names)
}

// volumes returns the volumes of a resource definition: one, whose copies DRBD keeps the same or, without DRBD, one
// for each resource.
func (a linstorAnswers) volumes(name string) []replica.Volume {
	all := cluster.Where(a.resources, func(r linstorResource) bool { return r.Name == name })
	v := replica.Volume{Name: foreign.Line(name), Claim: a.claim(name)}
	if !slices.ContainsFunc(all, func(r linstorResource) bool { return r.Layer.drbd() != nil }) {
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

func (a linstorAnswers) definition(name string) linstorDefinition {
	found, _ := cluster.Find(a.definitions, func(d linstorDefinition) bool { return d.Name == name })
	return found
}

// claim returns the claim that a volume was made for; "" if that is unknown.
func (a linstorAnswers) claim(name string) string {
	props := a.definition(name).Props
	if props[claimName] == "" {
		return ""
	}
	return foreign.Line(props[claimNamespace] + "/" + props[claimName])
}

// group returns the resource group of a resource definition.
func (a linstorAnswers) group(name string) linstorGroup {
	in := a.definition(name).Group
	found, _ := cluster.Find(a.groups, func(g linstorGroup) bool { return g.Name == in })
	return found
}

// majority says whether DRBD stops the volume if it loses its quorum (CtrlRscAutoQuorumHelper.java): a property of
// the definition has precedence over its group's and the controller's.
func (a linstorAnswers) majority(name string) bool {
	for _, props := range []map[string]string{a.definition(name).Props, a.group(name).Props, a.properties} {
		if value, set := props[linstorQuorum]; set {
			return value == "majority"
		}
	}
	return false
}

// linstorResource is a ResourceWithVolumes: the copy of a volume on a node, or the node's access to copies elsewhere.
type linstorResource struct {
	Name  string       `json:"name"`
	Node  string       `json:"node_name"`
	Flags []string     `json:"flags"`
	Layer linstorLayer `json:"layer_object"`
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

type linstorLayer struct {
	Type string `json:"type"`
	DRBD *struct {
		// Connections is by peer, and missing while the node is not connected to the controller
		// (apiToResourceWithVolumes in Json.java).
		Connections map[string]struct {
			Connected bool `json:"connected"`
		} `json:"connections"`
	} `json:"drbd"`
	Children []linstorLayer `json:"children"`
}

// drbd returns the layer of DRBD; nil if there is none.
func (l linstorLayer) drbd() *linstorLayer {
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
func (r linstorResource) diskless() bool {
	return slices.ContainsFunc(r.Flags, func(flag string) bool {
		return slices.Contains([]string{"DISKLESS", "DRBD_DISKLESS", "TIE_BREAKER", "NVME_INITIATOR"}, flag)
	})
}

// leaves says whether the resource is being removed, or is not connected on purpose.
func (r linstorResource) leaves() bool {
	return slices.ContainsFunc(r.Flags, func(flag string) bool {
		return slices.Contains([]string{"DELETE", "DRBD_DELETE", "INACTIVE", "INACTIVATING", "EVICTED"}, flag)
	})
}

// replica returns the state of the copy. DRBD calls a disk UpToDate by what the disk's node knows: a copy that lost
// its connection can be behind another one that is written to. So an UpToDate copy is current only if it is itself
// the one that is written to, or is connected to all others that run.
func (r linstorResource) replica(all []linstorResource, online func(node string) bool) replica.Replica {
	out := replica.Replica{Node: r.Node, Rebuilt: r.syncs() && online(r.Node)}
	current := len(r.Volumes) > 0 && !r.leaves() && online(r.Node)
	for _, v := range r.Volumes {
		current = current && v.State.Disk == "UpToDate"
	}
	out.Healthy = current && (r.State.InUse || r.connected(all, online))
	return out
}

// syncs says whether the copy is being filled (ReplState.java).
func (r linstorResource) syncs() bool {
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

func (r linstorResource) connected(all []linstorResource, online func(node string) bool) bool {
	drbd := r.Layer.drbd()
	if drbd == nil || drbd.DRBD == nil {
		return false
	}
	return !slices.ContainsFunc(all, func(peer linstorResource) bool {
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

type linstorAPI struct {
	get, put exchange
	place    string // what comes before a path of the API in "kubectl replace --raw"
}

// linstorChange is a NodeModify, which is one transaction (modifyInTransaction in CtrlNodeApiCallHandler.java).
type linstorChange struct {
	Set    map[string]string `json:"override_props"`
	Delete []string          `json:"delete_props"`
}

// turn returns the change after which the node has that value of evictAfter and that memo, "" for none.
func (n linstorNode) turn(value, memo string) linstorChange {
	c := linstorChange{Set: map[string]string{}, Delete: []string{}}
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
func (a linstorAnswers) minutes(value string) (int, error) {
	return strconv.Atoi(cmp.Or(value, a.properties[evictAfter], defaultEvictAfter))
}

// fixed says whether Piraeus would set the node's evictAfter back.
func (n linstorNode) fixed() bool {
	var keys []string
	_ = json.Unmarshal([]byte(n.Props[applied]), &keys) // another text is not Piraeus'
	return slices.Contains(keys, evictAfter)
}

// settings returns the settings that say how long LINSTOR waits before it evicts each node.
func (c linstorAPI) settings(ctx context.Context) ([]replica.Setting, error) {
	var a linstorAnswers
	if err := c.get(ctx, "/v1/nodes", &a.nodes); err != nil {
		return nil, err
	}
	if err := c.get(ctx, "/v1/controller/properties", &a.properties); err != nil {
		return nil, err
	}
	return a.settings(c), nil
}

func (a linstorAnswers) settings(c linstorAPI) (all []replica.Setting) {
	for _, n := range a.nodes {
		what := evictAfter + " of " + foreign.Line(n.Name)
		all = append(all, replica.Setting{
			System: linstorName, Name: what, Node: n.Name, Called: what + " in LINSTOR", Said: what + " in LINSTOR",
			Value: n.Props[evictAfter], Unset: "the controller's", Unit: time.Minute, Number: a.minutes,
			Beside: n.Props, Key: holdMemo, At: fmt.Sprintf("property %s of LINSTOR's node %s", holdMemo, foreign.Line(n.Name)),
			Forget: fmt.Sprintf("check that %s of the node has the value that you want, then remove the other: linstor node set-property --aux %s recast.dev/hold", evictAfter, foreign.Line(n.Name)),
			Undo:   func(m replica.Memo) (string, error) { return c.undo(n, m) },
			// LINSTOR can't refuse a write because someone else wrote since our read. So only changed properties are
			// written, and runs of recast hold a claim.
			Write: func(ctx context.Context, value string, m replica.Memo) error {
				memo, err := m.Text()
				if err != nil {
					return err
				}
				return c.put(ctx, "/v1/nodes/"+n.Name, n.turn(value, memo))
			},
		})
	}
	return all
}

// undo returns the command that gives back the value in the memo.
func (c linstorAPI) undo(n linstorNode, m replica.Memo) (string, error) {
	value, _ := m.Without(n.Props[evictAfter], m.For()...)
	body, err := json.Marshal(n.turn(value, ""))
	if err != nil {
		return "", fmt.Errorf("encode a change of LINSTOR's node: %w", err)
	}
	return fmt.Sprintf("echo '%s' | kubectl replace --raw %s/v1/nodes/%s -f -", body, c.place, url.PathEscape(n.Name)), nil
}
