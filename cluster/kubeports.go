package cluster

import (
	"context"
	"net/netip"
	"time"

	"github.com/recast-sh/recast/cluster/replica"
)

// Kube talks to the Kubernetes API of the cluster.
type Kube interface {
	KubeReader
	NodeWriter
	replica.Holder
	// SetProxyImage changes the image of kube-proxy's DaemonSet; ErrChanged if it has neither
	// image.
	SetProxyImage(ctx context.Context, from, to string) error
}

// KubeReader reads the Kubernetes API.
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
	// OwnNode is the node on which recast runs, as a pod of this cluster; "" if it does not.
	OwnNode(ctx context.Context) (string, error)
	// PendingCertificates names the certificate requests of its kubelet that wait for approval.
	PendingCertificates(ctx context.Context, node string) ([]string, error)
	// OtherOwners lists, in words, what else in the cluster would change the versions of nodes:
	// upgraders like tuppr, unless they are suspended.
	OtherOwners(ctx context.Context) ([]string, error)
}

// NodeWriter changes nodes.
type NodeWriter interface {
	// Cordon makes the node unschedulable and marks it with why, in one change. A node that is
	// unschedulable without a mark was cordoned by someone else: its mark gets Foreign set.
	Cordon(ctx context.Context, node string, why Mark) error
	// Uncordon removes the mark and, unless it is Foreign, makes the node schedulable, in one
	// change. A node without a mark stays as it is.
	Uncordon(ctx context.Context, node string) error
	// DeleteNode deletes the Node object if it still has that UID. No error if there is none.
	DeleteNode(ctx context.Context, node, uid string) error
	// SetFailedBuild records on the Node the build whose in-place upgrade came back as the old
	// system; "" clears it.
	SetFailedBuild(ctx context.Context, node, build string) error
	// SetBooted records on the Node what is known of its machine's boot entries; Booted{} removes it.
	SetBooted(ctx context.Context, node string, b Booted) error
	// Drain evicts the pods of a cordoned node, respecting PodDisruptionBudgets, until only
	// DaemonSet and mirror pods are left. Until the timeout it retries refused evictions and waits
	// for an unavailable API. say gets a line for each pod and each refusal. recast's own pod goes
	// last, and the drain ends with ownpod.OwnPodEvicted.
	Drain(ctx context.Context, node string, o DrainOptions, say func(string)) error
	// RestoreMetadata restores the node's labels, annotations and taints, except for keys that
	// Kubernetes and Talos manage themselves.
	RestoreMetadata(ctx context.Context, node string, m NodeMetadata) error
}

// VolumeReader reads volumes, where they are, and which data is on one node only.
type VolumeReader interface {
	replica.HoldReader
	// AttachedVolumes lists the volumes attached to the node, or still being detached, by name,
	// each with the pod that uses it and that a drain leaves.
	AttachedVolumes(ctx context.Context, node string) ([]AttachedVolume, error)
	// ServedUsers lists the pods that use volumes on iSCSI or NVMe-oF, sorted.
	ServedUsers(ctx context.Context) ([]ServedUser, error)
	// WatchDetached reports when a volume was detached from the node: see wait.Watch.
	WatchDetached(ctx context.Context, node string, tell func(look bool)) error
	// LocalData reads what is bound to each of the nodes, again on each call: local and hostPath
	// PersistentVolumes with affinity to it that are in use, what its pods write to it,
	// directories of Longhorn and Rook, pools of LINSTOR. The key "" has the volumes of Proxmox'
	// CSI driver.
	LocalData(ctx context.Context, nodes ...KubeNode) (map[string][]LocalData, error)
	// Replicas reads the volumes that storage systems keep on several nodes, again on each call. A
	// system that is not installed is left out.
	Replicas(ctx context.Context) ([]replica.System, error)
	// NodeData is LocalData and Replicas with one look.
	NodeData(ctx context.Context, nodes ...KubeNode) (map[string][]LocalData, []replica.System, error)
	// WatchReplicas reports when something of that replica.System has become healthy: see wait.Watch.
	WatchReplicas(ctx context.Context, system string, tell func(look bool)) error
	// PodVolumes lists the handles of all volumes of Proxmox' CSI driver.
	PodVolumes(ctx context.Context) ([]string, error)
}

// ComponentReader reads which Kubernetes the cluster runs.
type ComponentReader interface {
	// APIServer asks the API server at this address for its version. An error says that it does not
	// serve, or refuses us.
	APIServer(ctx context.Context, addr netip.AddrPort) (version string, err error)
	// StaticPods lists the static pods of control planes, by node and component.
	StaticPods(ctx context.Context) ([]StaticPod, error)
	// ProxySet reads the DaemonSet of kube-proxy. ErrNotFound where there is none.
	ProxySet(ctx context.Context) (ProxySet, error)
	// RemovedObjects lists, in words, the objects whose kinds version to of Kubernetes, one minor
	// version after from, no longer serves. Errors are as for RemovedFlags.
	RemovedObjects(ctx context.Context, from, to string) ([]string, error)
}

// DrainOptions bound a drain.
type DrainOptions struct {
	Timeout time.Duration
	Force   bool // also delete pods that no controller recreates
	// Delete deletes pods whose eviction is still refused after Timeout, bypassing
	// PodDisruptionBudgets, and waits for them for another Timeout.
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

// ObjectJudge evaluates expressions on Kubernetes objects.
type ObjectJudge interface {
	Judge(ctx context.Context, g ObjectGate) (Judged, error)
}

// CommandRunner runs a program once, with env added to its environment. An error means that it did
// not start, or was stopped before its end.
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

// Leases keeps the claim of a run whose Proxmox token can't create VMs: as a Kubernetes Lease in
// kube-system.
type Leases interface {
	// Lease reads the claim's Lease. ErrNotFound if there is none; ErrNoAnswer if
	// the API can't tell.
	Lease(ctx context.Context) (Lease, error)
	// CreateLease creates it. ErrExists if another run was faster.
	CreateLease(ctx context.Context, l Lease) error
	// UpdateLease writes it if its UID and revision are unchanged, else ErrChanged.
	UpdateLease(ctx context.Context, l Lease) error
	// DeleteLease deletes it if its UID and revision are unchanged, else ErrChanged.
	DeleteLease(ctx context.Context, l Lease) error
}

// Lease is a Lease that is a claim.
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
