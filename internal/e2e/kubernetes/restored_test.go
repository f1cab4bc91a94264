package kubernetes

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/plane"
)

// writes is by how many revisions the lost etcd is ahead of its snapshot: more than the restored one gets in this test.
const writes = 1000

// TestRestoredEtcd: Talos restores etcd with the revision of the snapshot. Who watched the lost etcd continues from a
// revision of the future, and is told of nothing (etcd-io/etcd#16028); once that revision comes, the changes until then
// stay unknown. Who is started again, as recast restore and rebuild do with kubelets, sees what is there.
func TestRestoredEtcd(t *testing.T) {
	t.Parallel() // it mostly waits
	p := plane.StartWith(t, []string{"--disable-admission-plugins=ServiceAccount"})
	w := &restored{t: t, plane: p, door: p.Door()}
	_, err := p.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "wk1"}}, metav1.CreateOptions{})
	w.check(err)

	old := w.kubelet()
	w.create("before")
	old.sees("before")
	snapshot := p.SaveEtcd()
	p.Write(writes)
	future := w.create("lost")
	old.sees("before", "lost")

	w.door.Shut()
	p.RestoreEtcd(snapshot)
	w.door.Open()
	w.check(p.Client.CoreV1().Pods(metav1.NamespaceDefault).Delete(t.Context(), "before", *metav1.NewDeleteOptions(0)))
	if after := w.create("after"); after >= future {
		t.Fatalf("the restored etcd is at revision %d, the lost one was at %d: nothing is shown by that", after, future)
	}
	future = old.watchesFrom(future)
	w.kubelet().sees("after")
	old.sees("before", "lost")

	for w.create("later") <= future {
		p.Write(writes / 2)
		w.check(p.Client.CoreV1().Pods(metav1.NamespaceDefault).Delete(t.Context(), "later", *metav1.NewDeleteOptions(0)))
	}
	w.create("late")
	old.sees("before", "late", "later", "lost")
	w.kubelet().sees("after", "late", "later")
	t.Attr("kubernetes-troubles", "1")
}

// restored is a control plane whose etcd is restored.
type restored struct {
	t     *testing.T
	plane *plane.ControlPlane
	door  *plane.Door // the kubelets' way to the API server
}

func (w *restored) check(err error) {
	w.t.Helper()
	mustDo(w.t, err)
}

// create creates a pod of node wk1, and returns its revision.
func (w *restored) create(name string) (revision int) {
	w.t.Helper()
	made, err := w.plane.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: "wk1", Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
	}, metav1.CreateOptions{})
	w.check(err)
	revision, err = strconv.Atoi(made.ResourceVersion)
	w.check(err)
	return revision
}

// kubelet watches the pods of wk1 as a kubelet does that starts: see newSourceApiserverFromLW in pkg/kubelet/config of
// Kubernetes.
func (w *restored) kubelet() *podWatch {
	w.t.Helper()
	c := w.plane.Node("wk1")
	c.Host = "https://" + w.door.Addr
	client, err := kubernetes.NewForConfig(c)
	w.check(err)
	k := &podWatch{t: w.t}
	pods := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, fields.OneTermEqualSelector("spec.nodeName", "wk1"))
	plain := pods.WatchFuncWithContext
	pods.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		begun, err := plain(ctx, o)
		if err == nil {
			k.watches(o.ResourceVersion)
		}
		return begun, err
	}
	r := cache.NewReflector(pods, &corev1.Pod{}, cache.NewUndeltaStore(k.set, cache.MetaNamespaceKeyFunc), 0)
	ctx, stop := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.RunWithContext(ctx) }()
	w.t.Cleanup(func() { stop(); <-done })
	return k
}

// podWatch has what a kubelet knows of its pods.
type podWatch struct {
	t *testing.T

	mu   sync.Mutex
	pods []string // names, sorted
	from int      // the revision of the last watch that the API server has taken; 0: of everything that is there
}

func (k *podWatch) set(pods []any) {
	var names []string
	for _, p := range pods {
		names = append(names, p.(*corev1.Pod).Name)
	}
	slices.Sort(names)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = names
}

func (k *podWatch) watches(from string) {
	revision, _ := strconv.Atoi(from) // "" has none
	k.mu.Lock()
	defer k.mu.Unlock()
	k.from = revision
}

// watchesFrom waits until the last watch is from that revision or a later one, and returns it.
func (k *podWatch) watchesFrom(at int) (revision int) {
	k.t.Helper()
	k.until(fmt.Sprintf("watches from revision %d", at), func() bool { revision = k.from; return revision >= at })
	return revision
}

// sees waits until it knows these pods, and no others for a while.
func (k *podWatch) sees(names ...string) {
	k.t.Helper()
	same := func() bool { return slices.Equal(k.pods, names) }
	k.until(fmt.Sprintf("knows %q", names), same)
	time.Sleep(3 * time.Second)
	k.until(fmt.Sprintf("knows %q", names), same)
}

func (k *podWatch) until(what string, so func() bool) {
	k.t.Helper()
	for range 600 {
		k.mu.Lock()
		done := so()
		k.mu.Unlock()
		if done {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.t.Fatalf("after a minute it is not so that the kubelet %s: it knows %q, and watches from revision %d", what, k.pods, k.from)
}
