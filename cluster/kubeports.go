package cluster

import (
	"context"
	"net/netip"
	"time"
)

// Kube talks to the Kubernetes API of the cluster.
type Kube interface {
	KubeReader
	NodeWriter
	// SetProxyImage changes the image of kube-proxy's DaemonSet; ErrChanged where it is neither.
	SetProxyImage(ctx context.Context, from, to string) error
}

// KubeReader reads the Kubernetes API.
type KubeReader interface {
	NodeReader
	VolumeReader
	ComponentReader
}

// NodeReader reads Node objects, and what is at work on them.
type NodeReader interface {
	// Nodes lists the Node objects.
	Nodes(ctx context.Context) ([]KubeNode, error)
	// Node reads one of them. ErrNotFound if there is none.
	Node(ctx context.Context, name string) (KubeNode, error)
	// WatchNode tells when the Node becomes Ready, with another boot perhaps: see wait.Watch.
	WatchNode(ctx context.Context, node string, tell func(look bool)) error
	// PendingCertificates names the certificate requests of its kubelet that wait for approval.
	PendingCertificates(ctx context.Context, node string) ([]string, error)
	// OtherOwners lists, in words, what else in the cluster would bring nodes to a
	// version of its own: upgraders such as tuppr, unless they are suspended.
	OtherOwners(ctx context.Context) ([]string, error)
}

// NodeWriter changes nodes.
type NodeWriter interface {
	// Cordon makes the node unschedulable and marks it with why, in one change. A
	// node that is unschedulable without a mark is somebody else's doing: it gets
	// the mark with Foreign set.
	Cordon(ctx context.Context, node string, why Mark) error
	// Uncordon removes the mark and, unless it is Foreign, makes the node schedulable.
	Uncordon(ctx context.Context, node string) error
	// SetFailedBuild remembers on the Node that a build came back from an in-place
	// upgrade as the old system; "" forgets it.
	SetFailedBuild(ctx context.Context, node, build string) error
	// SetBooted remembers on the Node what its machine runs.
	SetBooted(ctx context.Context, node string, b Booted) error
	// Drain evicts the pods of a node that is cordoned, respecting
	// PodDisruptionBudgets, until none but DaemonSet and mirror pods are left. A
	// refusal is asked again until the timeout, an API that is away waited for. say
	// gets a line for each pod and each refusal.
	Drain(ctx context.Context, node string, o DrainOptions, say func(string)) error
	// RestoreMetadata gives the node back the labels, annotations and taints it had,
	// leaving alone keys that Kubernetes and Talos manage themselves.
	RestoreMetadata(ctx context.Context, node string, m NodeMetadata) error
}

// VolumeReader reads which volumes there are, where, and what is on one node only.
type VolumeReader interface {
	// AttachedVolumes lists what is attached to the node, or still being detached, by
	// name, and which pod that a drain leaves uses it.
	AttachedVolumes(ctx context.Context, node string) ([]AttachedVolume, error)
	// WatchDetached tells when a volume was detached from the node: see wait.Watch.
	WatchDetached(ctx context.Context, node string, tell func(look bool)) error
	// LocalData reads for each of the nodes what is bound to it: local and hostPath
	// PersistentVolumes in use, what its pods write to it, directories of Longhorn and
	// Rook, pools of LINSTOR. Under "" it has the volumes of Proxmox' CSI driver.
	LocalData(ctx context.Context, nodes ...KubeNode) (map[string][]LocalData, error)
	// PodVolumes lists the handles of all volumes of Proxmox' CSI driver.
	PodVolumes(ctx context.Context) ([]string, error)
}

// ComponentReader reads which Kubernetes the cluster runs.
type ComponentReader interface {
	// APIServer asks the API server at that very address for its version. An error says
	// that it does not serve, or not us.
	APIServer(ctx context.Context, addr netip.AddrPort) (version string, err error)
	// StaticPods lists the static pods of control planes, by node and component.
	StaticPods(ctx context.Context) ([]StaticPod, error)
	// ProxySet reads the DaemonSet of kube-proxy. ErrNotFound where there is none.
	ProxySet(ctx context.Context) (ProxySet, error)
	// RemovedObjects lists, in words, the objects of kinds that Kubernetes to, one
	// minor version after from, serves no more. Errors are those of RemovedFlags.
	RemovedObjects(ctx context.Context, from, to string) ([]string, error)
}

// DrainOptions bound a drain.
type DrainOptions struct {
	Timeout time.Duration
	Force   bool // also delete pods that no controller will bring back
	// Delete has pods that are still refused when Timeout is over deleted, which
	// asks no PodDisruptionBudget, and waited for as long again.
	Delete bool
}

// Judged is what a look at an ObjectGate's objects saw.
type Judged struct {
	Unserved string // why there can be no such objects: the kind is not installed; "" if it is
	Objects  int    // how many were selected
	Failing  []FailingObject
}

// FailingObject is one of which the expression is not true, or can't be told.
type FailingObject struct {
	Name string // with its namespace: "longhorn-system/pvc-1a2b"
	Why  string // what the expression reads of it: "status.robustness=degraded"; or the error of its evaluation
}

// ObjectJudge evaluates expressions on Kubernetes objects.
type ObjectJudge interface {
	Judge(ctx context.Context, g ObjectGate) (Judged, error)
}

// CommandRunner runs a program once, with env added to its environment. An error
// means that it could not be run, or not to its end.
type CommandRunner interface {
	// RunGate runs that of a gate; said is what it printed last.
	RunGate(ctx context.Context, g CommandGate, env []string) (exit int, said string, err error)
	// RunHook runs that of a hook; line is told what it prints, as it prints it.
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

// Leases keeps the claim of a run whose Proxmox token may not make VMs: as a
// Lease of Kubernetes, in kube-system.
type Leases interface {
	// Lease reads the claim's Lease. ErrNotFound if there is none; ErrNoAnswer if
	// the API can't tell.
	Lease(ctx context.Context) (Lease, error)
	// CreateLease makes it. ErrExists if somebody was faster.
	CreateLease(ctx context.Context, l Lease) error
	// UpdateLease writes it if it still is that one, with that revision, else ErrChanged.
	UpdateLease(ctx context.Context, l Lease) error
	// DeleteLease deletes it if it still is that one, with that revision, else ErrChanged.
	DeleteLease(ctx context.Context, l Lease) error
}

// Lease is a Lease that is a claim.
type Lease struct {
	Name     string // as Kubernetes knows it: "kube-system/recast"
	UID      string // "" while it is to be made
	Revision string
	Holder   string // for people
	Duration time.Duration
	Acquired time.Time
	Renewed  time.Time
	Claim    string // what recast reads; "": somebody else's Lease
}
