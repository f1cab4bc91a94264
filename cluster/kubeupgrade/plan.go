package kubeupgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// Plan says what bringing Kubernetes to another version will do, in order: component by component, each on one node
// after the other, control planes first.
type Plan struct {
	Cluster  string       `json:"cluster"`
	From     string       `json:"from"` // the lowest version of the control planes
	To       string       `json:"to"`
	Nodes    []Node       `json:"nodes"`
	Proxy    *ImageChange `json:"kubeProxy,omitempty"` // of the DaemonSet; nil: there is none, or it has the image
	Refused  []string     `json:"refused,omitempty"`   // why it can't be done; a plan with any is not run
	Warn     []string     `json:"warnings,omitempty"`
	LeftOver string       `json:"leftOver,omitempty"` // what is not done, and the command that does it where there is one
}

// Node is what happens to one node.
type Node struct {
	Node    string        `json:"node"`
	Role    string        `json:"role"`
	UUID    string        `json:"uuid"`
	Addr    netip.Addr    `json:"address"`
	Talos   string        `json:"talos"`
	Kubelet string        `json:"kubelet"` // version that runs
	Changes []ImageChange `json:"changes"`
	Lacks   []string      `json:"lacks,omitempty"` // components set to run that version that do not: to be waited for

	images cluster.KubernetesImages // that the node is set to run
}

// ImageChange is another image of one component.
type ImageChange struct {
	Component cluster.Component `json:"component"`
	From      string            `json:"from"`
	To        string            `json:"to"`
}

// Seen is the Kubernetes of a cluster as it was observed once.
type Seen struct {
	Nodes   []NodeSeen
	Pods    []cluster.StaticPod
	Etcd    []cluster.EtcdMember // as listed by the first control plane that answers
	EtcdErr error                // why no control plane lists them
	Proxy   *cluster.ProxySet    // nil: there is none
	Removed []string             // what is in use and removed in the wanted version
	Owners  []string             // what else upgrades the cluster
	Open    []string             // nodes that an unfinished roll has changed
}

// NodeSeen is one node.
type NodeSeen struct {
	Node    cluster.KubeNode
	Addr    netip.Addr
	Machine *cluster.MachineKubernetes // nil: it could not be read
	Err     error                      // why not
	Member  uint64                     // ID of the etcd member that the node says it runs; 0: it says none
	// Serves is the version that its API server reports at its own address; ServesErr is why it reports none.
	Serves      string
	ServesErr   error
	Unsupported string // why the node's Talos does not support the wanted version, and what to do
}

func (p Plan) Work() bool {
	return p.Proxy != nil || slices.ContainsFunc(p.Nodes, func(n Node) bool { return len(n.Changes)+len(n.Lacks) > 0 })
}

// maxKubeletSkew: kubelets and kube-proxies may be that many minor versions older (Kubernetes' version-skew-policy).
const maxKubeletSkew = 3

// NewPlan decides how to bring Kubernetes to a version, from what was observed and nothing else.
func NewPlan(name, to string, seen Seen) (Plan, error) {
	wanted, err := cluster.ParseVersion(to)
	if err != nil {
		return Plan{}, err
	}
	p := kubernetesPlanner{Plan: Plan{Cluster: name, To: wanted.String()}, wanted: wanted}
	p.lowest, p.lowestOn = seen.lowest(wanted)
	for _, n := range sortedNodes(seen.Nodes) {
		p.node(n)
	}
	p.lacks(seen)
	p.proxy(seen)
	p.path()
	p.members(seen)
	for _, what := range seen.Removed {
		p.refuse("", "%s", what)
	}
	for _, owner := range seen.Owners {
		p.refuse("", "the cluster is managed by %s as well, which would undo this: suspend that first", owner)
	}
	for _, node := range seen.Open {
		p.refuse(node, "a roll has changed it and not finished: recast roll finishes it")
	}
	p.Refused = cluster.Each(p.against, refusal.String)
	if p.Work() {
		p.warnOfOutage()
		p.LeftOver = p.leftOver()
	}
	return p.Plan, nil
}

