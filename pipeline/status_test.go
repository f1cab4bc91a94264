package pipeline

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/sim/must"
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
	must.Do(t, err)
	return p, lock.Schematics["default"].BuildID
}

// parking is a parking VM as Proxmox shows it.
func parkingVM(t *testing.T, rec parking.Record, config map[string]string) cluster.VM {
	t.Helper()
	description := must.Get(rec.Description())(t)
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
	got := must.Get(Status(t.Context(), p, StatusSources{
		Proxmox: px, Nodes: func(context.Context) ([]cluster.KubeNode, error) { return nodes, nil },
		Dead:          func(h claim.Holder) bool { return h.PID == 12 },
		MachineConfig: func(_ context.Context, node string) (cluster.Secret, bool, error) { return nil, node == "wk1", nil },
	}))(t)
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
	must.Equal(t, "status", want, got)
}

// TestStatusWithoutTheRest: only Proxmox answers, and much of its data is damaged.
func TestStatusWithoutTheRest(t *testing.T) {
	t.Parallel()
	p, _ := project(t)
	must.Do(t, os.Remove(p.LockFile()))
	rec := parking.Record{Cluster: "c1", Node: "wk1", Run: "r1", Build: "b9", VMID: 9031, UUID: "u-wk1", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}
	px := datacentre{vms: []cluster.VM{
		{ID: 9089, Name: "someone's", Host: "pve1"},
		parkingVM(t, rec, nil),
		{ID: 9091, Name: "edited", Host: "pve1", Config: map[string]string{"description": "recast-record: {"}},
	}}
	got := must.Get(Status(t.Context(), p, StatusSources{
		Proxmox: px, Nodes: func(context.Context) ([]cluster.KubeNode, error) { return nil, errAway },
	}))(t)
	if got.Kubernetes != "connection refused" || got.Claim != nil || len(got.Open) != 1 || got.Open[0].BuildLocked || got.Open[0].MachineConfig {
		t.Errorf("%+v", got)
	}
	for i, want := range []string{"9089", `VM 9091 "edited" on pve1: record in its description`, "recast.lock"} {
		must.Hold(t, len(got.Problems) == 3 && strings.Contains(got.Problems[i], want),
			"problems %q: number %d is not about %s", got.Problems, i+1, want)
	}
}

func TestStatusNeedsProxmox(t *testing.T) {
	t.Parallel()
	p, _ := project(t)
	must.FailIs(t, must.Err(Status(t.Context(), p, StatusSources{Proxmox: datacentre{err: errAway}})), errAway)
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
		took := time.Since(begun)
		must.Hold(t, err == nil && took == askKubernetes && got.Kubernetes != "", "%+v after %s: %v", got, took, err)
	})
}

func TestStatusKnowsTheLastRunOfThisMachine(t *testing.T) {
	t.Parallel()
	p, _ := project(t)
	j := must.Get(journal.Open(filepath.Join(p.State(), "runs"), journal.Options{Run: "20261121-0421-3f2a"}))(t)
	must.Do(t, errors.Join(j.Finish("failed: no space"), j.Close()))
	got, err := Status(t.Context(), p, StatusSources{Proxmox: datacentre{}})
	if err != nil || got.LastRun == nil || got.LastRun.ID != "20261121-0421-3f2a" || got.LastRun.Outcome != "failed: no space" {
		t.Errorf("%+v, %v", got.LastRun, err)
	}
}

// datacentre holds VMs and the volumes that exist.
type datacentre struct {
	cluster.Inventory
	vms     []cluster.VM
	volumes []string
	err     error
}

func (d datacentre) VMs(context.Context) ([]cluster.VM, error) { return d.vms, d.err }

// VM reports a VM as running that the list still shows as stopped.
func (d datacentre) VM(_ context.Context, id cluster.VMID) (cluster.VM, error) {
	vm, _ := find(d.vms, id)
	vm.Running = true
	return vm, nil
}

func (d datacentre) HasVolume(_ context.Context, _, volid string) (bool, error) {
	return slices.Contains(d.volumes, volid), nil
}

const made = "recast: run=r1 build=b1"

// wk1 returns a worker's VM with these keys changed.
func wk1(keys map[string]string) *cluster.VM {
	config := map[string]string{"smbios1": "uuid=u-wk1"}
	maps.Copy(config, keys)
	return &cluster.VM{ID: 9031, Name: "wk1", Host: "pve1", Config: config}
}

