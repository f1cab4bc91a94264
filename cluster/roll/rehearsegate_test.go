package roll

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim/must"
)

// trialScene is a trial of a node's boot ISO at a fixed address, and everything that it talks to.
type trialScene struct {
	trial
	px    *clustertest.Proxmox
	nodes []cluster.KubeNode
	taken string          // what has the address; "": nothing
	boots cluster.Machine // what the scratch VM boots; it has that VM's UUID
	stage func()          // called when the VM has started
}

var errSilent = errors.New("no answer")

var address = netip.MustParsePrefix("10.0.0.99/24")

func newTrialScene() *trialScene {
	node := cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Config: map[string]string{"memory": "2048", "cores": "2", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "scsi0": "fast:vm-101-disk-0", "efidisk0": "fast:vm-101-disk-3"}}
	w := cluster.Wanted{Name: "wk1", Build: clustertest.WantedBuild(), ISOStorages: []string{"isos"}}
	w.Build.ISOName = "new.iso"
	s := &trialScene{px: clustertest.NewProxmox(node), boots: clustertest.InSync()}
	s.boots.UUID, s.boots.Stage, s.boots.Ready = "", "maintenance", true
	s.px.Volumes = append(s.px.Volumes, "isos:iso/new.iso")
	s.px.Memory, s.px.Space.Storages = 64<<30, []cluster.StorageRoom{{Name: "fast", Active: true, Free: 1 << 30}}
	s.trial = trial{
		Trial: planning.Trial{Host: "pve1", Medium: planning.Medium{ISO: "new.iso"}, ID: "t", Nodes: []string{"wk1"}, Addr: address, Model: planning.NodePlan{Node: "wk1", Host: "pve1", Wanted: w, Found: observe.Found{VM: &node}}},
		Rehearser: &Rehearser{
			Proxmox: scenePower{s.px, s}, Maintenance: sceneMaintenance{trialScene: s}, Kube: sceneKube{trialScene: s}, Cluster: "c1", Run: "r1", VMIDs: []cluster.VMID{9800},
			Timing: cluster.Timing{Poll: time.Second, Stop: time.Minute, Boot: time.Minute}, Say: func(string, string) {},
		},
	}
	return s
}

// scenePower makes a started VM do what the row says.
type scenePower struct {
	*clustertest.Proxmox
	*trialScene
}

func (p scenePower) Start(ctx context.Context, vm cluster.VM) error {
	err := p.px.Start(ctx, vm)
	p.px.Change(vm.ID, func(vm *cluster.VM) { vm.Running, vm.QMP = true, "running" })
	if err == nil && p.stage != nil {
		p.stage()
	}
	return err
}

type sceneKube struct {
	cluster.NodeReader
	*trialScene
}

func (k sceneKube) Nodes(context.Context) ([]cluster.KubeNode, error) {
	return k.nodes, k.px.Call("Nodes")
}

type sceneMaintenance struct {
	cluster.Maintenance
	*trialScene
}

func (k sceneMaintenance) Taken(context.Context, netip.Addr) (string, error) {
	return k.taken, k.px.Call("Taken")
}

func (k sceneMaintenance) MaintenanceMachine(context.Context, netip.Addr) (cluster.BlankMachine, error) {
	m := cluster.BlankMachine{Machine: k.boots}
	if m.UUID == "" {
		m.UUID = k.uuid
	}
	if k.Disk != "" {
		m.Disks = []cluster.MachineDisk{{Device: "sda", Serial: planning.ScratchSerial(k.uuid)}}
	}
	return m, k.px.Call("MaintenanceMachine")
}

func bootTrial(s *trialScene, ctx context.Context) error {
	_, err := s.boot(ctx)
	return err
}

// byDisk has the node, and so its trial, boot a prepared disk.
func byDisk(s *trialScene) {
	s.Medium = planning.Medium{Disk: "new.qcow2"}
	s.Model.System = &planning.DiskPlan{Key: "scsi0"}
	b := &s.Model.Wanted
	b.DiskStorages, b.Build.DiskName, b.Build.DiskBytes = []string{"images"}, "new.qcow2", 2<<30
	s.px.Volumes, s.px.Imports, s.px.Space.Storages[0].Free = []string{"images:import/new.qcow2"}, "2G", 4<<30
	s.boots.SystemDisk, s.boots.Volumes = "sda", []cluster.Volume{{Label: "EFI", Disk: "sda"}, {Label: "META", Disk: "sda"}}
}

// left adds a stopped scratch VM that a killed run has left.
func left(s *trialScene) {
	s.px.Guests[9800] = cluster.VM{ID: 9800, Name: planning.ScratchName(9800), Host: "pve1", Config: map[string]string{"smbios1": "uuid=s", "description": planning.ScratchMark("r1", "c1", "s")}}
}

