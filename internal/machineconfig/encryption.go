package machineconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/redact"
)

// keyVariables are the variables in which sops and age look for their keys, and in which the key services of clouds
// look for credentials.
var keyVariables = []string{"SOPS_*", "AGE_*", "AWS_*", "AZURE_*", "GOOGLE_*", "CLOUDSDK_*", "VAULT_*", "HC_VAULT_*", "GNUPGHOME", "GPG_*", "SSH_AUTH_SOCK"}

var (
	// github.com/getsops/sops, stores/yaml: the mapping "sops" of each document holds the metadata.
	sopsMetadata = regexp.MustCompile(`(?m)^sops:\s*$`)
	sopsMAC      = regexp.MustCompile(`(?m)^\s+mac: ["']?ENC\[`)
	// filippo.io/age, internal/format and armor.
	ageHeaders = [][]byte{[]byte("age-encryption.org/v1"), []byte("-----BEGIN AGE ENCRYPTED FILE-----")}
)

// encryption returns the name of the program that encrypted a text; "" for plaintext.
func encryption(text []byte) string {
	for _, header := range ageHeaders {
		if bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), header) {
			return "age"
		}
	}
	if sopsMetadata.Match(text) && sopsMAC.Match(text) {
		return "sops"
	}
	return ""
}

// decrypted returns the plaintext of a file.
func (s *Source) decrypted(ctx context.Context, f file) ([]byte, error) {
	var args []string
	program := encryption(f.text)
	switch program {
	case "":
		return f.text, nil
	case "sops":
		args = []string{"sops", "--decrypt", "--input-type", "yaml", "--output-type", "yaml", "/dev/stdin"}
	case "age":
		keys, err := s.ageKeys()
		if err != nil {
			return nil, fault.WithHint(fault.MachineConfig.Configf("%s is encrypted with age: %w", f.name, err),
				"SOPS_AGE_KEY_FILE names the file with the age identity")
		}
		args = []string{"age", "--decrypt", "--identity", keys}
	}
	var plain bytes.Buffer
	err := s.o.program(ctx, command.Program{Args: args, Stdin: f.text, Stdout: &plain}, func() []string { return redact.YAML(plain.Bytes()) })
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fault.WithHint(fault.MachineConfig.Configf("%s is encrypted with %s, and there is no %s in PATH", f.name, program, program),
			"install %s, or have talos.machineConfigs run a program that writes plaintext", program)
	case err != nil:
		return nil, fault.WithHint(fault.MachineConfig.Refusedf("decrypt %s: %s: %w", f.name, program, err),
			"the key has to be where %s finds it: %s", program, map[string]string{
				"sops": "SOPS_AGE_KEY_FILE, ~/.config/sops/age/keys.txt, gpg-agent or the key service that the file names",
				"age":  "SOPS_AGE_KEY_FILE or ~/.config/sops/age/keys.txt",
			}[program])
	}
	return plain.Bytes(), nil
}

// ageKeys returns the file with age identities, from the places where sops looks for the file
// (github.com/getsops/sops, age/keysource.go).
func (s *Source) ageKeys() (string, error) {
	variable := func(name string) string {
		for _, entry := range s.o.Env {
			if value, ok := strings.CutPrefix(entry, name+"="); ok {
				return value
			}
		}
		return ""
	}
	file := variable("SOPS_AGE_KEY_FILE")
	if file == "" {
		config := variable("XDG_CONFIG_HOME")
		if config == "" {
			config = filepath.Join(variable("HOME"), ".config")
		}
		file = filepath.Join(config, "sops", "age", "keys.txt")
	}
	_, err := os.Stat(file)
	return file, err
}

// Encrypt returns a configuration as sops encrypts it for a file with this absolute path: by the rules in the
// .sops.yaml that sops finds in o.Base or above. Encrypt fails if a secret stays in the clear.
func (o Options) Encrypt(ctx context.Context, path string, text cluster.Secret) ([]byte, error) {
	args := []string{"sops", "--encrypt", "--input-type", "yaml", "--output-type", "yaml", "--filename-override", path, "/dev/stdin"}
	out, err := o.encrypted(ctx, path, args, text, fmt.Sprintf("a .sops.yaml in %s or above has to have a rule for this file: creation_rules with path_regex and age, or another key", o.Base))
	secrets := redact.YAML(text)
	switch {
	case err != nil:
		return nil, err
	case encryption(out) == "" || slices.ContainsFunc(redact.YAML(out), func(value string) bool { return value != "" && slices.Contains(secrets, value) }):
		return nil, fault.WithHint(fault.MachineConfig.Refusedf("encrypt %s: sops leaves a secret in the clear", path), "nothing was written; the rule in .sops.yaml must not leave out values that are secret: see encrypted_regex and unencrypted_regex there")
	}
	return out, nil
}

// encrypted runs the program of the arguments, which encrypts a text for a file; hint is for an error of the program.
func (o Options) encrypted(ctx context.Context, path string, args []string, text cluster.Secret, hint string) ([]byte, error) {
	var out bytes.Buffer
	err := o.program(ctx, command.Program{Args: args, Stdin: text, Stdout: &out}, func() []string { return redact.YAML(text) })
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fault.WithHint(fault.MachineConfig.Configf("there is no %s in PATH to encrypt %s", args[0], path), "install %s", args[0])
	case err != nil:
		return nil, fault.WithHint(fault.MachineConfig.Refusedf("encrypt %s: %s: %w", path, args[0], err), "%s", hint)
	}
	return out.Bytes(), nil
}

// Protect encrypts a text for a file with this absolute path. With recipients, Protect uses age. Without recipients,
// it uses SOPS if a .sops.yaml in o.Base or above has a rule for the file. by names the program. Otherwise by is "",
// and out is the text.
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
	out, err := o.encrypted(ctx, path, args, text, "a recipient is a public key: the line of age-keygen's output that has age1…, or an SSH key")
	if err == nil && encryption(out) != "age" {
		return nil, fault.MachineConfig.Refusedf("encrypt %s: age wrote something else than an encrypted file", path)
	}
	return out, err
}

// ruled reports whether the .sops.yaml that sops finds from o.Base on has a rule for the file. It decides as sops
// does: by path_regex, on the path relative to the .sops.yaml (github.com/getsops/sops, config/config.go).
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
