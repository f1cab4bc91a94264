package cluster

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
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

// Components are all components in the order in which Kubernetes is upgraded: no component may be newer than the
// oldest API server (https://kubernetes.io/releases/version-skew-policy/).
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

// Of is the image of a component.
func (k KubernetesImages) Of(c Component) string { return *k.at(c) }

// With returns k with another image for a component.
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
	// Revisions are the revisions of the configurations that its static pods are made from. A pod with a lower
	// revision has not been replaced yet.
	Revisions      map[Component]uint64
	KubeletHealthy bool // Talos' service
	APIPort        int  // of its API server; 0: it runs none
	// Pending says that the running configuration is not the stored one: another configuration is staged for the
	// next boot, or is being tried. Editing the stored configuration would activate all of it.
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
	Image string
	// Seen says that its controller has observed the present image.
	Seen                       bool
	Wanted, Updated, Available int // pods
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

// splitImage splits an image reference; tag and digest are "" if it has none.
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
		return imageRef{}, fmt.Errorf("image %q: its tag is no version of Kubernetes such as v1.35.4", image)
	}
	if r.Version.ofVendor() {
		return imageRef{}, fault.WithHint(fmt.Errorf("image %q: %q in its tag is a vendor's own, and which one another version has is not known", image, r.Version.pre),
			"upgrade Kubernetes with the tool of the vendor of these images, or name images with the tags of Kubernetes itself")
	}
	return r, nil
}

func (r imageRef) String() string {
	return r.Repository + ":" + r.Prefix + strings.TrimPrefix(r.Version.String(), "v") + r.Suffix
}

// ImageOf returns an image with another version. It fails if the image is pinned by a digest: the digest of the other
// version is unknown.
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

// Retag returns image, which a configuration names, with the version of like, the image that runs. The repository
// stays that of image. Retag returns like if image is "". If a tag is a vendor's, it returns image where both tags
// are equal, and like where both images are in one repository.
func Retag(image, like string) (string, error) {
	if image == "" || image == like {
		return like, nil
	}
	if sameTag(image, like) {
		return image, nil
	}
	r, err := ParseImage(like)
	var retagged string
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

// takesOver says whether like can replace image: both are in the same repository, both tags are versions, perhaps a
// vendor's, and image has no digest.
func takesOver(image, like string) bool {
	a, tagA, digest := splitImage(image)
	b, tagB, _ := splitImage(like)
	_, errA := ParseVersion(tagA)
	_, errB := ParseVersion(tagB)
	return a == b && digest == "" && errA == nil && errB == nil
}

// SameVersion says whether two images have the same version of Kubernetes.
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
		return Version{}, fmt.Errorf("%q is no version of Kubernetes: write it like v1.35.4", s)
	}
	number := func(i int) int { n, _ := strconv.Atoi(m[i]); return n } // at most six digits: no error
	return Version{number(1), number(2), number(3), m[4]}, nil
}

// upstreamPre matches the pre-release part of an upstream Kubernetes version. Any other pre-release part is a
// vendor's, with an order of its own.
var upstreamPre = regexp.MustCompile(`^(alpha|beta|rc)\.\d+$`)

// ofVendor says whether the version is a vendor's own, which Kubernetes itself never had.
func (v Version) ofVendor() bool { return v.pre != "" && !upstreamPre.MatchString(v.pre) }

// CheckKubernetesVersion refuses a version that is not one of Kubernetes itself.
func CheckKubernetesVersion(s string) error {
	v, err := ParseVersion(s)
	if err == nil && (v.ofVendor() || strings.Contains(s, "+")) {
		err = fmt.Errorf("%q is a vendor's own version: recast goes to those of Kubernetes itself, such as %s or v1.36.0-rc.1", s, v.MinorVersion()+".0")
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

// MinorVersion is the version without its patch: "v1.35".
func (v Version) MinorVersion() string { return fmt.Sprintf("v%d.%d", v.Major, v.Minor) }

// Compare is negative if v is older than o, 0 if they are equal.
func (v Version) Compare(o Version) int {
	return cmp.Or(cmp.Compare(v.Major, o.Major), cmp.Compare(v.Minor, o.Minor), cmp.Compare(v.patch, o.patch), comparePre(v.pre, o.pre))
}

// Before says whether v is older than o.
func (v Version) Before(o Version) bool { return v.Compare(o) < 0 }

// comparePre orders pre-releases before their release, as https://semver.org does.
func comparePre(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == "":
		return 1
	case b == "":
		return -1
	}
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		x, errX := strconv.Atoi(as[i])
		y, errY := strconv.Atoi(bs[i])
		switch {
		case as[i] == bs[i]:
		case errX == nil && errY == nil:
			return cmp.Compare(x, y)
		case errX == nil:
			return -1 // numbers come before words
		case errY == nil:
			return 1
		default:
			return cmp.Compare(as[i], bs[i])
		}
	}
	return cmp.Compare(len(as), len(bs))
}
