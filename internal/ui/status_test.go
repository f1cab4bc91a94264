package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/prune"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/sim/must"
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

func TestWritePrune(t *testing.T) {
	t.Parallel()
	iso := func(name string, mib int64) images.StoredISO {
		return images.StoredISO{Host: "pve1", Storage: "local", Name: name, SizeBytes: mib << 20}
	}
	kept := images.Verdict{StoredISO: iso("a.iso", 100), Keep: []string{`VM 7 "x" on pve1 refers to it`, "recast.lock has it"}}
	gone := images.Verdict{StoredISO: iso("b.iso", 200), Removed: true}
	goes := images.Verdict{StoredISO: iso("c.iso", 300)}
	disk := func(key string, keep ...string) prune.KeptVerdict {
		return prune.KeptVerdict{
			Node: "wk1", Run: "20261114-0421-3f2a", Replaced: time.Date(2026, 11, 14, 4, 21, 0, 0, time.UTC), Talos: "v1.13.8",
			Parking: 9900, Host: "pve1", Key: key, Volid: "fast:vm-9900-disk-0", SizeBytes: 10 << 30, Keep: keep,
		}
	}
	staying, going, entry, freed := disk("scsi30", "the way back: recast undo wk1"), disk("scsi29"), disk("scsi28"), disk("scsi29")
	going.Goes, entry.Goes, entry.Volid, entry.SizeBytes, entry.Replaced = "node wk1 has 1 newer", "VM 9900 has no scsi28 any more: only its entry in the record goes", "", 0, time.Time{}
	freed.Goes, freed.Removed = going.Goes, true
	park := prune.ParkingVerdict{VMID: 9901, Name: "recast-parking-wk3", Host: "pve2", Node: "wk3", Goes: "it owns nothing any more"}
	odd := prune.ParkingVerdict{VMID: 9902, Name: "x", Host: "pve2", Keep: []string{"record in its description can't be read"}}
	for name, tc := range map[string]struct {
		rep  pipeline.PruneReport
		want string
	}{
		"an empty mirror": {pipeline.PruneReport{Mirror: []images.MirrorVerdict{}}, "0 mirrored installers, none to remove\n"},
		"the mirror": {
			pipeline.PruneReport{Mirror: []images.MirrorVerdict{
				{MirrorTag: images.MirrorTag{Repository: "r.acme/talos", Tag: "v1.13.9-aaaaaaaaaaaa", Digest: "sha256:1", Built: going.Replaced}, Keep: []string{"recast.lock has it"}},
				{MirrorTag: images.MirrorTag{Repository: "r.acme/talos", Tag: "v1.13.9-bbbbbbbbbbbb", Digest: "sha256:2"}},
			}},
			"stays    r.acme/talos:v1.13.9-aaaaaaaaaaaa (sha256:1, built on 2026-11-14)\n         recast.lock has it\n" +
				"goes     r.acme/talos:v1.13.9-bbbbbbbbbbbb (sha256:2, build date unknown)\n1 of 2 mirrored installers can go\n",
		},
		"disk images": {
			pipeline.PruneReport{ISOs: []images.Verdict{gone, {StoredISO: iso("d.qcow2", 50)}, {StoredISO: iso("e.qcow2", 60), Removed: true}}},
			"removed  b.iso on storage local on pve1 (200 MiB)\ngoes     d.qcow2 on storage local on pve1 (50 MiB)\nremoved  e.qcow2 on storage local on pve1 (60 MiB)\n" +
				"1 of 1 ISOs removed, 200 MiB\n1 of 2 disk images removed, 60 MiB; 1 that could be removed are still there\n",
		},
		"nothing there": {pipeline.PruneReport{}, "0 ISOs, none to remove\n"},
		"before": {
			pipeline.PruneReport{ISOs: []images.Verdict{kept, goes}, Unseen: []string{"pve2 is offline"}},
			"stays    a.iso on storage local on pve1 (100 MiB)\n         VM 7 \"x\" on pve1 refers to it; recast.lock has it\n" +
				"goes     c.iso on storage local on pve1 (300 MiB)\nnote: pve2 is offline\n1 of 2 ISOs can go, 300 MiB\n",
		},
		"after": {
			pipeline.PruneReport{ISOs: []images.Verdict{gone}},
			"removed  b.iso on storage local on pve1 (200 MiB)\n1 of 1 ISOs removed, 200 MiB\n",
		},
		"cut off": {
			pipeline.PruneReport{ISOs: []images.Verdict{gone, goes}},
			"removed  b.iso on storage local on pve1 (200 MiB)\ngoes     c.iso on storage local on pve1 (300 MiB)\n" +
				"1 of 2 ISOs removed, 200 MiB; 1 that could be removed are still there\n",
		},
		"disks, before": {
			pipeline.PruneReport{Disks: []prune.KeptVerdict{staying, going, entry}, VMs: []prune.ParkingVerdict{park, odd}},
			"stays    old system disk of wk1 (10 GiB, Talos v1.13.8), replaced by run 20261114-0421-3f2a on 2026-11-14: fast:vm-9900-disk-0, scsi30 of VM 9900 on pve1\n" +
				"         the way back: recast undo wk1\n" +
				"goes     old system disk of wk1 (10 GiB, Talos v1.13.8), replaced by run 20261114-0421-3f2a on 2026-11-14: fast:vm-9900-disk-0, scsi29 of VM 9900 on pve1\n" +
				"         node wk1 has 1 newer\n" +
				"goes     old system disk of wk1 (of unknown size, Talos v1.13.8), replaced by run 20261114-0421-3f2a: no volume, scsi28 of VM 9900 on pve1\n" +
				"         VM 9900 has no scsi28 any more: only its entry in the record goes\n" +
				"goes     parking VM 9901 \"recast-parking-wk3\" on pve2 of node wk3\n         it owns nothing any more\n" +
				"stays    parking VM 9902 \"x\" on pve2\n         record in its description can't be read\n" +
				"2 of 3 old system disks can go, 10 GiB\n1 of 2 parking VMs can go\n",
		},
		"disks, after": {
			pipeline.PruneReport{Disks: []prune.KeptVerdict{staying, freed}, ISOs: []images.Verdict{kept}},
			"stays    old system disk of wk1 (10 GiB, Talos v1.13.8), replaced by run 20261114-0421-3f2a on 2026-11-14: fast:vm-9900-disk-0, scsi30 of VM 9900 on pve1\n" +
				"         the way back: recast undo wk1\n" +
				"removed  old system disk of wk1 (10 GiB, Talos v1.13.8), replaced by run 20261114-0421-3f2a on 2026-11-14: fast:vm-9900-disk-0, scsi29 of VM 9900 on pve1\n" +
				"stays    a.iso on storage local on pve1 (100 MiB)\n         VM 7 \"x\" on pve1 refers to it; recast.lock has it\n" +
				"1 of 2 old system disks removed, 10 GiB\n1 ISO, none to remove\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			writesPrune(t, tc.rep, tc.want)
		})
	}
}

