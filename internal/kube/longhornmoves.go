package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/foreign"
)

// longhornMoves is what Longhorn could move replicas to.
type longhornMoves struct {
	nodes []longhornNode // all that it has
}

// longhornMoves is of what was listed, or of all nodes where that was only one.
func (l *localLook) longhornMoves(ctx context.Context, listed []longhornNode) (moves longhornMoves, err error) {
	if moves.nodes = listed; l.only() == "" {
		return moves, nil
	}
	moves.nodes, err = listCustom[longhornNode](ctx, l.Client, longhornVersion.WithResource("nodes"), "")
	return moves, err
}

// lift says how a disk becomes empty, in words, and the command that begins it; both are
// "" where Longhorn can't move what is there. Eviction is only for a node that takes no
// new replicas (webhook/resources/node/validator.go, Update). Afterwards the disk has to be
// taken out and added again: Longhorn gives a new directory another UUID, and takes a disk with
// another one for changed (node_controller.go, findNotReadyAndReadyDiskMaps). Only a
// disk that takes no replicas can be taken out, so that it is told so at once.
func (m longhornMoves) lift(n longhornNode, id string, c longhornContents) (words, command string) {
	const then = "roll once the disk has no replicas, then undo that: take the disk out of the Longhorn node, as the new one has another UUID, " +
		"and add it again with scheduling allowed for both (docs/notes/local-data.md, Longhorn on the system disk)"
	switch {
	case !c.known && len(c.replicas)+c.images == 0, !m.takes(n.Metadata.Name, ""): // nobody knows what there is to move, or it has nowhere to go
		return "", ""
	case c.orphans > 0:
		return "keep what you need of the orphaned directories, of which Longhorn moves none, and delete them (kubectl -n " + n.Metadata.Namespace + " get orphans.longhorn.io)", ""
	case n.Spec.Evicting || n.Spec.Disks[id].Evicting:
		return "Longhorn was asked to move it: " + then, ""
	}
	for _, r := range c.replicas {
		if !m.takes(n.Metadata.Name, longhornVolume(r)) {
			return foreign.Line(fmt.Sprintf("every other Longhorn node that takes replicas has one of volume %s: add a node, or have the volume keep a replica less", longhornVolume(r))), ""
		}
	}
	command = evictCommand(n, id)
	return command + " has Longhorn move it to its other nodes; " + then, command
}

func evictCommand(n longhornNode, id string) string {
	type disk struct {
		Scheduling bool `json:"allowScheduling"`
	}
	type spec struct {
		Scheduling bool            `json:"allowScheduling"`
		Evicting   bool            `json:"evictionRequested"`
		Disks      map[string]disk `json:"disks"`
	}
	b, err := json.Marshal(map[string]spec{"spec": {Evicting: true, Disks: map[string]disk{id: {}}}})
	if err != nil {
		panic(err) // it has nothing that can't be marshalled
	}
	patch := "'" + strings.ReplaceAll(string(b), "'", `'\''`) + "'"
	return foreign.Line(fmt.Sprintf("kubectl -n %s patch nodes.longhorn.io %s --type merge -p %s", n.Metadata.Namespace, n.Metadata.Name, patch))
}

// takes says whether another node than that one may get a replica of the volume. With
// Longhorn's own settings no node gets two of one volume (replica-soft-anti-affinity).
func (m longhornMoves) takes(not, volume string) bool {
	return slices.ContainsFunc(m.nodes, func(n longhornNode) bool {
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

// denied says whether one of those conditions is anything but true.
func denied(conditions []longhornCondition, of ...string) bool {
	return slices.ContainsFunc(conditions, func(c longhornCondition) bool { return slices.Contains(of, c.Type) && c.Status != "True" })
}
