package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/wait"
)

var longhornVersion = schema.GroupVersion{Group: "longhorn.io", Version: "v1beta2"}

// longhornNode is the part that we read of Longhorn's own Node, which has the name
// of the Kubernetes one (longhorn-manager, k8s/pkg/apis/longhorn/v1beta2/node.go).
type longhornNode struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Scheduling bool                        `json:"allowScheduling"`
		Evicting   bool                        `json:"evictionRequested"`
		Disks      map[string]longhornDiskSpec `json:"disks"`
	} `json:"spec"`
	Status struct {
		Conditions []longhornCondition      `json:"conditions"`
		Disks      map[string]*longhornDisk `json:"diskStatus"`
	} `json:"status"`
}

type longhornDiskSpec struct {
	Type       string `json:"diskType"`
	Path       string `json:"path"`
	Scheduling bool   `json:"allowScheduling"`
	Evicting   bool   `json:"evictionRequested"`
}

// directory returns the disk's directory; "" for a whole block device. Longhorn's default ends in a slash.
func (d longhornDiskSpec) directory() string {
	if d.Type == "block" || d.Type == "lvm" {
		return ""
	}
	return path.Clean("/" + d.Path)
}

type longhornDisk struct {
	UUID          string              `json:"diskUUID"`
	Conditions    []longhornCondition `json:"conditions"`
	Replicas      map[string]int64    `json:"scheduledReplica"`
	BackingImages map[string]int64    `json:"scheduledBackingImage"`
	Scheduled     int64               `json:"storageScheduled"` // of everything that Longhorn counts, in bytes
}

// longhornCondition is not a metav1.Condition: its times may be empty strings.
type longhornCondition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
	Reason string `json:"reason"`
}

// longhornReplica is one copy of a volume (replica.go, InstanceSpec in instancemanager.go).
type longhornReplica struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Volume        string `json:"volumeName"`
		Node          string `json:"nodeID"`
		DiskUUID      string `json:"diskID"`
		DiskPath      string `json:"diskPath"`
		HealthyAt     string `json:"healthyAt"`
		LastHealthyAt string `json:"lastHealthyAt"`
		FailedAt      string `json:"failedAt"`
		Active        bool   `json:"active"`
	} `json:"spec"`
	Status struct {
		State string `json:"currentState"`
	} `json:"status"`
}

func (r longhornReplica) on(node, dir, uuid string) bool {
	return uuid != "" && r.Spec.DiskUUID == uuid || r.Spec.Node == node && path.Clean("/"+r.Spec.DiskPath) == dir
}

// longhornOrphan is data on a disk that belongs to no replica (orphan.go).
type longhornOrphan struct {
	Spec struct {
		Node       string            `json:"nodeID"`
		Type       string            `json:"orphanType"`
		Parameters map[string]string `json:"parameters"`
	} `json:"spec"`
}

func (o longhornOrphan) on(node, dir string) bool {
	return o.Spec.Node == node && o.Spec.Type == "replica" && path.Clean("/"+o.Spec.Parameters["DiskPath"]) == dir
}

type longhornContents struct {
	replicas        []string
	images, orphans int
	known           bool // whether that is all
}

func (c longhornContents) empty() bool { return c.known && len(c.replicas)+c.images+c.orphans == 0 }

func (c longhornContents) String() string {
	if len(c.replicas)+c.images+c.orphans == 0 {
		return "not ready: what is on it is unknown"
	}
	text := fmt.Sprintf("%d replicas", len(c.replicas))
	if c.images > 0 {
		text += fmt.Sprintf(", %d backing images", c.images)
	}
	if c.orphans > 0 {
		text += fmt.Sprintf(", %d orphaned directories", c.orphans)
	}
	return text
}

