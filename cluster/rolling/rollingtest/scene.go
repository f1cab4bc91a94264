package rollingtest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
)

// KV is a configuration of a VM.
type KV = map[string]string

// Scene is a node with everything that its roll talks to: the worker wk1 on VM 101, or what a row
// makes of it, and three control planes.
type Scene struct {
	*rolling.Node
	PX      *clustertest.Proxmox
	Nodes   map[string]cluster.KubeNode
	Local   []cluster.LocalData
	Owners  []string
	Pods    []string
	UUIDs   map[netip.Addr]string // of the machines; "": the machine does not answer
	Machine cluster.Machine       // the node's own
	Blank   cluster.BlankMachine  // the same machine in maintenance mode
	Members []cluster.EtcdMember
	Status  map[netip.Addr]cluster.EtcdStatus
	Mem     parking.Memory
	Rec     *parking.Record // on VM 9900, its parking VM; nil: there is none
	Config  map[string]cluster.Secret
	Number  cluster.VMID // VMID of the parking VM in the journal
	Cancel  func()       // ends the context
	Applied string       // the UUID with which the machine answers once it has its configuration
}

// Addr returns the address 10.0.0.last.
func Addr(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, last}) }

// NewScene returns the worker wk1, which is about to be recreated, with nothing in the way.
func NewScene() *Scene {
	vm := cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Running: true, Config: KV{"smbios1": "uuid=u,sku=" + SKU, "scsi0": "fast:vm-101-disk-0,serial=system", "scsi1": "fast:vm-101-disk-1,serial=data"}}
	m := clustertest.InSync()
	m.UUID, m.Nodename, m.BootID, m.Stage, m.Ready, m.SystemDisk = "u", "wk1", "b1", "running", true, "sda"
	m.Disks = []cluster.MachineDisk{{Device: "sda", Serial: "system"}, {Device: "sdb", Serial: "data"}}
	blank := cluster.BlankMachine{Machine: m, Fingerprint: "shown"}
	blank.SKU = SKU
	blank.SystemDisk, blank.Stage, blank.FromISO = "", "maintenance", true
	blank.Disks = []cluster.MachineDisk{{Device: "sda", Serial: "blank", Blank: true}, {Device: "sdb", Serial: "data"}}
	s := &Scene{
		PX: clustertest.NewProxmox(vm), Machine: m, Blank: blank, UUIDs: map[netip.Addr]string{}, Status: map[netip.Addr]cluster.EtcdStatus{}, Config: map[string]cluster.Secret{},
		Applied: "u",
		Nodes:   map[string]cluster.KubeNode{"wk1": {Name: "wk1", UUID: "u", BootID: "b1", Ready: true}},
		Mem:     parking.Memory{VM: vm, SystemKey: "scsi0", DiskSerial: "blank", BootID: "b1"},
	}
	s.PX.Volumes = append(s.PX.Volumes, "isos:iso/new.iso", "isos:iso/old.iso")
	w := cluster.Wanted{Name: "wk1", Build: clustertest.WantedBuild(), ISOStorages: []string{"isos"}}
	w.Build.ISOName = "new.iso"
	found := s.PX.Guests[101]
	s.Node = &rolling.Node{
		Roll: &rolling.Roll{
			Proxmox: s.PX, Kube: sceneKube{s: s}, Talos: sceneTalos{s: s}, Maintenance: sceneMaintenance{s: s}, Journal: sceneJournal{s},
			Cluster: "c1", Run: "r1", Timing: cluster.Timing{Poll: time.Second, Settle: time.Second, Stop: time.Minute, Boot: time.Minute, Join: time.Minute, Try: time.Minute, Drain: time.Minute},
			Say: func(string, string) {},
		},
		Plan: planning.NodePlan{
			Node: "wk1", Role: cluster.Worker, Strategy: cluster.Recreate, VMID: 101, Host: "pve1", UUID: "u", Addr: Addr(21), Wanted: w,
			Found: observe.Found{Name: "wk1", VM: &found, Machine: &m, Node: &cluster.KubeNode{}},
		},
		Want: w,
	}
	for i, name := range []string{"cp1", "cp2", "cp3"} {
		at, id := Addr(byte(11+i)), uint64(i+1)
		s.Plan.ControlPlanes = append(s.Plan.ControlPlanes, cluster.Endpoint{Node: name, Addr: at})
		s.UUIDs[at] = "u-" + name
		s.Members = append(s.Members, cluster.EtcdMember{ID: id, Name: name, Peers: []string{"https://" + at.String() + ":2380"}})
		s.Status[at] = cluster.EtcdStatus{MemberID: id, Leader: 1, Version: "3.6.4"}
		s.Nodes[name] = cluster.KubeNode{Name: name, UUID: "u-" + name, Ready: true, ControlPlane: true}
	}
	s.UUIDs[Addr(21)] = "u"
	return s
}

