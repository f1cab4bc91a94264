// Package kubeupgrade brings Kubernetes itself to a version, one component of one control plane after the other, then
// the kubelets. [Observe] reads what runs, [NewPlan] decides what to do, and [Upgrade] has the steps. The next run
// continues a killed one: it sees what is already done.
package kubeupgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// Upgrade executes a Plan.
type Upgrade struct {
	// Each of these checks that the claim is still ours before it changes anything: see Held.Guard.
	Talos       cluster.Talos
	Maintenance cluster.Maintenance
	Kube        cluster.Kube

	Plan   Plan
	Timing cluster.Timing
	// Say receives what a running step is waiting for; never nil.
	Say func(path, text string)

	mu      sync.Mutex
	settled map[spotOf]bool // healthy for the settling time, as this process has seen
}

type spotOf struct {
	node string
	c    cluster.Component
}

// pullLimit is how many machines fetch images at once: they may share one registry.
const pullLimit = 4

// Steps derives the tree of an upgrade from its plan.
//
//  1. check: what was changed already settles, everything else is healthy.
//  2. pull: every image is on its machine before anything restarts.
//  3. one component after the other, each on one node after the other, while all else is healthy.
//  4. finish: all of it is healthy.
func (u *Upgrade) Steps() step.Step {
	steps := []step.Step{
		{ID: "check", Title: "check that the cluster is healthy", Do: u.check},
		u.pullStep(),
	}
	steps = append(steps, cluster.Each(cluster.StaticPods, u.branch)...)
	steps = append(steps, u.proxyStep(), u.branch(cluster.Kubelet),
		step.Step{ID: "finish", Title: "check that everything is healthy", Do: u.finish})
	return step.Step{
		ID: upgradeKubernetes, Code: fault.KubernetesUpgrade, Title: fmt.Sprintf("bring Kubernetes from %s to %s", u.Plan.From, u.Plan.To), Risk: step.Disruptive,
		Steps: func(context.Context) ([]step.Step, error) { return steps, nil },
	}
}

const upgradeKubernetes = "upgrade-k8s"

func (u *Upgrade) branch(c cluster.Component) step.Step {
	var steps []step.Step
	for _, n := range u.Plan.with(c) {
		k := kubernetesStep{Upgrade: u, n: n, c: c, path: upgradeKubernetes + "/" + string(c) + "/" + n.Node}
		steps = append(steps, step.Step{
			ID: n.Node, Kind: string(c), Title: fmt.Sprintf("%s of %s", c, n.Node), Risk: step.Disruptive, Whole: true, Skip: k.done, Do: k.do,
		})
	}
	return step.Step{
		ID: string(c), Title: fmt.Sprintf("%s to %s on %s, one at a time", c, u.Plan.To, words.Counted(len(steps), "node")), Risk: step.Disruptive,
		Steps: func(context.Context) ([]step.Step, error) { return steps, nil },
	}
}

func (p Plan) with(c cluster.Component) []Node {
	return slices.DeleteFunc(slices.Clone(p.Nodes), func(n Node) bool { return n.images.Of(c) == "" })
}

func (u *Upgrade) pullStep() step.Step {
	var steps []step.Step
	for _, n := range u.Plan.Nodes {
		images := u.Plan.toPull(n)
		if len(images) == 0 {
			continue
		}
		steps = append(steps, step.Step{ID: n.Node, Kind: "pull", Title: fmt.Sprintf("have %s fetch %s", n.Node, words.Counted(len(images), "image")), Do: func(ctx context.Context) error {
			return u.pull(ctx, n, images)
		}})
	}
	return step.Step{ID: "pull", Title: "fetch the images beforehand", Limit: pullLimit, Steps: func(context.Context) ([]step.Step, error) { return steps, nil }}
}

// toPull lists images that a node does not run yet, with kube-proxy's, whose pods run on every node.
func (p Plan) toPull(n Node) []ImageChange {
	images := slices.DeleteFunc(slices.Clone(n.Changes), func(c ImageChange) bool { return c.Component == cluster.KubeProxy })
	if p.Proxy != nil {
		images = append(images, *p.Proxy)
	}
	return images
}

