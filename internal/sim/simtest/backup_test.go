package simtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/role"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/pipeline"
)

// TestBackup needs only the role os:etcd:backup and changes nothing, whatever is wrong with etcd.
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
			files = append(files, filepath.Base(res.File))
			require(t, slices.Equal(res.Removed, files[:max(0, len(files)-2)]), "removed %q of %q", res.Removed, files)
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
		requireSays(t, strings.Join(res.Warnings, "\n"),
			"cp2 does not answer: 127.42.7.12: gave up after 15s: read etcd's status", "alarm NOSPACE on member cp3")
		requireFault(t, errOf(back("one.db")), fault.Config, "one.db exists already")

		lab.breakEtcd(talosapi.EtcdFault{Corrupt: true}, "cp3")
		time.Sleep(10 * time.Second)
		requireRefused(t, errOf(back("corrupt.db")), "etcd's members do not hold the same data, so no snapshot of it can be trusted: [alarm CORRUPT on member cp3]")
		lab.breakEtcd(talosapi.EtcdFault{Down: true}, "cp2", "cp3")
		time.Sleep(10 * time.Second)
		requireRefused(t, errOf(back("alone.db")), "no member of etcd that answers follows a leader")
		for _, name := range []string{"corrupt.db", "alone.db"} {
			err := errOf(os.Stat(filepath.Join(lab.Dir, name)))
			require(t, os.IsNotExist(err), "%s: %v", name, err)
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
		require(l.t, info.Mode().Perm() == 0o600, "%s has mode %s", e.Name(), info.Mode())
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
			if asksForSnapshot(call) {
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
		lab.as("20000101-0000-0001").mustRoll(planning.Policy{})
		requireNone(t, lab.snapshotFiles(), "a roll of workers left")
		var want []string
		for _, run := range []string{"20000101-0000-0002", "20000101-0000-0003"} {
			lab.Patch(everywhere)
			lab.as(run).mustRoll(planning.Policy{})
			want = append(want, "etcd-lab-"+run+".db")
			requireSame(t, want, lab.snapshotFiles(), "files (-want +got)")
		}
		calls := lab.sent(0, asksForSnapshot)
		require(t, len(calls) == 2, "%d snapshots were asked for: %+v", len(calls), calls)
	})
}

func asksForSnapshot(c record.Call) bool { return c.Method == "/machine.MachineService/EtcdSnapshot" }

// The snapshot from before the crash is used for the rest of that run, unless it was damaged.
func TestTheSnapshotOfTheRunThatIsResumed(t *testing.T) {
	eachLong(t, threePlanes, map[string]bool{"whole": false, "spoilt": true}, func(t *testing.T, lab *Lab, spoil bool) {
		lab.Patch(everywhere)
		lab.Client().rollKilled(onServer("/qemu/9001/status/shutdown POST"), policyFor(controlPlanes...))
		file := filepath.Join(snapshots, "etcd-lab-20000101-0000-feed.db")
		if spoil {
			lab.Write(file, lab.Read(file)[:5000])
		}
		before := len(lab.Recorder.Calls())
		lab.as("20000101-0000-feed").mustRoll(policyFor(controlPlanes...))
		asked := lab.sent(before, asksForSnapshot)
		require(t, spoil == (len(asked) == 1), "asked for a snapshot again: %+v", asked)
		files := lab.snapshotFiles()
		require(t, len(files) == 1, "files %q", files)
	})
}

func (l *Lab) backUp() pipeline.BackupResult {
	l.t.Helper()
	return valueOf(l.Client().Backup(l.t.Context(), pipeline.BackupOptions{}))(l.t)
}

// kubernetes is the identities of the objects in Kubernetes, by key, without pods and frequently changing objects.
func (l *Lab) kubernetes() map[string]string {
	l.t.Helper()
	out := map[string]string{}
	for _, r := range store.Resources() {
		if r.GroupVersionResource == store.Pods() || r.Resource == "events" {
			continue
		}
		for _, o := range l.allStored(r.GroupVersionResource, "") {
			out[fmt.Sprint(r.Resource, " ", o.GetNamespace(), "/", o.GetName())] = fmt.Sprint(o.GetUID(), " ", o.GetLabels())
		}
	}
	return out
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

func (l *Lab) note(name string) {
	l.t.Helper()
	must(l.t, errOf(l.Kube.Store().Create(l.t.Context(), configMaps, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string]string{"is": name},
	})))
}

