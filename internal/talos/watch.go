package talos

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

const (
	// connectPause is the pause between two attempts to connect to an unreachable machine, which send nothing;
	// connectTimeout bounds one attempt.
	connectPause   = 100 * time.Millisecond
	connectTimeout = time.Second
	// retryPause is the pause between two attempts on a machine that accepts the connection and nothing more.
	retryPause = time.Second
	// followTime bounds one stream: after a power failure nothing else ends it.
	followTime = time.Minute
)

// Standings of a machine other than the stages in which a machine stays.
const (
	unreachable = "away"
	changing    = "busy" // between stages
)

// WatchMachine implements cluster.MachineReader.
func (c *Client) WatchMachine(ctx context.Context, addr netip.Addr, tell func(look bool)) error {
	last := ""
	become := func(status string) {
		// The standing changing is news only for a machine that was unreachable.
		tell(status != last && (status != changing || last == unreachable))
		last = status
	}
	for ctx.Err() == nil {
		pause := connectPause
		if !c.canConnect(ctx, addr) {
			become(unreachable)
		} else {
			if last == "" || last == unreachable {
				become(changing)
			}
			accepted, broken := c.follow(ctx, addr, false, become)
			if !accepted { // with our credentials
				accepted, broken = c.follow(ctx, addr, true, become)
			}
			switch {
			case !accepted:
				pause = retryPause
			case broken:
				become(unreachable)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return ctx.Err()
}

// canConnect reports whether the machine's API accepts a connection.
func (c *Client) canConnect(ctx context.Context, addr netip.Addr) bool {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := c.dial(ctx, "tcp", net.JoinHostPort(addr.String(), strconv.Itoa(constants.ApidPort)))
	if err != nil {
		return false
	}
	_ = conn.Close() // nothing was sent
	return true
}

// follow reports the machine's status for as long as the machine does. accepted says whether the machine accepted us,
// and broken whether the machine ended the stream.
func (c *Client) follow(ctx context.Context, addr netip.Addr, blank bool, become func(string)) (accepted, broken bool) {
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	watch := func(ctx context.Context, s session) error {
		events := make(chan state.Event)
		if err := s.COSI.Watch(ctx, runtime.NewMachineStatus().Metadata(), events); err != nil {
			return err
		}
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case e := <-events:
				if e.Type == state.Errored {
					broken = ctx.Err() == nil
					return e.Error
				}
				accepted = true
				become(statusOf(e))
			}
		}
	}
	if blank {
		_ = c.callBlank(ctx, addr, watch) // the stream ended, or never began
	} else {
		_ = c.with(ctx, addr.String(), 0, watch, c.as)
	}
	return accepted, broken
}

// statusOf returns the part of a machine's status that is worth reporting: not each step of a boot.
func statusOf(e state.Event) string {
	status, ok := e.Resource.(*runtime.MachineStatus)
	if !ok || e.Type == state.Destroyed {
		return changing
	}
	spec := status.TypedSpec()
	switch spec.Stage {
	case runtime.MachineStageBooting, runtime.MachineStageInstalling, runtime.MachineStageUpgrading:
		return changing
	case runtime.MachineStageRunning:
		if !spec.Status.Ready {
			return changing
		}
	}
	return fmt.Sprintf("%s %t", spec.Stage, spec.Status.Ready)
}
