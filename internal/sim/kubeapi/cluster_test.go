package kubeapi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
)

// seenNode is the part of a Node that the tests check.
type seenNode struct {
	BootID, Rack string
	Ready        corev1.ConditionStatus
	Taints       []string
}

func look(t *testing.T, c kubernetes.Interface, name string) seenNode {
	t.Helper()
	n := must.Get(c.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
	s := seenNode{BootID: n.Status.NodeInfo.BootID, Rack: n.Labels["rack"]}
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			s.Ready = cond.Status
		}
	}
	for _, taint := range n.Spec.Taints {
		s.Taints = append(s.Taints, taint.ToString())
	}
	return s
}

func TestNodeLeavesAndReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		c := l.client(t, "system:masters")
		step := func(what string, want seenNode) {
			t.Helper()
			if diff := cmp.Diff(want, look(t, c, "wk1")); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", what, diff)
			}
		}
		time.Sleep(time.Second)
		step("registered", seenNode{"boot-1-wk1", "", corev1.ConditionFalse, []string{"node.kubernetes.io/not-ready:NoSchedule"}})
		time.Sleep(9 * time.Second)
		step("up", seenNode{"boot-1-wk1", "", corev1.ConditionTrue, nil})
		if _, err := c.CoreV1().Nodes().Patch(t.Context(), "wk1", "application/merge-patch+json",
			[]byte(`{"metadata":{"labels":{"rack":"a"}},"spec":{"taints":[{"key":"gpu","effect":"NoSchedule"}]}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}

		l.NodeDown(node("wk1", 0).UUID)
		time.Sleep(39 * time.Second)
		step("silent, not noticed yet", seenNode{"boot-1-wk1", "a", corev1.ConditionTrue, []string{"gpu:NoSchedule"}})
		time.Sleep(2 * time.Second)
		step("silent", seenNode{"boot-1-wk1", "a", corev1.ConditionUnknown, []string{
			"gpu:NoSchedule", "node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute",
		}})

		again := node("wk1", 0)
		again.BootID = "boot-2-wk1"
		l.NodeUp(again)
		time.Sleep(time.Second)
		step("booting again", seenNode{"boot-2-wk1", "a", corev1.ConditionFalse, []string{"gpu:NoSchedule", "node.kubernetes.io/not-ready:NoSchedule"}})
		time.Sleep(9 * time.Second)
		step("up again", seenNode{"boot-2-wk1", "a", corev1.ConditionTrue, []string{"gpu:NoSchedule"}})
	})
}

func TestPodsOfALostNodeStayTerminating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1", "wk2")
		c := l.client(t, "system:masters")
		deploy(t, c, "web", 2)
		time.Sleep(20 * time.Second)
		phases := func() map[string]int {
			pods := must.Get(c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"}))(t)
			count := map[string]int{}
			for _, p := range pods.Items {
				what := p.Spec.NodeName + " " + string(p.Status.Phase)
				if p.DeletionTimestamp != nil {
					what += " terminating"
				}
				count[what]++
			}
			return count
		}
		if diff := cmp.Diff(map[string]int{"wk1 Running": 1, "wk2 Running": 1}, phases()); diff != "" {
			t.Fatalf("at first (-want +got):\n%s", diff)
		}
		l.NodeDown(node("wk1", 0).UUID)
		time.Sleep(10 * time.Minute)
		if diff := cmp.Diff(map[string]int{"wk1 Running terminating": 1, "wk2 Running": 2}, phases()); diff != "" {
			t.Fatalf("node lost (-want +got):\n%s", diff)
		}
		l.NodeUp(node("wk1", 0))
		time.Sleep(10 * time.Second)
		if diff := cmp.Diff(map[string]int{"wk2 Running": 2}, phases()); diff != "" {
			t.Fatalf("node back (-want +got):\n%s", diff)
		}
	})
}

// static is a static pod of that version, ready or waiting for a reason.
func static(component, version, waiting string) kubeapi.StaticPod {
	return kubeapi.StaticPod{
		Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: component, Namespace: "kube-system", Labels: map[string]string{"tier": "control-plane"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: component, Image: "registry.k8s.io/" + component + ":" + version}}},
		},
		Hash: component + version, Ready: waiting == "", Waiting: waiting, Started: time.Now(),
	}
}

// TestMirrorPods: the API shows a kubelet's static pods, a new version of one as a new
// pod, and keeps them while the kubelet is down.
func TestMirrorPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "cp1")
		c, uuid := l.client(t, "system:masters"), node("cp1", 0).UUID
		show := func(step string, want ...string) (uids map[string]types.UID) {
			t.Helper()
			time.Sleep(20 * time.Second)
			pods := must.Get(c.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "tier=control-plane"}))(t)
			var got []string
			uids = map[string]types.UID{}
			for _, p := range pods.Items {
				_, version, _ := strings.Cut(p.Spec.Containers[0].Image, ":")
				ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
				line := fmt.Sprintf("%s %s ready=%v", p.Name, version, ready)
				if w := p.Status.ContainerStatuses[0].State.Waiting; w != nil {
					line += " " + w.Reason
				}
				got, uids[p.Name] = append(got, line), p.UID
			}
			must.Equal(t, step, want, got)
			return uids
		}
		l.StaticPods(uuid, []kubeapi.StaticPod{static("kube-apiserver", "v1", ""), static("kube-scheduler", "v1", "")})
		before := show("at first", "kube-apiserver-cp1 v1 ready=true", "kube-scheduler-cp1 v1 ready=true")
		l.StaticPods(uuid, []kubeapi.StaticPod{static("kube-apiserver", "v2", "ErrImagePull"), static("kube-scheduler", "v1", "")})
		after := show("another version", "kube-apiserver-cp1 v2 ready=false ErrImagePull", "kube-scheduler-cp1 v1 ready=true")
		if before["kube-apiserver-cp1"] == after["kube-apiserver-cp1"] || before["kube-scheduler-cp1"] != after["kube-scheduler-cp1"] {
			t.Errorf("UIDs before %v, after %v", before, after)
		}
		l.NodeDown(uuid)
		show("without a kubelet", "kube-apiserver-cp1 v2 ready=false ErrImagePull", "kube-scheduler-cp1 v1 ready=true")
		l.NodeUp(node("cp1", 0))
		show("before it tells", "kube-apiserver-cp1 v2 ready=false ErrImagePull", "kube-scheduler-cp1 v1 ready=false")
		l.StaticPods(uuid, []kubeapi.StaticPod{static("kube-apiserver", "v2", "")})
		show("one is removed", "kube-apiserver-cp1 v2 ready=true")
	})
}

func TestSameStorySamePods(t *testing.T) {
	tell := func(t *testing.T) (pods []string) {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, "wk1", "wk2", "wk3")
			c := l.client(t, "system:masters")
			deploy(t, c, "web", 6)
			deploy(t, c, "db", 3)
			time.Sleep(20 * time.Second)
			l.NodeDown(node("wk2", 1).UUID)
			time.Sleep(10 * time.Minute)
			list := must.Get(c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}))(t)
			for _, p := range list.Items {
				pods = append(pods, p.Name+" on "+p.Spec.NodeName+" "+string(p.UID))
			}
		})
		return pods
	}
	must.Equal(t, "the same story told twice (-first +second)", tell(t), tell(t))
}

// TestNodeLeases: a running kubelet renews its Lease, one that is off does not, and the Lease goes with its Node.
func TestNodeLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1", "wk2")
		c := l.client(t, "system:masters")
		renewed := func() map[string]time.Duration {
			t.Helper()
			time.Sleep(15 * time.Second)
			leases := must.Get(c.CoordinationV1().Leases("kube-node-lease").List(t.Context(), metav1.ListOptions{}))(t)
			out := map[string]time.Duration{}
			for _, lease := range leases.Items {
				must.Equal(t, "lease", []any{lease.Name, "Node"}, []any{*lease.Spec.HolderIdentity, lease.OwnerReferences[0].Kind})
				out[lease.Name] = time.Since(lease.Spec.RenewTime.Time).Truncate(10 * time.Second)
			}
			return out
		}
		revision := l.Revision()
		must.Equal(t, "both run", map[string]time.Duration{"wk1": 0, "wk2": 0}, renewed())
		l.NodeDown(node("wk2", 1).UUID)
		must.Equal(t, "wk2 is off", map[string]time.Duration{"wk1": 0, "wk2": 10 * time.Second}, renewed())
		if l.Revision() < revision+3 {
			t.Errorf("the revision went from %d to %d", revision, l.Revision())
		}
		must.Do(t, c.CoreV1().Nodes().Delete(t.Context(), "wk2", metav1.DeleteOptions{}))
		must.Equal(t, "wk2 is deleted", map[string]time.Duration{"wk1": 0}, renewed())
	})
}

var longhornNodes = store.Resource{
	GroupVersionResource: schema.GroupVersionResource{Group: "longhorn.io", Version: "v1beta2", Resource: "nodes"},
	Kind:                 "Node", Namespaced: true, Status: true,
}

func longhornNode(name string, evicting bool, replicas ...string) *unstructured.Unstructured {
	scheduled := map[string]any{}
	for _, r := range replicas {
		scheduled[r] = int64(1 << 30)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "longhorn.io/v1beta2", "kind": "Node", "metadata": map[string]any{"name": name, "namespace": "longhorn-system"},
		"spec": map[string]any{
			"allowScheduling": !evicting, "evictionRequested": evicting,
			"disks": map[string]any{"default-disk": map[string]any{"path": "/var/lib/longhorn/", "allowScheduling": true, "evictionRequested": false}},
		},
		"status": map[string]any{"diskStatus": map[string]any{"default-disk": map[string]any{"diskUUID": name, "scheduledReplica": scheduled}}},
	}}
}

// Longhorn moves replicas from an evicted node to nodes that take replicas and have none of the volume.
func TestLonghornEvicts(t *testing.T) {
	t.Parallel()
	type row struct {
		wk1, wk2 *unstructured.Unstructured
		volumes  []string // with replicas on wk1 in the end
	}
	must.Each(t, map[string]row{
		"nobody asked":           {longhornNode("wk1", false, "a-r-1"), longhornNode("wk2", false), []string{"a-r"}},
		"another node":           {longhornNode("wk1", true, "a-r-1", "b-r-1"), longhornNode("wk2", false), nil},
		"one that has a replica": {longhornNode("wk1", true, "a-r-1", "b-r-1"), longhornNode("wk2", false, "b-r-2"), []string{"b-r"}},
		"one that is evicted":    {longhornNode("wk1", true, "a-r-1"), longhornNode("wk2", true), []string{"a-r"}},
		"no machine of it":       {longhornNode("wk1", true, "a-r-1"), longhornNode("wk9", false), []string{"a-r"}},
	}, func(t *testing.T, tc row) {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, "wk1", "wk2")
			l.Define(longhornNodes)
			for _, n := range []*unstructured.Unstructured{tc.wk1, tc.wk2} {
				must.Get(l.Store().Create(t.Context(), longhornNodes.GroupVersionResource, n))(t)
			}
			time.Sleep(5 * time.Minute)
			count, left := 0, []string(nil)
			objects, _, err := l.Store().List(t.Context(), longhornNodes.GroupVersionResource, "")
			must.Do(t, err)
			for _, o := range objects {
				replicas, _, _ := unstructured.NestedMap(o.(*unstructured.Unstructured).Object, "status", "diskStatus", "default-disk", "scheduledReplica")
				count += len(replicas)
				for r := range replicas {
					if o.GetName() == "wk1" {
						left = append(left, r[:3])
					}
				}
			}
			slices.Sort(left)
			before, _, _ := unstructured.NestedMap(tc.wk1.Object, "status", "diskStatus", "default-disk", "scheduledReplica")
			others, _, _ := unstructured.NestedMap(tc.wk2.Object, "status", "diskStatus", "default-disk", "scheduledReplica")
			if diff := cmp.Diff(tc.volumes, left); diff != "" || count != len(before)+len(others) {
				t.Errorf("%d replicas in all; on wk1 (-want +got):\n%s", count, diff)
			}
		})
	})
}

// Load restores exactly the dumped objects; a new cluster has the bootstrap objects.
func TestDumpAndLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		ctx, s, r := t.Context(), l.Store(), widgets(false)
		l.Define(r)
		must.Get(s.Create(ctx, r.GroupVersionResource, widget("kept", 3)))(t)
		time.Sleep(time.Minute)
		values := func() map[string]string {
			t.Helper()
			all := must.Get(l.Dump(ctx))(t)
			out, revisions := map[string]string{}, []uint64{}
			for _, kv := range all {
				if strings.HasPrefix(kv.Key, "/registry/leases/kube-node-lease/") {
					kv.Value = nil // the kubelet renews it
				}
				out[kv.Key], revisions = string(kv.Value), append(revisions, kv.Revision)
			}
			slices.Sort(revisions)
			must.Equal(t, "revisions that differ", len(all), len(slices.Compact(revisions)))
			return out
		}
		before := values()
		for _, key := range []string{"/registry/minions/wk1", "/registry/example.org/widgets/default/kept", "/registry/deployments/kube-system/coredns"} {
			if before[key] == "" {
				t.Errorf("there is no %s", key)
			}
		}
		dump := must.Get(l.Dump(ctx))(t)
		must.Get(s.Delete(ctx, r.GroupVersionResource, "default", "kept", metav1.DeleteOptions{}))(t)
		must.Get(s.Create(ctx, r.GroupVersionResource, widget("later", 4)))(t)
		must.Do(t, l.Load(dump))
		time.Sleep(time.Minute)
		must.Equal(t, "(-before +after)", before, values())

		must.Do(t, l.Renew(ctx, nil))
		fresh := values()
		if fresh["/registry/namespaces/kube-system"] == "" || fresh["/registry/example.org/widgets/default/kept"] != "" {
			t.Errorf("a new cluster has %d objects", len(fresh))
		}
		if err := l.Load([]kubeapi.Stored{{Key: "/registry/pods/default/web", Value: []byte("k8s\x00what")}}); err == nil {
			t.Error("no error for something that is not an object")
		}
		if _, err := s.Get(ctx, store.Nodes(), "", "wk1"); err == nil {
			t.Error("what could not be read has changed something")
		}
	})
}