const (
	oldSystem  = "fast:vm-9031-disk-0,serial=sys,size=10G"
	newSystem  = "fast:vm-9031-disk-5,serial=recast-0123,size=10G"
	data       = "fast:vm-9031-disk-1,serial=data-wk1"
	parkedSys  = "fast:vm-9090-disk-0,serial=sys,size=10G,backup=0"
	parkedData = "fast:vm-9090-disk-1,serial=data-wk1,backup=0"
	keptSys    = "fast:vm-9090-disk-7,serial=recast-9999,backup=0"
)

var (
	system = parking.ParkedDisk{Key: "scsi0", ParkKey: "scsi30", Volid: "fast:vm-9031-disk-0", Options: "serial=sys,size=10G", System: true}
	disk   = parking.ParkedDisk{Key: "scsi1", ParkKey: "scsi1", Volid: "fast:vm-9031-disk-1", Options: "serial=data-wk1"}
	held   = parking.ParkedDisk{Key: "scsi2", Volid: "fast:vm-9201-disk-0", Holder: 9201}
	park   = &parking.Intent{From: 9031, Key: "scsi1", Volid: "fast:vm-9031-disk-1", To: 9090, ToKey: "scsi1"}
)

// Where disks are told to be.
const (
	systemOnVM     = "vm fast:vm-9031-disk-0 scsi0 of VM 9031"
	dataOnVM       = "vm fast:vm-9031-disk-1 scsi1 of VM 9031"
	systemParked   = "parking fast:vm-9090-disk-0 scsi30 of parking VM 9090"
	dataParked     = "parking fast:vm-9090-disk-1 scsi1 of parking VM 9090"
	dataOnItsWay   = "unnamed fast:vm-9031-disk-1 without a name, on the way from scsi1 of VM 9031 to scsi1 of VM 9090; recast roll finds it"
	nowhere        = " neither on VM 9031 nor on parking VM 9090: someone moved it"
	keptSystemOnVM = "vm fast:vm-9031-disk-6 scsi0 of VM 9031"
)

type keys = map[string]string

// halfRow is an open record, with the state of its VMs in Proxmox.
type halfRow struct {
	vm      *cluster.VM
	parking keys
	rec     parking.Record
	volumes []string
	state   VMState
	where   []string
}

