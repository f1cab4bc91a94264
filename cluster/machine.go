package cluster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Machine is what a Talos machine says about itself.
type Machine struct {
	MachineStanding
	RunningSystem
	BootID       string
	Hostname     string
	Nodename     string // that its kubelet registers with; "" before Talos knows it
	ControlPlane bool
	TypeInit     bool          // a control plane of machine.type init: see strategy.AgainstInit
	Disks        []MachineDisk // without CD-ROMs, loop and read-only devices
	SystemDisk   string        // device name ("sda"); "" in maintenance mode
	Volumes      []Volume
	// VolumeStatuses are the volumes of its configuration, wherever they are; none while it has no configuration.
	VolumeStatuses []VolumeStatus
	PoolMembers    []PoolMember // of LVM and ZFS, on drives and elsewhere
	InstallImage   string       // machine.install.image or UnattendedInstallConfig; "" when it can't be read
	Configs        Configs      // none while it has no configuration, or hides its configuration
	ConfigHidden   bool         // our talosconfig has only the role os:reader, which hides its configuration and which system it would start next
	Encryption     []Encryption
	Remembered     bool             // the machine does not answer: this was recorded earlier, without its system disk
	Addresses      []MachineAddress // present addresses; see AddressesPart
}

// MachineStanding says which machine answers, and which stage it has reached.
type MachineStanding struct {
	UUID  string // SMBIOS UUID, lower-case
	SKU   string // SMBIOS SKU number: see VM.Proof
	Stage string // "maintenance", "installing", "booting", "running", …
	Ready bool
	Unmet []string // conditions that keep it from being ready
}

// RunningSystem says which system a machine runs, and which it would boot next.
type RunningSystem struct {
	TalosVersion string // "v1.13.9"
	Arch         string // of the image that runs: "amd64", "arm64"; "": it does not say
	Platform     string // of the image that runs: "nocloud", "metal", …; "": it does not say
	SecureBoot   *bool  // whether the firmware verifies what it boots; nil: it does not say
	BootEntry    string // boot loader entry that it says it booted, lower-case; "" when unknown or booted from an ISO
	NextBoot     string // entry that the boot loader takes by default (efivar LoaderEntryDefault), lower-case; "" when it can't be read
	FromISO      bool   // it runs from a boot ISO, installed or not
	FromImage    bool   // its system disk was made from a disk image of Talos 1.13 or later: no installer partitioned it
	Schematic    SchematicEntry
	Extensions   []ExtensionEntry // sorted by name; without the synthetic "schematic" and "modules.dep"
	Cmdline      Secret           `json:"-"` // all kernel arguments of the running system, where they were read
	ConfigArgs   []string         // kernel arguments of the running system that give a blank machine a configuration: "talos.config=…", "siderolink.api=…"
}

// MachineIdentity identifies a machine.
type MachineIdentity struct{ UUID, Nodename string }

// BlankMachine is a machine in maintenance mode.
type BlankMachine struct {
	Machine
	Fingerprint string // of the certificate that it presented, as talosctl apply-config --cert-fingerprint takes it
}

// Proof is what a machine in maintenance mode shows on the connection over which it gets its configuration. UUIDs and serials can be
// guessed, or read by others; the value that recast wrote into its VM before it started it can't.
type Proof struct {
	UUID      string
	SKU       string   // see VM.Proof; "": a person has to confirm its certificate
	Confirmed []string // fingerprints of certificates, as in BlankMachine
}

// Check refuses a machine that does not show it. Without a value of ours, and without a fingerprint, no machine passes.
func (p Proof) Check(uuid, sku, fingerprint string) error {
	switch {
	case p.UUID == "" || uuid != strings.ToLower(p.UUID):
		return fault.UUIDMismatch.Refusedf("the machine has UUID %q, not %q: nothing was applied", uuid, p.UUID)
	case p.SKU != "" && sku != p.SKU:
		return fault.WithHint(fault.UUIDMismatch.Refusedf("the machine has the UUID of the VM, but not the SKU number that recast wrote into the VM's SMBIOS before it started it: nothing was applied"),
			"another machine answers at its address, or the VM was started anew in between: see its console; stop it, and run the same command again, which starts it with another value")
	case p.SKU == "" && !slices.Contains(p.Confirmed, fingerprint):
		return fault.WithHint(fault.UUIDMismatch.Refusedf("the machine shows a certificate with the fingerprint %s, which nobody has confirmed: nothing was applied", fingerprint),
			"its console shows the fingerprint of its certificate: if it is the same, run the same command again with --maintenance-fingerprint %s", fingerprint)
	}
	return nil
}