func prune(s *trialScene, ctx context.Context) error {
	return s.pruner().deleteStopped(ctx, 9800, "s")
}

// change changes a VM's configuration, as someone else would.
func change(id cluster.VMID, config map[string]string) func(*trialScene) {
	return func(s *trialScene) { s.px.Set(id, config) }
}

func onceTried(do func(*trialScene)) func(*trialScene) {
	return func(s *trialScene) { s.stage = func() { do(s) } }
}

// rehearseCalls are the calls that gates guard, with the calls in them that may fail.
var rehearseCalls = map[string]struct {
	do    func(*trialScene, context.Context) error
	ready func(*trialScene)
	done  string
	last  string   // no call after it matters; "": all do
	deaf  []string // calls that are repeated
}{
	"boot":      {bootTrial, nil, "create 9800\nstart 9800", "", []string{"MaintenanceMachine", "VM"}},
	"boot disk": {bootTrial, byDisk, "create 9800\nstart 9800", "", []string{"MaintenanceMachine", "VM"}},
	"prune":     {prune, left, "delete 9800", "DeleteVM", nil},
	"prune a volume": {prune, func(s *trialScene) {
		left(s)
		change(9800, map[string]string{"efidisk0": "fast:vm-9800-disk-0,size=4M"})(s)
	}, "delete 9800", "DeleteVM", nil},
	"prune protected": {prune, func(s *trialScene) { left(s); change(9800, map[string]string{"protection": "1"})(s) }, "set 9800 map[protection:0] delete []\ndelete 9800", "DeleteVM", nil},
}

// TestRehearseCalls: each call succeeds if nothing is in the way, and stops if a port fails.
func TestRehearseCalls(t *testing.T) {
	t.Parallel()
	for name, c := range rehearseCalls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := playTrial(t, 0, c.do, c.ready)
			if got := strings.Join(s.px.Done, "\n"); err != nil || got != c.done {
				t.Fatalf("%v, done:\n%s\nwant:\n%s", err, got, c.done)
			}
			for at, call := range s.px.Made {
				if slices.Contains(c.deaf, call) {
					continue
				}
				must.FailIs(t, must.Err(playTrial(t, at+1, c.do, c.ready)), clustertest.ErrBroken)
				if call == c.last {
					break
				}
			}
		})
	}
}