const (
	alreadyPast = "it is %s already, and Kubernetes can't be downgraded: set --to (kubernetes.version) %s or later"
	daemonSet   = "DaemonSet kube-proxy"
	// pending is the refusal of a staged or tried configuration: the upgrade edits the stored configuration and
	// applies all of it (MachineReader.MachineConfig).
	pending = "it has a staged or a tried configuration, and the upgrade would make all of that live: first reboot it, or apply the configuration that is wanted"
)

type kubernetesPlanner struct {
	Plan
	wanted, lowest cluster.Version // lowest of the control planes' static pods
	lowestOn       string
	against        []refusal
}

type refusal struct {
	of   []string
	text string
}

// refuse adds a reason about a node or object; of "": the cluster. A reason that several share is listed once.
func (p *kubernetesPlanner) refuse(of, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	i := slices.IndexFunc(p.against, func(r refusal) bool { return r.text == text })
	if i < 0 {
		i = len(p.against)
		p.against = append(p.against, refusal{text: text})
	}
	if r := &p.against[i]; of != "" && !slices.Contains(r.of, of) {
		r.of = append(r.of, of)
	}
}

// named is how many nodes or objects a refusal names at most.
const named = 4

func (r refusal) String() string {
	switch n := len(r.of); {
	case n == 0:
		return r.text
	case n > named:
		return fmt.Sprintf("%s and %d more: %s", strings.Join(r.of[:named], ", "), n-named, r.text)
	}
	return strings.Join(r.of, ", ") + ": " + r.text
}

// lowest returns the lowest version of the static pods, and a node with it; without any, wanted.
func (s Seen) lowest(wanted cluster.Version) (v cluster.Version, on string) {
	v = wanted
	for _, n := range sortedNodes(s.Nodes) {
		if n.Machine == nil {
			continue
		}
		for _, c := range cluster.StaticPods {
			if r, err := cluster.ParseImage(n.Machine.Images.Of(c)); err == nil && r.Version.Before(v) {
				v, on = r.Version, n.Node.Name
			}
		}
	}
	return v, on
}

// sortedNodes returns the control planes first, each role by name.
func sortedNodes(nodes []NodeSeen) []NodeSeen {
	return slices.SortedFunc(slices.Values(nodes), func(a, b NodeSeen) int {
		role := cluster.TrueFirst(a.Node.ControlPlane, b.Node.ControlPlane)
		return cmp.Or(role, strings.Compare(a.Node.Name, b.Node.Name))
	})
}

func (p *kubernetesPlanner) node(seen NodeSeen) {
	k, m := seen.Node, seen.Machine
	n := Node{Node: k.Name, UUID: k.UUID, Addr: seen.Addr, Kubelet: k.KubeletVersion}
	n.Role = cluster.RoleOf(k.ControlPlane)
	switch {
	case m == nil:
		p.refuse(n.Node, "it could not be read: %v", seen.Err)
	case m.UUID != n.UUID:
		p.refuse(n.Node, "%s answers with UUID %s, and Kubernetes has %s for it: see whose address that is", n.Addr, m.UUID, n.UUID)
	default:
		n.Talos, n.images = m.TalosVersion, m.Images
		if seen.Unsupported != "" {
			p.refuse(n.Node, "%s", seen.Unsupported)
		}
		p.changes(&n)
		if m.Pending && slices.ContainsFunc(n.Changes, func(c ImageChange) bool { return c.From != c.To }) {
			p.refuse(n.Node, pending)
		}
	}
	p.Nodes = append(p.Nodes, n)
}

