package talosapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/cosi-project/runtime/pkg/state/registry"
	"github.com/siderolabs/talos/pkg/machinery/config"
	configtypes "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/extensions"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/storage"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/world"
)

// publishFacts publishes facts of the machine and its image that don't depend on the configuration.
func (b *boot) publishFacts(ctx context.Context) error {
	img := b.med.image
	rs := []resource.Resource{
		filled(runtime.NewVersion(), runtime.VersionSpec{Name: "Talos", Version: img.TalosVersion}),
		filled(hardware.NewSystemInformation(hardware.SystemInformationID), hardware.SystemInformationSpec{
			Manufacturer: "QEMU", ProductName: "Standard PC (Q35 + ICH9, 2009)", SerialNumber: b.m.hw.Serial, SKUNumber: b.m.hw.SKU, UUID: b.m.hw.UUID, WakeUpType: "Power Switch",
		}),
		filled(runtime.NewKernelCmdline(), runtime.KernelCmdlineSpec{Cmdline: img.Cmdline}),
		filled(runtime.NewBootID(), runtime.BootIDSpec{BootID: b.id}),
		// Secure Boot is never on: firmware with it boots no image of the lab. Talos goes by systemd-boot's variables
		// (SecurityStateController), and every entry of the lab is called "Talos-…".
		filled(runtime.NewSecurityStateSpec(runtime.NamespaceName), runtime.SecurityStateSpec{BootedWithUKI: b.m.uefi()}),
		filled(runtime.NewPlatformMetadataSpec(runtime.NamespaceName, runtime.PlatformMetadataID),
			runtime.PlatformMetadataSpec{Platform: img.Platform}),
	}
	if booted := b.m.bootedEntry(b.med); booted != "" {
		rs = append(rs, filled(runtime.NewBootedEntrySpec(), runtime.BootedEntrySpec{BootedEntry: booted}))
	}
	if img.SchematicID != "" {
		flavor, url, _ := strings.Cut(strings.TrimSuffix(img.SchematicAuthor, ")"), " (")
		rs = append(rs, filled(runtime.NewImageFactorySchematic(runtime.NamespaceName, runtime.ImageFactorySchematicID),
			runtime.ImageFactorySchematicSpec{SchematicID: img.SchematicID, Flavor: flavor, APIURL: url}))
	}
	for _, l := range layersOf(img) { // as in its extensions.yaml: without digests
		rs = append(rs, filled(runtime.NewExtensionStatus(runtime.NamespaceName, strings.TrimSuffix(l.Image, ".sqsh")), *l))
	}
	if err := b.store.set(ctx, rs...); err != nil {
		return err
	}
	if err := b.publishNetwork(ctx); err != nil {
		return err
	}
	return b.publishBlock(ctx)
}

func filled[S any, R interface {
	resource.Resource
	TypedSpec() *S
}](r R, spec S) R {
	*r.TypedSpec() = spec
	return r
}

// modulesName is the extension that imager adds to an image with kernel modules.
const modulesName = "modules.dep"

// layersOf returns the image's extensions, numbered in order, followed by the schematic and by imager's own list of
// modules.
func layersOf(img artefact.Image) []*extensions.Layer {
	var list, last []*extensions.Layer
	add := func(m extensions.Metadata) {
		list = append(list, &extensions.Layer{Image: strconv.Itoa(len(list)) + ".sqsh", Metadata: m})
	}
	for _, e := range img.Extensions {
		m := extensions.Metadata{Name: e.Name, Version: e.Version, Author: e.Author, Description: e.Description}
		if e.Name == modulesName {
			last = append(last, &extensions.Layer{Image: modulesName + ".sqsh", Metadata: m})
			continue
		}
		add(m)
	}
	if img.SchematicID != "" {
		add(extensions.Metadata{
			Name: "schematic", Version: img.SchematicID, Author: img.SchematicAuthor,
			Description: "Virtual extension which specifies the schematic of the image built with Image Factory.",
			ExtraInfo:   img.SchematicYAML,
		})
	}
	return append(list, last...)
}

// stage publishes the machine's stage; each unmet condition is "name" or "name: reason".
func (b *boot) stage(ctx context.Context, s runtime.MachineStage, ready bool, unmet ...string) {
	var spec runtime.MachineStatusSpec
	spec.Stage, spec.Status.Ready = s, ready
	for _, u := range unmet {
		name, reason, _ := strings.Cut(u, ": ")
		spec.Status.UnmetConditions = append(spec.Status.UnmetConditions, runtime.UnmetCondition{Name: name, Reason: reason})
	}
	holding(&b.mu, func() { b.status = spec })
	b.refresh(ctx)
}