func TestWritePruneCache(t *testing.T) {
	t.Parallel()
	file := func(name string, mib int64) images.CachedFile {
		return images.CachedFile{Name: name, SizeBytes: mib << 20, Changed: time.Date(2026, 11, 14, 4, 21, 0, 0, time.UTC)}
	}
	left := images.CacheVerdict{CachedFile: file(".verify-7", 5), Goes: "a killed build has left it"}
	left.Partial = true
	writesPrune(t, pipeline.PruneReport{Cache: []images.CacheVerdict{
		left, {CachedFile: file("a.iso", 100), Keep: []string{"recast.lock has it"}}, {CachedFile: file("b.iso", 200)}, {CachedFile: file("c.iso", 300), Removed: true},
	}}, "goes     .verify-7 in the cache (5 MiB)\n         a killed build has left it\n"+
		"stays    a.iso in the cache (100 MiB)\n         recast.lock has it\n"+
		"goes     b.iso in the cache (200 MiB)\nremoved  c.iso in the cache (300 MiB)\n"+
		"1 of 4 cached files removed, 300 MiB; 2 that could be removed are still there\n")
}

func TestWritePruneScratch(t *testing.T) {
	t.Parallel()
	left := func(id cluster.VMID, host string) planning.LeftScratch {
		return planning.LeftScratch{VMID: id, Name: fmt.Sprintf("recast-rehearse-%d", id), Host: host, Run: "20261114-0421-3f2a"}
	}
	writesPrune(t, pipeline.PruneReport{Scratch: []roll.ScratchVerdict{
		{LeftScratch: left(9099, "pve1")}, {LeftScratch: left(9098, "pve2"), Keep: []string{"it has snapshots: a"}},
	}}, "goes     scratch VM 9099 \"recast-rehearse-9099\" on pve1, which run 20261114-0421-3f2a made to try an image out\n         it holds no data\n"+
		"stays    scratch VM 9098 \"recast-rehearse-9098\" on pve2, which run 20261114-0421-3f2a made to try an image out\n         it has snapshots: a\n"+
		"1 of 2 scratch VMs can go\n")
}

