package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// ErrConfigDamaged is a machine configuration in a journal that is not the one whose
// sum the record has.
var ErrConfigDamaged = errors.New("the machine configuration in the journal is damaged")

const machineConfigKey = "machine-config"

// MachineConfigKey is where the journal of a run keeps a node's machine configuration.
func MachineConfigKey(node string) string { return node + "/" + machineConfigKey }

func configSum(config []byte) string {
	sum := sha256.Sum256(config)
	return hex.EncodeToString(sum[:])
}

// CheckConfig compares a machine configuration from the journal with the sum in the
// record. A record of an older recast has none, and then any is accepted.
func (r Record) CheckConfig(config []byte) error {
	if r.Config == "" || configSum(config) == r.Config {
		return nil
	}
	return fmt.Errorf("%w: its SHA-256 is %s, and the record of run %s says %s", ErrConfigDamaged, words.Short(configSum(config)), r.Run, words.Short(r.Config))
}

// machineConfig is the configuration that the node is to get: from the journal, else
// the user's file; either must be the one that the record tells of.
func (n *nodeRoll) machineConfig(ctx context.Context) (Secret, error) {
	park, err := n.parking(ctx)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	b, found, err := n.Journal.Secret(MachineConfigKey(n.plan.Node))
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	damaged := park.Record.CheckConfig(b)
	if found && damaged == nil {
		return b, nil
	}
	const again = "it is not applied: the same command again puts the old system disk of %s back, which has the configuration"
	if n.MachineConfig != nil {
		switch file, there, err := n.MachineConfig(n.plan.Node); {
		case err != nil:
			return nil, err
		case there && park.Record.Config != "" && park.Record.CheckConfig(file) == nil, there && park.Record.Config == "" && n.showed(file):
			return file, nil
		case there && !found:
			return nil, fault.WithHint(fault.MachineConfig.Refusedf("node %s: its file in talos.machineConfigs is not the machine configuration that run %s remembered", n.plan.Node, park.Record.Run), again, n.plan.Node)
		}
	}
	if !found {
		return nil, fault.MachineConfig.Refusedf("node %s: its machine configuration is neither in the journal nor in talos.machineConfigs", n.plan.Node)
	}
	return nil, fault.WithHint(fault.MachineConfig.Refusedf("node %s: %w", n.plan.Node, damaged), again, n.plan.Node)
}

// rememberMachineConfig writes the configuration that the node is to get into the
// journal, and returns its sum for the record: the user's file as the plan has shown
// it, else what the node runs.
func (n *nodeRoll) rememberMachineConfig(ctx context.Context, kubernetes KubernetesImages) (sum string, err error) {
	var config Secret
	found := false
	if n.plan.Strategy != InPlace { // what does not come back from an upgrade in place gets what it had
		if config, found, err = n.userConfig(ctx); err != nil {
			return "", err
		}
	}
	if !found {
		if config, err = n.Talos.MachineConfig(ctx, n.plan.Addr); err != nil {
			return "", fmt.Errorf("read machine configuration of %s: %w", n.plan.Addr, err)
		}
	}
	// Prove that it can be applied while the node still runs.
	if _, err := n.Maintenance.PatchConfig(config, n.patch(MachineDisk{Serial: "recast-proof"}, kubernetes)); err != nil {
		return "", fmt.Errorf("machine configuration of %s: %w", n.plan.Node, err)
	}
	if err := n.Journal.PutSecret(MachineConfigKey(n.plan.Node), config); err != nil {
		return "", fmt.Errorf("journal: %w", err)
	}
	return configSum(config), nil
}

// thenForget does what closes the node's record, and deletes its machine configuration
// from the journal: the node has it again.
func (n *nodeRoll) thenForget(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := do(ctx); err != nil {
			return err
		}
		return n.forgetConfig()
	}
}

func (n *nodeRoll) forgetConfig() error {
	return fault.Prefix("journal", n.Journal.Delete(MachineConfigKey(n.plan.Node)))
}

// Configured are the nodes that answer with a configuration of their own and that no
// replacement has out: no journal needs to keep it for them.
func (p Plan) Configured() []string {
	var nodes []string
	for _, n := range p.Nodes {
		if f := n.found; f.VM != nil && f.Machine != nil && f.Blank == nil && !f.Open() {
			nodes = append(nodes, n.Node)
		}
	}
	return nodes
}
