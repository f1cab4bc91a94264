// Package clustertest has what the tests of cluster and of its rooms share: [InSync] is a machine
// with the build of [WantedBuild], and [Park] a parking VM.
package clustertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

// The hashes of the old lock and of the present one.
const (
	OldHash = "sha256-old"
	NewHash = "sha256-new"
)

func Volid(id cluster.VMID, n int) string { return fmt.Sprintf("fast:vm-%d-disk-%d", id, n) }

// WantedBuild is what every node of World should run.
func WantedBuild() cluster.Build {
	return cluster.Build{
		ID: "b1", TalosVersion: "v1.13.9", Arch: "amd64", Platform: "nocloud", SchematicID: "id-new", LockHash: NewHash,
		Extensions: []cluster.LockedExtension{{Name: "iscsi-tools", Version: "v0.2.0", Digest: "sha256:bbbbbbbbbbbbbbbb"}},
	}
}

// InSync is a machine that runs WantedBuild.
func InSync() cluster.Machine {
	return cluster.Machine{MachineStanding: cluster.MachineStanding{UUID: "u1"}, RunningSystem: cluster.RunningSystem{
		TalosVersion: "v1.13.9", Arch: "amd64", Platform: "nocloud", SecureBoot: new(false), Schematic: cluster.SchematicEntry{ID: "id-new", YAML: "customization:\n  extraKernelArgs:\n    - recast.lock=" + NewHash + "\n"},
		Extensions: []cluster.ExtensionEntry{{Name: "iscsi-tools", Version: "v0.2.0"}},
	}}
}

// Past knows the extensions of OldHash.
func Past(hash string) (cluster.LockedContent, bool) {
	if hash == OldHash {
		return cluster.LockedContent{Extensions: []cluster.LockedExtension{{Name: "iscsi-tools", Version: "v0.2.0", Digest: "sha256:aaaaaaaaaaaaaaaa"}}}, true
	}
	return cluster.LockedContent{}, false
}

func Message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Parts is what a machine tells who asks for those parts of it; see cluster.PartReader.
func Parts(m cluster.Machine, parts cluster.MachineParts) cluster.Machine {
	if parts&cluster.IfReady != 0 && (m.Stage != "running" || !m.Ready) {
		parts &= cluster.UUIDPart | cluster.StandingPart
	}
	told := cluster.Machine{}
	for part, tell := range map[cluster.MachineParts]func(){
		cluster.UUIDPart:     func() { told.UUID = m.UUID },
		cluster.StandingPart: func() { told.Stage, told.Ready, told.Unmet = m.Stage, m.Ready, m.Unmet },
		cluster.VersionPart:  func() { told.TalosVersion, told.Arch, told.Platform = m.TalosVersion, m.Arch, m.Platform },
		cluster.NodenamePart: func() { told.Nodename = m.Nodename },
		cluster.HostnamePart: func() { told.Hostname = m.Hostname },
		cluster.TypePart:     func() { told.ControlPlane, told.TypeInit = m.ControlPlane, m.TypeInit },
		cluster.BootIDPart:   func() { told.BootID = m.BootID },
		cluster.SystemPart: func() {
			told.SecureBoot, told.BootEntry, told.NextBoot, told.FromISO = m.SecureBoot, m.BootEntry, m.NextBoot, m.FromISO
			told.Schematic, told.Extensions, told.Cmdline, told.ConfigArgs = m.Schematic, m.Extensions, m.Cmdline, m.ConfigArgs
		},
		cluster.DisksPart | cluster.VolumesPart: func() { told.Disks, told.SystemDisk, told.VolumeStatuses = m.Disks, m.SystemDisk, m.VolumeStatuses },
		cluster.VolumesPart:                     func() { told.Volumes, told.PoolMembers, told.FromImage = m.Volumes, m.PoolMembers, m.FromImage },
		cluster.ConfigPart | cluster.VisibleConfigPart: func() {
			told.InstallImage, told.Configs, told.Encryption = m.InstallImage, m.Configs, m.Encryption
		},
		cluster.AddressesPart: func() { told.Addresses = m.Addresses },
	} {
		if parts&part != 0 {
			tell()
		}
	}
	return told
}

// failures are in what ports and waiting say, and in what a step says of where it stands.
var failures = []string{"no answer", "no volume in", "gave up after", "context canceled", "the line is broken", "said "}

