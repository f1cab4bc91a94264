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
