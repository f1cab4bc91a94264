package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
)

// markName is the file by which a lab knows its own directory. It is locked while the lab runs.
const markName = ".recast-lab"

const (
	lockName  = "recast.lock"
	stateName = ".recast"
)

// writable are the paths that some lab writes or recast writes for it. Nobody else's file may be there.
var writable = []string{
	"recast.yaml", lockName, stateName, "schematics/default.yaml", "schematics/storage.yaml", "talosconfig", "kubeconfig",
	envName, fishName, sim.ControlFile,
}

// mark is the content of the mark: what the lab has made, with its SHA-256; "" where recast replaces it.
type mark struct {
	About   string            `json:"about"`
	Made    map[string]string `json:"made"`
	Console string            `json:"console,omitempty"` // the file of --console
}

// directory is the working directory of a lab. No other lab can open it until it is closed.
type directory struct {
	path string // absolute
	root *os.Root
	mark *os.File
	was  mark // of an earlier lab
	now  mark
}

// openDirectory makes the directory, or opens an empty one or one that an earlier lab has made. It changes
// nothing in it, and refuses a directory that has, at a path of the lab, anything that a lab did not make.
func openDirectory(dir string) (_ *directory, err error) {
	d := &directory{now: mark{About: "recast lab up made this directory, and may begin anew over the files in this list", Made: map[string]string{}}}
	if d.path, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("find the lab's directory: %w", err)
	}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return nil, fault.As(fault.Config, fmt.Errorf("make the lab's directory: %w", err))
	}
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("read the lab's directory: %w", err)
	}
	marked := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == markName && e.Type().IsRegular() })
	if len(entries) > 0 && !marked {
		return nil, fault.WithHint(fault.Refusedf("%s is not empty, and no lab made it: nothing in it was touched", dir), anotherDir)
	}
	if d.root, err = os.OpenRoot(d.path); err != nil {
		return nil, fmt.Errorf("open the lab's directory: %w", err)
	}
	if err := d.take(dir, len(entries) > 1); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

const anotherDir = "recast lab up --dir with a directory that does not exist yet makes another lab there"

// take locks the mark, and reads what the earlier lab has made.
func (d *directory) take(dir string, more bool) (err error) {
	if d.mark, err = d.root.OpenFile(markName, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return fmt.Errorf("open the lab's mark: %w", err)
	}
	switch err := syscall.Flock(int(d.mark.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return fault.WithHint(fault.Refusedf("a lab runs in %s", dir), "Ctrl-C in its terminal ends it; "+anotherDir)
	case err != nil:
		return fmt.Errorf("lock the lab's mark: %w", err)
	}
	b, err := io.ReadAll(d.mark)
	if err != nil {
		return fmt.Errorf("read the lab's mark: %w", err)
	}
	if len(b) > 0 || more {
		if err := json.Unmarshal(b, &d.was); err != nil {
			return fault.WithHint(fault.Refusedf("%s does not say what the lab made: %w", filepath.Join(dir, markName), err), anotherDir)
		}
	}
	return d.requireOwn(dir)
}

// requireOwn refuses to begin anew over anything that the earlier lab did not make, or that was changed since.
func (d *directory) requireOwn(dir string) error {
	var others []string
	for _, name := range writable {
		own, err := d.own(name)
		if err != nil {
			return fmt.Errorf("look at the lab's directory: %w", err)
		}
		if !own {
			others = append(others, name)
		}
	}
	if len(others) == 0 {
		return nil
	}
	return fault.WithHint(fault.Refusedf("%s was made by a lab, but not as it is now: %s; nothing was touched", dir, strings.Join(others, ", ")),
		anotherDir+"; to begin anew here, move those files away first")
}

// own says whether there is nothing at the path, or what the earlier lab has made. A lock that the lab made, recast
// replaces; and .recast is of the lab if all runs were of its recast.yaml, and of no other beside it.
func (d *directory) own(name string) (bool, error) {
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		if info, err := d.root.Lstat(parent); err == nil && !info.IsDir() {
			return false, nil
		}
	}
	info, err := d.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if name == stateName {
		_, made := d.was.Made["recast.yaml"]
		if !made || !info.IsDir() {
			return false, nil
		}
		if _, err := d.root.Lstat("recast.yaml"); err != nil {
			return false, nil // moved away by somebody: whose runs these are is unknown
		}
		if other, err := d.hasProject(); err != nil || other {
			return false, err
		}
		return d.own("recast.yaml")
	}
	sum, made := d.was.Made[name]
	if !made || !info.Mode().IsRegular() {
		return false, nil
	}
	if sum == "" {
		return true, nil
	}
	b, err := d.root.ReadFile(name)
	return checksum(b) == sum, err
}