// StandsIn is the beginning of the text of Standing.
const StandsIn = "stage "

// Standing describes a machine that does not run yet, or is not ready.
func (m MachineStanding) Standing() string {
	if m.Ready { // always true in stages other than booting and running (machine_status.go in machined)
		return StandsIn + m.Stage
	}
	return fmt.Sprintf("%s%s, not ready: %s", StandsIn, m.Stage, words.OrNone(strings.Join(m.Unmet, ", ")))
}

// CheckBooted compares the system that a machine booted from a build's ISO, or its disk image, with that build.
func (b Build) CheckBooted(m RunningSystem) (problems []error) {
	if m.Schematic.LockHash() != b.LockHash || m.Schematic.ID != b.SchematicID || m.TalosVersion != b.TalosVersion {
		problems = append(problems, fault.WithHint(
			fault.NoBoot.Refusedf("it booted %s with schematic %s (lock %s), wanted is %s with %s (lock %s)", m.TalosVersion,
				words.OrNone(words.Short(m.Schematic.ID)), words.OrNone(words.Short(m.Schematic.LockHash())), b.TalosVersion, words.Short(b.SchematicID), words.Short(b.LockHash)),
			"the bytes of %s are not what its name says: delete it from the Proxmox storage, then recast publish and recast roll again", map[bool]string{true: "the boot ISO " + b.ISOName, false: "the disk image " + b.DiskName}[m.FromISO]))
	}
	for _, r := range DiffTarget(b, m) {
		problems = append(problems, fault.NoBoot.Refusedf("what it booted is not what is wanted: %s", r.Text))
	}
	return problems
}

