package talos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/siderolabs/go-kubernetes/kubernetes/upgrade"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"

	"github.com/recast-sh/recast/internal/fault"
)

// RemovedFlags lists flags, feature gates and admission plugins of the machine's
// static pods and kubelet that the next version removes, by Sidero's own table: with
// one of them a component would not start.
func (c *Client) RemovedFlags(ctx context.Context, addr netip.Addr, controlPlane bool, from, to string) (out []string, err error) {
	path, err := upgrade.NewPath(from, to)
	if err != nil {
		return nil, fault.As(fault.Refused, err)
	}
	if !path.IsSupported() {
		return nil, fault.WithHint(fault.Refusedf("this recast does not know what Kubernetes %s has removed", to), "use a newer recast")
	}
	err = c.call(ctx, addr.String(), func(ctx context.Context, s session) error {
		here := func(context.Context, string) (state.State, error) { return s.COSI, nil }
		var planes, workers []string
		if node := []string{addr.String()}; controlPlane {
			planes = node
		} else {
			workers = node
		}
		checks, err := upgrade.NewChecksWithStateProvider(path, here, nil, planes, workers, func(string, ...any) {})
		if err != nil {
			return err
		}
		err = checks.Run(ctx)
		found, removed := errors.AsType[upgrade.ComponentRemovedItemsError](err)
		if err != nil && !removed {
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

// removedKubeletGates returns the kubelet's feature gates that the next version
// removes. Sidero's table has one list for all components, but checks only static
// pods (go-kubernetes upgrade/checks.go, Run): it gets a pod with the kubelet's
// gates.
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
	here := func(context.Context, string) (state.State, error) { return shown, nil }
	checks, err := upgrade.NewChecksWithStateProvider(path, here, nil, []string{"it"}, nil, func(string, ...any) {})
	if err != nil {
		return nil, err
	}
	err = checks.Run(ctx)
	removed, is := errors.AsType[upgrade.ComponentRemovedItemsError](err)
	if err != nil && !is {
		return nil, err
	}
	for i := range removed.FeatureGates {
		removed.FeatureGates[i].Component = k8s.KubeletID
	}
	return removed.FeatureGates, nil
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
