package ui

import (
	"bytes"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/pipeline"
)

func TestWriteDrift(t *testing.T) {
	t.Parallel()
	drift := func(node string, reasons ...cluster.Reason) observe.Drift {
		return observe.Drift{Node: node, Build: "abcdef0123456789", Talos: "v1.13.9", Stale: len(reasons) > 0, Reasons: reasons}
	}
	kubernetes := cluster.Reason{Code: "kubernetes-version", Text: "Kubernetes v1.34.0 → v1.35.4", Old: "v1.34.0", New: "v1.35.4"}
	kept := drift("wk1")
	kept.Notes = []string{`previous system disk is parked as scsi30 of VM 9090 "recast-parking-wk1" on pve1 (run 20261120-0300-aaaa)`}
	unread := drift("wk2", cluster.Reason{Code: "unfinished", Text: `its replacement by run r1 is not finished; disks may be on VM 9090 "recast-parking-wk2" on pve1`})
	unread.Unread = []string{"read machine 10.0.0.2: no route to host"}
	file := cluster.Reason{Code: "extension-file", Text: "/usr/local/sbin/iscsid of extension iscsi-tools v0.2.0: sha256:222222222222 → sha256:333333333333"}
	held := []pipeline.HeldBack{{
		What: "Longhorn: replica-replenishment-wait-interval was 600 before recast set it to 1800, while wk1 is away", Run: "20261120-0300-aaaa",
		Since: time.Date(2026, 11, 20, 3, 1, 0, 0, time.UTC), Next: []pipeline.Advice{{Command: "recast roll", Does: "gives it back"}, {Command: "kubectl patch x", Does: "does so by hand"}},
	}}
	for name, res := range map[string]pipeline.DriftResult{
		"drift-held":       {InSync: true, Held: held, HeldUnread: "LINSTOR: no usable answer", Nodes: []observe.Drift{drift("cp1"), drift("wk1")}},
		"drift-held-left":  {Held: held, HeldLeft: true, Nodes: []observe.Drift{drift("cp1"), drift("wk1")}},
		"drift-none":       {InSync: true, Unlisted: []string{"wk8", "wk9"}, Nodes: []observe.Drift{drift("cp1"), kept}},
		"drift-kubernetes": {Stale: 1, Nodes: []observe.Drift{drift("cp1", kubernetes), drift("wk1")}},
		"drift-stale": {Stale: 3, Nodes: []observe.Drift{
			drift("cp1", cluster.Reason{Code: "install-image", Text: "install image of its configuration: factory.example/nocloud-installer/ffff:v1.13.8 → factory.example/nocloud-installer/eeee@sha256:1111"}, kubernetes),
			drift("wk1", cluster.Reason{Code: "pending-reboot", Text: "talos-v1.13.9~1.efi is installed, but talos-v1.13.8.efi is running: the next reboot starts the other system"},
				cluster.Reason{Code: "boot-order", Text: "it boots from ide2 before its system disk scsi0"}),
			drift("wk2", cluster.Reason{Code: "cordoned", Text: "run r1 cordoned it to roll it in-place and did not finish"}, kubernetes),
		}},
		"drift-deep": {Stale: 2, Nodes: []observe.Drift{
			drift("wk1", file, cluster.Reason{Code: "extension-file", Text: "3 more files of extensions are not as locked"}),
			drift("wk2", cluster.Reason{Code: "extension-digest", Text: "extension iscsi-tools v0.2.0: sha256:000000000000 → sha256:111111111111"}, file),
		}},
		"drift-unread": {Unread: 1, Stale: 1, Nodes: []observe.Drift{drift("wk1"), unread}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res.Cluster = "c1"
			drawn(t, name, func(b *bytes.Buffer) error { return WriteDrift(b, "text", res) })
			drawn(t, name+".md", func(b *bytes.Buffer) error { return WriteDrift(b, "markdown", res) })
			drawn(t, name+".xml", func(b *bytes.Buffer) error { return WriteDrift(b, "junit", res) })
		})
	}
}
