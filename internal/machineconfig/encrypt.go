package machineconfig

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/redact"
)

// Encrypt returns a configuration as sops encrypts it for a file with this absolute path: by the rules
// in the .sops.yaml that it finds in o.Base or above. It fails if a secret stays in the clear.
func (o Options) Encrypt(ctx context.Context, path string, text cluster.Secret) ([]byte, error) {
	var out bytes.Buffer
	secrets := redact.YAML(text)
	err := o.program(ctx, command.Program{
		Args:  []string{"sops", "--encrypt", "--input-type", "yaml", "--output-type", "yaml", "--filename-override", path, "/dev/stdin"},
		Stdin: text, Stdout: &out,
	}, func() []string { return secrets })
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fault.WithHint(fault.MachineConfig.Configf("there is no sops in PATH to encrypt %s", path), "install sops")
	case err != nil:
		return nil, fault.WithHint(fault.MachineConfig.Refusedf("encrypt %s: sops: %w", path, err), "a .sops.yaml in %s or above has to have a rule for this file: creation_rules with path_regex and age, or another key", o.Base)
	case encryption(out.Bytes()) == "" || slices.ContainsFunc(redact.YAML(out.Bytes()), func(value string) bool { return value != "" && slices.Contains(secrets, value) }):
		return nil, fault.WithHint(fault.MachineConfig.Refusedf("encrypt %s: sops leaves a secret in the clear", path), "nothing was written; the rule in .sops.yaml must not leave out values that are secret: see encrypted_regex and unencrypted_regex there")
	}
	return out.Bytes(), nil
}
