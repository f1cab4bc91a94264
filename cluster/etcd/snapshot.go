package etcd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/recast-sh/recast/internal/etcddb"
)

// Snapshot is a snapshot of etcd that was verified to be complete.
type Snapshot struct {
	SizeBytes int64    `json:"sizeBytes"` // of the file
	SHA256    string   `json:"sha256"`    // of the database, hexadecimal
	Revision  uint64   `json:"revision"`  // of its last change; 0: it was never written to
	Members   []string `json:"members"`   // of etcd when it was taken, by name

	Peers map[string][]string `json:"-"` // URLs at which the others reached each
}

// SaveSnapshot streams a snapshot of etcd into a file. The file gets its name only when it is
// complete, verified and on disk.
func SaveSnapshot(ctx context.Context, file string, stream func(io.Writer) error) (found Snapshot, err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return found, err
	}
	if err := removeParts(filepath.Dir(file)); err != nil {
		return found, err
	}
	f, err := os.CreateTemp(filepath.Dir(file), partial) // readable by the owner only
	if err != nil {
		return found, err
	}
	temp := f.Name()
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp))
		}
	}()
	if err := errors.Join(stream(f), f.Sync(), f.Close()); err != nil {
		return found, err
	}
	if found, err = ReadSnapshot(ctx, temp, false); err != nil {
		return found, err
	}
	if err := os.Rename(temp, file); err != nil {
		return found, err
	}
	return found, syncDir(filepath.Dir(file))
}

// partial is the name pattern of an incomplete snapshot.
const partial = ".etcd-*.part"

// removeParts removes the part files of killed processes, which hold all secrets of Kubernetes. A
// part file untouched for an hour has no owner.
func removeParts(dir string) error {
	parts, err := filepath.Glob(filepath.Join(dir, partial))
	for _, part := range parts {
		if info, errInfo := os.Lstat(part); errInfo == nil && time.Since(info.ModTime()) > time.Hour {
			err = errors.Join(err, os.Remove(part))
		}
	}
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// smallestDatabase is one page, of the smallest size that a machine has.
const smallestDatabase = 4096

// ReadSnapshot checks what etcd itself checks before a restore: a database,
// followed by the SHA-256 of all of it unless it was copied from a member's data
// directory (etcdutl/snapshot, hasChecksum and copyAndVerifyDB).
func ReadSnapshot(ctx context.Context, file string, copied bool) (found Snapshot, err error) {
	f, err := os.Open(file)
	if err != nil {
		return found, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return found, err
	}
	if !info.Mode().IsRegular() {
		return found, &fs.PathError{Op: "read", Path: file, Err: errors.New("is no file")}
	}
	body := info.Size()
	if !copied {
		body -= sha256.Size
	}
	if body < smallestDatabase || body%512 != 0 {
		if copied {
			return found, fmt.Errorf("%s has %d bytes: it is no copy of a database of etcd", file, info.Size())
		}
		return found, fmt.Errorf("snapshot has %d bytes: it was cut off, or carries no checksum", info.Size())
	}
	sum := sha256.New()
	if _, err := io.CopyN(sum, f, body); err != nil {
		return found, err
	}
	want, err := io.ReadAll(f) // the checksum, or nothing
	if err != nil {
		return found, err
	}
	if !copied && !bytes.Equal(sum.Sum(nil), want) {
		return found, errors.New("snapshot does not match its checksum: it was cut off, or is damaged")
	}
	db, err := etcddb.Read(ctx, file, body)
	if err != nil {
		return found, fmt.Errorf("snapshot is %w", err)
	}
	found = Snapshot{SizeBytes: info.Size(), SHA256: hex.EncodeToString(sum.Sum(nil)), Revision: db.Revision, Peers: map[string][]string{}}
	for _, m := range db.Members {
		found.Members = append(found.Members, m.Name)
		found.Peers[m.Name] = m.Peers
	}
	return found, nil
}
