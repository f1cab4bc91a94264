// Package etcddb reads the database in a snapshot of etcd: [Read] returns its [Contents], which are what the database
// records about itself. A damaged file is an [ErrDamaged].
package etcddb

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
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
