package ui

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/pipeline"
)

func TestWriteBackup(t *testing.T) {
	t.Parallel()
	snapshot := etcd.Snapshot{SizeBytes: 61472, SHA256: "6bac", Revision: 80, Members: []string{"cp1", "cp2"}}
	res := pipeline.BackupResult{
		Backup:  etcd.Backup{File: "etcd/a.db", Member: "cp2", Address: netip.MustParseAddr("10.0.0.2"), Snapshot: snapshot, Warnings: []string{"cp1 knows no leader"}},
		Removed: []string{"old.db", "older.db"},
	}
	var b strings.Builder
	if err := WriteBackup(&b, "text", res); err != nil {
		t.Fatal(err)
	}
	const want = `etcd/a.db
  size      61472 bytes
  revision  80
  sha256    6bac
  members   cp1, cp2
  from      cp2 (10.0.0.2)
  removed   old.db, older.db
  warning   cp1 knows no leader
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWriteRestore(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	rep := pipeline.RestoreReport{
		Target: etcd.Target{Node: "cp1", Addr: netip.MustParseAddr("10.0.0.1")}, VM: `VM 101 "cp1" on pve1`,
		File: "a.db", Snapshot: etcd.Snapshot{SizeBytes: 1, SHA256: "6b", Revision: 2}, Resumes: true, Started: began, Ended: began.Add(90 * time.Second),
	}
	rep.Afterwards = []string{"restart operators"}
	resumed := rep
	resumed.Bootstrapped, resumed.Warnings = began, []string{"is it of this cluster?"}
	cases := map[string]struct {
		rep                pipeline.RestoreReport
		run, outcome, want string
	}{
		"to be confirmed": {rep, "", "", "restore cp1, VM 101 \"cp1\" on pve1 at 10.0.0.1, from a.db\n  size      1 bytes\n  revision  2\n  sha256    6b\n  members   none\n" +
			"  continues an earlier restore\n"},
		"to be waited for": {resumed, "", "", "restore cp1, VM 101 \"cp1\" on pve1 at 10.0.0.1, from a.db\n  size      1 bytes\n  revision  2\n  sha256    6b\n  members   none\n" +
			"  continues a restore whose data etcd has since 2026-11-21 04:00:00: it only waits for the rest\n  warning   is it of this cluster?\n"},
		"waited for": {resumed, "r1", "done", "run r1: cp1 runs etcd from a.db, which was restored at 2026-11-21 04:00:00; nothing was done now\nafterwards: restart operators\n" +
			"next: recast drift; to restore it again, recast backup saves what it runs now, then wipe etcd: talosctl reset --system-labels-to-wipe EPHEMERAL --reboot --graceful=false (ETCD where the machine has that volume)\n"},
		"done":   {rep, "r1", "done", "run r1: cp1 runs etcd from a.db, after 1m30s\nafterwards: restart operators\nnext: recast drift\n"},
		"failed": {rep, "r1", "failed: etcd on cp1: gave up", "run r1: failed; run the same command again to continue\n"},
	}
	for name, c := range cases {
		c.rep.Run, c.rep.Outcome = c.run, c.outcome
		var b strings.Builder
		if err := WriteRestore(&b, "text", c.rep); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, b.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
