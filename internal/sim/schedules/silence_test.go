package schedules

import (
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/simtest"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// TestAMachineAsksWhileItIsMuted: a machine's callback takes p.mu, which must be free
// while Silence waits for the machine.
func TestAMachineAsksWhileItIsMuted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &play{lab: simtest.NewDirect(t, sim.Options{ControlPlanes: 1, Workers: sim.None}), muted: map[int]bool{}}
		node := p.lab.Nodes[0]
		asks, answer := make(chan bool, 1), make(chan bool)
		p.lab.Silence(func(talosapi.Request) bool {
			select {
			case asks <- true:
				<-answer
			default:
			}
			return false
		})
		go func() { _, _ = p.lab.Lab.Client().Door(node.Addr.String() + ":50000") }() // it asks whether to answer
		<-asks
		go p.mute(node.VMID, true)
		muted := func() bool {
			if !p.mu.TryLock() {
				return false
			}
			defer p.mu.Unlock()
			return p.muted[node.VMID]
		}
		for tries := 0; !muted(); tries++ {
			if runtime.Gosched(); tries > 100_000 {
				t.Error("the play is locked while it waits for the machine")
				break
			}
		}
		close(answer)
		synctest.Wait()
	})
}
