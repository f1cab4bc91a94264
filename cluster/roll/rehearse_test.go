package roll

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/rolling/rollingtest"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
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

func prune(s *trialScene, ctx context.Context) error { return s.pruner().deleteStopped(ctx, 9800, "s") }

// change changes a VM's configuration, as someone else would.
func change(id cluster.VMID, config map[string]string) func(*trialScene) {
	return func(s *trialScene) { s.px.Set(id, config) }
}

func onceTried(do func(*trialScene)) func(*trialScene) {
	return func(s *trialScene) { s.stage = func() { do(s) } }
}

// Begin has nothing to prepare.
func (s *trialScene) Begin(func()) func() *clustertest.Proxmox {
	return func() *clustertest.Proxmox { return s.px }
}

// rehearseCalls are the calls that gates guard.
var rehearseCalls = map[string]rollingtest.CallOn[*trialScene]{
	"boot":      {Do: bootTrial, Done: "create 9800\nstart 9800", Deaf: []string{"MaintenanceMachine", "VM"}}, // which are repeated
	"boot disk": {Do: bootTrial, Ready: byDisk, Done: "create 9800\nstart 9800", Deaf: []string{"MaintenanceMachine", "VM"}},
	"prune":     {Do: prune, Ready: left, Done: "delete 9800", Last: "DeleteVM"},
	"prune a volume": {Do: prune, Ready: func(s *trialScene) {
		left(s)
		change(9800, map[string]string{"efidisk0": "fast:vm-9800-disk-0,size=4M"})(s)
	}, Done: "delete 9800", Last: "DeleteVM"},
	"prune protected": {Do: prune, Ready: func(s *trialScene) {
		left(s)
		change(9800, map[string]string{"protection": "1"})(s)
	}, Done: "set 9800 map[protection:0] delete []\ndelete 9800", Last: "DeleteVM"},
}

func TestRehearseCalls(t *testing.T) {
	t.Parallel()
	rollingtest.CheckCalls(t, newTrialScene, rehearseCalls)
}

