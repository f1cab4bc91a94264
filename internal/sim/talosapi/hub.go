package talosapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/kubespan"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/etcd"
)

// hub connects machines: the discovery service, the control planes' trustd that signs the workers' certificates,
// etcd, and the Kubernetes API. It also holds the faults of machines and images.
type hub struct {
	mu         sync.Mutex
	up         map[int]*boot         // running machines, by VMID
	troubles   map[int]Trouble       // by VMID
	troubled   chan struct{}         // closed at the next change of troubles
	defects    map[string]Defect     // by schematic ID, installer reference, or build
	affiliates map[string]*affiliate // by cluster (see discoveryOf), "/" and node ID
	issuers    map[*boot]issuer
	etcds      map[string][]*etcd.Cluster // all that were ever formed, by cluster ID
	faults     map[int]EtcdFault          // by VMID
	recovery   map[int][]byte             // uploaded snapshots of etcd, by VMID
	kubernetes map[*boot]APIServer        // API servers that answer
	changed    chan struct{}              // closed at the next change

	// kubernetesOf is the ID of the cluster that the lab's one Kubernetes belongs to; "": none yet. served says that
	// the API of that cluster has answered.
	kubernetesOf string
	served       bool
	idPrefix     string   // see NodeIDsBegin
	bootstrapped []string // violations: see BootstrapViolations
}

// affiliate is a machine registered with discovery.
type affiliate struct {
	cluster string
	spec    cluster.AffiliateSpec
	owner   *boot     // nil once the machine is gone
	expires time.Time // when it is removed; zero while the machine runs
}

// issuer is a control plane that can sign certificates.
type issuer struct {
	ca    *x509.PEMEncodedCertificateAndKey
	token string
}

func newHub() *hub {
	return &hub{
		affiliates: map[string]*affiliate{}, issuers: map[*boot]issuer{}, etcds: map[string][]*etcd.Cluster{},
		faults: map[int]EtcdFault{}, recovery: map[int][]byte{}, kubernetes: map[*boot]APIServer{}, changed: make(chan struct{}),
		up: map[int]*boot{}, troubles: map[int]Trouble{}, troubled: make(chan struct{}), defects: map[string]Defect{},
	}
}

// notify wakes everybody who waits for a change. The caller must hold h.mu.
func (h *hub) notify() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// change changes the hub and wakes everybody who waits for a change.
func (h *hub) change(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	h.notify()
}

// leave removes a machine's trustd at once; discovery removes the machine only after its TTL.
func (h *hub) leave(b *boot) {
	h.change(func() {
		delete(h.issuers, b)
		delete(h.kubernetes, b)
		for _, a := range h.affiliates {
			if a.owner == b {
				a.owner, a.expires = nil, time.Now().Add(b.m.fw.scaled(affiliateTTL))
			}
		}
	})
}

// members returns the affiliates of a cluster ordered by node ID, the time at which the next affiliate expires (zero:
// none), and a channel closed at the next change.
func (h *hub) members(of string) ([]cluster.AffiliateSpec, time.Time, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var specs []cluster.AffiliateSpec
	var next time.Time
	for _, key := range slices.Sorted(maps.Keys(h.affiliates)) {
		a := h.affiliates[key]
		if a.cluster != of {
			continue
		}
		if !a.expires.IsZero() {
			if !time.Now().Before(a.expires) {
				delete(h.affiliates, key)
				h.notify()
				continue
			}
			if next.IsZero() || a.expires.Before(next) {
				next = a.expires
			}
		}
		specs = append(specs, a.spec)
	}
	return specs, next, h.changed
}

