package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

var (
	// ErrNotFound: what was asked for does not exist. Adapters wrap it only for a clear answer of the server.
	ErrNotFound = errors.New("not found")
	ErrChanged  = errors.New("changed by someone else")  // a VM's configuration no longer has the given digest
	ErrLocked   = errors.New("locked by someone's task") // nothing was done: a task has locked a VM's configuration
	// ErrStorageBusy says that a volume could not be renamed because it was in use, or that the rename took too long:
	// then the volume may have its new name anyway, or get it later.
	ErrStorageBusy = errors.New("its storage is busy with the volume")
	ErrExists      = errors.New("exists already") // a VM with that VMID, somewhere in the Proxmox cluster
	// ErrLostAnswer: a change was sent, and may have happened. Read the present state before doing anything else.
	ErrLostAnswer = errors.New("no answer: it may or may not have happened")
	ErrNoAnswer   = errors.New("no answer") // of a server: what it stores is unknown
	// ErrNotNow says that a server gave no clear answer to a read: the server was not reached, was too slow, or failed. A
	// retry may get an answer. A change has this error only if nothing was sent, or if the change is safe to repeat.
	ErrNotNow = errors.New("no answer just now")
	ErrBusy   = errors.New("an installation is in progress already") // nothing was started
	ErrNotYet = errors.New("it is not ready for that yet")           // a machine; nothing was started
)

// Access says what our token may do.
type Access interface {
	// TokenID names the token, without its secret: "recast@pve!roll".
	TokenID() string
	// Permissions reads what the token may do at a path of the access tree ("/", "/vms/9011"). The path need not exist.
	Permissions(ctx context.Context, path string) (Privileges, error)
	// Standing reads at each of the paths the privileges of the token and its user.
	Standing(ctx context.Context, paths []string) (map[string]Standing, error)
}

// Inventory reads the whole Proxmox cluster.
type Inventory interface {
	VMReader
	TieReader
	StorageReader
	HostReader
}

type VMReader interface {
	// VMs lists all VMs by VMID. Running lags by 10 s. If hosts do not answer: the others, and a *HostsAway.
	VMs(ctx context.Context) ([]VM, error)
	// VM reads one VM afresh, on any host of the cluster, but without its pool. ErrNotFound if there is none.
	VM(ctx context.Context, id VMID) (VM, error)
	// VMConfig is VM without the power state: the VM counts as running, so what requires it to be off is not done.
	VMConfig(ctx context.Context, id VMID) (VM, error)
	// VMState reads whether a VM is on: VM without its configuration.
	VMState(ctx context.Context, id VMID) (VMState, error)
	// Pool names the resource pool that a VM is in; "" if it is in no pool.
	Pool(ctx context.Context, id VMID) (string, error)
}

// TieReader reads what Proxmox keeps for a VM outside of its configuration, and what its guest says.
type TieReader interface {
	// Ties reads what Proxmox keeps for a VM outside of its configuration.
	Ties(ctx context.Context, vm VM) (Ties, error)
	// TiesOf reads the Ties of the VMs, in their order. What Proxmox has in one place for all is read once, afresh.
	TiesOf(ctx context.Context, vms []VM) []TiesRead
	// Firewall reads a VM's own firewall; it is empty if there is none.
	Firewall(ctx context.Context, vm VM) (FirewallConfig, error)
	// HAResource reads the VM's resource in Proxmox HA; nil if there is none.
	HAResource(ctx context.Context, id VMID) (*HAResource, error)
	// Migration reads whether Proxmox can migrate a VM to another host, and what prevents it.
	Migration(ctx context.Context, vm VM, to string) (Migration, error)
	// GuestAddrs asks a VM's guest agent for its addresses. ErrNotYet: no answer; fault.Refused: our token may not ask.
	GuestAddrs(ctx context.Context, vm VM) ([]netip.Addr, error)
}

type StorageReader interface {
	// Storages lists the storages of the Proxmox cluster, by name.
	Storages(ctx context.Context) ([]Storage, error)
	// Room reads how much space a host has for disks of VMs.
	Room(ctx context.Context, host string) (Room, error)
	// HasVolume says whether VMs on that host can use a volume (an ISO, for example).
	HasVolume(ctx context.Context, host, volid string) (bool, error)
	// VolumeChanged is HasVolume, and says when the volume's file was changed; zero if Proxmox does not tell.
	VolumeChanged(ctx context.Context, host, volid string) (at time.Time, found bool, err error)
	// OwnedVolumes lists a storage's disk images with that VMID in their names, sorted, as the host sees it.
	OwnedVolumes(ctx context.Context, host, storage string, owner VMID) ([]string, error)
}