// known reports whether Longhorn lists everything on the disk. Longhorn does so by the disk's UUID, and only while
// the disk is ready. While a node is down, nothing changes on its disk, but since 1.12 the disk is then not ready
// (node_controller.go, markAllDisksNotReadyWhenNodeNotReady).
func (d *longhornDisk) known() bool {
	return d != nil && d.UUID != "" && slices.ContainsFunc(d.Conditions, func(c longhornCondition) bool {
		return c.Type == "Ready" && (c.Status == "True" || c.Reason == "NodeNotReady")
	})
}

type longhornState struct {
	nodes    []longhornNode
	replicas []longhornReplica
	orphans  []longhornOrphan
}

// longhornState reads Longhorn's state of the nodes. It lists replicas and orphans
// only if a disk would otherwise seem empty.
func (l *localScan) longhornState(ctx context.Context) (look longhornState, err error) {
	look.nodes, err = listCustom[longhornNode](ctx, l.Client, longhornVersion.WithResource("nodes"), l.singleNode())
	if err != nil || !slices.ContainsFunc(look.nodes, longhornNode.seemsEmpty) {
		return look, err
	}
	served, err := l.resources(ctx, longhornVersion)
	if err != nil {
		return look, err
	}
	serves := func(name string) bool { // a kind that is not served has no objects
		return slices.ContainsFunc(served, func(r metav1.APIResource) bool { return r.Name == name })
	}
	if serves("replicas") {
		labels := ""
		if node := l.singleNode(); node != "" {
			labels = "longhornnode=" + node // on every replica that has a node (datastore/longhorn.go, labelNode)
		}
		if look.replicas, err = listSelected[longhornReplica](ctx, l.Client, longhornVersion.WithResource("replicas"), "labelSelector", labels); err != nil {
			return look, err
		}
	}
	if serves("orphans") {
		look.orphans, err = listCustom[longhornOrphan](ctx, l.Client, longhornVersion.WithResource("orphans"), "")
	}
	return look, err
}

// seemsEmpty reports whether a disk's directory is empty according to the node's status alone.
func (n longhornNode) seemsEmpty() bool {
	for id, disk := range n.Spec.Disks {
		if disk.directory() != "" && (longhornState{}).contents(n, id).empty() {
			return true
		}
	}
	return false
}

func (look longhornState) contents(node longhornNode, id string) longhornContents {
	status, dir := node.Status.Disks[id], node.Spec.Disks[id].directory()
	c := longhornContents{known: status.known() && status.Scheduled == 0}
	uuid, names := "", map[string]bool{}
	if status != nil {
		uuid, c.images = status.UUID, len(status.BackingImages)
		for name := range status.Replicas {
			names[name] = true
		}
	}
	for _, r := range look.replicas {
		if r.on(node.Metadata.Name, dir, uuid) {
			names[r.Metadata.Name] = true
		}
	}
	for _, o := range look.orphans {
		if o.on(node.Metadata.Name, dir) {
			c.orphans++
		}
	}
	c.replicas = slices.Sorted(maps.Keys(names))
	return c
}

// longhornDisks finds the directories of each node in which Longhorn has, or may have, replicas, and all directories
// that Longhorn manages. Longhorn's other disks are whole block devices.
func (l *localScan) longhornDisks(ctx context.Context, groups []metav1.APIGroup) error {
	if installed, err := supports(groups, longhornVersion); !installed {
		return err
	}
	look, err := l.longhornState(ctx)
	if err != nil {
		return err
	}
	var all []longhornNode // that Longhorn could move replicas to; nil: not listed yet
	for _, ln := range look.nodes {
		n := l.byName(ln.Metadata.Name)
		if n == nil {
			continue
		}
		for id, disk := range ln.Spec.Disks {
			dir := disk.directory()
			if dir == "" {
				continue
			}
			n.managed = append(n.managed, managed{namespace: ln.Metadata.Namespace, dir: dir})
			c := look.contents(ln, id)
			if c.empty() {
				continue
			}
			if all == nil && l.singleNode() == "" {
				all = look.nodes
			}
			if all == nil {
				if all, err = listCustom[longhornNode](ctx, l.Client, longhornVersion.WithResource("nodes"), ""); err != nil {
					return err
				}
			}
			data := cluster.LocalData{Name: "longhorn" + dir, What: foreign.Line(fmt.Sprintf("Longhorn disk %s (%s)", id, c)), Path: dir}
			data.Lift, data.Command = lift(all, ln, id, c)
			n.disks = append(n.disks, data)
		}
	}
	return nil
}