// publishConfig publishes the active configuration, the stored configuration, and what follows from the active one.
func (b *boot) publishConfig(ctx context.Context, active config.Provider) error {
	nodeID, stored := guarded(&b.mu, &b.nodeID), guarded(&b.mu, &b.stored)
	configs := []resource.Resource{configres.NewMachineConfig(active)}
	if stored != nil {
		configs = append(configs, configres.NewMachineConfigWithID(stored, configres.PersistentID))
	}
	kind := configres.NewMachineType()
	kind.SetMachineType(active.Machine().Type())
	info := cluster.InfoSpec{ClusterID: clusterID(active)}
	if c := active.K8sClusterConfig(); c != nil {
		info.ClusterName = c.ClusterName()
	}
	if k := active.K8sKubeletConfig(); k != nil {
		b.m.runs.Store(k.Image())
	}
	if err := b.store.set(ctx, append(append(b.kubernetesConfig(active), configs...), kind,
		filled(network.NewHostnameStatus(network.NamespaceName, network.HostnameID), hostOf(active, nodeID)),
		filled(k8s.NewNodename(k8s.NamespaceName, k8s.NodenameID), k8s.NodenameSpec{Nodename: nodenameOf(active, nodeID)}),
		filled(cluster.NewIdentity(cluster.NamespaceName, cluster.LocalIdentity), cluster.IdentitySpec{NodeID: nodeID}),
		filled(cluster.NewInfo(), info), b.nodeIP())...); err != nil {
		return err
	}
	if now := b.m.attach(b.med.image, active); now.prefix.Addr() == b.m.addr() {
		b.m.net.Store(&now)
	}
	err := errors.Join(b.publishNetwork(ctx), b.publishResolvers(ctx, active), b.renderPods(ctx))
	if err := errors.Join(err, b.publishManifests(ctx, active)); err != nil {
		return err
	}
	b.kubelet.notify()
	return nil
}

// hostOf returns the configured name, maybe with a domain, or Talos' default from the node's identity.
func hostOf(cfg config.Provider, nodeID string) (host network.HostnameStatusSpec) {
	var configured string
	if h := cfg.NetworkHostnameConfig(); h != nil {
		configured = h.Hostname()
	}
	host.Hostname, host.Domainname, _ = strings.Cut(cmp.Or(configured, "talos-"+strings.ReplaceAll(nodeID, "-", "")[:6]), ".")
	return host
}

// hostnameOf returns the kernel's hostname: without the domain.
func hostnameOf(cfg config.Provider, nodeID string) string { return hostOf(cfg, nodeID).Hostname }

// nodenameOf returns the machine's name in Kubernetes: what Kubernetes allows of its name, in lower case
// (controllers/k8s/nodename.go, internal/nodename).
func nodenameOf(cfg config.Provider, nodeID string) string {
	host := hostOf(cfg, nodeID)
	name := host.Hostname
	if n := cfg.K8sNodeConfig(); n != nil && n.RegisterWithFQDN() {
		name = host.FQDN()
	}
	name = regexp.MustCompile(`[^a-z0-9.-]`).ReplaceAllString(strings.ToLower(strings.ReplaceAll(name, "_", "-")), "")
	return strings.Trim(name, "-.")
}

// clusterID returns the discovery ID of the cluster; empty if discovery has no identity.
func clusterID(cfg config.Provider) string {
	if id := cfg.DiscoveryIdentityConfig(); id != nil {
		return id.ClusterID()
	}
	return ""
}

// announce tells the kubelet hook that the node is up, with a kubelet of that image.
func (b *boot) announce(image string) {
	b.mu.Lock()
	info := NodeInfo{
		Name: nodenameOf(b.cfg, b.nodeID), UUID: b.m.hw.UUID, MachineID: machineID(b.nodeID), BootID: b.id, Address: b.m.addr(),
		ControlPlane: b.cfg.Machine().Type().IsControlPlane(), TalosVersion: b.med.image.TalosVersion,
		KubeletVersion: tagOf(image),
	}
	if n := b.cfg.K8sNodeConfig(); n != nil {
		info.Labels = n.Labels()
	}
	b.node = info.Name
	b.mu.Unlock()
	if b.m.fw.o.Kubelet != nil {
		b.m.fw.o.Kubelet.NodeUp(info)
	}
}