// TestRestoreOfTheOnlyControlPlane: its etcd is lost, and restored as it was saved.
func TestRestoreOfTheOnlyControlPlane(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.note("before")
		before, saved := lab.kubernetes(), lab.backUp()
		require(t, saved.Member == "cp1" && saved.Revision != 0 && len(saved.Warnings) == 0, "saved %+v", saved)
		lab.note("after")
		lab.reset("cp1", "EPHEMERAL")
		ids := lab.memberIDs()
		require(t, lab.kubernetesAnswers() != nil, "Kubernetes answers without etcd, whose members are %v", ids)
		rep := valueOf(lab.Client().Restore(t.Context(), saved.File, "cp1"))(t)
		require(t, rep.Outcome == "done" && !rep.Resumes && strings.Contains(rep.VM, "9001"), "report %+v", rep)
		requireSame(t, before, lab.kubernetes(), "Kubernetes (-before +after)")
		requireSame(t, []string{"cp1"}, slices.Collect(maps.Keys(lab.memberIDs())), "members (-want +got)")
		requireInSync(t, lab)
		lab.requireKubelets("wk1")
		require(t, len(rep.Afterwards) == 1 && strings.HasPrefix(rep.Afterwards[0], "restart whatever watches Kubernetes"),
			"afterwards %q", rep.Afterwards)

		// An etcd that has data is never overwritten.
		from := len(lab.Recorder.Calls())
		requireRefused(t, lab.Client().restore(saved.File)(t.Context()), "cp1 has etcd data already: it is never overwritten")
		lab.requireLeftAlone(from, "cp1")
	})
}

// requireKubelets checks that the kubelets of these nodes see what is new: they start a pod.
func (l *Lab) requireKubelets(nodes ...string) {
	l.t.Helper()
	for _, name := range nodes {
		l.put(store.Pods(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "new-on-" + name, Namespace: "default"},
			Spec:       corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
		})
	}
	time.Sleep(time.Minute)
	for _, name := range nodes {
		o := l.stored(store.Pods(), "default", "new-on-"+name)
		phase := o.(*corev1.Pod).Status.Phase
		require(l.t, phase == corev1.PodRunning, "the kubelet of %s did not start a new pod: it is %q", name, phase)
	}
}

// restore is Restore of cp1 without its report.
func (c *Client) restore(file string) func(context.Context) error {
	return func(ctx context.Context) error { return errOf(c.Restore(ctx, file, "cp1")) }
}

// Killed after any changing call, and run again, it has the same result, with a single bootstrap request.
func TestRestoreIsInterrupted(t *testing.T) {
	// Its changes are those of the claim, an upload, a bootstrap, heartbeats, and those of the claim.
	eachLong(t, oneWorker(), storiesOf[int64](1, 2, 3, 4, 5, 6, 7, 8), func(t *testing.T, lab *Lab, nth int64) {
		before, saved := lab.kubernetes(), lab.backUp()
		lab.reset("cp1", "EPHEMERAL")
		user := lab.Client()
		var changes, bootstraps atomic.Int64
		lab.Recorder.Hooks(nil, func(c record.Call) {
			if c.Method == "/machine.MachineService/Bootstrap" {
				bootstraps.Add(1)
			}
			if c.Mutation && changes.Add(1) == nth {
				user.Kill()
			}
		})
		_, killed := user.Restore(t.Context(), saved.File, "cp1")
		time.Sleep(time.Minute)
		rep, err := lab.as(secondRun).Restore(t.Context(), saved.File, "cp1")
		switch {
		case killed == nil || err != nil && strings.Contains(err.Error(), "has etcd data already"):
			requireRefused(t, err, "has etcd data already") // it was all but over
		case err != nil:
			t.Fatalf("%+v, %v", rep, err)
		case rep.Resumes != (rep.Run == user.Run):
			t.Errorf("%+v", rep)
		}
		require(t, bootstraps.Load() == 1, "told to bootstrap %d times", bootstraps.Load())
		requireSame(t, before, lab.kubernetes(), "Kubernetes (-before +after)")
		requireDrift(t, lab)
	})
}

