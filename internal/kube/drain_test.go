package kube_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
)

// web is a Deployment with that many pods and an emptyDir in each.
func web(replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "web", Image: "web"}},
					Volumes:    []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
				},
			},
		},
	}
}

// bare is a pod on wk1 that no controller would bring back.
func bare(command ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bare", Namespace: "default"},
		Spec:       corev1.PodSpec{NodeName: "wk1", Containers: []corev1.Container{{Name: "bare", Command: command}}},
	}
}

func budget(minAvailable int) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt(minAvailable)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
	}
}

// podsOn lists the pods on a node without the generated ends of their names.
func (l *lab) podsOn(t *testing.T, node string) []string {
	t.Helper()
	objects, _, err := l.Store().List(t.Context(), store.Pods(), "")
	must.Do(t, err)
	names := []string{}
	for _, o := range objects {
		if p := o.(*corev1.Pod); p.Spec.NodeName == node {
			names = append(names, strings.TrimSuffix(p.Name, "-"+p.Name[strings.LastIndex(p.Name, "-")+1:]))
		}
	}
	return names
}

// loaded is a lab whose nodes run these objects, and a client whose run has cordoned wk1.
func loaded(t *testing.T, nodes []string, objects ...store.Object) (*lab, *kube.Client) {
	t.Helper()
	l := newLab(t, nodes...)
	for _, o := range objects {
		l.put(t, map[string]schema.GroupVersionResource{
			"*v1.Deployment": store.Deployments(), "*v1.PodDisruptionBudget": store.Budgets(),
			"*v1.Pod": store.Pods(), "*v1.StatefulSet": store.StatefulSets(),
		}[fmt.Sprintf("%T", o)], o)
	}
	time.Sleep(20 * time.Second)
	return l, l.cordoned(t)
}

// cordoned is a client whose run has cordoned wk1.
func (l *lab) cordoned(t *testing.T) *kube.Client {
	t.Helper()
	c := l.client(t, "system:masters")
	must.Do(t, c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}))
	return c
}

// drain drains wk1 within a minute or as the options say.
func drain(t *testing.T, c *kube.Client, o cluster.DrainOptions) (said []string, err error) {
	t.Helper()
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	err = c.Drain(t.Context(), "wk1", o, func(s string) { said = append(said, s) })
	return said, err
}

func TestDrainEvictsAllButTheNodesOwnPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := loaded(t, []string{"wk1", "wk2"}, web(3), budget(2))
		said := must.Get(drain(t, c, cluster.DrainOptions{}))(t)
		must.Equal(t, "pods left on wk1", []string{"kube-flannel", "kube-proxy"}, l.podsOn(t, "wk1"))
		must.Hold(t, regexp.MustCompile(`(?m)^pod default/web-.* is gone$`).MatchString(strings.Join(said, "\n")), "no line about a pod of web: %q", said)
	})
}

func TestDrainNamesTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := loaded(t, []string{"wk1"}, web(1), budget(1))
		start := time.Now()
		said, err := drain(t, c, cluster.DrainOptions{Timeout: 30 * time.Second})
		must.Fail(t, err, "PodDisruptionBudget default/web needs 1 healthy pods and has 1 currently)")
		must.Take(t, start, 30*time.Second, 35*time.Second)
		must.Equal(t, "hints", 1, len(fault.Hints(err)))
		must.Equal(t, "refusals said", 1, strings.Count(fmt.Sprint(said), "violate the pod's disruption budget"))
	})
}

func TestDrainRefusesToLosePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := loaded(t, []string{"wk1"}, web(1), bare())
		before := l.podsOn(t, "wk1")
		err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {})
		must.FailAs(t, err, fault.Refused, "default/bare")
		must.Equal(t, "pods changed", before, l.podsOn(t, "wk1"))
		must.Do(t, c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute, Force: true}, func(string) {}))
	})
}

func TestDrainEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := loaded(t, []string{"wk1"}, web(1), budget(1))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		err := c.Drain(ctx, "wk1", cluster.DrainOptions{Timeout: time.Hour}, func(string) {})
		must.Fail(t, err, context.Canceled.Error())
		must.Hold(t, ctx.Err() != nil, "it ended before its context")
	})
}

func TestAttachedVolumesFollowTheirPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1", "wk2")
		l.put(t, store.Volumes(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv1"},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.proxmox.sinextra.dev", VolumeHandle: "vm-9999-pv1"},
			}},
		})
		l.put(t, store.Claims(), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "default"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv1"},
		})
		d := web(1)
		d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
		l.put(t, store.Deployments(), d)
		time.Sleep(20 * time.Second)
		c := l.client(t, "system:masters")
		attached := func(node string) int {
			return len(must.Get(c.AttachedVolumes(t.Context(), node))(t))
		}
		from, to := "wk1", "wk2"
		if attached(from) == 0 {
			from, to = to, from
		}
		must.Do(t, c.Cordon(t.Context(), from, cluster.Mark{Run: "r1"}))
		must.Do(t, c.Drain(t.Context(), from, cluster.DrainOptions{Timeout: time.Minute}, func(string) {}))
		must.Equal(t, "volumes attached right after the drain", 1, attached(from))
		time.Sleep(5 * time.Second)
		must.Equal(t, "volumes attached to the old and new node", []int{0, 1}, []int{attached(from), attached(to)})
	})
}

func (l *lab) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return must.Get(l.Store().Get(t.Context(), store.Pods(), "default", name))(t).(*corev1.Pod)
}

// TestDrainSparesNextPodOfSameName: between our look and our eviction someone
// deletes a StatefulSet's pod, and the next one of its name starts elsewhere.
func TestDrainSparesNextPodOfSameName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		l.put(t, store.StatefulSets(), &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "default"},
			Spec: appsv1.StatefulSetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, Template: web(1).Spec.Template,
			},
		})
		time.Sleep(20 * time.Second)
		c := l.cordoned(t)
		l.NodeUp(node("wk2", 1))
		time.Sleep(20 * time.Second)
		next := &corev1.Pod{}
		l.calls.Hooks(func(c record.Call) error {
			if !strings.Contains(c.Path, "/db-0/eviction") {
				return nil
			}
			l.calls.Hooks(nil, nil)
			_, err := l.Store().Delete(t.Context(), store.Pods(), "default", "db-0", metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
			time.Sleep(5 * time.Second)
			next = l.pod(t, "db-0")
			return err
		}, nil)
		must.Do(t, c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {}))
		time.Sleep(5 * time.Second)
		p := l.pod(t, "db-0")
		must.Hold(t, p.UID == next.UID && p.DeletionTimestamp == nil && p.Spec.NodeName == "wk2", "db-0 is %+v, the next one was %+v", p, next)
	})
}

// TestDrainRespectsRequestedPause: a requested pause is respected, but never beyond the deadline.
func TestDrainRespectsRequestedPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := loaded(t, []string{"wk1"}, web(1))
		var asked []time.Duration
		start := time.Now()
		l.SetWebhook("busy.example.com", func(r kubeapi.Request) *metav1.Status {
			if r.Resource != "pods/eviction" || r.Namespace != "default" {
				return nil
			}
			asked = append(asked, time.Since(start).Round(time.Second))
			seconds := map[int]int32{1: 8, 2: 3600}[len(asked)]
			if seconds == 0 {
				return nil
			}
			return &metav1.Status{
				Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "slowly",
				Details: &metav1.StatusDetails{RetryAfterSeconds: seconds},
			}
		})
		must.Do(t, c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: 2 * time.Minute}, func(string) {}))
		must.Hold(t, len(asked) == 3 && asked[1]-asked[0] >= 8*time.Second && asked[1]-asked[0] <= 12*time.Second && asked[2]-asked[1] <= 34*time.Second,
			"asked at %v", asked)
	})
}

// TestDrainDeletesOnlyWhatWasRefused: a pod that is merely slow is not deleted.
func TestDrainDeletesOnlyWhatWasRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		l.put(t, store.Deployments(), web(1))
		l.put(t, store.Budgets(), budget(1))
		slow := web(1)
		slow.Name, slow.Spec.Selector.MatchLabels = "slow", map[string]string{"app": "slow"}
		slow.Spec.Template.Labels = map[string]string{"app": "slow"}
		slow.Spec.Template.Spec.Containers[0].Command = []string{"sleep", "infinity"}
		slow.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(90))
		l.put(t, store.Deployments(), slow)
		time.Sleep(20 * time.Second)
		c := l.cordoned(t)
		start := time.Now()
		said := must.Get(drain(t, c, cluster.DrainOptions{Delete: true}))(t)
		must.Take(t, start, 90*time.Second, 100*time.Second)
		var deleted []string
		for _, call := range l.calls.Calls() {
			if call.Method == http.MethodDelete {
				deleted = append(deleted, call.Path)
			}
		}
		must.Equal(t, "told", 1, strings.Count("\n"+strings.Join(said, "\n"), "\ndeleting pod "))
		must.Hold(t, len(deleted) == 1 && strings.HasPrefix(deleted[0], "/api/v1/namespaces/default/pods/web-"), "deleted %q", deleted)
	})
}

