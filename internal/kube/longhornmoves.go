package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/foreign"
)

// longhornMoves holds the nodes that Longhorn could move replicas to.
type longhornMoves struct {
	nodes []longhornNode // all that it has
}

// longhornMoves uses the listed nodes, or lists all if that was only one.
func (l *localScan) longhornMoves(ctx context.Context, listed []longhornNode) (moves longhornMoves, err error) {
	if moves.nodes = listed; l.singleNode() == "" {
		return moves, nil
	}
	moves.nodes, err = listCustom[longhornNode](ctx, l.Client, longhornVersion.WithResource("nodes"), "")
	return moves, err
}

// lift describes how a disk becomes empty, and the command that starts it; both are
// "" if Longhorn cannot move its contents. Only a node that accepts no new replicas
// can be evicted (webhook/resources/node/validator.go, Update). Afterwards the disk
// has to be removed and added again: Longhorn gives a new directory another UUID,
// and takes such a disk for changed (node_controller.go,
// findNotReadyAndReadyDiskMaps). Only a disk that accepts no replicas can be
// removed, so the command disables scheduling at once.
func (m longhornMoves) lift(n longhornNode, id string, c longhornContents) (words, command string) {
	const then = "roll once the disk has no replicas, then undo that: remove the disk from the Longhorn node, because the new one has another UUID, " +
		"and add it again with scheduling allowed for both (docs/notes/local-data.md, Longhorn on the system disk)"
	switch {
	case !c.known && len(c.replicas)+c.images == 0, !m.takes(n.Metadata.Name, ""): // unknown contents, or nowhere to move them
		return "", ""
	case c.orphans > 0:
		return "Longhorn does not move orphaned directories: save what you need of them and delete them (kubectl -n " + n.Metadata.Namespace + " get orphans.longhorn.io)", ""
	case n.Spec.Evicting || n.Spec.Disks[id].Evicting:
		return "Longhorn was asked to move it: " + then, ""
	}
	for _, r := range c.replicas {
		if !m.takes(n.Metadata.Name, longhornVolume(r)) {
			return foreign.Line(fmt.Sprintf("every other Longhorn node that takes replicas has one of volume %s: add a node, or reduce the volume's replicas by one", longhornVolume(r))), ""
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

// takes reports whether a node other than not may get a replica of the volume. By
// default, Longhorn puts no two replicas of a volume on one node
// (replica-soft-anti-affinity).
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

// denied reports whether one of those conditions is not true.
func denied(conditions []longhornCondition, of ...string) bool {
	return slices.ContainsFunc(conditions, func(c longhornCondition) bool { return slices.Contains(of, c.Type) && c.Status != "True" })
}