func (p *kubernetesPlanner) changes(n *Node) {
	for _, c := range cluster.Components {
		image := n.images.Of(c)
		if image == "" {
			if n.Role == cluster.ControlPlane && c == cluster.APIServer || c == cluster.Kubelet {
				p.refuse(n.Node, "its Talos does not say which %s it runs", c)
			}
			continue
		}
		to, err := cluster.ImageOf(image, p.wanted)
		r, errParse := cluster.ParseImage(image)
		switch {
		case err != nil || errParse != nil:
			p.refuse(string(c)+" of "+n.Node, "%s", withHints(cmp.Or(err, errParse)))
			continue
		case p.wanted.Before(r.Version):
			p.refuse(string(c)+" of "+n.Node, alreadyPast, r.Version, r.Version)
			continue
		}
		if to != image {
			n.Changes = append(n.Changes, ImageChange{c, image, to})
		}
	}
	p.kubelet(n)
}

// kubelet checks the kubelet that runs, not the configured one.
func (p *kubernetesPlanner) kubelet(n *Node) {
	runs, err := cluster.ParseVersion(n.Kubelet)
	switch {
	case err != nil:
		p.refuse(n.Node, "its kubelet: %v", err)
	case p.tooOld(runs):
		p.refuse(n.Node, "its kubelet is %s, more than %d minor versions before %s, which its API servers would not serve: recast upgrade-k8s --to %s brings it along first",
			runs, maxKubeletSkew, p.wanted, p.lowest)
	case runs != p.wanted && !slices.ContainsFunc(n.Changes, func(c ImageChange) bool { return c.Component == cluster.Kubelet }) && n.images.Kubelet != "":
		n.Changes = append(n.Changes, ImageChange{cluster.Kubelet, n.images.Kubelet, n.images.Kubelet}) // set, but not seen yet
	}
}

func (p *kubernetesPlanner) tooOld(v cluster.Version) bool {
	return v.Major != p.wanted.Major || p.wanted.Minor-v.Minor > maxKubeletSkew
}

// proxy compares the DaemonSet with the one that the control planes' Talos would create.
func (p *kubernetesPlanner) proxy(seen Seen) {
	i := slices.IndexFunc(p.Nodes, func(n Node) bool { return n.images.KubeProxy != "" })
	if seen.Proxy == nil || i < 0 {
		return
	}
	to, err := cluster.ImageOf(p.Nodes[i].images.KubeProxy, p.wanted)
	if err != nil {
		return // refused with its node
	}
	r, err := cluster.ParseImage(seen.Proxy.Image)
	switch {
	case err != nil:
		p.refuse(daemonSet, "%v", err)
	case p.wanted.Before(r.Version):
		p.refuse(daemonSet, alreadyPast, r.Version, r.Version)
	case p.tooOld(r.Version):
		p.refuse(daemonSet, "it is %s, more than %d minor versions before %s: %s", r.Version, maxKubeletSkew, p.wanted, p.alongFirst())
	case !runs(*seen.Proxy, to):
		p.Proxy = &ImageChange{cluster.KubeProxy, seen.Proxy.Image, to}
	}
}

func (p *kubernetesPlanner) warnOfOutage() {
	planes := cluster.Where(p.Nodes, func(n Node) bool { return n.Role == cluster.ControlPlane })
	if len(planes) == 1 {
		p.Warn = append(p.Warn, fmt.Sprintf("%s is the only control plane: the Kubernetes API is unavailable while its API server restarts", planes[0].Node))
	}
}

// path refuses a step of more than one minor version.
func (p *kubernetesPlanner) path() {
	p.From = p.lowest.String()
	if !slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.Role == cluster.ControlPlane }) {
		p.refuse("", "Kubernetes knows no control plane")
	}
	if p.lowest.Major == p.wanted.Major && p.wanted.Minor-p.lowest.Minor <= 1 {
		return
	}
	next := cluster.Version{Major: p.lowest.Major, Minor: p.lowest.Minor + 1}
	p.refuse("", "Kubernetes is upgraded one minor version at a time, and %s → %s skips %s (%s runs %s): recast upgrade-k8s --to the newest %s first",
		p.lowest, p.wanted, next.MinorVersion(), p.lowestOn, p.lowest, next.MinorVersion())
}