// Ready writes the record and its memory.
func (s *Scene) Ready() {
	if s.Rec == nil || s.PX.Guests[9900].Config["description"] != "" {
		return
	}
	memory, err := s.Mem.Pack()
	s.Rec.Memory = cmp.Or(s.Rec.Memory, memory)
	description, errDescription := s.Rec.Description()
	if err := errors.Join(err, errDescription); err != nil {
		panic(err)
	}
	park := cluster.VM{ID: 9900, Name: cluster.ParkingName(s.Plan.Node), Host: "pve1", Config: KV{}}
	maps.Copy(park.Config, s.PX.Guests[9900].Config)
	park.Config["description"] = description
	s.PX.Guests[9900] = park
	s.Plan.Found.Parking = &parking.Parking{VM: park, Record: *s.Rec}
}

func (s *Scene) answers(name string, at netip.Addr) (cluster.Machine, error) {
	if err := s.PX.Call(name); err != nil {
		return cluster.Machine{}, err
	}
	m := cluster.Machine{MachineStanding: cluster.MachineStanding{UUID: s.UUIDs[at]}}
	if at == s.Plan.Addr {
		m = s.Machine
		m.UUID = s.UUIDs[at]
	}
	if m.UUID == "" {
		return m, errors.New("no answer")
	}
	return m, nil
}

type sceneKube struct {
	cluster.Kube
	s *Scene
}

func (k sceneKube) Node(_ context.Context, name string) (cluster.KubeNode, error) {
	node, found := k.s.Nodes[name]
	err := k.s.PX.Call("Node")
	if err == nil && !found {
		err = cluster.ErrNotFound
	}
	return node, err
}

func (k sceneKube) Nodes(context.Context) ([]cluster.KubeNode, error) {
	return slices.SortedFunc(maps.Values(k.s.Nodes), func(a, b cluster.KubeNode) int { return len(a.Name) - len(b.Name) }), k.s.PX.Call("Nodes")
}

func (k sceneKube) LocalData(context.Context, ...cluster.KubeNode) (map[string][]cluster.LocalData, error) {
	return map[string][]cluster.LocalData{k.s.Plan.Node: k.s.Local}, k.s.PX.Call("LocalData")
}

func (k sceneKube) OtherOwners(context.Context) ([]string, error) {
	return k.s.Owners, k.s.PX.Call("OtherOwners")
}

func (k sceneKube) PodVolumes(context.Context) ([]string, error) {
	return k.s.Pods, k.s.PX.Call("PodVolumes")
}

func (k sceneKube) AttachedVolumes(context.Context, string) ([]cluster.AttachedVolume, error) {
	return nil, k.s.PX.Call("AttachedVolumes")
}

func (k sceneKube) WatchDetached(context.Context, string, func(bool)) error { return nil }

func (k sceneKube) APIServer(context.Context, netip.AddrPort) (string, error) {
	return "v1.35.4", k.s.PX.Call("APIServer")
}

