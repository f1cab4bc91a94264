package simtest

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// settledDump is the whole world as text once all work in progress has ended, without what
// Proxmox regenerates, the random parts of disks, and internal fields of Nodes.
func (l *Lab) settledDump() string {
	l.t.Helper()
	time.Sleep(time.Minute) // of the bubble
	var b strings.Builder
	b.WriteString(l.World.Dump(l.describe, world.RenewedByProxmox()...))
	for _, n := range l.Nodes {
		node := valueOf(l.Kube.Node(l.t.Context(), n.Name))(l.t)
		fmt.Fprintf(&b, "node %s: cordoned %t, labels %v, taints %v\n", n.Name, node.Spec.Unschedulable, node.Labels, node.Spec.Taints)
	}
	return withoutAttempts(l.withoutMadeUpUUIDs(b.String()))
}

// withoutAttempts removes from the records what depends on the number of attempts: the number of the replacement,
// the number of writes, the time of the replacement, and unanswered requests of killed processes, which are dropped once they can't take effect
// any more.
func withoutAttempts(dump string) string {
	return regexp.MustCompile(`,"sent":\{[^}]*\}|,"(?:nth|written)":\d+|,"replaced":"[^"]*"`).ReplaceAllString(dump, "")
}

// describe describes a medium. Persistent disks are named by their content, to the byte; of
// system disks the random UUID of EPHEMERAL is omitted.
func (l *Lab) describe(m *world.Media) string {
	for _, p := range l.persistent {
		if m.SHA256() == p.sha256 {
			return "the content of " + p.serial
		}
	}
	return regexp.MustCompile(`EPHEMERAL [0-9a-f-]{36} [0-9a-f-]{36}`).ReplaceAllString(talosapi.Describe(m.Bytes()), "EPHEMERAL")
}

// withoutMadeUpUUIDs removes the SMBIOS UUIDs that Proxmox generates for VMs without one.
func (l *Lab) withoutMadeUpUUIDs(dump string) string {
	return regexp.MustCompile(`smbios1: uuid=[0-9a-f-]{36}`).ReplaceAllStringFunc(dump, func(s string) string {
		for _, n := range l.Nodes {
			if strings.HasSuffix(s, n.UUID) {
				return s
			}
		}
		return "smbios1: made up by Proxmox"
	})
}
