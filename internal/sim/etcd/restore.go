package etcd

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/encoding/protowire"
)

// ReadSnapshot is the clients' data in a snapshot that a member is to be restored from. It
// fails like etcdutl, in etcd's words (etcdutl/snapshot, Status and copyAndVerifyDB);
// skipHash accepts a copy of a database, which has no checksum.
func ReadSnapshot(b []byte, skipHash bool) (data []KeyValue, err error) {
	dir, err := os.MkdirTemp("", "etcd-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "db")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return nil, fmt.Errorf("write the snapshot: %w", err)
	}
	db, err := bbolt.Open(file, 0o400, &bbolt.Options{ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("error verifying snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bbolt.Tx) error {
		data, err = keysOf(tx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("error verifying snapshot: %w", err)
	}
	if err := checkSum(b, skipHash); err != nil {
		return nil, fmt.Errorf("error recovering from the snapshot: %w", err)
	}
	return data, nil
}

func checkSum(b []byte, skip bool) error {
	hasHash := len(b)%512 == sha256.Size
	switch {
	case skip:
		return nil
	case !hasHash:
		return errors.New("snapshot missing hash but --skip-hash-check=false")
	}
	body, want := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], want) {
		return fmt.Errorf("expected sha256 %v, got %v", want, sum)
	}
	return nil
}

// keysOf checks the database and reads the latest revision of each key that was not
// deleted.
func keysOf(tx *bbolt.Tx) (data []KeyValue, err error) {
	var problems []string
	for err := range tx.Check() {
		problems = append(problems, err.Error())
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("snapshot file integrity check failed. %d errors found.\n%s", len(problems), strings.Join(problems, "\n"))
	}
	keys := tx.Bucket([]byte("key"))
	if keys == nil {
		return nil, errors.New(`nil bucket: "key"`)
	}
	err = keys.ForEach(func(rev, value []byte) error {
		kv := KeyValue{Revision: binary.BigEndian.Uint64(rev)}
		for len(value) > 0 {
			field, kind, n := protowire.ConsumeTag(value)
			if n < 0 {
				return fmt.Errorf("cannot unmarshal value, key: %q: %w", rev, protowire.ParseError(n))
			}
			whole := protowire.ConsumeFieldValue(field, kind, value[n:])
			if whole < 0 {
				return fmt.Errorf("cannot unmarshal value, key: %q: %w", rev, protowire.ParseError(whole))
			}
			if content, ok := protowire.ConsumeBytes(value[n:]); kind == protowire.BytesType && ok > 0 {
				switch field {
				case 1:
					kv.Key = string(content)
				case 5:
					kv.Value = bytes.Clone(content)
				}
			}
			value = value[n+whole:]
		}
		data = append(data, kv)
		return nil
	})
	return data, err
}
