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
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/etcddb"
	"github.com/recast-sh/recast/internal/fault"
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

// smallestDatabase is one page, in the smallest page size that a machine has.
const smallestDatabase = 4096

// ReadSnapshot checks a file as etcd itself does before a restore. The file must be a database, followed by the
// SHA-256 of the whole database unless it was copied from a member's data directory (etcdutl/snapshot, hasChecksum
// and copyAndVerifyDB).
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

// BackUp saves a snapshot of the most up-to-date of the members at these addresses: the leader, else another voting
// member that follows a leader. Problems of other members are warnings. BackUp refuses if members do not agree on the
// data, because then no snapshot can be trusted.
func BackUp(ctx context.Context, etcd cluster.EtcdReader, ask []netip.Addr, file string, say func(string)) (Backup, error) {
	v, at, problems := atEndpoints(ctx, etcd, ask)
	if err := ctx.Err(); err != nil {
		return Backup{}, err
	}
	if len(v.Statuses) == 0 {
		return Backup{}, errors.Join(append(problems, errors.New("no endpoint of the talosconfig says how etcd is"))...)
	}
	fit, err := v.Fit()
	if err != nil {
		return Backup{}, errors.Join(append(problems, err)...)
	}
	b := Backup{File: file, Taken: time.Now().UTC().Truncate(time.Second), Warnings: v.Unhealthy("")}
	var failed []error
	for _, m := range fit {
		s := v.Statuses[m.ID]
		b.Member, b.Address = m.Label(), at[m.ID]
		say(fmt.Sprintf("reading the database of %s (%s, %d MiB)", b.Member, leads(s), s.DBBytes>>20))
		b.Snapshot, err = SaveSnapshot(ctx, file, func(w io.Writer) error {
			return etcd.EtcdSnapshot(ctx, b.Address, m.ID, &counted{w: w, of: s.DBBytes, say: say})
		})
		if err == nil {
			return b, nil
		}
		if _, local := errors.AsType[*fs.PathError](err); local {
			return Backup{}, fault.WithHint(fmt.Errorf("save the snapshot: %w", err), "give it room there, or another place with --to")
		}
		err = fmt.Errorf("snapshot of etcd from %s: %w", b.Member, err)
		if failed = append(failed, err); ctx.Err() != nil {
			break
		}
		b.Warnings = append(b.Warnings, err.Error())
	}
	return Backup{}, errors.Join(append(failed, errors.New("no member gave a snapshot of etcd that can be used; none was saved"))...)
}

// Backup is a saved snapshot of etcd.
type Backup struct {
	File    string     `json:"file"`
	Taken   time.Time  `json:"taken"`
	Member  string     `json:"member"` // whose database it is
	Address netip.Addr `json:"address"`
	Snapshot
	Warnings []string `json:"warnings,omitempty"` // what is wrong with etcd, and members that gave no usable snapshot
}

// atEndpoints asks each address for the status of its member, and the first voting member that knows a leader for the
// list of members. A member that is at none of these addresses is asked at the address that it publishes.
func atEndpoints(ctx context.Context, view cluster.EtcdReader, ask []netip.Addr) (v View, at map[uint64]netip.Addr, problems []error) {
	v = View{Statuses: map[uint64]cluster.EtcdStatus{}, Errs: map[uint64]error{}}
	at = map[uint64]netip.Addr{}
	unread := map[netip.Addr]error{}
	look := func(addr netip.Addr) (cluster.EtcdStatus, error) {
		if err := unread[addr]; err != nil {
			return cluster.EtcdStatus{}, err
		}
		s, err := view.EtcdStatus(ctx, addr)
		if err == nil {
			v.Statuses[s.MemberID], at[s.MemberID] = s, addr
		} else {
			unread[addr], problems = err, append(problems, err)
		}
		return s, err
	}
	for _, addr := range ask {
		s, err := look(addr)
		if err == nil && len(v.Members) == 0 && s.Leader != 0 && !s.Learner {
			if v.Members, err = view.EtcdMembers(ctx, addr); err != nil {
				problems = append(problems, err)
			}
		}
	}
	for _, m := range v.Members {
		if _, known := v.Statuses[m.ID]; known {
			continue
		}
		addr, err := m.Address(nil)
		if err == nil {
			_, err = look(addr)
		}
		if err != nil {
			v.Errs[m.ID] = fmt.Errorf("does not answer: %w", err)
		}
	}
	return v, at, problems
}

// counted reports the progress of a stream.
type counted struct {
	w        io.Writer
	n, of    int64
	lastSaid int64
	say      func(string)
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	if c.n += int64(n); c.n-c.lastSaid >= saidEvery {
		c.lastSaid = c.n
		c.say(fmt.Sprintf("%d of about %d MiB", c.n>>20, c.of>>20))
	}
	return n, err
}

func leads(s cluster.EtcdStatus) string {
	if s.Leader == s.MemberID {
		return "the leader"
	}
	return "a follower"
}

// saidEvery is the number of bytes of a snapshot between two progress reports.
const saidEvery = 64 << 20
