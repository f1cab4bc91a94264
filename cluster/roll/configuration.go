package roll

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
)

// MachineConfigKey is the journal key of a node's machine configuration.
func MachineConfigKey(node string) string { return node + "/" + machineConfigKey }

const machineConfigKey = "machine-config"

// savedConfig is the machine configuration of a node: in the journal, in the user's file, and in the node.
type savedConfig struct {
	*rolling.Node
	files func(ctx context.Context, node string) (config cluster.Secret, found bool, err error) // Roller.MachineConfig
}

func (n savedConfig) forget() error {
	return fault.Prefix("journal", n.Journal.Delete(MachineConfigKey(n.Plan.Node)))
}

// read returns the configuration to apply: from the journal, else from the user's file. Either must
// match the checksum in the record.
func (n savedConfig) read(ctx context.Context) (cluster.Secret, error) {
	park, err := n.Parking(ctx)
	if err != nil {
		return nil, err
	}
	b, found, err := n.Journal.Secret(MachineConfigKey(n.Plan.Node))
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	damaged := park.Record.CheckConfig(b)
	if found && damaged == nil {
		return b, nil
	}
	const again = "it is not applied: the same command again puts the old system disk of %s back, which has the configuration"
	if n.files != nil {
		switch file, there, err := n.files(ctx, n.Plan.Node); {
		case err != nil:
			return nil, err
		case !there:
		case park.Record.CheckConfig(file) == nil:
			return file, nil
		case !found:
			return nil, fault.WithHint(fault.MachineConfig.Refusedf("node %s: its file in talos.machineConfigs is not the machine configuration that run %s remembered", n.Plan.Node, park.Record.Run), again, n.Plan.Node)
		}
	}
	if !found {
		return nil, fault.MachineConfig.Refusedf("node %s: its machine configuration is neither in the journal nor in talos.machineConfigs", n.Plan.Node)
	}
	return nil, fault.WithHint(fault.MachineConfig.Refusedf("node %s: %w", n.Plan.Node, damaged), again, n.Plan.Node)
}

// remember writes the configuration that the node will get to the journal: the user's file as the plan showed it,
// else what the node runs. It returns the checksum for the record.
func (n savedConfig) remember(ctx context.Context, kubernetes cluster.KubernetesImages) (sum string, err error) {
	var config cluster.Secret
	found := false
	if !n.Plan.Strategy.Upgrades() { // a failed upgrade in place gets the old configuration back
		if config, found, err = n.userConfig(ctx); err != nil {
			return "", err
		}
	}
	if !found {
		if config, err = n.Talos.MachineConfig(ctx, n.Plan.Addr); err != nil {
			return "", fmt.Errorf("read machine configuration of %s: %w", n.Plan.Addr, err)
		}
	}
	// While the node still runs, prove that the configuration can be applied.
	if _, err := n.Maintenance.PatchConfig(config, n.patch(cluster.MachineDisk{Serial: "recast-proof"}, kubernetes)); err != nil {
		return "", fmt.Errorf("machine configuration of %s: %w", n.Plan.Node, err)
	}
	if err := n.Journal.PutSecret(MachineConfigKey(n.Plan.Node), config); err != nil {
		return "", fmt.Errorf("journal: %w", err)
	}
	return cluster.ConfigSum(config), nil
}

// thenForget returns a function that runs do, which closes the node's record, and then deletes the node's machine
// configuration from the journal: by then the node has its configuration again.
func (n savedConfig) thenForget(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := do(ctx); err != nil {
			return err
		}
		return n.forget()
	}
}

func (n savedConfig) fileMoved(how string) error {
	return fault.WithHint(fault.PlanMoved.Refusedf("node %s: %s since the plan was made: what the plan showed is no longer what would be applied", n.Plan.Node, how),
		"recast plan --explain %s shows what the file would change now; then roll that", n.Plan.Node)
}

// userConfig reads the node's file. It refuses if the file, or the configuration that the node
// runs, has changed since the plan compared them.
func (n savedConfig) userConfig(ctx context.Context) (text cluster.Secret, found bool, err error) {
	text, found, err = n.file(ctx)
	_, ran := n.Plan.ConfigFile.HashOf()
	if err != nil || !found || ran == "" {
		return text, found, err
	}
	runs, err := n.Talos.MachineConfig(ctx, n.Plan.Addr)
	if err != nil {
		return nil, false, fmt.Errorf("read machine configuration of %s: %w", n.Plan.Addr, err)
	}
	if cluster.ConfigSum(runs) != ran {
		return nil, false, n.fileMoved("the configuration that it runs was changed")
	}
	return text, true, nil
}

// file reads the node's file, which must be as the plan showed it.
func (n savedConfig) file(ctx context.Context) (text cluster.Secret, found bool, err error) {
	if n.files != nil {
		if text, found, err = n.files(ctx, n.Plan.Node); err != nil {
			return nil, false, err
		}
	}
	planned, _ := n.Plan.ConfigFile.HashOf()
	switch {
	case !found && planned == "":
		return nil, false, nil
	case !found:
		return nil, false, n.fileMoved("its file in talos.machineConfigs is gone")
	case planned == "":
		return nil, false, n.fileMoved("it has a file in talos.machineConfigs now")
	}
	if is, err := cluster.Text(text); err != nil || is != planned {
		return nil, false, errors.Join(n.fileMoved("its file in talos.machineConfigs was changed"), err)
	}
	return text, true, nil
}

// runsKubernetes returns the images that the node runs, and will run again when it is back. An
// image that is pinned by digest alone is assumed to stay the same.
func (n savedConfig) runsKubernetes(ctx context.Context) (cluster.KubernetesImages, error) {
	m, err := n.Talos.KubernetesImages(ctx, n.Plan.Addr)
	if err != nil {
		return cluster.KubernetesImages{}, fmt.Errorf("read which Kubernetes %s runs: %w", n.Plan.Node, err)
	}
	if m.UUID != n.Plan.UUID {
		return cluster.KubernetesImages{}, fault.UUIDMismatch.Refusedf("%s answers with UUID %s, not %s", n.Plan.Addr, m.UUID, n.Plan.UUID)
	}
	return m.Images, nil
}

// kubernetesOfOthers returns the images for a machine that was reset and can't be asked: the
// kubelet version that its Node last reported and, on a control plane, the images of another
// control plane. An image is "" if nothing reports it.
func (n savedConfig) kubernetesOfOthers(ctx context.Context) (images cluster.KubernetesImages) {
	asking, cancel := context.WithTimeout(ctx, exchange.LookAround)
	defer cancel()
	for _, e := range n.Plan.ControlPlanes {
		if n.Plan.Role != cluster.ControlPlane || e.Node == n.Plan.Node {
			continue
		}
		if m, err := n.Talos.KubernetesImages(asking, e.Addr); err == nil {
			images = m.Images
			break
		}
	}
	images.Kubelet = ""
	if k := n.Plan.Found.Node; k != nil && k.KubeletVersion != "" {
		images.Kubelet = "ghcr.io/siderolabs/kubelet:" + k.KubeletVersion
	}
	return images
}