// registered returns the name of the announced node; empty while its kubelet is down.
func (b *boot) registered() string { return guarded(&b.mu, &b.node) }

func (b *boot) nodename() string {
	return look(&b.mu, func() string { return nodenameOf(b.cfg, b.nodeID) })
}

// gone tells all hooks that this boot's node no longer answers.
func (b *boot) gone() {
	if b.config() != nil {
		b.m.fw.hub.leave(b)
	}
	b.withdraw()
}

// withdraw tells the kubelet hook that the node is down.
func (b *boot) withdraw() {
	var node string
	holding(&b.mu, func() { node, b.node = b.node, "" })
	if node != "" && b.m.fw.o.Kubelet != nil {
		b.m.fw.o.Kubelet.NodeDown(node, b.m.hw.UUID)
	}
}

type store struct {
	st state.State
	mu sync.Mutex // one writer at a time
}

// newStore makes an empty store with the namespaces and kinds that the machine has.
func newStore(ctx context.Context, kinds []*meta.ResourceDefinition) (*store, error) {
	s := &store{st: state.WrapCore(namespaced.NewState(inmem.Build))}
	spaces := registry.NewNamespaceRegistry(s.st)
	if err := spaces.RegisterDefault(ctx); err != nil {
		return nil, fmt.Errorf("register namespaces: %w", err)
	}
	for _, ns := range []resource.Namespace{
		runtime.NamespaceName, hardware.NamespaceName, configres.NamespaceName, network.NamespaceName, k8s.NamespaceName, k8s.ControlPlaneNamespaceName, cluster.NamespaceName, etcd.NamespaceName, storage.NamespaceName,
	} {
		if err := spaces.Register(ctx, ns, ""); err != nil {
			return nil, fmt.Errorf("register namespace %s: %w", ns, err)
		}
	}
	for _, kind := range kinds {
		if err := s.st.Create(ctx, kind.DeepCopy(), state.WithCreateOwner(meta.Owner)); err != nil {
			return nil, fmt.Errorf("register %s: %w", kind.Metadata().ID(), err)
		}
	}
	return s, nil
}

// definitions describe every kind of resource; computing their plural forms takes
// milliseconds, so it is done once per process. Each store has its own copies.
var definitions = sync.OnceValues(func() ([]*meta.ResourceDefinition, error) {
	var all []*meta.ResourceDefinition
	for _, kind := range resourceKinds() {
		rd, err := meta.NewResourceDefinition(kind.ResourceDefinition())
		if err != nil {
			return nil, fmt.Errorf("define a kind of resource: %w", err)
		}
		all = append(all, rd)
	}
	return all, nil
})

func resourceKinds() []meta.ResourceWithRD {
	return []meta.ResourceWithRD{
		&meta.ResourceDefinition{}, &meta.Namespace{},
		&block.DiscoveredVolume{}, &block.Disk{}, &block.SystemDisk{}, &block.VolumeStatus{},
		&cluster.Affiliate{}, &cluster.Identity{}, &cluster.Info{}, &cluster.Member{},
		&configres.MachineConfig{}, &configres.MachineType{},
		&etcd.Member{},
		&hardware.SystemInformation{},
		&k8s.APIServerConfig{}, &k8s.BootstrapManifestsConfig{}, &k8s.ControllerManagerConfig{}, &k8s.KubeletConfig{}, &k8s.KubeletSpec{}, &k8s.Manifest{}, &k8s.NodeIP{}, &k8s.Nodename{},
		&k8s.SchedulerConfig{}, &k8s.StaticPod{}, &k8s.StaticPodStatus{},
		&network.AddressSpec{}, &network.AddressStatus{}, &network.DNSUpstream{}, &network.HostnameStatus{}, &network.LinkStatus{}, &network.NodeAddress{}, &network.OperatorSpec{}, &network.ResolverStatus{}, &network.RouteStatus{},
		&runtime.BootID{}, &runtime.BootedEntry{}, &runtime.Diagnostic{}, &runtime.ExtensionStatus{}, &runtime.ImageFactorySchematic{}, &runtime.KernelCmdline{},
		&runtime.MachineStatus{}, &runtime.MetaKey{}, &runtime.MountStatus{}, &runtime.PlatformMetadata{}, &runtime.SecurityState{}, &runtime.UnattendedInstallStatus{}, &runtime.Version{},
		&storage.LVMPhysicalVolumeStatus{},
		&v1alpha1.Service{},
	}
}

