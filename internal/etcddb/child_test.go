package etcddb_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/recast-sh/recast/internal/etcddb"
	"github.com/recast-sh/recast/internal/sim/must"
)

// database writes one as etcd does, with enough revisions for branch pages.
func database(t *testing.T) (file string, size int64) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "db")
	db, err := bbolt.Open(file, 0o600, &bbolt.Options{PageSize: 4096})
	must.Do(t, err)
	err = db.Update(func(tx *bbolt.Tx) error {
		keys, err := tx.CreateBucket([]byte("key"))
		if err != nil {
			return err
		}
		for i := range uint64(2000) {
			k := append(binary.BigEndian.AppendUint64(nil, i+1), "_00000000"...)
			if err := keys.Put(k, fmt.Append(nil, "value ", i)); err != nil {
				return err
			}
		}
		members, err := tx.CreateBucket([]byte("members"))
		if err != nil {
			return err
		}
		return members.Put([]byte("1"), []byte(`{"name":"cp1","peerURLs":["https://10.0.0.1:2380"]}`))
	})
	must.Do(t, errors.Join(err, db.Close()))
	info := must.Get(os.Stat(file))(t)
	return file, info.Size()
}

func TestRead(t *testing.T) {
	t.Parallel()
	file, size := database(t)
	c, err := etcddb.Read(t.Context(), file, size)
	must.Hold(t, err == nil && c.Revision == 2000 && len(c.Members) == 1 && c.Members[0].Name == "cp1", "%+v, %v", c, err)
	if _, err := etcddb.Read(t.Context(), file, size/2); !errors.Is(err, etcddb.ErrDamaged) || !strings.Contains(err.Error(), "it was cut off") {
		t.Errorf("cut off: %v", err)
	}
}

// TestReadEndsThoughPagesGoInACircle: every branch page of the file refers to itself
// (bbolt internal/common/page.go has the layout).
func TestReadEndsThoughPagesGoInACircle(t *testing.T) {
	t.Parallel()
	file, size := database(t)
	b := must.Get(os.ReadFile(file))(t)
	circles := 0
	for page := 0; page < len(b); page += 4096 {
		id, flags, count := binary.LittleEndian.Uint64(b[page:]), binary.LittleEndian.Uint16(b[page+8:]), binary.LittleEndian.Uint16(b[page+10:])
		if flags != 1 { // a branch
			continue
		}
		for i := range int(count) {
			binary.LittleEndian.PutUint64(b[page+16+16*i+8:], id)
			circles++
		}
	}
	if err := os.WriteFile(file, b, 0o600); err != nil || circles == 0 {
		t.Fatal(err, circles)
	}
	if _, err := etcddb.Read(t.Context(), file, size); !errors.Is(err, etcddb.ErrDamaged) || !strings.Contains(err.Error(), "was ended by its limits") {
		t.Errorf("err = %v", err)
	}
}
