package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// KubernetesPlan says what bringing Kubernetes to another version will do, in
// order: component by component, each on one node after the other, control
// planes first.
type KubernetesPlan struct {
	Cluster  string           `json:"cluster"`
	From     string           `json:"from"` // the lowest version of the control planes
	To       string           `json:"to"`
	Nodes    []KubernetesNode `json:"nodes"`
	Proxy    *ImageChange     `json:"kubeProxy,omitempty"` // of the DaemonSet; nil: there is none, or it has the image
	Refused  []string         `json:"refused,omitempty"`   // why it can't be done; a plan with any is not run
	Warn     []string         `json:"warnings,omitempty"`
	LeftOver string           `json:"leftOver,omitempty"` // what is not done, and the command that does it

	settles bool // something was changed by an earlier run, and is watched first
}

// KubernetesNode is what happens to one node.
type KubernetesNode struct {
	Node    string        `json:"node"`
	Role    string        `json:"role"`
	UUID    string        `json:"uuid"`
	Addr    netip.Addr    `json:"address"`
	Talos   string        `json:"talos"`
	Kubelet string        `json:"kubelet"` // version that runs
	Changes []ImageChange `json:"changes"`

	images KubernetesImages // that it runs; afterwards those of to
}

// ImageChange is another image of one component.
type ImageChange struct {
	Component Component `json:"component"`
	From      string    `json:"from"`
	To        string    `json:"to"`
}

// KubernetesSeen is the Kubernetes of a cluster as it was found, once.
type KubernetesSeen struct {
	Nodes   []KubernetesNodeSeen
	Proxy   *ProxySet // nil: there is none
	Removed []string  // what is in use and the wanted version has no more
	Owners  []string  // who else upgrades the cluster
	Open    []string  // nodes that an unfinished roll has changed
}

// KubernetesNodeSeen is one node.
type KubernetesNodeSeen struct {
	Node    KubeNode
	Addr    netip.Addr
	Machine *MachineKubernetes // nil: it could not be read
	Err     error              // why not
	// Unsupported says why the node's Talos does not support the wanted version, with what to do.
	Unsupported string
}

// Work says whether anything is to be done.
func (p KubernetesPlan) Work() bool {
	return p.Proxy != nil || slices.ContainsFunc(p.Nodes, func(n KubernetesNode) bool { return len(n.Changes) > 0 })
}

// maxKubeletSkew is how many minor versions a kubelet, or a kube-proxy, may be
// older than an API server (https://kubernetes.io/releases/version-skew-policy/).
const maxKubeletSkew = 3

// PlanKubernetes decides how to bring Kubernetes to a version, by what was seen
// and nothing else.
func PlanKubernetes(cluster, to string, seen KubernetesSeen) (KubernetesPlan, error) {
	wanted, err := parseKubeVersion(to)
	if err != nil {
		return KubernetesPlan{}, err
	}
	p := kubernetesPlanner{KubernetesPlan: KubernetesPlan{Cluster: cluster, To: wanted.String()}, wanted: wanted}
	p.lowest, p.lowestOn = seen.lowest(wanted)
	for _, n := range sortedNodes(seen.Nodes) {
		p.node(n)
	}
	p.proxy(seen)
	p.path()
	for _, what := range seen.Removed {
		p.refuse("%s", what)
	}
	for _, owner := range seen.Owners {
		p.refuse("the cluster is looked after by %s as well, which would undo this: suspend or remove that first", owner)
	}
	for _, node := range seen.Open {
		p.refuse("%s: a roll has changed it and not finished: recast roll finishes it", node)
	}
	if p.Work() {
		p.LeftOver = fmt.Sprintf("CoreDNS, flannel and whatever else Talos makes manifests of stay as they are: talosctl -n %s upgrade-k8s --to %s --dry-run shows what differs, and without --dry-run applies it",
			p.anyControlPlane(), strings.TrimPrefix(p.To, "v"))
	}
	return p.KubernetesPlan, nil
}

// kubernetesPlanner is a plan in the making.
type kubernetesPlanner struct {
	KubernetesPlan
	wanted, lowest kubeVersion // lowest of the control planes' static pods
	lowestOn       string
}

func (p *kubernetesPlanner) refuse(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(p.Refused, text) {
		p.Refused = append(p.Refused, text)
	}
}

// lowest is the lowest version of the static pods, and a node that runs it;
// without any it is the one given.
func (s KubernetesSeen) lowest(wanted kubeVersion) (v kubeVersion, on string) {
	v = wanted
	for _, n := range sortedNodes(s.Nodes) {
		if n.Machine == nil {
			continue
		}
		for _, c := range staticPods {
			if r, err := parseImage(n.Machine.Images.Of(c)); err == nil && r.version.before(v) {
				v, on = r.version, n.Node.Name
			}
		}
	}
	return v, on
}

