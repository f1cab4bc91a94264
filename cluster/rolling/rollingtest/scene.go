package rollingtest

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
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
	vm := cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Running: true, Config: KV{"smbios1": "uuid=u", "scsi0": "fast:vm-101-disk-0,serial=system", "scsi1": "fast:vm-101-disk-1,serial=data"}}
	m := clustertest.InSync()
	m.UUID, m.Nodename, m.BootID, m.Stage, m.Ready, m.SystemDisk = "u", "wk1", "b1", "running", true, "sda"
	m.Disks = []cluster.MachineDisk{{Device: "sda", Serial: "system"}, {Device: "sdb", Serial: "data"}}
	blank := cluster.BlankMachine{Machine: m}
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
	if s.Rec.Memory == "" {
		s.Rec.Memory = memory
	}
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

func (k sceneKube) do(name string) error {
	err := k.s.PX.Call(name)
	if err == nil {
		k.s.PX.Done = append(k.s.PX.Done, name)
	}
	return err
}

func (k sceneKube) Cordon(context.Context, string, cluster.Mark) error { return k.do("cordon") }
func (k sceneKube) DeleteNode(context.Context, string, string) error   { return k.do("delete node") }
func (k sceneKube) Uncordon(context.Context, string) error             { return k.do("uncordon") }
func (k sceneKube) Drain(context.Context, string, cluster.DrainOptions, func(string)) error {
	return k.do("drain")
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

func (k sceneTalos) EtcdForfeit(context.Context, netip.Addr, string) error {
	return sceneKube{s: k.s}.do("forfeit")
}

func (k sceneTalos) EtcdLeave(context.Context, netip.Addr, string) error {
	return sceneKube{s: k.s}.do("leave")
}

func (k sceneTalos) Rollback(context.Context, netip.Addr, string) error {
	return errors.Join(sceneKube{s: k.s}.do("roll back"), errors.New("it has no previous system"))
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
	return sceneKube{s: k.s}.do("stage")
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

func (k sceneMaintenance) ApplyConfig(context.Context, netip.Addr, string, cluster.Secret) error {
	k.s.UUIDs[k.s.Plan.Addr] = k.s.Applied
	return sceneKube{s: k.s}.do("apply")
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
