package roll

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/step"
)

// blankPlane is a control plane that waits for its etcd.
type blankPlane struct {
	cluster.Talos
	cluster.MachineFiles
	members   []cluster.Member
	config    cluster.Secret
	data      bool
	early     int // number of calls that come too early
	bootstrap error

	did []string
}

func (b *blankPlane) EtcdService(context.Context, netip.Addr) (state, last string, err error) {
	return "", "what it told", nil
}

func (b *blankPlane) EtcdBootstrap(context.Context, netip.Addr, string, cluster.EtcdContent) error {
	if b.early > 0 {
		b.early--
		return cluster.ErrNotYet
	}
	b.did = append(b.did, "bootstrap")
	return b.bootstrap
}

func (b *blankPlane) EtcdStatus(context.Context, netip.Addr) (s cluster.EtcdStatus, err error) {
	if b.data || slices.Contains(b.did, "bootstrap") {
		s.Leader, s.MemberID = 1, 1
	}
	return s, nil
}

func (b *blankPlane) Members(context.Context) ([]cluster.Member, error) { return b.members, nil }

func (b *blankPlane) WatchMachine(ctx context.Context, _ netip.Addr, _ func(bool)) error {
	<-ctx.Done()
	return ctx.Err()
}

func (b *blankPlane) Files(ctx context.Context, _ netip.Addr, _ string, look func(context.Context, cluster.MachineFiles) error) error {
	return look(ctx, b)
}

func (b *blankPlane) List(_ context.Context, _ string, _ bool, each func(cluster.MachineFile) error) error {
	if b.data {
		return each(cluster.MachineFile{})
	}
	return cluster.ErrNotFound
}

func (b *blankPlane) MachineConfig(context.Context, netip.Addr) (cluster.Secret, error) {
	return b.config, nil
}

// TestFirst: etcd begins only where no other machine of the cluster is known.
func TestBeginEtcd(t *testing.T) {
	t.Parallel()
	member := func(name string) cluster.Member { return cluster.Member{Nodename: name} }
	alone := []cluster.Member{member("cp1")}
	for name, c := range map[string]struct {
		plane   blankPlane
		did     []string
		err     string
		rebuild string
	}{
		"no snapshot":          {blankPlane{members: alone}, nil, "which is not given: run the same recast rebuild again", "sum"},
		"without discovery":    {blankPlane{config: cluster.Secret("cluster: {discovery: {enabled: false}}")}, []string{"bootstrap"}, "", ""},
		"not listed":           {blankPlane{config: cluster.Secret("cluster: {discovery: {enabled: true}}")}, nil, "Talos' discovery does not list it yet", ""},
		"it knows itself":      {blankPlane{members: alone}, []string{"bootstrap"}, "", ""},
		"too early":            {blankPlane{members: alone, early: 2}, []string{"bootstrap"}, "", ""},
		"the answer is lost":   {blankPlane{members: alone, bootstrap: cluster.ErrLostAnswer}, []string{"bootstrap"}, "", ""},
		"it has begun already": {blankPlane{data: true}, nil, "", ""},
		"there is another":     {blankPlane{members: []cluster.Member{member("cp1"), member("cp7")}}, nil, "another machine of this cluster, cp7: etcd was not begun on cp1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := &rolling.Node{
					Roll: &rolling.Roll{Talos: &c.plane, Timing: cluster.Timing{Poll: time.Second, Join: time.Minute}, Say: func(string, string) {}},
					Plan: planning.NodePlan{Node: "cp1", Rebuild: c.rebuild},
				}
				err := new(step.Runner).Run(t.Context(), beginEtcd(n, &c.plane, etcd.Source{}))
				if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
					t.Errorf("err = %v, want %q", err, c.err)
				}
				if !slices.Equal(c.plane.did, c.did) {
					t.Errorf("did %q, want %q", c.plane.did, c.did)
				}
			})
		})
	}
}