// set creates or updates resources; it skips unchanged resources, so that watchers see no event.
func (s *store) set(ctx context.Context, rs ...resource.Resource) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range rs {
		if err := s.put(ctx, r); err != nil {
			return fmt.Errorf("write %s: %w", r.Metadata(), err)
		}
	}
	return nil
}

func (s *store) put(ctx context.Context, r resource.Resource) error {
	current, err := s.st.Get(ctx, r.Metadata())
	if state.IsNotFoundError(err) {
		return s.st.Create(ctx, r)
	}
	if err != nil {
		return err
	}
	r.Metadata().SetVersion(current.Metadata().Version())
	r.Metadata().SetCreated(current.Metadata().Created())
	r.Metadata().SetUpdated(current.Metadata().Updated())
	if resource.Equal(r, current) {
		return nil
	}
	return s.st.Update(ctx, r)
}

func (s *store) replace(ctx context.Context, ns resource.Namespace, kind resource.Type, rs []resource.Resource) error {
	if err := s.set(ctx, rs...); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := map[resource.ID]bool{}
	for _, r := range rs {
		keep[r.Metadata().ID()] = true
	}
	all, err := s.st.List(ctx, resource.NewMetadata(ns, kind, "", resource.VersionUndefined))
	if err != nil {
		return fmt.Errorf("list %s: %w", kind, err)
	}
	for _, r := range all.Items {
		if keep[r.Metadata().ID()] {
			continue
		}
		if err := s.st.Destroy(ctx, r.Metadata()); err != nil {
			return fmt.Errorf("remove %s: %w", r.Metadata(), err)
		}
	}
	return nil
}

// served passes resources to the service in wire form. The service itself would marshal the YAML for every answer,
// which takes longer than the rest of the work.
type served struct{ state.CoreState }

func (s served) Get(ctx context.Context, r resource.Pointer, opts ...state.GetOption) (resource.Resource, error) {
	got, err := s.CoreState.Get(ctx, r, opts...)
	if err != nil {
		return nil, err
	}
	return written(got)
}

func (s served) List(ctx context.Context, kind resource.Kind, opts ...state.ListOption) (resource.List, error) {
	list, err := s.CoreState.List(ctx, kind, opts...)
	if err != nil {
		return list, err
	}
	items := make([]resource.Resource, 0, len(list.Items))
	for _, r := range list.Items {
		w, err := written(r)
		if err != nil {
			return list, err
		}
		items = append(items, w)
	}
	return resource.List{Items: items}, nil
}

// written returns the result of protobuf.FromResource, with cached YAML for equal resources.
func written(r resource.Resource) (resource.Resource, error) {
	bare, err := protobuf.FromResource(r, protobuf.WithoutYAML())
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", r.Metadata(), err)
	}
	message, err := bare.Marshal()
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", r.Metadata(), err)
	}
	if len(message.GetSpec().GetProtoSpec()) == 0 { // its YAML is made anew each time (cosi's pkg/resource/handle)
		return protobuf.FromResource(r)
	}
	key := writtenKey{r.Metadata().Type(), string(message.GetSpec().GetProtoSpec())}
	writtenSpecs.mu.Lock()
	text, ok := writtenSpecs.found[key]
	writtenSpecs.mu.Unlock()
	if !ok {
		b, err := yaml.Marshal(r.Spec())
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", r.Metadata(), err)
		}
		text = string(b)
		writtenSpecs.mu.Lock()
		if len(writtenSpecs.found) >= keptSpecs {
			clear(writtenSpecs.found)
		}
		writtenSpecs.found[key] = text
		writtenSpecs.mu.Unlock()
	}
	message.Spec.YamlSpec = text
	return protobuf.Unmarshal(message)
}

// writtenKey identifies a specification: its kind, and its bytes in protobuf.
type writtenKey struct {
	kind resource.Type
	spec string
}

// keptSpecs limits the cache, which all machines of the process share: at 1 KiB each, a few MiB.
const keptSpecs = 4096

var writtenSpecs = struct {
	mu    sync.Mutex
	found map[writtenKey]string
}{found: map[writtenKey]string{}}