// TestDrainWaitsForTerminatingBarePod: no controller would recreate it, but someone has deleted it.
func TestDrainWaitsForTerminatingBarePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := loaded(t, []string{"wk1"}, bare("sleep"))
		must.Get(l.Store().Delete(t.Context(), store.Pods(), "default", "bare", metav1.DeleteOptions{}))(t)
		start := time.Now()
		must.Do(t, c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {}))
		must.Take(t, start, 28*time.Second, time.Hour)
	})
}

func TestDrainOfANodeThatTakesPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		err := l.client(t, "system:masters").Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {})
		must.FailAs(t, err, fault.Refused, "node wk1 is schedulable")
	})
}

// TestDrainTellsHowLongItWasRefused: a busy API refuses nothing.
func TestDrainTellsHowLongItWasRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := loaded(t, []string{"wk1"}, web(1))
		start := time.Now()
		l.SetWebhook("hours.example.com", func(r kubeapi.Request) *metav1.Status {
			switch {
			case r.Resource != "pods/eviction":
				return nil
			case time.Since(start) < 19*time.Second:
				return &metav1.Status{Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "slowly"}
			}
			return &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "not during trading hours"}
		})
		said := must.Get(drain(t, c, cluster.DrainOptions{Delete: true}))(t)
		must.Contain(t, "said", strings.Join(said, "\n"), "which was refused for 40s (roll.drain.onTimeout: delete)")
	})
}

// TestDrainWithoutTheRightToReadBudgets: budgets only improve messages.
func TestDrainWithoutTheRightToReadBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		l.put(t, store.Deployments(), web(1))
		one, other := budget(1), budget(1)
		other.Name = "web-too"
		l.put(t, store.Budgets(), one)
		l.put(t, store.Budgets(), other)
		time.Sleep(20 * time.Second)
		l.Grant("recast", func(r kubeapi.Request) bool { return r.Resource != "poddisruptionbudgets" })
		c := l.client(t, "recast")
		must.Do(t, c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}))
		start := time.Now()
		err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {})
		must.FailAs(t, err, fault.Failed, "(This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.)")
		must.Take(t, start, time.Minute, time.Hour)
	})
}

// TestDrainLeavesForeignDaemonSets: another group's kind of that name recreates its
// pods on a cordoned node as Kubernetes' own does.
func TestDrainLeavesForeignDaemonSets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		pod := func(name string, phase corev1.PodPhase) {
			l.put(t, store.Pods(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "apps.kruise.io/v1alpha1", Kind: "DaemonSet", Name: "agent", UID: "ads-1", Controller: new(true)},
				}},
				Spec:   corev1.PodSpec{NodeName: "wk1", Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
				Status: corev1.PodStatus{Phase: phase},
			})
		}
		pod("agent-x", corev1.PodRunning)
		time.Sleep(20 * time.Second)
		pod("agent-y", corev1.PodFailed)
		c := l.client(t, "system:masters")
		for _, force := range []bool{false, true} {
			must.Do(t, c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}))
			must.Do(t, c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute, Force: force}, func(string) {}))
			must.Equal(t, "pods left on wk1, force", []string{"agent", "kube-flannel", "kube-proxy"}, l.podsOn(t, "wk1"))
		}
	})
}

type page struct {
	code int
	body string
}

// serve answers each path with its page, and others as an API server does for unknown paths.
func serve(t *testing.T, pages map[string]page) *kube.Client {
	t.Helper()
	return serveEach(t, func(r *http.Request) (page, bool) {
		p, ok := pages[r.URL.Path]
		return p, ok
	})
}

