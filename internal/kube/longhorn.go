package kube

import (
	"context"
	"fmt"
	"path"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
)

var longhornVersion = schema.GroupVersion{Group: "longhorn.io", Version: "v1beta2"}

// longhornNode is what we read of Longhorn's own Node, which is named as the
// Kubernetes one (longhorn-manager, k8s/pkg/apis/longhorn/v1beta2/node.go).
type longhornNode struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Disks map[string]struct {
			Type string `json:"diskType"`
			Path string `json:"path"`
		} `json:"disks"`
	} `json:"spec"`
	Status struct {
		Disks map[string]*longhornDisk `json:"diskStatus"`
	} `json:"status"`
}

type longhornDisk struct {
	UUID          string              `json:"diskUUID"`
	Conditions    []longhornCondition `json:"conditions"`
	Replicas      map[string]int64    `json:"scheduledReplica"`
	BackingImages map[string]int64    `json:"scheduledBackingImage"`
}

// longhornCondition is no metav1.Condition: its times may be empty strings.
type longhornCondition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

// empty says whether Longhorn knows that nothing is on the disk. It counts what
// is there by the disk's UUID, and only while the disk is ready.
func (d *longhornDisk) empty() bool {
	ready := d != nil && d.UUID != "" && slices.ContainsFunc(d.Conditions, func(c longhornCondition) bool {
		return c.Type == "Ready" && c.Status == "True"
	})
	return ready && len(d.Replicas)+len(d.BackingImages) == 0
}

// longhornDisks finds the directories of each node in which Longhorn has
// replicas, or may have, and all that it looks after. Its other disks are whole
// block devices.
func (l *localLook) longhornDisks(ctx context.Context, groups []metav1.APIGroup) error {
	if installed, err := understood(groups, longhornVersion); !installed {
		return err
	}
	nodes, err := listCustom[longhornNode](ctx, l.Client, longhornVersion.WithResource("nodes"), l.only())
	if err != nil {
		return err
	}
	for _, ln := range nodes {
		n := l.byName(ln.Metadata.Name)
		if n == nil {
			continue
		}
		for id, disk := range ln.Spec.Disks {
			if disk.Type == "block" || disk.Type == "lvm" {
				continue
			}
			dir := path.Clean("/" + disk.Path) // Longhorn's default ends in a slash
			n.managed = append(n.managed, managed{namespace: ln.Metadata.Namespace, dir: dir})
			if ln.Status.Disks[id].empty() {
				continue
			}
			what := foreign.Line(fmt.Sprintf("Longhorn disk %s (%s)", id, contents(ln.Status.Disks[id])))
			n.disks = append(n.disks, cluster.LocalData{Name: "longhorn" + dir, What: what, Path: dir})
		}
	}
	return nil
}

func contents(d *longhornDisk) string {
	switch {
	case d == nil || len(d.Replicas)+len(d.BackingImages) == 0:
		return "not ready: what is on it is unknown"
	case len(d.BackingImages) == 0:
		return fmt.Sprintf("%d replicas", len(d.Replicas))
	}
	return fmt.Sprintf("%d replicas, %d backing images", len(d.Replicas), len(d.BackingImages))
}
