package talos

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/siderolabs/go-kubernetes/kubernetes/upgrade"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// Kubernetes reads what the Talos of a configured machine reports about its Kubernetes. The images are those that
// Talos derived from the configuration, which may name none.
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
	if err := readEach(ctx, s, &m, readVersion, readHardware, readBootID); err != nil {
		return cluster.MachineKubernetes{}, err
	}
	k := cluster.MachineKubernetes{UUID: m.UUID, TalosVersion: m.TalosVersion, BootID: m.BootID, Revisions: map[cluster.Component]uint64{}}
	if err := readEach(ctx, s, &k, readStaticPods, readProxy, readKubelet, readKubeletHealth, readPending); err != nil {
		return cluster.MachineKubernetes{}, err
	}
	return k, nil
}

// readEach runs reads that fill in parts of the same value, one after the other.
func readEach[T any](ctx context.Context, s session, into *T, reads ...func(context.Context, session, *T) error) error {
	for _, read := range reads {
		if err := read(ctx, s, into); err != nil {
			return err
		}
	}
	return nil
}

func readStaticPods(ctx context.Context, s session, k *cluster.MachineKubernetes) error {
	apiServer, found, err := podConfig[*k8s.APIServerConfig](ctx, s, k8s.APIServerConfigType, k8s.APIServerID)
	if found {
		k.APIPort = apiServer.TypedSpec().LocalPort
		k.Images.APIServer, k.Revisions[cluster.APIServer] = apiServer.TypedSpec().Image, apiServer.Metadata().Version().Value()
	}
	manager, found, errManager := podConfig[*k8s.ControllerManagerConfig](ctx, s, k8s.ControllerManagerConfigType, k8s.ControllerManagerID)
	if found && manager.TypedSpec().Enabled {
		k.Images.ControllerManager, k.Revisions[cluster.ControllerManager] = manager.TypedSpec().Image, manager.Metadata().Version().Value()
	}
	scheduler, found, errScheduler := podConfig[*k8s.SchedulerConfig](ctx, s, k8s.SchedulerConfigType, k8s.SchedulerID)
	if found && scheduler.TypedSpec().Enabled {
		k.Images.Scheduler, k.Revisions[cluster.Scheduler] = scheduler.TypedSpec().Image, scheduler.Metadata().Version().Value()
	}
	return cmp.Or(err, errManager, errScheduler)
}

// podConfig reads the configuration of a static pod; the pod carries the revision of that configuration. Since 1.14
// its ID has a prefix (watchControlPlaneConfig in pkg/cluster/kubernetes/talos_managed.go).
func podConfig[T resource.Resource](ctx context.Context, s session, kind resource.Type, id resource.ID) (r T, found bool, err error) {
	all, err := list[T](ctx, s, resource.NewMetadata(k8s.ControlPlaneNamespaceName, kind, "", resource.VersionUndefined))
	if r, found = byID(all, k8s.FinalPrefix+id); !found {
		r, found = byID(all, id)
	}
	return r, found, err
}

func readProxy(ctx context.Context, s session, k *cluster.MachineKubernetes) error {
	return getting(ctx, s, k8s.NewBootstrapManifestsConfig().Metadata(), func(manifests *k8s.BootstrapManifestsConfig) {
		if manifests.TypedSpec().ProxyEnabled {
			k.Images.KubeProxy = manifests.TypedSpec().ProxyImage
		}
	})()
}

func readKubelet(ctx context.Context, s session, k *cluster.MachineKubernetes) error {
	return getting(ctx, s, k8s.NewKubeletSpec(k8s.NamespaceName, k8s.KubeletID).Metadata(), func(spec *k8s.KubeletSpec) {
		k.Images.Kubelet = spec.TypedSpec().Image
	})()
}

func readKubeletHealth(ctx context.Context, s session, k *cluster.MachineKubernetes) error {
	service, found, err := get[*v1alpha1.Service](ctx, s, v1alpha1.NewService(k8s.KubeletID).Metadata())
	if err != nil {
		return fmt.Errorf("its kubelet: %w", err)
	}
	k.KubeletHealthy = found && service.TypedSpec().Running && service.TypedSpec().Healthy
	return nil
}

// readPending compares the active configuration with the stored one. A configuration that was tried right after a
// boot can't be detected: see readConfigs.
func readPending(ctx context.Context, s session, k *cluster.MachineKubernetes) error {
	c, err := readConfigs(ctx, s)
	k.Pending = err == nil && !sameConfig(c.Active, c.Stored)
	return err
}

// sameConfig reports whether two configurations have the same content, in whatever form they are written. Unreadable
// configurations must have the same bytes.
func sameConfig(a, b cluster.Secret) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, errX := parseDocuments(a)
	y, errY := parseDocuments(b)
	return errX == nil && errY == nil && reflect.DeepEqual(contents(x), contents(y))
}

// contents returns the documents that are not empty, as decoded.
func contents(docs []*document) (out []any) {
	for _, d := range docs {
		if d.node != nil {
			out = append(out, d.orig)
		}
	}
	return out
}