// attachment is a machine's network attachment. It has one address, from the first of these sources that sets an
// address: its configuration, its platform, DHCP. The zero value is not attached.
type attachment struct {
	link    string // "eth0", "eth0.42"
	kind    string // of a virtual link: network.LinkKindVLAN, network.LinkKindBond
	prefix  netip.Prefix
	gateway netip.Addr
	layer   network.ConfigLayer
	asked   network.ConfigLayer // the layer that requested DHCP, which gave the address
	duid    bool                // the DHCP request used a DUID
}

// addr returns the machine's address; invalid if it is not attached.
func (m *machine) addr() netip.Addr { return m.attached().prefix.Addr() }

func (m *machine) attached() attachment {
	if a := m.net.Load(); a != nil {
		return *a
	}
	return attachment{}
}

// attach determines the attachment with that image and configuration. cfg is nil in
// maintenance mode, where only the cloud-init drive and DHCP count.
func (m *machine) attach(image artefact.Image, cfg config.Provider) attachment {
	if m.unplugged || len(m.hw.MACs) == 0 {
		return attachment{}
	}
	if a, says := m.configuredAt(cfg); says {
		return a
	}
	if a, says := m.platformAt(image); says {
		return a
	}
	return m.leased(attachment{link: "eth0", asked: network.ConfigDefault})
}

// configuredAt returns the attachment in a configuration, in separate documents or in machine.network.
func (m *machine) configuredAt(cfg config.Provider) (a attachment, says bool) {
	if cfg == nil {
		return a, false
	}
	for _, l := range cfg.NetworkCommonLinkConfigs() {
		at := attachment{link: l.Name(), kind: kindOf(l), layer: network.ConfigMachineConfiguration}
		for _, r := range l.Routes() {
			if !r.Destination().IsPresent() {
				at.gateway = r.Gateway().ValueOrZero()
			}
		}
		for _, address := range l.Addresses() {
			at.prefix = address.Address()
			return at, true
		}
	}
	if asked := cfg.NetworkDHCPv4Configs(); len(asked) > 0 {
		d, kind := asked[0], ""
		for _, l := range cfg.NetworkCommonLinkConfigs() {
			if l.Name() == d.Name() {
				kind = kindOf(l)
			}
		}
		return m.leased(attachment{link: d.Name(), kind: kind, asked: network.ConfigMachineConfiguration, duid: d.ClientIdentifier() == nethelpers.ClientIdentifierDUID}), true
	}
	if cfg.Machine() == nil || cfg.Machine().Network() == nil {
		return a, false
	}
	for _, d := range cfg.Machine().Network().Devices() {
		if a, says = m.deviceAt(d); says {
			return a, true
		}
	}
	return a, false
}

// deviceAt returns the attachment by an interface of machine.network or one of its VLANs.
func (m *machine) deviceAt(d configtypes.Device) (attachment, bool) {
	link := d.Interface()
	if link == "" { // by a selector
		link = "eth0"
	}
	kind := ""
	if d.Bond() != nil {
		kind = network.LinkKindBond
	}
	if a, says := m.legacyAt(link, kind, d.Addresses(), d.Routes(), d.DHCP()); says {
		return a, true
	}
	for _, v := range d.Vlans() {
		if a, says := m.legacyAt(nethelpers.VLANLinkName(link, v.ID()), network.LinkKindVLAN, v.Addresses(), v.Routes(), v.DHCP()); says {
			return a, true
		}
	}
	return attachment{}, false
}

func (m *machine) legacyAt(link, kind string, addresses []string, routes []configtypes.Route, dhcp bool) (attachment, bool) {
	a := attachment{link: link, kind: kind, layer: network.ConfigMachineConfiguration, asked: network.ConfigMachineConfiguration}
	for _, r := range routes {
		if r.Network() == "" || r.Network() == "0.0.0.0/0" {
			a.gateway, _ = netip.ParseAddr(r.Gateway())
		}
	}
	for _, address := range addresses {
		if prefix, err := netip.ParsePrefix(address); err == nil {
			a.prefix = prefix
			return a, true
		}
	}
	if dhcp {
		return m.leased(a), true
	}
	return a, false
}

func kindOf(l configtypes.NetworkCommonLinkConfig) string {
	switch l.(type) {
	case configtypes.NetworkVLANConfig:
		return network.LinkKindVLAN
	case configtypes.NetworkBondConfig:
		return network.LinkKindBond
	}
	return ""
}

