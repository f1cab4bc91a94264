package talos

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"

	"github.com/recast-sh/recast/cluster"
)

// Kubernetes reads what a configured machine's Talos reports of its Kubernetes. The
// images are those that Talos derived from the configuration, which may name none.
func (c *Client) Kubernetes(ctx context.Context, addr netip.Addr) (cluster.MachineKubernetes, error) {
	return ask(ctx, c, addr, readKubernetes)
}

// KubernetesImages implements cluster.KubernetesReader.
func (c *Client) KubernetesImages(ctx context.Context, addr netip.Addr) (cluster.MachineKubernetes, error) {
	return ask(ctx, c, addr, func(ctx context.Context, s session) (k cluster.MachineKubernetes, err error) {
		k.Revisions = map[cluster.Component]uint64{}
		if k.UUID, err = readUUID(ctx, s); err == nil {
			err = readEach(ctx, s, &k, readStaticPods, readProxy, readKubelet)
		}
		return k, err
	})
}

func readKubernetes(ctx context.Context, s session) (cluster.MachineKubernetes, error) {
	var m cluster.Machine
	for _, read := range []func(context.Context, session, *cluster.Machine) error{readVersion, readHardware, readBootID} {
		if err := read(ctx, s, &m); err != nil {
			return cluster.MachineKubernetes{}, err
		}
	}
	k := cluster.MachineKubernetes{UUID: m.UUID, TalosVersion: m.TalosVersion, BootID: m.BootID, Revisions: map[cluster.Component]uint64{}}
	if err := readEach(ctx, s, &k, readStaticPods, readProxy, readKubelet, readKubeletHealth, readPending); err != nil {
		return cluster.MachineKubernetes{}, err
	}
	return k, nil
}

func readEach(ctx context.Context, s session, k *cluster.MachineKubernetes, reads ...func(context.Context, session, *cluster.MachineKubernetes) error) error {
	for _, read := range reads {
		if err := read(ctx, s, k); err != nil {
			return err
		}
	}
	return nil
}

func readStaticPods(ctx context.Context, s session, k *cluster.MachineKubernetes) error {
	apiServer, found, err := podConfig[*k8s.APIServerConfig](ctx, s, k8s.APIServerConfigType, k8s.APIServerID)
	if err != nil {
		return err
	}
	if found {
		k.APIPort = apiServer.TypedSpec().LocalPort
		k.Images.APIServer, k.Revisions[cluster.APIServer] = apiServer.TypedSpec().Image, apiServer.Metadata().Version().Value()
	}
	manager, found, err := podConfig[*k8s.ControllerManagerConfig](ctx, s, k8s.ControllerManagerConfigType, k8s.ControllerManagerID)
	if err != nil {
		return err
	}
	if found && manager.TypedSpec().Enabled {
		k.Images.ControllerManager, k.Revisions[cluster.ControllerManager] = manager.TypedSpec().Image, manager.Metadata().Version().Value()
	}
	scheduler, found, err := podConfig[*k8s.SchedulerConfig](ctx, s, k8s.SchedulerConfigType, k8s.SchedulerID)
	if err != nil {
		return err
	}
	if found && scheduler.TypedSpec().Enabled {
		k.Images.Scheduler, k.Revisions[cluster.Scheduler] = scheduler.TypedSpec().Image, scheduler.Metadata().Version().Value()
	}
	return nil
}

// podConfig reads the configuration of a static pod, whose revision the pod carries.
// Since 1.14 its ID has a prefix (watchControlPlaneConfig in
// pkg/cluster/kubernetes/talos_managed.go).
func podConfig[T resource.Resource](ctx context.Context, s session, kind resource.Type, id resource.ID) (r T, found bool, err error) {
	all, err := list[T](ctx, s, resource.NewMetadata(k8s.ControlPlaneNamespaceName, kind, "", resource.VersionUndefined))
	for _, id := range []resource.ID{k8s.FinalPrefix + id, id} {
		if i := slices.IndexFunc(all, func(r T) bool { return r.Metadata().ID() == id }); i >= 0 {
			return all[i], true, err
		}
	}
	return r, false, err
}

func readProxy(ctx context.Context, s session, k *cluster.MachineKubernetes) error {
	manifests, found, err := get[*k8s.BootstrapManifestsConfig](ctx, s, k8s.NewBootstrapManifestsConfig().Metadata())
	if found && manifests.TypedSpec().ProxyEnabled {
		k.Images.KubeProxy = manifests.TypedSpec().ProxyImage
	}
	return err
}

func readKubelet(ctx context.Context, s session, k *cluster.MachineKubernetes) error {
	spec, found, err := get[*k8s.KubeletSpec](ctx, s, k8s.NewKubeletSpec(k8s.NamespaceName, k8s.KubeletID).Metadata())
	if found {
		k.Images.Kubelet = spec.TypedSpec().Image
	}
	return err
}

func readKubeletHealth(ctx context.Context, s session, k *cluster.MachineKubernetes) error {
	service, found, err := get[*v1alpha1.Service](ctx, s, v1alpha1.NewService(k8s.KubeletID).Metadata())
	if err != nil {
		return fmt.Errorf("its kubelet: %w", err)
	}
	k.KubeletHealthy = found && service.TypedSpec().Running && service.TypedSpec().Healthy
	return nil
}
