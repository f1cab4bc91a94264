package cluster

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"time"

	"github.com/recast-sh/recast/cluster/firewall"
)

// ErrNotFound says that what was asked for does not exist: a VM, a Node, a volume.
// Adapters wrap it; nothing but a clear answer of the server may become it.
var ErrNotFound = errors.New("not found")

// ErrChanged says that a VM's configuration is no longer the one whose digest was given.
var ErrChanged = errors.New("changed by someone else")

// ErrLocked says that nothing was done because a VM's configuration carries the
// lock of somebody's task.
var ErrLocked = errors.New("locked by somebody's task")

// ErrStorageBusy says that a volume could not be renamed because something had it in
// use, or that it took too long: it may have its new name all the same, or get it.
var ErrStorageBusy = errors.New("its storage is busy with the volume")

// ErrExists says that a VM with that VMID exists already somewhere in the Proxmox cluster.
var ErrExists = errors.New("exists already")

// ErrLostAnswer says that a change was sent but no answer came back: it may or
// may not have happened. Look at the world before doing anything else.
var ErrLostAnswer = errors.New("no answer: it may or may not have happened")

// ErrNoAnswer says that a server could not be reached, or could not answer what
// it was asked: nothing is known of what it keeps.
var ErrNoAnswer = errors.New("no answer")

// ErrNotNow says that a server gave no clear answer to a read: it was not reached,
// it was too slow, or it failed. Asked again it may give one. Of changes only those
// have it of which nothing was sent, or that may be made twice.
var ErrNotNow = errors.New("no answer just now")

// ErrBusy says that a machine is at work on an installation already; nothing was begun.
var ErrBusy = errors.New("an installation is in progress already")

// ErrNotYet says that a machine is not ready for what was asked; nothing was begun.
var ErrNotYet = errors.New("it is not ready for that yet")

// Access says what our token may do.
type Access interface {
	// TokenID names the token, without its secret: "recast@pve!roll".
	TokenID() string
	// Permissions reads what the token may do at a path of the access tree
	// ("/", "/vms/9011"), which need not exist.
	Permissions(ctx context.Context, path string) (Privileges, error)
	// Standing reads at each of the paths what the token and its user have.
	Standing(ctx context.Context, paths []string) (map[string]Standing, error)
}

// Inventory reads the whole Proxmox cluster.
type Inventory interface {
	VMReader
	TieReader
	StorageReader
	HostReader
}

// VMReader reads VMs.
type VMReader interface {
	// VMs lists every VM of the Proxmox cluster with its configuration, ordered by
	// VMID. Which of them run, it tells about 10 s late: VM tells what decides.
	// While hosts do not answer it lists those of the others beside a *HostsAway.
	VMs(ctx context.Context) ([]VM, error)
	// VM reads one VM afresh, wherever in the cluster it is, but for its pool.
	// ErrNotFound if there is none.
	VM(ctx context.Context, id VMID) (VM, error)
	// VMConfig is VM without a look whether it is on: it counts as running, so that
	// nothing is done to it that would need it off.
	VMConfig(ctx context.Context, id VMID) (VM, error)
	// VMState reads whether a VM is on: VM without its configuration.
	VMState(ctx context.Context, id VMID) (VMState, error)
	// Pool names the resource pool that a VM is in; "" if in none.
	Pool(ctx context.Context, id VMID) (string, error)
}

// TieReader reads what Proxmox keeps for a VM outside of its configuration, and what its guest says.
type TieReader interface {
	// Ties reads what Proxmox keeps for a VM outside of its configuration.
	Ties(ctx context.Context, vm VM) (Ties, error)
	// TiesOf is Ties of each of the VMs, in their order. What is kept in one place for
	// all of them is read once, afresh.
	TiesOf(ctx context.Context, vms []VM) []TiesRead
	// Firewall is a VM's own firewall; an empty one where it has none.
	Firewall(ctx context.Context, vm VM) (firewall.Config, error)
	// HAResource reads the VM's resource in Proxmox HA; nil if there is none.
	HAResource(ctx context.Context, id VMID) (*HAResource, error)
	// GuestAddrs asks a VM's guest agent which addresses its network cards have.
	// ErrNotYet where no agent answers; of kind fault.Refused where we may not ask.
	GuestAddrs(ctx context.Context, vm VM) ([]netip.Addr, error)
}