// TestRestoreLosesAnAnswer: recast checks whether a bootstrap was begun, and never just retries.
func TestRestoreLosesAnAnswer(t *testing.T) {
	eachLong(t, oneWorker(), map[string]bool{"to a bootstrap": true, "and the bootstrap": false}, func(t *testing.T, lab *Lab, arrives bool) {
		before, saved := lab.kubernetes(), lab.backUp()
		lab.reset("cp1", "EPHEMERAL")
		user := lab.Client()
		var asked, done atomic.Int64
		lab.Recorder.Hooks(func(c record.Call) error {
			if c.Method == "/machine.MachineService/Bootstrap" && asked.Add(1) == 1 && !arrives {
				return errKilled
			}
			return nil
		}, func(c record.Call) {
			if c.Method == "/machine.MachineService/Bootstrap" && done.Add(1) == 1 && arrives {
				user.Cut()
				time.AfterFunc(5*time.Second, user.Mend)
			}
		})
		_, err := user.Restore(t.Context(), saved.File, "cp1")
		if !arrives {
			requireError(t, err, "restore/recover-etcd: etcd on cp1: gave up after 3m0s; last seen: Preparing: Running pre state")
			require(t, len(fault.Hints(err)) > 0, "no hint: %v", err)
			requireNone(t, fault.Safe(err), "safe is …, after the request to bootstrap etcd")
			_, err = lab.Client().Restore(t.Context(), saved.File, "cp1")
		}
		require(t, err == nil && done.Load() == 1, "%d bootstraps, %v", done.Load(), err)
		requireSame(t, before, lab.kubernetes(), "Kubernetes (-before +after)")
	})
}

// TestRestoreOnceMore: after a restore that Talos completed on its own, a new one is possible a day later. Interrupted
// before the bootstrap, it recognizes an etcd that a person began meanwhile.
func TestRestoreOnceMore(t *testing.T) {
	stories := map[string]bool{"completed by Talos": false, "begun by a person": true}
	eachLong(t, oneWorker(), stories, func(t *testing.T, lab *Lab, byHand bool) {
		saved := lab.backUp()
		lab.reset("cp1", "EPHEMERAL")
		user := lab.Client()
		if byHand {
			user.killedAt(t, onServer("/machine.MachineService/EtcdRecover"), user.restore(saved.File))
			lab.talosctl("cp1", bootstrap)
			time.Sleep(2 * time.Minute)
		} else {
			user.killedAt(t, onServer("/machine.MachineService/Bootstrap"), user.restore(saved.File))
			time.Sleep(24 * time.Hour)
			lab.note("since")
			rep := valueOf(lab.Client().Restore(t.Context(), saved.File, "cp1"))(t)
			require(t, rep.Run == user.Run && !rep.Bootstrapped.IsZero() && rep.Started.Sub(rep.Bootstrapped) >= 23*time.Hour,
				"%+v", rep)
			require(t, lab.kubernetes()["configmaps default/since"] != "", "changes in Kubernetes since then are lost")
		}
		requireRefused(t, lab.Client().restore(saved.File)(t.Context()), "cp1 has etcd data already: it is never overwritten")
	})
}

// TestRestoreIsRefused before anything is changed.
func TestRestoreIsRefused(t *testing.T) {
	type story struct {
		planes int
		spoil  func(l *Lab, file string)
		text   string
	}
	eachLongIn(t, func(c story) sim.Options { return sim.Options{ControlPlanes: c.planes, Workers: 1} }, map[string]story{
		"cut off": {1, func(l *Lab, file string) {
			name := strings.TrimPrefix(file, l.Dir)
			whole := l.Read(name)
			l.Write(name, whole[:len(whole)-512])
		}, "does not match its checksum: it was cut off"},
		"three control planes": {3, func(*Lab, string) {}, "cp1 is not the only control plane: Talos knows cp2 as well"},
		"two that were off": {3, func(l *Lab, _ string) {
			must(l.t, l.World.PowerOff(l.node("cp2").VMID))
			must(l.t, l.World.PowerOff(l.node("cp3").VMID))
			time.Sleep(45 * time.Minute) // Talos' discovery drops them after 30
			l.reset("cp1", "EPHEMERAL")
		}, "can't be determined: Talos' discovery does not know cp2, cp3 at present"},
		"another VM": {1, func(l *Lab, _ string) { l.Replace("recast.yaml", "vmid: 9001", "vmid: 9002") }, "not VM 9002 as configured"},
	}, func(t *testing.T, lab *Lab, c story) {
		saved := lab.backUp()
		c.spoil(lab, saved.File)
		ids, from := lab.memberIDs(), len(lab.Recorder.Calls())
		requireRefused(t, lab.Client().restore(saved.File)(t.Context()), c.text)
		lab.requireLeftAlone(from, "cp1")
		requireSame(t, ids, lab.memberIDs(), "members of etcd (-before +after)")
	})
}