// longhornVolume returns the volume of a replica, whose name begins with the volume's (types/types.go,
// GenerateReplicaNameForVolume).
func longhornVolume(replica string) string {
	if i := strings.LastIndex(replica, "-r-"); i > 0 {
		return replica[:i]
	}
	return replica
}

// lift describes how a disk becomes empty, and the command that starts it; both are "" if Longhorn cannot move the
// disk's contents. Only a node that accepts no new replicas can be evicted (webhook/resources/node/validator.go,
// Update). Afterwards the disk has to be removed and added again: Longhorn gives a new directory another UUID, and
// then considers the disk changed (node_controller.go, findNotReadyAndReadyDiskMaps). Only a disk that accepts no
// replicas can be removed, so the command disables scheduling at once.
func lift(all []longhornNode, n longhornNode, id string, c longhornContents) (words, command string) {
	const then = "roll once the disk has no replicas, then undo that: remove the disk from the Longhorn node, because the new one has another UUID, " +
		"and add it again with scheduling allowed for both (docs/notes/local-data.md, Longhorn on the system disk)"
	switch {
	case !c.known && len(c.replicas)+c.images == 0, !takes(all, n.Metadata.Name, ""): // unknown contents, or nowhere to move them
		return "", ""
	case c.orphans > 0:
		return "Longhorn does not move orphaned directories: save what you need of them and delete them (kubectl -n " + n.Metadata.Namespace + " get orphans.longhorn.io)", ""
	case n.Spec.Evicting || n.Spec.Disks[id].Evicting:
		return "Longhorn was asked to move it: " + then, ""
	}
	for _, r := range c.replicas {
		if !takes(all, n.Metadata.Name, longhornVolume(r)) {
			return foreign.Line(fmt.Sprintf("every other Longhorn node that takes replicas has one of volume %s: add a node, or reduce the volume's replicas by one", longhornVolume(r))), ""
		}
	}
	command = evictCommand(n, id)
	return command + " has Longhorn move it to its other nodes; " + then, command
}

func evictCommand(n longhornNode, id string) string {
	disk, _ := json.Marshal(id) // every string can be marshalled
	patch := fmt.Sprintf(`{"spec":{"allowScheduling":false,"evictionRequested":true,"disks":{%s:{"allowScheduling":false}}}}`, disk)
	patch = "'" + strings.ReplaceAll(patch, "'", `'\''`) + "'"
	return foreign.Line(fmt.Sprintf("kubectl -n %s patch nodes.longhorn.io %s --type merge -p %s", n.Metadata.Namespace, n.Metadata.Name, patch))
}

// takes reports whether a node other than not may get a replica of the volume. By default, Longhorn never puts two
// replicas of a volume on one node (replica-soft-anti-affinity).
func takes(all []longhornNode, not, volume string) bool {
	return slices.ContainsFunc(all, func(n longhornNode) bool {
		if n.Metadata.Name == not || !n.Spec.Scheduling || n.Spec.Evicting || denied(n.Status.Conditions, "Ready", "Schedulable") {
			return false
		}
		open := false
		for id, disk := range n.Spec.Disks {
			status := n.Status.Disks[id]
			if status == nil {
				continue
			}
			for r := range status.Replicas {
				if longhornVolume(r) == volume {
					return false
				}
			}
			open = open || disk.directory() != "" && disk.Scheduling && !disk.Evicting && !denied(status.Conditions, "Ready", "Schedulable")
		}
		return open
	})
}

func denied(conditions []longhornCondition, of ...string) bool {
	return slices.ContainsFunc(conditions, func(c longhornCondition) bool { return slices.Contains(of, c.Type) && c.Status != "True" })
}