func halves() map[string]halfRow {
	of := func(s cluster.Strategy, disks ...parking.ParkedDisk) parking.Record {
		return parking.Record{Strategy: s, Disks: disks}
	}
	handing := func(disks ...parking.ParkedDisk) parking.Record {
		return parking.Record{Strategy: cluster.Recreate, Disks: disks, Intent: park}
	}
	back := func(talos string) parking.Record {
		rec := of(cluster.Rollback, system)
		rec.Restore = &parking.KeptDisk{Key: "scsi29", Slot: "scsi0", Options: "serial=recast-9999", Talos: talos}
		return rec
	}
	putBack := of(cluster.Reimage, system)
	putBack.PutBack = true
	return map[string]halfRow{
		"nothing parked yet": {
			vm: wk1(keys{"scsi0": oldSystem, "scsi1": data}), rec: of(cluster.Recreate, system, disk), state: VMOld, where: []string{systemOnVM, dataOnVM},
		},
		"deleted": {
			parking: keys{"scsi30": parkedSys, "scsi1": parkedData}, rec: of(cluster.Recreate, system, disk),
			state: VMDeleted, where: []string{systemParked, dataParked},
		},
		"made again, disks not back": {
			vm: wk1(keys{"scsi0": newSystem, "description": made}), parking: keys{"scsi30": parkedSys, "scsi1": parkedData},
			rec: of(cluster.Recreate, system, disk), state: VMNew, where: []string{systemParked, dataParked},
		},
		"a new system disk is not the old one": {
			vm: wk1(keys{"scsi0": newSystem, "description": made}), rec: of(cluster.Recreate, system),
			state: VMNew, where: []string{"unknown fast:vm-9031-disk-0" + nowhere},
		},
		"a stranger under the number": {
			vm:      &cluster.VM{ID: 9031, Name: "db", Host: "pve2", Config: keys{"smbios1": "uuid=u-db", "scsi1": data}},
			parking: keys{"scsi30": parkedSys}, rec: of(cluster.Recreate, system, disk),
			state: VMStranger, where: []string{systemParked, "unknown fast:vm-9031-disk-1" + nowhere},
		},
		"a hand-over cut off after the source forgot it": {
			vm: wk1(nil), parking: keys{"scsi30": parkedSys}, rec: handing(system, disk), state: VMOld, where: []string{systemParked, dataOnItsWay},
		},
		"a hand-over cut off while the source still names it": {
			vm: wk1(keys{"scsi1": data}), rec: handing(disk), state: VMOld, where: []string{dataOnItsWay},
		},
		"a hand-over that had not begun": {
			vm: wk1(keys{"scsi1": data}), rec: handing(disk), volumes: []string{"fast:vm-9031-disk-1"}, state: VMOld, where: []string{dataOnVM},
		},
		"a holder's disk attached": {
			vm: wk1(keys{"scsi2": "fast:vm-9201-disk-0"}), rec: of(cluster.Recreate, held),
			state: VMOld, where: []string{"vm fast:vm-9201-disk-0 scsi2 of VM 9031, owned by VM 9201"},
		},
		"a holder's disk detached": {
			rec: of(cluster.Recreate, held), state: VMDeleted,
			where: []string{"holder fast:vm-9201-disk-0 with VM 9201, which owns it; detached from VM 9031"},
		},
		"reimage, not begun": {vm: wk1(keys{"scsi0": oldSystem}), rec: of(cluster.Reimage, system), state: VMOld, where: []string{systemOnVM}},
		"reimage, parked": {
			vm: wk1(nil), parking: keys{"scsi30": parkedSys}, rec: of(cluster.Reimage, system), state: VMSystemParked, where: []string{systemParked},
		},
		"reimage, blank": {
			vm: wk1(keys{"scsi0": newSystem, "description": made}), parking: keys{"scsi30": parkedSys}, rec: of(cluster.Reimage, system),
			state: VMBlankSystem, where: []string{systemParked},
		},
		"reimage, being put back": {
			vm: wk1(keys{"scsi0": oldSystem, "description": made}), rec: putBack, state: VMOld, where: []string{systemOnVM},
		},
		"rollback, kept disk back": {
			vm: wk1(keys{"scsi0": "fast:vm-9031-disk-6,serial=recast-9999"}), parking: keys{"scsi30": parkedSys}, rec: back("v1.13.8"),
			state: VMRestored, where: []string{systemParked, keptSystemOnVM},
		},
		"rollback, kept disk still parked": {
			vm: wk1(keys{"scsi0": oldSystem}), parking: keys{"scsi29": keptSys}, rec: back(""),
			state: VMOld, where: []string{systemOnVM, "parking fast:vm-9090-disk-7 scsi29 of parking VM 9090"},
		},
	}
}

func TestHalf(t *testing.T) {
	t.Parallel()
	must.Each(t, halves(), func(t *testing.T, tc halfRow) {
		rec := tc.rec
		rec.Node, rec.Run, rec.VMID, rec.UUID, rec.Open = "wk1", "r1", 9031, "u-wk1", true
		px := datacentre{volumes: tc.volumes}
		if tc.vm != nil {
			px.vms = append(px.vms, *tc.vm)
		}
		h := must.Get(half(t.Context(), px, parking.Parking{VM: cluster.VM{ID: 9090, Host: "pve1", Config: tc.parking}, Record: rec}, px.vms, nil))(t)
		where := cluster.Each(h.Disks, func(d DiskStatus) string { return string(d.Place) + " " + d.Volid + " " + d.Where })
		must.Hold(t, h.VMState == tc.state && h.Running == (tc.vm != nil && tc.state != VMStranger),
			"VM %s (%s), running %t, want %s", h.VMState, h.VM, h.Running, tc.state)
		must.Equal(t, "disks", tc.where, where)
	})
}

