package talosapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/kubespan"

	"github.com/recast-sh/recast/internal/sim/etcd"
)

// hub connects machines: the discovery service, the control planes' trustd that signs the
// workers' certificates, etcd, and the Kubernetes API.
type hub struct {
	mu         sync.Mutex
	affiliates map[string]*affiliate // by cluster (see discoveryOf), "/" and node ID
	issuers    map[*boot]issuer
	etcds      map[string][]*etcd.Cluster // all that were ever formed, by cluster ID
	faults     map[int]EtcdFault          // by VMID
	recovery   map[int][]byte             // uploaded snapshots of etcd, by VMID
	kubernetes map[*boot]APIServer        // answering ones
	changed    chan struct{}              // closed at the next change

	// kubernetesOf is the ID of the cluster that the lab's one Kubernetes belongs to; "": none
	// yet. served says that its API has answered.
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
	}
}

// notify needs h.mu held.
func (h *hub) notify() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// join registers a machine with the discovery of its cluster.
func (h *hub) join(b *boot, cluster string, spec cluster.AffiliateSpec) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.affiliates[cluster+"/"+spec.NodeID] = &affiliate{cluster: cluster, spec: spec, owner: b}
	h.notify()
}

// leave removes a machine's trustd at once; discovery removes the machine only after its TTL.
func (h *hub) leave(b *boot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.issuers, b)
	delete(h.kubernetes, b)
	for _, a := range h.affiliates {
		if a.owner == b {
			a.owner, a.expires = nil, time.Now().Add(b.m.fw.scaled(affiliateTTL))
		}
	}
	h.notify()
}

// members are the affiliates of a cluster ordered by node ID, the time at which the next
// one expires (zero: none), and a channel closed at the next change.
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

// peerless says whether KubeSpan's other nodes send what is for a machine to another peer: of two affiliates with one
// address the one that lists first, by node ID, keeps it (controllers/kubespan/peer_spec.go), and KubeSpan forces routing.
// A machine that has not registered yet is no peer.
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

// peered says whether the other nodes reach the machine, and when that may have changed.
func (b *boot) peered() (bool, <-chan struct{}) {
	id := discoveryOf(b.config())
	_, _, changed := b.m.fw.hub.members(id)
	return !b.m.fw.hub.peerless(b, id), changed
}

// discoveryOf identifies a cluster to discovery: machines with another secret can't read what
// the others register.
func discoveryOf(cfg config.Provider) string {
	if id := cfg.DiscoveryIdentityConfig(); id != nil {
		return id.ClusterID() + "/" + id.ClusterSecret()
	}
	return ""
}

// offer registers a control plane's trustd.
func (h *hub) offer(b *boot, i issuer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.issuers[b] = i
	h.notify()
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
	id := discoveryOf(b.config())
	b.m.fw.hub.join(b, id, b.affiliate())
	for {
		specs, next, changed := b.m.fw.hub.members(id)
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

// awaitChange waits for a change or a point in time; it is false when ctx ends.
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

// publishMembers publishes affiliates by identity and members by node name; of two
// affiliates with the same name the later identity wins.
func (b *boot) publishMembers(ctx context.Context, specs []cluster.AffiliateSpec) error {
	var affiliates []resource.Resource
	members := map[string]resource.Resource{}
	for _, spec := range specs {
		a := cluster.NewAffiliate(cluster.NamespaceName, spec.NodeID)
		*a.TypedSpec() = spec
		affiliates = append(affiliates, a)
		m := cluster.NewMember(cluster.NamespaceName, spec.Nodename)
		*m.TypedSpec() = cluster.MemberSpec{
			NodeID: spec.NodeID, Addresses: spec.Addresses, Hostname: spec.Hostname, MachineType: spec.MachineType,
			OperatingSystem: spec.OperatingSystem, ControlPlane: spec.ControlPlane,
		}
		members[spec.Nodename] = m
	}
	if err := b.store.replace(ctx, cluster.NamespaceName, cluster.AffiliateType, affiliates); err != nil {
		return err
	}
	if err := b.store.replace(ctx, cluster.NamespaceName, cluster.MemberType, slices.Collect(maps.Values(members))); err != nil {
		return err
	}
	return b.store.replace(ctx, kubespan.NamespaceName, kubespan.PeerSpecType, b.peers(specs))
}

// peers are those of KubeSpan: addresses that an earlier one has are taken from the later one.
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

// nextNodeID is the ID of a machine that is installed.
func (fw *Firmware) nextNodeID() string {
	fw.hub.mu.Lock()
	defer fw.hub.mu.Unlock()
	return fw.hub.idPrefix + newNodeID()
}

// NodeIDsBegin has the IDs of machines that are installed from now on begin with a text: lists sort by it.
func (fw *Firmware) NodeIDsBegin(with string) {
	fw.hub.mu.Lock()
	defer fw.hub.mu.Unlock()
	fw.hub.idPrefix = with
}