// peerless reports whether KubeSpan's other nodes send the traffic for a machine to another peer. Of two affiliates
// with one address, the affiliate that lists first, by node ID, keeps the address
// (controllers/kubespan/peer_spec.go), and KubeSpan forces routing. A machine that has not registered yet is no peer.
func (h *hub) peerless(b *boot, of string) bool {
	registers := b.affiliate()
	h.mu.Lock()
	defer h.mu.Unlock()
	own, there := h.affiliates[of+"/"+registers.NodeID]
	if registers.KubeSpan.PublicKey == "" || !there {
		return registers.KubeSpan.PublicKey != ""
	}
	for _, key := range slices.Sorted(maps.Keys(h.affiliates)) {
		a := h.affiliates[key]
		if a.cluster != of || a.spec.KubeSpan.PublicKey == "" || !a.expires.IsZero() && !time.Now().Before(a.expires) {
			continue
		}
		if slices.ContainsFunc(a.spec.Addresses, func(addr netip.Addr) bool { return slices.Contains(own.spec.Addresses, addr) }) {
			return a != own
		}
	}
	return false
}

// peered reports whether the other nodes reach the machine, and returns a channel closed when the answer may have
// changed.
func (b *boot) peered() (bool, <-chan struct{}) {
	id := discoveryOf(b.config())
	_, _, changed := b.m.fw.hub.members(id)
	return !b.m.fw.hub.peerless(b, id), changed
}

// discoveryOf identifies a cluster to discovery: machines with another secret can't read what the cluster's machines
// register.
func discoveryOf(cfg config.Provider) string {
	if id := cfg.DiscoveryIdentityConfig(); id != nil {
		return id.ClusterID() + "/" + id.ClusterSecret()
	}
	return ""
}

// issuer finds a control plane that signs for machines with this CA and token.
func (h *hub) issuer(crt []byte, token string) (*x509.PEMEncodedCertificateAndKey, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, i := range h.issuers {
		if i.token == token && bytes.Equal(bytes.TrimSpace(i.ca.Crt), bytes.TrimSpace(crt)) {
			return i.ca, h.changed
		}
	}
	return nil, h.changed
}

// discover joins the cluster's discovery and publishes its members until the boot ends.
func (b *boot) discover(ctx context.Context) {
	id, h, spec := discoveryOf(b.config()), b.m.fw.hub, b.affiliate()
	h.change(func() { h.affiliates[id+"/"+spec.NodeID] = &affiliate{cluster: id, spec: spec, owner: b} })
	for {
		specs, next, changed := h.members(id)
		if err := b.publishMembers(ctx, specs); err != nil {
			if ctx.Err() == nil {
				b.m.console("discovery: %v", err)
			}
			return
		}
		if !awaitChange(ctx, changed, next) {
			return
		}
	}
}

// awaitChange waits for a change or a point in time; it returns false when ctx ends.
func awaitChange(ctx context.Context, changed <-chan struct{}, next time.Time) bool {
	var due <-chan time.Time
	if !next.IsZero() {
		t := time.NewTimer(time.Until(next))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-due:
	}
	return true
}

func (b *boot) affiliate() cluster.AffiliateSpec {
	b.mu.Lock()
	defer b.mu.Unlock()
	host := hostOf(b.cfg, b.nodeID)
	spec := cluster.AffiliateSpec{
		NodeID: b.nodeID, Hostname: host.FQDN(), Nodename: nodenameOf(b.cfg, b.nodeID), MachineType: b.cfg.Machine().Type(),
		OperatingSystem: "Talos (" + b.med.image.TalosVersion + ")",
	}
	if b.m.addr().IsValid() {
		spec.Addresses = []netip.Addr{b.m.addr()}
	}
	if k := b.cfg.NetworkKubeSpanConfig(); k != nil && k.Enabled() {
		key := sha256.Sum256([]byte(b.nodeID)) // WireGuard's is in STATE, too
		spec.KubeSpan = cluster.KubeSpanAffiliateSpec{PublicKey: base64.StdEncoding.EncodeToString(key[:])}
	}
	if spec.MachineType.IsControlPlane() {
		spec.ControlPlane = &cluster.ControlPlane{APIServerPort: 6443}
	}
	return spec
}