// sortedNodes has the control planes first, each role by name.
func sortedNodes(nodes []KubernetesNodeSeen) []KubernetesNodeSeen {
	return slices.SortedFunc(slices.Values(nodes), func(a, b KubernetesNodeSeen) int {
		if a.Node.ControlPlane != b.Node.ControlPlane {
			if a.Node.ControlPlane {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Node.Name, b.Node.Name)
	})
}

func (p *kubernetesPlanner) anyControlPlane() string {
	for _, n := range p.Nodes {
		if n.Role == controlPlane {
			return n.Addr.String()
		}
	}
	return "NODE"
}

func (p *kubernetesPlanner) node(seen KubernetesNodeSeen) {
	n := KubernetesNode{Node: seen.Node.Name, Role: worker, UUID: seen.Node.UUID, Addr: seen.Addr, Kubelet: seen.Node.KubeletVersion}
	if seen.Node.ControlPlane {
		n.Role = controlPlane
	}
	m := seen.Machine
	switch {
	case m == nil:
		p.refuse("%s: it could not be read: %v", n.Node, seen.Err)
	case m.UUID != n.UUID:
		p.refuse("%s: %s answers with UUID %s, and Kubernetes has %s for it: see whose address that is", n.Node, n.Addr, m.UUID, n.UUID)
	default:
		n.Talos, n.images = m.TalosVersion, m.Images
		if seen.Unsupported != "" {
			p.refuse("%s: %s", n.Node, seen.Unsupported)
		}
		p.changes(&n)
	}
	p.Nodes = append(p.Nodes, n)
}

// changes compares the node's images with the wanted version.
func (p *kubernetesPlanner) changes(n *KubernetesNode) {
	for _, c := range Components {
		image := n.images.Of(c)
		if image == "" {
			if n.Role == controlPlane && c == APIServer || c == Kubelet {
				p.refuse("%s: its Talos does not say which %s it runs", n.Node, c)
			}
			continue
		}
		to, err := imageOf(image, p.wanted)
		r, errParse := parseImage(image)
		switch {
		case err != nil || errParse != nil:
			p.refuse("%s: %s: %s", n.Node, c, withHints(cmp.Or(err, errParse)))
			continue
		case p.wanted.before(r.version):
			p.refuse("%s: %s is %s already, and Kubernetes goes to no version before: give --to (kubernetes.version) %s or later", n.Node, c, r.version, r.version)
			continue
		}
		if to != image {
			n.Changes = append(n.Changes, ImageChange{c, image, to})
		} else {
			p.settles = true
		}
	}
	p.kubelet(n)
}

// kubelet looks at the kubelet that runs, and not at the one that is to.
func (p *kubernetesPlanner) kubelet(n *KubernetesNode) {
	runs, err := parseKubeVersion(n.Kubelet)
	switch {
	case err != nil:
		p.refuse("%s: its kubelet: %v", n.Node, err)
	case p.tooOld(runs):
		p.refuse("%s: its kubelet is %s, more than %d minor versions before %s, which its API servers would not serve: recast upgrade-k8s --to %s brings it along first",
			n.Node, runs, maxKubeletSkew, p.wanted, p.lowest)
	case runs != p.wanted && !slices.ContainsFunc(n.Changes, func(c ImageChange) bool { return c.Component == Kubelet }) && n.images.Kubelet != "":
		n.Changes = append(n.Changes, ImageChange{Kubelet, n.images.Kubelet, n.images.Kubelet}) // set, but not seen yet
	}
}

func (p *kubernetesPlanner) tooOld(v kubeVersion) bool {
	return v.major != p.wanted.major || p.wanted.minor-v.minor > maxKubeletSkew
}

// proxy compares the DaemonSet with what the control planes' Talos would make.
func (p *kubernetesPlanner) proxy(seen KubernetesSeen) {
	i := slices.IndexFunc(p.Nodes, func(n KubernetesNode) bool { return n.images.KubeProxy != "" })
	if seen.Proxy == nil || i < 0 {
		return
	}
	to, err := imageOf(p.Nodes[i].images.KubeProxy, p.wanted)
	if err != nil {
		return // refused with its node
	}
	r, err := parseImage(seen.Proxy.Image)
	switch {
	case err != nil:
		p.refuse("DaemonSet kube-proxy: %v", err)
	case p.wanted.before(r.version):
		p.refuse("DaemonSet kube-proxy is %s already, and Kubernetes goes to no version before: give --to (kubernetes.version) %s or later", r.version, r.version)
	case p.tooOld(r.version):
		p.refuse("DaemonSet kube-proxy is %s, more than %d minor versions before %s: talosctl -n %s upgrade-k8s --to %s brings it along first",
			r.version, maxKubeletSkew, p.wanted, p.anyControlPlane(), p.lowest)
	case seen.Proxy.Image != to:
		p.Proxy = &ImageChange{KubeProxy, seen.Proxy.Image, to}
	}
}

// path refuses what is more than one minor version.
func (p *kubernetesPlanner) path() {
	p.From = p.lowest.String()
	if !slices.ContainsFunc(p.Nodes, func(n KubernetesNode) bool { return n.Role == controlPlane }) {
		p.refuse("Kubernetes knows no control plane")
	}
	if p.lowest.major == p.wanted.major && p.wanted.minor-p.lowest.minor <= 1 {
		return
	}
	next := kubeVersion{major: p.lowest.major, minor: p.lowest.minor + 1}
	p.refuse("Kubernetes is upgraded one minor version at a time, and %s → %s skips %s (%s runs %s): recast upgrade-k8s --to the newest %s first",
		p.lowest, p.wanted, next.minorString(), p.lowestOn, p.lowest, next.minorString())
}

// withHints is an error with its remedies in one line.
func withHints(err error) string {
	return strings.Join(append([]string{err.Error()}, fault.Hints(err)...), ": ")
}
