package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/recast-sh/recast/internal/fault"
)

// Forget deletes the secrets of these keys from all runs in dir, except runs that a
// process has open for writing. sync is Options.Sync.
func Forget(dir string, keys []string, sync func(string) error) error {
	runs, err := Runs(dir)
	errs := []error{err}
	for _, r := range runs {
		held, err := keysWithSecret(dir, r.ID, keys)
		if err == nil && len(held) > 0 {
			err = forget(dir, r.ID, held, sync)
		}
		if fault.KindOf(err) != fault.Claimed {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// keysWithSecret are those of the keys that have a secret in the run.
func keysWithSecret(dir, run string, keys []string) (held []string, err error) {
	for _, key := range keys {
		name, err := fileName(key, secretSuffix)
		if err != nil {
			return nil, fmt.Errorf("journal %s: %w", key, err)
		}
		switch _, err := os.Lstat(filepath.Join(dir, run, name)); {
		case err == nil:
			held = append(held, key)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("journal %s: %w", key, err)
		}
	}
	return held, nil
}

func forget(dir, run string, keys []string, sync func(string) error) error {
	j, err := Open(dir, Options{Run: run, Sync: sync})
	if err != nil {
		return err
	}
	for _, key := range keys {
		err = errors.Join(err, j.Delete(key))
	}
	return errors.Join(err, j.Close())
}