func (u *Upgrade) pull(ctx context.Context, n Node, images []ImageChange) error {
	for _, i := range images {
		err := u.Talos.PullImage(ctx, n.Addr, n.UUID, i.Component, i.To, func(s string) {
			u.Say(upgradeKubernetes+"/pull/"+n.Node, fmt.Sprintf("%s: %s of %s", n.Node, s, i.Component))
		})
		if _, unproven := errors.AsType[*cluster.UnprovenError](err); unproven {
			return err
		}
		if err != nil {
			return fault.WithHint(fault.NotPullable.Refusedf("%s can't fetch %s: %w", n.Node, i.To, err),
				"nothing was restarted; check that the version exists, that the node can reach the registry, and that it has room for the image")
		}
	}
	return nil
}

// kubernetesStep brings one component of one node to the version.
type kubernetesStep struct {
	*Upgrade
	n    Node
	c    cluster.Component
	path string
}

// done: the component runs the version, is healthy, and this process saw it settle. A failed read changes nothing.
func (k *kubernetesStep) done(ctx context.Context) (string, error) {
	if !k.hasSettled(k.n.Node, k.c) {
		return "", nil // not yet: settling says why
	}
	if what, _ := k.lacks(ctx, k.n, k.c); what != "" {
		return "", nil
	}
	return fmt.Sprintf("runs %s", k.Plan.To), nil
}

func (k *kubernetesStep) do(ctx context.Context) error {
	lost, err := k.set(ctx)
	if err != nil {
		return err
	}
	return cluster.Unanswered(lost, k.settle(ctx, k.path, []spotOf{{k.n.Node, k.c}}))
}

// set puts the image into the machine's configuration if it is not there. lost: the change got no answer.
func (k *kubernetesStep) set(ctx context.Context) (lost, err error) {
	if _, to, err := k.target(ctx); err != nil || to == "" {
		return nil, err
	}
	if err := k.awaitOthers(ctx, k.path, spotOf{k.n.Node, k.c}); err != nil {
		return nil, err
	}
	m, to, err := k.target(ctx) // awaitOthers may have taken minutes
	if err != nil || to == "" {
		return nil, err
	}
	config, err := k.Talos.MachineConfig(ctx, k.n.Addr)
	if err != nil {
		return nil, fmt.Errorf("read machine configuration of %s: %w", k.n.Node, err)
	}
	patched, err := k.Maintenance.PatchConfig(config, cluster.ConfigPatch{Kubernetes: cluster.KubernetesImages{}.With(k.c, to), Talos: m.TalosVersion})
	if err != nil {
		return nil, fmt.Errorf("machine configuration of %s: %w", k.n.Node, err)
	}
	lost = fault.Prefix(fmt.Sprintf("set %s of %s", k.c, k.n.Node), k.Talos.ReplaceConfig(ctx, k.n.Addr, k.n.UUID, patched))
	if lost != nil && !errors.Is(lost, cluster.ErrLostAnswer) {
		return nil, lost
	}
	return lost, nil
}

// target returns the image to set; "" if the configuration has that version already.
func (k *kubernetesStep) target(ctx context.Context) (m cluster.MachineKubernetes, to string, err error) {
	if m, err = k.Talos.Kubernetes(ctx, k.n.Addr); err != nil {
		return m, "", err
	}
	wanted, err := cluster.ParseVersion(k.Plan.To)
	if err != nil {
		return m, "", err
	}
	r, err := cluster.ParseImage(m.Images.Of(k.c))
	switch {
	case m.UUID != k.n.UUID:
		return m, "", otherMachine(k.n, m.UUID)
	case err != nil:
		return m, "", fault.Refusedf("%s of %s: %w", k.c, k.n.Node, err)
	case wanted.Before(r.Version):
		return m, "", fault.WithHint(fault.Refusedf("someone has brought %s of %s to %s meanwhile", k.c, k.n.Node, r.Version), "see who upgrades this cluster, too")
	case r.Version == wanted:
		return m, "", nil
	case m.Pending:
		return m, "", fault.Refusedf("%s: %s", k.n.Node, pending)
	}
	to, err = cluster.ImageOf(m.Images.Of(k.c), wanted)
	return m, to, err
}

