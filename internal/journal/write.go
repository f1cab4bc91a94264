package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

var errReadOnly = errors.New("opened read-only")

// write replaces the content of a file: after a crash at any point the file holds either
// the old content or all of b.
func (j *Journal) write(key, name string, b []byte) error {
	if j.lock == nil {
		return errReadOnly
	}
	temp := tempPrefix + strconv.FormatInt(j.tempName.Add(1), 10)
	if err := writeSynced(j.root, temp, b); err != nil {
		return errors.Join(err, j.root.Remove(temp))
	}
	if err := j.sync("write " + key); err != nil {
		return errors.Join(err, j.root.Remove(temp))
	}
	if err := j.root.Rename(temp, name); err != nil {
		return errors.Join(err, j.root.Remove(temp))
	}
	if err := syncDir(j.root); err != nil {
		return err
	}
	return j.sync("written " + key)
}

func (j *Journal) remove(key, name string) error {
	if j.lock == nil {
		return errReadOnly
	}
	if _, err := j.root.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := j.sync("delete " + key); err != nil {
		return err
	}
	if err := j.root.Remove(name); err != nil {
		return err
	}
	if err := syncDir(j.root); err != nil {
		return err
	}
	return j.sync("deleted " + key)
}

// removeTemps removes the temporary files of a killed process.
func (j *Journal) removeTemps() error {
	entries, err := fs.ReadDir(j.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			if err := j.root.Remove(e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeSynced(root *os.Root, name string, b []byte) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes renames and removals in root durable.
func syncDir(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	if err := d.Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync directory: %w", err), d.Close())
	}
	return d.Close()
}
