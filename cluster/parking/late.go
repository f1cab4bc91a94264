package parking

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// LateOne describes a request. A record takes over the requests of the record before it.
func (p Parking) LateOne(what string) string {
	words := map[string]string{cluster.SentRemoveHA: "removal from Proxmox HA", cluster.SentAddHA: "return to Proxmox HA", cluster.SentFirewall: "change of the firewall"}
	if words[what] == "" {
		words[what] = what
	}
	return fmt.Sprintf("Proxmox has not yet answered the %s of VM %d that run %s or an earlier one sent, and may still carry it out", words[what], p.Record.VMID, p.Record.Run)
}

// Unanswered says of each unanswered request of a record what that may still do, and how long recast waits for it.
func (p Parking) Unanswered() []string {
	var out []string
	for _, what := range slices.Sorted(maps.Keys(p.Record.Sent)) {
		within := time.Duration(p.Record.Sent[what]) * time.Second
		out = append(out, fmt.Sprintf("%s: %s, %s", p.Record.Node, p.LateOne(what), p.Record.guards(what, within)))
	}
	return out
}

// guards says which work waits for a request.
func (r Record) guards(what string, within time.Duration) string {
	switch {
	case slices.Contains(cluster.TakesDown, what) && !r.ControlPlane:
		return "which would leave one node more away than roll.maxUnavailable allows; nothing waits for it"
	case slices.Contains(cluster.TakesDown, what):
		return fmt.Sprintf("so recast waits up to %s before it takes another control plane out", within)
	case what == cluster.SentFirewall:
		return fmt.Sprintf("so recast waits up to %s before it writes that firewall again", within)
	case what == cluster.SentRemoveHA:
		return fmt.Sprintf("so recast waits up to %s before it puts the VM back under Proxmox HA", within)
	}
	return fmt.Sprintf("so recast waits up to %s before it moves disks of that VM", within)
}

// Sent holds the requests without a digest that were sent and are unanswered: Proxmox may carry them out late,
// whichever process sent them, on whatever VM then has the VMID. The value is the number of seconds in which that
// can happen, from when a process first sees the request here. A request is recorded before it is sent. Only its
// answer, or the end of that time, removes it: the VM may be off, or run again, for another reason, and the late
// request would still hit it. docs/notes/proxmox.md says what each request could do if it came late.
type Sent map[string]int

// With returns s with one more request.
func (s Sent) With(what string, within time.Duration) Sent {
	out := Sent{}
	maps.Copy(out, s)
	out[what] = max(out[what], int((within+time.Second-1)/time.Second))
	return out
}

// Without returns s without a request; nil if none is left.
func (s Sent) Without(what string) Sent {
	out := maps.Clone(s)
	delete(out, what)
	if len(out) == 0 {
		return nil
	}
	return out
}
