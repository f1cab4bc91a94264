package pve

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"

	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

func TestLabTies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, w := newLab(t), cluster.VMID(9011)
		none, err := l.Ties(t.Context(), l.read(t, w))
		must(t, err)
		same(t, "ties of an ordinary VM", cluster.Ties{}, none)
		now := time.Now()
		l.world.SetFirewall(9011, world.Firewall{Options: map[string]string{"enable": "1"}, Rules: []world.FirewallRule{{"type": "in", "action": "ACCEPT", "enable": "1"}}})
		l.world.AddReplication(world.ReplicationJob{ID: "9011-0", Guest: 9011, Target: "pve2", Schedule: "*/15", NextSync: now.Add(5 * time.Minute)})
		l.world.AddReplication(world.ReplicationJob{ID: "9011-1", Guest: 9011, Target: "pve3", Running: true})
		l.world.AddBackupJob(world.BackupJob{ID: "nightly", All: true, NextRun: now.Add(10 * time.Minute)})
		l.world.AddBackupJob(world.BackupJob{ID: "monthly", VMIDs: []int{9011}, NextRun: now.AddDate(0, 1, 0)})
		l.world.AddBackupJob(world.BackupJob{ID: "others", All: true, Exclude: []int{9011}, NextRun: now})
		l.world.AddBackupJob(world.BackupJob{ID: "off", All: true, Disabled: true, NextRun: now})
		l.world.AddHA(world.HAResource{SID: "vm:9011", State: "stopped", Group: "rack1", Options: map[string]string{"max_restart": "3", "comment": "two words"}})
		must(t, l.world.AddSnapshot(9011, world.Snapshot{Name: "before"}))
		l.world.StartBackup("root@pam", "pve1", time.Hour, 9011)
		time.Sleep(time.Minute)
		got, err := l.Ties(t.Context(), l.read(t, w))
		must(t, err)
		minute := func(ahead time.Duration) string { return now.Add(ahead).UTC().Format("2006-01-02 15:04 MST") }
		want := cluster.Ties{
			Firewall: cluster.FirewallConfig{
				Options: cluster.FirewallEntry{"enable": "1"}, Rules: []cluster.FirewallEntry{{"type": "in", "action": "ACCEPT", "enable": "1"}},
			},
			Jobs:      []cluster.ReplicationJob{{ID: "9011-0", Target: "pve2", Schedule: "*/15"}, {ID: "9011-1", Target: "pve3"}},
			Snapshots: []string{"before"},
			Busy: []string{
				"locked by a backup", "running task vzdump 9011 on pve1", "backup job nightly due at " + minute(10*time.Minute),
				"replication job 9011-1 runs",
			},
			HA: &cluster.HAResource{VMID: 9011, State: "stopped", Settings: map[string]string{"group": "rack1", "max_restart": "3", "comment": "two words"}},
		}
		same(t, "ties", want, got)
	})
}

// TestLabHA removes a running VM from HA, deletes it, and adds its successor.
func TestLabHA(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, ctx := newLab(t), t.Context()
		must(t, l.Start(ctx, l.read(t, 9011)))
		l.world.AddHA(world.HAResource{SID: "vm:9011", State: "started", Options: map[string]string{"max_restart": "2"}})
		l.world.AddHARule(world.HARule{ID: "apart", Type: "resource-affinity", Resources: []string{"vm:9011"}})
		vm := l.read(t, 9011)
		ties, err := l.Ties(ctx, vm)
		must(t, err)
		if !vm.HA || ties.HA == nil {
			t.Fatalf("managed: %v, %v", vm.HA, ties.HA)
		}
		must(t, l.RemoveHA(ctx, 9011))
		must(t, l.RemoveHA(ctx, 9011))
		if vm := l.read(t, 9011); vm.HA || !vm.Running {
			t.Fatalf("taken out: HA %v, running %v", vm.HA, vm.Running)
		}
		must(t, l.Shutdown(ctx, l.read(t, 9011), time.Minute))
		time.Sleep(5 * time.Minute)
		if l.read(t, 9011).Running {
			t.Fatal("started again by an unknown party")
		}
		if rules := l.world.HARules(); len(rules) != 1 || len(rules[0].Resources) != 1 {
			t.Errorf("rules are now %v", rules)
		}
		must(t, l.DeleteVM(ctx, l.read(t, 9011)))
		must(t, l.CreateVM(ctx, "pve1", 9011, map[string]string{"name": "wk1", "memory": "2048", "scsi0": "fast:10"}))
		must(t, l.AddHA(ctx, *ties.HA))
		must(t, l.AddHA(ctx, *ties.HA))
		after, err := l.Ties(ctx, l.read(t, 9011))
		must(t, err)
		same(t, "HA resource", ties.HA, after.HA)
	})
}

// TestDueByHostClock: due times follow the clock of the host that computed them,
// which may be a day ahead of ours, or behind.
func TestDueByHostClock(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"a day ahead": 24 * time.Hour, "a day behind": -24 * time.Hour} {
		runInBubble(t, name, func(t *testing.T) {
			l := newLab(t)
			l.world.SetClock("pve1", off)
			soon, later := time.Now().Add(10*time.Minute), time.Now().Add(cluster.BusyWithin+10*time.Minute)
			l.world.AddBackupJob(world.BackupJob{ID: "soon", All: true, NextRun: soon})
			l.world.AddBackupJob(world.BackupJob{ID: "later", All: true, NextRun: later})
			got, err := l.Ties(t.Context(), l.read(t, 9011))
			must(t, err)
			theirs := soon.Add(off).UTC().Format("2006-01-02 15:04 MST")
			want := []string{"backup job soon due at " + theirs}
			same(t, "busy", want, got.Busy)
		})
	}
}

// TestLostAnswerAndAClockThatJumps: a worker is found although its host's clock
// jumped by a day while the answer was lost: its failure is known, and nothing is
// sent twice.
func TestLostAnswerAndAClockThatJumps(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"a day ahead": 24 * time.Hour, "a day back": -24 * time.Hour} {
		runInBubble(t, name, func(t *testing.T) {
			l := newLab(t)
			must(t, l.CreateVM(t.Context(), "pve1", 9090, nil))
			vm := l.read(t, 9011)
			before := l.recorder.Mutations()
			l.world.FailNext("qmmove", "command '/sbin/lvs' failed: exit code 5")
			l.recorder.Hooks(nil, func(call record.Call) {
				if call.Mutation {
					l.world.SetClock("pve1", off)
					panic(http.ErrAbortHandler)
				}
			})
			if err := l.MoveDisk(t.Context(), vm, "scsi1", 9090, "scsi1"); err == nil || !strings.Contains(err.Error(), "exit code 5") {
				t.Errorf("error is %v", err)
			}
			same(t, "sent", 1, l.recorder.Mutations()-before)
		})
	}
}
