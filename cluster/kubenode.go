package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// PauseMark is the annotation that keeps recast from taking a node out of service. Its value is the reason.
const PauseMark = "recast.dev/pause"

// Pause returns the reason in a Node's pause annotation; "" without one.
func Pause(annotations map[string]string) string {
	text, paused := annotations[PauseMark]
	why := strings.Join(strings.Fields(text), " ")
	if paused && why == "" {
		return "no reason given"
	}
	return why
}

// Unpause returns the command that lets recast take out a paused node again.
func Unpause(node string) string {
	return "kubectl annotate node " + node + " " + PauseMark + "- lifts that"
}

// Begun says whether both marks are of the same upgrade in the same boot.
func (m Mark) Begun(now Mark) bool {
	return m.Strategy == now.Strategy && m.Build == now.Build && m.BootID == now.BootID
}

// Pools returns the members of the machine's pools. It names the system disk GoneSystemDisk, which is its name once
// the machine does not answer.
func (m Machine) Pools() []PoolMember {
	out := slices.Clone(m.PoolMembers)
	for i := range out {
		out[i].Disks = slices.Clone(out[i].Disks)
		for j, disk := range out[i].Disks {
			if disk == m.SystemDisk {
				out[i].Disks[j] = GoneSystemDisk
			}
		}
	}
	return out
}

// HeldBy says whether the run has the node cordoned.
func (k KubeNode) HeldBy(run string) bool {
	return k.Unschedulable && k.Mark != nil && k.Mark.Run == run
}

// LocalData is data that is on one node only. Data that may be in several places has one entry for
// each, all with the same name.
type LocalData struct {
	Name string // what acceptLoss takes: "pv/pvc-1a2b", "hostpath/var/lib/app", "longhorn/var/lib/longhorn", "linstor/pool1"
	What string // for people: "PersistentVolume pvc-1a2b (claim default/db-0)"
	Path string // on the node; "" for a volume of LVM or ZFS, or if unknown

	Format string // of the pool that it is in: FormatLVM or FormatZFS; "" for a file or directory, or if unknown
	Group  string // name of that volume group or pool; "" if unknown
	Access string // ISCSI or NVMeoF: the volume is on a server of that protocol, not on a node; the server may admit machines by their names
	Handle string // of a Proxmox volume, by its CSI driver: it is not bound to one node

	Lift    string // how to move it to other nodes, in words; "" if that is impossible
	Command string // arguments of kubectl that start the move; "" for none
}

// AttachedVolume is a volume that Kubernetes counts as attached to a node.
type AttachedVolume struct {
	Attachment string // the VolumeAttachment
	Volume     string // the PersistentVolume; "" for a volume that only its pod names
	Claim      string // "namespace/name"; "" if it has none
	Driver     string // that attaches and detaches it: "csi.proxmox.sinextra.dev"
	Trouble    string // what the driver reports; "" for nothing
	Handle     string // the driver's own name for it: "cluster-1/pve1/fast/vm-9999-pvc-0b5f"; "" if there is none
	User       string // the pod that uses it and that a drain leaves on the node: "DaemonSet pod csi/agent-x2b"; "" for none
}

// String names the volume for people.
func (v AttachedVolume) String() string {
	text, about := "VolumeAttachment "+v.Attachment, "driver "+v.Driver
	if v.Volume != "" {
		text = "PersistentVolume " + v.Volume
	}
	if v.Claim != "" {
		about = "claim " + v.Claim + ", " + about
	}
	text += " (" + about + ")"
	if v.Trouble != "" {
		text += " " + v.Trouble
	}
	return text
}

// IsOf says whether a VM's drive is the volume. Handles of Proxmox drivers end with the volume's name in Proxmox.
func (v AttachedVolume) IsOf(d Disk) bool {
	name := func(s string) string { return strings.TrimSuffix(strings.TrimSuffix(path.Base(s), ".qcow2"), ".raw") }
	_, volume, _ := strings.Cut(d.Volid, ":")
	return v.Handle != "" && name(v.Handle) == name(volume)
}

const (
	ControlPlane = "control-plane"
	Worker       = "worker"
)

// RoleOf is the role of a node.
func RoleOf(controlPlane bool) string {
	if controlPlane {
		return ControlPlane
	}
	return Worker
}

// LacksNode says what a node still lacks in Kubernetes in its current boot; "" if it lacks nothing.
func LacksNode(ctx context.Context, kube NodeReader, node, uuid, bootID string) (string, error) {
	k, err := kube.Node(ctx, node)
	switch {
	case errors.Is(err, ErrNotFound):
		return nodeUnknown, nil
	case err != nil:
		return "", err
	}
	return LacksReady(ctx, kube, k, uuid, bootID)
}

