package report

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Save draws the run into a file, which is whole or not there; only its owner may
// read it. The directory is made where there is none.
func Save(file string, r Run) (err error) {
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	temp, err := os.CreateTemp(dir, ".report-") // 0600
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp.Name()))
		}
	}()
	w := bufio.NewWriter(temp)
	err = Write(w, r)
	if err == nil {
		err = errors.Join(w.Flush(), temp.Sync())
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), file); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