// serveEach is serve with an answer to each request.
func serveEach(t *testing.T, answer func(*http.Request) (page, bool)) *kube.Client {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := answer(r)
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(p.code)
		_, _ = io.WriteString(w, p.body) // a client that is gone needs no answer
	}))
	t.Cleanup(srv.Close)
	kubeconfig := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: x, cluster: {server: %q}}]\n"+
		"users: [{name: x, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n", srv.URL)
	c := must.Get(kube.New([]byte(kubeconfig), kube.Options{}))(t)
	t.Cleanup(func() { must.Do(t, c.Close()) })
	return c
}

// forbidden is the answer without any RBAC rights.
func forbidden(t *testing.T, resource, group string) page {
	t.Helper()
	b, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden,
		Message: fmt.Sprintf("%s is forbidden: User \"ci\" cannot list resource %q in API group %q at the cluster scope", resource, resource, group),
		Details: &metav1.StatusDetails{Group: group, Kind: resource},
	})
	must.Do(t, err)
	return page{http.StatusForbidden, string(b)}
}

// finePages are the answers of a server with everything installed and nothing in it.
func finePages() map[string]page {
	group := func(name, version string) string {
		return fmt.Sprintf(`{"name":%q,"versions":[{"groupVersion":"%s/%s","version":%q}],"preferredVersion":{"groupVersion":"%s/%s","version":%q}}`,
			name, name, version, version, name, version, version)
	}
	return map[string]page{
		"/api/v1/nodes/wk1":         {200, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"wk1","labels":{"kubernetes.io/hostname":"wk1"}}}`},
		"/api/v1/persistentvolumes": {200, `{"kind":"PersistentVolumeList","apiVersion":"v1","items":[]}`},
		"/apis": {200, `{"kind":"APIGroupList","apiVersion":"v1","groups":[` + strings.Join([]string{
			group("longhorn.io", "v1beta2"), group("piraeus.io", "v1"), group("ceph.rook.io", "v1"), group("tuppr.home-operations.com", "v1alpha1"), group("upgrade.cattle.io", "v1"),
		}, ",") + `]}`},
		"/api/v1/pods":                                            {200, `{"kind":"PodList","apiVersion":"v1","items":[]}`},
		"/apis/piraeus.io/v1/linstorsatellites":                   {200, `{"items":[]}`},
		"/apis/longhorn.io/v1beta2/nodes":                         {200, `{"items":[]}`},
		"/apis/ceph.rook.io/v1/cephclusters":                      {200, `{"items":[]}`},
		"/apis/upgrade.cattle.io/v1/plans":                        {200, `{"items":[]}`},
		"/apis/tuppr.home-operations.com/v1alpha1":                {200, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"x/v1","resources":[{"name":"talosupgrades","kind":"TalosUpgrade"},{"name":"talosupgrades/status","kind":"TalosUpgrade"}]}`},
		"/apis/certificates.k8s.io/v1/certificatesigningrequests": {200, `{"kind":"CertificateSigningRequestList","apiVersion":"certificates.k8s.io/v1","items":[]}`},
		"/apis/tuppr.home-operations.com/v1alpha1/talosupgrades":  {200, `{"items":[]}`},
	}
}