func (u *Upgrade) settle(ctx context.Context, path string, spots []spotOf) error {
	var since time.Time // zero while a spot is not healthy
	name := fmt.Sprintf("%s healthy for %s", describe(spots), u.Timing.Settle)
	err := wait.Until(ctx, wait.For{
		Name: name, Every: u.Timing.Poll, Timeout: u.Timing.Join + u.Timing.Settle,
		Seen: func(seen string) { u.Say(path, name+": "+seen) },
	}, func(ctx context.Context) (bool, string, error) {
		what, err := u.lackAny(ctx, spots)
		switch {
		case hopeless(err):
			return false, "", wait.Stop(err)
		case err != nil || what != "":
			since = time.Time{}
			return false, what, err
		case since.IsZero():
			since = time.Now()
		}
		return time.Since(since) >= u.Timing.Settle, "healthy, settling", nil
	})
	if err != nil {
		return u.withRemedy(ctx, spots, err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.settled == nil {
		u.settled = map[spotOf]bool{}
	}
	for _, s := range spots {
		u.settled[s] = true
	}
	return nil
}

func describe(spots []spotOf) string {
	if len(spots) == 1 {
		return fmt.Sprintf("%s of %s", spots[0].c, spots[0].node)
	}
	return fmt.Sprintf("%d components that were upgraded before", len(spots))
}

func (u *Upgrade) hasSettled(node string, c cluster.Component) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.settled[spotOf{node, c}]
}

func (u *Upgrade) withRemedy(ctx context.Context, spots []spotOf, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return err
	}
	for _, s := range spots {
		what, errNow := u.lacks(ctx, u.Plan.find(s.node), s.c)
		if what == "" && errNow == nil {
			continue
		}
		n := u.Plan.find(s.node)
		look := fmt.Sprintf("talosctl -n %s containers -k and talosctl -n %s logs -k ID", n.Addr, n.Addr)
		if s.c == cluster.Kubelet {
			look = fmt.Sprintf("talosctl -n %s logs kubelet", n.Addr)
		}
		return fault.WithHint(err, "%s say more; no other node was touched; run the same command again to continue. To cancel it, set the image of %s on %s back by hand: talosctl -n %s edit machineconfig",
			look, s.c, s.node, n.Addr)
	}
	return err
}

func (p Plan) find(name string) Node {
	n, _ := cluster.Find(p.Nodes, func(n Node) bool { return n.Node == name })
	return n
}

func (u *Upgrade) lackAny(ctx context.Context, spots []spotOf) (string, error) {
	for _, s := range spots {
		if what, err := u.lacks(ctx, u.Plan.find(s.node), s.c); what != "" || err != nil {
			if len(spots) > 1 {
				what = strings.TrimSuffix(fmt.Sprintf("%s of %s: %s", s.c, s.node, cmp.Or(what, fmt.Sprint(err))), ": ")
			}
			return what, err
		}
	}
	return "", nil
}

// proxyStep sets Talos' manifest, then the DaemonSet, which Talos only creates (controllers/k8s/manifest_apply.go).
func (u *Upgrade) proxyStep() step.Step {
	var steps []step.Step
	for _, n := range u.Plan.with(cluster.KubeProxy) {
		k := kubernetesStep{Upgrade: u, n: n, c: cluster.KubeProxy, path: upgradeKubernetes + "/" + string(cluster.KubeProxy) + "/" + n.Node}
		steps = append(steps, step.Step{ID: n.Node, Kind: string(cluster.KubeProxy), Title: "name it in the configuration of " + n.Node, Risk: step.Safe, Whole: true, Skip: k.named, Do: k.name})
	}
	if u.Plan.Proxy != nil {
		steps = append(steps, step.Step{ID: "roll-out", Title: "roll the DaemonSet kube-proxy out", Risk: step.Disruptive, Skip: u.proxyDone, Do: u.rollOutProxy})
	}
	return step.Step{
		ID: string(cluster.KubeProxy), Title: "kube-proxy to " + u.Plan.To, Risk: step.Disruptive,
		Steps: func(context.Context) ([]step.Step, error) { return steps, nil },
	}
}

func (k *kubernetesStep) named(ctx context.Context) (string, error) {
	if what, err := k.lacks(ctx, k.n, k.c); err != nil || what != "" {
		return "", nil //nolint:nilerr // setting it reports what is wrong
	}
	return "it is named", nil
}

func (k *kubernetesStep) name(ctx context.Context) error {
	lost, err := k.set(ctx)
	if err != nil {
		return err
	}
	return cluster.Unanswered(lost, wait.Until(ctx, wait.For{
		Name: fmt.Sprintf("%s named by the configuration of %s", k.c, k.n.Node), Every: k.Timing.Poll, Timeout: k.Timing.Join,
		Seen: func(seen string) { k.Say(k.path, seen) },
	}, func(ctx context.Context) (bool, string, error) {
		what, err := k.lacks(ctx, k.n, k.c)
		if hopeless(err) {
			err = wait.Stop(err)
		}
		return what == "" && err == nil, what, err
	}))
}

