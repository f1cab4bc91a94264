// Package cluster compares the wanted state of every node with the found one, plans how to bring each node there, and
// rolls the nodes one by one without ever losing a persistent disk.
package cluster

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
)

// VMID is a Proxmox VM's number, unique in its Proxmox cluster and reused after a delete: never an identity by itself.
type VMID int

// VM is one Proxmox VM: its state and its configuration as the API gives it.
type VM struct {
	ID       VMID
	Name     string
	Host     string // the Proxmox node it is on
	Running  bool   // status is "running"; look at QMP too
	QMP      string // qmpstatus: "running", "paused", "io-error", …; "" when read by a list
	Template bool
	Lock     string            // "backup", "migrate", …; "" when free
	HA       bool              // managed by Proxmox HA
	Pool     string            // resource pool, if a list has read it; see VMReader.Pool
	Digest   string            // of the configuration, for compare-and-swap
	Config   map[string]string // raw keys and values, pending changes merged; without "digest"
	Pending  []string          // keys with a pending change, sorted

	// Pods are the volids of its drives that PersistentVolumes name, if that was read. Proxmox does not know them.
	Pods []string `json:",omitempty"`

	// NotOurs says why its record, by which it is a parking VM, is not believed; "": it is, or there is none.
	NotOurs string `json:"-"`
}

// UUID is the SMBIOS UUID, lower-case; "" if the configuration has none.
func (vm VM) UUID() string { return strings.ToLower(option(vm.Config["smbios1"], "uuid")) }

// SMBIOS returns another value of smbios1, which may be in base64 (qemu-server, PVE/QemuServer.pm, pve-qm-smbios1).
func (vm VM) SMBIOS(name string) string {
	value := option(vm.Config["smbios1"], name)
	if option(vm.Config["smbios1"], "base64") == "1" {
		if b, err := base64.StdEncoding.DecodeString(value); err == nil {
			return string(b)
		}
	}
	return value
}

// proofPattern has only characters of base64, as Proxmox demands of a SKU number.
var proofPattern = regexp.MustCompile(`^recast[0-9a-f]{32}$`)

// Proof returns the SKU number in the VM's SMBIOS if recast wrote it: a machine that shows it is this VM. "": it has none, or
// another one, which OwnSKU reports.
func (vm VM) Proof() string {
	if sku := vm.SMBIOS("sku"); proofPattern.MatchString(sku) {
		return sku
	}
	return ""
}

// OwnSKU reports whether a person gave the VM a SKU number, which recast leaves alone.
func (vm VM) OwnSKU() bool { return vm.Proof() == "" && vm.SMBIOS("sku") != "" }

// WithProof returns the VM's smbios1 with a new random Proof.
func (vm VM) WithProof() string {
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails
	sku := "recast" + hex.EncodeToString(random)
	if option(vm.Config["smbios1"], "base64") == "1" {
		sku = base64.StdEncoding.EncodeToString([]byte(sku))
	}
	others := slices.DeleteFunc(strings.Split(vm.Config["smbios1"], ","), func(o string) bool { return strings.HasPrefix(o, "sku=") })
	return strings.Join(append(others, "sku="+sku), ",")
}

func (vm VM) String() string { return fmt.Sprintf("VM %d %q on %s", vm.ID, vm.Name, vm.Host) }

// VMState says whether a VM is on, and where: what a read without the configuration returns.
type VMState struct {
	ID         VMID
	Name, Host string
	Running    bool // these three are as in VM
	QMP        string
	HA         bool
}

func (vm VM) State() VMState {
	return VMState{ID: vm.ID, Name: vm.Name, Host: vm.Host, Running: vm.Running, QMP: vm.QMP, HA: vm.HA}
}

func (s VMState) String() string { return VM{ID: s.ID, Name: s.Name, Host: s.Host}.String() }

// Container is an LXC container. recast does not use it, but no VM can have its number.
type Container struct {
	ID         VMID
	Name, Host string
}

func (c Container) String() string { return fmt.Sprintf("container %d %q on %s", c.ID, c.Name, c.Host) }