// CheckErr checks that want is in err (between two "=") or in its hints, or that there is no error if want is "". It
// must be a refusal unless want says that a port or waiting failed, or is about one of others.
func CheckErr(t *testing.T, err error, want string, others ...string) {
	t.Helper()
	if err == nil || want == "" {
		if err != nil || want != "" {
			t.Errorf("err = %v, want %q", err, want)
		}
		return
	}
	if !strings.Contains("="+err.Error()+"=\n"+strings.Join(fault.Hints(err), "\n"), want) {
		t.Errorf("err = %v, want %q", err, want)
	}
	failed := slices.ContainsFunc(slices.Concat(failures, others), func(text string) bool { return strings.Contains(want, text) })
	if refused := fault.KindOf(err) == fault.Refused; refused == failed {
		t.Errorf("refused: %t: %v", refused, err)
	}
}

// Park is a parking VM of node with kept disks "key run"; each has its drive.
func Park(id cluster.VMID, host, node string, kept ...string) parking.Parking {
	p := parking.Parking{
		VM:     cluster.VM{ID: id, Name: "recast-parking-" + node, Host: host, Config: map[string]string{"protection": "1"}},
		Record: parking.Record{Cluster: "c1", Node: node, VMID: 101, UUID: "u-" + node, Strategy: cluster.Recreate, Stage: parking.StageServes},
	}
	for i, k := range kept {
		key, run, _ := strings.Cut(k, " ")
		nth, _ := strconv.Atoi(strings.TrimPrefix(run, "r")) // 0 if run has no number
		p.Record.Kept = append(p.Record.Kept, parking.KeptDisk{Key: key, Run: run, Nth: nth, Slot: "scsi0", Options: "serial=s" + run + ",size=10G", Talos: "v1.13.8"})
		p.VM.Config[key] = fmt.Sprintf("fast:vm-%d-disk-%d,backup=0,serial=s%s,size=10G", id, i, run)
	}
	return p
}

// Described is the parking VM with its record in the description.
func Described(t *testing.T, p parking.Parking) cluster.VM {
	t.Helper()
	description, err := p.Record.Description()
	if err != nil {
		t.Fatal(err)
	}
	p.VM.Config = maps.Clone(p.VM.Config)
	p.VM.Config["description"] = description
	return p.VM
}

func ParkWK1(kept ...string) parking.Parking { return Park(9900, "pve1", "wk1", kept...) }

func Edited(p parking.Parking, edit func(*parking.Parking)) parking.Parking { edit(&p); return p }

var ErrBroken = errors.New("the line is broken")

// Calls records the calls to some fakes; one of them can fail. Calls may be made at the same time.
type Calls struct {
	mu     sync.Mutex
	Made   []string
	FailAt int              // the number of the call that fails with ErrBroken, from 1; 0: none
	Fails  Which            // fails with ErrBroken; the zero value: none
	Fail   map[string]error // these always fail
	At     func()           // called before each; nil: nothing
}

// Which is a call by its name and number of those, from 1: calls at the same time have no order.
type Which struct {
	Name string
	Nth  int
}

// Which says which call the one with an index in Made is.
func (c *Calls) Which(at int) (w Which) {
	for _, name := range c.Made[:at+1] {
		if name == c.Made[at] {
			w = Which{name, w.Nth + 1}
		}
	}
	return w
}

func (c *Calls) Call(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.At != nil {
		c.At()
	}
	c.Made = append(c.Made, name)
	if at := len(c.Made); at == c.FailAt || c.Which(at-1) == c.Fails {
		return ErrBroken
	}
	return c.Fail[name]
}

// Proxmox has some VMs and their volumes. It records changes in Done. It lacks the calls that no test needs.
type Proxmox struct {
	others
	hosts
	*Calls
	Guests    map[cluster.VMID]cluster.VM
	Volumes   []string // of all storages
	Firewalls map[cluster.VMID]cluster.FirewallConfig
	HA        *cluster.HAResource
	Tied      cluster.Ties
	Done      []string
	Imports   string // size of the disks in disk images: "2G"
	Grown     bool   // volumes have grown already, and only configurations lack their size

	SharedDisks bool         // all hosts have the storage fast
	ListedOn    cluster.VMID // the list of all VMs still shows it as running
}

// others are the calls that no test needs.
type others struct{ cluster.Proxmox }

// hosts are those of the cluster, all alike.
type hosts struct {
	calls    *Calls
	Space    cluster.Room
	Memory   int64
	NoQuorum bool
	Against  cluster.Migration // what is against migrating a VM
}

func (h *hosts) Migration(context.Context, cluster.VM, string) (cluster.Migration, error) {
	return h.Against, h.calls.Call("Migration")
}

func (h *hosts) Quorate(context.Context) (bool, error) { return !h.NoQuorum, h.calls.Call("Quorate") }