const (
	longhornName    = "Longhorn"
	longhornManager = "longhorn-manager" // its DaemonSet (types/deploy.go, LonghornManagerDaemonSetName)
	// longhornWait and longhornDrain are settings (types/setting.go).
	longhornWait  = "replica-replenishment-wait-interval"
	longhornDrain = "node-drain-policy"
)

// longhornVolumeState is the part that we read of Longhorn's Volume (k8s/pkg/apis/longhorn/v1beta2/volume.go).
type longhornVolumeState struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Replicas int `json:"numberOfReplicas"`
	} `json:"spec"`
	Status struct {
		State      string `json:"state"`
		Robustness string `json:"robustness"`
		Kubernetes struct {
			Namespace string `json:"namespace"`
			Claim     string `json:"pvcName"`
		} `json:"kubernetesStatus"`
	} `json:"status"`
}

// replica returns the state of a copy. Longhorn sets HealthyAt once the copy is complete, and clears it before the
// copy is filled again; it sets FailedAt when the copy fails, and clears it likewise (replica.go;
// isHealthyAndActiveReplica in controller/volume_controller.go).
func (r longhornReplica) replica() replica.Replica {
	s := r.Spec
	empty := s.HealthyAt == "" && s.FailedAt == ""
	return replica.Replica{
		Node:    s.Node,
		Healthy: s.HealthyAt != "" && s.FailedAt == "" && s.Active && r.Metadata.DeletionTimestamp == nil,
		Unused:  empty && s.LastHealthyAt == "",
		Rebuilt: empty && r.Status.State == "running",
	}
}

func (c *Client) longhornReplicas(ctx context.Context, _ schema.GroupVersion) (replica.System, error) {
	var volumes []longhornVolumeState
	var copies []longhornReplica
	var nodes []longhornNode
	var settings []longhornSetting
	err := wait.All(
		listing(ctx, c, "volumes", &volumes), listing(ctx, c, "replicas", &copies),
		listing(ctx, c, "nodes", &nodes), listing(ctx, c, "settings", &settings),
	)
	s := replica.System{Name: longhornName, Waits: longhornWait}
	if err != nil {
		return s, err
	}
	if waits := c.waitSettings(settings); len(waits) > 0 {
		value, err := waits[0].Own()
		if err != nil {
			return s, err
		}
		if s.Held, err = replica.Held(waits[:1]); err != nil {
			return s, err
		}
		seconds, err := strconv.Atoi(value)
		s.Patience, s.Holds = time.Duration(seconds)*time.Second, err == nil
	}
	s.Nodes = cluster.Each(nodes, longhornNode.standing)
	// Only block-if-contains-last-replica, the default, keeps a node with the last copy of a volume
	// (types/setting.go, NodeDrainPolicy…): the other policies let the node go, or move the copy while it drains.
	policy := cmp.Or(longhornValue(settings, longhornDrain), "block-if-contains-last-replica")
	percent, err := c.longhornRebuilds(ctx, copies)
	if err != nil {
		return s, err
	}
	for _, v := range volumes {
		if v.Metadata.DeletionTimestamp == nil {
			s.Volumes = append(s.Volumes, v.volume(copies, percent, policy != "block-if-contains-last-replica"))
		}
	}
	if len(nodes) > 0 && len(volumes) > 0 {
		s.Away, err = c.longhornAway(ctx, nodes[0].Metadata.Namespace)
	}
	return s, err
}

func listing[T any](ctx context.Context, c *Client, resource string, objects *[]T) func() error {
	return func() (err error) {
		*objects, err = listCustom[T](ctx, c, longhornVersion.WithResource(resource), "")
		return err
	}
}

func longhornValue(settings []longhornSetting, name string) string {
	s, _ := cluster.Find(settings, func(s longhornSetting) bool { return s.Metadata.Name == name })
	return s.Value
}

