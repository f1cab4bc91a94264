package simtest

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/pipeline"
)

// TestBackup needs only the role os:etcd:backup and changes nothing, whatever is wrong with
// etcd.
func TestBackup(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		var endpoints []string
		for _, name := range controlPlanes {
			endpoints = append(endpoints, lab.node(name).Addr.String())
		}
		config := valueOf(lab.Talos.Talosconfig(role.EtcdBackup, endpoints...))(t)
		lab.Write("talosconfig", config)
		changes := lab.Recorder.Mutations()
		var files []string
		for range 3 {
			res := valueOf(lab.Client().Backup(t.Context(), pipeline.BackupOptions{Keep: 2}))(t)
			require(t, len(res.Warnings) == 0 && res.Revision != 0 && len(res.Members) == 3, "%+v", res)
			if files = append(files, filepath.Base(res.File)); len(files) > 2 && !cmp.Equal(res.Removed, files[:1]) {
				t.Errorf("removed %q, want %q", res.Removed, files[:1])
			}
			time.Sleep(time.Second)
		}
		requireSame(t, files[1:], lab.snapshotFiles(), "files (-want +got)")

		back := func(to string) (pipeline.BackupResult, error) {
			return lab.Client().Backup(t.Context(), pipeline.BackupOptions{To: filepath.Join(lab.Dir, to)})
		}
		lab.breakEtcd(talosapi.EtcdFault{NoSpace: true}, "cp3")
		lab.breakEtcd(talosapi.EtcdFault{Hung: true}, "cp2")
		time.Sleep(10 * time.Second)
		res := valueOf(back("one.db"))(t)
		mustBe(t, len(lab.Read("one.db")) == int(res.SizeBytes), "%+v", res)
		for _, text := range []string{"cp2 does not answer: 127.42.7.12: gave up after 15s: read etcd's status", "alarm NOSPACE on member cp3"} {
			require(t, strings.Contains(strings.Join(res.Warnings, "\n"), text), "no warning %q in %q", text, res.Warnings)
		}
		if _, err := back("one.db"); fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), "one.db exists already") {
			t.Errorf("overwritten: %v", err)
		}

		lab.breakEtcd(talosapi.EtcdFault{Corrupt: true}, "cp3")
		time.Sleep(10 * time.Second)
		requireRefused(t, errOf(back("corrupt.db")), "etcd's members do not hold the same data, so no snapshot of it can be trusted: [alarm CORRUPT on member cp3]")
		lab.breakEtcd(talosapi.EtcdFault{Down: true}, "cp2", "cp3")
		time.Sleep(10 * time.Second)
		requireRefused(t, errOf(back("alone.db")), "no member of etcd that answers follows a leader")
		for _, name := range []string{"corrupt.db", "alone.db"} {
			if _, err := os.Stat(filepath.Join(lab.Dir, name)); !os.IsNotExist(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		requireSame(t, changes, lab.Recorder.Mutations(), "… calls that change something (-want +got)")
	})
}

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
		info := valueOf(e.Info())(l.t)
		if info.Mode().Perm() != 0o600 {
			l.t.Errorf("%s has mode %s", e.Name(), info.Mode())
		}
		b := l.Read(filepath.Join(snapshots, e.Name()))
		body := b[:max(0, len(b)-sha256.Size)]
		sum := sha256.Sum256(body)
		require(l.t, len(body) >= 4096 && bytes.Equal(sum[:], b[len(body):]),
			"%s (%d bytes) does not match its checksum", e.Name(), len(b))
		names = append(names, e.Name())
	}
	return names
}

func TestSnapshotOfEtcd(t *testing.T) {
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
	eachLong(t, threePlanes, cases, func(t *testing.T, lab *Lab, c story) {
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
		diff := cmp.Diff(c.asked, asked)
		require(t, diff == "" && !touched, "asked for a snapshot (-want +got), after cp1 was touched: %t\n%s", touched, diff)
		var want []string
		if c.texts == nil {
			want = []string{"etcd-lab-20000101-0000-feed.db"}
			must(t, err)
		} else {
			requireFault(t, err, fault.Refused, c.texts...)
			lab.requireLeftAlone(from, "cp1")
		}
		requireSame(t, want, lab.snapshotFiles(), "files (-want +got)")
	})
}

// TestASnapshotForEachRunThatTakesAControlPlane: none for runs with only workers.
func TestASnapshotForEachRunThatTakesAControlPlane(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 1, Workers: 1, EtcdOnData: true}, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension) // only workers have it
		lab.mustRoll("20000101-0000-0001", planning.Policy{})
		requireNone(t, lab.snapshotFiles(), "a roll of workers left")
		var want []string
		for _, run := range []string{"20000101-0000-0002", "20000101-0000-0003"} {
			lab.Patch(everywhere)
			lab.mustRoll(run, planning.Policy{})
			want = append(want, "etcd-lab-"+run+".db")
			requireSame(t, want, lab.snapshotFiles(), "files (-want +got)")
		}
		calls := slices.DeleteFunc(lab.Recorder.Calls(), func(c record.Call) bool { return !strings.HasSuffix(c.Method, "/EtcdSnapshot") })
		require(t, len(calls) == 2, "%d snapshots were asked for: %+v", len(calls), calls)
	})
}

// TestTheSnapshotOfTheRunThatIsResumed: the snapshot from before the crash is used for the
// rest of that run, unless it was damaged.
func TestTheSnapshotOfTheRunThatIsResumed(t *testing.T) {
	eachLong(t, threePlanes, map[string]bool{"whole": false, "spoilt": true}, func(t *testing.T, lab *Lab, spoil bool) {
		lab.Patch(everywhere)
		lab.Client().rollKilled(onServer("/qemu/9001/status/shutdown POST"), policyFor(controlPlanes...))
		file := filepath.Join(snapshots, "etcd-lab-20000101-0000-feed.db")
		if spoil {
			lab.Write(file, lab.Read(file)[:5000])
		}
		before := len(lab.Recorder.Calls())
		lab.mustRoll("20000101-0000-feed", policyFor(controlPlanes...))
		asked := slices.DeleteFunc(lab.Recorder.Calls()[before:], func(c record.Call) bool { return !strings.HasSuffix(c.Method, "/EtcdSnapshot") })
		require(t, spoil == (len(asked) == 1), "asked for a snapshot again: %+v", asked)
		files := lab.snapshotFiles()
		require(t, len(files) == 1, "files %q", files)
	})
}