// StorageReader reads storages and the volumes on them.
type StorageReader interface {
	// Storages lists the storages of the Proxmox cluster, by name.
	Storages(ctx context.Context) ([]Storage, error)
	// Room reads what room a host has for disks of VMs.
	Room(ctx context.Context, host string) (Room, error)
	// HasVolume says whether a volume (an ISO, say) is there for VMs of that host.
	HasVolume(ctx context.Context, host, volid string) (bool, error)
	// OwnedVolumes lists the volids of the disk images on a storage, as that host
	// sees it, whose name carries that VMID, sorted; whether or not any VM refers to them.
	OwnedVolumes(ctx context.Context, host, storage string, owner VMID) ([]string, error)
}

// HostReader reads the hosts of the Proxmox cluster.
type HostReader interface {
	// Quorate says whether the Proxmox cluster has quorum right now.
	Quorate(ctx context.Context) (bool, error)
	// FreeMemory is how many bytes of memory a host has that nothing uses.
	FreeMemory(ctx context.Context, host string) (int64, error)
}

// HA takes VMs out of Proxmox HA and puts them back.
type HA interface {
	// RemoveHA removes the VM's HA resource and leaves every rule as it is. No-op
	// if there is none. The VM goes on as it is, on or off.
	RemoveHA(ctx context.Context, id VMID) error
	// AddHA makes the resource again as it was. No-op if it is there with these
	// settings; others are an error.
	AddHA(ctx context.Context, r HAResource) error
}

// Editor changes VMs. Every method returns when Proxmox has finished the work,
// not when it accepted it; a failed task is an error with the task's own words.
type Editor interface {
	// CreateVM makes a VM on a host from raw configuration keys ("scsi0": "fast:10,serial=…").
	// It never starts it.
	CreateVM(ctx context.Context, host string, id VMID, config map[string]string) error
	// SetConfig sets and deletes keys of the configuration with that digest. ErrChanged if it is another one.
	SetConfig(ctx context.Context, vm VM, set map[string]string, del []string) error
	// FreeDisk frees the volume behind vm's key, which must be vm's own, and removes the key. ErrChanged as for SetConfig.
	FreeDisk(ctx context.Context, vm VM, key string) error
	// DeleteVM deletes a stopped VM and every volume that it owns. Never sends purge
	// nor destroy-unreferenced-disks.
	DeleteVM(ctx context.Context, vm VM) error
	// MoveDisk gives the volume behind vm's key to another VM on the same host
	// under toKey; the volume gets a new volid. ErrChanged as for SetConfig.
	MoveDisk(ctx context.Context, vm VM, key string, to VMID, toKey string) error
	// SetFirewall gives a VM this firewall, and no other part of one. It is done when it
	// returns nil; after an error any part may be done. No request of it has a digest:
	// one that was not answered may come late.
	SetFirewall(ctx context.Context, vm VM, want firewall.Config) error
}

// Power switches VMs on and off.
type Power interface {
	// Start starts a VM and fails if it does not start.
	Start(ctx context.Context, vm VM) error
	// Shutdown asks the guest to power off and returns an error if it has not within grace.
	Shutdown(ctx context.Context, vm VM, grace time.Duration) error
	// Stop pulls the plug.
	Stop(ctx context.Context, vm VM) error
}

// Tasks looks at what Proxmox is doing for us.
type Tasks interface {
	// OwnTasks lists, in words, the tasks that our token started and that still run,
	// as far as they are about a VM that of accepts.
	OwnTasks(ctx context.Context, of func(VMID) bool) ([]string, error)
	// OwnTasksOf lists those about one VM that run on one host.
	OwnTasksOf(ctx context.Context, host string, id VMID) ([]string, error)
}

// Proxmox is all that a roll needs of a Proxmox cluster.
type Proxmox interface {
	Access
	Inventory
	Tasks
	Editor
	HA
	Power
}

// Talos talks to machines through the Talos API with the cluster's credentials.
type Talos interface {
	MachineReader
	Etcd
	Upgrader
}

// MachineReader reads what configured machines say.
type MachineReader interface {
	StateReader
	ConfigReader
	KubernetesReader
	MemberReader
	Compatibility
	// WatchMachine tells until ctx ends when the machine at addr, configured or not,
	// begins or ceases to answer, or stands otherwise: see wait.Watch.
	WatchMachine(ctx context.Context, addr netip.Addr, tell func(look bool)) error
}