func (k sceneKube) PendingCertificates(context.Context, string) ([]string, error) {
	return nil, k.s.PX.Call("PendingCertificates")
}

func (s *Scene) do(name string) error {
	err := s.PX.Call(name)
	if err == nil {
		s.PX.Done = append(s.PX.Done, name)
	}
	return err
}

func (k sceneKube) Cordon(context.Context, string, cluster.Mark) error { return k.s.do("cordon") }
func (k sceneKube) DeleteNode(context.Context, string, string) error   { return k.s.do("delete node") }
func (k sceneKube) Uncordon(context.Context, string) error             { return k.s.do("uncordon") }
func (k sceneKube) Drain(context.Context, string, cluster.DrainOptions, func(string)) error {
	return k.s.do("drain")
}

type sceneTalos struct {
	cluster.Talos
	s *Scene
}

// ReadParts names each kind of read as a call of its own.
func (k sceneTalos) ReadParts(_ context.Context, at netip.Addr, parts cluster.MachineParts) (cluster.Machine, error) {
	name := "Booted"
	switch {
	case parts&(cluster.VersionPart|cluster.StandingPart) == 0:
		name = "Identity"
	case parts&cluster.VersionPart == 0:
		name = "Standing"
	case parts&cluster.VolumesPart != 0:
		name = "Machine"
	case parts&cluster.IfReady != 0:
		name = "Arrived"
	}
	m, err := k.s.answers(name, at)
	return clustertest.Parts(m, parts), err
}

func (k sceneTalos) WatchMachine(context.Context, netip.Addr, func(bool)) error { return nil }

func (k sceneTalos) EtcdMembers(context.Context, netip.Addr) ([]cluster.EtcdMember, error) {
	return k.s.Members, k.s.PX.Call("EtcdMembers")
}

func (k sceneTalos) EtcdStatus(_ context.Context, at netip.Addr) (cluster.EtcdStatus, error) {
	err := k.s.PX.Call("EtcdStatus")
	status, answers := k.s.Status[at]
	if err == nil && !answers {
		err = errors.New("no answer")
	}
	return status, err
}

func (k sceneTalos) EtcdForfeit(context.Context, netip.Addr, string) error { return k.s.do("forfeit") }

func (k sceneTalos) EtcdLeave(context.Context, netip.Addr, string) error { return k.s.do("leave") }

func (k sceneTalos) Rollback(context.Context, netip.Addr, string) error {
	return errors.Join(k.s.do("roll back"), errors.New("it has no previous system"))
}

func (k sceneTalos) Kubernetes(context.Context, netip.Addr) (cluster.MachineKubernetes, error) {
	return cluster.MachineKubernetes{APIPort: 6443}, k.s.PX.Call("Kubernetes")
}

// CheckConfig says that a configuration with the word "reboots" reboots the machine.
func (k sceneTalos) CheckConfig(_ context.Context, _ netip.Addr, _ string, config cluster.Secret) (bool, error) {
	return strings.Contains(string(config), "reboots"), k.s.PX.Call("CheckConfig")
}

func (k sceneTalos) MachineConfigs(context.Context, netip.Addr) (cluster.Configs, error) {
	return cluster.Configs{Stored: k.s.Config["runs"], Active: k.s.Config["runs"]}, k.s.PX.Call("MachineConfigs")
}

func (k sceneTalos) StageConfig(context.Context, netip.Addr, string, cluster.Secret) error {
	return k.s.do("stage")
}

func (k sceneTalos) MachineConfig(context.Context, netip.Addr) (cluster.Secret, error) {
	return k.s.Config["runs"], k.s.PX.Call("MachineConfig")
}

func (k sceneTalos) KubernetesImages(context.Context, netip.Addr) (cluster.MachineKubernetes, error) {
	return cluster.MachineKubernetes{UUID: "u"}, k.s.PX.Call("KubernetesImages")
}