func TestAdvise(t *testing.T) {
	t.Parallel()
	type half = Half
	type row struct {
		h    half
		want []string
	}
	must.Each(t, map[string]row{
		"all at hand": {half{BuildLocked: true, MachineConfig: true}, []string{"recast roll: finishes it", "recast undo wk1: cancels it: puts the old system disk back"}},
		"no machine configuration": {half{BuildLocked: true}, []string{
			"recast roll: finishes it if the node answers; otherwise it puts the old system disk back first, and plans the node again: " +
				"its machine configuration is neither in a journal here nor in talos.machineConfigs",
			"recast undo wk1: cancels it: puts the old system disk back",
		}},
		"another lock": {half{MachineConfig: true}, []string{
			"recast roll: puts the old system disk back first, since no lock here has that build, and plans the node again",
			"recast undo wk1: cancels it: puts the old system disk back",
		}},
		"given up":        {half{GivenUp: true}, []string{"recast roll: continues to put the old system disk back"}},
		"create":          {half{Strategy: cluster.Create, BuildLocked: true, MachineConfig: true}, []string{"recast roll: finishes it", "recast undo wk1: says how to cancel it"}},
		"create, no lock": {half{Strategy: cluster.Create, MachineConfig: true}, []string{"recast plan: says what is missing to finish it", "recast undo wk1: says how to cancel it"}},
		"reshape":         {half{Strategy: cluster.Reshape}, []string{"recast roll: finishes it", "recast undo wk1: cancels it: gives the old settings back"}},
		"remove":          {half{Strategy: cluster.Remove}, []string{"recast roll: finishes it", "recast undo wk1: cancels it: gives the node its disks and its VM back"}},
		"rollback":        {half{Strategy: cluster.Rollback}, []string{"recast roll: finishes the rollback"}},
		"stranger":        {half{VMState: VMStranger}, []string{"qm config 9031: shows which VM has the number; recast does not touch it, and continues when the number is free"}},
	}, func(t *testing.T, tc row) {
		tc.h.Node, tc.h.VMID = "wk1", 9031
		got := cluster.Each(tc.h.advise(), func(a Advice) string { return a.Command + ": " + a.Does })
		must.Equal(t, "advice", tc.want, got)
	})
}

var errAway = errors.New("connection refused")

// A VM that can't be read does not count as deleted, nor its disks as lost.
func TestHalfWhoseVMIsElsewhere(t *testing.T) {
	t.Parallel()
	away := &cluster.HostsAway{
		Hosts: []cluster.AwayHost{{Name: "pve2", Why: "is offline"}},
		VMs:   []cluster.VM{{ID: 9031, Host: "pve2"}},
	}
	moved := cluster.VM{ID: 9031, Host: "pve2", Config: map[string]string{"smbios1": "uuid=u-wk1", "scsi1": "fast:vm-9031-disk-1"}}
	type example struct {
		vms   []cluster.VM
		away  *cluster.HostsAway
		state VMState
		vm    string
		where string
		next  string
	}
	cases := map[string]example{
		"on a host that is down": {
			away: away, state: VMAway, vm: "on pve2, which does not answer",
			where: "not on parking VM 9090; VM 9031 may have it", next: "pvecm status",
		},
		"moved": {
			vms: []cluster.VM{moved}, state: VMOld, where: "scsi1 of VM 9031", next: "recast roll",
			vm: "the old one; it is on pve2 and the parking VM is on pve1: recast plan says how to bring them together",
		},
	}
	must.Each(t, cases, func(t *testing.T, tc example) {
		rec := parking.Record{
			Node: "wk1", Run: "r1", VMID: 9031, UUID: "u-wk1", Open: true, Strategy: cluster.Recreate,
			Disks: []parking.ParkedDisk{{Key: "scsi1", ParkKey: "scsi1", Volid: "fast:vm-9031-disk-1"}},
		}
		park := parking.Parking{VM: cluster.VM{ID: 9090, Host: "pve1"}, Record: rec}
		h := must.Get(half(t.Context(), datacentre{vms: tc.vms}, park, tc.vms, tc.away))(t)
		h.BuildLocked, h.MachineConfig = true, true
		if h.VMState != tc.state || h.VM != tc.vm || h.Disks[0].Where != tc.where || !strings.HasPrefix(h.advise()[0].Command, tc.next) {
			t.Errorf("%s: %s; disk %s; %v", h.VMState, h.VM, h.Disks[0].Where, h.advise())
		}
	})
}

// Of several parking VMs only one has the disk that a rollback needs.
func TestTheLastKeptDisk(t *testing.T) {
	t.Parallel()
	kept := func(id cluster.VMID, nth int, run string) parking.Parking {
		return parking.Parking{
			VM:     cluster.VM{ID: id, Config: map[string]string{"scsi30": "fast:vm-1-disk-0"}},
			Record: parking.Record{Node: "wk1", Kept: []parking.KeptDisk{{Key: "scsi30", Run: run, Nth: nth}}},
		}
	}
	var res StatusResult
	for _, p := range []parking.Parking{kept(9090, 2, "20260101-0000-aaaa"), kept(9091, 1, "20260102-0000-aaaa")} {
		res.Kept = append(res.Kept, keptBy(p)...)
	}
	res.adviseLast()
	must.Hold(t, len(res.Kept[0].Next) == 1 && len(res.Kept[1].Next) == 0, "%+v", res.Kept)
}
