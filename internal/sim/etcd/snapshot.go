package etcd

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/encoding/protowire"
)

// KeyValue is the latest version of one key of a cluster's clients.
type KeyValue struct {
	Key      string
	Revision uint64 // of its last write
	Value    []byte
}

// Snapshot is what etcd's maintenance API streams: the database as a bbolt file with the
// clients' data, followed by its SHA-256.
func (c *Cluster) Snapshot(data []KeyValue) (_ []byte, err error) {
	dir, err := os.MkdirTemp("", "etcd-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := bbolt.Open(filepath.Join(dir, "db"), 0o600, &bbolt.Options{NoSync: true, NoGrowSync: true, PageSize: 4096})
	if err != nil {
		return nil, fmt.Errorf("make the database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.Update(func(tx *bbolt.Tx) error { return c.fill(tx, data) }); err != nil {
		return nil, fmt.Errorf("fill the database: %w", err)
	}
	var b bytes.Buffer
	if err := db.View(func(tx *bbolt.Tx) error { _, err := tx.WriteTo(&b); return err }); err != nil {
		return nil, fmt.Errorf("read the database: %w", err)
	}
	sum := sha256.Sum256(b.Bytes())
	return append(b.Bytes(), sum[:]...), nil
}

// fill writes the buckets of a new etcd 3.6 (server/storage/schema) and the clients' data.
func (c *Cluster) fill(tx *bbolt.Tx, data []KeyValue) error {
	index := c.Status(0).Index
	if len(data) > 0 {
		index += slices.MaxFunc(data, func(a, b KeyValue) int { return cmp.Compare(a.Revision, b.Revision) }).Revision
	}
	buckets := map[string]map[string][]byte{
		"key":     {},
		"meta":    {"consistent_index": binary.BigEndian.AppendUint64(nil, index), "storageVersion": []byte("3.6.0")},
		"members": {}, "cluster": {"clusterVersion": []byte("3.6.0")},
		"alarm": {}, "auth": {}, "authRoles": {}, "authUsers": {}, "lease": {}, "members_removed": {},
	}
	for _, kv := range data {
		buckets["key"][string(revision(kv.Revision))] = keyValue(kv.Key, kv.Revision, kv.Value)
	}
	for _, m := range c.List() {
		b, err := json.Marshal(map[string]any{
			"id": m.ID, "name": m.Name, "peerURLs": []string{m.PeerURL}, "clientURLs": []string{m.ClientURL}, "isLearner": m.Learner,
		})
		if err != nil {
			return err
		}
		buckets["members"][fmt.Sprintf("%x", m.ID)] = b
	}
	for name, entries := range buckets {
		bucket, err := tx.CreateBucket([]byte(name))
		if err != nil {
			return err
		}
		for k, v := range entries {
			if err := bucket.Put([]byte(k), v); err != nil {
				return err
			}
		}
	}
	return nil
}

// revision is a key of the bucket "key": main and sub revision.
func revision(main uint64) []byte {
	return binary.BigEndian.AppendUint64(append(binary.BigEndian.AppendUint64(nil, main), '_'), 0)
}

// keyValue is an mvccpb.KeyValue that was written once.
func keyValue(key string, rev uint64, value []byte) []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), key)
	for field, v := range []uint64{rev, rev, 1} { // create_revision, mod_revision, version
		b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(field+2), protowire.VarintType), v)
	}
	return protowire.AppendBytes(protowire.AppendTag(b, 5, protowire.BytesType), value)
}

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

// keysOf checks the database and reads the latest revision of each key that was not deleted.
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
