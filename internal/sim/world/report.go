package world

import "time"

// statusRound is how often pvestatd of a host tells the cluster what its VMs do.
const statusRound = 10 * time.Second

// Report is what the cluster knows of a VM that its own host would know better.
type Report struct {
	Known   bool // its host has reported it since it was made: else there is neither a status nor a name
	Running bool
}

// Report is what the VM's host has last reported: what happened since then is missing.
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

// markNew says that a VM is not one that has always been there.
func (v *vm) markNew() { v.made = time.Now() }