// LacksReady is LacksNode for a Node that was read after the machine.
func LacksReady(ctx context.Context, kube NodeReader, k KubeNode, uuid, bootID string) (string, error) {
	switch {
	case k.UUID != uuid:
		return fmt.Sprintf("Kubernetes has another machine by its name, UUID %s", k.UUID), nil
	case k.BootID != bootID:
		return bootUnseen, nil
	case !k.Ready:
		return nodeNotReady, nil
	}
	pending, err := kube.PendingCertificates(ctx, k.Name)
	if err == nil && len(pending) > 0 {
		return fmt.Sprintf("certificate requests of its kubelet wait for approval: kubectl certificate approve %s, or have kubelet-serving-cert-approver do it",
			strings.Join(pending, " ")), nil
	}
	return "", err
}

// IsWatched says whether the watches of a machine and its Node report the end of this lack.
func IsWatched(lacks string) bool {
	return strings.HasPrefix(lacks, StandsIn) || slices.Contains([]string{nodeUnknown, bootUnseen, nodeNotReady}, lacks)
}

// Settling is what a wait reports for a node that lacks nothing, until the settling time is over.
const Settling = "healthy, settling"

const (
	bootUnseen   = "Kubernetes has not seen this boot yet"
	nodeNotReady = "its Node is not Ready"
	nodeUnknown  = "Kubernetes does not know it yet"
)

// Awaited waits for the effect of a change whose answer may be lost. Any other error of the change ends that.
func Awaited(changed error, await func() error) error {
	if changed != nil && !errors.Is(changed, ErrLostAnswer) {
		return changed
	}
	return Unanswered(changed, await())
}

// Unanswered adds to the error of a failed wait the change that got no answer: the change may never have happened.
func Unanswered(lost, waited error) error {
	if lost == nil || waited == nil {
		return waited
	}
	return fmt.Errorf("%w; before that: %w", waited, lost)
}

// LacksStaticPods names the first thing that keeps the static pods of a control plane from running as its machine's
// configuration says; "" if nothing does.
func LacksStaticPods(ctx context.Context, kube ComponentReader, node string, addr netip.Addr, m MachineKubernetes) (string, error) {
	pods, err := kube.StaticPods(ctx)
	if err != nil {
		return "", err
	}
	for _, c := range StaticPods {
		if m.Images.Of(c) == "" {
			continue
		}
		if what, err := LacksStaticPod(ctx, kube, pods, node, addr, c, m); err != nil || what != "" {
			return fmt.Sprintf("its %s: %s", c, cmp.Or(what, fmt.Sprint(err))), err
		}
	}
	return "", nil
}

// LacksStaticPod is LacksStaticPods for one component.
func LacksStaticPod(ctx context.Context, kube ComponentReader, pods []StaticPod, node string, addr netip.Addr, c Component, m MachineKubernetes) (string, error) {
	if what := LacksPod(pods, node, c, m); what != "" || c != APIServer {
		return what, nil
	}
	return lacksAPIServer(ctx, kube, addr, m)
}

// LacksPod says how a static pod, as Kubernetes shows it, differs from the pod that its machine should run.
func LacksPod(pods []StaticPod, node string, c Component, m MachineKubernetes) string {
	i := slices.IndexFunc(pods, func(p StaticPod) bool { return p.Node == node && p.Component == c })
	if i < 0 {
		return "Kubernetes does not show its pod"
	}
	switch p := pods[i]; {
	case !SameVersion(p.Image, m.Images.Of(c)) || p.Revision < m.Revisions[c]:
		return fmt.Sprintf("its pod still is the old one: %s, of revision %d", p.Image, p.Revision)
	case !p.Ready:
		return "its pod is not Ready: " + words.OrNone(p.Why)
	}
	return ""
}

// RequireAPIServer fails unless a control plane's API server answers at its own address.
func RequireAPIServer(ctx context.Context, talos KubernetesReader, kube ComponentReader, node string, addr netip.Addr) error {
	m, err := talos.Kubernetes(ctx, addr)
	if err == nil {
		_, err = kube.APIServer(ctx, netip.AddrPortFrom(addr, uint16(m.APIPort)))
	}
	return fault.Prefix(fmt.Sprintf("the API server of %s does not serve at its own address", node), err)
}

// lacksAPIServer asks the API server itself: its pod has no readiness probe unless StartupProbesEnabled is set, and
// counts as Ready from its start (k8stemplates/apiserver.go of Talos).
func lacksAPIServer(ctx context.Context, kube ComponentReader, addr netip.Addr, m MachineKubernetes) (string, error) {
	version, err := kube.APIServer(ctx, netip.AddrPortFrom(addr, uint16(m.APIPort)))
	if err != nil {
		return "", fmt.Errorf("its API server: %w", err)
	}
	if r, err := ParseImage(m.Images.APIServer); err == nil { // else its image names no version
		if v, err := ParseVersion(version); err != nil || v != r.Version {
			return "it answers as " + version, nil //nolint:nilerr // it says what it is
		}
	}
	return "", nil
}

// A server that is busy or restarts says nothing about a node. So a node's step is retried while its reads get no
// answer. Each retry checks the step's goal first, and a step can be retried wherever it was interrupted.