// TestRehearseRows: every condition of a gate refuses something that no other one refuses.
func TestRehearseRows(t *testing.T) {
	t.Parallel()
	storage := func(change func(*cluster.StorageRoom)) func(*trialScene) {
		return func(s *trialScene) { change(&s.px.Space.Storages[0]) }
	}
	noQuorum := func(s *trialScene) { s.px.NoQuorum = true }
	power := func(do func(*cluster.VM)) func(*trialScene) { return func(s *trialScene) { s.px.Change(9800, do) } }
	rollingtest.CheckRows(t, newTrialScene, rehearseCalls, []rollingtest.RowOn[*trialScene]{
		{Do: "prune", Change: func(s *trialScene) { s.px.Tied.Snapshots = []string{"daily"} }, Err: "it has snapshots: daily"},
		{Do: "prune", Change: change(9800, map[string]string{"scsi0": "fast:vm-9800-disk-0"}), Err: "is not a drive that it was created with"},
		{Do: "prune", Change: change(9800, map[string]string{"scsi0": "fast:vm-101-disk-0,serial=recast-s"}), Err: "is not a drive that it was created with"},
		{Do: "prune", Change: change(9800, map[string]string{"unused0": "fast:vm-9800-disk-0,serial=recast-s"}), Err: "is not a drive that it was created with"},
		{Do: "prune", Change: change(9800, map[string]string{"scsi0": "fast:vm-9800-disk-0,serial=recast-s", "ide2": "none,media=cdrom"})},
		{Do: "prune", Change: change(9800, map[string]string{"smbios1": "uuid=v"}), Done: " "},
		{Do: "prune", Change: power(func(vm *cluster.VM) { vm.Running = true }), Err: "runs again"},
		{Do: "prune", Change: func(s *trialScene) { delete(s.px.Guests, 9800) }, Done: " "},
		{Do: "prune", Change: noQuorum, Err: "has no quorum"},
		{Do: "prune", Change: func(s *trialScene) { s.px.Fail = map[string]error{"DeleteVM": cluster.ErrChanged} }, Err: "changed by someone else"},
		{Do: "boot", Change: noQuorum, Err: "has no quorum"},
		{Do: "boot", Change: func(s *trialScene) { s.px.Memory = 1 << 20 }, Err: "of memory free"},
		{Do: "boot", Change: storage(func(r *cluster.StorageRoom) { r.Name = "slow" }), Err: "has no room"},
		{Do: "boot", Change: storage(func(r *cluster.StorageRoom) { r.Active = false }), Err: "has no room"},
		{Do: "boot", Change: storage(func(r *cluster.StorageRoom) { r.Free = 1 }), Err: "has no room"},
		{Do: "boot", Change: func(s *trialScene) { s.taken = "someone" }, Err: "and someone has it"},
		{Do: "boot", Change: func(s *trialScene) {
			s.nodes = []cluster.KubeNode{{Name: "wk2", Addresses: []netip.Addr{address.Addr()}}}
		}, Err: "and node wk2 has it"},
		{Do: "boot", Change: func(s *trialScene) { s.px.Volumes = nil }, Err: "boot ISO new.iso is on none of isos"},
		{Do: "boot disk", Change: func(s *trialScene) { s.px.Volumes = []string{"isos:iso/new.iso"} }, Err: "disk image new.qcow2 is on none of images"},
		{Do: "boot disk", Change: storage(func(r *cluster.StorageRoom) { r.Free = 2 << 30 }), Err: "has no room"},
		{Do: "boot disk", Change: func(s *trialScene) { s.Model.System.Key = "scsi7" }, Err: "no volume in"},
		{Do: "boot disk", Change: func(s *trialScene) { s.px.Imports = "1G" }, Err: "it was not imported whole", Done: "create 9800"},
		{Do: "boot disk", Change: func(s *trialScene) { s.boots.TalosVersion = "v1.0.0" }, Err: "the bytes of the disk image new.qcow2 are not what its name says", Done: "create 9800\nstart 9800"},
		{Do: "boot disk", Change: func(s *trialScene) { s.boots.SystemDisk = "sdb" }, Err: "is not the one that the machine booted, which is sdb", Done: "create 9800\nstart 9800"},
		{Do: "boot disk", Change: func(s *trialScene) { s.boots.Volumes[0].Label = "STATE" }, Err: "it was used before", Done: "create 9800\nstart 9800"},
		{Do: "boot", Change: func(s *trialScene) { s.px.Guests[9800] = cluster.VM{ID: 9800} }, Err: "no VMID is free"},
		{Do: "boot", Change: func(s *trialScene) { s.px.Fail = map[string]error{"VM": errSilent} }, Err: "look up VM 9800: no answer"},
		{Do: "boot", Change: func(s *trialScene) { s.Addr, s.Model.Found.VM.Config["scsi9"] = netip.Prefix{}, "," }, Err: "no volume in"},
		{Do: "boot", Change: onceTried(func(s *trialScene) { s.px.Fail = map[string]error{"VM": errSilent} }), Err: "look up VM 9800: no answer", Done: "create 9800\nstart 9800", Took: time.Minute},
		{Do: "boot", Change: func(s *trialScene) { s.boots.UUID = "v" }, Err: "answers with UUID v", Done: "create 9800\nstart 9800"},
		{Do: "boot", Change: func(s *trialScene) { s.boots.TalosVersion = "v1.0.0" }, Err: "v1.0.0", Done: "create 9800\nstart 9800"},
		{Do: "boot", Change: func(s *trialScene) { s.boots.Extensions = nil }, Err: "has no extension", Done: "create 9800\nstart 9800"},
		{Do: "boot", Change: onceTried(power(func(vm *cluster.VM) { vm.Running = false })), Err: "is off", Done: "create 9800\nstart 9800"},
		{Do: "boot", Change: onceTried(power(func(vm *cluster.VM) { vm.QMP = "paused" })), Err: `its emulator says "paused"`, Done: "create 9800\nstart 9800", Took: time.Minute},
		{Do: "boot", Change: onceTried(change(9800, map[string]string{"smbios1": "uuid=v"})), Err: "was deleted by someone", Done: "create 9800\nstart 9800"},
		{Do: "boot", Change: onceTried(func(s *trialScene) { delete(s.px.Guests, 9800) }), Err: "was deleted by someone", Done: "create 9800\nstart 9800"},
	}, "was deleted by someone", "is off", "its emulator says", "changed by someone else")
}