// InstallsApart: the machine's Talos has an API that installs without a reboot (LifecycleService, since 1.13).
func (m RunningSystem) InstallsApart() bool {
	major, minor, _ := strings.Cut(strings.TrimPrefix(m.TalosVersion, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	number, err := strconv.Atoi(minor)
	return major == "1" && err == nil && number >= 13
}

// Installable says whether the machine would install Talos on a disk that its configuration selects.
func (m Machine) Installable() bool { return m.FromISO || m.SystemDisk == "" }

// PendingReboot says whether the installed system differs from the running one. The entry that it says it booted may be
// the previous boot's after a kexec (controllers/runtime/booted_entry.go), so the running version is compared too.
func (m RunningSystem) PendingReboot() bool {
	if m.NextBoot == "" || m.BootEntry == "" || m.NextBoot == m.BootEntry {
		return false
	}
	runs := strings.ToLower(m.TalosVersion)
	return entryVersion(m.BootEntry) == runs || entryVersion(m.NextBoot) != runs
}

// entryVersion returns the Talos version in the name of a boot entry, "talos-v1.14.1~2.efi".
func entryVersion(entry string) string {
	version, _ := strings.CutPrefix(strings.TrimSuffix(entry, ".efi"), "talos-")
	version, _, _ = strings.Cut(version, "~")
	return version
}

// Booted is what is known of a machine's boot entries and the machine does not say itself.
type Booted struct {
	BootID string `json:"boot,omitempty"`
	Entry  string `json:"entry,omitempty"` // the entry that the machine runs in that boot
	Gone   string `json:"gone,omitempty"`  // NextBoot that an earlier system disk has left
}

// Corrected returns m with the entries that the Node's machine really runs and boots next. bootID "" was not read.
func (k KubeNode) Corrected(m RunningSystem, bootID string) RunningSystem {
	if gone := k.Booted.Gone; gone != "" && m.NextBoot == gone && (k.Mark == nil || !k.Mark.Installed) {
		m.NextBoot = ""
		if m.BootEntry == gone { // as Talos says after a kexec (controllers/runtime/booted_entry.go)
			m.BootEntry = ""
		}
	}
	if k.Booted.Entry != "" && k.Booted.BootID == cmp.Or(bootID, k.BootID) {
		m.BootEntry = k.Booted.Entry
	}
	return m
}

// BlankAddress says how the machine will have addr when it boots with nothing on its system disk: see reachBlank.
func BlankAddress(addr netip.Addr, vm VM, m Machine, b Build) (set *BlankSetting, against Obstacle) {
	blank := blankVM{ID: int(vm.ID), Config: vm.Config, Platform: b.Platform, KernelArgs: b.KernelArgs, NoNetwork: vm.WithoutCustom("network")}
	disks, _ := vm.Disks() // an unreadable drive is refused elsewhere
	for _, d := range disks {
		switch {
		case d.CloudInit():
			blank.CloudInit = d.Key
		case blank.Storage == "" && !d.CDROM:
			blank.Storage = d.Storage()
		}
	}
	return reachBlank(addr, m.Addresses, blank)
}

// InstallDisk is the machine's disk, to name it in a configuration; zero if it is unknown, or has no name or address.
func (m Machine) InstallDisk() MachineDisk {
	d, _ := Find(m.Disks, func(d MachineDisk) bool { return d.Device == m.SystemDisk })
	if d.Serial+d.WWID+d.BusPath == "" {
		return MachineDisk{}
	}
	return d
}

// MachineFiles are the files of one running machine.
type MachineFiles interface {
	// List calls each for the entries of a directory, and if deep, for everything below them. each must not call
	// back. ErrNotFound if the directory does not exist.
	List(ctx context.Context, dir string, deep bool, each func(MachineFile) error) error
	// Read writes a regular file to w. A size other than sizeBytes is an error.
	Read(ctx context.Context, name string, sizeBytes int64, w io.Writer) error
}

// MachineFile describes one file of a machine.
type MachineFile struct {
	Path      string
	Mode      fs.FileMode
	SizeBytes int64
	Link      string // target of a symbolic link
}

// ConfigFile is a node's file of talos.machineConfigs beside the machine configuration that the node runs. It shows no
// secret.
type ConfigFile struct {
	// Hash is a SHA-256 of what the file says, whatever its order, comments and style.
	Hash string `json:"sha256"`
	// Runs is the SHA-256 of the configuration that the node runs; "" where there is none to compare with.
	Runs string `json:"runs,omitempty"`
	// Applied says that the node gets what the file says.
	Applied bool `json:"applied"`
	// Uncompared is why the two were not compared; "": they were.
	Uncompared string `json:"uncompared,omitempty"`
	// Changes are what differs, but for what recast sets itself: installer, install disk,
	// hostname, and the versions of Kubernetes, which stay those that the node runs.
	Changes []config.Change `json:"changes,omitempty"`
	// Pending says that the node keeps another configuration for its next boot than it runs: one is
	// on trial, or someone has staged one.
	Pending bool `json:"pending,omitempty"`
	// Reboot are the fields for which the node has to reboot.
	Reboot []string `json:"reboot,omitempty"`
	// Unknown are documents of kinds that are newer than this recast. They stay as they are written.
	Unknown []string `json:"unknown,omitempty"`
}

// Differs says whether the node does not run what the file says.
func (f ConfigFile) Differs() bool { return len(f.Changes) > 0 || f.Pending }

// Configs are a machine's configurations as stored. They differ while one is on trial, or waits for a reboot.
type Configs struct {
	Stored Secret // for the next boot
	Active Secret // that it runs
	// Booted: none was stored since the machine booted. It shows only the one that it runs, which may be on trial.
	Booted bool
}

// Same says whether both configurations have the same content, however they are written.
func (c Configs) Same() bool {
	if bytes.Equal(c.Stored, c.Active) {
		return true
	}
	stored, errStored := Text(c.Stored)
	active, errActive := Text(c.Active)
	return errStored == nil && errActive == nil && stored == active
}

// ConfigPlace is the place of the machine configuration that an unfinished replacement gives its node.
type ConfigPlace string

// The places. ConfigNowhere: only the old system disk has it.
const (
	ConfigNowhere   ConfigPlace = ""
	ConfigInJournal ConfigPlace = "journal"
	ConfigInFile    ConfigPlace = "file" // of talos.machineConfigs, with the checksum in the record
)

// FoundFile is a node's file as it was found.
type FoundFile struct {
	ConfigFile
	Sum      string   // of its bytes
	Role     string   // that the file gives its node: ControlPlane or Worker
	TypeInit bool     // the file is of machine.type init: see strategy.AgainstInit
	Identity []string // what would make the node another node, or a node of another cluster
	// Beside says with what the file of a machine without a configuration was compared: the node whose
	// configuration was used, or Talosconfig; "": with nothing.
	Beside     string
	Names      string       // the other node of recast.yaml whose name the file gives its machine; "": no other node's
	Omni       bool         // the file joins the machine to Omni
	Encryption []Encryption // how the file encrypts volumes, if it differs from what the node runs
	Err        error        // why the file can't be used, or can't be compared with what the node runs
	// Volumes are those that the file defines; nil where the node has none yet, or the file says what the node runs.
	Volumes   []ConfigVolume
	Selectors []DiskSelector // what the file selects on the machine, if it differs from what the node runs
}

const (
	// Talosconfig stands for a node where none shows a configuration: only the CA of Talos was compared.
	Talosconfig = "the talosconfig"
	// NodeRole and TalosCA are parts of a node's identity.
	NodeRole = "the node's role"
	TalosCA  = "the CA of Talos"
)

// NeutralPatch sets what recast sets to the same values in every configuration, so that none differ by that.
var NeutralPatch = ConfigPatch{Installer: "recast.invalid/installer@sha256:" + strings.Repeat("0", 64), Disk: MachineDisk{Serial: "recast"}, Hostname: "recast"}

// Text returns the hash of a configuration's content.
func Text(text Secret) (string, error) {
	docs, err := config.Parse(text)
	if err != nil {
		return "", fault.MachineConfig.Refusedf("not a machine configuration: %w", err)
	}
	return docs.Hash(), nil
}

// OfTypeInit: the configuration is of machine.type init. Talos refuses one that can't be read.
func OfTypeInit(text Secret) bool {
	docs, err := config.Parse(text)
	return err == nil && docs.TypeInit()
}

// HashOf returns the hashes that bind a plan to a node's file; "" if no file is applied.
func (f *ConfigFile) HashOf() (file, runs string) {
	if f == nil || !f.Applied {
		return "", ""
	}
	return f.Hash, f.Runs
}

// ErrConfigDamaged says that the machine configuration in a journal does not match the checksum in the record.
var ErrConfigDamaged = errors.New("the machine configuration in the journal is damaged")

func ConfigSum(config []byte) string {
	sum := sha256.Sum256(config)
	return hex.EncodeToString(sum[:])
}

// ConfigVolume is a volume with data, as a configuration's Talos understands it, whether a document names it or not.
type ConfigVolume struct {
	ID         string // as in VolumeStatus
	Document   string // what defines it, or would: "UserVolumeConfig data", "VolumeConfig ETCD", "machine.disks /dev/sdb"
	Type       VolumeType
	Place      string // what selects its disk, or the volume itself; "": where Talos puts it by default
	Found      bool   // Talos finds the volume again by Place, not by its partition's label
	Mount      string // only where the configuration chooses it
	Encryption VolumeEncryption
	Filesystem string // that Talos formats it with: "xfs"; "": none, or always anew
}

// VolumeEncryption says how a volume is encrypted, without its secrets.
type VolumeEncryption struct {
	Format string         // "": not encrypted
	Keys   map[int]string // by slot; two keys are the same exactly if these texts are
}

// Opens says whether a configuration with this encryption opens a volume that was encrypted as was. slot is the slot
// of the key that has opened the volume; nil: unknown. Talos tries its keys by slot, and adds and removes keys once a
// key fits (Handler.Open and syncKeys in internal/pkg/encryption/encryption.go). But it encrypts no volume that has
// something on it, and mounts no encrypted volume as an unencrypted one (HandleEncryption in
// controllers/block/internal/volumes/encrypt.go, Format in format.go).
func (e VolumeEncryption) Opens(was VolumeEncryption, slot *int) bool {
	if e.Format != was.Format {
		return false
	}
	if slot != nil && was.Keys[*slot] != "" {
		return e.Keys[*slot] == was.Keys[*slot]
	}
	for at, key := range was.Keys {
		if e.Keys[at] != key {
			return false
		}
	}
	return true
}

// MachineParts are parts of a [Machine]. Each costs its own requests to Talos.
type MachineParts uint

// The parts.
const (
	UUIDPart          MachineParts = 1 << iota
	StandingPart                   // Stage, Ready and Unmet
	VersionPart                    // TalosVersion, Arch and Platform
	NodenamePart                   // Nodename
	HostnamePart                   // Hostname
	TypePart                       // ControlPlane and TypeInit
	BootIDPart                     // BootID
	SystemPart                     // the rest of RunningSystem
	DisksPart                      // Disks, SystemDisk and VolumeStatuses, without what is on which disk
	VolumesPart                    // all that DisksPart has, what is on each disk, Volumes, PoolMembers and FromImage
	ConfigPart                     // InstallImage, Configs and Encryption; it is an error if our talosconfig may not read them
	VisibleConfigPart              // ConfigPart, or ConfigHidden
	AddressesPart                  // Addresses
	// IfReady limits the read to UUIDPart and StandingPart if the machine is not running and ready.
	IfReady

	standingParts = UUIDPart | StandingPart
	bootedParts   = standingParts | VersionPart | BootIDPart | SystemPart
	comparedParts = standingParts | VersionPart | SystemPart | DisksPart | VisibleConfigPart
	// WholeMachine is all parts.
	WholeMachine = bootedParts | NodenamePart | HostnamePart | TypePart | VolumesPart | ConfigPart | AddressesPart
	// planParts are the parts that a plan needs of a machine that it leaves as it is.
	planParts = comparedParts | TypePart | BootIDPart
	// leftParts are the parts that planParts lacks, and which machine and boot they are of.
	leftParts = UUIDPart | NodenamePart | HostnamePart | BootIDPart | VolumesPart | AddressesPart
)

// PartReader reads parts of a configured machine.
type PartReader interface {
	// ReadParts leaves other parts unset; readiness is never newer than they. A refused certificate is an error, too.
	ReadParts(ctx context.Context, addr netip.Addr, parts MachineParts) (Machine, error)
}

// ReadMachine reads all that a configured machine says about itself.
func ReadMachine(ctx context.Context, talos PartReader, addr netip.Addr) (Machine, error) {
	return talos.ReadParts(ctx, addr, WholeMachine)
}

// ReadStanding reads whether a machine is running and ready, and what is missing.
func ReadStanding(ctx context.Context, talos PartReader, addr netip.Addr) (MachineStanding, error) {
	m, err := talos.ReadParts(ctx, addr, standingParts)
	return m.MachineStanding, err
}

// ReadIdentity reads which machine a configured machine is.
func ReadIdentity(ctx context.Context, talos PartReader, addr netip.Addr) (MachineIdentity, error) {
	m, err := talos.ReadParts(ctx, addr, UUIDPart|NodenamePart)
	return MachineIdentity{UUID: m.UUID, Nodename: m.Nodename}, err
}

// ReadBooted reads what ReadStanding reads, which system is booted, in which boot, and which system would boot next.
func ReadBooted(ctx context.Context, talos PartReader, addr netip.Addr) (Machine, error) {
	return talos.ReadParts(ctx, addr, bootedParts)
}

// ReadArrived reads what ReadBooted reads if the machine is running and ready, else only what ReadStanding reads.
func ReadArrived(ctx context.Context, talos PartReader, addr netip.Addr) (Machine, error) {
	return talos.ReadParts(ctx, addr, bootedParts|IfReady)
}

// ReadArrivedWhole is ReadMachine without addresses if the machine is running and ready, else ReadStanding.
func ReadArrivedWhole(ctx context.Context, talos PartReader, addr netip.Addr) (Machine, error) {
	return talos.ReadParts(ctx, addr, WholeMachine&^AddressesPart|IfReady)
}

// ReadCompared reads what Diff compares, with half as many requests as ReadMachine.
func ReadCompared(ctx context.Context, talos PartReader, addr netip.Addr) (Machine, error) {
	return talos.ReadParts(ctx, addr, comparedParts)
}

// ReadForPlan reads the parts that a plan needs of a machine that it leaves as it is. Complete reads the rest.
func ReadForPlan(ctx context.Context, talos PartReader, addr netip.Addr) (Machine, error) {
	return talos.ReadParts(ctx, addr, planParts)
}

// Complete reads what ReadForPlan leaves out; all again of a restarted, other, or hiding machine.
func (m Machine) Complete(ctx context.Context, talos PartReader, addr netip.Addr) (Machine, error) {
	rest, err := talos.ReadParts(ctx, addr, leftParts)
	if err != nil {
		return Machine{}, err
	}
	if m.ConfigHidden || rest.BootID != m.BootID || rest.UUID != m.UUID {
		return ReadMachine(ctx, talos, addr)
	}
	m.Hostname, m.Nodename = rest.Hostname, rest.Nodename
	m.FromImage, m.Disks, m.SystemDisk, m.Addresses = rest.FromImage, rest.Disks, rest.SystemDisk, rest.Addresses
	m.Volumes, m.VolumeStatuses, m.PoolMembers = rest.Volumes, rest.VolumeStatuses, rest.PoolMembers
	return m, nil
}

// MachineAddress is an address of a machine, as its Talos shows it.
type MachineAddress struct {
	Prefix  netip.Prefix
	Link    string       // "eth0"
	Kind    string       // of the link: "vlan", "bond", …; "" for a network card
	MAC     string       // of a network card
	Layer   AddressLayer // of Talos' network configuration that the address comes from
	Lease   AddressLease // of an address of layer Operator
	Gateway netip.Addr   // of the default route over the link; invalid: there is none
}

// AddressLayer is where in Talos' network configuration an address comes from (resources/network/configlayer.go).
type AddressLayer string

// The layers. LayerKernel is not a layer of Talos: no part of Talos asked for the address.
const (
	LayerKernel        AddressLayer = ""
	LayerCmdline       AddressLayer = "cmdline"
	LayerPlatform      AddressLayer = "platform"
	LayerOperator      AddressLayer = "operator"
	LayerConfiguration AddressLayer = "configuration"
)

// AddressLease says how an address of layer operator was obtained.
type AddressLease struct {
	Operator string // "dhcp4", "dhcp6", "vip"; "": unknown
	DUID     bool   // the machine identifies itself to the DHCP server by a DUID of its configuration
}

// blankVM is a VM that will boot with nothing on its system disk.
type blankVM struct {
	ID         int
	Config     map[string]string // of the VM, as Proxmox has it
	CloudInit  string            // key of its cloud-init drive; "": it has none
	Storage    string            // for a new cloud-init drive
	Platform   string            // of the boot ISO: "nocloud", "metal"
	KernelArgs []string          // that its schematic adds
	NoNetwork  string            // the command that takes network= out of cicustom
}

// BlankSetting is a setting that a VM must have for the blank boot.
type BlankSetting struct{ Key, Value string }

func obstacle(format string, args ...any) Obstacle {
	return Obstacle{Text: fmt.Sprintf(format, args...)}
}

// reachBlank says how the blank machine will have addr, one of the machine's present addresses: by itself if set is
// nil, else with that setting of the VM. against says why the machine will not have addr; zero: it will.
func reachBlank(addr netip.Addr, all []MachineAddress, b blankVM) (set *BlankSetting, against Obstacle) {
	i := slices.IndexFunc(all, func(a MachineAddress) bool { return a.Prefix.Addr() == addr })
	if i < 0 {
		return nil, obstacle("Talos does not show where its address %s comes from (talosctl -n %s get addresses), so whether a blank machine would have it can't be determined: use in-place", addr, addr)
	}
	a := all[i]
	card := b.card(a.MAC)
	switch {
	case a.Layer == LayerOperator && a.Lease.Operator == "vip":
		return nil, obstacle("its address %s is a virtual one, which any control plane may take: have the kubelet register another (machine.kubelet.nodeIP.validSubnets), then run the same command again", addr)
	case a.Kind != "":
		return nil, a.unmade()
	case card == "":
		return nil, obstacle("its address %s is on %s with MAC %s, which none of the VM's network cards has: look at netN of VM %d", addr, a.Link, a.MAC, b.ID)
	}
	switch a.Layer {
	case LayerOperator:
		return b.leased(a, card)
	case LayerPlatform, LayerConfiguration:
		return b.given(a, card)
	case LayerCmdline:
		return nil, b.argued(a)
	case LayerKernel:
		return nil, a.announced()
	}
	return nil, obstacle("its address %s is of layer %s, which says nothing of a blank machine: use in-place", addr, a.Layer)
}

// unmade says why a blank machine has no address on a link that only the configuration makes.
func (a MachineAddress) unmade() Obstacle {
	text := fmt.Sprintf("its address %s is on %s (%s), a link that only its machine configuration makes, so a blank machine would not have it: ", a.Prefix.Addr(), a.Link, a.Kind)
	switch a.Kind {
	case "vlan":
		return Obstacle{Text: text + "have Proxmox tag the VM's network card instead (tag= of netN), and give the address to the card itself, or use in-place"}
	case "bond":
		return Obstacle{Text: text + "have the Proxmox host make the bond below its bridge, and give the address to the VM's network card itself, or use in-place"}
	}
	return Obstacle{Text: text + "give the address to the VM's network card itself, or use in-place"}
}

// leased handles DHCP, which Talos asks on every unconfigured card, also in maintenance mode (operator_config.go).
func (b blankVM) leased(a MachineAddress, card string) (*BlankSetting, Obstacle) {
	switch {
	case a.Lease.Operator != "dhcp4":
		return nil, obstacle("its address %s comes from %s, which a blank machine does not ask: have DHCPv4 give it its address, or use in-place", a.Prefix.Addr(), cmp.Or(a.Lease.Operator, "nothing that Talos names"))
	case a.Lease.DUID:
		return nil, obstacle("its address %s is leased to the DUID of its machine configuration, which a blank machine does not have: reserve it for MAC %s in DHCP and take clientIdentifier out of DHCPv4Config, or use in-place", a.Prefix.Addr(), a.MAC)
	}
	// Talos does not request an address by itself for a card that the drive configures.
	if given := b.Config["ipconfig"+card]; b.readsDrive() && given != "" && option(given, "ip") != "dhcp" {
		return &BlankSetting{"ipconfig" + card, ipconfig(given, "ip", "dhcp", "gw", "")}, Obstacle{}
	}
	return nil, Obstacle{}
}

// given handles an address from the configuration, or the platform, which Talos copies to the system disk.
func (b blankVM) given(a MachineAddress, card string) (*BlankSetting, Obstacle) {
	addr, key := a.Prefix.Addr(), "ipconfig"+card
	ip, gw := "ip", "gw"
	if addr.Is6() {
		ip, gw = "ip6", "gw6"
	}
	if was, err := netip.ParsePrefix(option(b.Config[key], ip)); err == nil && was.Addr() == addr && b.readsDrive() {
		return nil, Obstacle{}
	}
	gateway, err := a.gateway()
	value := ipconfig(b.Config[key], ip, a.Prefix.String(), gw, gateway)
	if against := b.untold(a, key, value); against.Text != "" || err.Text != "" {
		return nil, cmp.Or(against, err)
	}
	return &BlankSetting{key, value}, Obstacle{}
}

func (a MachineAddress) gateway() (string, Obstacle) {
	addr := a.Prefix.Addr()
	switch {
	case !a.Gateway.IsValid() || a.Gateway.Is6() != addr.Is6():
		return "", Obstacle{}
	case a.Prefix.Contains(a.Gateway), addr.Is6():
		return a.Gateway.String(), Obstacle{}
	}
	// nocloud's format has no route to such a gateway
	return "", obstacle("its gateway %s is not in the network of its address %s, which a cloud-init drive can't tell a blank machine: reserve the address for MAC %s in DHCP and have the machine configuration say dhcp: true there, or use in-place", a.Gateway, a.Prefix, a.MAC)
}

// untold says why the VM's cloud-init drive would not give the blank machine the setting with its address.
func (b blankVM) untold(a MachineAddress, key, value string) (o Obstacle) {
	var first []string
	if b.Platform != "nocloud" {
		o.Config = "images.platform: nocloud"
		first = append(first, "set images.platform to nocloud, then recast lock: recast then has the VM's cloud-init drive tell the blank machine its address")
	}
	custom, lasting := b.Config["cicustom"], ""
	if a.Layer == LayerPlatform { // nothing else has the address once the system disk is replaced
		lasting = fmt.Sprintf(" --%s %s", key, value)
	}
	switch {
	case b.CloudInit == "":
		o.Command = fmt.Sprintf("qm set %d --%s %s:cloudinit", b.ID, b.freeDrive(), b.Storage) + lasting
		first = append(first, fmt.Sprintf("give the VM a cloud-init drive (%s)", o.Command))
	case strings.Contains(","+custom, ",network="):
		o.Command = b.NoNetwork + lasting
		first = append(first, fmt.Sprintf("take the network= part out of cicustom (%s)", custom))
	case b.otherFormat():
		o.Command = fmt.Sprintf("qm set %d --citype nocloud", b.ID)
		first = append(first, fmt.Sprintf("set citype of VM %d to nocloud (%s)", b.ID, o.Command))
	}
	if len(first) == 0 {
		return Obstacle{}
	}
	where := "its machine configuration alone"
	if a.Layer == LayerPlatform {
		where = "a copy on its system disk alone"
	}
	o.Text = fmt.Sprintf("its address %s (%s) is in %s, so a blank machine would not have it: %s; or reserve it for MAC %s in DHCP and have the machine configuration say dhcp: true there; or use in-place",
		a.Prefix.Addr(), a.Link, where, strings.Join(first, ", and "), a.MAC)
	return o
}

// argued handles an address from a kernel argument. Kernel arguments are part of an image.
func (b blankVM) argued(a MachineAddress) Obstacle {
	for _, arg := range b.KernelArgs {
		if rest, ok := strings.CutPrefix(arg, "ip="); ok {
			rest = strings.NewReplacer("[", "", "]", "").Replace(rest)
			if rest == a.Prefix.Addr().String() || strings.HasPrefix(rest, a.Prefix.Addr().String()+":") {
				return Obstacle{}
			}
		}
	}
	return obstacle("its address %s is one of a kernel argument ip= that the schematic does not have, so a blank machine would not have it: have DHCP or the machine configuration give it its address, and roll in-place once", a.Prefix.Addr())
}

// announced handles an address from a router advertisement, which stays the same if it is made from the card's MAC.
func (a MachineAddress) announced() Obstacle {
	if a.Prefix.Addr().Is6() && a.Prefix.Addr() == eui64(a.Prefix, a.MAC) {
		return Obstacle{}
	}
	return obstacle("its address %s comes from nothing that Talos knows of and is not made of MAC %s, so whether a blank machine would have it can't be determined: use in-place", a.Prefix.Addr(), a.MAC)
}

// card returns the number of the VM's network card with that MAC; "" if no card has it.
func (b blankVM) card(mac string) string {
	for key, value := range b.Config {
		n, ok := strings.CutPrefix(key, "net")
		if _, err := strconv.Atoi(n); !ok || err != nil {
			continue
		}
		for option := range strings.SplitSeq(value, ",") {
			// "virtio=BC:24:11:00:00:01": the model has the MAC, or macaddr does.
			if _, is, _ := strings.Cut(option, "="); mac != "" && strings.EqualFold(is, mac) {
				return n
			}
		}
	}
	return ""
}

// readsDrive says whether the boot ISO takes its network from the VM's ipconfigN.
func (b blankVM) readsDrive() bool {
	return b.Platform == "nocloud" && b.CloudInit != "" && !b.otherFormat() && !strings.Contains(","+b.Config["cicustom"], ",network=")
}

// otherFormat: the drive is not in nocloud's format, as by default for Windows (Cloudinit.pm, get_cloudinit_format).
func (b blankVM) otherFormat() bool {
	if citype := b.Config["citype"]; citype != "" {
		return citype != "nocloud"
	}
	return strings.HasPrefix(b.Config["ostype"], "w")
}

// freeDrive returns the key of an unused SCSI drive of the VM: Proxmox can hot-plug a SCSI drive, but not an IDE drive.
func (b blankVM) freeDrive() string {
	for n := 30; n > 0; n-- {
		if key := fmt.Sprintf("scsi%d", n); b.Config[key] == "" {
			return key
		}
	}
	return "scsi0"
}

func option(value, name string) string {
	for part := range strings.SplitSeq(value, ",") {
		if is, ok := strings.CutPrefix(part, name+"="); ok {
			return is
		}
	}
	return ""
}

// ipconfig returns an ipconfigN with this address and gateway of one IP version, and the other's settings.
func ipconfig(old, ip, address, gw, gateway string) string {
	parts := slices.DeleteFunc(strings.Split(old, ","), func(part string) bool {
		name, _, _ := strings.Cut(part, "=")
		return name == "" || name == ip || name == gw
	})
	parts = append(parts, ip+"="+address)
	if gateway != "" {
		parts = append(parts, gw+"="+gateway)
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

func eui64(network netip.Prefix, mac string) netip.Addr {
	hw, err := net.ParseMAC(mac)
	if err != nil || len(hw) != 6 || network.Bits() > 64 {
		return netip.Addr{}
	}
	b := network.Masked().Addr().As16()
	copy(b[8:], []byte{hw[0] ^ 2, hw[1], hw[2], 0xff, 0xfe, hw[3], hw[4], hw[5]})
	return netip.AddrFrom16(b)
}
