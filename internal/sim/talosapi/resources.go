package talosapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/cosi-project/runtime/pkg/state/registry"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/extensions"
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
)

// publishFacts publishes facts of the machine and its image that don't depend on the configuration.
func (b *boot) publishFacts(ctx context.Context) error {
	img := b.med.image
	rs := []resource.Resource{
		filled(runtime.NewVersion(), runtime.VersionSpec{Name: "Talos", Version: img.TalosVersion}),
		filled(hardware.NewSystemInformation(hardware.SystemInformationID), hardware.SystemInformationSpec{
			Manufacturer: "QEMU", ProductName: "Standard PC (Q35 + ICH9, 2009)", SerialNumber: b.m.hw.Serial, UUID: b.m.hw.UUID, WakeUpType: "Power Switch",
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

// filled sets the specification of a new resource.
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
func (b *boot) stage(ctx context.Context, s runtime.MachineStage, ready bool, unmet ...string) error {
	var spec runtime.MachineStatusSpec
	spec.Stage, spec.Status.Ready = s, ready
	for _, u := range unmet {
		name, reason, _ := strings.Cut(u, ": ")
		spec.Status.UnmetConditions = append(spec.Status.UnmetConditions, runtime.UnmetCondition{Name: name, Reason: reason})
	}
	holding(&b.mu, func() { b.status = spec })
	return b.refresh(ctx)
}

// publishConfig publishes the active configuration, the stored configuration, and what follows from the active one.
func (b *boot) publishConfig(ctx context.Context, active config.Provider) error {
	b.mu.Lock()
	nodeID, stored := b.nodeID, b.stored
	b.mu.Unlock()
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

// nodenameOf returns the machine's name in Kubernetes (controllers/k8s/nodename.go).
func nodenameOf(cfg config.Provider, nodeID string) string {
	host := hostOf(cfg, nodeID)
	if n := cfg.K8sNodeConfig(); n != nil && n.RegisterWithFQDN() {
		return strings.ToLower(host.FQDN())
	}
	return strings.ToLower(host.Hostname)
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
	b.mu.Lock()
	known := b.cfg != nil
	b.mu.Unlock()
	if known {
		b.m.fw.hub.leave(b)
	}
	b.withdraw()
}

// withdraw tells the kubelet hook that the node is down.
func (b *boot) withdraw() {
	b.mu.Lock()
	node := b.node
	b.node = ""
	b.mu.Unlock()
	if node != "" && b.m.fw.o.Kubelet != nil {
		b.m.fw.o.Kubelet.NodeDown(node, b.m.hw.UUID)
	}
}

// store holds the resources of one boot.
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

// replace replaces all resources of a kind in a namespace by rs.
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
