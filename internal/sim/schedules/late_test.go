package schedules

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/record"
)

// TestTextOfLateRequests: a duration says when it is delivered; without one it is the worst
// moment.
func TestTextOfLateRequests(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Fault{
		"late@57+2m0s":   {Name: "late", Where: -1, Call: 57, For: 2 * time.Minute},
		"late-kill@57":   {Name: "late-kill", Where: -1, Call: 57},
		"late-away@1+5s": {Name: "late-away", Where: -1, Call: 1, For: 5 * time.Second},
	} {
		got, err := ParseFault(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" || got.String() != text {
			t.Errorf("%s: %s, %v (-want +got)\n%s", text, got, err, diff)
		}
	}
	for _, text := range []string{"late:0@57", "late@57+0s", "kill@57+5s"} {
		if got, err := ParseFault(text); err == nil {
			t.Errorf("%s is taken for %+v", text, got)
		}
	}
}

// TestWhatIsHeld: only calls that identify a VM by its number alone have a worst moment.
func TestWhatIsHeld(t *testing.T) {
	t.Parallel()
	call := func(method, path string) record.Call {
		return record.Call{Proto: "proxmox", Method: method, Path: "/api2/json" + path, Mutation: true}
	}
	for _, c := range []struct {
		call         record.Call
		timed, worst bool
	}{
		{call("DELETE", "/nodes/pve1/qemu/9011"), true, true},
		{call("POST", "/nodes/pve1/qemu/9011/status/shutdown"), true, true},
		{call("POST", "/nodes/pve1/qemu"), true, true},
		{call("PUT", "/nodes/pve1/qemu/9011/config"), true, false},
		{call("POST", "/nodes/pve1/storage/isos/upload"), false, false},
		{record.Call{Proto: "talos", Method: "/machine.MachineService/Reboot", Mutation: true}, false, false},
	} {
		timed, worst := &struck{Fault: Fault{Name: "late", For: time.Second}}, &struck{Fault: Fault{Name: "late"}}
		if timed.mayHold(c.call) != c.timed || worst.mayHold(c.call) != c.worst {
			t.Errorf("%s %s: timed %t, at the worst moment %t", c.call.Method, c.call.Path, timed.mayHold(c.call), worst.mayHold(c.call))
		}
	}
}