func (v longhornVolumeState) volume(copies []longhornReplica, percent map[string]int, aloneGoes bool) replica.Volume {
	detached := v.Status.State == "detached"
	out := replica.Volume{
		Name: foreign.Line(v.Metadata.Namespace + "/" + v.Metadata.Name), Wanted: v.Spec.Replicas, Alone: v.Spec.Replicas == 1 && aloneGoes,
		Idle: detached && v.Status.Robustness != "faulted", Robust: v.Status.Robustness == "healthy",
	}
	if k := v.Status.Kubernetes; k.Claim != "" {
		out.Claim = foreign.Line(k.Namespace + "/" + k.Claim)
	}
	for _, r := range copies {
		if r.Metadata.Namespace == v.Metadata.Namespace && r.Spec.Volume == v.Metadata.Name && r.Spec.Node != "" {
			copied := r.replica()
			copied.Percent = percent[r.Metadata.Namespace+"/"+r.Metadata.Name]
			out.Replicas = append(out.Replicas, copied)
		}
	}
	return out
}

// standing says whether the node's copies can be used. Longhorn knows a disk by a file on it, which a wiped disk does
// not have.
func (n longhornNode) standing() replica.Node {
	out := replica.Node{Name: n.Metadata.Name}
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" && c.Status != "True" {
			out.Down = foreign.Line("is not ready for Longhorn (" + cmp.Or(c.Reason, "no reason given") + ")")
		}
	}
	if len(n.Status.Conditions) == 0 {
		out.Down = "has no state for Longhorn yet"
	}
	var bad []string
	for id := range n.Spec.Disks {
		status := n.Status.Disks[id]
		if status == nil || denied(status.Conditions, "Ready") || len(status.Conditions) == 0 {
			bad = append(bad, foreign.Line(id))
		}
	}
	if slices.Sort(bad); len(bad) > 0 {
		out.Lacks = "its disk " + strings.Join(bad, ", ") + " is not ready for Longhorn"
	}
	return out
}

// longhornAway says why Longhorn's objects may be out of date: none of its managers runs. It returns "" if one runs.
func (c *Client) longhornAway(ctx context.Context, namespace string) (string, error) {
	var set *appsv1.DaemonSet
	set, err := c.api.AppsV1().DaemonSets(namespace).Get(ctx, longhornManager, metav1.GetOptions{})
	switch err = c.translate(err); {
	case errors.Is(err, cluster.ErrNotFound):
		return fmt.Sprintf("there is no DaemonSet %s/%s", namespace, longhornManager), nil
	case err != nil:
		return "", fmt.Errorf("read DaemonSet %s/%s: %w", namespace, longhornManager, err)
	case set.Status.NumberReady == 0:
		return fmt.Sprintf("no pod of DaemonSet %s/%s is ready", namespace, longhornManager), nil
	}
	return "", nil
}

func (c *Client) watchLonghorn(ctx context.Context, tell func(look bool)) error {
	robustness := func(v longhornVolumeState) (metav1.ObjectMeta, string) { return v.Metadata, v.Status.Robustness }
	return watchCustom(ctx, c, longhornVersion.WithResource("volumes"), tell, robustness, func(was, is string) bool { return was != "healthy" && is == "healthy" })
}

// holdAnnotation holds a replica.Memo as JSON, on the setting that the memo is about.
const holdAnnotation = "recast.dev/hold"

type longhornSetting struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Value    string            `json:"value"`
}

// longhornHeld reads how long Longhorn waits; it lists nothing if the setting is missing.
func (c *Client) longhornHeld(ctx context.Context) ([]replica.Setting, error) {
	all, err := c.longhornWaits(ctx)
	return c.waitSettings(all), err
}

func (c *Client) longhornWaits(ctx context.Context) ([]longhornSetting, error) {
	return listCustom[longhornSetting](ctx, c, longhornVersion.WithResource("settings"), longhornWait)
}

