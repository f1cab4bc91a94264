package talosapi

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	etcdres "github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/etcd"
)

// The ports of etcd.
const (
	clientPort = 2379
	peerPort   = 2380
)

// EtcdPeer is a control plane that becomes a member of a new etcd cluster.
type EtcdPeer struct {
	Name string
	Addr netip.Addr
}

// FormEtcd makes an etcd cluster that the control planes formed in the past. It returns
// what each of them has on disk, in the same order.
func (fw *Firmware) FormEtcd(c *Cluster, peers ...EtcdPeer) []EtcdData {
	formed := fw.newEtcd(c.Secrets.Cluster.ID, peers...)
	fw.hub.mu.Lock()
	fw.hub.kubernetesOf, fw.hub.served = c.Secrets.Cluster.ID, true
	fw.hub.mu.Unlock()
	data := make([]EtcdData, len(peers))
	for _, m := range formed.List() {
		i := slices.IndexFunc(peers, func(p EtcdPeer) bool { return p.Name == m.Name })
		data[i] = dataOf(formed, m)
	}
	return data
}

func (fw *Firmware) newEtcd(clusterID string, peers ...EtcdPeer) *etcd.Cluster {
	var members []etcd.Member
	for _, p := range peers {
		m := &machine{fw: fw}
		m.net.Store(&attachment{prefix: netip.PrefixFrom(p.Addr, p.Addr.BitLen())})
		members = append(members, etcd.Member{Name: p.Name, PeerURL: m.etcdURL(peerPort), ClientURL: m.etcdURL(clientPort)})
	}
	formed := etcd.New(fw.scaled, members...)
	fw.hub.mu.Lock()
	defer fw.hub.mu.Unlock()
	fw.hub.etcds[clusterID] = append(fw.hub.etcds[clusterID], formed)
	fw.hub.notify()
	return formed
}

// EtcdMember is a member for display.
type EtcdMember struct {
	ID      string // hexadecimal
	Name    string
	Learner bool
}

// EtcdMembers lists the members of each cluster's latest etcd, by name.
func (fw *Firmware) EtcdMembers() []EtcdMember {
	fw.hub.mu.Lock()
	defer fw.hub.mu.Unlock()
	var out []EtcdMember
	for _, clusters := range fw.hub.etcds {
		for _, m := range clusters[len(clusters)-1].List() {
			out = append(out, EtcdMember{ID: hexID(m.ID), Name: m.Name, Learner: m.Learner})
		}
	}
	slices.SortFunc(out, func(a, b EtcdMember) int { return strings.Compare(a.Name+a.ID, b.Name+b.ID) })
	return out
}

// BootstrapViolations lists each second etcd that a bootstrap formed for one Talos cluster.
// Talos does not prevent that.
func (fw *Firmware) BootstrapViolations() []string {
	fw.hub.mu.Lock()
	defer fw.hub.mu.Unlock()
	return slices.Clone(fw.hub.bootstrapped)
}

// EtcdViolations lists each loss of a cluster's etcd quorum after all of its members had run.
func (fw *Firmware) EtcdViolations() []string {
	fw.hub.mu.Lock()
	defer fw.hub.mu.Unlock()
	var out []string
	for _, clusters := range fw.hub.etcds {
		for _, c := range clusters {
			out = append(out, c.Violations()...)
		}
	}
	slices.Sort(out)
	return out
}

// EtcdFault is an injected fault of a machine's etcd; the zero value is none.
type EtcdFault struct {
	Down     bool   // the process fails repeatedly
	Learner  bool   // the machine's member is never promoted
	NoSpace  bool   // its member has raised that alarm
	Corrupt  bool   // likewise
	Hung     bool   // its server accepts clients' calls and answers none
	Version  string // version that its server reports; "": that of its image
	Snapshot SnapshotFault
}

// SnapshotFault is a fault of snapshots of a machine's etcd.
type SnapshotFault int

// The faults.
const (
	SnapshotWhole   SnapshotFault = iota
	SnapshotCut                   // the snapshot and its stream end early, without an error
	SnapshotFlipped               // one bit is flipped
	SnapshotBroken                // the stream breaks in the middle
)

// BreakEtcd sets the fault of the etcd on a VM; it survives reboots.
func (fw *Firmware) BreakEtcd(vmid int, f EtcdFault) {
	fw.hub.mu.Lock()
	defer fw.hub.mu.Unlock()
	fw.hub.faults[vmid] = f
	fw.hub.notify()
}

func (m *machine) etcdFault() EtcdFault {
	m.fw.hub.mu.Lock()
	defer m.fw.hub.mu.Unlock()
	return m.fw.hub.faults[m.hw.VMID]
}

// etcdOf is the etcd cluster with that ID, nil if it was never formed.
func (h *hub) etcdOf(clusterID, id string) *etcd.Cluster {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.etcds[clusterID] {
		if hexID(c.ID()) == id {
			return c
		}
	}
	return nil
}

// changes is closed at the next change in the hub.
func (h *hub) changes() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// wake wakes everybody who waits for a change.
func (h *hub) wake() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notify()
}

// reachEtcd is the etcd that a client finds at the control planes' addresses. If nothing
// listens it retries for a while, then fails as clientv3 does.
func (b *boot) reachEtcd(ctx context.Context) (*etcd.Cluster, error) {
	h := b.m.fw.hub
	if reached, _ := b.peered(); !reached {
		if !b.m.fw.sleep(ctx, dialTime) {
			return nil, ctx.Err()
		}
		return nil, status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	}
	h.mu.Lock()
	clusters := slices.Clone(h.etcds[clusterID(b.config())])
	h.mu.Unlock()
	for _, c := range slices.Backward(clusters) {
		if c.Runs() {
			return c, nil
		}
	}
	if !b.m.fw.sleep(ctx, dialTime) {
		return nil, ctx.Err()
	}
	return nil, status.Errorf(codes.Unavailable, "last connection error: connection error: desc = \"transport: Error while dialing: dial tcp %s:%d: connect: connection refused\"", b.m.addr(), clientPort)
}

// dialTime is how long a client retries servers that refuse connections.
const dialTime = 2 * time.Second

// publishEtcdMember publishes the member that runs on this machine.
func (b *boot) publishEtcdMember(ctx context.Context, id uint64) error {
	r := etcdres.NewMember(etcdres.NamespaceName, etcdres.LocalMemberID)
	r.TypedSpec().MemberID = etcdres.FormatMemberID(id)
	return b.store.set(ctx, r)
}
