package simtest

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
)

// TestPeers18AWorkersFailureIsItsOwn: one worker's failure reverted the whole cluster and
// downgraded etcd (omni #2373).
func TestPeers18AWorkersFailureIsItsOwn(t *testing.T) {
	long(t)
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 2}, func(t *testing.T, lab *Lab) {
		lab.Replace("recast.yaml", "roll:\n", "roll:\n  order: workers-first\n  canary: false\n  drain: {timeout: 1m}\n")
		lab.Patch(everywhere)
		lab.Budget(0)
		ids, from := lab.memberIDs(), len(lab.Recorder.Calls())
		_, err := lab.Client().Roll(t.Context(), planning.Policy{})
		if err == nil || !strings.Contains(err.Error(), "roll/workers/wk1/take-down/drain: drain wk1") {
			t.Errorf("err = %v", err)
		}
		for _, name := range controlPlanes {
			lab.requireLeftAlone(from, name)
		}
		if diff := cmp.Diff(ids, lab.memberIDs()); diff != "" {
			t.Error(diff)
		}
		requireDrift(t, lab, "cp1", "cp2", "cp3", "wk1", "wk2")
	})
}

// TestPeers18EtcdNeverGoesBack: see above. A rollback across a minor version of etcd is refused.
func TestPeers18EtcdNeverGoesBack(t *testing.T) {
	long(t)
	for kept, refused := range map[string]bool{"3.6.11": true, "3.7.0": false} {
		t.Run(kept, func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
				lab.Patch(everywhere)
				lab.mustRoll("20000101-0000-0001", planning.Policy{Only: []string{"cp1"}})
				lab.editRecord("cp1", func(rec *parking.Record) { rec.Kept[0].Etcd = kept })
				from := len(lab.Recorder.Calls())
				c := lab.as("20000101-0000-0002")
				_, err := c.Rollback(t.Context(), planning.Policy{Only: []string{"cp1"}})
				if !refused {
					if err != nil {
						t.Error(err)
					}
					requireMembers(t, lab, "", false)
					return
				}
				requireRefused(t, err, "cp1: its etcd was 3.6.11 and is 3.7.")
				lab.requireLeftAlone(from, "cp1")
			})
		})
	}
}

// editRecord changes the record of a node's parking VM.
func (l *Lab) editRecord(node string, edit func(*parking.Record)) {
	l.t.Helper()
	res, err := l.Client().Status(l.t.Context())
	must(l.t, err)
	parkings := map[string]cluster.VMID{}
	for _, k := range res.Kept {
		parkings[k.Node] = k.Parking
	}
	for _, h := range res.Open {
		parkings[h.Node] = h.Parking
	}
	if park := parkings[node]; park != 0 {
		vm, err := l.World.LookupVM(l.node(node).Host, int(park))
		must(l.t, err)
		rec, _, err := parking.ReadRecord(cluster.VM{Config: vm.Config})
		must(l.t, err)
		edit(&rec)
		text, err := rec.Description()
		must(l.t, err)
		l.EditVM(int(park), "description", text)
		return
	}
	l.t.Fatalf("nothing of %s is kept or parked: %+v", node, res)
}