// publishMembers publishes affiliates by identity and members by node name; of two affiliates with the same name, the
// later identity wins.
func (b *boot) publishMembers(ctx context.Context, specs []cluster.AffiliateSpec) error {
	var affiliates []resource.Resource
	members := map[string]resource.Resource{}
	for _, spec := range specs {
		affiliates = append(affiliates, filled(cluster.NewAffiliate(cluster.NamespaceName, spec.NodeID), spec))
		members[spec.Nodename] = filled(cluster.NewMember(cluster.NamespaceName, spec.Nodename), cluster.MemberSpec{
			NodeID: spec.NodeID, Addresses: spec.Addresses, Hostname: spec.Hostname, MachineType: spec.MachineType,
			OperatingSystem: spec.OperatingSystem, ControlPlane: spec.ControlPlane,
		})
	}
	if err := b.store.replace(ctx, cluster.NamespaceName, cluster.AffiliateType, affiliates); err != nil {
		return err
	}
	if err := b.store.replace(ctx, cluster.NamespaceName, cluster.MemberType, slices.Collect(maps.Values(members))); err != nil {
		return err
	}
	return b.store.replace(ctx, kubespan.NamespaceName, kubespan.PeerSpecType, b.peers(specs))
}

// peers returns the peers of KubeSpan: an address that an earlier peer has is taken from the later one.
func (b *boot) peers(specs []cluster.AffiliateSpec) (peers []resource.Resource) {
	taken := map[netip.Addr]bool{}
	for _, spec := range specs {
		if spec.KubeSpan.PublicKey == "" || spec.NodeID == b.nodeID {
			continue
		}
		p := kubespan.NewPeerSpec(kubespan.NamespaceName, spec.KubeSpan.PublicKey)
		p.TypedSpec().Label = spec.Nodename
		for _, addr := range spec.Addresses {
			if !taken[addr] {
				p.TypedSpec().AllowedIPs = append(p.TypedSpec().AllowedIPs, netip.PrefixFrom(addr, addr.BitLen()))
			}
			taken[addr] = true
		}
		peers = append(peers, p)
	}
	return peers
}

// nextNodeID returns the node ID of a machine that is installed.
func (fw *Firmware) nextNodeID() string {
	return look(&fw.hub.mu, func() string { return fw.hub.idPrefix + newNodeID() })
}

// NodeIDsBegin sets the first characters of the node IDs of machines that are installed from now on: lists sort by
// node ID.
func (fw *Firmware) NodeIDsBegin(with string) { fw.hub.change(func() { fw.hub.idPrefix = with }) }

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

// FormEtcd makes an etcd cluster that the control planes formed in the past. It returns what each control plane has
// on disk, in the same order.
func (fw *Firmware) FormEtcd(c *Cluster, peers ...EtcdPeer) []EtcdData {
	formed := fw.newEtcd(c.Secrets.Cluster.ID, peers...)
	fw.hub.change(func() { fw.hub.kubernetesOf, fw.hub.served = c.Secrets.Cluster.ID, true })
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
	fw.hub.change(func() { fw.hub.etcds[clusterID] = append(fw.hub.etcds[clusterID], formed) })
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
	return look(&fw.hub.mu, func() []string { return slices.Clone(fw.hub.bootstrapped) })
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
	NoSpace  bool   // its member has raised the alarm NOSPACE
	Corrupt  bool   // its member has raised the alarm CORRUPT
	Hung     bool   // its server accepts clients' calls and answers none
	Version  string // version that its server reports; "": the version of its image
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
	fw.hub.change(func() { fw.hub.faults[vmid] = f })
}

func (m *machine) etcdFault() EtcdFault {
	return look(&m.fw.hub.mu, func() EtcdFault { return m.fw.hub.faults[m.hw.VMID] })
}

// etcdOf returns the etcd cluster with that ID, nil if it was never formed.
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

// changes returns a channel that is closed at the next change in the hub.
func (h *hub) changes() <-chan struct{} { return guarded(&h.mu, &h.changed) }

// reachEtcd returns the etcd that a client finds at the control planes' addresses. If nothing listens, reachEtcd
// retries for a while, then fails as clientv3 does.
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