// longhornSettings reads how long Longhorn waits, to change it; repeat translates its errors.
func (c *Client) longhornSettings(ctx context.Context) ([]replica.Setting, error) {
	body, err := c.api.Discovery().RESTClient().Get().AbsPath("/apis", longhornVersion.Group, longhornVersion.Version, "settings").
		Param("fieldSelector", fields.OneTermEqualSelector(metav1.ObjectNameField, longhornWait).String()).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var list struct{ Items []longhornSetting }
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("decode settings of Longhorn: %w", err)
	}
	if len(list.Items) != 1 {
		return nil, fault.Refusedf("Longhorn has %d settings %s instead of one", len(list.Items), longhornWait)
	}
	return c.waitSettings(list.Items), nil
}

// longhornRight returns the right that a change of the setting needs; nil if the setting is missing.
func (c *Client) longhornRight(ctx context.Context) (*authorizationv1.ResourceAttributes, error) {
	all, err := c.longhornWaits(ctx)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &authorizationv1.ResourceAttributes{
		Group: longhornVersion.Group, Resource: "settings", Verb: "patch", Name: longhornWait, Namespace: all[0].Metadata.Namespace,
	}, nil
}

// waitSettings picks the setting that says how long Longhorn waits, in seconds from 0 on (longhorn-manager,
// types/setting.go, SettingDefinitionReplicaReplenishmentWaitInterval).
func (c *Client) waitSettings(all []longhornSetting) (settings []replica.Setting) {
	for _, s := range all {
		if s.Metadata.Name != longhornWait {
			continue
		}
		settings = append(settings, replica.Setting{
			System: longhornName, Name: longhornWait, Called: "Longhorn's setting " + longhornWait, Said: longhornWait + " of Longhorn",
			Value: s.Value, Unit: time.Second, Number: strconv.Atoi, Undo: s.undo,
			Beside: s.Metadata.Annotations, Key: holdAnnotation, At: fmt.Sprintf("annotation %s of Longhorn's setting %s", holdAnnotation, longhornWait),
			Forget: "check that the setting has the value that you want, then remove it: " + s.forget(),
			Write: func(ctx context.Context, value string, m replica.Memo) error {
				return c.writeLonghorn(ctx, s, value, m)
			},
		})
	}
	return settings
}

// undo returns the command that sets the value in the memo again, or that only removes the memo if someone else has
// set the value since.
func (s longhornSetting) undo(m replica.Memo) (string, error) {
	if s.Value != m.Set {
		return s.forget(), nil
	}
	return fmt.Sprintf(`kubectl --namespace %s patch settings.longhorn.io %s --type merge --patch '{"value":"%s","metadata":{"annotations":{"%s":null}}}'`,
		s.Metadata.Namespace, longhornWait, m.Was, holdAnnotation), nil
}

func (s longhornSetting) forget() string {
	return fmt.Sprintf("kubectl --namespace %s annotate settings.longhorn.io %s %s-", s.Metadata.Namespace, longhornWait, holdAnnotation)
}

func (c *Client) writeLonghorn(ctx context.Context, s longhornSetting, value string, memo replica.Memo) error {
	text, err := memo.Text()
	if err != nil {
		return err
	}
	annotations := map[string]*string{holdAnnotation: nil}
	if text != "" {
		annotations[holdAnnotation] = &text
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": s.Metadata.ResourceVersion, "annotations": annotations}, "value": value,
	})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	return c.api.Discovery().RESTClient().Patch(types.MergePatchType).
		AbsPath("/apis", longhornVersion.Group, longhornVersion.Version, "namespaces", s.Metadata.Namespace, "settings", s.Metadata.Name).
		Body(body).Do(ctx).Error()
}

// longhornEngine is the part that we read of Longhorn's Engine: the replicas that it fills
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

// longhornRebuilds returns the progress, in percent, of each replica that is being filled, by namespace and name. The
// progress is only shown: without the right to list engines it is unknown (syncReplicas in
// controller/engine_controller.go looks it up likewise; GetBackendReplicaURL in engineapi).
func (c *Client) longhornRebuilds(ctx context.Context, copies []longhornReplica) (map[string]int, error) {
	if !slices.ContainsFunc(copies, func(r longhornReplica) bool { return r.replica().Rebuilt }) {
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