// What cannot be read must not count as missing.
func TestReadsFailClosed(t *testing.T) {
	t.Parallel()
	fine := finePages()
	data := func(c *kube.Client, t *testing.T) error {
		_, err := c.LocalData(t.Context(), cluster.KubeNode{Name: "wk1"})
		return err
	}
	owners := func(c *kube.Client, t *testing.T) error { _, err := c.OtherOwners(t.Context()); return err }
	certificates := func(c *kube.Client, t *testing.T) error {
		_, err := c.PendingCertificates(t.Context(), "wk1")
		return err
	}
	type row struct {
		read func(*kube.Client, *testing.T) error
		path string // "": no fault
		page page
		want string
		kind fault.Kind
	}
	cases := map[string]row{
		"local data":   {read: data},
		"owners":       {read: owners},
		"certificates": {read: certificates},
		"volumes forbidden": {
			data, "/api/v1/persistentvolumes", forbidden(t, "persistentvolumes", ""), `list persistent volumes: persistentvolumes is forbidden`, fault.Refused,
		},
		"pods forbidden": {data, "/api/v1/pods", forbidden(t, "pods", ""), "list pods: pods is forbidden", fault.Refused},
		"Piraeus forbidden": {
			data, "/apis/piraeus.io/v1/linstorsatellites", forbidden(t, "linstorsatellites", "piraeus.io"), "list linstorsatellites.piraeus.io: ", fault.Refused,
		},
		"Longhorn forbidden": {
			data, "/apis/longhorn.io/v1beta2/nodes", forbidden(t, "nodes", "longhorn.io"),
			`list nodes.longhorn.io: nodes is forbidden: User "ci" cannot list resource "nodes" in API group "longhorn.io"`, fault.Refused,
		},
		"Longhorn gone meanwhile": {data, "/apis/longhorn.io/v1beta2/nodes", page{404, "404 page not found"}, "list nodes.longhorn.io: ", fault.Failed},
		"no list":                 {data, "/apis/longhorn.io/v1beta2/nodes", page{200, `{"kind":"Other"}`}, "list nodes.longhorn.io: the answer is not a list", fault.Failed},
		"no JSON":                 {data, "/apis/longhorn.io/v1beta2/nodes", page{200, `<html>`}, "list nodes.longhorn.io: read the answer", fault.Failed},
		"Rook forbidden": {
			data, "/apis/ceph.rook.io/v1/cephclusters", forbidden(t, "cephclusters", "ceph.rook.io"), "list cephclusters.ceph.rook.io: ", fault.Refused,
		},
		"discovery forbidden":  {data, "/apis", forbidden(t, "", ""), "list API groups: ", fault.Refused},
		"discovery of a proxy": {owners, "/apis", page{404, "404 page not found"}, "list API groups: ", fault.Failed},
		"tuppr forbidden": {
			owners, "/apis/tuppr.home-operations.com/v1alpha1/talosupgrades", forbidden(t, "talosupgrades", "tuppr.home-operations.com"),
			"list talosupgrades.tuppr.home-operations.com: ", fault.Refused,
		},
		"plans forbidden": {owners, "/apis/upgrade.cattle.io/v1/plans", forbidden(t, "plans", "upgrade.cattle.io"), "list plans.upgrade.cattle.io: ", fault.Refused},
		"certificates forbidden": {
			certificates, "/apis/certificates.k8s.io/v1/certificatesigningrequests", forbidden(t, "certificatesigningrequests", "certificates.k8s.io"),
			"list certificate signing requests: ", fault.Refused,
		},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		pages := maps.Clone(fine)
		if tc.path != "" {
			pages[tc.path] = tc.page
		}
		err := tc.read(serve(t, pages), t)
		if tc.path == "" {
			must.Do(t, err)
			return
		}
		must.FailAs(t, err, tc.kind, tc.want)
		must.Hold(t, !errors.Is(err, cluster.ErrNotFound), "err = %v", err)
		must.Hold(t, tc.kind != fault.Refused || len(fault.Hints(err)) == 1, "hints = %q", fault.Hints(err))
	})
}

