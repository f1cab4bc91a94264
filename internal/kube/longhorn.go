package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
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

// longhornContents is what is on a Longhorn disk.
type longhornContents struct {
	replicas        []string
	images, orphans int
	known           bool // whether that is all
}

func (c longhornContents) empty() bool {
	return c.known && len(c.replicas)+c.images+c.orphans == 0
}

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

// longhornState is Longhorn's state of the nodes of the search.
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
	disk, err := json.Marshal(id)
	if err != nil {
		panic(err) // every string can be marshalled
	}
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

// denied reports whether one of those conditions is not true.
func denied(conditions []longhornCondition, of ...string) bool {
	return slices.ContainsFunc(conditions, func(c longhornCondition) bool { return slices.Contains(of, c.Type) && c.Status != "True" })
}
