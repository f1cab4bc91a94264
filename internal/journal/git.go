package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// KeepOutOfGit creates a directory for state if it is missing, and a .gitignore that
// excludes all of it: it holds machine configurations. It keeps an existing .gitignore
// that is not empty.
func KeepOutOfGit(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep %s out of git: %w", dir, err)
	}
	file := filepath.Join(dir, ".gitignore")
	info, err := os.Lstat(file)
	if err == nil && info.Size() > 0 {
		return nil
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.WriteFile(file, []byte("*\n"), 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep %s out of git: %w", dir, err)
	}
	return nil
}