type HostReader interface {
	// Quorate says whether the Proxmox cluster has quorum right now.
	Quorate(ctx context.Context) (bool, error)
	// FreeMemory reads how many bytes of memory are unused on a host.
	FreeMemory(ctx context.Context, host string) (int64, error)
}

type HA interface {
	// RemoveHA removes the VM's HA resource, if any, and leaves every rule as it is. The VM stays on or off.
	RemoveHA(ctx context.Context, id VMID) error
	// AddHA creates the removed resource again. No-op if it exists with these settings; other settings are an error.
	AddHA(ctx context.Context, r HAResource) error
	// SetHA changes the settings of the VM's resource to these.
	SetHA(ctx context.Context, r HAResource) error
}

// Editor changes VMs. Each method returns when Proxmox has finished; a failed task is an error in its own words.
type Editor interface {
	// CreateVM creates a VM on a host from raw configuration keys ("scsi0": "fast:10,serial=…"). It never starts it.
	CreateVM(ctx context.Context, host string, id VMID, config map[string]string) error
	// SetConfig sets and deletes configuration keys. ErrChanged if the digest is no longer vm's.
	SetConfig(ctx context.Context, vm VM, set map[string]string, del []string) error
	// FreeDisk frees the volume behind vm's key, which must be vm's own, and removes the key. ErrChanged as for SetConfig.
	FreeDisk(ctx context.Context, vm VM, key string) error
	// DeleteVM deletes a stopped VM and every volume that it owns. It never sends purge or destroy-unreferenced-disks.
	DeleteVM(ctx context.Context, vm VM) error
	// MoveDisk gives the volume behind vm's key to another VM on the same host
	// under toKey; the volume gets a new volid. ErrChanged as for SetConfig.
	MoveDisk(ctx context.Context, vm VM, key string, to VMID, toKey string) error
	// GrowDisk grows the disk behind vm's key to a size such as "20G", whether or not the VM runs;
	// Proxmox refuses a smaller one. ErrChanged as for SetConfig.
	GrowDisk(ctx context.Context, vm VM, key, size string) error
	// SetPool moves a VM into a resource pool. Its configuration does not change.
	SetPool(ctx context.Context, id VMID, pool string) error
	// SetFirewall gives a VM this firewall. An error may leave any part; an unanswered request may come true late.
	SetFirewall(ctx context.Context, vm VM, want FirewallConfig) error
}

type Power interface {
	// Start starts a VM and fails if it does not start.
	Start(ctx context.Context, vm VM) error
	// Shutdown asks the guest to power off and returns an error if the guest has not done so within grace.
	Shutdown(ctx context.Context, vm VM, grace time.Duration) error
	// Stop switches the VM off at once, without the guest.
	Stop(ctx context.Context, vm VM) error
	// Migrate moves a VM, running or stopped, to another host, and returns once the VM is there.
	Migrate(ctx context.Context, vm VM, to string) error
}

// Trust says what proves, besides Proxmox' task logs, that recast made a VM that says it is a parking VM.
type Trust struct {
	Pools []string // of the nodes: who may put a VM there may take the nodes' disks anyway
	Nodes []VMID   // VMs whose pools count, too
	Known Known    // nil: nothing is remembered
}

// Known remembers, for task logs are rotated, which VMs were proven to be ours: by number and SMBIOS UUID.
type Known interface {
	Has(vm VM) (bool, error)
	Add(vm VM) error
}

// Tasks reads what Proxmox is doing for our token.
type Tasks interface {
	// OwnTasks lists, in words, the running tasks that our token started for VMs that of accepts.
	OwnTasks(ctx context.Context, of func(VMID) bool) ([]string, error)
	// OwnTasksOf lists the running tasks that our token started for one VM on one host.
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
	EtcdBootstrapper
	Upgrader
	Configurer
	KubeletRestarter
}

type KubeletRestarter interface {
	// RestartKubelet returns when the kubelet is starting again; its containers keep running. It refuses another UUID.
	RestartKubelet(ctx context.Context, addr netip.Addr, uuid string) error
}

type MachineReader interface {
	PartReader
	ConfigReader
	KubernetesReader
	MemberReader
	Compatibility
	// WatchMachine reports, until ctx ends, that the machine starts or stops answering, or changes: see wait.Watch.
	WatchMachine(ctx context.Context, addr netip.Addr, tell func(look bool)) error
}

