package simtest

import (
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
)

// TestPeers18EtcdNeverGoesBack: one worker's failure reverted the whole cluster and
// downgraded etcd (omni #2373). A rollback across a minor version of etcd is refused.
func TestPeers18EtcdNeverGoesBack(t *testing.T) {
	long(t)
	eachInLab(t, threePlanes, storiesOf("3.6.11", "3.7.0"), func(t *testing.T, lab *Lab, kept string) {
		lab.Patch(everywhere)
		lab.mustRoll(firstRun, policyFor("cp1"))
		lab.editRecord("cp1", func(rec *parking.Record) { rec.Kept[0].Etcd = kept })
		from := len(lab.Recorder.Calls())
		err := lab.as(secondRun).goBack("cp1")(t.Context())
		if kept == "3.7.0" {
			must(t, err)
			requireMembers(t, lab, "", false)
			return
		}
		requireRefused(t, err, "cp1: its etcd was 3.6.11 and is 3.7.")
		lab.requireLeftAlone(from, "cp1")
	})
}

// recordOf reads the record of a node's parking VM.
func (l *Lab) recordOf(node string) (park int, rec parking.Record) {
	l.t.Helper()
	if park = l.parkingOf(node); park == 0 {
		l.t.Fatalf("nothing of %s is kept or parked", node)
	}
	vm, err := l.World.LookupVM(l.node(node).Host, park)
	must(l.t, err)
	rec, _, err = parking.ReadRecord(cluster.VM{Config: vm.Config})
	must(l.t, err)
	return park, rec
}

// editRecord changes the record of a node's parking VM.
func (l *Lab) editRecord(node string, edit func(*parking.Record)) {
	l.t.Helper()
	park, rec := l.recordOf(node)
	edit(&rec)
	text, err := rec.Description()
	must(l.t, err)
	l.EditVM(park, "description", text)
}

// TestPeers19TheLastOneStays: the only remaining control plane was cordoned (kured #841),
// or deleted.
func TestPeers19TheLastOneStays(t *testing.T) {
	long(t)
	type story struct {
		planes int
		off    []string
		after  bool // after the plan
		text   string
	}
	cases := map[string]story{
		"one of three is off":                  {3, []string{"cp2"}, false, "other nodes are not Ready: cp2"},
		"one of three is off, after the plan":  {3, []string{"cp2"}, true, "other nodes are not Ready: cp2"},
		"two of three are off":                 {3, []string{"cp2", "cp3"}, false, "etcd"},
		"two of three are off, after the plan": {3, []string{"cp2", "cp3"}, true, "etcd"},
		"one of two is off":                    {2, []string{"cp2"}, false, "etcd"},
		"one of two is off, after the plan":    {2, []string{"cp2"}, true, "etcd"},
	}
	options := func(c story) sim.Options { return sim.Options{ControlPlanes: c.planes, Workers: 1, EtcdOnData: true} }
	eachIn(t, options, cases, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		from := len(lab.Recorder.Calls())
		off := func() {
			for _, name := range c.off {
				must(t, lab.World.PowerOff(lab.node(name).VMID))
			}
			time.Sleep(time.Minute)
		}
		user := lab.Client()
		if c.after {
			user.Confirm = func(planning.Plan) (bool, error) { off(); return true, nil }
		} else {
			off()
		}
		_, err := user.Roll(t.Context(), planning.Policy{Only: []string{"cp1"}, AcceptOutage: c.text == "etcd"})
		if err == nil || !strings.Contains(err.Error(), c.text) || len(fault.Hints(err)) == 0 {
			t.Errorf("err = %v, hints %q, want %q", err, fault.Hints(err), c.text)
		}
		lab.requireLeftAlone(from, "cp1")
	})
}

// TestPeers20TheRightMachineAnswers: a request went to the wrong machine (omni #888). Here
// cp1's address is redirected to another one; TestTalosFaults does that during a roll.
func TestPeers20TheRightMachineAnswers(t *testing.T) {
	long(t)
	eachFault(t, map[string]*talosFault{
		"without a certificate": {
			o: threePlanes, rolls: "cp1", begins: led("cp2"), mends: straight,
			says: []string{"its certificate is not of the talosconfig's cluster"}, stands: untouched,
		},
		"with a certificate for that address, as a virtual one has": {
			o: threePlanes, rolls: "cp1", first: certified("127.42.7.11", "cp2"), begins: led("cp2"), mends: straight,
			says: []string{"127.42.7.11 answers with UUID 5ec0ffee-0000-4000-8000-000000009002"}, stands: untouched,
		},
	})
}