type sceneMaintenance struct {
	cluster.Maintenance
	s *Scene
}

func (k sceneMaintenance) MaintenanceMachine(context.Context, netip.Addr) (cluster.BlankMachine, error) {
	err := k.s.PX.Call("MaintenanceMachine")
	if err == nil && k.s.Blank.Stage == "" {
		err = errors.New("no answer")
	}
	return k.s.Blank, err
}

func (k sceneMaintenance) PatchConfig(config cluster.Secret, _ cluster.ConfigPatch) (cluster.Secret, error) {
	return config, k.s.PX.Call("PatchConfig")
}

func (k sceneMaintenance) ApplyConfig(context.Context, netip.Addr, cluster.Proof, cluster.Secret) error {
	k.s.UUIDs[k.s.Plan.Addr] = k.s.Applied
	return k.s.do("apply")
}

type sceneJournal struct{ s *Scene }

func (k sceneJournal) Get(key string, v any) (bool, error) {
	kept := map[string]any{k.s.Key("memory"): k.s.Mem}
	if k.s.Number != 0 {
		kept[k.s.Key("parking")] = k.s.Number
	}
	if err := k.s.PX.Call("Get"); err != nil || kept[key] == nil {
		return false, err
	}
	text, err := json.Marshal(kept[key])
	return true, errors.Join(err, json.Unmarshal(text, v))
}

func (k sceneJournal) Put(string, any) error          { return nil }
func (k sceneJournal) PutSecret(string, []byte) error { return nil }
func (k sceneJournal) Delete(string) error            { return nil }
func (k sceneJournal) Secret(string) ([]byte, bool, error) {
	text, found := k.s.Config["journal"]
	return text, found, k.s.PX.Call("Secret")
}

// Stage is what a call is played on. Begin is called before the changes are made, and ready afterwards.
type Stage interface {
	Begin(cancel func()) (ready func() *clustertest.Proxmox)
}

// Begin writes the record after the changes, unless one of them has.
func (s *Scene) Begin(cancel func()) func() *clustertest.Proxmox {
	s.Cancel = cancel
	return func() *clustertest.Proxmox { s.Ready(); return s.PX }
}

// CallOn is something that gates guard, on a stage that Ready has prepared.
type CallOn[S Stage] struct {
	Do    func(S, context.Context) error
	Ready func(S)
	Done  string   // what it does if nothing is in the way
	Err   string   // "": it succeeds then
	Deaf  []string // calls that may fail: their answer is no reason to refuse, or they are repeated
	Last  string   // no call after it matters; "": all do
}

// RowOn is a call that is refused, or not, after a change.
type RowOn[S Stage] struct {
	Do     string // the name of the call
	Change func(S)
	Err    string // "": it is not refused
	Done   string // "": all of it, unless it is refused
	Took   time.Duration
}

// Call and Row are those of a Scene.
type (
	Call = CallOn[*Scene]
	Row  = RowOn[*Scene]
)

// CheckCalls checks that each call succeeds if nothing is in the way, and stops if a port fails.
func CheckCalls[S Stage](t *testing.T, fresh func() S, calls map[string]CallOn[S]) {
	t.Helper()
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			px, _, err := play(t, fresh, clustertest.Which{}, c.Do, c.Ready)
			if got := strings.Join(px.Done, "\n"); (err == nil) != (c.Err == "") || err != nil && !strings.Contains(err.Error(), c.Err) || got != c.Done {
				t.Fatalf("%v, want %q, done:\n%s\nwant:\n%s", err, c.Err, got, c.Done)
			}
			for at, call := range px.Made {
				if !slices.Contains(c.Deaf, call) {
					if _, _, err := play(t, fresh, px.Which(at), c.Do, c.Ready); !errors.Is(err, clustertest.ErrBroken) {
						t.Errorf("call %d, %s, failed: %v", at+1, call, err)
					}
				}
				if call == c.Last {
					break
				}
			}
		})
	}
}