// Everything that Kubernetes and its objects say becomes one line without escape sequences.
func TestForeignTextIsOneLine(t *testing.T) {
	t.Parallel()
	evil := string(must.Get(json.Marshal("bad\x1b[31m\x1b]0;title\a\r\nfake line: \u202e\u2028\x7f"))(t))
	refusal := func(code, reason string) string {
		return `{"kind":"Status","apiVersion":"v1","status":"Failure","message":` + evil + `,"reason":"` + reason + `","code":` + code + `}`
	}
	owners := func(c *kube.Client) (string, error) { _, err := c.OtherOwners(t.Context()); return "", err }
	type row struct {
		path string
		page page
		ask  func(*kube.Client) (string, error)
	}
	must.Each(t, map[string]row{
		"forbidden":    {"/apis/upgrade.cattle.io/v1/plans", page{403, refusal("403", "Forbidden")}, owners},
		"unauthorized": {"/apis/upgrade.cattle.io/v1/plans", page{401, refusal("401", "Unauthorized")}, owners},
		"broken":       {"/apis/upgrade.cattle.io/v1/plans", page{400, refusal("400", "BadRequest")}, owners},
		"volume attachment": {
			"/apis/storage.k8s.io/v1/volumeattachments",
			page{200, `{"kind":"VolumeAttachmentList","apiVersion":"storage.k8s.io/v1","items":[{"metadata":{"name":"a"},"spec":{"attacher":"x","nodeName":"wk1","source":{}},"status":{"attached":true,"detachError":{"message":` + evil + `}}}]}`},
			func(c *kube.Client) (string, error) {
				volumes, err := c.AttachedVolumes(t.Context(), "wk1")
				return volumes[0].Trouble, err
			},
		},
		"gate": {
			"/api/v1/nodes",
			page{200, `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":` + evil + `,"annotations":{"note":` + evil + `}}}]}`},
			func(c *kube.Client) (string, error) {
				judged, err := c.Judge(t.Context(), cluster.ObjectGate{APIVersion: "v1", Kind: "Node", Expr: `metadata.annotations.note == "fine"`})
				return judged.Failing[0].Name + ": " + judged.Failing[0].Why, err
			},
		},
		"waiting container": {
			"/api/v1/namespaces/kube-system/pods",
			page{200, `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"p","annotations":{"kubernetes.io/config.mirror":"x"}},"spec":{"containers":[]},"status":{"containerStatuses":[{"state":{"waiting":{"reason":"CrashLoopBackOff","message":` + evil + `}}}]}}]}`},
			func(c *kube.Client) (string, error) {
				pods, err := c.StaticPods(t.Context())
				return pods[0].Why, err
			},
		},
	}, func(t *testing.T, c row) {
		pages := finePages()
		pages["/api/v1"] = page{200, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[{"name":"nodes","kind":"Node","verbs":["list"]}]}`}
		pages[c.path] = c.page
		text, err := c.ask(serve(t, pages))
		if err != nil {
			text = err.Error()
		}
		must.Contain(t, "text", text, "bad", "fake line")
		must.Hold(t, !strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f"), "%q", text)
	})
}

// TestListThatExpires: a list whose revision etcd drops while it is read is
// restarted, without what was read of it; not for ever.
func TestListThatExpires(t *testing.T) {
	t.Parallel()
	const expired = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old"}`
	type row struct {
		expires int // how often the second page does
		want    []string
		err     string
	}
	must.Each(t, map[string]row{
		"never":    {0, []string{"wk1", "wk2"}, ""},
		"once":     {1, []string{"wk1", "wk2"}, ""},
		"for ever": {99, nil, "list nodes: the list went out of date while it was read, 3 times in a row: too old"},
	}, func(t *testing.T, tc row) {
		left := tc.expires
		c := serveEach(t, func(r *http.Request) (page, bool) {
			q := r.URL.Query()
			must.Equal(t, "asked for", "500", q.Get("limit"))
			node, next := "wk1", "second"
			if q.Get("continue") != "" {
				node, next = "wk2", ""
				if left--; left >= 0 {
					return page{http.StatusGone, expired}, true
				}
			}
			return page{http.StatusOK, fmt.Sprintf(`{"kind":"NodeList","apiVersion":"v1","metadata":{"continue":%q},"items":[{"metadata":{"name":%q}}]}`, next, node)}, true
		})
		nodes, err := c.Nodes(t.Context())
		must.Fail(t, err, tc.err)
		must.Equal(t, "got", tc.want, cluster.Each(nodes, func(n cluster.KubeNode) string { return n.Name }), cmpopts.EquateEmpty())
	})
}

// TestLocalDataAsksOnce: everything is listed once for all nodes, whatever storage systems there are.
func TestLocalDataAsksOnce(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		names := []string{"wk1", "wk2", "wk3"}
		l := newLab(t, names...)
		time.Sleep(10 * time.Second)
		satellite := l.install(t, "piraeus.io", "v1", "linstorsatellites", "LinstorSatellite", false)
		longhorn := l.install(t, "longhorn.io", "v1beta2", "nodes", "Node", true)
		ceph := l.install(t, "ceph.rook.io", "v1", "cephclusters", "CephCluster", true)
		for _, name := range names {
			satellite("", name, map[string]any{"spec": map[string]any{"storagePools": []any{map[string]any{"name": name, "lvmPool": map[string]any{}}}}})
			longhorn("longhorn-system", name, longhornNode(map[string]any{"d": map[string]any{"diskType": "filesystem", "path": "/var/mnt/" + name}}, nil))
		}
		ceph("rook-ceph", "rook-ceph", map[string]any{"spec": map[string]any{"dataDirHostPath": "/var/lib/rook"}})
		c := l.client(t, "system:masters")
		nodes := must.Get(c.Nodes(t.Context()))(t)
		from := len(l.calls.Calls())
		data := must.Get(c.LocalData(t.Context(), nodes...))(t)
		asked := map[string]int{}
		for _, call := range l.calls.Calls()[from:] {
			path, _, _ := strings.Cut(call.Path, "?")
			asked[path]++
		}
		must.Equal(t, "asked", map[string]int{
			"/apis": 1, "/apis/piraeus.io/v1/linstorsatellites": 1, "/apis/longhorn.io/v1beta2/nodes": 1, "/apis/ceph.rook.io/v1/cephclusters": 1,
			"/apis/apps/v1/namespaces/rook-ceph/deployments": 1, "/api/v1/namespaces/rook-ceph/pods": 1, "/api/v1/pods": 1, "/api/v1/persistentvolumes": 1,
		}, asked)
		for _, name := range names {
			what := cluster.Each(data[name], func(d cluster.LocalData) string { return d.Name })
			must.Equal(t, name, []string{"linstor/" + name, "longhorn/var/mnt/" + name}, what)
		}
		must.Equal(t, "alone", map[string][]cluster.LocalData{"wk2": data["wk2"]}, must.Get(c.LocalData(t.Context(), nodes[1]))(t))
	})
}