// proxyDone is the goal: every pod of kube-proxy runs the wanted version.
func (u *Upgrade) proxyDone(ctx context.Context) (string, error) {
	set, err := u.Kube.ProxySet(ctx)
	if err != nil || !runs(set, u.Plan.Proxy.To) {
		return "", err
	}
	return fmt.Sprintf("%d pods run %s", set.Wanted, u.Plan.To), nil
}

func runs(p cluster.ProxySet, image string) bool {
	return p.Image == image && p.Seen && p.Updated == p.Wanted && p.Available == p.Wanted
}

func (u *Upgrade) rollOutProxy(ctx context.Context) error {
	const path = upgradeKubernetes + "/" + string(cluster.KubeProxy) + "/roll-out"
	change := u.Plan.Proxy
	if err := u.awaitOthers(ctx, path, spotOf{}); err != nil {
		return err
	}
	if err := u.Kube.SetProxyImage(ctx, change.From, change.To); err != nil {
		return fmt.Errorf("set the image of DaemonSet kube-proxy: %w", err)
	}
	r := proxyRollOut{image: change.To, patience: u.Timing.Join, moved: time.Now()}
	err := wait.Until(ctx, wait.For{
		Name: "kube-proxy rolled out", Every: u.Timing.Poll, Seen: func(seen string) { u.Say(path, seen) },
	}, func(ctx context.Context) (bool, string, error) {
		set, err := u.Kube.ProxySet(ctx)
		return r.look(set, err)
	})
	return fault.WithHint(err, "kubectl -n kube-system get pods -l k8s-app=kube-proxy -o wide shows which pod does not start; run the same command again to continue")
}

// proxyRollOut is the progress of the DaemonSet's rollout. The rollout may take any time as long as it progresses.
type proxyRollOut struct {
	image    string
	patience time.Duration
	best     cluster.ProxySet
	moved    time.Time // when the rollout last progressed
}

func (r *proxyRollOut) look(set cluster.ProxySet, err error) (done bool, seen string, _ error) {
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return false, "", wait.Stop(fmt.Errorf("someone has deleted it: %w", err))
	case err != nil:
		seen = err.Error()
	case set.Image != r.image:
		return false, "", wait.Stop(fault.WithHint(fmt.Errorf("someone has set its image to %s meanwhile", set.Image), "see who manages DaemonSet kube-proxy, too"))
	case runs(set, r.image):
		return true, "", nil
	case !set.Seen:
		seen = "its controller has not looked at it yet"
	default:
		seen = fmt.Sprintf("%d of %d pods are updated, %d available", set.Updated, set.Wanted, set.Available)
	}
	if err == nil && set.Seen && (set.Updated > r.best.Updated || set.Available > r.best.Available) {
		r.best, r.moved = set, time.Now()
	}
	if time.Since(r.moved) > r.patience {
		return false, "", wait.Stop(fmt.Errorf("nothing has moved for %s: %s", r.patience, seen))
	}
	return false, seen, nil
}

// lacks names the first thing that a component of a node lacks to run in the wanted version; "" if it lacks nothing.
func (u *Upgrade) lacks(ctx context.Context, n Node, c cluster.Component) (string, error) {
	m, err := u.Talos.Kubernetes(ctx, n.Addr)
	if err != nil {
		return "", err
	}
	r, err := cluster.ParseImage(m.Images.Of(c))
	switch {
	case m.UUID != n.UUID:
		return "", otherMachine(n, m.UUID)
	case err != nil || r.Version.String() != u.Plan.To:
		return fmt.Sprintf("its configuration names %s", words.OrNone(m.Images.Of(c))), nil
	case c == cluster.Kubelet:
		return u.lacksKubelet(ctx, n, m)
	case c == cluster.KubeProxy:
		return "", nil // the DaemonSet decides what runs
	}
	pods, err := u.Kube.StaticPods(ctx)
	if err != nil {
		return "", err
	}
	return cluster.LacksStaticPod(ctx, u.Kube, pods, n.Node, n.Addr, c, m)
}

