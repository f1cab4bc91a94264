package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// Begin makes a machine begin an etcd: the first member of a new one, or the only one of one that is
// restored. It can be interrupted anywhere: an incomplete snapshot does not match its checksum, and
// the next upload replaces it (Talos 1.14 does not even keep it); etcd is bootstrapped only where it
// has no data.
type Begin struct {
	Talos  cluster.Talos
	Target Target
	File   string // snapshot to begin with; "": etcd begins empty
	Copied bool   // File is a copy of a database, without a checksum
	Timing cluster.Timing
	Above  string // path of the step above
	Say    func(path, text string)
	// Bootstraps is called before Talos is asked to bootstrap: from then on etcd may have data.
	Bootstraps func() error // nil: nothing is
	// Failed is what to do if etcd does not begin.
	Failed string

	path string // of the step
	ran  bool   // etcd was seen running
}

// Step is the step that makes it.
func (b *Begin) Step(id string) step.Step {
	b.path = b.Above + "/" + id
	return step.Step{ID: id, Code: b.code(), Title: "begin etcd on " + b.Target.Node + " with " + b.with(), Risk: step.Destructive, Skip: b.begun, Do: b.begin}
}

// code is that of a failure.
func (b *Begin) code() fault.Code {
	if b.File == "" {
		return fault.EtcdUnhealthy
	}
	return fault.EtcdSnapshot
}

// with is what etcd begins with, in words.
func (b *Begin) with() string {
	if b.File == "" {
		return "an empty etcd"
	}
	return b.File
}

// content is what etcd begins with.
func (b *Begin) content() cluster.EtcdContent {
	switch {
	case b.File == "":
		return cluster.EtcdEmpty
	case b.Copied:
		return cluster.EtcdCopy
	}
	return cluster.EtcdSnapshot
}

// etcdRuns is the goal of begin: the member leads an etcd of one.
func (b *Begin) etcdRuns(ctx context.Context) (string, error) {
	s, err := b.Talos.EtcdStatus(ctx, b.Target.Addr)
	if err != nil || s.Leader == 0 || s.Leader != s.MemberID {
		return "", err
	}
	return fmt.Sprintf("etcd %s runs on %s as member %x", s.Version, b.Target.Node, s.MemberID), nil
}

// begun is etcdRuns. Until etcd has been seen running, no answer is no error.
func (b *Begin) begun(ctx context.Context) (string, error) {
	why, err := b.etcdRuns(ctx)
	if !b.ran {
		err = nil
	}
	return why, err
}

// insist repeats do while the machine is not ready for it.
func (b *Begin) insist(ctx context.Context, name string, do func(context.Context) error) error {
	b.Say(b.path, name)
	return b.wait(ctx, b.path, name, func(ctx context.Context) (bool, string, error) {
		err := do(ctx)
		if err == nil || errors.Is(err, cluster.ErrNotYet) {
			return err == nil, "", err
		}
		return false, "", wait.Stop(err)
	})
}

func (b *Begin) begin(ctx context.Context) error {
	var lost error
	if !b.Target.Data { // else an earlier run has bootstrapped it
		if b.File != "" {
			if err := b.insist(ctx, "upload the snapshot to "+b.Target.Node, b.upload); err != nil {
				return err
			}
		}
		if b.Bootstraps != nil {
			if err := b.Bootstraps(); err != nil {
				return err
			}
		}
		begin := "make " + b.Target.Node + " begin with " + b.with()
		if err := b.insist(ctx, begin, func(ctx context.Context) error {
			err := b.Talos.EtcdBootstrap(ctx, b.Target.Addr, b.Target.UUID, b.content())
			if errors.Is(err, cluster.ErrLostAnswer) { // never repeated: from here on we only watch
				lost = fault.Prefix(begin, err)
				b.Say(b.path, err.Error())
				return nil
			}
			return err
		}); err != nil {
			return err
		}
	}
	return cluster.Unanswered(lost, b.wait(ctx, b.path, "etcd on "+b.Target.Node, func(ctx context.Context) (bool, string, error) {
		why, silent := b.etcdRuns(ctx)
		if b.ran = why != ""; b.ran {
			return true, why, nil
		}
		state, last, err := b.Talos.EtcdService(ctx, b.Target.Addr)
		if err == nil && state == "Failed" {
			return false, "", wait.Stop(fault.WithHint(fmt.Errorf("etcd could not begin with %s: %s", b.with(), last),
				"%s; talosctl -n %s list %s shows whether it left something there, which has to go first: %s, which also wipes whatever else that volume holds", b.Failed, b.Target.Addr, DataDir, WipeByReset))
		}
		if state == "Running" && err == nil {
			err = silent
		}
		return false, strings.TrimSuffix(state+": "+last, ": "), err
	}))
}

func (b *Begin) upload(ctx context.Context) error {
	f, err := os.Open(b.File)
	if err != nil {
		return err
	}
	defer f.Close()
	return b.Talos.EtcdRecover(ctx, b.Target.Addr, b.Target.UUID, f)
}

func (b *Begin) wait(ctx context.Context, path, name string, look wait.Look) error {
	w := wait.For{Name: name, Every: b.Timing.Poll, Timeout: b.Timing.Join, Seen: func(seen string) { b.Say(path, seen) }}
	err := wait.Until(ctx, w, look)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fault.WithHint(err, "run the same command again: it continues where this one stopped")
	}
	return err
}

// Source is what the etcd of a broken cluster begins with again; the zero value: it begins empty.
type Source struct {
	File   string
	Copied bool                                  // see Begin
	Sum    func(context.Context) (string, error) // reads File again, and returns its SHA-256
	Left   func(text string)                     // as of Kubelets
	Gone   []string                              // the control planes that are made again: what discovery still knows of them is old
}

// Require refuses a snapshot that is not the planned one.
func (s Source) Require(ctx context.Context, sum string) error {
	switch {
	case sum == "":
		return nil
	case s.File == "":
		return fault.EtcdSnapshot.Refusedf("etcd is to begin with the snapshot with SHA-256 %s, which is not given: run the same recast rebuild again", sum)
	}
	now, err := s.Sum(ctx)
	if err == nil && now != sum {
		err = fault.EtcdSnapshot.Refusedf("its SHA-256 is %s now, not %s", now, sum)
	}
	return fault.Prefix("read "+s.File+" again", err)
}