// TestRehearseRows: every condition of a gate refuses something that no other one refuses.
func TestRehearseRows(t *testing.T) {
	t.Parallel()
	storage := func(change func(*cluster.StorageRoom)) func(*trialScene) {
		return func(s *trialScene) { change(&s.px.Space.Storages[0]) }
	}
	noQuorum := func(s *trialScene) { s.px.NoQuorum = true }
	power := func(do func(*cluster.VM)) func(*trialScene) { return func(s *trialScene) { s.px.Change(9800, do) } }
	for _, row := range []struct {
		do     string
		change func(*trialScene)
		err    string // "": it is not refused
		done   string // "": all of it, unless it is refused
	}{
		{do: "prune", change: func(s *trialScene) { s.px.Tied.Snapshots = []string{"daily"} }, err: "it has snapshots: daily"},
		{do: "prune", change: change(9800, map[string]string{"scsi0": "fast:vm-9800-disk-0"}), err: "is not a drive that it was created with"},
		{do: "prune", change: change(9800, map[string]string{"scsi0": "fast:vm-101-disk-0,serial=recast-s"}), err: "is not a drive that it was created with"},
		{do: "prune", change: change(9800, map[string]string{"unused0": "fast:vm-9800-disk-0,serial=recast-s"}), err: "is not a drive that it was created with"},
		{do: "prune", change: change(9800, map[string]string{"scsi0": "fast:vm-9800-disk-0,serial=recast-s", "ide2": "none,media=cdrom"})},
		{do: "prune", change: change(9800, map[string]string{"smbios1": "uuid=v"}), done: " "},
		{do: "prune", change: power(func(vm *cluster.VM) { vm.Running = true }), err: "runs again"},
		{do: "prune", change: func(s *trialScene) { delete(s.px.Guests, 9800) }, done: " "},
		{do: "prune", change: noQuorum, err: "has no quorum"},
		{do: "prune", change: func(s *trialScene) { s.px.Fail = map[string]error{"DeleteVM": cluster.ErrChanged} }, err: "changed by someone else"},
		{do: "boot", change: noQuorum, err: "has no quorum"},
		{do: "boot", change: func(s *trialScene) { s.px.Memory = 1 << 20 }, err: "of memory free"},
		{do: "boot", change: storage(func(r *cluster.StorageRoom) { r.Name = "slow" }), err: "has no room"},
		{do: "boot", change: storage(func(r *cluster.StorageRoom) { r.Active = false }), err: "has no room"},
		{do: "boot", change: storage(func(r *cluster.StorageRoom) { r.Free = 1 }), err: "has no room"},
		{do: "boot", change: func(s *trialScene) { s.taken = "someone" }, err: "and someone has it"},
		{do: "boot", change: func(s *trialScene) {
			s.nodes = []cluster.KubeNode{{Name: "wk2", Addresses: []netip.Addr{address.Addr()}}}
		}, err: "and node wk2 has it"},
		{do: "boot", change: func(s *trialScene) { s.px.Volumes = nil }, err: "boot ISO new.iso is on none of isos"},
		{do: "boot disk", change: func(s *trialScene) { s.px.Volumes = []string{"isos:iso/new.iso"} }, err: "disk image new.qcow2 is on none of images"},
		{do: "boot disk", change: storage(func(r *cluster.StorageRoom) { r.Free = 2 << 30 }), err: "has no room"},
		{do: "boot disk", change: func(s *trialScene) { s.Model.System.Key = "scsi7" }, err: "no volume in"},
		{do: "boot disk", change: func(s *trialScene) { s.px.Imports = "1G" }, err: "it was not imported whole", done: "create 9800"},
		{do: "boot disk", change: func(s *trialScene) { s.boots.TalosVersion = "v1.0.0" }, err: "the bytes of the disk image new.qcow2 are not what its name says", done: "create 9800\nstart 9800"},
		{do: "boot disk", change: func(s *trialScene) { s.boots.SystemDisk = "sdb" }, err: "is not the one that the machine booted, which is sdb", done: "create 9800\nstart 9800"},
		{do: "boot disk", change: func(s *trialScene) { s.boots.Volumes[0].Label = "STATE" }, err: "it was used before", done: "create 9800\nstart 9800"},
		{do: "boot", change: func(s *trialScene) { s.px.Guests[9800] = cluster.VM{ID: 9800} }, err: "no VMID is free"},
		{do: "boot", change: func(s *trialScene) { s.px.Fail = map[string]error{"VM": errSilent} }, err: "look up VM 9800: no answer"},
		{do: "boot", change: func(s *trialScene) { s.Addr, s.Model.Found.VM.Config["scsi9"] = netip.Prefix{}, "," }, err: "no volume in"},
		{do: "boot", change: onceTried(func(s *trialScene) { s.px.Fail = map[string]error{"VM": errSilent} }), err: "look up VM 9800: no answer", done: "create 9800\nstart 9800"},
		{do: "boot", change: func(s *trialScene) { s.boots.UUID = "v" }, err: "answers with UUID v", done: "create 9800\nstart 9800"},
		{do: "boot", change: func(s *trialScene) { s.boots.TalosVersion = "v1.0.0" }, err: "v1.0.0", done: "create 9800\nstart 9800"},
		{do: "boot", change: func(s *trialScene) { s.boots.Extensions = nil }, err: "has no extension", done: "create 9800\nstart 9800"},
		{do: "boot", change: onceTried(power(func(vm *cluster.VM) { vm.Running = false })), err: "is off", done: "create 9800\nstart 9800"},
		{do: "boot", change: onceTried(power(func(vm *cluster.VM) { vm.QMP = "paused" })), err: `its emulator says "paused"`, done: "create 9800\nstart 9800"},
		{do: "boot", change: onceTried(change(9800, map[string]string{"smbios1": "uuid=v"})), err: "was deleted by someone", done: "create 9800\nstart 9800"},
		{do: "boot", change: onceTried(func(s *trialScene) { delete(s.px.Guests, 9800) }), err: "was deleted by someone", done: "create 9800\nstart 9800"},
	} {
		t.Run(row.do+": "+cmp.Or(row.err, "not refused"), func(t *testing.T) {
			t.Parallel()
			c := rehearseCalls[row.do]
			s, err := playTrial(t, 0, c.do, c.ready, row.change)
			if row.err == "" && row.done == "" {
				row.done = c.done
			}
			must.Equal(t, "done", strings.TrimSpace(row.done), strings.Join(s.px.Done, "\n"))
			clustertest.CheckErr(t, err, row.err, "was deleted by someone", "is off", "its emulator says", "changed by someone else")
		})
	}
}

// play runs do with the row's change, or with one failing call.
func playTrial(t *testing.T, failAt int, do func(*trialScene, context.Context) error, changes ...func(*trialScene)) (s *trialScene, err error) {
	synctest.Test(t, func(t *testing.T) {
		s = newTrialScene()
		for _, change := range changes {
			if change != nil {
				change(s)
			}
		}
		s.px.FailAt = failAt
		err = do(s, t.Context())
	})
	return s, err
}