func (h *hosts) Room(context.Context, string) (cluster.Room, error) {
	return h.Space, h.calls.Call("Room")
}

func (h *hosts) FreeMemory(context.Context, string) (int64, error) {
	return h.Memory, h.calls.Call("FreeMemory")
}

func NewProxmox(vms ...cluster.VM) *Proxmox {
	calls := &Calls{}
	p := &Proxmox{Calls: calls, hosts: hosts{calls: calls, Against: cluster.Migration{Allowed: true}}, Guests: map[cluster.VMID]cluster.VM{}, Firewalls: map[cluster.VMID]cluster.FirewallConfig{}}
	for _, vm := range vms {
		vm.Config = maps.Clone(vm.Config)
		p.Guests[vm.ID] = vm
		disks, _ := vm.Disks() // an unreadable disk has no volume
		for _, d := range disks {
			p.Volumes = append(p.Volumes, d.Volid)
		}
	}
	return p
}

// Set changes a VM as if by someone else; "" removes a setting.
func (p *Proxmox) Set(id cluster.VMID, config map[string]string) {
	vm, there := p.Guests[id]
	if !there {
		return
	}
	vm.Config = maps.Clone(vm.Config)
	for key, value := range config {
		if vm.Config[key] = value; value == "" {
			delete(vm.Config, key)
		}
	}
	n, _ := strconv.Atoi(vm.Digest) // the first has no digest
	vm.Digest = strconv.Itoa(n + 1)
	p.Guests[id] = vm
}

// Change changes a VM's fields other than its configuration.
func (p *Proxmox) Change(id cluster.VMID, change func(*cluster.VM)) {
	vm := p.Guests[id]
	change(&vm)
	p.Guests[id] = vm
}

func (p *Proxmox) VM(_ context.Context, id cluster.VMID) (cluster.VM, error) {
	if err := p.Call("VM"); err != nil {
		return cluster.VM{}, err
	}
	p.mu.Lock()
	vm, found := p.Guests[id]
	p.mu.Unlock()
	if !found {
		return vm, cluster.ErrNotFound
	}
	vm.Config = maps.Clone(vm.Config)
	return vm, nil
}

func (p *Proxmox) VMState(ctx context.Context, id cluster.VMID) (cluster.VMState, error) {
	vm, err := p.VM(ctx, id)
	return vm.State(), err
}

func (p *Proxmox) VMConfig(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	vm, err := p.VM(ctx, id)
	vm.Running = true
	return vm, err
}

func (p *Proxmox) VMs(context.Context) (vms []cluster.VM, err error) {
	for _, id := range slices.Sorted(maps.Keys(p.Guests)) {
		vm := p.Guests[id]
		vm.Running = vm.Running || id == p.ListedOn
		vms = append(vms, vm)
	}
	return vms, p.Call("VMs")
}

func (p *Proxmox) Firewall(_ context.Context, vm cluster.VM) (cluster.FirewallConfig, error) {
	return p.Firewalls[vm.ID], p.Call("Firewall")
}

func (p *Proxmox) HAResource(context.Context, cluster.VMID) (*cluster.HAResource, error) {
	return p.HA, p.Call("HAResource")
}

func (p *Proxmox) Pool(context.Context, cluster.VMID) (string, error) { return "", p.Call("Pool") }

func (p *Proxmox) Ties(context.Context, cluster.VM) (cluster.Ties, error) {
	return p.Tied, p.Call("Ties")
}

func (p *Proxmox) Storages(context.Context) ([]cluster.Storage, error) {
	return []cluster.Storage{{Name: "fast", Type: "lvmthin", Shared: p.SharedDisks}}, p.Call("Storages")
}

func (p *Proxmox) HasVolume(_ context.Context, _, volid string) (bool, error) {
	return slices.Contains(p.Volumes, volid), p.Call("HasVolume")
}

func (p *Proxmox) VolumeChanged(ctx context.Context, host, volid string) (at time.Time, found bool, err error) {
	found, err = p.HasVolume(ctx, host, volid)
	return at, found, err
}

func (p *Proxmox) OwnedVolumes(_ context.Context, _, storage string, owner cluster.VMID) ([]string, error) {
	is := fmt.Sprintf("%s:vm-%d-", storage, owner)
	return slices.DeleteFunc(slices.Clone(p.Volumes), func(v string) bool { return !strings.HasPrefix(v, is) }), p.Call("OwnedVolumes")
}

// do records a change to a VM that is unchanged since it was read.
func (p *Proxmox) do(name string, vm cluster.VM, format string, args ...any) error {
	err := p.Call(name)
	if now, there := p.Guests[vm.ID]; err == nil && there && now.Digest != vm.Digest {
		err = cluster.ErrChanged
	}
	if err == nil {
		p.Done = append(p.Done, fmt.Sprintf(format, args...))
	}
	return err
}

