package ui

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/pipeline"
)

func TestWriteStatus(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 4, 21, 0, 0, time.UTC)
	build := strings.Repeat("b1", 32)
	roll := []pipeline.Advice{{Command: "recast roll", Does: "finishes it"}, {Command: "recast undo wk1", Does: "cancels it: puts the old system disk back"}}
	open := pipeline.Half{
		Node: "wk1", Run: "20261121-0421-3f2a", Strategy: cluster.Recreate, Build: build, Talos: "v1.13.9", VMID: 9031,
		VMState: pipeline.VMDeleted, VM: "deleted", Parking: 9090, Next: roll,
		Disks: []pipeline.DiskStatus{
			{Disk: "scsi0", System: true, Place: pipeline.OnParking, Volid: "fast:vm-9090-disk-0", Where: "scsi30 of parking VM 9090"},
			{Disk: "scsi1", Place: pipeline.Unnamed, Volid: "fast:vm-9031-disk-1", Where: "without a name, on the way from scsi1 of VM 9031 to scsi1 of VM 9090; recast roll finds it"},
			{Disk: "scsi2", Place: pipeline.Detached, Volid: "fast:vm-9201-disk-0", Where: "with VM 9201, which owns it; detached from VM 9031"},
		},
	}
	going := pipeline.Half{
		Node: "cp1", Run: "r2", Strategy: cluster.Rollback, Build: "sha256-" + build, Talos: "v1.13.8", LeftEtcd: true, VMID: 9001,
		VMState: pipeline.VMRestored, VM: "the same one, with its kept system disk", Running: true, Parking: 9091,
		Disks: []pipeline.DiskStatus{
			{Disk: "scsi0", System: true, Place: pipeline.OnParking, Volid: "fast:vm-9091-disk-0", Where: "scsi30 of parking VM 9091"},
			{Disk: "scsi0", System: true, Kept: true, Place: pipeline.OnVM, Volid: "fast:vm-9001-disk-4", Where: "scsi0 of VM 9001"},
		},
		Next: []pipeline.Advice{{Command: "recast roll", Does: "finishes the rollback"}},
	}
	givenUp := pipeline.Half{
		Node: "wk2", Run: "r2", Strategy: cluster.Reimage, Build: build, GivenUp: true, VMID: 9032, VMState: pipeline.VMStranger,
		VM: `a stranger: VM 9032 "db" on pve2`, Next: []pipeline.Advice{{Command: "qm config 9032", Does: "shows which VM has the number"}},
	}
	for name, res := range map[string]pipeline.StatusResult{
		"status-quiet": {
			Cluster: "c1", LastRun: &pipeline.RunStatus{ID: "20261121-0421-3f2a", Started: at, Finished: at.Add(10 * time.Minute), Outcome: "done", Took: []cluster.Took{{Node: "wk1", OutageSeconds: 251, Expected: 240}}},
			Kept: []pipeline.Kept{
				{
					Node: "wk1", Run: "20261114-0421-3f2a", Volid: "fast:vm-9090-disk-0", Parking: 9090, Host: "pve1", Key: "scsi30", SizeBytes: 10 << 30,
					Replaced: at.AddDate(0, 0, -7), Talos: "v1.13.8", Lock: "sha256-" + build,
					Next: []pipeline.Advice{{Command: "recast prune", Does: "frees it: node wk1 has 1 newer"}},
				},
				{
					Node: "wk1", Run: "r1", Volid: "fast:vm-9090-disk-1", Parking: 9090, Key: "scsi29", SizeBytes: 20 << 30, Talos: "v1.13.9",
					Next: []pipeline.Advice{{Command: "recast undo wk1", Does: "boots it if nothing relevant has changed since"}},
				},
			},
		},
		"status-elsewhere": {
			Cluster: "c1",
			Claim:   &pipeline.ClaimHeld{VMID: 9089, State: claim.State{Run: "20261121-0421-3f2a", Holder: claim.Holder{Host: "ci-7", PID: 12}, Since: at, Beat: 41}},
			Open:    []pipeline.Half{open}, Kubernetes: "read the kubeconfig: open /root/.kube/config: no such file or directory",
		},
		"status-killed": {
			Cluster: "c1", LastRun: &pipeline.RunStatus{ID: "r2", Started: at},
			Claim: &pipeline.ClaimHeld{VMID: 9089, State: claim.State{Run: "r2", Holder: claim.Holder{Host: "ci-7", PID: 12}, Since: at, Beat: 41}, Dead: true},
		},
		"status-half-done": {
			Cluster: "c1", LastRun: &pipeline.RunStatus{ID: "r2", Started: at},
			Open: []pipeline.Half{going, givenUp},
			Marked: []pipeline.Marked{
				{Node: "wk3", Run: "r2", Strategy: cluster.InPlace, Build: build, Installed: true, Next: []pipeline.Advice{{Command: "recast roll", Does: "finishes the upgrade"}}},
				{Node: "wk4", Run: "r2", Strategy: cluster.Recreate, Build: build, Ready: true, Foreign: true, Next: []pipeline.Advice{{Command: "recast roll", Does: "cleans that up"}}},
			},
			Surge:    []string{"wk-surge1"},
			Problems: []string{`VM 9091 "edited" on pve1: record in its description can't be read: unexpected end of JSON input`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drawn(t, name, func(b *bytes.Buffer) error { return WriteStatus(b, "text", res) })
		})
	}
}