func (u *Upgrade) lacksKubelet(ctx context.Context, n Node, m cluster.MachineKubernetes) (string, error) {
	if !m.KubeletHealthy {
		return "Talos' service kubelet is not healthy", nil
	}
	nodes, err := u.Kube.Nodes(ctx)
	if err != nil {
		return "", err
	}
	if k, known := cluster.Find(nodes, func(k cluster.KubeNode) bool { return k.Name == n.Node }); known {
		if runs, err := cluster.ParseVersion(k.KubeletVersion); err != nil || runs.String() != u.Plan.To {
			return "Kubernetes still sees kubelet " + k.KubeletVersion, nil //nolint:nilerr // it says what it is
		}
	}
	if what, err := cluster.LacksNode(ctx, u.Kube, n.Node, m.UUID, m.BootID); err != nil || what != "" {
		return what, err
	}
	return cluster.LacksStaticPods(ctx, u.Kube, n.Node, n.Addr, m) // a kubelet of another version may restart them
}

// otherMachineError says that another machine answers at a node's address.
type otherMachineError struct {
	n    Node
	uuid string
}

func otherMachine(n Node, uuid string) error {
	return fault.UUIDMismatch.Of(fault.As(fault.Refused, &otherMachineError{n, uuid}))
}

func (e *otherMachineError) Error() string {
	return fmt.Sprintf("%s answers with UUID %s, not %s", e.n.Addr, e.uuid, e.n.UUID)
}

// hopeless says whether waiting can't help: another machine answers, or the claim is not ours.
func hopeless(err error) bool {
	_, other := errors.AsType[*otherMachineError](err)
	_, unproven := errors.AsType[*cluster.UnprovenError](err)
	return other || unproven || fault.KindOf(err) == fault.Claimed
}

// check refuses to begin unless all is healthy, after waiting for what an earlier run changed.
func (u *Upgrade) check(ctx context.Context) error {
	foreseen, err := u.Plan.Foresee(ctx, u.Talos, u.Maintenance, u.Kube)
	if err != nil {
		return err
	}
	if len(foreseen) > 0 {
		return fault.Refusedf("nothing was restarted: %s", strings.Join(foreseen, "; "))
	}
	changed, err := u.changed(ctx)
	if err != nil {
		return err
	}
	if len(changed) > 0 {
		const path = upgradeKubernetes + "/check"
		if err := u.settle(ctx, path, changed); err != nil {
			return err
		}
		return u.awaitOthers(ctx, path, spotOf{})
	}
	return u.requireOthers(ctx, spotOf{})
}

func (u *Upgrade) changed(ctx context.Context) (out []spotOf, err error) {
	for _, n := range u.Plan.Nodes {
		m, err := u.Talos.Kubernetes(ctx, n.Addr)
		if err != nil {
			return nil, err
		}
		for _, c := range cluster.Components {
			if r, err := cluster.ParseImage(m.Images.Of(c)); err == nil && r.Version.String() == u.Plan.To {
				out = append(out, spotOf{n.Node, c})
			}
		}
	}
	return out, nil
}

// lacks notes what should run the wanted version and does not, as an earlier run may have left it.
func (p *kubernetesPlanner) lacks(seen Seen) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		j := slices.IndexFunc(seen.Nodes, func(s NodeSeen) bool { return s.Node.Name == n.Node })
		m := seen.Nodes[j].Machine
		if m == nil {
			continue // refused
		}
		for _, c := range cluster.Components {
			if r, err := cluster.ParseImage(n.images.Of(c)); err != nil || r.Version != p.wanted {
				continue
			}
			what := ""
			switch c {
			case cluster.Kubelet:
				what = kubeletDown(seen.Nodes[j])
			case cluster.APIServer, cluster.ControllerManager, cluster.Scheduler:
				what = cluster.LacksPod(seen.Pods, n.Node, c, *m)
			}
			if c == cluster.APIServer && what == "" {
				what = p.serverLacks(seen.Nodes[j])
			}
			if what != "" {
				n.Lacks = append(n.Lacks, fmt.Sprintf("%s: %s", c, what))
			}
		}
	}
}

// serverLacks says what an API server lacks although its pod counts as Ready: the pod has no readiness probe.
func (p *kubernetesPlanner) serverLacks(seen NodeSeen) string {
	if seen.ServesErr != nil {
		return seen.ServesErr.Error()
	}
	if v, err := cluster.ParseVersion(seen.Serves); err != nil || v != p.wanted {
		return "it answers as " + words.OrNone(seen.Serves) //nolint:nilerr // it says what it is
	}
	return ""
}

func kubeletDown(seen NodeSeen) string {
	switch {
	case !seen.Machine.KubeletHealthy:
		return "Talos' service kubelet is not healthy"
	case !seen.Node.Ready:
		return "its node is not Ready"
	}
	return ""
}
