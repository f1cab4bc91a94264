package roll

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
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

type kv = map[string]string

// scene is a node with all that its roll talks to: the worker wk1 on VM 101, or what a
// row makes of it, beside three control planes.
type scene struct {
	*node
	px      *clustertest.Proxmox
	nodes   map[string]cluster.KubeNode
	local   []cluster.LocalData
	owners  []string
	pods    []string
	uuids   map[netip.Addr]string // of the machines; "": it does not answer
	machine cluster.Machine       // the node's own
	blank   cluster.Machine       // that, in maintenance mode
	members []cluster.EtcdMember
	status  map[netip.Addr]cluster.EtcdStatus
	mem     parking.Memory
	rec     *parking.Record // on VM 9900, its parking VM; nil: there is none
	config  map[string]cluster.Secret
	number  cluster.VMID // of the parking VM, by the journal
	cancel  func()       // ends the context
	applied string       // the UUID with which the machine answers once it has its configuration
}

func addr(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, last}) }

func newScene() *scene {
	vm := cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Running: true, Config: kv{"smbios1": "uuid=u", "scsi0": "fast:vm-101-disk-0,serial=system", "scsi1": "fast:vm-101-disk-1,serial=data"}}
	m := clustertest.InSync()
	m.UUID, m.Nodename, m.BootID, m.Stage, m.Ready, m.SystemDisk = "u", "wk1", "b1", "running", true, "sda"
	m.Disks = []cluster.MachineDisk{{Device: "sda", Serial: "system"}, {Device: "sdb", Serial: "data"}}
	blank := m
	blank.SystemDisk, blank.Stage, blank.FromISO = "", "maintenance", true
	blank.Disks = []cluster.MachineDisk{{Device: "sda", Serial: "blank", Blank: true}, {Device: "sdb", Serial: "data"}}
	s := &scene{
		px: clustertest.NewProxmox(vm), machine: m, blank: blank, uuids: map[netip.Addr]string{}, status: map[netip.Addr]cluster.EtcdStatus{}, config: map[string]cluster.Secret{},
		applied: "u",
		nodes:   map[string]cluster.KubeNode{"wk1": {Name: "wk1", UUID: "u", BootID: "b1", Ready: true}},
		mem:     parking.Memory{VM: vm, SystemKey: "scsi0", DiskSerial: "blank", BootID: "b1"},
	}
	s.px.Volumes = append(s.px.Volumes, "isos:iso/new.iso", "isos:iso/old.iso")
	w := cluster.Wanted{Name: "wk1", Build: clustertest.WantedBuild(), ISOStorages: []string{"isos"}}
	w.Build.ISOName = "new.iso"
	found := s.px.Guests[101]
	r := &Roller{
		Roll: &rolling.Roll{
			Proxmox: s.px, Kube: sceneKube{scene: s}, Talos: sceneTalos{scene: s}, Maintenance: sceneMaintenance{scene: s}, Journal: sceneJournal{s},
			Cluster: "c1", Run: "r1", Timing: cluster.Timing{Poll: time.Second, Settle: time.Second, Stop: time.Minute, Boot: time.Minute, Join: time.Minute, Drain: time.Minute},
			Say: func(string, string) {},
		},
		Files: sceneFiles{s}, Commands: sceneCommands{scene: s},
	}
	s.node = r.node(rolling.Node{
		Plan: planning.NodePlan{
			Node: "wk1", Role: cluster.Worker, Strategy: cluster.Recreate, VMID: 101, Host: "pve1", UUID: "u", Addr: addr(21), Wanted: w,
			Found: observe.Found{Name: "wk1", VM: &found, Machine: &m, Node: &cluster.KubeNode{}},
		},
		Want: w,
	})
	for i, name := range []string{"cp1", "cp2", "cp3"} {
		at, id := addr(byte(11+i)), uint64(i+1)
		s.Plan.ControlPlanes = append(s.Plan.ControlPlanes, cluster.Endpoint{Node: name, Addr: at})
		s.uuids[at] = "u-" + name
		s.members = append(s.members, cluster.EtcdMember{ID: id, Name: name, Peers: []string{"https://" + at.String() + ":2380"}})
		s.status[at] = cluster.EtcdStatus{MemberID: id, Leader: 1, Version: "3.6.4"}
		s.nodes[name] = cluster.KubeNode{Name: name, UUID: "u-" + name, Ready: true, ControlPlane: true}
	}
	s.uuids[addr(21)] = "u"
	return s
}

