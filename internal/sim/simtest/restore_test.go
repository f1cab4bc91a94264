package simtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/pipeline"
)

// backUp takes a backup of the lab's etcd.
func (l *Lab) backUp() pipeline.BackupResult {
	l.t.Helper()
	res := valueOf(l.Client().Backup(l.t.Context(), pipeline.BackupOptions{}))(l.t)
	return res
}

// kubernetes is the identities of the objects in Kubernetes, by key, without pods and
// frequently changing objects.
func (l *Lab) kubernetes() map[string]string {
	l.t.Helper()
	out := map[string]string{}
	for _, r := range store.Resources() {
		if r.GroupVersionResource == store.Pods() || r.Resource == "events" {
			continue
		}
		objects := l.allStored(r.GroupVersionResource, "")
		for _, o := range objects {
			out[fmt.Sprint(r.Resource, " ", o.GetNamespace(), "/", o.GetName())] = fmt.Sprint(o.GetUID(), " ", o.GetLabels())
		}
	}
	return out
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// note creates an object in Kubernetes.
func (l *Lab) note(name string) {
	l.t.Helper()
	must(l.t, errOf(l.Kube.Store().Create(l.t.Context(), configMaps, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string]string{"is": name},
	})))
}

// TestRestoreOfTheOnlyControlPlane: its etcd is lost, and restored as it was saved.
func TestRestoreOfTheOnlyControlPlane(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.note("before")
		before, saved := lab.kubernetes(), lab.backUp()
		require(t, saved.Member == "cp1" && saved.Revision != 0 && len(saved.Warnings) == 0, "saved %+v", saved)
		lab.note("after")
		lab.reset("cp1", "EPHEMERAL")
		ids := lab.memberIDs()
		require(t, lab.kubernetesAnswers() != nil, "Kubernetes answers without etcd, whose members are %v", ids)
		rep, err := lab.Client().Restore(t.Context(), saved.File, "cp1")
		must(t, err)
		require(t, rep.Outcome == "done" && !rep.Resumes && strings.Contains(rep.VM, "9001"), "report %+v", rep)
		requireSame(t, before, lab.kubernetes(), "Kubernetes (-before +after)")
		requireSame(t, []string{"cp1"}, slices.Collect(maps.Keys(lab.memberIDs())), "members (-want +got)")
		requireInSync(t, lab)
		lab.requireKubelets("wk1")
		require(t, len(rep.Afterwards) == 1 && strings.HasPrefix(rep.Afterwards[0], "restart whatever watches Kubernetes"),
			"afterwards %q", rep.Afterwards)

		// An etcd that has data is never overwritten.
		from := len(lab.Recorder.Calls())
		_, err = lab.Client().Restore(t.Context(), saved.File, "cp1")
		requireRefused(t, err, "cp1 has etcd data already: it is never overwritten")
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

// TestRestoreIsInterrupted: killed after any changing call, and run again, it has the same
// result, with a single bootstrap request.
func TestRestoreIsInterrupted(t *testing.T) {
	long(t)
	for n := range 8 { // claim, upload, bootstrap, heartbeats, claim
		t.Run(fmt.Sprint("after change ", n+1), func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				before, saved := lab.kubernetes(), lab.backUp()
				lab.reset("cp1", "EPHEMERAL")
				user := lab.Client()
				var changes, bootstraps atomic.Int64
				lab.Recorder.Hooks(nil, func(c record.Call) {
					if c.Method == "/machine.MachineService/Bootstrap" {
						bootstraps.Add(1)
					}
					if c.Mutation && changes.Add(1) == int64(n+1) {
						user.Kill()
					}
				})
				_, killed := user.Restore(t.Context(), saved.File, "cp1")
				time.Sleep(time.Minute)
				again := lab.as("20000101-0000-0002")
				rep, err := again.Restore(t.Context(), saved.File, "cp1")
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
		})
	}
}

