package talos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/go-kubernetes/kubernetes/upgrade"

	"github.com/recast-sh/recast/internal/fault"
)

// RemovedFlags lists flags, feature gates and admission plugins that the
// machine's static pods and kubelet are given and the next version has no more,
// by Sidero's own table: with one of them a component would not start.
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
		if !removed {
			return answer(err)
		}
		out = removedItems(found, to)
		return nil
	})
	return out, err
}

func removedItems(e upgrade.ComponentRemovedItemsError, to string) (out []string) {
	for _, kind := range []struct {
		what, remedy string
		items        []upgrade.ComponentItem
	}{
		{"flag", "take it out of extraArgs", e.CLIFlags},
		{"feature gate", "take it out of feature-gates", e.FeatureGates},
		{"admission plugin", "take it out of enable-admission-plugins", e.AdmissionFlags},
	} {
		for _, i := range kind.items {
			out = append(out, fmt.Sprintf("%s is given the %s %s, which Kubernetes %s has no more: %s in the machine configuration", i.Component, kind.what, i.Value, to, kind.remedy))
		}
	}
	slices.Sort(out)
	return out
}