// CheckRows checks that every condition of a gate refuses something that no other one refuses.
// failures are in errors that are no refusals (see [clustertest.CheckErr]).
func CheckRows[S Stage](t *testing.T, fresh func() S, calls map[string]CallOn[S], rows []RowOn[S], failures ...string) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.Do+": "+cmp.Or(row.Err, "not refused"), func(t *testing.T) {
			t.Parallel()
			c := calls[row.Do]
			px, took, err := play(t, fresh, clustertest.Which{}, c.Do, c.Ready, row.Change)
			if row.Err == "" && row.Done == "" {
				row.Done = c.Done
			}
			if got := strings.Join(px.Done, "\n"); got != strings.TrimSpace(row.Done) || took.Round(2*time.Second) != row.Took {
				t.Errorf("done after %s:\n%s\nwant after %s:\n%s", took, got, row.Took, row.Done)
			}
			clustertest.CheckErr(t, err, row.Err, failures...)
		})
	}
}

// play runs do with the row's change, or with one failing call.
func play[S Stage](t *testing.T, fresh func() S, fails clustertest.Which, do func(S, context.Context) error, changes ...func(S)) (px *clustertest.Proxmox, took time.Duration, err error) {
	synctest.Test(t, func(t *testing.T) {
		s := fresh()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ready := s.Begin(cancel)
		for _, change := range changes {
			if change != nil {
				change(s)
			}
		}
		px = ready()
		px.Fails = fails
		began := time.Now()
		err = do(s, ctx)
		took = time.Since(began)
	})
	return px, took, err
}

// AsCP makes the node the control plane cp1.
func AsCP(s *Scene) {
	s.Plan.Node, s.Plan.Role, s.Plan.Addr = "cp1", cluster.ControlPlane, Addr(11)
	k := s.Nodes["wk1"]
	k.Name, k.ControlPlane = "cp1", true
	s.Nodes["cp1"], s.UUIDs[Addr(11)], s.Machine.Nodename = k, "u", "cp1"
	delete(s.Nodes, "wk1")
	s.Mem.ControlPlane, s.Mem.EtcdID, s.Mem.EtcdMembers = true, 1, 3
	if s.Rec != nil {
		s.Rec.Node = "cp1"
	}
}

// Begun opens the replacement's record; the disks are still where they were.
func Begun(s *Scene) {
	s.Rec = &parking.Record{Cluster: "c1", Node: s.Plan.Node, Run: "r1", VMID: 101, Open: true, Strategy: s.Plan.Strategy, Stage: parking.StageServes, Disks: []parking.ParkedDisk{
		{Key: "scsi0", ParkKey: "scsi30", Volid: "fast:vm-101-disk-0", System: true}, {Key: "scsi1", ParkKey: "scsi1", Volid: "fast:vm-101-disk-1"},
	}}
}

// Is sets the strategy.
func Is(s cluster.Strategy) func(*Scene) { return func(c *Scene) { c.Plan.Strategy = s } }

// All makes the changes in order.
func All(changes ...func(*Scene)) func(*Scene) {
	return func(s *Scene) {
		for _, change := range changes {
			change(s)
		}
	}
}

// Resumed makes the run one that resumes an earlier one.
func Resumed(s *Scene) { s.Plan.Resume = true }

// Swapped puts the new system disk on the VM, and parks the old one.
func Swapped(s *Scene) {
	s.PX.Guests[9900] = cluster.VM{ID: 9900, Host: "pve1", Config: KV{"scsi30": "fast:vm-9900-disk-0,backup=0"}}
	On(101, KV{"scsi0": "fast:vm-101-disk-5,serial=blank", "description": "recast: run=r1 build=b"})(s)
}

// On changes settings of a VM; "" removes one.
func On(id cluster.VMID, config KV) func(*Scene) { return func(s *Scene) { s.PX.Set(id, config) } }