// nodesKey is what the file of recast -c has, whatever its name is.
var nodesKey = regexp.MustCompile(`(?m)^nodes:`)

// hasProject says whether there is another project's file: its runs and backups are in the same .recast.
func (d *directory) hasProject() (bool, error) {
	files, err := fs.Glob(d.root.FS(), "*.y*ml")
	for _, name := range files {
		if name == "recast.yaml" {
			continue
		}
		b, err := d.root.ReadFile(name)
		if err != nil || nodesKey.Match(b) {
			return true, err
		}
	}
	return false, err
}

// clear removes what the earlier lab has made.
func (d *directory) clear() error {
	for _, name := range writable {
		if err := d.root.RemoveAll(name); err != nil {
			return fmt.Errorf("clear the lab's directory: %w", err)
		}
	}
	if err := d.root.Remove("schematics"); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("clear the lab's directory: %w", err)
	}
	return nil
}

// write begins anew: the mark first, so that a lab that was killed meanwhile can be begun anew, too. It replaces no file.
func (d *directory) write(files map[string][]byte) error {
	for name, content := range files {
		d.now.Made[name] = checksum(content)
	}
	if err := d.requireOwn(d.path); err != nil {
		return err // somebody wrote there while the servers started
	}
	d.now.Made[lockName], d.now.Made[sim.ControlFile] = "", ""
	if err := d.clear(); err != nil {
		return err
	}
	if err := d.putMark(); err != nil {
		return err
	}
	return writeFiles(d.root, files)
}

func (d *directory) putMark() error {
	b, err := json.MarshalIndent(d.now, "", "  ")
	if err == nil {
		err = d.mark.Truncate(0)
	}
	if err == nil {
		_, err = d.mark.WriteAt(append(b, '\n'), 0)
	}
	if err == nil {
		err = d.mark.Sync()
	}
	if err != nil {
		return fmt.Errorf("write the lab's mark: %w", err)
	}
	return nil
}

// console opens the file for the machines' consoles. Only one that a lab of this directory has made is written on.
func (d *directory) console(file string) (io.WriteCloser, error) {
	if file == "" {
		return nopCloser{io.Discard}, nil
	}
	at, err := filepath.Abs(file)
	if err != nil {
		return nil, fmt.Errorf("--console: %w", err)
	}
	switch info, err := os.Stat(at); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fault.As(fault.Config, fmt.Errorf("--console: %w", err))
	case !info.Mode().IsRegular(): // a terminal, a pipe
		return os.OpenFile(at, os.O_WRONLY, 0)
	case info.Size() > 0 && d.was.Console != at:
		return nil, fault.WithHint(fault.Refusedf("--console %s: the file is not empty, and no lab in %s made it", file, d.path), "name a file that does not exist yet")
	}
	d.now.Console = at
	return os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// Close lets another lab have the directory.
func (d *directory) Close() error {
	errs := []error{d.root.Close()}
	if d.mark != nil {
		errs = append(errs, syscall.Flock(int(d.mark.Fd()), syscall.LOCK_UN), d.mark.Close())
	}
	return errors.Join(errs...)
}

// writeFiles writes new files below root.
func writeFiles(root *os.Root, files map[string][]byte) error {
	for name, content := range files {
		if err := writeFile(root, name, content); err != nil {
			return fmt.Errorf("write the lab's directory: %w", err)
		}
	}
	return nil
}

func writeFile(root *os.Root, name string, content []byte) error {
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