type ConfigReader interface {
	// MachineConfig reads the machine's whole configuration, all documents, as stored.
	MachineConfig(ctx context.Context, addr netip.Addr) (Secret, error)
	// MachineConfigs reads the configuration for the next boot, and the configuration that the machine runs.
	MachineConfigs(ctx context.Context, addr netip.Addr) (Configs, error)
	// SilentResolvers lists the machine's DNS servers if none of them answers.
	SilentResolvers(ctx context.Context, addr netip.Addr) ([]string, error)
	// InstallImage reads which installer the machine's configuration names; "" if it can't be read.
	InstallImage(ctx context.Context, addr netip.Addr) (string, error)
}

type KubernetesReader interface {
	// Kubernetes reads all of MachineKubernetes.
	Kubernetes(ctx context.Context, addr netip.Addr) (MachineKubernetes, error)
	// KubernetesImages reads only the UUID and the Images.
	KubernetesImages(ctx context.Context, addr netip.Addr) (MachineKubernetes, error)
	// RemovedFlags lists, in words, the settings of the machine's components that version to of
	// Kubernetes, one minor version after from, no longer knows. The error is of kind fault.Refused
	// if recast does not know what that version removed.
	RemovedFlags(ctx context.Context, addr netip.Addr, controlPlane bool, from, to string) ([]string, error)
}

type MemberReader interface {
	// Members lists the cluster's machines as Talos' discovery knows them, from any endpoint that answers.
	Members(ctx context.Context) ([]Member, error)
	// Endpoints returns the addresses of the talosconfig's endpoints, in its order.
	Endpoints(ctx context.Context) ([]netip.Addr, error)
}

// Compatibility knows what Talos supports. It sends no requests.
type Compatibility interface {
	// Unsupported says why Talos can't go from one version to the other, and what to do; kubelet "": unknown.
	Unsupported(from, to, kubelet string) []string
	// UnsupportedKubernetes says why this Talos does not support this Kubernetes; "" if it does.
	UnsupportedKubernetes(talos, kubernetes string) string
}

// Etcd talks to etcd through one control plane's Talos. Each call has a deadline: without quorum etcd does not answer.
type Etcd interface {
	EtcdReader
	// EtcdForfeit makes the member at addr hand over leadership if it has it.
	EtcdForfeit(ctx context.Context, addr netip.Addr, uuid string) error
	// EtcdLeave makes the member at addr leave and empties its data directory.
	EtcdLeave(ctx context.Context, addr netip.Addr, uuid string) error
}

// EtcdReader reads etcd and changes nothing.
type EtcdReader interface {
	// EtcdMembers lists the members as the control plane at addr knows them, by name.
	EtcdMembers(ctx context.Context, addr netip.Addr) ([]EtcdMember, error)
	// EtcdStatus reads a member's status from that member, with the alarms, or without them and with an error.
	EtcdStatus(ctx context.Context, addr netip.Addr) (EtcdStatus, error)
	// EtcdSnapshot streams the database of the member at addr, then its SHA-256. It refuses another member than member.
	EtcdSnapshot(ctx context.Context, addr netip.Addr, member uint64, w io.Writer) error
}

// TalosReader reads machines and their etcd, and changes nothing.
type TalosReader interface {
	MachineReader
	EtcdReader
}

// Upgrader replaces the system of a running machine in place. Each call refuses another UUID.
type Upgrader interface {
	// PullInstaller has the machine fetch an installer by digest; supported: its Talos has an API for that (1.13).
	PullInstaller(ctx context.Context, addr netip.Addr, uuid, installer string, say func(string)) (supported bool, err error)
	// PullImage makes the machine fetch the image of a component, and returns when the machine has the image.
	PullImage(ctx context.Context, addr netip.Addr, uuid string, c Component, image string, say func(string)) error
	// Install writes the installer's system beside the running one. reboots is true where that API reboots the machine
	// by itself afterwards (before 1.13), as how says; otherwise Install returns when the system is installed.
	Install(ctx context.Context, addr netip.Addr, uuid, installer string, how Reboot, say func(string)) (reboots bool, err error)
	// Reboot restarts the machine; it returns when the machine has accepted the request.
	Reboot(ctx context.Context, addr netip.Addr, uuid string, how Reboot) error
	// Rollback makes the other boot entry the default one and reboots.
	Rollback(ctx context.Context, addr netip.Addr, uuid string) error
}