// facts is a journal in memory.
type facts struct {
	rolling.Journal
	of map[string][]byte
}

func (f facts) Put(key string, v any) (err error) { f.of[key], err = json.Marshal(v); return err }

func (f facts) Get(key string, v any) (bool, error) {
	b, found := f.of[key]
	if !found {
		return false, nil
	}
	return true, json.Unmarshal(b, v)
}

// proofsOf are the paths of the steps that a plan of these nodes has before any of them goes.
func proofsOf(t *testing.T, r *Rehearser, nodes ...planning.NodePlan) (paths []string) {
	t.Helper()
	var walk func(path string, steps []step.Step)
	walk = func(path string, steps []step.Step) {
		for _, s := range steps {
			if s.Steps == nil {
				paths = append(paths, path+s.ID)
				continue
			}
			below := must.Get(s.Steps(t.Context()))(t)
			walk(path+s.ID+"/", below)
		}
	}
	walk("", r.Steps(planning.Plan{Nodes: nodes}))
	return paths
}

func plannedTrial(name string, s cluster.Strategy, change func(*planning.NodePlan)) planning.NodePlan {
	vm := newTrialScene().Model.Found.VM
	vm.Config["tags"], vm.Config["scsi1"] = "talos", "bulk:vm-101-disk-1"
	n := planning.NodePlan{Node: name, Host: "pve1", Strategy: s, Found: observe.Found{Name: name, VM: vm}, System: &planning.DiskPlan{Key: "scsi0"}}
	n.Drift.Stale = true
	if change != nil {
		change(&n)
	}
	return n
}

