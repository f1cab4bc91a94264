package world

import "time"

// statusRound is how often a host's pvestatd reports its VMs to the cluster.
const statusRound = 10 * time.Second

// Report is the cluster's knowledge of a VM, which may lag behind its host's.
type Report struct {
	Known   bool // its host has reported it since it was made: else status and name are unknown
	Running bool
}

// Report is the latest report of the VM's host.
func (w *World) Report(id int) Report {
	w.mu.Look()
	defer w.mu.Unlock()
	v, ok := w.vms[id]
	if !ok {
		return Report{}
	}
	last := time.Now().Truncate(w.scaled(statusRound))
	before := func(t time.Time) bool { return !t.After(last) }
	known := v.made.Before(last)
	switch {
	case v.proc != nil:
		return Report{Known: known, Running: before(v.proc.started)}
	case before(v.stopped):
		return Report{Known: known}
	}
	return Report{Known: known, Running: before(v.ranSince)}
}

// markNew says that a VM was just made.
func (v *vm) markNew() { v.made = time.Now() }
