package machineconfig

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/redact"
)

// Protect encrypts a text for a file with this absolute path: by age for these recipients, or without any
// by SOPS if a .sops.yaml in o.Base or above has a rule for the file. by names the program; "" if neither
// is so: then out is the text.
func (o Options) Protect(ctx context.Context, path string, recipients []string, text cluster.Secret) (out []byte, by string, err error) {
	if len(recipients) > 0 {
		out, err = o.encryptByAge(ctx, path, recipients, text)
		return out, "age", err
	}
	ruled, err := o.ruled(path)
	switch {
	case err != nil:
		return nil, "", err
	case !ruled:
		return text, "", nil
	}
	out, err = o.Encrypt(ctx, path, text)
	return out, "sops", err
}

func (o Options) encryptByAge(ctx context.Context, path string, recipients []string, text cluster.Secret) ([]byte, error) {
	args := []string{"age", "--encrypt", "--armor"}
	for _, r := range recipients {
		args = append(args, "--recipient", r)
	}
	var out bytes.Buffer
	err := o.program(ctx, command.Program{Args: args, Stdin: text, Stdout: &out}, func() []string { return redact.YAML(text) })
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fault.WithHint(fault.MachineConfig.Configf("there is no age in PATH to encrypt %s", path), "install age")
	case err != nil:
		return nil, fault.WithHint(fault.MachineConfig.Refusedf("encrypt %s: age: %w", path, err), "a recipient is a public key: the line of age-keygen's output that has age1…, or an SSH key")
	case encryption(out.Bytes()) != "age":
		return nil, fault.MachineConfig.Refusedf("encrypt %s: age wrote something else than an encrypted file", path)
	}
	return out.Bytes(), nil
}

// ruled says whether the .sops.yaml that sops finds from o.Base on has a rule for the file, as sops
// decides it: by path_regex, on the path relative to the .sops.yaml (github.com/getsops/sops, config/config.go).
func (o Options) ruled(path string) (bool, error) {
	for dir := o.Base; ; dir = filepath.Dir(dir) {
		file := filepath.Join(dir, ".sops.yaml")
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			if dir == filepath.Dir(dir) {
				return false, nil
			}
			continue
		}
		var rules struct {
			Rules []struct {
				PathRegex string `yaml:"path_regex"`
			} `yaml:"creation_rules"`
		}
		if err == nil {
			err = yaml.Unmarshal(text, &rules)
		}
		if err != nil {
			return false, fault.MachineConfig.Configf("%s: %w", file, err)
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return false, fault.MachineConfig.Configf("%s: %w", file, err)
		}
		for _, rule := range rules.Rules {
			matches, err := regexp.MatchString(rule.PathRegex, name)
			if err != nil || matches {
				return matches, fault.As(fault.Config, fault.Prefix(file, err))
			}
		}
		return false, nil
	}
}
