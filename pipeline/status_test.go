package pipeline

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/schematics"
)

// noExtensions is a registry that lists none.
type noExtensions struct{}

func (noExtensions) Official(context.Context, string) ([]schematics.OfficialExtension, error) {
	return nil, nil
}

// project is a working directory with a lock of one build, whose ID it returns.
func project(t *testing.T) (p Project, build string) {
	t.Helper()
	p = Project{Config: &config.Config{Dir: t.TempDir(), Cluster: "c1", Proxmox: config.Proxmox{VMIDs: config.VMIDRange{First: 9089, Last: 9099}}}}
	lock, _, err := schematics.Resolve(t.Context(), schematics.Request{
		Talos: "v1.13.9", Arch: "amd64", Platform: "nocloud",
		Files: map[string]schematics.File{"default": {Path: "default.yaml", Data: []byte("customization: {}\n")}},
	}, schematics.Sources{Catalog: noExtensions{}})
	if err == nil {
		err = schematics.WriteLock(p.LockFile(), lock)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p, lock.Schematics["default"].BuildID
}

// parking is a parking VM as Proxmox shows it.
func parkingVM(t *testing.T, rec parking.Record, config map[string]string) cluster.VM {
	t.Helper()
	description, err := rec.Description()
	if err != nil {
		t.Fatal(err)
	}
	vm := cluster.VM{ID: 9090, Name: "recast-parking-" + rec.Node, Host: "pve1", Config: map[string]string{"description": description}}
	maps.Copy(vm.Config, config)
	return vm
}

const claimText = `Claim of recast

recast-claim: {"version":1,"cluster":"c1","run":"r1","holder":{"host":"ci-7","boot":"x","pid":12,"start":"1"},"since":"2026-11-21T04:00:00Z","beat":7}`

func TestStatus(t *testing.T) {
	t.Parallel()
	p, build := project(t)
	rec := parking.Record{
		Cluster: "c1", Node: "wk1", Run: "r1", Build: build, VMID: 9031, UUID: "u-wk1", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes, Left: true, Config: cluster.ConfigSum(nil),
		Disks: []parking.ParkedDisk{{Key: "scsi1", ParkKey: "scsi1", Volid: "fast:vm-9031-disk-1"}},
		Kept: []parking.KeptDisk{
			{Key: "scsi29", Run: "r0", Talos: "v1.13.8", Build: "sha256-aa", Kubernetes: "v1.35.4"}, {Key: "scsi28", Run: "freed by hand"},
		},
	}
	px := datacentre{vms: []cluster.VM{
		{ID: 9089, Name: "recast-claim", Host: "pve1", Config: map[string]string{"description": claimText}},
		parkingVM(t, rec, map[string]string{"scsi1": "fast:vm-9090-disk-0", "scsi29": "fast:vm-9090-disk-1"}),
	}}
	nodes := []cluster.KubeNode{
		{Name: "wk1", Mark: &cluster.Mark{Run: "r1"}}, // its record says more
		{Name: "wk2", Ready: true, Mark: &cluster.Mark{Run: "r2", Strategy: cluster.InPlace, Build: "b2", Installed: true}},
		{Name: "wk3", Unschedulable: true}, // someone else's cordon
	}
	got, err := Status(t.Context(), p, StatusSources{
		Proxmox: px, Nodes: func(context.Context) ([]cluster.KubeNode, error) { return nodes, nil },
		Dead:          func(h claim.Holder) bool { return h.PID == 12 },
		MachineConfig: func(_ context.Context, node string) (cluster.Secret, bool, error) { return nil, node == "wk1", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := StatusResult{
		Cluster: "c1",
		Claim: &ClaimHeld{VMID: 9089, Dead: true, State: claim.State{
			VM: px.vms[0], Cluster: "c1", Run: "r1", Holder: claim.Holder{Host: "ci-7", Boot: "x", PID: 12, Start: "1"},
			Since: time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC), Beat: 7,
		}},
		Open: []Half{{
			Node: "wk1", Run: "r1", Strategy: cluster.Recreate, Build: rec.Build, Talos: "v1.13.9", LeftEtcd: true,
			VMID: 9031, VMState: VMDeleted, VM: "deleted", Parking: 9090, BuildLocked: true, MachineConfig: true,
			Disks: []DiskStatus{{Disk: "scsi1", Place: OnParking, Volid: "fast:vm-9090-disk-0", Where: "scsi1 of parking VM 9090"}},
			Next:  []Advice{{"recast roll", "finishes it"}, {"recast undo wk1", "cancels it: puts the old system disk back"}},
		}},
		Marked: []Marked{{
			Node: "wk2", Run: "r2", Strategy: cluster.InPlace, Build: "b2", Ready: true, Installed: true,
			Next: []Advice{{"recast roll", "finishes the upgrade"}},
		}},
		Kept: []Kept{{
			Node: "wk1", Run: "r0", Volid: "fast:vm-9090-disk-1", Parking: 9090, Host: "pve1", Key: "scsi29", Talos: "v1.13.8", Lock: "sha256-aa", Kubernetes: "v1.35.4",
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// TestStatusWithoutTheRest: only Proxmox answers, and much of its data is damaged.
func TestStatusWithoutTheRest(t *testing.T) {
	t.Parallel()
	p, _ := project(t)
	if err := os.Remove(p.LockFile()); err != nil {
		t.Fatal(err)
	}
	rec := parking.Record{Cluster: "c1", Node: "wk1", Run: "r1", Build: "b9", VMID: 9031, UUID: "u-wk1", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}
	px := datacentre{vms: []cluster.VM{
		{ID: 9089, Name: "someone's", Host: "pve1"},
		parkingVM(t, rec, nil),
		{ID: 9091, Name: "edited", Host: "pve1", Config: map[string]string{"description": "recast-record: {"}},
	}}
	got, err := Status(t.Context(), p, StatusSources{
		Proxmox: px, Nodes: func(context.Context) ([]cluster.KubeNode, error) { return nil, errAway },
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Kubernetes != "connection refused" || got.Claim != nil || len(got.Open) != 1 || got.Open[0].BuildLocked || got.Open[0].MachineConfig {
		t.Errorf("%+v", got)
	}
	for i, want := range []string{"9089", `VM 9091 "edited" on pve1: record in its description`, "recast.lock"} {
		if len(got.Problems) != 3 || !strings.Contains(got.Problems[i], want) {
			t.Errorf("problems %q: number %d is not about %s", got.Problems, i+1, want)
		}
	}
}

func TestStatusNeedsProxmox(t *testing.T) {
	t.Parallel()
	p, _ := project(t)
	if _, err := Status(t.Context(), p, StatusSources{Proxmox: datacentre{err: errAway}}); !errors.Is(err, errAway) {
		t.Errorf("err = %v", err)
	}
}

func TestStatusDoesNotWaitLongForKubernetes(t *testing.T) {
	t.Parallel()
	p, _ := project(t)
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		got, err := Status(t.Context(), p, StatusSources{Proxmox: datacentre{}, Nodes: func(ctx context.Context) ([]cluster.KubeNode, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		if took := time.Since(begun); err != nil || took != askKubernetes || got.Kubernetes == "" {
			t.Errorf("%+v after %s: %v", got, took, err)
		}
	})
}

func TestStatusKnowsTheLastRunOfThisMachine(t *testing.T) {
	t.Parallel()
	p, _ := project(t)
	j, err := journal.Open(filepath.Join(p.State(), "runs"), journal.Options{Run: "20261121-0421-3f2a"})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Finish("failed: no space"), j.Close()); err != nil {
		t.Fatal(err)
	}
	got, err := Status(t.Context(), p, StatusSources{Proxmox: datacentre{}})
	if err != nil || got.LastRun == nil || got.LastRun.ID != "20261121-0421-3f2a" || got.LastRun.Outcome != "failed: no space" {
		t.Errorf("%+v, %v", got.LastRun, err)
	}
}