// platformAt returns the attachment by the cloud-init drive, for an image of platform nocloud. A card that the drive
// names gets no default DHCP operator (OperatorConfigController).
func (m *machine) platformAt(image artefact.Image) (attachment, bool) {
	for i := range m.hw.MACs {
		said := m.hw.CloudInit[i]
		if image.Platform != "nocloud" || said == "" {
			continue
		}
		a := attachment{link: "eth" + strconv.Itoa(i), layer: network.ConfigPlatform, asked: network.ConfigPlatform}
		for part := range strings.SplitSeq(said, ",") {
			switch name, value, _ := strings.Cut(part, "="); {
			case name == "ip" && value == "dhcp":
				return m.leased(a), true
			case name == "ip":
				a.prefix, _ = netip.ParsePrefix(value)
			case name == "gw":
				a.gateway, _ = netip.ParseAddr(value)
			}
		}
		return a, true
	}
	return attachment{}, false
}

// userData returns the machine configuration on a CD with cloud-init data, which an image of platform nocloud reads
// before it would enter maintenance mode (controllers/config/acquire.go, platform/nocloud/nocloud.go, Configuration).
// Proxmox's own drive begins with #cloud-config, which Talos ignores.
func (m *machine) userData(image artefact.Image) (firstConfig, bool) {
	if image.Platform != "nocloud" {
		return firstConfig{}, false
	}
	for _, d := range m.devices() {
		if raw, is := artefact.UserData(d.bytes()); is && d.CDROM {
			_, err := parseConfig(raw)
			return firstConfig{raw: raw}, err == nil
		}
	}
	return firstConfig{}, false
}

// leased returns the attachment with the DHCP address of the link's card.
func (m *machine) leased(a attachment) attachment {
	card := 0
	if n, ok := strings.CutPrefix(a.link, "eth"); ok {
		n, _, _ = strings.Cut(n, ".")
		card, _ = strconv.Atoi(n)
	}
	if card >= len(m.hw.MACs) {
		return attachment{}
	}
	addr, ok := m.fw.o.Lease(m.hw.MACs[card])
	if !ok {
		return attachment{}
	}
	a.prefix, a.layer = netip.PrefixFrom(addr, m.fw.o.NetworkBits), network.ConfigOperator
	return a
}

// publishNetwork publishes the machine's network: the loopback and its cards, which net.ifnames=0 numbers in the
// kernel's order, the link with its address, and what follows from that.
func (b *boot) publishNetwork(ctx context.Context) error {
	links, at := b.links(), b.m.attached()
	lo := netip.MustParsePrefix("127.0.0.1/8")
	specs := []resource.Resource{addressSpec("lo", lo, nethelpers.ScopeHost, network.ConfigDefault)}
	statuses := []resource.Resource{addressOn("lo", 1, lo, nethelpers.ScopeHost)}
	var operators, routes, nodes []resource.Resource
	if at.prefix.IsValid() {
		index := uint32(len(links))
		for _, l := range links {
			if l.Metadata().ID() == at.link {
				index = l.(*network.LinkStatus).TypedSpec().Index
			}
		}
		specs = append(specs, addressSpec(at.link, at.prefix, nethelpers.ScopeGlobal, at.layer))
		statuses = append(statuses, addressOn(at.link, index, at.prefix, nethelpers.ScopeGlobal))
		routes = append(routes, route(network.RouteStatusSpec{ // to the same network
			Family: familyOf(at.prefix.Addr()), Destination: at.prefix.Masked(), Source: at.prefix.Addr(),
			OutLinkIndex: index, OutLinkName: at.link, Scope: nethelpers.ScopeLink, Protocol: nethelpers.ProtocolKernel,
		}))
		if at.gateway.IsValid() {
			routes = append(routes, route(network.RouteStatusSpec{ // to everything else
				Family: familyOf(at.gateway), Gateway: at.gateway, OutLinkIndex: index, OutLinkName: at.link,
				Priority: network.DefaultRouteMetric, Scope: nethelpers.ScopeGlobal, Protocol: nethelpers.ProtocolStatic,
			}))
		}
		if at.layer == network.ConfigOperator {
			operators = append(operators, operatorOn(at))
		}
		for _, id := range []string{network.NodeAddressDefaultID, network.NodeAddressCurrentID, network.NodeAddressRoutedID} {
			spec := network.NodeAddressSpec{Addresses: []netip.Prefix{at.prefix}}
			nodes = append(nodes, filled(network.NewNodeAddress(network.NamespaceName, id), spec))
		}
	}
	for _, all := range []struct {
		kind resource.Type
		rs   []resource.Resource
	}{
		{network.LinkStatusType, links},
		{network.AddressSpecType, specs},
		{network.AddressStatusType, statuses},
		{network.OperatorSpecType, operators},
		{network.RouteStatusType, routes},
		{network.NodeAddressType, nodes},
	} {
		if err := b.store.replace(ctx, network.NamespaceName, all.kind, all.rs); err != nil {
			return err
		}
	}
	return nil
}

