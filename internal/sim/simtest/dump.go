package simtest

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// settledDump is the whole world as text once everything that was under way has
// ended: Proxmox less what it renews by itself, disks less what is random in
// every lab, and what people see of Nodes.
func (l *Lab) settledDump() string {
	l.t.Helper()
	time.Sleep(time.Minute) // of the bubble
	var b strings.Builder
	b.WriteString(l.World.Dump(l.describe, world.RenewedByProxmox()...))
	for _, n := range l.Nodes {
		node, err := l.Kube.Node(l.t.Context(), n.Name)
		if err != nil {
			l.t.Fatal(err)
		}
		fmt.Fprintf(&b, "node %s: cordoned %t, labels %v, taints %v\n", n.Name, node.Spec.Unschedulable, node.Labels, node.Spec.Taints)
	}
	return withoutAttempts(l.withoutMadeUpUUIDs(b.String()))
}

// withoutAttempts leaves out of the records what tells how many attempts it took: the
// number of the replacement, how often the record was written, and what a process had sent that was killed before it
// had the answer, which is forgotten once it can't come any more.
func withoutAttempts(dump string) string {
	return regexp.MustCompile(`,"sent":\{[^}]*\}|,"(?:nth|written)":\d+`).ReplaceAllString(dump, "")
}

// describe tells what is on a medium. Persistent disks are named by whose
// content they have, to the byte; of system disks the random UUID of EPHEMERAL is left out.
func (l *Lab) describe(m *world.Media) string {
	for _, p := range l.persistent {
		if m.SHA256() == p.sha256 {
			return "the content of " + p.serial
		}
	}
	return regexp.MustCompile(`EPHEMERAL [0-9a-f-]{36} [0-9a-f-]{36}`).ReplaceAllString(talosapi.Describe(m.Bytes()), "EPHEMERAL")
}

// withoutMadeUpUUIDs leaves out the SMBIOS UUIDs that Proxmox gives to VMs which ask for none.
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
