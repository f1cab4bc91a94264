package talosapi

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/extensions"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// publishFacts publishes facts of the machine and its image that don't depend on the
// configuration.
func (b *boot) publishFacts(ctx context.Context) error {
	img := b.med.image
	version := runtime.NewVersion()
	version.TypedSpec().Name, version.TypedSpec().Version = "Talos", img.TalosVersion
	system := hardware.NewSystemInformation(hardware.SystemInformationID)
	*system.TypedSpec() = hardware.SystemInformationSpec{
		Manufacturer: "QEMU", ProductName: "Standard PC (Q35 + ICH9, 2009)", SerialNumber: b.m.hw.Serial, UUID: b.m.hw.UUID, WakeUpType: "Power Switch",
	}
	cmdline := runtime.NewKernelCmdline()
	cmdline.TypedSpec().Cmdline = img.Cmdline
	bootID := runtime.NewBootID()
	bootID.TypedSpec().BootID = b.id
	security := runtime.NewSecurityStateSpec(runtime.NamespaceName)
	// Secure Boot is never on: firmware with it boots no image of the lab. Talos goes by
	// systemd-boot's variables (SecurityStateController), and every entry of the lab is called
	// "Talos-…".
	security.TypedSpec().BootedWithUKI = b.m.uefi()
	platform := runtime.NewPlatformMetadataSpec(runtime.NamespaceName, runtime.PlatformMetadataID)
	platform.TypedSpec().Platform = img.Platform
	rs := []resource.Resource{version, system, cmdline, bootID, security, platform}
	if booted := b.m.bootedEntry(b.med); booted != "" {
		entry := runtime.NewBootedEntrySpec()
		entry.TypedSpec().BootedEntry = booted
		rs = append(rs, entry)
	}
	if img.SchematicID != "" {
		schematic := runtime.NewImageFactorySchematic(runtime.NamespaceName, runtime.ImageFactorySchematicID)
		flavor, url, _ := strings.Cut(strings.TrimSuffix(img.SchematicAuthor, ")"), " (")
		*schematic.TypedSpec() = runtime.ImageFactorySchematicSpec{SchematicID: img.SchematicID, Flavor: flavor, APIURL: url}
		rs = append(rs, schematic)
	}
	if err := b.store.set(ctx, append(rs, extensionStatuses(img)...)...); err != nil {
		return err
	}
	if err := b.publishNetwork(ctx); err != nil {
		return err
	}
	return b.publishBlock(ctx)
}

// extensionStatuses lists the image's extensions as in its extensions.yaml: without digests.
func extensionStatuses(img artefact.Image) []resource.Resource {
	var rs []resource.Resource
	for _, l := range layersOf(img) {
		r := runtime.NewExtensionStatus(runtime.NamespaceName, strings.TrimSuffix(l.Image, ".sqsh"))
		*r.TypedSpec() = *l
		rs = append(rs, r)
	}
	return rs
}

// modulesName is the extension that imager adds to an image with kernel modules.
const modulesName = "modules.dep"

// layersOf are the image's extensions, numbered in order, followed by the schematic and by
// imager's own list of modules.
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
	b.mu.Lock()
	b.status = spec
	b.mu.Unlock()
	return b.refresh(ctx)
}

// publishConfig publishes the active configuration, the stored one, and what follows from the active one.
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
	host := network.NewHostnameStatus(network.NamespaceName, network.HostnameID)
	*host.TypedSpec() = hostOf(active, nodeID)
	node := k8s.NewNodename(k8s.NamespaceName, k8s.NodenameID)
	node.TypedSpec().Nodename = nodenameOf(active, nodeID)
	identity := cluster.NewIdentity(cluster.NamespaceName, cluster.LocalIdentity)
	identity.TypedSpec().NodeID = nodeID
	info := cluster.NewInfo()
	info.TypedSpec().ClusterID = clusterID(active)
	if c := active.K8sClusterConfig(); c != nil {
		info.TypedSpec().ClusterName = c.ClusterName()
	}
	if k := active.K8sKubeletConfig(); k != nil {
		b.m.runs.Store(k.Image())
	}
	if err := b.store.set(ctx, append(append(b.kubernetesConfig(active), configs...), kind, host, node, identity, info, b.nodeIP())...); err != nil {
		return err
	}
	now := b.m.attach(b.med.image, active)
	if now.prefix.Addr() == b.m.addr() {
		b.m.net.Store(&now)
	}
	if err := errors.Join(b.publishNetwork(ctx), b.publishResolvers(ctx, active)); err != nil {
		return err
	}
	if err := b.renderPods(ctx); err != nil {
		return err
	}
	if err := b.publishManifests(ctx, active); err != nil {
		return err
	}
	b.kubelet.notify()
	return nil
}

// hostOf is the configured name, maybe with a domain, or Talos' default from the node's identity.
func hostOf(cfg config.Provider, nodeID string) (host network.HostnameStatusSpec) {
	var configured string
	if h := cfg.NetworkHostnameConfig(); h != nil {
		configured = h.Hostname()
	}
	host.Hostname, host.Domainname, _ = strings.Cut(cmp.Or(configured, "talos-"+strings.ReplaceAll(nodeID, "-", "")[:6]), ".")
	return host
}

// hostnameOf is the kernel's hostname: without the domain.
func hostnameOf(cfg config.Provider, nodeID string) string { return hostOf(cfg, nodeID).Hostname }

// nodenameOf is the machine's name in Kubernetes (controllers/k8s/nodename.go).
func nodenameOf(cfg config.Provider, nodeID string) string {
	host := hostOf(cfg, nodeID)
	if n := cfg.K8sNodeConfig(); n != nil && n.RegisterWithFQDN() {
		return strings.ToLower(host.FQDN())
	}
	return strings.ToLower(host.Hostname)
}

// clusterID is the discovery ID of the cluster; empty if discovery has no identity.
func clusterID(cfg config.Provider) string {
	if id := cfg.DiscoveryIdentityConfig(); id != nil {
		return id.ClusterID()
	}
	return ""
}

// announce tells the kubelet hook that the node is up, with a kubelet of that image.
func (b *boot) announce(image string) {
	b.mu.Lock()
	info := b.nodeInfo()
	info.KubeletVersion = tagOf(image)
	b.node = info.Name
	b.mu.Unlock()
	if b.m.fw.o.Kubelet != nil {
		b.m.fw.o.Kubelet.NodeUp(info)
	}
}

// nodeInfo needs b.mu held.
func (b *boot) nodeInfo() NodeInfo {
	info := NodeInfo{
		Name: nodenameOf(b.cfg, b.nodeID), UUID: b.m.hw.UUID, MachineID: machineID(b.nodeID), BootID: b.id, Address: b.m.addr(),
		ControlPlane: b.cfg.Machine().Type().IsControlPlane(), TalosVersion: b.med.image.TalosVersion,
	}
	if n := b.cfg.K8sNodeConfig(); n != nil {
		info.Labels = n.Labels()
	}
	return info
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