// TestPeers19TheLastOneStays: the only remaining control plane was cordoned (kured #841),
// or deleted.
func TestPeers19TheLastOneStays(t *testing.T) {
	long(t)
	cases := map[string]struct {
		planes int
		off    []string
		policy planning.Policy
		text   string
	}{
		"one of three is off":  {3, []string{"cp2"}, planning.Policy{Only: []string{"cp1"}}, "other nodes are not Ready: cp2"},
		"two of three are off": {3, []string{"cp2", "cp3"}, planning.Policy{Only: []string{"cp1"}, AcceptOutage: true}, "etcd"},
		"one of two is off":    {2, []string{"cp2"}, planning.Policy{Only: []string{"cp1"}, AcceptOutage: true}, "etcd"},
	}
	for name, c := range cases {
		for _, between := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/after the plan=%t", name, between), func(t *testing.T) {
				inLab(t, sim.Options{ControlPlanes: c.planes, Workers: 1, EtcdOnData: true}, func(t *testing.T, lab *Lab) {
					lab.Patch(everywhere)
					from := len(lab.Recorder.Calls())
					off := func() {
						for _, name := range c.off {
							if err := lab.World.PowerOff(lab.node(name).VMID); err != nil {
								t.Error(err)
							}
						}
						time.Sleep(time.Minute)
					}
					user := lab.Client()
					if between {
						user.Confirm = func(planning.Plan) (bool, error) { off(); return true, nil }
					} else {
						off()
					}
					_, err := user.Roll(t.Context(), c.policy)
					if err == nil || !strings.Contains(err.Error(), c.text) || len(fault.Hints(err)) == 0 {
						t.Errorf("err = %v, hints %q, want %q", err, fault.Hints(err), c.text)
					}
					lab.requireLeftAlone(from, "cp1")
				})
			})
		}
	}
}

// TestPeers20TheRightMachineAnswers: a request went to the wrong machine (omni #888). Here
// cp1's address is redirected to another one from some moment on.
func TestPeers20TheRightMachineAnswers(t *testing.T) {
	long(t)
	type story struct {
		from   func(record.Call) bool // the moment; nil: from the start
		shared bool                   // the other machine's certificate is valid for that address, as with a virtual one
		text   string
	}
	cases := map[string]story{
		"from the start, without a certificate": {nil, false, "its certificate is not of the talosconfig's cluster"},
		"from the start":                        {nil, true, "127.42.7.11 answers with UUID 5ec0ffee-0000-4000-8000-000000009002"},
		"when it is told to leave etcd": {
			func(c record.Call) bool { return c.Method == http.MethodPatch && c.Target == "cp1" }, true,
			"take-down/leave-etcd: 127.42.7.11 answers with UUID 5ec0ffee-0000-4000-8000-000000009002, not 5ec0ffee-0000-4000-8000-000000009001",
		},
		"when it is to be configured": {
			func(c record.Call) bool { return strings.HasSuffix(c.Path, "/qemu/9001/status/start") }, true,
			"127.42.7.11 answers with UUID 5ec0ffee-0000-4000-8000-000000009002, not 5ec0ffee-0000-4000-8000-000000009001",
		},
	}
	eachInLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, cases, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		if c.shared {
			shareAddress(t, lab, "cp2", "cp1")
		}
		var wrong atomic.Bool
		wrong.Store(c.from == nil)
		lab.Recorder.Hooks(nil, func(call record.Call) {
			if c.from != nil && c.from(call) {
				wrong.Store(true)
			}
		})
		user := lab.Client()
		user.Reroute = func(addr string) string {
			if host, port, _ := net.SplitHostPort(addr); wrong.Load() && host == lab.node("cp1").Addr.String() {
				return net.JoinHostPort(lab.node("cp2").Addr.String(), port)
			}
			return addr
		}
		ids, from := lab.memberIDs(), len(lab.Recorder.Calls())
		_, err := user.Roll(t.Context(), planning.Policy{Only: []string{"cp1"}})
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("err = %v, want %q", err, c.text)
		}
		lab.requireLeftAlone(from, "cp2")
		if id := lab.memberIDs()["cp2"]; id != ids["cp2"] {
			t.Errorf("cp2 is etcd member %s, before: %s", id, ids["cp2"])
		}
		wrong.Store(false)
		must(t, lab.as("20000101-0000-0002").roll(planning.Policy{Only: []string{"cp1"}})(t.Context()))
		requireMembers(t, lab, "", false)
		lab.RequireIntact()
	})
}

// shareAddress makes a machine's certificate valid for another one's address too.
func shareAddress(t *testing.T, l *Lab, machine, with string) {
	t.Helper()
	l.certify(machine, l.node(with).Addr.String())
}
