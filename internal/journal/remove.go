package journal

import (
	"errors"
	"fmt"
	"os"
)

// Remove deletes a finished run and its directory. If the run is open for writing, Remove
// does nothing and the error is of kind fault.Claimed.
func Remove(dir, run string) error {
	if err := remove(dir, run); err != nil {
		return fmt.Errorf("remove run %q: %w", run, err)
	}
	return nil
}

func remove(dir, run string) error {
	if err := checkRun(run); err != nil {
		return err
	}
	parent, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer parent.Close()
	held, err := lock(parent, run+".lock")
	if err != nil {
		return err
	}
	defer unlock(held)
	info, err := runInfo(dir+"/"+run, run)
	if err != nil {
		return err
	}
	if info.Unfinished() {
		return errors.New("it has not finished")
	}
	// Renamed first: a partly removed directory is not a run. The lock file can go too, since
	// no other run will ever have this ID.
	temp := ".old-" + run
	if err := errors.Join(parent.RemoveAll(temp), parent.Rename(run, temp), syncDir(parent)); err != nil {
		return err
	}
	return errors.Join(parent.RemoveAll(temp), parent.Remove(run+".lock"))
}