// RemovedFlags lists flags, feature gates and admission plugins of the machine's static pods and kubelet that the next
// version removes, by Sidero's own table: with one of them a component would not start.
func (c *Client) RemovedFlags(ctx context.Context, addr netip.Addr, controlPlane bool, from, to string) (out []string, err error) {
	path, err := upgrade.NewPath(from, to)
	if err != nil {
		return nil, fault.As(fault.Refused, err)
	}
	if !path.IsSupported() {
		return nil, fault.WithHint(fault.Refusedf("this recast does not know what Kubernetes %s has removed", to), "use a newer recast")
	}
	err = c.call(ctx, addr.String(), func(ctx context.Context, s session) error {
		found, err := removedBy(ctx, path, s.COSI, addr.String(), controlPlane)
		if err != nil {
			return answer(err)
		}
		gates, err := removedKubeletGates(ctx, s, path)
		if err != nil {
			return err
		}
		found.FeatureGates = append(found.FeatureGates, gates...)
		out = removedItems(found, to)
		return nil
	})
	return out, err
}

// removedKubeletGates returns the kubelet's feature gates that the next version removes. Sidero's table has one list
// for all components, but checks only static pods (go-kubernetes upgrade/checks.go, Run). removedKubeletGates
// therefore gives it a pod with the kubelet's gates.
func removedKubeletGates(ctx context.Context, s session, path *upgrade.Path) ([]upgrade.ComponentItem, error) {
	spec, found, err := get[*k8s.KubeletSpec](ctx, s, k8s.NewKubeletSpec(k8s.NamespaceName, k8s.KubeletID).Metadata())
	if err != nil || !found {
		return nil, err
	}
	flag := "--feature-gates=" + strings.Join(kubeletGates(spec.TypedSpec()), ",")
	pod := k8s.NewStaticPod(k8s.NamespaceName, k8s.SchedulerID)
	pod.TypedSpec().Pod = map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"command": []string{flag}}}}}
	shown := state.WrapCore(namespaced.NewState(inmem.Build))
	if err := shown.Create(ctx, pod); err != nil {
		return nil, err
	}
	removed, err := removedBy(ctx, path, shown, "it", true)
	for i := range removed.FeatureGates {
		removed.FeatureGates[i].Component = k8s.KubeletID
	}
	return removed.FeatureGates, err
}

// removedBy returns the items of one machine's resources that an upgrade of Kubernetes removes.
func removedBy(
	ctx context.Context, path *upgrade.Path, st state.State, node string, controlPlane bool,
) (upgrade.ComponentRemovedItemsError, error) {
	here := func(context.Context, string) (state.State, error) { return st, nil }
	planes, workers := []string{node}, []string(nil)
	if !controlPlane {
		planes, workers = workers, planes
	}
	checks, err := upgrade.NewChecksWithStateProvider(path, here, nil, planes, workers, func(string, ...any) {})
	if err == nil {
		err = checks.Run(ctx)
	}
	found, removed := errors.AsType[upgrade.ComponentRemovedItemsError](err)
	if removed {
		err = nil
	}
	return found, err
}

// kubeletGates returns the feature gates in a kubelet's arguments and configuration.
func kubeletGates(spec *k8s.KubeletSpecSpec) (gates []string) {
	for _, arg := range spec.Args {
		if list, ok := strings.CutPrefix(arg, "--feature-gates="); ok {
			gates = append(gates, strings.Split(list, ",")...)
		}
	}
	if configured, ok := spec.Config["featureGates"].(map[string]any); ok {
		gates = slices.AppendSeq(gates, maps.Keys(configured))
	}
	return gates
}

func removedItems(e upgrade.ComponentRemovedItemsError, to string) (out []string) {
	for _, kind := range []struct {
		what, remedy string
		items        []upgrade.ComponentItem
	}{
		{"flag", "take it out of extraArgs", e.CLIFlags},
		{"feature gate", "take it out of feature-gates (featureGates)", e.FeatureGates},
		{"admission plugin", "take it out of enable-admission-plugins", e.AdmissionFlags},
	} {
		for _, i := range kind.items {
			out = append(out, fmt.Sprintf("%s is given the %s %s, which Kubernetes %s no longer has: %s in the machine configuration", i.Component, kind.what, i.Value, to, kind.remedy))
		}
	}
	slices.Sort(out)
	return out
}

// PullImage makes the machine fetch a component's image to the namespace that runs the component: Talos runs the
// kubelet in a separate namespace, the kubelet runs the rest (prePullImages in
// pkg/cluster/kubernetes/talos_managed.go).
func (c *Client) PullImage(ctx context.Context, addr netip.Addr, uuid string, part cluster.Component, image string, say func(string)) error {
	namespace := common.ContainerdNamespace_NS_CRI
	if part == cluster.Kubelet {
		namespace = common.ContainerdNamespace_NS_SYSTEM
	}
	return c.callPatient(ctx, addr.String(), func(ctx context.Context, s session, wait patience) error {
		if err := checkUUID(ctx, s, uuid, "nothing was pulled"); err != nil {
			return err
		}
		silence, err := lifecycleAPI(ctx, s)
		if err != nil {
			return err
		}
		if silence == 0 {
			wait(patientPullSilence)
			return oldPull(ctx, s, namespace, image)
		}
		return pull(ctx, s, &common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: namespace}, image, silence, wait, say)
	})
}

// oldPull pulls an image with the only API before 1.13, which sends a single answer.
func oldPull(ctx context.Context, s session, namespace common.ContainerdNamespace, image string) error {
	//lint:ignore SA1019 there is no other before 1.13
	_, err := s.MachineClient.ImagePull(ctx, &machineapi.ImagePullRequest{Namespace: namespace, Reference: image})
	if err != nil {
		return fmt.Errorf("pull %s: %w", image, answer(err))
	}
	return nil
}
