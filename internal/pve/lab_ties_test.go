package pve

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/firewall"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// mayHA lets the token change HA resources, which an ordinary one may not.
func (l lab) mayHA() {
	l.world.AddRole("HA", "Sys.Console")
	for _, who := range []string{"recast@pve", "recast@pve!roll"} {
		l.world.Grant(world.ACL{Path: "/", Who: who, Role: "HA", Propagate: true})
	}
}

func TestLabTies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, w := newLab(t), cluster.VMID(9011)
		none, err := l.Ties(t.Context(), l.read(t, w))
		must(t, err)
		if diff := cmp.Diff(cluster.Ties{}, none); diff != "" {
			t.Errorf("ties of an ordinary VM (-want +got):\n%s", diff)
		}
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
			Firewall: firewall.Config{
				Options: firewall.Entry{"enable": "1"}, Rules: []firewall.Entry{{"type": "in", "action": "ACCEPT", "enable": "1"}},
			},
			Jobs:      []cluster.ReplicationJob{{ID: "9011-0", Target: "pve2", Schedule: "*/15"}, {ID: "9011-1", Target: "pve3"}},
			Snapshots: []string{"before"},
			Busy: []string{
				"locked by a backup", "running task vzdump 9011 on pve1", "backup job nightly due at " + minute(10*time.Minute),
				"replication job 9011-1 runs",
			},
			HA: &cluster.HAResource{VMID: 9011, State: "stopped", Settings: map[string]string{"group": "rack1", "max_restart": "3", "comment": "two words"}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("ties (-want +got):\n%s", diff)
		}
		l.world.Grant(world.ACL{Path: "/vms/9011", Who: "recast@pve!roll", Role: "NoAccess", Propagate: true})
		_, err = l.Ties(t.Context(), cluster.VM{ID: 9011, Host: "pve1"})
		if fault.KindOf(err) != fault.Refused || !strings.Contains(fmt.Sprint(err), "Permission check failed (/vms/9011, VM.Audit)") {
			t.Errorf("without a right: %v", err)
		}
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
		if err := l.RemoveHA(ctx, 9011); fault.KindOf(err) != fault.Refused || !strings.Contains(strings.Join(fault.Hints(err), ""), "needs Sys.Console on /") {
			t.Errorf("without the right: %v, hints %q", err, fault.Hints(err))
		}
		l.mayHA()
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
		if diff := cmp.Diff(ties.HA, after.HA); diff != "" {
			t.Errorf("HA resource (-was +is):\n%s", diff)
		}
	})
}

// TestLabPowerByHA powers a VM that HA manages on and off; its tasks end before anything has happened.
func TestLabPowerByHA(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, ctx := newLab(t), t.Context()
		l.world.AddHA(world.HAResource{SID: "vm:9011", State: "stopped"})
		for _, step := range []struct {
			name    string
			do      func(cluster.VM) error
			running bool
		}{
			{"start", func(vm cluster.VM) error { return l.Start(ctx, vm) }, true},
			{"shutdown", func(vm cluster.VM) error { return l.Shutdown(ctx, vm, time.Minute) }, false},
			{"start", func(vm cluster.VM) error { return l.Start(ctx, vm) }, true},
			{"stop", func(vm cluster.VM) error { return l.Stop(ctx, vm) }, false},
		} {
			began := time.Now()
			must(t, step.do(l.read(t, 9011)))
			if vm := l.read(t, 9011); vm.Running != step.running || !vm.HA {
				t.Fatalf("after %s: running %v, HA %v", step.name, vm.Running, vm.HA)
			}
			if time.Since(began) < 5*time.Second {
				t.Errorf("%s was not managed by HA", step.name)
			}
		}
	})
}

func TestLabFreeDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, ctx := newLab(t), t.Context()
		owned := func() []string {
			volids, err := l.OwnedVolumes(ctx, "pve1", "fast", 9011)
			must(t, err)
			return volids
		}
		must(t, l.SetConfig(ctx, l.read(t, 9011), map[string]string{"scsi2": "fast:1"}, nil))
		must(t, l.SetConfig(ctx, l.read(t, 9011), map[string]string{"scsi3": "fast:1"}, nil))
		must(t, l.SetConfig(ctx, l.read(t, 9011), nil, []string{"scsi3"}))
		if diff := cmp.Diff([]string{
			"fast:9011/vm-9011-disk-0.raw", "fast:9011/vm-9011-disk-1.raw", "fast:9011/vm-9011-disk-2.raw", "fast:9011/vm-9011-disk-3.raw",
		}, owned()); diff != "" {
			t.Fatalf("volumes (-want +got):\n%s", diff)
		}
		before := l.read(t, 9011)
		must(t, l.FreeDisk(ctx, before, "unused0"))
		if err := l.FreeDisk(ctx, before, "scsi2"); !errors.Is(err, cluster.ErrChanged) {
			t.Errorf("with an old digest: %v", err)
		}
		must(t, l.Start(ctx, l.read(t, 9011)))
		must(t, l.FreeDisk(ctx, l.read(t, 9011), "scsi2"))
		if diff := cmp.Diff([]string{"fast:9011/vm-9011-disk-0.raw", "fast:9011/vm-9011-disk-1.raw"}, owned()); diff != "" {
			t.Errorf("volumes (-want +got):\n%s", diff)
		}
		if vm := l.read(t, 9011); vm.Config["scsi2"] != "" || vm.Config["unused0"] != "" || vm.Config["scsi1"] == "" {
			t.Errorf("configuration %v", vm.Config)
		}
	})
}

func TestLabFreeDiskRefused(t *testing.T) {
	t.Parallel()
	testRefusals(t, map[string]refusal{
		"foreign": {
			func(t *testing.T, l lab) error {
				must(t, l.CreateVM(t.Context(), "pve1", 9090, map[string]string{"scsi0": "fast:1"}))
				must(t, l.SetConfig(t.Context(), l.read(t, 9011), map[string]string{"scsi2": "fast:9090/vm-9090-disk-0.raw"}, nil))
				return l.FreeDisk(t.Context(), l.read(t, 9011), "scsi2")
			},
			nil, "fast:9090/vm-9090-disk-0.raw is not a volume of this VM, so it is not freed",
		},
		"in a snapshot": {
			func(t *testing.T, l lab) error {
				must(t, l.world.AddSnapshot(9011, world.Snapshot{Name: "before"}))
				return l.FreeDisk(t.Context(), l.read(t, 9011), "scsi1")
			},
			nil, "fast:9011/vm-9011-disk-1.raw",
		},
		"protected": {
			func(t *testing.T, l lab) error {
				must(t, l.SetConfig(t.Context(), l.read(t, 9011), map[string]string{"protection": "1"}, nil))
				return l.FreeDisk(t.Context(), l.read(t, 9011), "scsi1")
			},
			nil, "protection mode enabled",
		},
	})
}

func TestLabStorages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		got, err := l.Storages(t.Context())
		must(t, err)
		want := []cluster.Storage{{Name: "fast", Type: "dir"}, {Name: "isos", Type: "cephfs", Shared: true}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("storages (-want +got):\n%s", diff)
		}
	})
}

// TestDueByHostClock: due times follow the clock of the host that computed them,
// which may be a day ahead of ours, or behind.
func TestDueByHostClock(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"a day ahead": 24 * time.Hour, "a day behind": -24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				l.world.SetClock("pve1", off)
				soon, later := time.Now().Add(10*time.Minute), time.Now().Add(cluster.BusyWithin+10*time.Minute)
				l.world.AddBackupJob(world.BackupJob{ID: "soon", All: true, NextRun: soon})
				l.world.AddBackupJob(world.BackupJob{ID: "later", All: true, NextRun: later})
				got, err := l.Ties(t.Context(), l.read(t, 9011))
				must(t, err)
				theirs := soon.Add(off).UTC().Format("2006-01-02 15:04 MST")
				want := []string{"backup job soon due at " + theirs}
				if diff := cmp.Diff(want, got.Busy); diff != "" {
					t.Errorf("busy (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestLostAnswerAndAClockThatJumps: a worker is found although its host's clock
// jumped by a day while the answer was lost: its failure is known, and nothing is
// sent twice.
func TestLostAnswerAndAClockThatJumps(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"a day ahead": 24 * time.Hour, "a day back": -24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
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
				if got := l.recorder.Mutations() - before; got != 1 {
					t.Errorf("sent %d times", got)
				}
			})
		})
	}
}