// asCP makes the node the control plane cp1.
func asCP(s *scene) {
	s.Plan.Node, s.Plan.Role, s.Plan.Addr = "cp1", cluster.ControlPlane, addr(11)
	k := s.nodes["wk1"]
	k.Name, k.ControlPlane = "cp1", true
	s.nodes["cp1"], s.uuids[addr(11)], s.machine.Nodename = k, "u", "cp1"
	delete(s.nodes, "wk1")
	s.mem.ControlPlane, s.mem.EtcdID, s.mem.EtcdMembers = true, 1, 3
	if s.rec != nil {
		s.rec.Node = "cp1"
	}
}

// begun has the replacement's record open, with the disks where they were.
func begun(s *scene) {
	s.rec = &parking.Record{Cluster: "c1", Node: s.Plan.Node, Run: "r1", VMID: 101, Open: true, Strategy: s.Plan.Strategy, Disks: []parking.ParkedDisk{
		{Key: "scsi0", ParkKey: "scsi30", Volid: "fast:vm-101-disk-0", System: true}, {Key: "scsi1", ParkKey: "scsi1", Volid: "fast:vm-101-disk-1"},
	}}
}

// ready writes the record, and what is remembered in it.
func (s *scene) ready() {
	if s.rec == nil || s.px.Guests[9900].Config["description"] != "" {
		return
	}
	memory, err := s.mem.Pack()
	if s.rec.Memory == "" {
		s.rec.Memory = memory
	}
	description, errDescription := s.rec.Description()
	if err := errors.Join(err, errDescription); err != nil {
		panic(err)
	}
	park := cluster.VM{ID: 9900, Name: cluster.ParkingName(s.Plan.Node), Host: "pve1", Config: kv{}}
	maps.Copy(park.Config, s.px.Guests[9900].Config)
	park.Config["description"] = description
	s.px.Guests[9900] = park
	s.Plan.Found.Parking = &parking.Parking{VM: park, Record: *s.rec}
}

// play does it with the row's change, or with one call failing.
func play(t *testing.T, failAt int, do func(*scene, context.Context) error, changes ...func(*scene)) (s *scene, took time.Duration, err error) {
	synctest.Test(t, func(t *testing.T) {
		s = newScene()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s.cancel = cancel
		for _, change := range changes {
			if change != nil {
				change(s)
			}
		}
		s.ready()
		s.px.FailAt = max(s.px.FailAt, failAt)
		began := time.Now()
		err = do(s, ctx)
		took = time.Since(began)
	})
	return s, took, err
}

func (s *scene) answers(name string, at netip.Addr) (cluster.Machine, error) {
	if err := s.px.Call(name); err != nil {
		return cluster.Machine{}, err
	}
	m := cluster.Machine{UUID: s.uuids[at]}
	if at == s.Plan.Addr {
		m = s.machine
		m.UUID = s.uuids[at]
	}
	if m.UUID == "" {
		return m, errors.New("no answer")
	}
	return m, nil
}

type sceneKube struct {
	cluster.Kube
	*scene
}

func (k sceneKube) Node(_ context.Context, name string) (cluster.KubeNode, error) {
	node, found := k.nodes[name]
	err := k.px.Call("Node")
	if err == nil && !found {
		err = cluster.ErrNotFound
	}
	return node, err
}

func (k sceneKube) Nodes(context.Context) ([]cluster.KubeNode, error) {
	return slices.SortedFunc(maps.Values(k.nodes), func(a, b cluster.KubeNode) int { return len(a.Name) - len(b.Name) }), k.px.Call("Nodes")
}

func (k sceneKube) LocalData(context.Context, ...cluster.KubeNode) (map[string][]cluster.LocalData, error) {
	return map[string][]cluster.LocalData{k.Plan.Node: k.local}, k.px.Call("LocalData")
}

func (k sceneKube) OtherOwners(context.Context) ([]string, error) {
	return k.owners, k.px.Call("OtherOwners")
}

func (k sceneKube) PodVolumes(context.Context) ([]string, error) {
	return k.pods, k.px.Call("PodVolumes")
}

func (k sceneKube) AttachedVolumes(context.Context, string) ([]cluster.AttachedVolume, error) {
	return nil, k.px.Call("AttachedVolumes")
}

func (k sceneKube) WatchDetached(context.Context, string, func(bool)) error { return nil }

func (k sceneKube) do(name string) error {
	err := k.px.Call(name)
	if err == nil {
		k.px.Done = append(k.px.Done, name)
	}
	return err
}