// ownPod is a pod of a Job on wk1. Like those of the real Job controller it has a finalizer, so that it
// stays after its end until it was counted.
func (l *lab) ownPod(t *testing.T, owner string) cluster.OwnPod {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "roll-x", Namespace: "default", Labels: map[string]string{"app": "web"}, Finalizers: []string{"batch.kubernetes.io/job-tracking"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: owner, Name: "roll", UID: "job", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "wk1", Containers: []corev1.Container{{Name: "recast", Image: "recast"}}},
	}
	l.put(t, store.Pods(), p)
	time.Sleep(5 * time.Second)
	return cluster.OwnPod{Namespace: "default", Name: "roll-x", UID: string(l.pod(t, "roll-x").UID)}
}

// in is a client that runs in a pod.
func (l *lab) in(t *testing.T, own cluster.OwnPod) *kube.Client {
	t.Helper()
	return connectAs(t, own, l.net, l.ca.CrtPEM, issue(t, l.ca, "admin", "system:masters"))
}

func TestOwnNode(t *testing.T) {
	type row struct {
		owner string
		change
		want, err string
		kind      fault.Kind
	}
	cases := map[string]row{
		"its pod":                  {want: "wk1"},
		"no pod":                   {change: func(_ *lab, p *cluster.OwnPod) { *p = cluster.OwnPod{} }},
		"another cluster's":        {change: func(_ *lab, p *cluster.OwnPod) { p.UID = "another" }},
		"another cluster's, by ns": {change: func(_ *lab, p *cluster.OwnPod) { p.Namespace = "another" }},
		"one that never leaves":    {owner: "DaemonSet", err: "a DaemonSet pod, which a drain leaves on its node", kind: fault.Refused},
		"no answer":                {change: func(l *lab, _ *cluster.OwnPod) { l.fails("connection reset by peer") }, err: "read pod default/roll-x: no answer from"},
	}
	must.Bubbles(t, cases, func(t *testing.T, c row) {
		l := newLab(t, "wk1")
		own := l.ownPod(t, cmp.Or(c.owner, "Job"))
		if c.change != nil {
			c.change(l, &own)
		}
		got, err := l.in(t, own).OwnNode(t.Context())
		must.Equal(t, "node", c.want, got)
		must.FailAs(t, err, c.kind, c.err)
	})
}

type change func(*lab, *cluster.OwnPod)

func (l *lab) fails(why string) {
	l.calls.Hooks(func(record.Call) error { return errors.New(why) }, nil)
}