// shortened is a change of a configuration with the long record shortened.
func shortened(set map[string]string) map[string]string {
	set = maps.Clone(set)
	if strings.Contains(set["description"], cluster.RecordMark) {
		set["description"] = "record"
	}
	if (cluster.VM{Config: set}).Proof() != "" {
		set["smbios1"] = "proof"
	}
	return set
}

func (p *Proxmox) SetConfig(_ context.Context, vm cluster.VM, set map[string]string, del []string) error {
	if err := p.do("SetConfig", vm, "set %d %v delete %v", vm.ID, shortened(set), del); err != nil {
		return err
	}
	set = maps.Clone(set)
	if set == nil {
		set = map[string]string{}
	}
	for _, key := range del {
		set[key] = ""
	}
	importInto(vm.ID, set, p.Imports)
	p.Set(vm.ID, set)
	return nil
}

// importInto makes the disks that are to be made from disk images, with that size.
func importInto(id cluster.VMID, config map[string]string, size string) {
	for key, value := range config {
		config[key] = imported.ReplaceAllString(value, fmt.Sprintf("$1:vm-%d-imported-0$2,size=%s", id, size))
	}
}

var imported = regexp.MustCompile(`^([^:]+):0,import-from=[^,]*((?:,.*)?)$`)

func (p *Proxmox) CreateVM(_ context.Context, host string, id cluster.VMID, config map[string]string) error {
	if err := p.do("CreateVM", cluster.VM{ID: id}, "create %d", id); err != nil {
		return err
	}
	config = maps.Clone(config)
	importInto(id, config, p.Imports)
	p.Guests[id] = cluster.VM{ID: id, Name: config["name"], Host: host, Config: config}
	return nil
}

func (p *Proxmox) DeleteVM(_ context.Context, vm cluster.VM) error {
	return p.do("DeleteVM", vm, "delete %d", vm.ID)
}

func (p *Proxmox) FreeDisk(_ context.Context, vm cluster.VM, key string) error {
	if err := p.do("FreeDisk", vm, "free %s of %d", vm.Config[key], vm.ID); err != nil {
		return err
	}
	p.Set(vm.ID, map[string]string{key: ""})
	return nil
}

// GrowDisk writes the size; where a volume has grown before (Grown), it does nothing, as Proxmox.
func (p *Proxmox) GrowDisk(_ context.Context, vm cluster.VM, key, size string) error {
	if err := p.do("GrowDisk", vm, "grow %s of %d to %s", key, vm.ID, size); err != nil || p.Grown {
		return err
	}
	p.Set(vm.ID, map[string]string{key: sized.ReplaceAllString(vm.Config[key], "size="+size)})
	return nil
}

var sized = regexp.MustCompile(`\bsize=\w+`)

func (p *Proxmox) MoveDisk(_ context.Context, vm cluster.VM, key string, to cluster.VMID, toKey string) error {
	if err := p.do("MoveDisk", vm, "move %s of %d to %s of %d", key, vm.ID, toKey, to); err != nil {
		return err
	}
	p.Set(to, map[string]string{toKey: strings.Replace(vm.Config[key], fmt.Sprintf("vm-%d-", vm.ID), fmt.Sprintf("vm-%d-moved-", to), 1)})
	p.Set(vm.ID, map[string]string{key: ""})
	return nil
}

func (p *Proxmox) Migrate(_ context.Context, vm cluster.VM, to string) error {
	if err := p.do("Migrate", vm, "migrate %d to %s", vm.ID, to); err != nil {
		return err
	}
	vm.Host = to
	p.Guests[vm.ID] = vm
	return nil
}

func (p *Proxmox) SetFirewall(_ context.Context, vm cluster.VM, _ cluster.FirewallConfig) error {
	return p.do("SetFirewall", p.Guests[vm.ID], "firewall %d", vm.ID)
}

func (p *Proxmox) RemoveHA(_ context.Context, id cluster.VMID) error {
	return p.do("RemoveHA", p.Guests[id], "remove HA of %d", id)
}

func (p *Proxmox) Start(_ context.Context, vm cluster.VM) error {
	vm.Digest = p.Guests[vm.ID].Digest // Proxmox starts it whatever its configuration
	return p.do("Start", vm, "start %d", vm.ID)
}

func (p *Proxmox) Stop(_ context.Context, vm cluster.VM) error {
	return p.do("Stop", vm, "stop %d", vm.ID)
}