// TestRestoreLosesAnAnswer: recast checks whether a bootstrap was begun, and never just
// retries.
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
			if err == nil || !strings.Contains(err.Error(), "restore/recover-etcd: etcd on cp1: gave up after 3m0s; last seen: Preparing: Running pre state") || len(fault.Hints(err)) == 0 {
				t.Errorf("err = %v", err)
			}
			requireNone(t, fault.Safe(err), "safe is …, after the request to bootstrap etcd")
			_, err = lab.Client().Restore(t.Context(), saved.File, "cp1")
		}
		require(t, err == nil && done.Load() == 1, "%d bootstraps, %v", done.Load(), err)
		requireSame(t, before, lab.kubernetes(), "Kubernetes (-before +after)")
	})
}

// TestRestoreOnceMore: after a restore that Talos completed on its own, a new one is possible
// a day later.
func TestRestoreOnceMore(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		saved := lab.backUp()
		lab.reset("cp1", "EPHEMERAL")
		user := lab.Client()
		user.killedAt(t, onServer("/machine.MachineService/Bootstrap"), user.restore(saved.File))
		time.Sleep(24 * time.Hour)
		lab.note("since")
		rep, err := lab.Client().Restore(t.Context(), saved.File, "cp1")
		if err != nil || rep.Run != user.Run || rep.Bootstrapped.IsZero() || rep.Started.Sub(rep.Bootstrapped) < 23*time.Hour {
			t.Errorf("%+v, %v", rep, err)
		}
		if _, there := lab.kubernetes()["configmaps default/since"]; !there {
			t.Error("changes in Kubernetes since then are lost")
		}
		_, err = lab.Client().Restore(t.Context(), saved.File, "cp1")
		requireRefused(t, err, "cp1 has etcd data already: it is never overwritten")
	})
}

// TestRestoreAfterAForeignBootstrap: interrupted before the bootstrap, it recognizes an etcd that a person began meanwhile.
func TestRestoreAfterAForeignBootstrap(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		saved := lab.backUp()
		lab.reset("cp1", "EPHEMERAL")
		user := lab.Client()
		user.killedAt(t, onServer("/machine.MachineService/EtcdRecover"), user.restore(saved.File))
		lab.talosctl("cp1", func(ctx context.Context, c *client.Client) error {
			return c.Bootstrap(ctx, &machineapi.BootstrapRequest{})
		})
		time.Sleep(2 * time.Minute)
		_, err := lab.Client().Restore(t.Context(), saved.File, "cp1")
		requireRefused(t, err, "cp1 has etcd data already: it is never overwritten")
	})
}

// TestRestoreIsRefused before anything is changed.
func TestRestoreIsRefused(t *testing.T) {
	long(t)
	type story struct {
		planes int
		spoil  func(t *testing.T, l *Lab, file string)
		text   string
	}
	cases := map[string]story{
		"cut off": {1, func(_ *testing.T, l *Lab, file string) {
			name := strings.TrimPrefix(file, l.Dir)
			whole := l.Read(name)
			l.Write(name, whole[:len(whole)-512])
		}, "does not match its checksum: it was cut off"},
		"three control planes": {3, nil, "cp1 is not the only control plane: Talos knows cp2 as well"},
		"two that were off": {3, func(t *testing.T, l *Lab, _ string) {
			must(t, l.World.PowerOff(l.node("cp2").VMID))
			must(t, l.World.PowerOff(l.node("cp3").VMID))
			time.Sleep(45 * time.Minute) // Talos' discovery drops them after 30
			l.reset("cp1", "EPHEMERAL")
		}, "can't be determined: Talos' discovery does not know cp2, cp3 at present"},
		"another VM": {1, func(_ *testing.T, l *Lab, _ string) { l.Replace("recast.yaml", "vmid: 9001", "vmid: 9002") }, "not VM 9002 as configured"},
	}
	eachIn(t, func(c story) sim.Options { return sim.Options{ControlPlanes: c.planes, Workers: 1} }, cases, func(t *testing.T, lab *Lab, c story) {
		saved := lab.backUp()
		if c.spoil != nil {
			c.spoil(t, lab, saved.File)
		}
		ids, from := lab.memberIDs(), len(lab.Recorder.Calls())
		requireRefused(t, errOf(lab.Client().Restore(t.Context(), saved.File, "cp1")), c.text)
		lab.requireLeftAlone(from, "cp1")
		requireSame(t, ids, lab.memberIDs(), "members of etcd (-before +after)")
	})
}
