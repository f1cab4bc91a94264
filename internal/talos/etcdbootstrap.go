package talos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

const (
	bootstrapTimeout = time.Minute // Talos stops its etcd first
	snapshotPiece    = 32 << 10
)

// EtcdService returns the state of Talos' service etcd and its last event.
func (c *Client) EtcdService(ctx context.Context, addr netip.Addr) (state, last string, err error) {
	err = c.call(ctx, addr.String(), func(ctx context.Context, s session) error {
		state, last, err = etcdService(ctx, s)
		return err
	})
	return state, last, err
}

// EtcdRecover uploads a snapshot for EtcdBootstrap to begin with. Talos accepts any
// number of uploads, and before 1.14 keeps a truncated one; when a truncated upload
// ends, it may remove a later one there (v1alpha1_server.go, EtcdRecover).
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
			wait(0) // the file's delay is not the machine's
			n, err := io.ReadFull(snapshot, piece)
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return fmt.Errorf("read the snapshot: %w", err)
			}
			wait(snapshotSilence)
			if n == 0 || stream.Send(&common.Data{Bytes: piece[:n]}) != nil {
				break // the answer says why it accepts no more
			}
		}
		if _, err := stream.CloseAndRecv(); err != nil {
			return fmt.Errorf("upload the snapshot: %w", notYet(err))
		}
		return nil
	})
}

// EtcdBootstrap makes the machine begin an etcd of its own; it returns when Talos has accepted that.
func (c *Client) EtcdBootstrap(ctx context.Context, addr netip.Addr, uuid string, content cluster.EtcdContent) error {
	return c.change(ctx, addr, uuid, bootstrapTimeout, func(ctx context.Context, s session) error {
		err := s.Bootstrap(ctx, &machineapi.BootstrapRequest{RecoverEtcd: content != cluster.EtcdEmpty, RecoverSkipHashCheck: content == cluster.EtcdCopy})
		if e, ok := errors.AsType[*answerError](answer(err)); ok && e.code == codes.AlreadyExists {
			return fault.WithHint(fault.Refusedf("%w", e), "another etcd was started there meanwhile: talosctl -n %s etcd members", addr)
		}
		return notYet(err)
	})
}

// notYet marks an answer that says that it is too early.
func notYet(err error) error {
	err = answer(err)
	if e, ok := errors.AsType[*answerError](err); ok && e.code == codes.FailedPrecondition {
		return fmt.Errorf("%w: %w", cluster.ErrNotYet, err)
	}
	return err
}