// TestDrainOfOwnNode: recast's own pod is evicted last, and the drain does not wait for its end.
func TestDrainOfOwnNode(t *testing.T) {
	type row struct {
		before, during func(*testing.T, *lab)
		of             func(*cluster.OwnPod) // what the environment says
		delete         bool
		kind           fault.Kind
		err            string
		last           string // of the pods that it evicts or deletes
		spared         bool   // it does not evict its own pod
		took           time.Duration
	}
	cases := map[string]row{
		"it goes last": {kind: fault.Interrupted, err: "this run's own pod was evicted from wk1; the roll continues", last: "evicting pod default/roll-x", took: 10 * time.Second},
		"the name of a pod of another cluster": {
			of: func(p *cluster.OwnPod) { p.UID = "another" }, kind: fault.Failed, err: "roll-x (still terminating, waiting for finalizers", took: 70 * time.Second,
		},
		"someone else evicts it first": {
			before: stubbornWeb, during: evicts("roll-x"),
			kind: fault.Interrupted, err: "this run's own pod was evicted from wk1", spared: true, took: 15 * time.Second,
		},
		"others never leave": {
			before: guardedWeb, kind: fault.Failed, err: "default/roll-x (recast runs in it, so it goes last); default/web-", spared: true, took: 70 * time.Second,
		},
		"a budget forbids its eviction": {
			before: budgeted, kind: fault.Failed, err: "pods left: default/roll-x (PodDisruptionBudget default/web needs 1 healthy pods and has 1 currently)", took: 70 * time.Second,
		},
		"it is deleted in spite of its budget": {
			before: budgeted, delete: true, kind: fault.Interrupted, err: "this run's own pod was evicted from wk1", last: "deleting pod default/roll-x", took: 130 * time.Second,
		},
		"its object is deleted by force": {
			before: stubbornWeb, during: func(t *testing.T, l *lab) { l.forget(t, "roll-x") }, spared: true,
			kind: fault.Interrupted, err: "this run's own pod was evicted from wk1", took: 15 * time.Second,
		},
	}
	must.Bubbles(t, cases, func(t *testing.T, c row) {
		l := newLab(t, "wk1")
		if c.before == nil && c.of == nil {
			l.put(t, store.Deployments(), web(2))
		} else if c.before != nil {
			c.before(t, l)
		}
		own := l.ownPod(t, "Job")
		time.Sleep(20 * time.Second)
		if c.of != nil {
			c.of(&own)
		}
		client := l.in(t, own)
		must.Do(t, client.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}))
		if c.during != nil {
			time.AfterFunc(10*time.Second, func() { c.during(t, l) })
		}
		start := time.Now()
		said, err := drain(t, client, cluster.DrainOptions{Delete: c.delete})
		must.FailAs(t, err, c.kind, c.err)
		must.Take(t, start, 0, c.took)
		evictions := cluster.Where(said, func(s string) bool {
			return strings.HasPrefix(s, "evicting pod ") || strings.HasPrefix(s, "deleting pod ")
		})
		must.Hold(t, len(evictions) >= 2 && strings.HasPrefix(evictions[len(evictions)-1], c.last),
			"it says %q, want %q last", said, c.last)
		must.Equal(t, "its own pod is evicted", !c.spared, slices.Contains(evictions, "evicting pod default/roll-x"))
	})
}

// stubbornWeb has pods that live until their grace period of 30 s is over.
func stubbornWeb(t *testing.T, l *lab) {
	d := web(1)
	d.Spec.Template.Spec.Containers[0].Command = []string{"sleep", "infinity"}
	l.put(t, store.Deployments(), d)
}

func budgeted(t *testing.T, l *lab) { l.put(t, store.Budgets(), budget(1)) }

// guardedWeb has a pod that never leaves.
func guardedWeb(t *testing.T, l *lab) {
	d := web(1)
	d.Spec.Template.Finalizers = []string{"example.com/guard"}
	l.put(t, store.Deployments(), d)
}

func evicts(pod string) func(*testing.T, *lab) {
	return func(t *testing.T, l *lab) {
		must.Pass(t, l.Evict(t.Context(), "default", pod, metav1.DeleteOptions{}))
	}
}

// forget deletes a pod's object at once, whatever its finalizers.
func (l *lab) forget(t *testing.T, pod string) {
	o, err := l.Store().Get(t.Context(), store.Pods(), "default", pod)
	if err == nil {
		fresh := o.(*corev1.Pod).DeepCopy()
		fresh.Finalizers = nil
		_, err = l.Store().Update(t.Context(), store.Pods(), fresh, store.Main)
	}
	if err == nil {
		_, err = l.Store().Delete(t.Context(), store.Pods(), "default", pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	}
	must.Pass(t, err)
}