func withHints(err error) string {
	return strings.Join(append([]string{err.Error()}, fault.Hints(err)...), ": ")
}

// members refuses a member of etcd that belongs to no control plane of the plan: it has an API
// server that Kubernetes does not show, because it has no Node object (deleted by hand, or
// skipNodeRegistration), and that API server would not be upgraded.
func (p *kubernetesPlanner) members(seen Seen) {
	if seen.EtcdErr != nil {
		p.refuse("", "the members of etcd, and so the control planes, are not known: %s", strings.ReplaceAll(withHints(seen.EtcdErr), "\n", "; "))
	}
	for _, m := range seen.Etcd {
		if !slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.images.APIServer != "" && seen.holds(n.Node, m) }) {
			p.refuse("etcd member "+m.Label(), "its machine is not a control plane that Kubernetes shows, and its API server would stay behind: "+
				"check that it registers as a node (kubectl get nodes; machine.kubelet.skipNodeRegistration), and where its machine is gone for good, that talosctl etcd status shows it no more: talosctl etcd remove-member %x", m.ID)
		}
	}
}

// holds: a node's machine runs that member, by what its etcd says, or by the member's name or address.
func (s Seen) holds(node string, m cluster.EtcdMember) bool {
	n, _ := cluster.Find(s.Nodes, func(n NodeSeen) bool { return n.Node.Name == node })
	if n.Member != 0 {
		return n.Member == m.ID
	}
	addr, err := m.Address(nil)
	return m.Name == node || err == nil && slices.Contains(append([]netip.Addr{n.Addr}, n.Node.Addresses...), addr)
}

// readEtcd asks control planes for the members of etcd until one answers, and each for its own.
func (s *Seen) readEtcd(ctx context.Context, talos cluster.EtcdReader) {
	var errs []error
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Machine == nil || n.Machine.Images.APIServer == "" {
			continue
		}
		if status, err := talos.EtcdStatus(ctx, n.Addr); err == nil {
			n.Member = status.MemberID
		}
		if len(s.Etcd) > 0 {
			continue
		}
		var err error
		if s.Etcd, err = talos.EtcdMembers(ctx, n.Addr); err != nil {
			errs = append(errs, fmt.Errorf("ask %s: %w", n.Node.Name, err))
		}
	}
	if len(s.Etcd) == 0 {
		s.EtcdErr = errors.Join(append(errs, errors.New("no control plane says so"))...)
	}
}

// Foresee lists what would stop the plan halfway: configurations that reject images, certificates to approve.
func (p Plan) Foresee(ctx context.Context, talos cluster.MachineReader, m cluster.Maintenance, kube cluster.KubeReader) (refused []string, err error) {
	for _, n := range p.Nodes {
		if len(n.Changes) == 0 {
			continue
		}
		config, err := talos.MachineConfig(ctx, n.Addr)
		if err != nil {
			return nil, fmt.Errorf("read machine configuration of %s: %w", n.Node, err)
		}
		patch := cluster.ConfigPatch{Talos: n.Talos}
		for _, c := range n.Changes {
			patch.Kubernetes = patch.Kubernetes.With(c.Component, c.To)
		}
		if _, err := m.PatchConfig(config, patch); err != nil {
			refused = append(refused, fmt.Sprintf("machine configuration of %s: %s", n.Node, withHints(err)))
		}
		if !slices.ContainsFunc(n.Changes, func(c ImageChange) bool { return c.Component == cluster.Kubelet && c.From != c.To }) {
			continue // the plan does not restart its kubelet
		}
		pending, err := kube.PendingCertificates(ctx, n.Node)
		if err != nil {
			return nil, fmt.Errorf("list certificate requests: %w", err)
		}
		if len(pending) > 0 {
			refused = append(refused, fmt.Sprintf("%s: certificate requests of its kubelet wait for approval, and its next one would: kubectl certificate approve %s, or have kubelet-serving-cert-approver do it",
				n.Node, strings.Join(pending, " ")))
		}
	}
	return refused, nil
}