// StateReader reads how a configured machine stands, and what it runs.
type StateReader interface {
	// Machine reads what a configured machine says about itself. The error names
	// the address; a machine that answers but refuses our certificate is an error too.
	Machine(ctx context.Context, addr netip.Addr) (Machine, error)
	// Standing reads what shows that a machine is not running and ready yet.
	Standing(ctx context.Context, addr netip.Addr) (MachineStanding, error)
	// Identity reads who a configured machine is.
	Identity(ctx context.Context, addr netip.Addr) (MachineIdentity, error)
	// Booted reads Standing, which system is booted, in which boot, and which would boot next.
	Booted(ctx context.Context, addr netip.Addr) (BootedMachine, error)
	// Arrived is Booted of a machine that is running and ready, and Standing of one that is not yet.
	Arrived(ctx context.Context, addr netip.Addr) (BootedMachine, error)
	// ArrivedWhole is Arrived with what Machine reads.
	ArrivedWhole(ctx context.Context, addr netip.Addr) (Machine, error)
}

// ConfigReader reads a machine's configuration, and what Diff compares.
type ConfigReader interface {
	// System reads what Diff compares, for half the requests of Machine.
	System(ctx context.Context, addr netip.Addr) (ComparedMachine, error)
	// MachineConfig reads the machine's whole configuration, all documents, as stored.
	MachineConfig(ctx context.Context, addr netip.Addr) (Secret, error)
	// InstallImage reads which installer the machine's configuration names; "" when that can't be read.
	InstallImage(ctx context.Context, addr netip.Addr) (string, error)
}

// KubernetesReader reads what a configured machine's Talos says of the Kubernetes on it.
type KubernetesReader interface {
	// Kubernetes reads all of it.
	Kubernetes(ctx context.Context, addr netip.Addr) (MachineKubernetes, error)
	// KubernetesImages reads the UUID and the Images of it.
	KubernetesImages(ctx context.Context, addr netip.Addr) (MachineKubernetes, error)
	// RemovedFlags lists, in words, what the machine's components are told that
	// Kubernetes to, one minor version after from, knows no more. The error is of kind
	// fault.Refused where nobody here knows what that version has removed.
	RemovedFlags(ctx context.Context, addr netip.Addr, controlPlane bool, from, to string) ([]string, error)
}

// MemberReader reads who belongs to the cluster.
type MemberReader interface {
	// Members lists the cluster's machines as its discovery knows them, asked of any endpoint that answers.
	Members(ctx context.Context) ([]Member, error)
}

// Compatibility knows what Talos supports. It talks to nobody.
type Compatibility interface {
	// Unsupported says why a machine that runs Talos from can't be brought to Talos
	// to, with what to do instead; nothing where it can. kubelet is the version of
	// Kubernetes that it runs, "" where that is not known.
	Unsupported(from, to, kubelet string) []string
	// UnsupportedKubernetes says so of a Talos and a Kubernetes; "" where it is supported.
	UnsupportedKubernetes(talos, kubernetes string) string
}

// Etcd talks to etcd through the Talos API of one control plane. Every call has
// a deadline of its own: without quorum etcd does not answer.
type Etcd interface {
	EtcdReader
	// EtcdForfeit makes the member at addr hand leadership over if it has it.
	EtcdForfeit(ctx context.Context, addr netip.Addr, uuid string) error
	// EtcdLeave makes the member at addr leave and empties its data directory.
	EtcdLeave(ctx context.Context, addr netip.Addr, uuid string) error
}

// EtcdReader is what of etcd changes nothing.
type EtcdReader interface {
	// EtcdMembers lists the members as the control plane at addr knows them, by name.
	EtcdMembers(ctx context.Context, addr netip.Addr) ([]EtcdMember, error)
	// EtcdStatus reads how the member at addr itself stands, its alarms included.
	EtcdStatus(ctx context.Context, addr netip.Addr) (EtcdStatus, error)
	// EtcdSnapshot streams a snapshot of the member at addr: a database file and its
	// SHA-256 behind it. It fails if the machine that answers runs another than that
	// member; 0: any.
	EtcdSnapshot(ctx context.Context, addr netip.Addr, member uint64, w io.Writer) error
}