func TestProofs(t *testing.T) {
	t.Parallel()
	const create = "prove/pve1/create-wk1"
	more := func(n *planning.NodePlan) { n.Found.VM.Config["cores"] = "4" }
	unfinished := func(n *planning.NodePlan) { n.Resume, n.Run = true, "r0" }
	type testCase struct {
		nodes []planning.NodePlan
		known bool
		want  []string
	}
	must.Each(t, map[string]testCase{
		"recreate":                       {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, nil)}, false, []string{create, "prove/pve1/hand-over-fast", "prove/pve1/hand-over-bulk"}},
		"two alike":                      {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, nil), plannedTrial("wk2", cluster.Recreate, nil)}, false, []string{create, "prove/pve1/hand-over-fast", "prove/pve1/hand-over-bulk"}},
		"another one":                    {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, nil), plannedTrial("wk2", cluster.Recreate, more)}, false, []string{create, "prove/pve1/hand-over-fast", "prove/pve1/hand-over-bulk", "prove/pve1/create-wk2"}},
		"on two hosts":                   {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, nil), plannedTrial("wk2", cluster.Recreate, func(n *planning.NodePlan) { n.Host = "pve2" })}, false, []string{create, "prove/pve1/hand-over-fast", "prove/pve1/hand-over-bulk", "prove/pve2/create-wk2", "prove/pve2/hand-over-fast", "prove/pve2/hand-over-bulk"}},
		"reimage":                        {[]planning.NodePlan{plannedTrial("wk1", cluster.Reimage, nil)}, false, []string{"prove/pve1/hand-over-fast"}},
		"rollback":                       {[]planning.NodePlan{plannedTrial("wk1", cluster.Rollback, nil)}, false, []string{"prove/pve1/hand-over-fast"}},
		"put-back":                       {[]planning.NodePlan{plannedTrial("wk1", cluster.PutBack, nil)}, false, nil},
		"remove":                         {[]planning.NodePlan{plannedTrial("wk1", cluster.Remove, nil)}, false, []string{"prove/pve1/hand-over-fast", "prove/pve1/hand-over-bulk"}},
		"remove, to rebuild it":          {[]planning.NodePlan{plannedTrial("cp1", cluster.Remove, func(n *planning.NodePlan) { n.Rebuild = "sum" })}, false, []string{"prove/pve1/create-cp1", "prove/pve1/hand-over-fast", "prove/pve1/hand-over-bulk"}},
		"in-place":                       {[]planning.NodePlan{plannedTrial("wk1", cluster.InPlace, func(n *planning.NodePlan) { n.System = nil })}, false, nil},
		"in-place, or else a reimage":    {[]planning.NodePlan{plannedTrial("wk1", cluster.InPlace, nil)}, false, []string{"prove/pve1/hand-over-fast"}},
		"reshape":                        {[]planning.NodePlan{plannedTrial("wk1", cluster.Reshape, nil)}, false, nil},
		"create":                         {[]planning.NodePlan{plannedTrial("wk1", cluster.Create, func(n *planning.NodePlan) { n.Found.VM = nil })}, false, nil},
		"refused":                        {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, func(n *planning.NodePlan) { n.Refused = []string{"no"} })}, false, nil},
		"left unfinished by another run": {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, unfinished)}, false, []string{create, "prove/pve1/hand-over-fast", "prove/pve1/hand-over-bulk"}},
		"its VM was deleted by that run": {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, func(n *planning.NodePlan) { unfinished(n); n.Found.VM = nil })}, false, nil},
		"and created again by that run": {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, func(n *planning.NodePlan) {
			unfinished(n)
			n.Found.VM.Config["description"] = parking.MarkDescription("", "r0", "b")
		})}, false, nil},
	}, func(t *testing.T, c testCase) {
		must.Equal(t, "steps", c.want, proofsOf(t, newTrialScene().Rehearser, c.nodes...))
	})
}

// TestDryCreate: the scratch VM has the node's settings, and nothing that must be unique or is a disk.
func TestDryCreate(t *testing.T) {
	t.Parallel()
	s := newTrialScene()
	s.Rehearser.Journal = facts{of: map[string][]byte{}}
	n := plannedTrial("wk1", cluster.Recreate, nil)
	d := &dryCreate{Rehearser: s.Rehearser, host: "pve1", nodes: []planning.NodePlan{n}, model: *n.Found.VM}
	want := map[string]string{
		"name": "recast-rehearse-9800", "memory": "2048", "cores": "2", "net0": "virtio,bridge=vmbr0", "onboot": "0", "protection": "1", "smbios1": "uuid=u", "ide2": "none,media=cdrom",
	}
	got := d.config(9800, "u")
	description := got["description"]
	delete(got, "description")
	must.Equal(t, "config", want, got)
	must.Contain(t, "the description", description, planning.ScratchMark("r1", "c1", "u"))
	run := d.step()
	must.Equal(t, "before", "", must.Get(run.Skip(t.Context()))(t))
	must.Do(t, run.Do(t.Context()))
	must.Equal(t, "done", "create 9800\nset 9800 map[protection:0] delete []\ndelete 9800", strings.Join(s.px.Done, "\n"))
	done, err := run.Skip(t.Context())
	must.Hold(t, done != "" && err == nil, "after: %q, %v", done, err)
}

// allocating gives new disks a name, as a storage does.
type allocating struct {
	cluster.Proxmox
	px *clustertest.Proxmox
}

