package roll

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/rolling/rollingtest"
	"github.com/recast-sh/recast/internal/sim/must"
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

// TestBeginEtcd: etcd begins only where no other machine of the cluster is known.
func TestBeginEtcd(t *testing.T) {
	t.Parallel()
	member := func(name string) cluster.Member { return cluster.Member{Nodename: name} }
	alone := []cluster.Member{member("cp1")}
	type testCase struct {
		plane   blankPlane
		did     []string
		err     string
		rebuild string
	}
	must.Bubbles(t, map[string]testCase{
		"no snapshot":          {blankPlane{members: alone}, nil, "which this command does not have: run the same recast rebuild again", "sum"},
		"without discovery":    {blankPlane{config: cluster.Secret("cluster: {discovery: {enabled: false}}")}, []string{"bootstrap"}, "", ""},
		"not listed":           {blankPlane{config: cluster.Secret("cluster: {discovery: {enabled: true}}")}, nil, "Talos' discovery does not list it yet", ""},
		"it knows itself":      {blankPlane{members: alone}, []string{"bootstrap"}, "", ""},
		"too early":            {blankPlane{members: alone, early: 2}, []string{"bootstrap"}, "", ""},
		"the answer is lost":   {blankPlane{members: alone, bootstrap: cluster.ErrLostAnswer}, []string{"bootstrap"}, "", ""},
		"it has begun already": {blankPlane{data: true}, nil, "", ""},
		"there is another":     {blankPlane{members: []cluster.Member{member("cp1"), member("cp7")}}, nil, "another machine of this cluster, cp7: etcd was not begun on cp1", ""},
	}, func(t *testing.T, c testCase) {
		n := &rolling.Node{
			Roll: &rolling.Roll{Talos: &c.plane, Timing: cluster.Timing{Poll: time.Second, Join: time.Minute}, Say: func(string, string) {}},
			Plan: planning.NodePlan{Node: "cp1", Rebuild: c.rebuild},
		}
		must.Fail(t, new(step.Runner).Run(t.Context(), beginEtcd(n, &c.plane, etcd.Source{})), c.err)
		must.Equal(t, "did", c.did, c.plane.did, cmpopts.EquateEmpty())
	})
}

// ruin is a cluster whose control planes are made again.
type ruin struct {
	cluster.Talos
	answer map[netip.Addr]cluster.MachineIdentity
	known  []cluster.Member
	vms    []cluster.VM
}

func (r *ruin) ReadParts(_ context.Context, addr netip.Addr, parts cluster.MachineParts) (cluster.Machine, error) {
	who, there := r.answer[addr]
	if !there {
		return cluster.Machine{}, errors.New("no answer")
	}
	return clustertest.Parts(cluster.Machine{MachineStanding: cluster.MachineStanding{UUID: who.UUID}, Nodename: who.Nodename}, parts), nil
}

// ruins are the VMs that Proxmox has.
type ruins struct {
	cluster.Proxmox
	vms []cluster.VM
	err error
}

func (r ruins) VMs(context.Context) ([]cluster.VM, error) { return r.vms, r.err }

func (r *ruin) node() *rolling.Node {
	return &rolling.Node{Roll: &rolling.Roll{Talos: r, Proxmox: ruins{vms: r.vms}}, Plan: planning.NodePlan{Node: "cp1", Rebuild: "sum"}}
}

var (
	addr2 = netip.MustParseAddr("10.0.0.12")
	cp2   = cluster.Member{Nodename: "cp2", ControlPlane: true, Addresses: []netip.Addr{addr2}}
)

