package talos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// etcdServing is the state of the service etcd while its server runs.
const etcdServing = "Running"

// etcdError is a failed call about etcd on a machine that answers otherwise.
type etcdError struct{ error }

func (e *etcdError) Unwrap() error { return e.error }

// askEtcd is ask for what the machine's own etcd answers.
func askEtcd[T any](ctx context.Context, c *Client, addr netip.Addr, read func(context.Context, session) (T, error)) (found T, err error) {
	err = c.callWithin(ctx, addr.String(), etcdReadTimeout, func(ctx context.Context, s session) (err error) {
		if err := requireEtcdRuns(ctx, s, addr.String()); err != nil {
			return err
		}
		if found, err = read(ctx, s); err != nil {
			return &etcdError{err}
		}
		return nil
	})
	return found, err
}

// requireEtcdRuns refuses calls about an etcd that does not run, or not yet: they
// would hang until the caller gives up, while the list of services answers at once.
func requireEtcdRuns(ctx context.Context, s session, addr string) error {
	state, last, err := etcdService(ctx, s)
	if e, ok := errors.AsType[*answerError](err); ok && e.code == codes.PermissionDenied {
		return nil // the role os:etcd:backup may only read snapshots
	}
	switch {
	case errors.Is(err, errNoEtcd):
		return nil // the call itself reports that it is not a control plane
	case err != nil:
		return err
	case state == etcdServing:
		return nil
	}
	err = fmt.Errorf("etcd does not run on it: the service is %s", state)
	if last != "" {
		err = fmt.Errorf("%w (%s)", err, last)
	}
	return fault.WithHint(fault.EtcdUnhealthy.Of(err), "talosctl -n %s service etcd and talosctl -n %s logs etcd say why; a control plane that has left etcd joins again when it reboots, "+
		"and the first one of a new cluster begins with talosctl bootstrap", addr, addr)
}

// errNoEtcd says that a machine has no such service.
var errNoEtcd = errors.New("list the services: there is no etcd")

// etcdService returns the state of the service and its last event.
func etcdService(ctx context.Context, s session) (state, last string, err error) {
	answers, err := s.ServiceList(ctx)
	if err != nil {
		return "", "", fmt.Errorf("list the services: %w", answer(err))
	}
	one, err := single(answers.GetMessages())
	if err != nil {
		return "", "", fmt.Errorf("list the services: %w", err)
	}
	i := slices.IndexFunc(one.GetServices(), func(svc *machineapi.ServiceInfo) bool { return svc.GetId() == "etcd" })
	if i < 0 {
		return "", "", errNoEtcd
	}
	svc := one.GetServices()[i]
	if events := svc.GetEvents().GetEvents(); len(events) > 0 {
		last = foreign.Line(events[len(events)-1].GetMsg())
	}
	return foreign.Line(svc.GetState()), last, nil
}
