package restore

import (
	"context"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// First is the step that makes etcd begin on the first control plane of a new cluster. Only this
// machine is ever asked to: Talos lets every control plane begin an etcd of its own, and two of them
// are two clusters.
func First(n *rolling.Node, files cluster.FileReader) step.Step {
	const id = "begin-etcd"
	b := &Begin{
		Talos: n.Talos, Target: Target{Node: n.Plan.Node, Addr: n.Plan.Addr}, Timing: n.Timing, Above: n.Path + "/bring-up", Say: n.Say,
		Bootstraps: func() error { return nil },
	}
	s := b.Step(id)
	begin, listed := s.Do, time.Time{} // since when Talos' discovery lists the machine
	s.Do = func(ctx context.Context) error {
		b.Target.UUID = n.Plan.UUID
		// It installs Talos first, and restarts.
		w := n.OfMachine(n.Plan.Node+" waiting for its etcd", n.Timing.Join+n.Timing.Settle)
		w.Due = func() time.Duration {
			if listed.IsZero() {
				return 0
			}
			return max(time.Nanosecond, n.Timing.Settle-time.Since(listed))
		}
		err := n.Watch(ctx, "bring-up/"+id, w, func(ctx context.Context) (bool, string, error) {
			if _, _, err := n.Talos.EtcdService(ctx, n.Plan.Addr); err != nil {
				return false, "", err
			}
			var err error
			b.Target.Data, err = etcd.HasData(ctx, files, cluster.Endpoint{Node: n.Plan.Node, Addr: n.Plan.Addr}, n.Plan.UUID)
			if err == nil && !b.Target.Data {
				return alone(ctx, n, &listed)
			}
			return err == nil, "", err
		})
		if err != nil {
			return err
		}
		return begin(ctx)
	}
	return s
}

// alone ends the wait with a refusal if Talos' discovery knows another machine of the cluster. A
// machine that has just started knows none: it lists itself at first, and a moment later what the
// discovery service has of the others.
func alone(ctx context.Context, n *rolling.Node, listed *time.Time) (bool, string, error) {
	members, err := n.Talos.Members(ctx)
	if err != nil {
		return false, "", err
	}
	for _, m := range members {
		if m.Nodename != n.Plan.Node {
			return false, "", wait.Stop(fault.WithHint(fault.EtcdUnhealthy.Refusedf("Talos' discovery knows another machine of this cluster, %s: etcd was not begun on %s", m.Nodename, n.Plan.Node),
				"if that cluster lives, its secrets must not be used for another one; if it is gone, its entry is too, half an hour after its machine: then run the same command again"))
		}
	}
	if len(members) == 0 {
		*listed = time.Time{}
		off, err := discoveryOff(ctx, n)
		return off, "Talos' discovery does not list it yet", err
	}
	if listed.IsZero() {
		*listed = time.Now()
	}
	return time.Since(*listed) >= n.Timing.Settle, "alone in Talos' discovery, settling", nil
}

// discoveryOff says whether the machine does not take part in Talos' discovery.
func discoveryOff(ctx context.Context, n *rolling.Node) (bool, error) {
	text, err := n.Talos.MachineConfig(ctx, n.Plan.Addr)
	if err != nil {
		return false, err
	}
	docs, err := config.Parse(text)
	return err == nil && !docs.Discovers(), err
}
