package talos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

var _ cluster.EtcdRestorer = (*Client)(nil)

const (
	bootstrapTimeout = time.Minute // Talos stops its etcd first
	snapshotPiece    = 32 << 10
)

// Endpoints are the addresses of the talosconfig's endpoints, in its order: the
// control planes, as far as it names each of them.
func (c *Client) Endpoints(ctx context.Context) ([]netip.Addr, error) {
	var out []netip.Addr
	var problems []error
	for _, e := range c.endpoints {
		addr, err := resolve(ctx, e)
		if err != nil {
			problems = append(problems, fmt.Errorf("endpoint %s of the talosconfig: %w", e, err))
			continue
		}
		out = append(out, addr)
	}
	if len(out) == 0 {
		return nil, errors.Join(problems...)
	}
	return out, nil
}

// resolve takes all forms of an endpoint that talosctl takes, as long as it is a machine's own apid.
func resolve(ctx context.Context, endpoint string) (netip.Addr, error) {
	host := strings.TrimSuffix(strings.TrimPrefix(endpoint, "["), "]")
	if h, port, err := net.SplitHostPort(endpoint); err == nil {
		if port != strconv.Itoa(constants.ApidPort) {
			return netip.Addr{}, fault.WithHint(fault.Configf("port %s is not Talos' own", port),
				"each machine is asked by itself, at port %d: name the control planes' own addresses", constants.ApidPort)
		}
		host = h
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	return addrs[0].Unmap(), nil
}

// EtcdService is what Talos says of its service etcd: its state, and the last thing that it told.
func (c *Client) EtcdService(ctx context.Context, addr netip.Addr) (state, last string, err error) {
	err = c.call(ctx, addr.String(), func(ctx context.Context, s session) error {
		state, last, err = etcdService(ctx, s)
		return err
	})
	return state, last, err
}

// EtcdRecover uploads a snapshot for EtcdBootstrap to begin with. Talos takes it
// as often as it is sent, and before 1.14 keeps as much as it got; one that was cut
// off may remove a later one there when it ends (v1alpha1_server.go, EtcdRecover).
func (c *Client) EtcdRecover(ctx context.Context, addr netip.Addr, uuid string, snapshot io.Reader) error {
	return c.callPatient(ctx, addr.String(), func(ctx context.Context, s session, wait patience) error {
		if err := checkUUID(ctx, s, uuid, "nothing was done"); err != nil {
			return err
		}
		wait(snapshotSilence)
		stream, err := s.MachineClient.EtcdRecover(ctx)
		if err != nil {
			return fmt.Errorf("upload the snapshot: %w", notYet(err))
		}
		piece := make([]byte, snapshotPiece)
		for {
			wait(0) // the file is not the machine's fault
			n, err := io.ReadFull(snapshot, piece)
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return fmt.Errorf("read the snapshot: %w", err)
			}
			wait(snapshotSilence)
			if n == 0 || stream.Send(&common.Data{Bytes: piece[:n]}) != nil {
				break // why it takes no more is in the answer
			}
		}
		if _, err := stream.CloseAndRecv(); err != nil {
			return fmt.Errorf("upload the snapshot: %w", notYet(err))
		}
		return nil
	})
}

// EtcdBootstrap makes the machine begin an etcd of its own with the snapshot that
// was uploaded; it returns when Talos has accepted that.
func (c *Client) EtcdBootstrap(ctx context.Context, addr netip.Addr, uuid string, copied bool) error {
	return c.change(ctx, addr, uuid, bootstrapTimeout, func(ctx context.Context, s session) error {
		err := s.Bootstrap(ctx, &machineapi.BootstrapRequest{RecoverEtcd: true, RecoverSkipHashCheck: copied})
		if e, ok := errors.AsType[*answerError](answer(err)); ok && e.code == codes.AlreadyExists {
			return fault.WithHint(fault.Refusedf("%w", e), "somebody else has begun an etcd there meanwhile: talosctl -n %s etcd members", addr)
		}
		return notYet(err)
	})
}

// notYet tells an answer that says that it is too early from others.
func notYet(err error) error {
	err = answer(err)
	if e, ok := errors.AsType[*answerError](err); ok && e.code == codes.FailedPrecondition {
		return fmt.Errorf("%w: %w", cluster.ErrNotYet, err)
	}
	return err
}