// Off switches the VM off.
func Off(s *Scene) { s.PX.Change(101, func(vm *cluster.VM) { vm.Running = false }) }

// Previous adds a build to fall back to.
func Previous(s *Scene) {
	b := s.Want.Build
	b.ISOName = "old.iso"
	s.Plan.Previous = &b
}

// Waiting makes another node not Ready.
func Waiting(s *Scene) { OnNode("cp3", func(k *cluster.KubeNode) { k.Ready = false })(s) }

// Joined makes the new system a member of etcd.
func Joined(s *Scene) { s.Mem.EtcdID = 9 }

// OnNode changes a Node object.
func OnNode(name string, change func(*cluster.KubeNode)) func(*Scene) {
	return func(s *Scene) {
		k := s.Nodes[name]
		change(&k)
		s.Nodes[name] = k
	}
}

// Silent makes the machine not answer with the cluster's certificates.
func Silent(s *Scene) { s.UUIDs[s.Plan.Addr] = "" }

// Saved puts the node's machine configuration into the journal, and its sum into the record.
func Saved(s *Scene) { SavedAs("machine: {}")(s) }

// SavedAs is Saved with that configuration.
func SavedAs(config string) func(*Scene) {
	return func(s *Scene) {
		s.Config["journal"] = cluster.Secret(config)
		if s.Rec != nil {
			s.Rec.Config = cluster.ConfigSum(s.Config["journal"])
		}
	}
}

// SKU is what recast wrote into the SMBIOS of the node's VM.
const SKU = "recast0123456789abcdef0123456789abcdef"

// Filed puts the node's configuration in a file that the plan has shown.
func Filed(s *Scene) {
	text := cluster.Secret("version: v1alpha1\nmachine: {}\n")
	s.Config["file"], s.Config["runs"] = text, text
	hash, _ := cluster.Text(text) // it can be read
	s.Plan.ConfigFile = &cluster.ConfigFile{Hash: hash, Runs: cluster.ConfigSum(text), Applied: true}
	s.Blank.SystemDisk, s.Blank.FromISO = "sda", false
}

// Paused gives a Node the mark that keeps it from being taken out.
func Paused(k *cluster.KubeNode) { k.Pause = "mine" }

// Controlled makes a Node one that Cluster API replaces.
func Controlled(k *cluster.KubeNode) {
	k.Metadata.Annotations = map[string]string{"cluster.x-k8s.io/machine": "wk-7"}
}

// NoQuorum takes the quorum from the Proxmox cluster.
func NoQuorum(s *Scene) { s.PX.NoQuorum = true }

// NoISO removes all volumes.
func NoISO(s *Scene) { s.PX.Volumes = nil }

// Stays puts data of a PersistentVolume on the system disk.
func Stays(s *Scene) {
	s.Local = []cluster.LocalData{{Name: "pv/pvc-1", What: "PersistentVolume pvc-1", Path: "/var/x"}}
}

// Fails makes each call of that name fail.
func Fails(call string, err error) func(*Scene) {
	return func(s *Scene) { s.PX.Fail = map[string]error{call: err} }
}

// Without takes a member out of etcd.
func Without(name string) func(*Scene) {
	return func(s *Scene) {
		s.Members = slices.DeleteFunc(slices.Clone(s.Members), func(m cluster.EtcdMember) bool { return m.Name == name })
	}
}

// Dead has the etcd of cp2 not answer.
func Dead(s *Scene) { delete(s.Status, Addr(12)) }

// Mute has the etcd of cp1 not answer.
func Mute(s *Scene) { delete(s.Status, Addr(11)) }

// Twins has two members of etcd with the name of cp1.
func Twins(s *Scene) { s.Members[1].Name = "cp1" }

// Runs has another member of etcd run on cp1.
func Runs(id uint64) func(*Scene) {
	return func(s *Scene) { s.Status[Addr(11)] = cluster.EtcdStatus{MemberID: id, Leader: 2, Version: "3.6.4"} }
}
