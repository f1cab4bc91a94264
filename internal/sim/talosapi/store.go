package talosapi

import (
	"context"
	"fmt"
	"sync"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/cosi-project/runtime/pkg/state/registry"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/storage"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
)

// store is the resources of one boot.
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
		runtime.NamespaceName, hardware.NamespaceName, config.NamespaceName, network.NamespaceName, k8s.NamespaceName, k8s.ControlPlaneNamespaceName, cluster.NamespaceName, etcd.NamespaceName, storage.NamespaceName,
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
		&config.MachineConfig{}, &config.MachineType{},
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

// set creates or updates resources; it skips unchanged ones, so that watchers see no event.
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
