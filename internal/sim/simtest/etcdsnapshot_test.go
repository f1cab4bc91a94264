package simtest

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

const snapshots = ".recast/etcd"

// snapshotFiles lists the snapshots and checks that each file is complete and private.
func (l *Lab) snapshotFiles() []string {
	l.t.Helper()
	entries, err := os.ReadDir(filepath.Join(l.Dir, snapshots))
	if err != nil && !os.IsNotExist(err) {
		l.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		info, err := e.Info()
		must(l.t, err)
		if info.Mode().Perm() != 0o600 {
			l.t.Errorf("%s has mode %s", e.Name(), info.Mode())
		}
		b := l.Read(filepath.Join(snapshots, e.Name()))
		body := b[:max(0, len(b)-sha256.Size)]
		if sum := sha256.Sum256(body); len(body) < 4096 || !bytes.Equal(sum[:], b[len(body):]) {
			l.t.Errorf("%s (%d bytes) does not match its checksum", e.Name(), len(b))
		}
		names = append(names, e.Name())
	}
	return names
}

func TestSnapshotOfEtcd(t *testing.T) {
	long(t)
	cut, flipped, broken := talosapi.EtcdFault{Snapshot: talosapi.SnapshotCut}, talosapi.EtcdFault{Snapshot: talosapi.SnapshotFlipped}, talosapi.EtcdFault{Snapshot: talosapi.SnapshotBroken}
	type story struct {
		faults map[string]talosapi.EtcdFault
		asked  []string
		texts  []string // of the refusal
	}
	cases := map[string]story{
		"whole":                  {nil, []string{"cp1"}, nil},
		"broken on the first":    {map[string]talosapi.EtcdFault{"cp1": broken}, []string{"cp1", "cp2"}, nil},
		"wrong on the first two": {map[string]talosapi.EtcdFault{"cp1": cut, "cp2": flipped}, []string{"cp1", "cp2", "cp3"}, nil},
		"each in a way of its own": {map[string]talosapi.EtcdFault{"cp1": cut, "cp2": flipped, "cp3": broken}, []string{"cp1", "cp2", "cp3"}, []string{
			"snapshot of etcd from cp1: snapshot has ", "snapshot of etcd from cp2: snapshot does not match its checksum", "snapshot of etcd from cp3: ",
			"no control plane gave a snapshot of etcd that can be used",
		}},
	}
	eachInLab(t, threePlanes, cases, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		for node, f := range c.faults {
			lab.breakEtcd(f, node)
		}
		touched := false // a control plane was, before the snapshot
		var asked []string
		from := len(lab.Recorder.Calls())
		lab.Recorder.Hooks(func(call record.Call) error {
			if call.Method == "/machine.MachineService/EtcdSnapshot" {
				asked = append(asked, lab.nameOf(call.Target))
				touched = touched || len(lab.touched(from, "cp1")) > 0
			}
			return nil
		}, nil)
		_, err := lab.Client().Roll(t.Context(), policyFor("cp1"))
		if diff := cmp.Diff(c.asked, asked); diff != "" || touched {
			t.Errorf("asked for a snapshot (-want +got), after cp1 was touched: %t\n%s", touched, diff)
		}
		var want []string
		if c.texts == nil {
			want = []string{"etcd-lab-20000101-0000-feed.db"}
			must(t, err)
		} else {
			requireFault(t, err, fault.Refused, c.texts...)
			lab.requireLeftAlone(from, "cp1")
		}
		if diff := cmp.Diff(want, lab.snapshotFiles()); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
	})
}

// TestASnapshotForEachRunThatTakesAControlPlane: none for runs with only workers.
func TestASnapshotForEachRunThatTakesAControlPlane(t *testing.T) {
	long(t)
	inLab(t, sim.Options{ControlPlanes: 1, Workers: 1, EtcdOnData: true}, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension) // only workers have it
		lab.mustRoll("20000101-0000-0001", planning.Policy{})
		if files := lab.snapshotFiles(); len(files) > 0 {
			t.Errorf("a roll of workers left %q", files)
		}
		var want []string
		for _, run := range []string{"20000101-0000-0002", "20000101-0000-0003"} {
			lab.Patch(everywhere)
			lab.mustRoll(run, planning.Policy{})
			want = append(want, "etcd-lab-"+run+".db")
			if diff := cmp.Diff(want, lab.snapshotFiles()); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		}
		calls := slices.DeleteFunc(lab.Recorder.Calls(), func(c record.Call) bool { return !strings.HasSuffix(c.Method, "/EtcdSnapshot") })
		if len(calls) != 2 {
			t.Errorf("%d snapshots were asked for: %+v", len(calls), calls)
		}
	})
}

// TestTheSnapshotOfTheRunThatIsResumed: the snapshot from before the crash is used for the
// rest of that run, unless it was damaged.
func TestTheSnapshotOfTheRunThatIsResumed(t *testing.T) {
	long(t)
	eachInLab(t, threePlanes, map[string]bool{"whole": false, "spoilt": true}, func(t *testing.T, lab *Lab, spoil bool) {
		lab.Patch(everywhere)
		first := lab.Client()
		first.killedAt(t, onServer("/qemu/9001/status/shutdown POST"), first.roll(policyFor(controlPlanes...)))
		file := filepath.Join(snapshots, "etcd-lab-20000101-0000-feed.db")
		if spoil {
			lab.Write(file, lab.Read(file)[:5000])
		}
		before := len(lab.Recorder.Calls())
		lab.mustRoll("20000101-0000-feed", policyFor(controlPlanes...))
		asked := slices.DeleteFunc(lab.Recorder.Calls()[before:], func(c record.Call) bool { return !strings.HasSuffix(c.Method, "/EtcdSnapshot") })
		if spoil != (len(asked) == 1) {
			t.Errorf("asked for a snapshot again: %+v", asked)
		}
		if files := lab.snapshotFiles(); len(files) != 1 {
			t.Errorf("files %q", files)
		}
	})
}
