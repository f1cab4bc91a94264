package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

const snapshotKey = "etcd-snapshot"

// snapshotStep saves etcd before the first control plane is touched.
func (r *Roller) snapshotStep(p Plan) step.Step {
	return step.Step{
		ID: "snapshot-etcd", Title: "save a snapshot of etcd to " + r.SnapshotDir,
		Skip: func(context.Context) (string, error) {
			var file string
			found, err := r.Journal.Get(snapshotKey, &file)
			if err != nil || !found {
				return "", err
			}
			if err := verifySnapshotFile(file); err != nil {
				return "", nil //nolint:nilerr // gone or cut off: taken again
			}
			return "saved as " + file, nil
		},
		Do: func(ctx context.Context) error { return r.takeSnapshot(ctx, p) },
	}
}

func (r *Roller) takeSnapshot(ctx context.Context, p Plan) error {
	file := filepath.Join(r.SnapshotDir, fmt.Sprintf("etcd-%s-%s.db", r.Cluster, r.Run))
	var errs []error
	for _, e := range p.controlPlanes {
		if err := SaveSnapshot(file, func(w io.Writer) error { return r.Talos.EtcdSnapshot(ctx, e.Addr, w) }); err != nil {
			errs = append(errs, fmt.Errorf("snapshot of etcd from %s: %w", e.Node, err))
			continue
		}
		return r.Journal.Put(snapshotKey, file)
	}
	return errors.Join(append(errs, fault.Refusedf("no control plane gave a snapshot of etcd that can be used"))...)
}

// SaveSnapshot streams a snapshot of etcd into a file, which appears under its
// name only when it is whole, verified and on disk.
func SaveSnapshot(file string, stream func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	temp := file + ".part"
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp))
		}
	}()
	if err := errors.Join(stream(f), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := verifySnapshotFile(temp); err != nil {
		return err
	}
	return os.Rename(temp, file)
}

func verifySnapshotFile(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return verifySnapshot(f, info.Size())
}

// boltMagic is in the first page of every bbolt database, 16 bytes in
// (go.etcd.io/bbolt internal/common/page.go and meta.go).
const (
	boltMagic       = 0xED0CDAED
	boltMagicOffset = 16
)

// verifySnapshot checks what etcdutl checks before a restore: a database
// followed by the SHA-256 of all of it (etcdutl/snapshot, copyAndVerifyDB).
func verifySnapshot(r io.Reader, size int64) error {
	body := size - sha256.Size
	if body < 4096 || body%512 != 0 {
		return fmt.Errorf("snapshot has %d bytes: it was cut off, or carries no checksum", size)
	}
	sum := sha256.New()
	head := make([]byte, boltMagicOffset+4)
	if _, err := io.ReadFull(r, head); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(head[boltMagicOffset:]) != boltMagic {
		return errors.New("snapshot is no database of etcd")
	}
	sum.Write(head)
	if _, err := io.CopyN(sum, r, body-int64(len(head))); err != nil {
		return err
	}
	want, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return errors.New("snapshot does not match its checksum")
	}
	return nil
}
