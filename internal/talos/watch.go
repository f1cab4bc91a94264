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
	// knockPause is between two attempts to connect to a machine that is away, which
	// ask nobody anything, and knockTime what one of them may take.
	knockPause = 100 * time.Millisecond
	knockTime  = time.Second
	// strangePause is before a machine is tried again that lets us connect and no more.
	strangePause = time.Second
	// followTime bounds one stream: that of a machine whose power went ends with nothing else.
	followTime = time.Minute
)

// How a machine stands, beside the stages that it stays in.
const (
	away = "away"
	busy = "busy" // on its way
)

// WatchMachine implements cluster.MachineReader.
func (c *Client) WatchMachine(ctx context.Context, addr netip.Addr, tell func(look bool)) error {
	last := ""
	become := func(standing string) {
		// That it is on its way is news only of a machine that was away.
		tell(standing != last && (standing != busy || last == away))
		last = standing
	}
	for ctx.Err() == nil {
		pause := knockPause
		if !c.knock(ctx, addr) {
			become(away)
		} else {
			if last == "" || last == away {
				become(busy)
			}
			let, broken := c.follow(ctx, addr, false, become)
			if !let { // with our credentials
				let, broken = c.follow(ctx, addr, true, become)
			}
			switch {
			case !let:
				pause = strangePause
			case broken:
				become(away)
			}
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
	return ctx.Err()
}

// knock says whether the machine's API can be connected to.
func (c *Client) knock(ctx context.Context, addr netip.Addr) bool {
	ctx, cancel := context.WithTimeout(ctx, knockTime)
	defer cancel()
	conn, err := c.dial(ctx, "tcp", net.JoinHostPort(addr.String(), strconv.Itoa(constants.ApidPort)))
	if err != nil {
		return false
	}
	_ = conn.Close() // nothing was said
	return true
}

// follow says how the machine stands for as long as it says so. let is whether it
// let us in, and broken whether it was the machine that ended it.
func (c *Client) follow(ctx context.Context, addr netip.Addr, blank bool, become func(string)) (let, broken bool) {
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
				let = true
				become(standing(e))
			}
		}
	}
	if blank {
		_ = c.callBlank(ctx, addr, watch) // it went, or was none
	} else {
		_ = c.callWithin(ctx, addr.String(), 0, watch)
	}
	return let, broken
}

// standing is what of a machine's status is worth a look: not each step of a boot.
func standing(e state.Event) string {
	status, ok := e.Resource.(*runtime.MachineStatus)
	if !ok || e.Type == state.Destroyed {
		return busy
	}
	spec := status.TypedSpec()
	switch spec.Stage {
	case runtime.MachineStageBooting, runtime.MachineStageInstalling, runtime.MachineStageUpgrading:
		return busy
	case runtime.MachineStageRunning:
		if !spec.Status.Ready {
			return busy
		}
	}
	return fmt.Sprintf("%s %t", spec.Stage, spec.Status.Ready)
}
