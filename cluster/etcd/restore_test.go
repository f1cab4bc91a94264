package etcd

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// lone is a single control plane that never gets an etcd.
type lone struct {
	cluster.Talos
	early     int // number of calls that come too early
	bootstrap error
	state     string

	did []string
}

func (l *lone) EtcdStatus(context.Context, netip.Addr) (cluster.EtcdStatus, error) {
	return cluster.EtcdStatus{}, errors.New("no answer")
}

func (l *lone) EtcdService(context.Context, netip.Addr) (state, last string, err error) {
	return l.state, "what it told", nil
}

func (l *lone) EtcdRecover(_ context.Context, _ netip.Addr, _ string, snapshot io.Reader) error {
	b, err := io.ReadAll(snapshot)
	return errors.Join(err, l.note("recover "+string(b)))
}

func (l *lone) EtcdBootstrap(context.Context, netip.Addr, string, cluster.EtcdContent) error {
	return errors.Join(l.note("bootstrap"), l.bootstrap)
}

func (l *lone) note(what string) error {
	if l.early > 0 {
		l.early--
		return cluster.ErrNotYet
	}
	l.did = append(l.did, what)
	return nil
}

func TestRestoreFails(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "etcd.db")
	if err := os.WriteFile(file, []byte("db"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		talos lone
		data  bool
		did   []string
		kind  fault.Kind
		err   string
	}{
		"it fails":              {lone{state: "Failed"}, false, []string{"recover db", "bootstrap"}, fault.Failed, "etcd.db: what it told"},
		"it is too early twice": {lone{state: "Failed", early: 2}, false, []string{"recover db", "bootstrap"}, fault.Failed, "what it told"},
		"the answer is lost":    {lone{state: "Preparing", bootstrap: cluster.ErrLostAnswer}, false, []string{"recover db", "bootstrap"}, fault.Failed, "gave up after 1m0s; last seen: Preparing: what it told"},
		"etcd has data already": {lone{bootstrap: fault.Refusedf("etcd data directory is not empty")}, false, []string{"recover db", "bootstrap"}, fault.Refused, "not empty"},
		"bootstrapped before":   {lone{state: "Preparing"}, true, nil, fault.Failed, "gave up"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := &Restore{Begin: Begin{
					Bootstraps: func() error { return nil },
					Talos:      &c.talos, Target: Target{Node: "cp1", Data: c.data}, File: file,
					Timing: cluster.Timing{Poll: time.Second, Join: time.Minute}, Say: func(string, string) {},
				}}
				err := new(step.Runner).Run(t.Context(), r.Steps())
				if err == nil || !strings.Contains(err.Error(), c.err) || fault.KindOf(err) != c.kind || c.kind == fault.Failed && len(fault.Hints(err)) == 0 {
					t.Errorf("err = %v, hints %q, want %q", err, fault.Hints(err), c.err)
				}
				if !slices.Equal(c.talos.did, c.did) {
					t.Errorf("did %q, want %q", c.talos.did, c.did)
				}
			})
		})
	}
}