// Configurer gives machines a configuration without a reboot. It refuses another UUID; Talos' no is fault.Refused.
type Configurer interface {
	// ReplaceConfig makes the machine run a configuration from now on, and ends a trial.
	ReplaceConfig(ctx context.Context, addr netip.Addr, uuid string, config Secret) error
	// TryConfig makes the machine run a configuration on trial. After limit the machine returns to its previous
	// configuration by itself, reached or not, unless it was given another configuration meanwhile.
	TryConfig(ctx context.Context, addr netip.Addr, uuid string, config Secret, limit time.Duration) error
	// StageConfig makes the machine run a configuration from its next boot on.
	StageConfig(ctx context.Context, addr netip.Addr, uuid string, config Secret) error
	// CheckConfig asks the machine whether it would refuse a configuration, or reboot for it (Talos up to 1.13
	// knows). In Talos up to 1.13 this call ends a trial.
	CheckConfig(ctx context.Context, addr netip.Addr, uuid string, config Secret) (reboots bool, err error)
}

// Maintenance talks to machines that have no configuration yet, without credentials.
type Maintenance interface {
	MaintenanceReader
	// ApplyConfig hands the machine its first configuration. It refuses unless the machine that answers proves, on the same
	// connection, who it is.
	ApplyConfig(ctx context.Context, addr netip.Addr, who Proof, config Secret) error
}

// MaintenanceReader reads machines without a configuration, and configurations. It changes nothing.
type MaintenanceReader interface {
	// MaintenanceMachine reads a machine in maintenance mode.
	MaintenanceMachine(ctx context.Context, addr netip.Addr) (BlankMachine, error)
	// Taken says in words who has an address; "": it is free, since nothing answers. An unclear response is an error.
	Taken(ctx context.Context, addr netip.Addr) (by string, err error)
	// PatchConfig returns config with the installer image, the install disk (by its best identifier), the hostname and
	// versions of Kubernetes set, and all else unchanged. It refuses what Talos itself would refuse. It sends no requests.
	PatchConfig(config Secret, p ConfigPatch) (Secret, error)
	// ConfigEffect says how wanted would affect a node that runs the other, but for PatchConfig's. It sends nothing.
	ConfigEffect(runs, wanted Secret) (ConfigEffect, error)
	// TrustedCA: the talosconfig trusts a configuration's CA of Talos; known: it names one. It sends no requests.
	TrustedCA(config Secret) (trusted, known bool, err error)
	// ConfigVolumes lists the volumes that hold data and that a configuration defines for a version of Talos; "": a
	// recent version. It sends no requests.
	ConfigVolumes(config Secret, talos string) ([]ConfigVolume, error)
	// Selectors evaluates a configuration's selectors, as a Talos reads it, on the machine at addr. blank says that the
	// machine is in maintenance mode. If addr is invalid, or the machine does not answer, the selectors are Unknown.
	Selectors(ctx context.Context, addr netip.Addr, blank bool, config Secret, talos string) ([]DiskSelector, error)
}

// ConfigEffect is the effect of another configuration on a running node.
type ConfigEffect struct {
	Identity   []string     // what would make it another node, or a node of another cluster, in words
	Reboot     []string     // the fields that take effect only at the next boot
	Unknown    []string     // documents of kinds that recast does not know: the node's Talos judges them
	Encryption []Encryption // how the wanted configuration encrypts volumes
}

// ConfigPatch is what recast sets in a machine configuration before it applies it; an empty field changes nothing.
type ConfigPatch struct {
	Installer string      // image reference by digest
	Disk      MachineDisk // the disk to install on, as the machine shows it
	Hostname  string
	// Kubernetes has the images' versions. An image of the configuration keeps its repository; others are set whole.
	Kubernetes KubernetesImages
	// Talos is the version that will read the configuration: what is newer than that version is refused. It sets nothing.
	Talos string
	Runs  bool // a machine has the configuration already: an error of its own release is no reason to refuse it
}

type FileReader interface {
	// Files calls look with the files at addr, all from one boot of the machine. It refuses another UUID.
	Files(ctx context.Context, addr netip.Addr, uuid string, look func(context.Context, MachineFiles) error) error
}

// Kube talks to the Kubernetes API of the cluster.
type Kube interface {
	KubeReader
	NodeWriter
	replica.Holder
	// SetProxyImage changes the image of kube-proxy's DaemonSet; ErrChanged if it has neither image.
	SetProxyImage(ctx context.Context, from, to string) error
}