// Ties is what Proxmox keeps for a VM outside of its configuration.
type Ties struct {
	Firewall  FirewallConfig // deleted with the VM, and given to the new VM
	Dropped   []string       // in words what else is deleted with the VM, and can't be given to a new VM
	ACL       []ACLEntry     // on the VM itself, as far as our token sees them; deleted with it
	Jobs      []ReplicationJob
	VNets     []VNet      // its networks other than the hosts' own bridges
	Snapshots []string    // by name
	Busy      []string    // backups that run or are due within BusyWithin, and replications that run; in words
	HA        *HAResource // nil: not managed
	Tags      []string    // the VM's tags that our token can't set on a new VM
	// HostArch is the architecture of the VM's host, as a VM's arch names it, if the VM has that setting; "": unknown.
	HostArch string
	Snippets []string // the files in the VM's cicustom that our token sees, by volid
}

// VNet is a network of Proxmox' SDN, or a bridge whose name is unlike those of the hosts' own bridges.
type VNet struct {
	Name   string
	IPAM   bool // the VNet's zone keeps the addresses of VMs
	Hidden bool // our token can't see it
}

// TiesRead is a VM's Ties, or why they could not be read.
type TiesRead struct {
	Ties
	Err error
}

// ReplicationJob copies a VM's disks on local ZFS to another host.
type ReplicationJob struct {
	ID       string // "101-0"
	Target   string // host
	Schedule string // "*/15"; "" is Proxmox's own
	Rate     string // limit in MB/s; "": none
	Disabled bool
}

// BusyWithin is how soon a scheduled backup must start to count as running.
const BusyWithin = 30 * time.Minute

// HAResource is a VM's resource in Proxmox HA.
type HAResource struct {
	VMID     VMID
	State    string            // wanted by HA: "started", "stopped", "ignored", …
	Settings map[string]string // everything else: max_restart, max_relocate, group, comment, failback
}

// Storage is a Proxmox storage.
type Storage struct {
	Name   string
	Type   string // "dir", "lvmthin", "zfspool", "rbd", …
	Shared bool
	Thick  bool   // a new disk takes its whole size at once, not what is written to it
	Pool   string // what the storage is on ("pve/data", "rpool/vm"): storages on the same pool share its free space; "": not shared with other storages
	Dir    string // directory of a storage of files, on each host; "": it has none
}

// Migration says whether Proxmox can migrate a VM to another host, and what prevents it.
type Migration struct {
	Allowed    bool     // the host has the VM's storages and mapped devices, and HA does not object
	Lacks      []string // why not, in words
	LocalDisks []string // volids
	Resources  []string // devices that keep the VM, as it is now, on its host
	WhileOff   []string // devices that also keep the VM on its host while it is off
	Along      []string // HA resources that Proxmox HA moves with it
}

// Encryption says how the machine's configuration encrypts one volume.
type Encryption struct {
	Volume      string   // "STATE", "EPHEMERAL", "u-data", …
	Keys        []string // sorted: "static", "nodeID", "kms", "tpm"
	LockToState bool     // the key is mixed with a salt on STATE: unreadable once STATE is lost
}

// EtcdMember is one member of etcd.
type EtcdMember struct {
	ID      uint64
	Name    string // the machine's hostname
	Peers   []string
	Learner bool
}

// Of is IsMember of the member's name.
func (m EtcdMember) Of(node string) bool { return IsMember(m.Name, node) }

// IsMember reports whether a member with that name is that of the machine whose Node is named node. Talos names a member by
// its machine's hostname, without the domain (controllers/etcd/spec.go). The Node has what Kubernetes allows of the hostname
// (controllers/k8s/internal/nodename), and the domain, too, with machine.kubelet.registerWithFQDN (controllers/k8s/nodename.go).
func IsMember(name, node string) bool {
	name = strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r == '_':
			return '-'
		case r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z':
			return r
		}
		return -1
	}, strings.ToLower(name)), "-.")
	return name == node || name == ShortName(node)
}

// ShortName returns the name of a Node without its domain.
func ShortName(node string) string {
	short, _, _ := strings.Cut(node, ".")
	return short
}

// EtcdStatus is what one member says about itself.
type EtcdStatus struct {
	MemberID uint64
	Leader   uint64 // 0: it knows none
	Learner  bool
	Version  string   // "3.6.4"
	DBBytes  int64    // size of the database file
	Errors   []string // its own, and every alarm of the cluster
	Corrupt  bool     // an alarm says that the data of the members differ
}

// SchematicEntry is the factory's own entry in the list of extensions; zero when the image carries none.
type SchematicEntry struct {
	ID   string // schematic ID
	YAML string // the canonical schematic that the image was made from
}

// ExtensionEntry is an extension as the running node lists it. It has no digest.
type ExtensionEntry struct {
	Name, Version string
}

