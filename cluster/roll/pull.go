package roll

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// pullSteps make the node fetch the installer while it still serves: a failure shows before
// anything is taken down, and the fetch needs no turn of its own. None if no installer is needed.
func (n *node) pullSteps() []step.Step {
	if s := n.Plan.Strategy; n.Plan.Resume || n.Plan.OnlyTidies() || !s.Replaces() && !s.Upgrades() {
		return nil
	}
	return []step.Step{{ID: "pull", Code: fault.NotPullable, Title: "have " + n.Plan.Node + " fetch the installer", Skip: n.hasPulled, Do: n.pull, Yields: true}}
}

// hasPulled holds once this process has made the node fetch the installer, or found that it can't be asked to.
func (n *node) hasPulled(context.Context) (string, error) {
	if !n.pulled {
		return "", nil
	}
	return n.Plan.Node + " was asked for it", nil
}

// pull retries: the registry may depend on a pod that another node's drain has just evicted.
func (n *node) pull(ctx context.Context) error {
	if _, err := n.configForNew(ctx); err != nil { // an older Talos would not boot with settings newer than itself
		return err
	}
	var failed error
	tries := 0
	err := wait.Until(ctx, wait.For{Name: n.Plan.Node + " fetches the installer", Every: pullPause}, func(ctx context.Context) (bool, string, error) {
		began := time.Now()
		failed = n.pullOnce(ctx)
		tries++
		if failed == nil {
			return true, "", nil
		}
		if _, unproven := errors.AsType[*cluster.UnprovenError](failed); unproven || tries == pullTries || time.Since(began) > pullQuick {
			return false, "", wait.Stop(failed)
		}
		n.Tell("pull", fmt.Sprintf("tried again in %s: %v", pullPause, failed))
		return false, "", nil
	})
	if failed != nil && ctx.Err() == nil {
		return rolling.Final(failed) // it was already retried here
	}
	return err
}

func (n *node) pullOnce(ctx context.Context) error {
	supported, err := n.Talos.PullInstaller(ctx, n.Plan.Addr, n.Plan.UUID, n.Want.Build.Installer, func(s string) { n.Tell("pull", s) })
	_, unproven := errors.AsType[*cluster.UnprovenError](err)
	switch {
	case unproven:
		return err
	case err != nil:
		return fault.WithHint(fault.NotPullable.Refusedf("%s can't fetch the installer %s: %w", n.Plan.Node, n.Want.Build.Installer, err),
			"nothing was taken down; the node itself must reach that registry, be let in there, and have room for the image")
	case !supported:
		n.Tell("pull", "this Talos has no API to fetch an image beforehand")
	}
	n.pulled = true
	return nil
}

// configForNew returns the node's configuration with the wanted installer, as the wanted Talos can read it.
func (n *node) configForNew(ctx context.Context) (cluster.Secret, error) {
	config, err := n.Talos.MachineConfig(ctx, n.Plan.Addr)
	if err != nil {
		return nil, fmt.Errorf("read machine configuration of %s: %w", n.Plan.Addr, err)
	}
	patched, err := n.Maintenance.PatchConfig(config, cluster.ConfigPatch{Installer: n.Want.Build.Installer, Talos: n.Want.Build.TalosVersion})
	if err != nil {
		return nil, fmt.Errorf("machine configuration of %s: %w", n.Plan.Node, err)
	}
	return patched, nil
}

// How often a node is asked to fetch the installer, and the pause in between. An attempt that took
// longer than pullQuick to fail is not retried: a registry moves faster than that.
const (
	pullTries = 3
	pullPause = 20 * time.Second
	pullQuick = time.Minute
)
