package linstor

import (
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster/replica"
)

// resource is a ResourceWithVolumes: the copy of a volume on a node, or the node's access to copies elsewhere.
type resource struct {
	Name  string   `json:"name"`
	Node  string   `json:"node_name"`
	Flags []string `json:"flags"`
	Layer layer    `json:"layer_object"`
	State struct {
		InUse bool `json:"in_use"` // it is DRBD's primary, so it is written to
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

// layer is a ResourceLayer.
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

// drbd is the layer of DRBD; nil if there is none.
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

// replica says how the copy is. DRBD calls a disk UpToDate by what it knows itself: one that lost its
// connection can be behind what is written elsewhere. So it is current if it is the one that is written to, or if
// it is connected to all others that run.
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
