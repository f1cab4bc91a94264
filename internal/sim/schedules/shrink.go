package schedules

import (
	"slices"
	"time"
)

// Smaller lists slightly smaller cases, the largest reductions first.
func (c Case) Smaller() (list []Case) {
	add := func(change func(c *Case)) {
		s := c.clone()
		change(&s)
		s.Faults = slices.DeleteFunc(s.Faults, func(f Fault) bool { return f.Where >= s.nodes() })
		if s.String() != c.String() && s.check() == nil {
			list = append(list, s)
		}
	}
	if n := len(c.Faults); n > 2 {
		add(func(c *Case) { c.Faults = c.Faults[:n/2] })
		add(func(c *Case) { c.Faults = c.Faults[n/2:] })
	}
	for i := range c.Faults {
		add(func(c *Case) { c.Faults = slices.Delete(c.Faults, i, i+1) })
	}
	if len(c.Changes) > 1 {
		add(func(c *Case) { c.Changes = c.Changes[:1] })
	}
	add(func(c *Case) { c.Workers /= 2 })
	add(func(c *Case) { c.Workers-- })
	add(func(c *Case) { c.ControlPlanes = 1 })
	add(func(c *Case) { c.ControlPlanes = min(3, c.ControlPlanes) })
	add(func(c *Case) { c.Hosts = 1 })
	add(func(c *Case) { c.Hosts = max(1, c.Hosts-1) })
	for _, change := range []func(c *Case){
		func(c *Case) { c.Bus = nil }, func(c *Case) { c.Data = nil }, func(c *Case) { c.Holder = false }, func(c *Case) { c.Storage, c.Shared = "", false },
		func(c *Case) { c.EtcdOnData = false }, func(c *Case) { c.Strategy = c.Strategy[:min(1, len(c.Strategy))] }, func(c *Case) { c.Strategy = nil },
		func(c *Case) { c.Talos = "" }, func(c *Case) { c.Out, c.PerHost = "", 0 }, func(c *Case) { c.Keep = 0 },
		func(c *Case) { c.BootFailure, c.DrainTimeout = "", "" }, func(c *Case) { c.WorkersFirst, c.NoCanary = false, false },
		func(c *Case) { c.Changes[0] = changePatch }, func(c *Case) { c.Boot = "" }, func(c *Case) { c.Surge = 0 }, func(c *Case) { c.Surge = min(1, c.Surge) },
	} {
		add(change)
	}
	return list
}

func (c Case) clone() Case {
	c.Bus, c.Data, c.Strategy = slices.Clone(c.Bus), slices.Clone(c.Data), slices.Clone(c.Strategy)
	c.Changes, c.Faults = slices.Clone(c.Changes), slices.Clone(c.Faults)
	return c
}

// Shrink looks for the smallest case that still fails, within that many tries and that
// time.
func Shrink(c Case, tries int, until time.Time, fails func(Case) bool) Case {
	for again := true; again; {
		again = false
		list := c.Smaller()
		for i := 0; i < len(list); i++ {
			if tries--; tries < 0 || time.Now().After(until) {
				return c
			}
			if !fails(list[i]) {
				continue
			}
			c, again = list[i], true
			list = c.Smaller() // the same position: the reductions before it did not fail
			i--
		}
	}
	return c
}
