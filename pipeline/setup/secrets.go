package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/recast-sh/recast/internal/fault"
)

// keepsSecrets refuses a directory with secrets, whatever the options: who replaces the secrets of a
// cluster can't reach it any more.
func keepsSecrets(dir string) error {
	file := filepath.Join(dir, secretsFile)
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fault.Configf("look at %s: %w", dir, err)
	}
	return fault.WithHint(fault.Configf("%s is there already, and is never replaced: a cluster that was made of these secrets is lost with them; nothing was changed", file),
		"--dir makes another cluster elsewhere; if no cluster has these secrets, move the file away")
}

// secrets makes the secrets of the cluster, and encrypts them where that is wanted.
func (in *newCluster) secrets(ctx context.Context) ([]byte, error) {
	text, err := in.makes.Secrets(in.Talos)
	if err != nil {
		return nil, err
	}
	path, err := filepath.Abs(filepath.Join(in.Dir, secretsFile))
	if err != nil {
		return nil, fault.Configf("find %s: %w", in.Dir, err)
	}
	out, by, err := in.makes.Protect(ctx, path, in.Age, text)
	if err != nil {
		return nil, err
	}
	if in.res.Encrypted = by; by == "" {
		in.res.Secret = append(in.res.Secret, secretsFile)
		in.warn("%s is not encrypted: keep it out of git. --age, or a rule for it in a .sops.yaml, has it encrypted", secretsFile)
	}
	return out, nil
}

// sharedAddress is the patch that has control planes share an address.
func (in *newCluster) sharedAddress(context.Context) ([]byte, error) {
	return fmt.Appendf(nil, `# The control planes share this address: one of them has it, and another one takes it over.
machine:
  network:
    interfaces:
      - deviceSelector: {physical: true}
        vip: {ip: %s}
`, in.VIP), nil
}