func (k sceneKube) Cordon(context.Context, string, cluster.Mark) error { return k.do("cordon") }
func (k sceneKube) Uncordon(context.Context, string) error             { return k.do("uncordon") }
func (k sceneKube) Drain(context.Context, string, cluster.DrainOptions, func(string)) error {
	return k.do("drain")
}

type sceneTalos struct {
	cluster.Talos
	*scene
}

func (k sceneTalos) Identity(_ context.Context, at netip.Addr) (cluster.Machine, error) {
	return k.answers("Identity", at)
}

func (k sceneTalos) Booted(_ context.Context, at netip.Addr) (cluster.Machine, error) {
	return k.answers("Booted", at)
}

func (k sceneTalos) Machine(_ context.Context, at netip.Addr) (cluster.Machine, error) {
	return k.answers("Machine", at)
}

func (k sceneTalos) Standing(_ context.Context, at netip.Addr) (cluster.Machine, error) {
	return k.answers("Standing", at)
}

func (k sceneTalos) WatchMachine(context.Context, netip.Addr, func(bool)) error { return nil }

func (k sceneTalos) EtcdMembers(context.Context, netip.Addr) ([]cluster.EtcdMember, error) {
	return k.members, k.px.Call("EtcdMembers")
}

func (k sceneTalos) EtcdStatus(_ context.Context, at netip.Addr) (cluster.EtcdStatus, error) {
	err := k.px.Call("EtcdStatus")
	status, answers := k.status[at]
	if err == nil && !answers {
		err = errors.New("no answer")
	}
	return status, err
}

func (k sceneTalos) EtcdForfeit(context.Context, netip.Addr, string) error {
	return sceneKube{scene: k.scene}.do("forfeit")
}

func (k sceneTalos) EtcdLeave(context.Context, netip.Addr, string) error {
	return sceneKube{scene: k.scene}.do("leave")
}

func (k sceneTalos) MachineConfig(context.Context, netip.Addr) (cluster.Secret, error) {
	return k.config["runs"], k.px.Call("MachineConfig")
}

func (k sceneTalos) KubernetesImages(context.Context, netip.Addr) (cluster.MachineKubernetes, error) {
	return cluster.MachineKubernetes{UUID: "u"}, k.px.Call("KubernetesImages")
}

type sceneMaintenance struct {
	cluster.Maintenance
	*scene
}

func (k sceneMaintenance) MaintenanceMachine(context.Context, netip.Addr) (cluster.Machine, error) {
	return k.blank, k.px.Call("MaintenanceMachine")
}

func (k sceneMaintenance) PatchConfig(config cluster.Secret, _ cluster.ConfigPatch) (cluster.Secret, error) {
	return config, k.px.Call("PatchConfig")
}

func (k sceneMaintenance) ApplyConfig(context.Context, netip.Addr, string, cluster.Secret) error {
	k.uuids[k.Plan.Addr] = k.applied
	return sceneKube{scene: k.scene}.do("apply")
}

type sceneCommands struct {
	cluster.CommandRunner
	*scene
}

func (k sceneCommands) RunHook(context.Context, cluster.CommandGate, []string, func(string)) (cluster.HookEnd, error) {
	return cluster.HookEnd{}, k.px.Call("RunHook")
}

type sceneFiles struct{ *scene }

func (k sceneFiles) Files(context.Context, netip.Addr, string, func(context.Context, cluster.MachineFiles) error) error {
	return nil
}

type sceneJournal struct{ *scene }

func (k sceneJournal) Get(key string, v any) (bool, error) {
	kept := map[string]any{k.node.Key("memory"): k.mem}
	if k.number != 0 {
		kept[k.node.Key("parking")] = k.number
	}
	if err := k.px.Call("Get"); err != nil || kept[key] == nil {
		return false, err
	}
	text, err := json.Marshal(kept[key])
	return true, errors.Join(err, json.Unmarshal(text, v))
}

func (k sceneJournal) Put(string, any) error          { return nil }
func (k sceneJournal) PutSecret(string, []byte) error { return nil }
func (k sceneJournal) Delete(string) error            { return nil }
func (k sceneJournal) Secret(string) ([]byte, bool, error) {
	text, found := k.config["journal"]
	return text, found, k.px.Call("Secret")
}

// hashOf is what a plan says of a file.
func hashOf(text cluster.Secret) string {
	hash, err := cluster.Text(text)
	if err != nil {
		panic(err)
	}
	return hash
}