// MachineDisk is a disk as Talos sees it.
type MachineDisk struct {
	Device    string // "sda"
	Serial    string // as Talos shows it: "" for most SCSI disks, even if they have one
	WWID      string // "naa.3…", "t10.ATA …"
	BusPath   string
	SizeBytes uint64
	Blank     bool // carries neither partition table nor filesystem; false where only System was read
}

// Volume is a partition or filesystem that Talos has discovered on a disk, or would.
type Volume struct {
	// ID is the ID of the Talos volume that is here (VolumeStatus): "EPHEMERAL", "u-data", "e-backup", "/dev/sdb-1"
	// of machine.disks; "" if Talos has none here.
	ID             string `json:",omitempty"`
	Device         string // "sda4"
	Disk           string // "sda"
	Label          string // partition label: "EPHEMERAL", "META", …
	PartitionUUID  string
	FilesystemUUID string
	// FilesystemLabel identifies an LVM or ZFS member, which has no UUID.
	FilesystemLabel string `json:",omitempty"`
	Format          string `json:",omitempty"` // "xfs", "ext4", FormatLVM, …; "" where Talos knows none
	Phase           string // of the Talos volume with that label: "ready", "waiting", …; "" if Talos has none
	Mount           string // where Talos mounts it: "/var", "/var/mnt/data"; "" for nowhere, or unknown
}

// Talos' formats for members of LVM volume groups and ZFS pools (go-blockdevice, blkid/internal/filesystems).
const (
	FormatLVM = "lvm2-pv"
	FormatZFS = "zfs"
)

// PoolMember is a disk, partition or other device that provides space to an LVM volume group or a ZFS pool.
type PoolMember struct {
	Device string   // "sdb", "sdb1", "dm-0"
	Disks  []string // drives that it is on; none: unknown, as for a file on a loop device
	Format string   // FormatLVM or FormatZFS
	Group  string   // its LVM volume group; "" when Talos does not say: before 1.14, and always for ZFS
}

// Member is a machine in Talos' own discovery.
type Member struct {
	Nodename     string // in Kubernetes
	NodeID       string // identity: changes when STATE is lost
	Addresses    []netip.Addr
	ControlPlane bool
}

// KubeNode is a Kubernetes Node.
type KubeNode struct {
	Name           string
	UID            string // of the Node object: changes if that is deleted and created again
	UUID           string // systemUUID, lower-case
	BootID         string
	MachineID      string // of /etc/machine-id: changes with its system disk
	Ready          bool
	ControlPlane   bool // by its label
	Unschedulable  bool
	Mark           *Mark  // why recast cordoned it; nil if it did not
	Pause          string // why a person paused it: see PauseMark; "" if it is not paused
	FailedBuild    string // build whose in-place upgrade came back as the old system
	Booted         Booted // what its machine really runs in that boot; zero: what the machine says itself
	ProviderID     string // set if a cloud controller manages the Node
	KubeletVersion string
	Addresses      []netip.Addr
	Metadata       NodeMetadata
}

// Mark says on a Node, for as long as the node is being rolled, what for.
type Mark struct {
	Run      string   `json:"run"`
	Strategy Strategy `json:"strategy"`
	Build    string   `json:"build"` // build ID that it is being brought to
	BootID   string   `json:"boot"`  // the boot that is to end
	// NextBoot is what the boot loader would have started when the mark was made;
	// Installed says that an in-place upgrade has installed the new system since.
	NextBoot  string `json:"nextBoot,omitempty"`
	Installed bool   `json:"installed,omitempty"`
	Foreign   bool   `json:"foreign,omitempty"` // someone else had cordoned it before: it stays so
}

// NodeMetadata is what users put on a Node and a new Node would lack.
type NodeMetadata struct {
	Labels      map[string]string
	Annotations map[string]string
	Taints      []Taint
}

// Taint is a Kubernetes taint.
type Taint struct {
	Key, Value, Effect string
}

// Secret is bytes that must never be shown: it prints and marshals as [redacted].
type Secret []byte

const redacted = "[redacted]"