type KubeReader interface {
	NodeReader
	VolumeReader
	ComponentReader
}

// NodeReader reads Node objects, and what else acts on them.
type NodeReader interface {
	// Nodes lists the Node objects.
	Nodes(ctx context.Context) ([]KubeNode, error)
	// Node reads one Node object. ErrNotFound if there is none.
	Node(ctx context.Context, name string) (KubeNode, error)
	// WatchNode reports when the Node becomes Ready, perhaps in another boot: see wait.Watch.
	WatchNode(ctx context.Context, node string, tell func(look bool)) error
	// OwnNode returns the node on which recast runs as a pod of this cluster; "" if recast does not run in it.
	OwnNode(ctx context.Context) (string, error)
	// PendingCertificates names the certificate requests of the node's kubelet that wait for approval.
	PendingCertificates(ctx context.Context, node string) ([]string, error)
	// OtherOwners lists, in words, what else would change nodes' versions: upgraders like tuppr that are not suspended.
	OtherOwners(ctx context.Context) ([]string, error)
}

type NodeWriter interface {
	// Cordon makes a node unschedulable with the mark why. One that was so without a mark gets Foreign set.
	Cordon(ctx context.Context, node string, why Mark) error
	// Uncordon removes the mark and, unless Foreign, makes the node schedulable. Without a mark it stays as it is.
	Uncordon(ctx context.Context, node string) error
	// DeleteNode deletes the Node object if it still has that UID. No error if there is none.
	DeleteNode(ctx context.Context, node, uid string) error
	// SetFailedBuild records on the Node the build whose in-place upgrade came back as the old system; "" clears it.
	SetFailedBuild(ctx context.Context, node, build string) error
	// SetBooted records on the Node what is known of its machine's boot entries; Booted{} removes the record.
	SetBooted(ctx context.Context, node string, b Booted) error
	// Drain evicts the pods of a cordoned node, respecting PodDisruptionBudgets, until only DaemonSet and mirror pods are
	// left. Until the timeout it retries refused evictions and waits for an unavailable API. say gets a line for each pod
	// and each refusal. recast's own pod goes last, and the drain ends with OwnPodEvicted.
	Drain(ctx context.Context, node string, o DrainOptions, say func(string)) error
	// RestoreMetadata restores labels, annotations and taints that Kubernetes and Talos don't manage themselves.
	RestoreMetadata(ctx context.Context, node string, m NodeMetadata) error
}

type VolumeReader interface {
	replica.HoldReader
	// AttachedVolumes lists by name what is attached to the node or being detached, and pods of it that a drain leaves.
	AttachedVolumes(ctx context.Context, node string) ([]AttachedVolume, error)
	// ServedUsers lists the pods that use volumes on iSCSI or NVMe-oF, sorted.
	ServedUsers(ctx context.Context) ([]ServedUser, error)
	// WatchDetached reports when a volume was detached from the node: see wait.Watch.
	WatchDetached(ctx context.Context, node string, tell func(look bool)) error
	// LocalData reads the data that is bound to each of the nodes, again on each call: local and hostPath
	// PersistentVolumes with affinity to the node that are in use, data that its pods write to it, directories of
	// Longhorn and Rook, pools of LINSTOR. The key "" has the volumes of Proxmox' CSI driver.
	LocalData(ctx context.Context, nodes ...KubeNode) (map[string][]LocalData, error)
	// Replicas reads the volumes that installed storage systems keep on several nodes, again on each call.
	Replicas(ctx context.Context) ([]replica.System, error)
	// NodeData returns LocalData and Replicas from one read.
	NodeData(ctx context.Context, nodes ...KubeNode) (map[string][]LocalData, []replica.System, error)
	// WatchReplicas reports when something of the storage system, a replica.System, has become healthy: see wait.Watch.
	WatchReplicas(ctx context.Context, system string, tell func(look bool)) error
	// PodVolumes lists the handles of all volumes of Proxmox' CSI driver.
	PodVolumes(ctx context.Context) ([]string, error)
}

type ComponentReader interface {
	// APIServer asks the API server at this address for its version. An error: it does not serve, or refuses us.
	APIServer(ctx context.Context, addr netip.AddrPort) (version string, err error)
	// StaticPods lists the static pods of control planes, by node and component.
	StaticPods(ctx context.Context) ([]StaticPod, error)
	// ProxySet reads the DaemonSet of kube-proxy. ErrNotFound where there is none.
	ProxySet(ctx context.Context) (ProxySet, error)
	// RemovedObjects is RemovedFlags for the objects whose kinds version to of Kubernetes no longer serves.
	RemovedObjects(ctx context.Context, from, to string) ([]string, error)
}

