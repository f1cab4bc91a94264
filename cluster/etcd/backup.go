package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// BackUp saves a snapshot of the most up-to-date of the members at these addresses: the leader,
// else another voting member that follows one. Problems of the others are warnings. It refuses if
// members do not agree on the data, because no snapshot can then be trusted.
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

// atEndpoints asks each address for the status of its member, and the first that can answer for the
// list of members. It asks members that are at none of these addresses at the one that they
// publish.
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