func (b *boot) links() []resource.Resource {
	rs := []resource.Resource{filled(network.NewLinkStatus(network.NamespaceName, "lo"), network.LinkStatusSpec{
		Index: 1, Type: nethelpers.LinkLoopbck, MTU: 65536, OperationalState: nethelpers.OperStateUnknown,
		Flags: nethelpers.LinkFlags(nethelpers.LinkUp | nethelpers.LinkLoopback | nethelpers.LinkRunning), LinkState: true,
	})}
	for i, mac := range b.m.hw.MACs {
		hardware, _ := net.ParseMAC(mac) // empty if invalid
		rs = append(rs, etherLink("eth"+strconv.Itoa(i), "virtio_net", "", len(rs), hardware))
	}
	if at := b.m.attached(); at.kind != "" && len(rs) > 1 {
		rs = append(rs, etherLink(at.link, "", at.kind, len(rs), net.HardwareAddr(rs[1].(*network.LinkStatus).TypedSpec().HardwareAddr)))
	}
	return rs
}

// etherLink returns the resource of a card, or of a link that a configuration makes of cards; after is the number of
// links before it.
func etherLink(name, driver, kind string, after int, hardware net.HardwareAddr) resource.Resource {
	spec := network.LinkStatusSpec{
		Index: uint32(after + 1), Type: nethelpers.LinkEther, Kind: kind, MTU: 1500, OperationalState: nethelpers.OperStateUp, LinkState: true, Driver: driver,
		Flags:        nethelpers.LinkFlags(nethelpers.LinkUp | nethelpers.LinkBroadcast | nethelpers.LinkRunning | nethelpers.LinkMulticast | nethelpers.LinkLowerUp),
		HardwareAddr: nethelpers.HardwareAddr(hardware),
	}
	if kind == "" {
		spec.PermanentAddr = spec.HardwareAddr
	}
	return filled(network.NewLinkStatus(network.NamespaceName, name), spec)
}

func addressSpec(link string, address netip.Prefix, scope nethelpers.Scope, layer network.ConfigLayer) resource.Resource {
	spec := network.AddressSpecSpec{
		Address: address, LinkName: link, Family: familyOf(address.Addr()), Scope: scope, ConfigLayer: layer,
	}
	if layer != network.ConfigOperator { // not the lease's
		spec.Flags = nethelpers.AddressFlags(nethelpers.AddressPermanent)
	}
	return filled(network.NewAddressSpec(network.NamespaceName, network.AddressID(link, address)), spec)
}

func operatorOn(at attachment) resource.Resource {
	spec := network.OperatorSpecSpec{
		Operator: network.OperatorDHCP4, LinkName: at.link, RequireUp: true, ConfigLayer: at.asked,
		DHCP4: network.DHCP4OperatorSpec{RouteMetric: network.DefaultRouteMetric},
	}
	switch {
	case at.duid:
		spec.DHCP4.ClientIdentifier.ClientIdentifier = nethelpers.ClientIdentifierDUID
	case at.asked == network.ConfigDefault:
		spec.DHCP4.ClientIdentifier.ClientIdentifier = nethelpers.ClientIdentifierMAC
	}
	return filled(network.NewOperatorSpec(network.NamespaceName, network.OperatorID(spec)), spec)
}

func familyOf(addr netip.Addr) nethelpers.Family {
	if addr.Is6() {
		return nethelpers.FamilyInet6
	}
	return nethelpers.FamilyInet4
}

func addressOn(link string, index uint32, address netip.Prefix, scope nethelpers.Scope) resource.Resource {
	spec := network.AddressStatusSpec{
		Address: address, Local: address.Addr(), LinkIndex: index, LinkName: link, Family: familyOf(address.Addr()), Scope: scope,
	}
	return filled(network.NewAddressStatus(network.NamespaceName, network.AddressID(link, address)), spec)
}