// Upgrader replaces the system of a running machine in place. Each call refuses
// unless the machine at addr has that UUID.
type Upgrader interface {
	// PullInstaller makes the machine fetch an installer by digest and returns when
	// it has it; supported is false on a Talos that has no API for it (before 1.13).
	PullInstaller(ctx context.Context, addr netip.Addr, uuid, installer string, say func(string)) (supported bool, err error)
	// PullImage makes the machine fetch the image of a component, which returns when it has it.
	PullImage(ctx context.Context, addr netip.Addr, uuid string, c Component, image string, say func(string)) error
	// Install writes the installer's system beside the running one, with the API
	// that the machine's version has. reboots is true where that API reboots the
	// machine by itself afterwards (before 1.13); otherwise it returns when it is installed.
	Install(ctx context.Context, addr netip.Addr, uuid, installer string, say func(string)) (reboots bool, err error)
	// Reboot restarts the machine; it returns when the machine has accepted it.
	Reboot(ctx context.Context, addr netip.Addr, uuid string) error
	// Rollback makes the other boot entry the default one and reboots.
	Rollback(ctx context.Context, addr netip.Addr, uuid string) error
	// ReplaceConfig gives a configured machine another configuration without a reboot.
	ReplaceConfig(ctx context.Context, addr netip.Addr, uuid string, config Secret) error
}

// Maintenance talks to machines that have no configuration yet, without credentials.
type Maintenance interface {
	// MaintenanceMachine reads a machine in maintenance mode.
	MaintenanceMachine(ctx context.Context, addr netip.Addr) (BlankMachine, error)
	// Taken says in words who has an address, whatever runs there; "": nobody, for
	// silence is all that comes back. What else comes back is an error.
	Taken(ctx context.Context, addr netip.Addr) (by string, err error)
	// ApplyConfig hands the machine its first configuration. It refuses unless the
	// machine that answers has this UUID.
	ApplyConfig(ctx context.Context, addr netip.Addr, uuid string, config Secret) error
	// PatchConfig returns config with the installer image, the install disk (by
	// what tells it best), the hostname and versions of Kubernetes set, all else untouched, checked for what Talos
	// itself would refuse. It talks to nobody.
	PatchConfig(config Secret, p ConfigPatch) (Secret, error)
}

// ConfigPatch is what recast sets in a machine configuration before it applies
// it; what is "" stays as it is.
type ConfigPatch struct {
	Installer string      // image reference by digest
	Disk      MachineDisk // the one to install on, as the machine shows it
	Hostname  string
	// Kubernetes says of which versions its images are to be, in the repositories
	// that it names, or wholly where it names none.
	Kubernetes KubernetesImages
	// Talos is the version that is to read it, which is refused what is newer than that; it sets nothing.
	Talos string
}

// EtcdRestorer makes a machine begin an etcd of its own with a snapshot. What
// changes the machine refuses unless it has that UUID.
type EtcdRestorer interface {
	// EtcdService is what Talos says of its service etcd: its state, and the last thing that it told.
	EtcdService(ctx context.Context, addr netip.Addr) (state, last string, err error)
	// EtcdRecover uploads a snapshot, as often as it is asked to. ErrNotYet as for EtcdBootstrap.
	EtcdRecover(ctx context.Context, addr netip.Addr, uuid string, snapshot io.Reader) error
	// EtcdBootstrap begins with what was uploaded, and returns when the machine has
	// accepted that. ErrNotYet where it may be asked again; refused where it has data of etcd.
	EtcdBootstrap(ctx context.Context, addr netip.Addr, uuid string, copied bool) error
}

// FileReader opens the files of running machines.
type FileReader interface {
	// Files hands the files of the machine at addr to look; all that look reads
	// comes from one boot of it. It refuses unless the machine has that UUID.
	Files(ctx context.Context, addr netip.Addr, uuid string, look func(context.Context, MachineFiles) error) error
}

// MachineFiles are the files of one running machine.
type MachineFiles interface {
	// List hands what is in a directory to each, which must not call back: all that
	// is below it, or, unless deep, only its entries. ErrNotFound if there is no such directory.
	List(ctx context.Context, dir string, deep bool, each func(MachineFile) error) error
	// Read writes a regular file to w. One that has not exactly sizeBytes is an error.
	Read(ctx context.Context, name string, sizeBytes int64, w io.Writer) error
}

// MachineFile is what a machine lists of one of its files.
type MachineFile struct {
	Path      string
	Mode      fs.FileMode
	SizeBytes int64
	Link      string // target of a symbolic link
}
