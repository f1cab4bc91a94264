package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Component is a part of Kubernetes whose image a machine configuration names.
type Component string

// The components.
const (
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
	Scheduler         Component = "kube-scheduler"
	KubeProxy         Component = "kube-proxy"
	Kubelet           Component = "kubelet"
)

// Components are in the order of an upgrade: none may be newer than an API server (kubernetes.io version-skew-policy).
var Components = []Component{APIServer, ControllerManager, Scheduler, KubeProxy, Kubelet}

// StaticPods are the components that a control plane runs as static pods.
var StaticPods = []Component{APIServer, ControllerManager, Scheduler}

// KubernetesImages are the images of Kubernetes of one machine; "" for a component that the machine does not run.
type KubernetesImages struct {
	APIServer         string `json:",omitempty"`
	ControllerManager string `json:",omitempty"`
	Scheduler         string `json:",omitempty"`
	KubeProxy         string `json:",omitempty"` // in the manifest that its Talos makes
	Kubelet           string `json:",omitempty"`
}

func (k *KubernetesImages) at(c Component) *string {
	switch c {
	case APIServer:
		return &k.APIServer
	case ControllerManager:
		return &k.ControllerManager
	case Scheduler:
		return &k.Scheduler
	case KubeProxy:
		return &k.KubeProxy
	case Kubelet:
		return &k.Kubelet
	}
	panic("unknown component " + string(c))
}

func (k KubernetesImages) Of(c Component) string { return *k.at(c) }

func (k KubernetesImages) With(c Component, image string) KubernetesImages {
	*k.at(c) = image
	return k
}

// MachineKubernetes is what a machine's Talos says about the Kubernetes on it.
type MachineKubernetes struct {
	UUID         string // SMBIOS UUID, lower-case
	TalosVersion string // "v1.13.9"
	BootID       string
	Images       KubernetesImages // that the machine should run: those of its configuration, or Talos' own where the configuration names none
	// Revisions are those of its static pods' configurations. A pod with a lower one has not been replaced yet.
	Revisions      map[Component]uint64
	KubeletHealthy bool // Talos' service
	APIPort        int  // of its API server; 0: it runs none
	// Pending: another configuration is staged or tried. Editing the stored one would activate all of it.
	Pending bool
}

// StaticPod is a component of a control plane as Kubernetes shows it.
type StaticPod struct {
	Node      string
	Component Component
	Image     string
	Revision  uint64 // of the configuration that it was made from
	Ready     bool
	Why       string // why it is not ready, if known
}

// ProxySet is the DaemonSet of kube-proxy.
type ProxySet struct {
	Image                      string
	Seen                       bool // its controller has observed the present image
	Wanted, Updated, Available int  // pods
}

// imageSuffixes mark variants of Sidero's kubelet in its tag (pkg/cluster/kubernetes/kubelet.go of Talos).
var imageSuffixes = []string{"-fat", "-slim"}

// imageRef is an image reference in its parts.
type imageRef struct {
	Repository string
	Prefix     string // of the tag before the version: "v" or nothing
	Version    Version
	Suffix     string // of the tag after the version
	Digest     string
}

func splitImage(image string) (repository, tag, digest string) {
	rest, digest, _ := strings.Cut(image, "@")
	i := strings.LastIndex(rest, ":")
	if i <= strings.LastIndex(rest, "/") {
		return rest, "", digest
	}
	return rest[:i], rest[i+1:], digest
}

// ParseImage parses an image reference whose tag is an upstream Kubernetes version.
func ParseImage(image string) (imageRef, error) {
	repository, tag, digest := splitImage(image)
	if tag == "" {
		return imageRef{}, fmt.Errorf("image %q has no tag: which version it is can't be determined", image)
	}
	r := imageRef{Repository: repository, Digest: digest}
	for _, s := range imageSuffixes {
		if short, ok := strings.CutSuffix(tag, s); ok {
			tag, r.Suffix = short, s
		}
	}
	if short, ok := strings.CutPrefix(tag, "v"); ok {
		tag, r.Prefix = short, "v"
	}
	var err error
	if r.Version, err = ParseVersion(tag); err != nil {
		return imageRef{}, fmt.Errorf("image %q: its tag is not a version of Kubernetes such as v1.35.4", image)
	}
	if r.Version.ofVendor() {
		return imageRef{}, fault.WithHint(fmt.Errorf("image %q: %q in its tag is the vendor's, and that of another version is not known", image, r.Version.pre),
			"upgrade Kubernetes with the tool of the vendor of these images, or name images with the tags of Kubernetes itself")
	}
	return r, nil
}

func (r imageRef) String() string {
	return r.Repository + ":" + r.Prefix + strings.TrimPrefix(r.Version.String(), "v") + r.Suffix
}

// ImageOf returns an image with another version. It fails for an image with a digest: the other version's is unknown.
func ImageOf(image string, v Version) (string, error) {
	r, err := ParseImage(image)
	switch {
	case err != nil && len(fault.Hints(err)) > 0:
		return "", err
	case err != nil:
		return "", fault.WithHint(err, "name the image by its repository and the version that runs in the machine configuration (talosctl edit machineconfig), such as registry.k8s.io/kube-apiserver:v1.35.4")
	case r.Version == v:
		return image, nil
	case r.Digest != "":
		return "", fault.WithHint(fmt.Errorf("image %q is pinned by a digest, and that of %s is not known", image, v),
			"take the digest out of the machine configuration (talosctl edit machineconfig), or upgrade Kubernetes with the tool that pins it")
	}
	r.Version = v
	return r.String(), nil
}