// RequireSame refuses a plan other than the one shown, but for changes that someone has already made.
func (p Plan) RequireSame(shown Plan) error {
	var other []string
	for _, n := range p.Nodes {
		if s, there := cluster.Find(shown.Nodes, func(s Node) bool { return s.Node == n.Node }); there {
			other = append(other, n.differs(s)...)
		} else {
			other = append(other, n.Node+" has joined")
		}
	}
	for _, s := range shown.Nodes {
		if !slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.Node == s.Node }) {
			other = append(other, s.Node+" is gone")
		}
	}
	if p.Proxy != nil && (shown.Proxy == nil || *p.Proxy != *shown.Proxy) {
		other = append(other, "the image of DaemonSet kube-proxy is "+p.Proxy.From)
	}
	fresh := func(why string) bool { return !slices.Contains(shown.Refused, why) }
	other = append(other, cluster.Where(p.Refused, fresh)...)
	if len(other) == 0 {
		return nil
	}
	return fault.WithHint(fault.PlanMoved.Refusedf("the cluster is no longer as the plan says: %s", strings.Join(other, "; ")), "nothing was changed; the same command again makes a new plan")
}

func (n Node) differs(shown Node) (how []string) {
	switch {
	case n.UUID != shown.UUID || n.Addr != shown.Addr || n.Role != shown.Role:
		how = append(how, n.Node+" is another machine, or at another address")
	case n.Talos != shown.Talos:
		how = append(how, fmt.Sprintf("%s runs Talos %s", n.Node, cmp.Or(n.Talos, "of no known version")))
	}
	for _, c := range n.Changes {
		if !slices.Contains(shown.Changes, c) && c.From != c.To {
			how = append(how, fmt.Sprintf("%s of %s is to run %s", c.Component, n.Node, c.From))
		}
	}
	return how
}

// talosctlImages are the flags of talosctl upgrade-k8s that name the repository of a component, with their defaults
// (cmd/talosctl/cmd/talos/upgrade-k8s.go): talosctl gives every machine that repository, whatever the machine had.
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

// talosctl returns its command for a version that keeps repositories and comments, or "" and why there is none.
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

// repository returns a component's one repository; why: talosctl could not give all nodes the image from there.
func (p *kubernetesPlanner) repository(c cluster.Component) (repository, why string) {
	for _, n := range p.Nodes {
		image := n.images.Of(c)
		if image == "" {
			continue
		}
		r, err := cluster.ParseImage(image)
		switch {
		// talosctl sets REPOSITORY:vVERSION, and keeps a suffix only for kubelets (pkg/cluster/kubernetes/kubelet.go).
		case err != nil || r.Prefix != "v" || r.Digest != "" || r.Suffix != "" && c != cluster.Kubelet:
			return "", fmt.Sprintf("%s would give %s of %s another image than %s", "talosctl upgrade-k8s", c, n.Node, image)
		case repository != "" && repository != r.Repository:
			return "", fmt.Sprintf("nodes run %s from different repositories, and talosctl upgrade-k8s would give all of them one", c)
		}
		repository = r.Repository
	}
	return repository, ""
}

func (p *kubernetesPlanner) leftOver() string {
	const left = "CoreDNS, flannel and whatever else Talos makes manifests of stay as they are: "
	command, why := p.talosctl(p.wanted)
	if command == "" {
		return left + why + "; compare them by hand with what Talos would make (talosctl get manifests), and apply what differs"
	}
	return left + command + " --dry-run shows what differs, and without --dry-run applies it"
}

func (p *kubernetesPlanner) alongFirst() string {
	if command, _ := p.talosctl(p.lowest); command != "" {
		return command + " brings it along first"
	}
	return fmt.Sprintf("bring it to %s first (kubectl -n kube-system set image daemonset/kube-proxy kube-proxy=IMAGE)", p.lowest)
}

