package kubeupgrade

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/words"
)

// talosctlImages are the flags of talosctl upgrade-k8s that name the repository of a component,
// with their defaults (cmd/talosctl/cmd/talos/upgrade-k8s.go): talosctl gives every machine
// that repository, whatever the machine had.
var talosctlImages = []struct {
	component      cluster.Component
	flag, standard string
}{
	{cluster.APIServer, "--apiserver-image", "registry.k8s.io/kube-apiserver"},
	{cluster.ControllerManager, "--controller-manager-image", "registry.k8s.io/kube-controller-manager"},
	{cluster.Scheduler, "--scheduler-image", "registry.k8s.io/kube-scheduler"},
	{cluster.KubeProxy, "--proxy-image", "registry.k8s.io/kube-proxy"},
	{cluster.Kubelet, "--kubelet-image", "ghcr.io/siderolabs/kubelet"},
}

// talosctl is the command of talosctl's own upgrade to a version that leaves every repository
// and every comment of the configurations unchanged. It is "" if there is no such command, and
// why says so.
func (p *kubernetesPlanner) talosctl(to cluster.Version) (command, why string) {
	i := slices.IndexFunc(p.Nodes, func(n Node) bool { return n.Role == cluster.ControlPlane && n.Addr.IsValid() })
	if i < 0 {
		return "", "no control plane has an address"
	}
	command = fmt.Sprintf("talosctl -n %s upgrade-k8s --to %s", p.Nodes[i].Addr, strings.TrimPrefix(to.String(), "v"))
	for _, image := range talosctlImages {
		repository, why := p.repository(image.component)
		if why != "" {
			return "", why
		}
		if repository != "" && repository != image.standard {
			command += " " + image.flag + "=" + words.Quote(repository)
		}
	}
	return command + " --with-docs=false --with-examples=false", ""
}

// repository is the one from which every node runs a component, "" if none runs it; why says
// that talosctl could not give all of them the image as it is.
func (p *kubernetesPlanner) repository(c cluster.Component) (repository, why string) {
	for _, n := range p.Nodes {
		image := n.images.Of(c)
		if image == "" {
			continue
		}
		r, err := cluster.ParseImage(image)
		switch {
		// talosctl makes REPOSITORY:vVERSION of it, and keeps a suffix only for kubelets
		// (pkg/cluster/kubernetes/kubelet.go).
		case err != nil || r.Prefix != "v" || r.Digest != "" || r.Suffix != "" && c != cluster.Kubelet:
			return "", fmt.Sprintf("%s would give %s of %s another image than %s", "talosctl upgrade-k8s", c, n.Node, image)
		case repository != "" && repository != r.Repository:
			return "", fmt.Sprintf("nodes run %s from different repositories, and talosctl upgrade-k8s would give all of them one", c)
		}
		repository = r.Repository
	}
	return repository, ""
}

// leftOver says what remains to be done after the plan.
func (p *kubernetesPlanner) leftOver() string {
	const left = "CoreDNS, flannel and whatever else Talos makes manifests of stay as they are: "
	command, why := p.talosctl(p.wanted)
	if command == "" {
		return left + why + "; compare them by hand with what Talos would make (talosctl get manifests), and apply what differs"
	}
	return left + command + " --dry-run shows what differs, and without --dry-run applies it"
}

// alongFirst says how to bring kube-proxy to the version of the control planes.
func (p *kubernetesPlanner) alongFirst() string {
	if command, _ := p.talosctl(p.lowest); command != "" {
		return command + " brings it along first"
	}
	return fmt.Sprintf("bring it to %s first (kubectl -n kube-system set image daemonset/kube-proxy kube-proxy=IMAGE)", p.lowest)
}