// Retag returns image, which a configuration names, with the version of like, the image that runs. The repository stays
// that of image. It returns like for "". Of a vendor's tags it returns image if equal, like if in one repository.
func Retag(image, like string) (retagged string, err error) {
	if image == "" || image == like {
		return like, nil
	}
	if sameTag(image, like) {
		return image, nil
	}
	r, err := ParseImage(like)
	if err == nil {
		retagged, err = ImageOf(image, r.Version)
	}
	switch {
	case err != nil && takesOver(image, like):
		return like, nil
	case err != nil:
		return "", fault.WithHint(err, "%s runs, and the configuration names %s: name the one that runs there", like, image)
	}
	return retagged, nil
}

// takesOver says whether like can replace image: one repository, both tags versions, perhaps a vendor's, no digest.
func takesOver(image, like string) bool {
	a, tagA, digest := splitImage(image)
	b, tagB, _ := splitImage(like)
	_, errA := ParseVersion(tagA)
	_, errB := ParseVersion(tagB)
	return a == b && digest == "" && errA == nil && errB == nil
}

func SameVersion(a, b string) bool {
	x, errX := ParseImage(a)
	y, errY := ParseImage(b)
	return a == b || sameTag(a, b) || errX == nil && errY == nil && x.Version == y.Version
}

func sameTag(a, b string) bool {
	_, tagA, _ := splitImage(a)
	_, tagB, _ := splitImage(b)
	return tagA != "" && tagA == tagB
}

// Version is a version of Kubernetes, or of Talos, whose versions have the same format.
type Version struct {
	Major, Minor, patch int
	pre                 string // "rc.0"; "": it is a release
}

var kubeVersionPattern = regexp.MustCompile(`^v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?$`)

// ParseVersion reads "v1.35.4", with or without the v.
func ParseVersion(s string) (Version, error) {
	m := kubeVersionPattern.FindStringSubmatch(s)
	if m == nil {
		return Version{}, fmt.Errorf("%q is not a version of Kubernetes: write it like v1.35.4", s)
	}
	number := func(i int) int { n, _ := strconv.Atoi(m[i]); return n } // at most six digits: no error
	return Version{number(1), number(2), number(3), m[4]}, nil
}

// upstreamPre matches the pre-release part of an upstream version. Any other is a vendor's, with an order of its own.
var upstreamPre = regexp.MustCompile(`^(alpha|beta|rc)\.\d+$`)

// ofVendor says whether the version is a vendor's own, which Kubernetes itself never had.
func (v Version) ofVendor() bool { return v.pre != "" && !upstreamPre.MatchString(v.pre) }

func CheckKubernetesVersion(s string) error {
	v, err := ParseVersion(s)
	if err == nil && (v.ofVendor() || strings.Contains(s, "+")) {
		err = fmt.Errorf("%q is a vendor's own version: recast upgrades to those of Kubernetes itself, such as %s or v1.36.0-rc.1", s, v.MinorVersion()+".0")
	}
	return fault.As(fault.Config, err)
}

func (v Version) String() string {
	s := fmt.Sprintf("v%d.%d.%d", v.Major, v.Minor, v.patch)
	if v.pre != "" {
		s += "-" + v.pre
	}
	return s
}

func (v Version) MinorVersion() string { return fmt.Sprintf("v%d.%d", v.Major, v.Minor) }

func (v Version) Compare(o Version) int {
	return cmp.Or(cmp.Compare(v.Major, o.Major), cmp.Compare(v.Minor, o.Minor), cmp.Compare(v.patch, o.patch), comparePre(v.pre, o.pre))
}

func (v Version) Before(o Version) bool { return v.Compare(o) < 0 }

// comparePre orders pre-releases before their release, as https://semver.org does.
func comparePre(a, b string) int {
	if a == "" || b == "" {
		return TrueFirst(b == "", a == "")
	}
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(a, b string) int {
		x, errX := strconv.Atoi(a)
		y, errY := strconv.Atoi(b)
		if errX == nil && errY == nil {
			return cmp.Compare(x, y)
		}
		return cmp.Or(TrueFirst(errX == nil, errY == nil), cmp.Compare(a, b)) // numbers come before words
	})
}

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

// Pools returns the members of the machine's pools. It names the system disk as once the machine does not answer.
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

func RoleOf(controlPlane bool) string {
	return map[bool]string{true: ControlPlane, false: Worker}[controlPlane]
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

// LacksStaticPods names the first thing in which a control plane's static pods differ from its configuration; "": none.
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

// lacksAPIServer asks the API server itself: without readiness probe its pod is Ready from its start (k8stemplates).
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

// IsUnanswered: err only means no clear answer to a read, or a repeatable change, and has no other refusal in it.
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

// FinalError is an error after which a step is not retried: it was retried for long enough, or the node was restored.
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

// WithUnanswered returns a context for a changing call, and a function that says whether its request may yet come true.
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
	return fault.WithHint(fault.As(fault.Interrupted, fmt.Errorf("this run's own pod was evicted from %s; the roll continues in the pod that replaces it", node)),
		"a Job replaces its pod by itself; where nothing does, run the same command again")
}
