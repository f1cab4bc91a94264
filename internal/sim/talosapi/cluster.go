package talosapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	stdx509 "crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	configtypes "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	machineconf "github.com/siderolabs/talos/pkg/machinery/config/machine"
	netconf "github.com/siderolabs/talos/pkg/machinery/config/types/network"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/kubespan"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/etcd"
)

// Cluster holds the secrets and common settings of one Talos cluster, as talosctl gen makes them.
type Cluster struct {
	Name              string
	Endpoint          string // of Kubernetes: "https://127.42.7.10:6443"
	TalosVersion      string // "v1.13.9"
	KubernetesVersion string // "v1.35.4"
	Secrets           *secrets.Bundle

	contract *config.VersionContract
}

// NewCluster makes the secrets of a new cluster, valid from now on.
func NewCluster(name, endpoint, talosVersion, kubernetesVersion string) (*Cluster, error) {
	contract, err := config.ParseContractFromVersion(talosVersion)
	if err != nil {
		return nil, fmt.Errorf("read Talos version: %w", err)
	}
	bundle, err := secrets.NewBundle(secrets.NewClock(), contract, secrets.WithECDSAServiceAccountKey())
	if err != nil {
		return nil, fmt.Errorf("make cluster secrets: %w", err)
	}
	return &Cluster{
		Name: name, Endpoint: endpoint, TalosVersion: talosVersion, KubernetesVersion: kubernetesVersion,
		Secrets: bundle, contract: contract,
	}, nil
}

// Talosconfig makes a client configuration with a new certificate of that role.
func (c *Cluster) Talosconfig(r role.Role, endpoints ...string) ([]byte, error) {
	in, err := c.input(generate.WithRoles(role.MakeSet(r)), generate.WithEndpointList(endpoints))
	if err != nil {
		return nil, err
	}
	conf, err := in.Talosconfig()
	if err != nil {
		return nil, fmt.Errorf("make talosconfig: %w", err)
	}
	b, err := conf.Bytes()
	if err != nil {
		return nil, fmt.Errorf("write talosconfig: %w", err)
	}
	return b, nil
}

// Machine is the individual part of one machine's configuration.
type Machine struct {
	Hostname      string // with a domain, the Node has it too (registerWithFQDN)
	ControlPlane  bool
	Installer     string   // image reference
	InstallDisk   string   // empty: /dev/sda
	InstallSerial string   // serial of the install disk, preferred to InstallDisk unless the installation is unattended
	Documents     []string // additional configuration documents, as YAML: volumes and the like
}

// MachineConfig makes the machine's configuration.
func (c *Cluster) MachineConfig(m Machine) ([]byte, error) {
	in, err := c.input(generate.WithInstallDisk(cmp.Or(m.InstallDisk, "/dev/sda")), generate.WithInstallImage(m.Installer))
	if err != nil {
		return nil, err
	}
	kind := machineconf.TypeWorker
	if m.ControlPlane {
		kind = machineconf.TypeControlPlane
	}
	cfg, err := in.Config(kind)
	if err != nil {
		return nil, fmt.Errorf("make configuration of %s: %w", m.Hostname, err)
	}
	docs := cfg.Documents()
	personalize(docs, m)
	own, err := container.New(docs...)
	if err != nil {
		return nil, fmt.Errorf("make configuration of %s: %w", m.Hostname, err)
	}
	b, err := own.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return nil, fmt.Errorf("write configuration of %s: %w", m.Hostname, err)
	}
	for _, d := range m.Documents {
		b = append(append(b, "---\n"...), d...)
	}
	if _, err := parseConfig(b); err != nil {
		return nil, fmt.Errorf("read configuration of %s: %w", m.Hostname, err)
	}
	return b, nil
}