// writesPrune checks a report as text, and that it is the same after a round trip
// through JSON.
func writesPrune(t *testing.T, rep pipeline.PruneReport, want string) {
	t.Helper()
	var text, data bytes.Buffer
	must.Do(t, WritePrune(&text, "text", rep))
	must.Equal(t, "text", want, text.String())
	must.Do(t, WritePrune(&data, "json", rep))
	var back pipeline.PruneReport
	must.Do(t, json.Unmarshal(data.Bytes(), &back))
	must.Equal(t, "JSON", rep, back)
}

func TestPruneQuestion(t *testing.T) {
	t.Parallel()
	stays := []string{"why"}
	gib := func(keep ...string) prune.KeptVerdict {
		return prune.KeptVerdict{SizeBytes: 10 << 30, Keep: keep}
	}
	for want, rep := range map[string]pipeline.PruneReport{
		"Free 1 old system disk (10 GiB) for good?": {Disks: []prune.KeptVerdict{gib(), gib(stays...)}, ISOs: []images.Verdict{{Keep: stays}}},
		"Free 2 old system disks (20 GiB) for good, delete 1 parking VM, delete 2 ISOs (3 MiB)?": {
			Disks: []prune.KeptVerdict{gib(), gib()}, VMs: []prune.ParkingVerdict{{}, {Keep: stays}},
			ISOs: []images.Verdict{{StoredISO: images.StoredISO{SizeBytes: 1 << 20}}, {StoredISO: images.StoredISO{SizeBytes: 2 << 20}}},
		},
		"Delete 1 mirrored installer for good?": {Mirror: []images.MirrorVerdict{{}, {Keep: stays}}},
		"Delete 2 cached files (3 MiB)?": {Cache: []images.CacheVerdict{
			{CachedFile: images.CachedFile{SizeBytes: 1 << 20}}, {CachedFile: images.CachedFile{SizeBytes: 2 << 20}}, {Keep: stays},
		}},
		"Delete 1 scratch VM?":  {Scratch: []roll.ScratchVerdict{{}, {Keep: stays}}},
		"Delete 2 parking VMs?": {VMs: []prune.ParkingVerdict{{}, {}}},
	} {
		must.Equal(t, "PruneQuestion", want, PruneQuestion(rep))
	}
}

func TestPlanShowsWhatItFrees(t *testing.T) {
	t.Parallel()
	plan := planning.Plan{Nodes: []planning.NodePlan{{
		Node: "wk1", Role: "worker", Phase: planning.Workers, Strategy: cluster.Reimage, VMID: 101, Host: "pve1",
		Frees: []parking.FreePlan{
			{Parking: 9900, Key: "scsi29", Run: "r1", Talos: "v1.13.8", Volid: "fast:vm-9900-disk-0", Size: "10G"},
			{Parking: 9900, Key: "scsi28", Run: "r0"},
		},
	}}}
	var text bytes.Buffer
	must.Do(t, WritePlan(&text, "text", plan))
	must.Contain(t, "the text", text.String(),
		"      frees: scsi29 of VM 9900: the system disk that run r1 replaced, Talos v1.13.8 (fast:vm-9900-disk-0, 10G)\n",
		"      frees: scsi28 of VM 9900: the entry of the system disk that run r0 replaced, Talos none\n",
	)
}

// TestPruneOfARemovedNode: the disks of a node that was removed may have data, and are not called system disks.
func TestPruneOfARemovedNode(t *testing.T) {
	t.Parallel()
	disks := []prune.KeptVerdict{
		{Node: "wk3", Run: "r1", Key: "scsi0", Parking: 9090, Host: "pve1", Talos: "v1.13.9", SizeBytes: 10 << 30, OfRemoved: true},
		{Node: "wk3", Run: "r1", Key: "scsi1", Parking: 9090, Host: "pve1", SizeBytes: 20 << 30, OfRemoved: true},
	}
	var text bytes.Buffer
	must.Do(t, WritePrune(&text, "text", pipeline.PruneReport{Disks: disks}))
	question := PruneQuestion(pipeline.PruneReport{Disks: disks})
	if question != "Free 2 removed node's disks (30 GiB) for good?" || !strings.HasSuffix(text.String(), "\n2 of 2 removed node's disks can go, 30 GiB\n") {
		t.Errorf("%s\n%s", question, &text)
	}
	for _, d := range disks {
		if text := keptDisk(d); strings.Contains(text, "system disk") {
			t.Error(text)
		}
	}
	disks[1].OfRemoved = false
	if question := PruneQuestion(pipeline.PruneReport{Disks: disks}); question != "Free 1 old system disk (20 GiB) for good, free 1 removed node's disk (10 GiB) for good?" {
		t.Error(question)
	}
}
