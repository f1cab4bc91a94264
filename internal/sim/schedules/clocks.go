package schedules

import (
	"time"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// aDay is the offset of wrong clocks.
const aDay = 24 * time.Hour

// clockKinds are clocks that jump by a day and are corrected later: those of Proxmox
// hosts, which date tasks, files and answers, and those of machines, which verify and date
// certificates. recast's own clock is right.
func clockKinds() []kind {
	host := func(name string, off time.Duration) kind {
		return kind{name: name, weight: 2, onNode: true, lasts: true, act: func(p *play, s *struck) (func(), error) {
			host := p.hostOf(s.Where)
			p.lab.World.SetClock(host, off)
			return func() { p.lab.World.SetClock(host, 0) }, nil
		}}
	}
	machine := func(name string, off time.Duration) kind {
		return kind{name: name, weight: 1, onNode: true, lasts: true, act: func(p *play, s *struck) (func(), error) {
			node := p.lab.Nodes[s.Where].Name
			return func() { _ = p.lab.Trouble(node, talosapi.Trouble{}) }, p.lab.Trouble(node, talosapi.Trouble{Clock: off}) // it was just found
		}}
	}
	return []kind{
		host("clock-ahead", aDay), host("clock-behind", -aDay),
		machine("machine-ahead", aDay), machine("machine-behind", -aDay),
	}
}
