package machineconfig

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/redact"
)

// keyVariables are the variables by which sops and age find their keys, and the key
// services of clouds their credentials.
var keyVariables = []string{"SOPS_*", "AGE_*", "AWS_*", "AZURE_*", "GOOGLE_*", "CLOUDSDK_*", "VAULT_*", "HC_VAULT_*", "GNUPGHOME", "GPG_*", "SSH_AUTH_SOCK"}

var (
	// github.com/getsops/sops, stores/yaml: metadata are the mapping "sops" of each document.
	sopsMetadata = regexp.MustCompile(`(?m)^sops:\s*$`)
	sopsMAC      = regexp.MustCompile(`(?m)^\s+mac: ["']?ENC\[`)
	// filippo.io/age, internal/format and armor.
	ageHeaders = [][]byte{[]byte("age-encryption.org/v1"), []byte("-----BEGIN AGE ENCRYPTED FILE-----")}
)

// encryption names the program that encrypted a text; "" for plaintext.
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

// ageKeys finds the file with age identities where sops looks for it
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