// Observe reads which parts of Kubernetes run on every node that Kubernetes knows, and which flags and objects in use
// the wanted version has removed. It changes nothing. If a machine does not answer, its NodeSeen has the error.
func Observe(ctx context.Context, talos cluster.TalosReader, kube cluster.KubeReader, o observe.Observation, to string) (Seen, error) {
	wanted, err := cluster.ParseVersion(to)
	if err != nil {
		return Seen{}, err
	}
	seen := Seen{Nodes: make([]NodeSeen, len(o.Nodes))}
	if o.Dark != nil {
		return seen, o.Dark
	}
	observe.EachAtOnce(o.Nodes, observe.ObserveLimit, func(i int, k *cluster.KubeNode) { // each has its own error
		seen.Nodes[i] = readKubernetes(ctx, talos, kube, *k, wanted)
	})
	seen.readEtcd(ctx, talos)
	if seen.Pods, err = kube.StaticPods(ctx); err != nil {
		return seen, fmt.Errorf("list the pods of the control planes: %w", err)
	}
	set, err := kube.ProxySet(ctx)
	switch {
	case err == nil:
		seen.Proxy = &set
	case !errors.Is(err, cluster.ErrNotFound):
		return seen, err
	}
	if seen.Owners, err = kube.OtherOwners(ctx); err != nil {
		return seen, fmt.Errorf("look for other upgraders: %w", err)
	}
	for _, f := range o.Found {
		if f.Unfinished() {
			seen.Open = append(seen.Open, f.Name)
		}
		if f.Machine == nil {
			continue
		}
		for _, arg := range f.Machine.Omni() {
			if owner := "Omni (" + arg + ")"; !slices.Contains(seen.Owners, owner) {
				seen.Owners = append(seen.Owners, owner)
			}
		}
	}
	seen.Removed, err = removed(ctx, talos, kube, seen, wanted)
	return seen, err
}

func Await(ctx context.Context, kube cluster.NodeReader, t cluster.Timing, say func(string)) error {
	return wait.Until(ctx, wait.For{Name: "the Kubernetes API to answer", Every: t.Poll, Timeout: t.Join, Seen: say}, func(ctx context.Context) (bool, string, error) {
		_, err := kube.Nodes(ctx)
		return err == nil, "", err
	})
}

func readKubernetes(ctx context.Context, talos cluster.MachineReader, kube cluster.ComponentReader, k cluster.KubeNode, wanted cluster.Version) NodeSeen {
	n := NodeSeen{Node: k, Addr: observe.FirstAddr(k.Addresses)}
	if !n.Addr.IsValid() {
		n.Err = observe.NoAddress(k.Name)
		return n
	}
	m, err := talos.Kubernetes(ctx, n.Addr)
	if err != nil {
		n.Err = err
		return n
	}
	n.Machine, n.Unsupported = &m, talos.UnsupportedKubernetes(m.TalosVersion, wanted.String())
	if m.APIPort != 0 {
		n.Serves, n.ServesErr = kube.APIServer(ctx, netip.AddrPortFrom(n.Addr, uint16(m.APIPort)))
	}
	return n
}

// removed lists what was removed on the way, minor by minor, as the tables do; nothing if that is refused anyway.
func removed(ctx context.Context, talos cluster.KubernetesReader, kube cluster.ComponentReader, seen Seen, wanted cluster.Version) (out []string, err error) {
	lowest, _ := seen.lowest(wanted)
	if lowest.Major != wanted.Major || wanted.Minor-lowest.Minor > 1 || wanted.Before(lowest) {
		return nil, nil
	}
	for _, n := range sortedNodes(seen.Nodes) {
		if n.Machine == nil || n.Unsupported != "" {
			continue
		}
		from := n.lowest(wanted)
		if from.Major != wanted.Major || wanted.Minor-from.Minor > maxKubeletSkew {
			continue // its kubelet is refused
		}
		if from.Before(lowest) {
			lowest = from
		}
		for _, s := range minorSteps(from, wanted) {
			flags, err := talos.RemovedFlags(ctx, n.Addr, n.Node.ControlPlane, s.from.String(), s.to.String())
			if err != nil {
				return nil, fmt.Errorf("look for what %s has removed on %s: %w", s.to, n.Node.Name, err)
			}
			for _, f := range flags {
				out = append(out, n.Node.Name+": "+f)
			}
		}
	}
	for _, s := range minorSteps(lowest, wanted) {
		objects, err := kube.RemovedObjects(ctx, s.from.String(), s.to.String())
		if err != nil {
			return nil, fmt.Errorf("look for what %s has removed: %w", s.to, err)
		}
		out = append(out, objects...)
	}
	return out, nil
}

