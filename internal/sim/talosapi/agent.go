package talosapi

import (
	"slices"
	"strconv"
	"sync"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/world"
)

// agentExtension contains the QEMU guest agent. Its service waits only for machined and
// its device, so it also runs in maintenance mode
// (guest-agents/qemu-guest-agent/qemu-guest-agent.yaml of siderolabs/extensions).
const agentExtension = "qemu-guest-agent"

// systems are the running boots, by VMID.
type systems struct {
	mu sync.Mutex
	up map[int]*boot
}

func (s *systems) begin(b *boot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up[b.m.hw.VMID] = b
}

func (s *systems) end(b *boot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up[b.m.hw.VMID] == b {
		delete(s.up, b.m.hw.VMID)
	}
}

// Agent is the QEMU guest agent of a machine: it answers if the running system has it.
func (fw *Firmware) Agent(vmid int) ([]world.Interface, bool) {
	fw.systems.mu.Lock()
	defer fw.systems.mu.Unlock()
	b := fw.systems.up[vmid]
	if b == nil || !slices.ContainsFunc(b.med.image.Extensions, func(e artefact.Extension) bool { return e.Name == agentExtension }) {
		return nil, false
	}
	list := []world.Interface{{Name: "lo", MAC: "00:00:00:00:00:00", Addresses: []string{"127.0.0.1/8"}}}
	for i, mac := range b.m.hw.MACs {
		card := world.Interface{Name: "eth" + strconv.Itoa(i), MAC: mac}
		if at := b.m.attached(); card.Name == at.link {
			card.Addresses = []string{at.prefix.String()}
		}
		list = append(list, card)
	}
	if at := b.m.attached(); at.kind != "" && len(list) > 1 {
		list = append(list, world.Interface{Name: at.link, MAC: list[1].MAC, Addresses: []string{at.prefix.String()}})
	}
	return list, true
}