// TestFindOthers: etcd begins again only if every other control plane is known to be gone.
func TestFindOthers(t *testing.T) {
	t.Parallel()
	type testCase struct {
		ruin ruin
		err  string
	}
	must.Each(t, map[string]testCase{
		"a worker":              {ruin{known: []cluster.Member{{Nodename: "cp1", ControlPlane: true}, {Nodename: "wk1"}}}, ""},
		"an old entry":          {ruin{known: []cluster.Member{cp2}}, ""},
		"it lives":              {ruin{known: []cluster.Member{cp2}, answer: map[netip.Addr]cluster.MachineIdentity{addr2: {Nodename: "cp2"}}}, "cp2 still answers at 10.0.0.12"},
		"its address is reused": {ruin{known: []cluster.Member{cp2}, answer: map[netip.Addr]cluster.MachineIdentity{addr2: {Nodename: "wk1"}}}, ""},
		"an unknown one":        {ruin{known: []cluster.Member{{Nodename: "cp9", ControlPlane: true}}}, "knows another machine of this cluster, cp9"},
	}, func(t *testing.T, c testCase) {
		must.Fail(t, requireAlone(t.Context(), c.ruin.node(), c.ruin.known, []string{"cp1", "cp2"}), c.err)
	})
}

// TestFindGone: a Node is deleted only if its machine is gone.
func TestFindGone(t *testing.T) {
	t.Parallel()
	vm := func(uuid string) cluster.VM {
		return cluster.VM{ID: 102, Config: map[string]string{"smbios1": "uuid=" + uuid}}
	}
	const old, other = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
	type testCase struct {
		ruin ruin
		err  string
	}
	must.Each(t, map[string]testCase{
		"it is gone":             {ruin{vms: []cluster.VM{vm(other)}}, ""},
		"its VM is there":        {ruin{vms: []cluster.VM{vm(other), vm(old)}}, "is the VM of node cp2"},
		"its machine answers":    {ruin{answer: map[netip.Addr]cluster.MachineIdentity{addr2: {UUID: old}}}, "the machine of the old Node cp2 answers at 10.0.0.12"},
		"another one has the IP": {ruin{answer: map[netip.Addr]cluster.MachineIdentity{addr2: {UUID: other}}}, ""},
	}, func(t *testing.T, c testCase) {
		err := requireGone(t.Context(), c.ruin.node(), cluster.KubeNode{Name: "cp2", UUID: old, Addresses: []netip.Addr{addr2}})
		must.Fail(t, err, c.err)
	})
}

// TestForgetGone: the step deletes no Node whose VM is there.
func TestForgetGone(t *testing.T) {
	t.Parallel()
	const old = "11111111-1111-1111-1111-111111111111"
	vm := cluster.VM{ID: 102, Config: map[string]string{"smbios1": "uuid=" + old}}
	for _, c := range []struct {
		ruin ruin
		err  string
	}{{ruin{vms: []cluster.VM{vm}}, "is the VM of node cp1"}, {ruin{}, ""}} {
		n, kube := c.ruin.node(), &graveyard{oneNode: oneNode{node: cluster.KubeNode{Name: "cp1", UUID: old}}}
		n.Kube = kube
		must.Fail(t, forgetGone(n).Do(t.Context()), c.err)
		must.Equal(t, "deleted", c.err == "", kube.deleted)
	}
}

// graveyard is a Kubernetes with the Node of a machine that is gone.
type graveyard struct {
	oneNode
	deleted bool
}

func (g *graveyard) DeleteNode(context.Context, string, string) error {
	g.deleted = true
	return nil
}

// TestInterrupted: who could not be asked is not gone.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n := (&ruin{}).node()
	must.FailIs(t, requireSilent(ctx, n, cp2), context.Canceled)
	must.FailIs(t, requireGone(ctx, n, cluster.KubeNode{Name: "cp2", Addresses: cp2.Addresses}), context.Canceled)
	n.Proxmox = ruins{err: errors.New("no answer")}
	must.Fail(t, requireGone(t.Context(), n, cluster.KubeNode{Name: "cp2"}), "no answer")
}

// TestLeftIsAskedOfEtcd: a node that has joined again since has not left, whatever the record says.
func TestLeftIsAskedOfEtcd(t *testing.T) {
	t.Parallel()
	s := rollingtest.NewScene()
	all(asCP, begun, func(s *scene) { s.Rec.Left = true })(s)
	s.Ready()
	reason := must.Get(nodeOf(s).etcd.left(t.Context()))(t)
	must.Hold(t, reason == "" && slices.Equal(s.PX.Done, []string{recorded}), "%q, done %q", reason, s.PX.Done)
}