// personalize sets the machine's own name and install disk in generated documents.
func personalize(docs []configtypes.Document, m Machine) {
	for _, doc := range docs {
		switch d := doc.(type) {
		case *netconf.HostnameConfigV1Alpha1:
			d.ConfigAuto, d.ConfigHostname = new(nethelpers.AutoHostnameKindOff), m.Hostname
		case *v1alpha1.Config:
			//lint:ignore SA1019 Talos 1.13 reads it
			in, kubelet := d.MachineConfig.MachineInstall, d.MachineConfig.MachineKubelet
			if strings.Contains(m.Hostname, ".") && kubelet != nil {
				//lint:ignore SA1019 Talos 1.13 reads it
				kubelet.KubeletRegisterWithFQDN = new(true)
			}
			if m.InstallSerial != "" && in != nil {
				in.InstallDisk, in.InstallDiskSelector = "", &v1alpha1.InstallDiskSelector{Serial: m.InstallSerial}
			}
		}
	}
}

func (c *Cluster) input(more ...generate.Option) (*generate.Input, error) {
	in, err := generate.NewInput(c.Name, c.Endpoint, strings.TrimPrefix(c.KubernetesVersion, "v"), append([]generate.Option{
		generate.WithVersionContract(c.contract), generate.WithSecretsBundle(c.Secrets), generate.WithClusterDiscovery(true),
	}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("prepare configuration: %w", err)
	}
	return in, nil
}

// Preinstalled returns the content of a system disk on which an installer with that boot image has installed Talos
// with that machine configuration. The content includes EPHEMERAL unless elsewhere says that another disk has
// EPHEMERAL, or will have it.
func (fw *Firmware) Preinstalled(machineConfig, uki []byte, elsewhere bool) ([]byte, error) {
	if _, err := parseConfig(machineConfig); err != nil {
		return nil, fmt.Errorf("read machine configuration: %w", err)
	}
	img, err := artefact.ReadUKI(uki)
	if err != nil {
		return nil, err
	}
	sum, err := fw.boots.keep(uki)
	if err != nil {
		return nil, err
	}
	disk := systemPartitions(img.TalosVersion, sum, "", stateData{Config: machineConfig, NodeID: newNodeID()})
	if !elsewhere {
		disk.Partitions = append(disk.Partitions, newPartition(labelEphemeral, "xfs", nil))
	}
	return artefact.WriteDisk(disk), nil
}

// DataDisk returns the content of a disk with one xfs volume of that partition label ("EPHEMERAL", or "u-" and the
// name of a user volume) and that data.
func DataDisk(label string, data []byte) []byte { return DataDiskOf(label, "xfs", data) }

// DataDiskOf returns a DataDisk with another filesystem, as blkid calls it: "btrfs", "linux_raid_member".
func DataDiskOf(label, filesystem string, data []byte) []byte {
	return artefact.WriteDisk(artefact.Disk{Partitions: []artefact.Partition{newPartition(label, filesystem, data)}})
}

func (s *machineService) GenerateClientConfiguration(_ context.Context, req *machineapi.GenerateClientConfigurationRequest) (*machineapi.GenerateClientConfigurationResponse, error) {
	if err := s.checkControlPlane("generate client configuration"); err != nil {
		return nil, err
	}
	life := req.GetCrtTtl().AsDuration()
	if life <= 0 {
		return nil, status.Error(codes.InvalidArgument, "crt_ttl should be positive")
	}
	roles, _ := role.Parse(req.GetRoles())
	cfg := s.boot.config()
	bundle, err := secrets.NewBundleFromConfig(secrets.NewFixedClock(time.Now()), cfg)
	if err != nil {
		return nil, fmt.Errorf("error creating secrets bundle from config: %w", err)
	}
	cert, err := bundle.GenerateTalosAPIClientCertificateWithTTL(roles, life)
	if err != nil {
		return nil, err
	}
	name := cfg.K8sClusterConfig().ClusterName()
	if r := roles.Strings(); len(r) == 1 {
		name = strings.TrimPrefix(r[0], role.Prefix) + "@" + name
	}
	ca, encode := bundle.Certs.OS.Crt, base64.StdEncoding.EncodeToString
	talosconfig := fmt.Appendf(nil, "context: %[1]s\ncontexts:\n    %[1]s:\n        endpoints: []\n        ca: %s\n        crt: %s\n        key: %s\n",
		name, encode(ca), encode(cert.Crt), encode(cert.Key))
	return &machineapi.GenerateClientConfigurationResponse{Messages: []*machineapi.GenerateClientConfiguration{{
		Ca: ca, Crt: cert.Crt, Key: cert.Key, Talosconfig: talosconfig,
	}}}, nil
}

// Kubeconfig implements the API: a gzipped tar of one file.
func (s *machineService) Kubeconfig(_ *emptypb.Empty, srv grpc.ServerStreamingServer[common.Data]) error {
	if err := s.checkControlPlane("kubeconfig"); err != nil {
		return err
	}
	cfg := s.boot.config()
	if cfg.K8sAPIServerCAConfig() == nil {
		return status.Error(codes.FailedPrecondition, "k8s API server CA config is not set")
	}
	file, err := kubeconfig(cfg)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	if err := (nodeFiles{"/kubeconfig": {mode: 0o600, data: file}}).pack(&packed, "/kubeconfig"); err != nil {
		return err
	}
	return srv.Send(&common.Data{Bytes: packed.Bytes()})
}

// allowedTimeSkew is how far a client's clock may be behind.
const allowedTimeSkew = 10 * time.Second

// kubeconfig returns an administrator's kubeconfig (pkg/kubeconfig.GenerateAdmin).
func kubeconfig(cfg config.Provider) ([]byte, error) {
	admin, ca := cfg.Cluster().AdminKubeconfig(), cfg.K8sAPIServerCAConfig()
	options := clientOptions(admin.CommonName(), admin.CertOrganization(), allowedTimeSkew, admin.CertLifetime())
	options = append(options, x509.KeyUsage(stdx509.KeyUsageDigitalSignature|stdx509.KeyUsageKeyEncipherment))
	pair, _, err := issue(ca.IssuingCA(), options...)
	if err != nil {
		return nil, fmt.Errorf("error generating admin certificate: %w", err)
	}
	cert := x509.NewCertificateAndKeyFromKeyPair(pair)
	var roots []byte
	for _, c := range ca.AcceptedCAs() {
		roots = append(roots, c.Crt...)
	}
	encode := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: %[1]s
  cluster:
    server: %[2]s
    certificate-authority-data: %[3]s
users:
- name: admin@%[1]s
  user:
    client-certificate-data: %[4]s
    client-key-data: %[5]s
contexts:
- context:
    cluster: %[1]s
    namespace: default
    user: admin@%[1]s
  name: admin@%[1]s
current-context: admin@%[1]s
`, cfg.K8sClusterConfig().ClusterName(), cfg.K8sClusterConfig().ClusterEndpoint(), encode(roots), encode(cert.Crt), encode(cert.Key)), nil
}

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
	return errors.Join(
		b.store.replace(ctx, cluster.NamespaceName, cluster.AffiliateType, affiliates),
		b.store.replace(ctx, cluster.NamespaceName, cluster.MemberType, slices.Collect(maps.Values(members))),
		b.store.replace(ctx, kubespan.NamespaceName, kubespan.PeerSpecType, b.peers(specs)),
	)
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
	c, _ := first(h.etcds[clusterID], func(c *etcd.Cluster) bool { return hexID(c.ID()) == id })
	return c
}

func (h *hub) changes() <-chan struct{} { return guarded(&h.mu, &h.changed) }

// reachEtcd returns the etcd that a client finds at the control planes' addresses. If nothing listens, reachEtcd
// retries for a while, then fails as clientv3 does.
func (b *boot) reachEtcd(ctx context.Context) (*etcd.Cluster, error) {
	if reached, _ := b.peered(); !reached {
		if !b.m.fw.sleep(ctx, dialTime) {
			return nil, ctx.Err()
		}
		return nil, status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	}
	h, id := b.m.fw.hub, clusterID(b.config())
	for _, c := range slices.Backward(look(&h.mu, func() []*etcd.Cluster { return slices.Clone(h.etcds[id]) })) {
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