// lowest is the lowest version of the node's static pods and its kubelet, which may be some minor versions older.
func (n NodeSeen) lowest(wanted cluster.Version) cluster.Version {
	v, _ := Seen{Nodes: []NodeSeen{n}}.lowest(wanted)
	if kubelet, err := cluster.ParseVersion(n.Node.KubeletVersion); err == nil && kubelet.Before(v) {
		return kubelet
	}
	return v
}

type minorStep struct{ from, to cluster.Version }

// minorSteps lists the steps from a version to the wanted one; there are none within one minor version.
func minorSteps(from, wanted cluster.Version) (steps []minorStep) {
	for from.Major == wanted.Major && from.Minor < wanted.Minor {
		to := cluster.Version{Major: from.Major, Minor: from.Minor + 1}
		if to.Minor == wanted.Minor {
			to = wanted
		}
		steps = append(steps, minorStep{from, to})
		from = to
	}
	return steps
}

// awaitOthers waits until all but one component are healthy, as some may recover; else requireOthers' error.
func (u *Upgrade) awaitOthers(ctx context.Context, path string, except spotOf) error {
	var last error
	err := wait.Until(ctx, wait.For{
		Name: "everything else healthy", Every: u.Timing.Poll, Timeout: u.Timing.Join,
		Seen: func(seen string) { u.Say(path, "waiting until everything else is healthy: "+seen) },
	}, func(inTime context.Context) (bool, string, error) {
		err := u.requireOthers(inTime, except)
		if hopeless(err) {
			return false, "", wait.Stop(err)
		}
		if inTime.Err() == nil {
			last = err
		}
		return err == nil, "", err
	})
	if err != nil && !hopeless(err) && last != nil && ctx.Err() == nil {
		return fault.Prefix(fmt.Sprintf("waited %s for everything else to be healthy", u.Timing.Join), last)
	}
	return err
}

// requireOthers: nothing restarts while anything but itself, its node's other components included, is down.
func (u *Upgrade) requireOthers(ctx context.Context, except spotOf) error {
	nodes, err := u.Kube.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("list Kubernetes nodes: %w", err)
	}
	down := u.Plan.downNodes(nodes, except)
	pods, err := u.Kube.StaticPods(ctx)
	if err != nil {
		return fmt.Errorf("list the pods of the control planes: %w", err)
	}
	var hints []string
	for _, c := range cluster.StaticPods {
		for _, n := range u.Plan.with(c) {
			i := slices.IndexFunc(pods, func(p cluster.StaticPod) bool { return p.Node == n.Node && p.Component == c })
			switch {
			case except == spotOf{n.Node, c}:
			case i < 0:
				down = append(down, fmt.Sprintf("Kubernetes does not show the pod of the %s of %s", c, n.Node))
			case !pods[i].Ready:
				down = append(down, fmt.Sprintf("the %s of %s is not Ready: %s", c, n.Node, words.OrNone(pods[i].Why)))
			case c == cluster.APIServer:
				if err := cluster.RequireAPIServer(ctx, u.Talos, u.Kube, n.Node, n.Addr); err != nil {
					down, hints = append(down, err.Error()), append(hints, fault.Hints(err)...)
				}
			}
		}
	}
	if len(down) > 0 {
		slices.Sort(down)
		err := fault.WithHint(fault.GateClosed.Refusedf("%s", strings.Join(down, ", ")), "bring them back first; one more out would be one too many")
		for _, hint := range hints {
			err = fault.WithHint(err, "%s", hint)
		}
		return err
	}
	return u.requireEtcd(ctx)
}