// IsUnanswered says whether err means only that a server gave no clear answer to a read, or to a change that is safe
// to repeat. It is false if err also contains a refusal for another reason.
func IsUnanswered(err error) bool {
	if _, isFinal := errors.AsType[*FinalError](err); isFinal || isClear(err) {
		return false
	}
	if _, may := errors.AsType[*RepeatableError](err); may {
		return true
	}
	_, away := errors.AsType[*HostsAway](err)
	return (away || errors.Is(err, ErrNotNow)) && !errors.Is(err, ErrLostAnswer)
}

// isClear says whether part of err is a refusal for another reason than a missing answer.
func isClear(err error) bool {
	if err == nil {
		return false
	}
	if _, silent := err.(*SilentError); silent { //nolint:errorlint // this very error, nothing below it
		return false
	}
	if _, away := errors.AsType[*HostsAway](err); fault.KindOf(err) != fault.Failed && !away && !errors.Is(err, ErrNotNow) {
		return true
	}
	switch e := err.(type) { //nolint:errorlint // the tree is walked here
	case interface{ Unwrap() error }:
		return isClear(e.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), isClear)
	}
	return false
}

// SilentError is a refusal for the sole reason that a server gave no answer.
type SilentError struct{ Err error }

func (e *SilentError) Error() string        { return e.Err.Error() }
func (e *SilentError) Unwrap() error        { return e.Err }
func (e *SilentError) Is(target error) bool { return target == ErrNotNow }

// RepeatableError is the error of a change whose answer was lost and that is safe to repeat.
type RepeatableError struct{ Err error }

func (e *RepeatableError) Error() string { return e.Err.Error() }
func (e *RepeatableError) Unwrap() error { return e.Err }

// FinalError is an error after which a step is not retried: the step was retried for long enough, or the node was
// restored.
type FinalError struct{ Err error }

func (e *FinalError) Error() string { return e.Err.Error() }
func (e *FinalError) Unwrap() error { return e.Err }

// UnprovenError says that something was not done because it is unknown whether the claim is ours.
type UnprovenError struct{ Err error }

func (e *UnprovenError) Error() string { return e.Err.Error() }
func (e *UnprovenError) Unwrap() error { return e.Err }

// Requests that are sent without a digest.
const (
	SentShutdown = "shutdown"
	SentStop     = "stop"
	SentRemoveHA = "remove-ha"
	SentAddHA    = "add-ha"
	SentFirewall = "firewall"
)

// TakesDown are the requests that switch a node off.
var TakesDown = []string{SentShutdown, SentStop}

// NoteUnanswered is called by an adapter after it has sent a request that may still be carried out.
func NoteUnanswered(ctx context.Context) {
	if noted, is := ctx.Value(unansweredKey{}).(*atomic.Bool); is {
		noted.Store(true)
	}
}

// WithUnanswered returns a context for one call of an adapter that changes something, and a
// function that says afterwards whether the call has sent a request that may still be carried out,
// whatever the call returned (net/http/httptrace works in this way).
func WithUnanswered(ctx context.Context) (context.Context, func() bool) {
	var noted atomic.Bool
	return context.WithValue(ctx, unansweredKey{}, &noted), noted.Load
}

type unansweredKey struct{}

// The environment variables that name recast's pod, from Kubernetes' downward API.
const (
	PodNamespaceVar = "RECAST_POD_NAMESPACE"
	PodNameVar      = "RECAST_POD_NAME"
	PodUIDVar       = "RECAST_POD_UID"
)

// OwnPod is the pod in which recast runs, as the environment names it; the zero OwnPod: the environment names no pod.
// The pod may be in another cluster than the one that is rolled: the UID tells. If it is in that cluster, recast
// evicts it last from its node, and ends; the pod that replaces it continues.
type OwnPod struct{ Namespace, Name, UID string }

func (p OwnPod) String() string { return p.Namespace + "/" + p.Name }

// OwnPodFromEnv reads the OwnPod from the environment. It refuses an environment that names only a part of a pod.
func OwnPodFromEnv(getenv func(string) string) (OwnPod, error) {
	p := OwnPod{Namespace: getenv(PodNamespaceVar), Name: getenv(PodNameVar), UID: getenv(PodUIDVar)}
	var missing []string
	for _, v := range []struct{ name, value string }{{PodNamespaceVar, p.Namespace}, {PodNameVar, p.Name}, {PodUIDVar, p.UID}} {
		if v.value == "" {
			missing = append(missing, v.name)
		}
	}
	if len(missing) == 0 || p == (OwnPod{}) {
		return p, nil
	}
	return OwnPod{}, fault.WithHint(fault.Configf("the environment names only a part of the pod in which recast runs: %s not set", strings.Join(missing, " and ")),
		"set %s, %s and %s by fieldRef (metadata.namespace, metadata.name, metadata.uid), or none of them", PodNamespaceVar, PodNameVar, PodUIDVar)
}

// OwnPodEvicted is the error of a drain that ends because recast's own pod ends. Its kind is Interrupted.
func OwnPodEvicted(node string) error {
	return fault.WithHint(fault.As(fault.Interrupted, fmt.Errorf("this run's own pod was evicted from %s; the roll goes on from the pod that replaces it", node)),
		"a Job replaces its pod by itself; where nothing does, run the same command again")
}