func (a allocating) CreateVM(ctx context.Context, host string, id cluster.VMID, config map[string]string) error {
	err := a.Proxmox.CreateVM(ctx, host, id, config)
	if disk := config[scratchKey]; err == nil && disk != "" {
		a.px.Set(id, map[string]string{scratchKey: strings.Replace(disk, ":0.00390625", fmt.Sprintf(":vm-%d-disk-0", id), 1)})
	}
	return err
}

// TestScratchHandOver: each failing call refuses, and an earlier run's proof suffices.
func TestScratchHandOver(t *testing.T) {
	t.Parallel()
	for at, sound := 0, false; !sound; at++ {
		s := newTrialScene()
		s.VMIDs, s.Rehearser.Journal = []cluster.VMID{9800, 9801}, facts{of: map[string][]byte{}}
		s.Rehearser.Proxmox = allocating{s.Rehearser.Proxmox, s.px}
		s.px.FailAt = at
		h := &scratchHandOver{Rehearser: s.Rehearser, host: "pve1", disk: cluster.Disk{Key: "scsi0", Volid: "fast:vm-101-disk-0", Owner: 101}, nodes: []planning.NodePlan{{Node: "wk1"}}}
		err := h.step().Do(t.Context())
		switch sound = at > 0 && len(s.px.Made) < at; {
		case at == 0 || sound:
			want := "create 9801\ncreate 9800\nmove scsi0 of 9801 to scsi0 of 9800\nmove scsi0 of 9800 to scsi0 of 9801\ndelete 9801\ndelete 9800"
			if done := strings.Join(s.px.Done, "\n"); err != nil || done != want {
				t.Errorf("err = %v, done:\n%s", err, done)
			}
			h.HandedOver = func(f cluster.HandsOver) (bool, error) {
				return f == cluster.HandsOver{Host: "pve1", Storage: "fast"}, nil
			}
			if done, err := h.skip(t.Context()); done == "" || err != nil {
				t.Errorf("%q, %v", done, err)
			}
		case err == nil && !strings.HasPrefix(s.px.Done[len(s.px.Done)-1], "delete"): // what follows a delete only looks
			t.Errorf("call %d, %s, failed, and nothing was refused", at, s.px.Made[at-1])
		}
	}
}

// TestUnprovedHints: what is advised depends on what the node's VM is, and on what else can be done.
func TestUnprovedHints(t *testing.T) {
	t.Parallel()
	type testCase struct {
		node planning.NodePlan
		want string
	}
	must.Each(t, map[string]testCase{
		"recreate": {plannedTrial("wk1", cluster.Recreate, nil), "no node was touched; reimage keeps the VM"},
		"rebuild":  {plannedTrial("cp1", cluster.Remove, nil), "no node was touched"},
		"left unfinished": {
			plannedTrial("wk1", cluster.Recreate, func(n *planning.NodePlan) { n.Resume, n.VMID = true, 101 }),
			"no VM was deleted: recast undo wk1 gives VM 101 its disks back",
		},
	}, func(t *testing.T, c testCase) {
		err := unproved(t.Context(), fault.Refusedf("no"), errSilent, []planning.NodePlan{c.node}, "reimage keeps the VM")
		got := strings.Join(fault.Hints(err), "\n")
		must.Hold(t, got == c.want && err.Error() == "no", "%v: %s, want %s", err, got, c.want)
	})
}

// TestAScratchVMThatStays: recast prune, which looks, is advised, and no command that deletes what somebody may have
// made of it.
func TestAScratchVMThatStays(t *testing.T) {
	t.Parallel()
	s := newTrialScene()
	left(s)
	s.px.Set(9800, map[string]string{"scsi5": "fast:vm-9800-disk-7"})
	err := s.pruner().delete(t.Context(), 9800, "s")
	hint := strings.Join(fault.Hints(err), "\n")
	must.Hold(t, err != nil && !strings.Contains(hint, "destroy") && strings.Contains(hint, "recast prune deletes it, once it is as recast made it"),
		"%v: %s", err, hint)
}