// DrainOptions bound a drain.
type DrainOptions struct {
	Timeout time.Duration
	Force   bool // also delete pods that no controller recreates
	// Delete deletes pods whose eviction is refused after Timeout, whatever their budgets, and waits once more as long.
	Delete bool
}

// Judged is what an ObjectJudge found out about an ObjectGate's objects.
type Judged struct {
	Unserved string // why there can be no such objects: the kind is not installed; "" if it is
	Objects  int    // how many were selected
	Failing  []FailingObject
}

// FailingObject is an object for which the expression is not true or can't be evaluated.
type FailingObject struct {
	Name string // with its namespace: "longhorn-system/pvc-1a2b"
	Why  string // what the expression reads of it: "status.robustness=degraded"; or the error of its evaluation
}

type ObjectJudge interface {
	Judge(ctx context.Context, g ObjectGate) (Judged, error)
}

// CommandRunner runs a program once, with env. An error: it did not start, or was stopped before its end.
type CommandRunner interface {
	// RunGate runs a gate's program; said is what it printed last.
	RunGate(ctx context.Context, g CommandGate, env []string) (exit int, said string, err error)
	// RunHook runs a hook's program; line gets each line as it is printed.
	RunHook(ctx context.Context, g CommandGate, env []string, line func(text string)) (HookEnd, error)
}

// HookEnd is how the program of a hook ended.
type HookEnd struct {
	Exit   int
	Said   string // what it printed last, on one line
	Output string // the end of what it printed, HookOutput bytes at most
}

// HookOutput is how much of what a hook prints is kept.
const HookOutput = 64 << 10

// Leases keeps the claim of a run whose Proxmox token can't create VMs: as a Kubernetes Lease in kube-system.
type Leases interface {
	// Lease reads the claim's Lease. ErrNotFound if there is none; ErrNoAnswer if the API can't tell.
	Lease(ctx context.Context) (Lease, error)
	// CreateLease creates the claim's Lease. ErrExists if another run was faster.
	CreateLease(ctx context.Context, l Lease) error
	// UpdateLease writes the Lease if its UID and revision are unchanged, else returns ErrChanged.
	UpdateLease(ctx context.Context, l Lease) error
	// DeleteLease deletes the Lease if its UID and revision are unchanged, else returns ErrChanged.
	DeleteLease(ctx context.Context, l Lease) error
}

// Lease is a Kubernetes Lease that holds a claim.
type Lease struct {
	Name     string // as Kubernetes knows it: "kube-system/recast"
	UID      string // "" before it is created
	Revision string
	Holder   string // for people
	Duration time.Duration
	Acquired time.Time
	Renewed  time.Time
	Claim    string // what recast reads; "": not a Lease of recast
}