func (p Plan) downNodes(nodes []cluster.KubeNode, except spotOf) (down []string) {
	for _, k := range nodes {
		planned := slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.Node == k.Name && n.UUID == k.UUID })
		switch {
		case k.ControlPlane && !planned:
			down = append(down, "control plane "+k.Name+" was not there when this was planned: the same command again takes it into account")
		case !k.Ready && (except != spotOf{k.Name, cluster.Kubelet}):
			down = append(down, "node "+k.Name+" is not Ready")
		}
	}
	return down
}

// requireEtcd refuses unless etcd is healthy, and all members' API servers are in the plan, so that they are watched.
func (u *Upgrade) requireEtcd(ctx context.Context) error {
	ask := cluster.Each(u.Plan.with(cluster.APIServer), func(n Node) cluster.Endpoint {
		return cluster.Endpoint{Node: n.Node, Addr: n.Addr}
	})
	v, err := etcd.Look(ctx, u.Talos, ask)
	if err != nil {
		return fault.WithHint(fault.EtcdUnhealthy.Of(fault.As(fault.Refused, err)), "talosctl etcd status; bring etcd back first")
	}
	if wrong := v.Unhealthy(""); len(wrong) > 0 {
		return fault.WithHint(fault.EtcdUnhealthy.Refusedf("etcd is not healthy: %s", strings.Join(wrong, "; ")), "talosctl etcd status; talosctl etcd alarm list; repair etcd first")
	}
	for _, m := range v.Members {
		if err := u.requireMember(ctx, m, ask); err != nil {
			return fault.WithHint(fault.EtcdUnhealthy.Refusedf("etcd member %s is not a control plane of the plan: %w", m.Label(), err),
				"a control plane that joins has to be a Ready node of Kubernetes first, and the same command again takes it into account; one that is gone has to leave etcd (talosctl etcd members)")
		}
	}
	return nil
}

var errNotPlanned = errors.New("its machine is none that was planned for")

// requireMember finds a member's machine in the plan: by name, or, since a Node's name may differ, by its UUID.
func (u *Upgrade) requireMember(ctx context.Context, m cluster.EtcdMember, ask []cluster.Endpoint) error {
	if slices.ContainsFunc(ask, func(e cluster.Endpoint) bool { return e.Node == m.Name }) {
		return nil
	}
	addr, err := m.Address(ask)
	if err != nil {
		return err
	}
	machine, err := u.Talos.Kubernetes(ctx, addr)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(u.Plan.with(cluster.APIServer), func(n Node) bool { return n.UUID == machine.UUID }) {
		return errNotPlanned
	}
	return nil
}

// finish makes sure that everything is healthy at the end, and that no node has joined meanwhile with another version.
func (u *Upgrade) finish(ctx context.Context) error {
	const path = upgradeKubernetes + "/finish"
	if err := u.awaitOthers(ctx, path, spotOf{}); err != nil {
		return err
	}
	nodes, err := u.Kube.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("list Kubernetes nodes: %w", err)
	}
	others := cluster.Where(nodes, func(k cluster.KubeNode) bool {
		v, err := cluster.ParseVersion(k.KubeletVersion)
		return err != nil || v.String() != u.Plan.To
	})
	if len(others) > 0 {
		run := cluster.Each(others, func(k cluster.KubeNode) string { return k.Name + " runs " + k.KubeletVersion })
		return fault.WithHint(fmt.Errorf("not all nodes run %s: %s", u.Plan.To, strings.Join(run, ", ")),
			"a node that joined meanwhile is brought along by the same command again; its machine configuration should name the new version from the start")
	}
	return nil
}
