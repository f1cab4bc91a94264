package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Files reads the files of a run that can be shown to others: its beginning and end, the facts whose
// keys keep names, and those named in others. Secrets are never among them.
func Files(dir, run string, keep func(key string) bool, others ...string) (map[string][]byte, error) {
	if err := checkRun(run); err != nil {
		return nil, fmt.Errorf("journal of run %q: %w", run, err)
	}
	root, err := os.OpenRoot(filepath.Join(dir, run))
	if err != nil {
		return nil, fmt.Errorf("journal of run %q: %w", run, err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	files := map[string][]byte{}
	for _, e := range entries {
		if !shown(e.Name(), keep, others) {
			continue
		}
		b, errRead := root.ReadFile(e.Name())
		if errors.Is(errRead, fs.ErrNotExist) {
			continue // deleted, or a log that was rotated, meanwhile
		}
		files[e.Name()], err = b, errors.Join(err, errRead)
	}
	if err != nil {
		return nil, fmt.Errorf("journal of run %q: %w", run, err)
	}
	return files, nil
}

func shown(name string, keep func(key string) bool, others []string) bool {
	key, ok := keyOf(name)
	return name == infoName || slices.Contains(others, name) || ok && strings.HasSuffix(name, factSuffix) && keep(key)
}

// Place makes a run of files that Files has read, in place of one that is there. It refuses files that
// Files would not have read, and those without a beginning.
func Place(dir, run string, files map[string][]byte, keep func(key string) bool, others ...string) error {
	if err := place(dir, run, files, keep, others); err != nil {
		return fmt.Errorf("journal of run %q: %w", run, err)
	}
	return nil
}

func place(dir, run string, files map[string][]byte, keep func(key string) bool, others []string) error {
	if err := errors.Join(checkRun(run), os.MkdirAll(dir, 0o700)); err != nil {
		return err
	}
	parent, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer parent.Close()
	temp := ".new-" + run
	if err := errors.Join(parent.RemoveAll(temp), parent.Mkdir(temp, 0o700)); err != nil {
		return err
	}
	for name, b := range files {
		if !shown(name, keep, others) {
			return errors.Join(fmt.Errorf("%q is not a part of a run that others see", name), parent.RemoveAll(temp))
		}
		if err := parent.WriteFile(filepath.Join(temp, name), b, 0o600); err != nil {
			return errors.Join(err, parent.RemoveAll(temp))
		}
	}
	if _, err := runInfo(filepath.Join(dir, temp), run); err != nil {
		return errors.Join(err, parent.RemoveAll(temp))
	}
	return errors.Join(parent.RemoveAll(run), parent.Rename(temp, run))
}
