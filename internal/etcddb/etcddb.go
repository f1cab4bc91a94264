// Package etcddb reads the database in a snapshot of etcd: [Read] returns its [Contents], which are what the database
// records about itself. A damaged file is an [ErrDamaged].
package etcddb

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
)

// ErrDamaged says that a file is not a database, or no longer as etcd wrote it.
var ErrDamaged = errors.New("not an etcd database, or a damaged one")

// Contents is what a database records about itself.
type Contents struct {
	Revision uint64 // revision of the last change; 0: nothing was ever written
	Members  []Member
}

// Member is a member of etcd, as recorded by the member whose database it is.
type Member struct {
	Name  string   `json:"name"`
	Peers []string `json:"peerURLs"`
}

// read reads the database in f, which bbolt closes.
func read(f *os.File, size int64) (c Contents, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	db, err := bbolt.Open(f.Name(), 0o400, &bbolt.Options{
		ReadOnly: true, Timeout: time.Second,
		OpenFile: func(string, int, os.FileMode) (*os.File, error) { return f, nil },
	})
	if err != nil {
		return c, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > size {
			return fmt.Errorf("%w: it was cut off: %d of %d bytes", ErrDamaged, size, tx.Size())
		}
		return errors.Join(c.revision(tx), c.members(tx))
	})
	return c, err
}

// revision reads the last key of the bucket "key". The keys of this bucket are revisions, in order (etcd
// server/storage/mvcc/revision.go).
func (c *Contents) revision(tx *bbolt.Tx) error {
	keys, err := bucket(tx, "key")
	if err != nil {
		return err
	}
	switch last, _ := keys.Cursor().Last(); {
	case last == nil:
	case len(last) < 17:
		return fmt.Errorf("%w: %x is not a revision", ErrDamaged, last)
	default:
		c.Revision = binary.BigEndian.Uint64(last)
	}
	return nil
}

func (c *Contents) members(tx *bbolt.Tx) error {
	members, err := bucket(tx, "members")
	if err != nil {
		return err
	}
	err = members.ForEach(func(id, v []byte) error {
		var m Member
		if err := json.Unmarshal(v, &m); err != nil {
			return fmt.Errorf("%w: member %s: %w", ErrDamaged, id, err)
		}
		c.Members = append(c.Members, m)
		return nil
	})
	slices.SortFunc(c.Members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return err
}

func bucket(tx *bbolt.Tx, name string) (*bbolt.Bucket, error) {
	if b := tx.Bucket([]byte(name)); b != nil {
		return b, nil
	}
	return nil, fmt.Errorf("%w: it has no bucket %q", ErrDamaged, name)
}

// The limits of the process that reads a database. Reading needs only a few pages, however large the file is.
const (
	readCPU    = 5         // seconds
	readMemory = 256 << 20 // bytes, in addition to the program itself and the file, which is only mapped
	readWithin = time.Minute
)

// childSize is the variable that turns this program into a reader. Its value is the size of the database at file
// descriptor 3.
const childSize = "RECAST_READ_ETCD_DATABASE"

// answer is what the reader prints.
type answer struct {
	Contents Contents
	Damage   string `json:",omitempty"`
}

// Read reads a database of size bytes and ignores the rest of the file, which is a snapshot's checksum. bbolt trusts
// the file that it maps: on a damaged or crafted file it panics, follows pages in a circle forever, or uses up all
// memory. So Read starts this program as a child process that reads the database, with limits and without an
// environment. If the child fails, the error is ErrDamaged.
func Read(ctx context.Context, file string, size int64) (Contents, error) {
	self, err := os.Executable()
	if err != nil {
		return Contents{}, fmt.Errorf("read a database in a process of its own: %w", err)
	}
	f, err := os.Open(file)
	if err != nil {
		return Contents{}, err
	}
	defer f.Close()
	limited, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(limited, self)
	cmd.Env = []string{childSize + "=" + strconv.FormatInt(size, 10)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C on the terminal must not reach the child
	cmd.ExtraFiles, cmd.Stdout = []*os.File{f}, &out
	err = cmd.Run()
	var a answer
	switch _, ended := errors.AsType[*exec.ExitError](err); {
	case ctx.Err() != nil:
		return Contents{}, context.Cause(ctx)
	case ended:
		return Contents{}, fmt.Errorf("%w: the process that read it was ended by its limits (%d s of processor time, %d MiB of memory) or crashed: %w", ErrDamaged, readCPU, readMemory>>20, err)
	case err != nil:
		return Contents{}, fmt.Errorf("read a database in a process of its own: %w", err)
	}
	if err := json.Unmarshal(out.Bytes(), &a); err != nil {
		return Contents{}, fmt.Errorf("%w: the reader's output is invalid: %w", ErrDamaged, err)
	}
	if a.Damage != "" {
		return Contents{}, fmt.Errorf("%w%s", ErrDamaged, strings.TrimPrefix(a.Damage, ErrDamaged.Error()))
	}
	return a.Contents, nil
}

// init turns a process that Read has started into the reader, before anything else runs. As an init it works in every
// program that reads databases, including tests.
func init() {
	if v, child := os.LookupEnv(childSize); child {
		os.Exit(serve(v))
	}
}

func serve(sizeText string) int {
	size, err := strconv.ParseInt(sizeText, 10, 64)
	if err == nil {
		err = limit()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var a answer
	if a.Contents, err = read(os.NewFile(3, "database"), size); err != nil {
		a = answer{Damage: err.Error()}
	}
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		return 1
	}
	return 0
}

// limit sets the limits of this process: setrlimit(2).
func limit() error {
	if err := syscall.Setrlimit(syscall.RLIMIT_CPU, &syscall.Rlimit{Cur: readCPU, Max: readCPU}); err != nil {
		return fmt.Errorf("limit the processor time: %w", err)
	}
	used, err := data()
	if err != nil {
		return err
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: used + readMemory, Max: used + readMemory}); err != nil {
		return fmt.Errorf("limit the memory: %w", err)
	}
	return nil
}

// data returns how much memory counts towards RLIMIT_DATA already: proc_pid_statm(5). Without /proc it returns 0.
func data() (uint64, error) {
	b, err := os.ReadFile("/proc/self/statm")
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	fields := strings.Fields(string(b))
	if err != nil || len(fields) < 6 {
		return 0, fmt.Errorf("read /proc/self/statm (%q): %w", b, err)
	}
	pages, err := strconv.ParseUint(fields[5], 10, 64)
	return pages * uint64(os.Getpagesize()), err
}