// Address is the node's address, as etcd's peers may use a separate network, or else that in its peer URLs.
func (m EtcdMember) Address(known []Endpoint) (netip.Addr, error) {
	if e, is := Find(known, func(e Endpoint) bool { return m.Of(e.Node) }); is {
		return e.Addr, nil
	}
	for _, peer := range m.Peers {
		u, err := url.Parse(peer)
		if err != nil {
			continue
		}
		if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("etcd member %s: no address in its peer URLs %v", m.Label(), m.Peers)
}

func (m EtcdMember) Label() string {
	return cmp.Or(m.Name, fmt.Sprintf("%x", m.ID)) // without a name it is added, but not started yet
}

// IsLearner follows the name of a learner in messages.
const IsLearner = " is a learner: it does not vote yet"

// EtcdBootstrapper makes a machine begin an etcd of its own. Calls that change it refuse another UUID.
type EtcdBootstrapper interface {
	// EtcdService reads what Talos says about its service etcd: its state, and its last message.
	EtcdService(ctx context.Context, addr netip.Addr) (state, last string, err error)
	// EtcdRecover uploads a snapshot; it can be repeated. ErrNotYet as for EtcdBootstrap.
	EtcdRecover(ctx context.Context, addr netip.Addr, uuid string, snapshot io.Reader) error
	// EtcdBootstrap returns when the machine has accepted. ErrNotYet: retry. It is refused where data of etcd is.
	EtcdBootstrap(ctx context.Context, addr netip.Addr, uuid string, content EtcdContent) error
}

// EtcdContent is what a new etcd begins with.
type EtcdContent string

// What a new etcd can begin with.
const (
	EtcdEmpty    EtcdContent = ""
	EtcdSnapshot EtcdContent = "snapshot" // that was uploaded
	EtcdCopy     EtcdContent = "copy"     // an uploaded copy of a database, which has no checksum
)

// Hook is a program of the user's own that runs at a point of a run. It has to end with 0 within its timeout.
type Hook struct {
	Description    string      `json:"description,omitempty"`
	TimeoutSeconds int         `json:"timeoutSeconds"`
	Command        CommandGate `json:"command"`
}

// Hooks are those of a run, by point, each list in the order in which it runs.
type Hooks struct {
	BeforeRun   []Hook `json:"beforeRun,omitempty"`
	AfterRun    []Hook `json:"afterRun,omitempty"`
	BeforeBatch []Hook `json:"beforeBatch,omitempty"`
	AfterBatch  []Hook `json:"afterBatch,omitempty"`
	BeforeNode  []Hook `json:"beforeNode,omitempty"`
	AfterNode   []Hook `json:"afterNode,omitempty"`
}

// HookPoint is when hooks run.
type HookPoint string

// The points of a run. A batch is a phase of its plan.
const (
	BeforeRun   HookPoint = "beforeRun"
	AfterRun    HookPoint = "afterRun"
	BeforeBatch HookPoint = "beforeBatch"
	AfterBatch  HookPoint = "afterBatch"
	BeforeNode  HookPoint = "beforeNode"
	AfterNode   HookPoint = "afterNode"
)

func (h Hook) String() string         { return cmp.Or(h.Description, h.About()) }
func (h Hook) About() string          { return h.Command.line() }
func (h Hook) Timeout() time.Duration { return time.Duration(h.TimeoutSeconds) * time.Second }

func (h Hooks) At(p HookPoint) []Hook {
	return map[HookPoint][]Hook{
		BeforeRun: h.BeforeRun, AfterRun: h.AfterRun, BeforeBatch: h.BeforeBatch, AfterBatch: h.AfterBatch,
		BeforeNode: h.BeforeNode, AfterNode: h.AfterNode,
	}[p]
}

// HookPoints lists the points in the order in which a run reaches them.
func HookPoints() []HookPoint {
	return []HookPoint{BeforeRun, BeforeBatch, BeforeNode, AfterNode, AfterBatch, AfterRun}
}

// IsHookKey says whether a key of a run's journal is for a planning.HookRun.
func IsHookKey(key string) bool {
	return strings.HasPrefix(key, "hooks/") || strings.Contains(key, "/hooks/")
}

// UserGate is a condition of the user's own. It has to hold before a node is taken out, and before the next one goes.
type UserGate struct {
	Description    string       `json:"description,omitempty"`
	BeforeOnly     bool         `json:"beforeOnly,omitempty"` // not asked after the node is back
	TimeoutSeconds int          `json:"timeoutSeconds"`       // that it may take to hold, each time
	Objects        *ObjectGate  `json:"objects,omitempty"`
	Command        *CommandGate `json:"command,omitempty"`
}

// ObjectGate is an expression that has to be true of every object selected.
type ObjectGate struct {
	APIVersion string `json:"apiVersion"` // "ceph.rook.io/v1"
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"` // "": all
	Name       string `json:"name,omitempty"`      // "": all
	Labels     string `json:"labels,omitempty"`    // selector as the Kubernetes API takes it
	Expr       string `json:"expr"`
	Optional   bool   `json:"optional,omitempty"` // holds without any such object, or kind
}

// CommandGate is a program that has to end with 0. Hooks are such programs as well.
type CommandGate struct {
	Args []string `json:"args"`
	Dir  string   `json:"-"` // where it runs
	Env  []string `json:"-"` // names of variables that it gets of recast's environment, beside those that every program gets
}

func (g UserGate) String() string { return cmp.Or(g.Description, g.About()) }

func (g UserGate) About() string {
	if g.Command != nil {
		return g.Command.line()
	}
	o := g.Objects
	about := o.APIVersion + " " + o.Kind
	if where := strings.Trim(o.Namespace+"/"+o.Name, "/"); where != "" {
		about += " " + where
	}
	if o.Labels != "" {
		about += " with " + o.Labels
	}
	return about
}

// line returns the program with its arguments on one line, even if an argument is a script.
func (c CommandGate) line() string {
	var words []string
	for _, arg := range c.Args {
		var lines []string
		for line := range strings.Lines(arg) {
			if line = strings.TrimSpace(line); line != "" {
				lines = append(lines, line)
			}
		}
		words = append(words, strings.Join(lines, "; "))
	}
	return strings.Join(words, " ")
}

func (g UserGate) Timeout() time.Duration { return time.Duration(g.TimeoutSeconds) * time.Second }

// Took is how long one node's roll took once.
type Took struct {
	Node     string   `json:"node"`
	Role     string   `json:"role"`
	Strategy Strategy `json:"strategy"`
	Talos    string   `json:"talos,omitempty"` // version that it had before
	// OutageSeconds is from the end of its drain to when it was back.
	OutageSeconds int `json:"outageSeconds"`
	// WholeSeconds is from its gate to its end.
	WholeSeconds int            `json:"wholeSeconds"`
	Expected     int            `json:"expectedOutageSeconds,omitempty"` // as its plan had it
	Steps        map[string]int `json:"steps,omitempty"`                 // seconds of those that took any, by path below the node
}

const tookKey = "/took"

func TookKey(node string) string { return node + tookKey }

func IsTookKey(key string) bool { return strings.HasSuffix(key, tookKey) }

const handsOver = "hands-over/"

// HandsOver is a fact in a run's journal: a storage on a host handed a volume over from one VM to another.
type HandsOver struct {
	Host    string `json:"host"`
	Storage string `json:"storage"`
}

func (h HandsOver) Key() string {
	sum := sha256.Sum256([]byte(h.Host + "/" + h.Storage))
	return handsOver + hex.EncodeToString(sum[:6])
}

func IsHandsOverKey(key string) bool { return strings.HasPrefix(key, handsOver) }

// Notice tells someone who does not watch the run about it.
type Notice struct {
	Event   NoticeEvent `json:"event"`
	Command string      `json:"command"` // "roll"
	Cluster string      `json:"cluster"`
	Run     string      `json:"run"`     // "" where it ended before it changed anything
	Outcome string      `json:"outcome"` // "done", "failed" or "interrupted"; "" at the start
	Nodes   Fates       `json:"nodes"`
	Error   string      `json:"error"` // "" unless it failed
	Hints   []string    `json:"hints"`
	Started time.Time   `json:"started"`
	Ended   time.Time   `json:"ended,omitzero"` // zero at the start
	Host    string      `json:"host"`           // on which recast runs
	User    string      `json:"user"`           // who runs it there; the notifier knows
	Text    string      `json:"text"`           // the whole notice on one line
}

// NoticeEvent is the reason for a notice.
type NoticeEvent string

// The events of a run. At its end a run sends one notice: NoticeFailure unless it is done.
const (
	NoticeStart   NoticeEvent = "start"
	NoticeFailure NoticeEvent = "failure"
	NoticeEnd     NoticeEvent = "end"
)

// Fates lists the nodes of a run by their outcome, each list sorted.
type Fates struct {
	Done   []string `json:"done"`
	Failed []string `json:"failed"`
	Left   []string `json:"left"` // not reached, or stopped on the way
}

// Notifier sends notices. The error of Notify names each notice that did not arrive, and contains no secret.
type Notifier interface {
	Notify(ctx context.Context, n Notice) error
}

// Timing bounds the waits of a roll.
type Timing struct {
	Poll   time.Duration // pause between two reads
	Settle time.Duration // how long a node must stay healthy
	Stop   time.Duration // guest shutdown, before the VM is switched off
	Boot   time.Duration // power on to maintenance mode
	Join   time.Duration // configuration applied to healthy
	Try    time.Duration // configuration on trial to healthy
	Drain  time.Duration
	Heal   time.Duration // node back to replicated volumes whole; also how long a node waits for whole volumes before it goes
}

// rarely is the factor for the poll interval while a watch is open: a silent watch is not necessarily lost.
const rarely = 10

// Await calls look at the interval of t, or w's own, until it is done, or our own credentials are wrong.
func (t Timing) Await(ctx context.Context, w wait.For, look wait.Look) error {
	w.Every, w.Watched = cmp.Or(w.Every, t.Poll), rarely*t.Poll
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		done, seen, err := look(ctx)
		if fault.KindOf(err) == fault.Config {
			err = wait.Stop(err)
		}
		return done, seen, err
	})
}

func AwaitTasks(ctx context.Context, w wait.For, list func(context.Context) ([]string, error)) error {
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		running, err := list(ctx)
		return len(running) == 0, "running: " + strings.Join(running, ", "), wait.Stop(err)
	})
}
