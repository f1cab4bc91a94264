package parking

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// LateOne names a request.
func (p Parking) LateOne(what string) string {
	words := map[string]string{cluster.SentRemoveHA: "removal from Proxmox HA", cluster.SentAddHA: "return to Proxmox HA", cluster.SentFirewall: "change of the firewall"}
	if words[what] == "" {
		words[what] = what
	}
	return fmt.Sprintf("Proxmox has not yet answered the %s of VM %d that run %s sent, and may still carry it out", words[what], p.Record.VMID, p.Record.Run)
}

// Unanswered says of each request of a record that has no answer what may come
// of it, and for how long that is waited for.
func (p Parking) Unanswered() []string {
	var out []string
	for _, what := range slices.Sorted(maps.Keys(p.Record.Sent)) {
		within := time.Duration(p.Record.Sent[what]) * time.Second
		out = append(out, fmt.Sprintf("%s: %s, %s", p.Record.Node, p.LateOne(what), p.Record.guards(what, within)))
	}
	return out
}

// guards says what waits for a request.
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

// Sent are the requests without a digest that were sent and that have no answer:
// Proxmox may carry them out late, whoever has sent them, and whatever VM has the
// number then. The value is for how many seconds after anybody has seen them here
// that can happen. A request is written down before it is sent; its answer
// takes it out again, and nothing else but that time does: a VM that is off, or
// runs anew, may be so for another reason, and would still be hit. docs/notes/proxmox.md
// says of every request what a late one could do.
type Sent map[string]int

// With is s with one more request.
func (s Sent) With(what string, within time.Duration) Sent {
	out := Sent{}
	maps.Copy(out, s)
	out[what] = max(out[what], int((within+time.Second-1)/time.Second))
	return out
}

// Without is s without a request; nil if there is no other.
func (s Sent) Without(what string) Sent {
	out := maps.Clone(s)
	delete(out, what)
	if len(out) == 0 {
		return nil
	}
	return out
}
