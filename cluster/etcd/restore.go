package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
)

// WipeByReset is how a machine deletes its etcd data, and everything else in that volume. Without the
// flags Talos first drains the node, which needs Kubernetes, and leaves etcd, which is not there;
// then it switches the machine off.
const WipeByReset = "talosctl reset --system-labels-to-wipe EPHEMERAL --reboot --graceful=false (ETCD where the machine has that volume)"

// FindTarget looks for a node at the talosconfig's endpoints: Kubernetes, which would know its
// address, is down without etcd. All other nodes must be known to be workers.
func FindTarget(ctx context.Context, talos cluster.MachineReader, files cluster.FileReader, ask []netip.Addr, node string, nodes []string) (t Target, err error) {
	var problems []error
	for _, addr := range ask {
		m, err := cluster.ReadMachine(ctx, talos, addr)
		name := cmp.Or(m.Nodename, m.Hostname)
		switch {
		case err != nil:
			problems = append(problems, err)
		case name != node && m.ControlPlane:
			return t, notSingle(node, words.OrNone(name))
		case name != node:
			problems = append(problems, fmt.Errorf("%s is %s", addr, words.OrNone(name)))
		case !m.ControlPlane:
			return t, fault.Configf("%s is a worker: it has no etcd", node)
		case m.TypeInit:
			return t, fault.WithHint(fault.EtcdSnapshot.Refusedf("%s is of machine.type init: it takes no snapshot, but Talos begins a new, empty etcd there", node),
				"set machine.type: controlplane in its configuration: talosctl patch machineconfig -n %s --mode staged -p '{\"machine\":{\"type\":\"controlplane\"}}'; then run the same command again, which sees whether it has data of etcd", addr)
		case t.Node == "":
			t = Target{Node: node, Addr: addr, UUID: m.UUID}
		}
	}
	if t.Node == "" {
		return t, fault.WithHint(fmt.Errorf("%s answers at none of the talosconfig's endpoints: %w", node, errors.Join(problems...)),
			"it must be up, configured, and named by an endpoint: talosctl config endpoint")
	}
	if err := requireSingle(ctx, talos, node, nodes); err != nil {
		return t, err
	}
	t.Data, err = HasData(ctx, files, cluster.Endpoint{Node: t.Node, Addr: t.Addr}, t.UUID)
	return t, err
}

// Restore restores etcd of a single control plane from a snapshot.
type Restore struct {
	Begin
	Kube cluster.NodeReader
	Left func(text string) // as of Kubelets

	waited bool // the node was seen healthy
}

// Steps are the steps of a restore.
func (r *Restore) Steps() step.Step {
	return step.Step{ID: "restore", Code: fault.EtcdSnapshot, Title: "restore etcd on " + r.Target.Node, Steps: func(context.Context) ([]step.Step, error) {
		return []step.Step{
			r.Step("recover-etcd"),
			{
				ID: "wait-healthy", Title: "wait until " + r.Target.Node + " is healthy",
				Skip: r.healthy, Do: r.awaitHealthy,
			},
			Kubelets{Talos: r.Talos, Kube: r.Kube, Say: func(text string) { r.Say("restore/restart-kubelets", text) }, Left: r.Left}.Step(),
		}, nil
	}}
}

func (r *Restore) awaitHealthy(ctx context.Context) error {
	err := r.wait(ctx, "restore/wait-healthy", r.Target.Node+" healthy", func(ctx context.Context) (bool, string, error) {
		what, err := r.lacks(ctx)
		return err == nil && what == "", what, err
	})
	r.waited = err == nil
	return err
}

// healthy is the goal of awaitHealthy; before that has ended, only its wait says what is missing.
func (r *Restore) healthy(ctx context.Context) (string, error) {
	what, err := r.lacks(ctx)
	switch {
	case err == nil && what == "":
		return r.Target.Node + " is Ready", nil
	case !r.waited:
		return "", nil
	}
	return "", err
}

// lacks names the first thing that the node still lacks; "" when it is healthy.
func (r *Restore) lacks(ctx context.Context) (string, error) {
	m, err := cluster.ReadMachine(ctx, r.Talos, r.Target.Addr)
	switch {
	case err != nil:
		return "", err
	case m.UUID != r.Target.UUID:
		return fmt.Sprintf("%s answers with UUID %s", r.Target.Addr, m.UUID), nil
	case m.Stage != "running" || !m.Ready:
		return m.Standing(), nil
	}
	v, err := Look(ctx, r.Talos, []cluster.Endpoint{{Node: r.Target.Node, Addr: r.Target.Addr}})
	if err != nil {
		return "", err
	}
	if wrong := v.Unhealthy(""); len(wrong) > 0 {
		return "etcd: " + strings.Join(wrong, "; "), nil
	}
	return cluster.LacksNode(ctx, r.Kube, r.Target.Node, m.UUID, m.BootID)
}

// Target is the one control plane of a cluster, with no etcd or a new one.
type Target struct {
	Node string     `json:"node"`
	Addr netip.Addr `json:"address"`
	UUID string     `json:"uuid"`
	Data bool       `json:"-"` // it has data of etcd
}

const disasterRecovery = "https://docs.siderolabs.com/talos/latest/build-and-extend-talos/cluster-operations-and-maintenance/disaster-recovery"

func notSingle(node string, others ...string) error {
	return fault.WithHint(fault.EtcdSnapshot.Refusedf("%s is not the only control plane: Talos knows %s as well", node, strings.Join(others, ", ")),
		"as long as one of them has etcd's data, let %s join it; where none has: %s", node, disasterRecovery)
}

// requireSingle refuses if the cluster has other control planes, or may have: they would continue
// with their own etcd. Talos' discovery forgets a machine that is off within half an hour, and
// knows none if discovery is switched off.
func requireSingle(ctx context.Context, talos cluster.MemberReader, node string, nodes []string) error {
	members, err := talos.Members(ctx)
	if err != nil {
		return fault.EtcdSnapshot.Errorf("whether %s is the only control plane can't be determined: %w", node, err)
	}
	var others, unknown []string
	known := map[string]bool{}
	for _, m := range members {
		known[m.Nodename] = true
		if m.ControlPlane && m.Nodename != node && !slices.Contains(others, m.Nodename) {
			others = append(others, m.Nodename)
		}
	}
	if len(others) > 0 {
		return notSingle(node, others...)
	}
	for _, n := range nodes {
		if !known[n] {
			unknown = append(unknown, n)
		}
	}
	if len(unknown) > 0 {
		return fault.WithHint(fault.EtcdSnapshot.Refusedf("whether %s is the only control plane can't be determined: Talos' discovery does not know %s at present", node, strings.Join(unknown, ", ")),
			"start what is off, or take out of nodes in recast.yaml what is gone for good; where discovery is switched off, and %s has always been the only one: %s", node, disasterRecovery)
	}
	return nil
}