func route(spec network.RouteStatusSpec) resource.Resource {
	spec.Table, spec.Type = nethelpers.TableMain, nethelpers.TypeUnicast
	id := network.RouteID(spec.Table, spec.Family, spec.Destination, spec.Gateway, spec.Priority, spec.OutLinkName)
	return filled(network.NewRouteStatus(network.NamespaceName, id), spec)
}

func (b *boot) nodeIP() resource.Resource {
	r := k8s.NewNodeIP(k8s.NamespaceName, k8s.KubeletID)
	if b.m.addr().IsValid() {
		r.TypedSpec().Addresses = []netip.Addr{b.m.addr()}
	}
	return r
}

// silentNets are the networks for documentation (RFC 5737): no DNS server answers there. At every other address a DNS
// server answers.
var silentNets = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24")}

// publishResolvers publishes the DNS servers of a configuration, and what the host DNS cache
// knows about them (controllers/network/resolver_config.go, dns_upstream.go).
func (b *boot) publishResolvers(ctx context.Context, cfg config.Provider) error {
	servers := []netip.Addr{netip.MustParseAddr(constants.DefaultPrimaryResolver), netip.MustParseAddr(constants.DefaultSecondaryResolver)}
	if r := cfg.NetworkResolverConfig(); r != nil && len(r.Resolvers()) > 0 {
		servers = nil
		for _, s := range r.Resolvers() {
			servers = append(servers, s.Addr)
		}
	}
	status := network.NewResolverStatus(network.NamespaceName, network.ResolverID)
	//lint:ignore SA1019 machines have it still
	status.TypedSpec().DNSServers = servers
	var upstreams []resource.Resource
	for i, addr := range servers {
		s := network.NameServerSpec{Addr: addr}
		status.TypedSpec().NameServers = append(status.TypedSpec().NameServers, s)
		if h := cfg.NetworkHostDNSConfig(); h == nil || !h.HostDNSEnabled() {
			continue
		}
		u := network.NewDNSUpstream(fmt.Sprintf("#%03d %s %s", i, s.Protocol, addr))
		u.TypedSpec().Value.Conn = network.NewDNSConn(nameServer{addr})
		upstreams = append(upstreams, u)
	}
	if err := b.store.set(ctx, status); err != nil {
		return err
	}
	return b.store.replace(ctx, network.NamespaceName, network.DNSUpstreamType, upstreams)
}

// nameServer is a connection to a DNS server.
type nameServer struct{ addr netip.Addr }

func (s nameServer) Addr() string { return net.JoinHostPort(s.addr.String(), "53") }

func (s nameServer) Fails() uint32 {
	if slices.ContainsFunc(silentNets, func(n netip.Prefix) bool { return n.Contains(s.addr) }) {
		return 1
	}
	return 0
}

func (nameServer) Healthcheck()        {}
func (nameServer) Close()              {}
func (nameServer) Start(time.Duration) {}

// agentExtension is the extension with the QEMU guest agent. Its service waits only for machined and its device, so the
// service also runs in maintenance mode (guest-agents/qemu-guest-agent/qemu-guest-agent.yaml of siderolabs/extensions).
const agentExtension = "qemu-guest-agent"

// Agent answers as the QEMU guest agent of a machine if the running system has the agent.
func (fw *Firmware) Agent(vmid int) ([]world.Interface, bool) {
	fw.hub.mu.Lock()
	defer fw.hub.mu.Unlock()
	b := fw.hub.up[vmid]
	if b == nil || !slices.ContainsFunc(b.med.image.Extensions, func(e artefact.Extension) bool { return e.Name == agentExtension }) {
		return nil, false
	}
	list := []world.Interface{{Name: "lo", MAC: "00:00:00:00:00:00", Addresses: []string{"127.0.0.1/8"}}}
	for i, mac := range b.m.hw.MACs {
		card := world.Interface{Name: "eth" + strconv.Itoa(i), MAC: mac}
		if at := b.m.attached(); card.Name == at.link {
			card.Addresses = []string{at.prefix.String()}
		}
		list = append(list, card)
	}
	if at := b.m.attached(); at.kind != "" && len(list) > 1 {
		list = append(list, world.Interface{Name: at.link, MAC: list[1].MAC, Addresses: []string{at.prefix.String()}})
	}
	return list, true
}
