package schedules

import (
	"flag"
	"regexp"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// TestTextOfLateRequests: a duration says when it is delivered; without one it is the worst moment.
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

// TestSentAgain: a change may be sent again after a read of the VM.
func TestSentAgain(t *testing.T) {
	t.Parallel()
	read := func(path string, params map[string]string) record.Call {
		return record.Call{Proto: "proxmox", Method: "GET", Path: "/api2/json" + path, Params: params}
	}
	create := record.Call{Proto: "proxmox", Method: "POST", Path: "/api2/json/nodes/pve1/qemu", Params: map[string]string{"vmid": "9001"}, Mutation: true}
	change := record.Call{Proto: "proxmox", Method: "POST", Path: "/api2/json/nodes/pve1/qemu/9001/config", Params: map[string]string{"memory": "1"}, Mutation: true}
	for name, c := range map[string]struct {
		change  record.Call
		between record.Call
		excused bool
	}{
		"a task":               {create, read("/nodes/pve1/tasks/UPID:x/status", nil), false},
		"a storage":            {create, read("/nodes/pve1/storage/fast/content", nil), false},
		"the list of storages": {create, read("/cluster/resources?type=storage", map[string]string{"type": "storage"}), false},
		"the list of VMs":      {create, read("/cluster/resources?type=vm", map[string]string{"type": "vm"}), true},
		"the list of all":      {create, read("/cluster/resources", nil), true},
		"the VM":               {change, read("/nodes/pve1/qemu/9001/config", nil), true},
		"another VM":           {change, read("/nodes/pve1/qemu/9002/config", nil), false},
		"its number":           {create, read("/nodes/pve1/qemu/9001/config", nil), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &play{problems: map[string]bool{}, others: others{sent: map[string]int{}, looked: map[string]int{}, changed: map[string]int{}}}
			for _, call := range []record.Call{c.change, c.between, c.change} {
				p.lookAtCall(call)
			}
			must.Equal(t, "excused", c.excused, len(p.res.Problems) == 0)
		})
	}
}

// TestAFaultExcusesNothingBefore: if etcd loses its majority before any fault affects it, recast is to blame.
func TestAFaultExcusesNothingBefore(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*play, *struck){
		"at a time": func(p *play, s *struck) { p.begin(s) },
		"at a call": func(p *play, s *struck) {
			s.kind.before = func(*play, *struck) error { return nil }
			_ = p.before(record.Call{Proto: "proxmox", Method: "PUT", Mutation: true}) // no fault drops it
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name == "at a call" {
				t.Skip("long: bringing up another lab")
			}
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t, Case{ControlPlanes: 3, Hosts: 1, Changes: []string{changePatch}})
				for _, n := range p.lab.Nodes[:2] {
					must.Do(t, p.lab.BreakEtcd(n.Name, talosapi.EtcdFault{Down: true}))
				}
				time.Sleep(time.Minute)
				s := &struck{Fault: Fault{Name: "off", Where: 0, Call: 1}, kind: kind{name: "off", etcd: true, after: func(*play, *struck) {}}}
				p.list = []*struck{s}
				begin(p, s)
				if !s.begun || len(p.res.Problems) == 0 {
					t.Errorf("begun %t, problems %q", s.begun, p.res.Problems)
				}
			})
		})
	}
}

var benched = flag.Int("schedules.bench", 24, "cases that the benchmark plays, from seed 1")

// BenchmarkSchedules measures the cost of a node-roll in random schedules: processor time
// of everything, including setup and checks.
func BenchmarkSchedules(b *testing.B) {
	const most = 780_000 // allocations for each node-roll
	allocated := heap.Count()
	rolls, begin := 0, processorTime(b)
	for b.Loop() {
		for i := range *benched {
			inBubble(b, func(t *testing.T) { rolls += Play(t, Draw(Seed(1, i))).NodeRolls })
		}
	}
	spent := processorTime(b) - begin
	if each := float64(allocated()) / float64(rolls); each > most {
		b.Errorf("%.0f allocations for each node-roll, more than %d", each, most)
	}
	b.ReportMetric(float64(allocated())/float64(rolls), "allocs/node-roll")
	b.ReportMetric(float64(spent.Microseconds())/1000/float64(rolls), "cpu-ms/node-roll")
	b.ReportMetric(float64(rolls)/spent.Seconds(), "node-rolls/cpu-s")
}

// inBubble is synctest.Test for a benchmark.
func inBubble(b *testing.B, f func(t *testing.T)) {
	b.Helper()
	all := func(pattern, name string) (bool, error) {
		_, err := regexp.Compile(pattern)
		return true, err
	}
	if !testing.RunTests(all, []testing.InternalTest{{Name: b.Name(), F: func(t *testing.T) { synctest.Test(t, f) }}}) {
		b.FailNow()
	}
}

// processorTime is the process's user and system time.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	must.Do(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
