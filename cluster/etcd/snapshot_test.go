package etcd

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/etcd"
)

// snapshotOf is a snapshot of an etcd with that many keys, as bbolt itself writes it.
func snapshotOf(t testing.TB, keys int) []byte {
	t.Helper()
	c := etcd.New(func(d time.Duration) time.Duration { return d }, etcd.Member{Name: "cp2", PeerURL: "https://b:2380"}, etcd.Member{Name: "cp1", PeerURL: "https://a:2380"})
	var data []etcd.KeyValue
	for i := range keys {
		data = append(data, etcd.KeyValue{Key: fmt.Sprint("/registry/configmaps/", i), Revision: uint64(i + 2), Value: bytes.Repeat([]byte("x"), 100)})
	}
	b, err := c.Snapshot(data)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReadSnapshot(t *testing.T) {
	t.Parallel()
	members := []string{"cp1", "cp2"}
	large := snapshotOf(t, 3000) // its keys need a tree three pages high
	flipped := bytes.Clone(large)
	flipped[len(flipped)/2] ^= 1
	body := large[:len(large)-sha256.Size]
	overwritten := bytes.Clone(body)
	copy(overwritten[2*4096:], bytes.Repeat([]byte{0xff}, len(body)-2*4096)) // all but the two meta pages
	cases := map[string]struct {
		bytes  []byte
		copied bool
		want   Snapshot
		err    string
	}{
		"many keys": {large, false, Snapshot{Revision: 3001, Members: members}, ""},
		"one key":   {snapshotOf(t, 1), false, Snapshot{Revision: 2, Members: members}, ""},
		"no key":    {snapshotOf(t, 0), false, Snapshot{Members: members}, ""},
		"a copy":    {body, true, Snapshot{Revision: 3001, Members: members}, ""},

		"a snapshot, said to be a copy":   {large, true, Snapshot{}, "it is no copy of a database of etcd"},
		"a copy, not said to be one":      {body, false, Snapshot{}, "it was cut off, or carries no checksum"},
		"empty":                           {nil, false, Snapshot{}, "snapshot has 0 bytes"},
		"an odd end":                      {large[:5000], false, Snapshot{}, "snapshot has 5000 bytes: it was cut off"},
		"one bit is wrong":                {flipped, false, Snapshot{}, "snapshot does not match its checksum"},
		"a copy, not described by itself": {make([]byte, 8192), true, Snapshot{}, "snapshot is not an etcd database, or a damaged one"},
		"a copy that lacks pages":         {body[:len(body)/2/4096*4096], true, Snapshot{}, "it was cut off: "},
		"a copy, its tree damaged":        {overwritten, true, Snapshot{}, "snapshot is not an etcd database, or a damaged one"},
		"no database":                     {make([]byte, 8192+32), false, Snapshot{}, "snapshot does not match its checksum"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "etcd.db")
			if err := os.WriteFile(file, c.bytes, 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := ReadSnapshot(t.Context(), file, c.copied)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("err = %v, want %q", err, c.err)
				}
				return
			}
			c.want.SizeBytes = int64(len(c.bytes))
			c.want.Peers = map[string][]string{"cp1": {"https://a:2380"}, "cp2": {"https://b:2380"}}
			sum := sha256.Sum256(c.bytes[:len(c.bytes)/512*512])
			c.want.SHA256 = hex.EncodeToString(sum[:])
			if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
				t.Errorf("err = %v; (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestReadSnapshotOfADirectory(t *testing.T) {
	t.Parallel()
	if _, err := ReadSnapshot(t.Context(), t.TempDir(), false); err == nil || !strings.Contains(err.Error(), "is no file") {
		t.Error(err)
	}
}

// TestSaveSnapshotClearsLeftovers: the next snapshot in a directory removes the part files of killed
// processes, which hold every secret.
func TestSaveSnapshotClearsLeftovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole := snapshotOf(t, 1)
	for name, age := range map[string]time.Duration{".etcd-1.part": 2 * time.Hour, ".etcd-2.part": 0, "etcd.db": 2 * time.Hour} {
		file, then := filepath.Join(dir, name), time.Now().Add(-age)
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chtimes(file, then, then)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := SaveSnapshot(t.Context(), filepath.Join(dir, "new.db"), func(w io.Writer) error { _, err := w.Write(whole); return err }); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if diff := cmp.Diff([]string{".etcd-2.part", "etcd.db", "new.db"}, left); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestSaveSnapshotIsAtomic(t *testing.T) {
	t.Parallel()
	whole := snapshotOf(t, 10)
	errLost := errors.New("connection lost")
	cases := map[string]struct {
		stream func(io.Writer) error
		saved  bool
	}{
		"whole":    {func(w io.Writer) error { _, err := w.Write(whole); return err }, true},
		"cut off":  {func(w io.Writer) error { _, err := w.Write(whole[:len(whole)-1]); return err }, false},
		"an error": {func(w io.Writer) error { _, err := w.Write(whole); return errors.Join(err, errLost) }, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "made", "here")
			_, err := SaveSnapshot(t.Context(), filepath.Join(dir, "etcd.db"), c.stream)
			entries, errDir := os.ReadDir(dir)
			if errDir != nil || (err == nil) != c.saved || (len(entries) == 1) != c.saved {
				t.Fatalf("err = %v, files %v, %v", err, entries, errDir)
			}
			for _, e := range entries {
				if info, err := e.Info(); err != nil || e.Name() != "etcd.db" || info.Mode().Perm() != 0o600 {
					t.Errorf("%s %v, %v", e.Name(), info.Mode(), err)
				}
			}
		})
	}
}