func (Secret) String() string               { return redacted }
func (Secret) GoString() string             { return redacted }
func (Secret) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Build is one image as the lock describes it.
type Build struct {
	ID           string // build ID, hex
	TalosVersion string
	Broken       bool   // the Image Factory has marked that version as broken
	Arch         string // "amd64" or "arm64"
	Platform     string // "nocloud" or "metal"
	SecureBoot   bool   // signed for UEFI Secure Boot
	SchematicID  string
	LockHash     string            // the value of the recast.lock kernel argument: "sha256-…"
	Extensions   []LockedExtension // official ones sorted by name, then those of recast.yaml
	Overlay      LockedOverlay     // zero: none
	Rebuild      int               // how often a rebuild of the same content was requested
	Installer    string            // by digest, as the node pulls it; "" until built
	ISOName      string            // file name on Proxmox storage, unless Uploads have another
	DiskName     string            // the same of the disk image; "": there is none
	Uploads      []Upload          // of ISO and disk image, where nothing compares them with the lock
	NoDisk       string            // why there is no disk image, although images.boot wants one
	DiskBytes    int64             // size of the disk that the disk image describes
	KernelArgs   []string          // that the schematic adds
	EmbedsConfig bool              // the schematic has a machine configuration in it
	Schematic    Secret            // its canonical text; nil: unknown
}

// Upload is a boot file on a storage as it was when recast had uploaded it.
type Upload struct {
	Of            string // ISOName or DiskName
	Name          string // on the storage
	Storage, Host string // Host is "" if the storage is shared
	Changed       time.Time
}

// Upload returns the upload of the file that is called name in the lock to a storage, as a host sees it. If there are
// no uploads at all, the file has that name, and its time is unknown.
func (b Build) Upload(name, storage, host string) (u Upload, found bool) {
	u, found = Find(b.Uploads, func(u Upload) bool { return u.Of == name && u.Storage == storage && (u.Host == "" || u.Host == host) })
	if !found && !slices.ContainsFunc(b.Uploads, func(u Upload) bool { return u.Of == name }) {
		return Upload{Name: name}, true
	}
	return u, found
}

// LockedExtension is an extension with the digest that the lock pins.
type LockedExtension struct {
	Name    string `json:"name"` // as the node lists it: "iscsi-tools"
	Version string `json:"version"`
	Ref     string `json:"ref"` // repository: "ghcr.io/siderolabs/iscsi-tools"
	Digest  string `json:"digest"`
}

// LockedOverlay is an overlay with the digest that the lock pins.
type LockedOverlay struct{ Name, Digest string }

// LockedContent is what a lock hash stands for.
type LockedContent struct {
	Extensions []LockedExtension
	Overlay    LockedOverlay
	Rebuild    int
}

// Wanted is what config and lock say about one node.
type Wanted struct {
	Name         string
	VMID         VMID   // cross-check only; 0: not given
	Schematic    string // its name in the config
	Build        Build
	Strategy     Strategy
	Holder       VMID       // a user's data VM that owns disks of this node; 0: none
	AcceptLoss   []string   // names of data on the system disk that may be lost
	Kubernetes   string     // wanted version, "v1.35.4"; "": none in particular
	SystemDisk   string     // Proxmox key given by the user ("scsi0"); "": to be proven
	SystemGiB    int        // wanted size of the system disk; 0: unchanged
	ISOStorages  []string   // where the boot ISO is, first choice first
	Boot         string     // what its new machine boots: "iso", "disk", or "auto", which is a disk where that is possible
	DiskStorages []string   // where the disk image is, first choice first; none if Boot is "iso"
	Shape        Shape      // of its VM
	Addr         netip.Addr // that a new machine will have; the zero value: not given
	Surge        bool       // it is there only during a roll
}

// What a new machine boots: see Wanted.Boot.
const (
	BootFromISO  = "iso"
	BootFromDisk = "disk"
	BootFromAuto = "auto"
)

// Endpoint is where the Talos API of one node is.
type Endpoint struct {
	Node string
	Addr netip.Addr
}

// Each applies of to each value and returns the results; nil if there are no values.
func Each[T, R any](values []T, of func(T) R) (out []R) {
	for _, v := range values {
		out = append(out, of(v))
	}
	return out
}

// Where returns the values for which is returns true; nil if there are none.
func Where[T any](values []T, is func(T) bool) (out []T) {
	for _, v := range values {
		if is(v) {
			out = append(out, v)
		}
	}
	return out
}

func TrueFirst(a, b bool) int {
	rank := map[bool]int{true: 0, false: 1}
	return rank[a] - rank[b]
}

// Find returns the first value for which is returns true; ok is false if there is none.
func Find[T any](values []T, is func(T) bool) (found T, ok bool) {
	if i := slices.IndexFunc(values, is); i >= 0 {
		return values[i], true
	}
	return found, false
}
