package simtest

import (
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/sim"
)

// TestDriftAsksLittle counts the requests of a drift, and how many of them depend on an
// earlier answer: in this lab only the network takes time.
func TestDriftAsksLittle(t *testing.T) {
	const latency = 20 * time.Millisecond
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 3, Hosts: 2, Latency: latency}, func(t *testing.T, lab *Lab) {
		before := lab.State().Requests
		began := time.Now()
		requireDrift(t, lab)
		waits := int(time.Since(began) / latency)
		after := lab.State().Requests
		nodes := len(lab.Nodes)
		for proto, most := range map[string]int{
			"proxmox":    nodes + 4,    // each VM; the lists of VMs, hosts and storages, and the quorum
			"talos":      13*nodes + 1, // each machine; the members
			"kubernetes": 2,            // the Nodes, and which storage systems there are
		} {
			if asked := after[proto] - before[proto]; asked > most {
				t.Errorf("%s was asked %d times about %d nodes, more than %d", proto, asked, nodes, most)
			}
		}
		const most = 10 // including handshakes
		if waits > most {
			t.Errorf("it waited for %d answers one after the other, more than %d", waits, most)
		}
	})
}
