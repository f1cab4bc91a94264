package kube

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
)

// byBudget is an API server's answer when a budget forbids an eviction.
func byBudget(retry int, cause string) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", retry)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: cause})
	return err
}

// covering returns budgets with those names for every pod of the shop.
func covering(names ...string) []policyv1.PodDisruptionBudget {
	var budgets []policyv1.PodDisruptionBudget
	for _, name := range names {
		budgets = append(budgets, policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
			Status:     policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 2, CurrentHealthy: 3},
		})
	}
	return budgets
}

// TestWhy: a pod's budget is quoted in the server's words, and only a refusal counts as one: its pod would be deleted.
func TestWhy(t *testing.T) {
	t.Parallel()
	two := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusInternalServerError, Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."}}
	denied := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Message: "not during trading hours"}}
	const numbers, failed = "The disruption budget web needs 2 healthy pods and has 2 currently", "The disruption budget web does not allow evicting pods currently because it failed sync: jobs.batch does not implement the scale subresource"
	type row struct {
		answer  error
		budgets []policyv1.PodDisruptionBudget
		why     string
		refused bool
		hint    string
	}
	must.Each(t, map[string]row{
		"by its numbers":          {byBudget(0, numbers), covering("web"), "PodDisruptionBudget shop/web needs 2 healthy pods and has 2 currently", true, "loosen its budget"},
		"none listed":             {byBudget(0, numbers), nil, "PodDisruptionBudget shop/web needs 2 healthy pods and has 2 currently", true, "loosen its budget"},
		"a second one since":      {byBudget(0, numbers), covering("web", "web-too"), "PodDisruptionBudget shop/web needs 2 healthy pods and has 2 currently", true, "loosen its budget"},
		"its sync failed":         {byBudget(0, failed), covering("web"), "PodDisruptionBudget shop/web does not allow evicting pods currently because it failed sync: jobs.batch does not implement the scale subresource", true, "loosen its budget"},
		"in other words":          {byBudget(0, "no"), covering("web"), "PodDisruptionBudget in shop: no", true, "loosen its budget"},
		"still processed":         {byBudget(10, "The disruption budget web is still being processed by the server."), covering("web"), "PodDisruptionBudget shop/web is still being processed by the server.", false, ""},
		"two of them":             {two, covering("web", "web-too"), "PodDisruptionBudgets shop/web and shop/web-too cover it, and Kubernetes evicts no pod that more than one covers", true, "change the PodDisruptionBudgets so that only one covers a pod"},
		"two that are not listed": {two, nil, two.ErrStatus.Message, false, ""},
		"denied":                  {denied, nil, "not during trading hours", true, "allow the eviction of that pod"},
		"too busy":                {apierrors.NewTooManyRequestsError("slowly"), nil, "Too many requests: slowly", false, ""},
	}, func(t *testing.T, c row) {
		for _, deletes := range []bool{false, true} {
			l := &leaving{pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-1", Namespace: "shop"}}, answer: c.answer}
			d := &draining{Client: &Client{}, DrainOptions: cluster.DrainOptions{Timeout: time.Minute, Delete: deletes}}
			why, refused := d.why(l, c.budgets)
			must.Equal(t, "why, refused", []any{c.why, c.refused}, []any{why, refused})
			hints := strings.Join(d.hints, "\n")
			must.Not(t, (hints == "") != (c.hint == "") || !strings.Contains(hints, c.hint) || strings.Contains(hints, "onTimeout: delete") != (c.hint != "" && !deletes),
				"deletes: %t, hints %q", deletes, d.hints)
		}
	})
}

// TestRefusedSince counts from the first refusal, and again after anything else.
func TestRefusedSince(t *testing.T) {
	t.Parallel()
	l := &leaving{}
	l.judge("no", true)
	first := l.refused
	if l.judge("no again", true); l.refused != first || first.IsZero() {
		t.Errorf("refused since %s, then since %s", first, l.refused)
	}
	if l.judge("busy", false); !l.refused.IsZero() {
		t.Errorf("refused since %s", l.refused)
	}
}

func TestMayPass(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errors.New("annotation"), apierrors.NewUnauthorized("no"), apierrors.NewBadRequest("no")} {
		must.Not(t, isTransient(err), "%v may pass", err)
	}
}

func TestStays(t *testing.T) {
	t.Parallel()
	of := func(api, kind string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: api, Kind: kind, Controller: new(true)}}}}
	}
	ended := of("apps/v1", "DaemonSet")
	ended.Status.Phase = corev1.PodFailed
	mirror := of("v1", "Node")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "1a2b"}
	type row struct {
		pod           corev1.Pod
		want          string
		irreplaceable bool // after kubectl's own filter
	}
	must.Each(t, map[string]row{
		"bare":                  {corev1.Pod{}, "", true},
		"of a ReplicaSet":       {of("apps/v1", "ReplicaSet"), "", false},
		"of a DaemonSet":        {of("apps/v1", "DaemonSet"), "DaemonSet", true},
		"of one, ended":         {ended, "", false},
		"of OpenKruise's":       {of("apps.kruise.io/v1alpha1", "DaemonSet"), "DaemonSet", false},
		"a static one's mirror": {mirror, "static", false},
	}, func(t *testing.T, c row) {
		must.Equal(t, "irreplaceable", []any{c.want, c.irreplaceable}, []any{stayingKind(&c.pod), irreplaceable(&c.pod)})
	})
}

func TestClaimsOf(t *testing.T) {
	t.Parallel()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-x"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "shared"}}},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}}}
	must.Equal(t, "claims of", []string{"shared", "agent-x-scratch"}, claimsOf(p))
}

func TestStarted(t *testing.T) {
	t.Parallel()
	waits := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	lost := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown"}}
	for name, tc := range map[string]struct {
		containers []corev1.ContainerStatus
		want       bool
	}{
		"no status yet":               {nil, false},
		"being created":               {[]corev1.ContainerStatus{{State: waits("ContainerCreating")}}, false},
		"behind an init container":    {[]corev1.ContainerStatus{{State: waits("PodInitializing")}}, false},
		"created again on a new disk": {[]corev1.ContainerStatus{{State: waits("ContainerCreating"), LastTerminationState: lost}}, false},
		"crashes":                     {[]corev1.ContainerStatus{{State: waits("CrashLoopBackOff"), LastTerminationState: lost}}, true},
		"lacks its image":             {[]corev1.ContainerStatus{{State: waits("ImagePullBackOff")}}, true},
		"runs":                        {[]corev1.ContainerStatus{{State: waits("ContainerCreating")}, {State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}, true},
		"has ended once":              {[]corev1.ContainerStatus{{State: lost}}, true},
	} {
		p := corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: tc.containers}}
		must.Equal(t, name, tc.want, started(&p))
		p.Status.InitContainerStatuses, p.Status.ContainerStatuses = tc.containers, nil
		must.Equal(t, name, tc.want, started(&p))
	}
}

// lacking is a node as it is, what it had, and what has to be restored.
type lacking struct {
	node                corev1.Node
	had                 cluster.NodeMetadata
	labels, annotations map[string]string
	taints              []corev1.Taint
}

func TestLacksLabelsAndAnnotations(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string]lacking{
		"nothing": {},
		"what is missing or different": {
			node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"same": "1", "other": "1"}}},
			had: cluster.NodeMetadata{
				Labels:      map[string]string{"same": "1", "other": "2", "gone": ""},
				Annotations: map[string]string{"note": "x"},
			},
			labels:      map[string]string{"other": "2", "gone": ""},
			annotations: map[string]string{"note": "x"},
		},
		"what kubelet, Talos and the network set": {
			had: cluster.NodeMetadata{
				Labels: map[string]string{
					"kubernetes.io/hostname": "a", "beta.kubernetes.io/os": "linux", "node-role.kubernetes.io/control-plane": "",
					"extensions.talos.dev/iscsi-tools": "v0.2.0", "node-role.kubernetes.io/worker": "",
				},
				Annotations: map[string]string{
					"csi.volume.kubernetes.io/nodeid": "{}", "flannel.alpha.coreos.com/public-ip": "1", "cluster.talos.dev/node-id": "x",
					"networking.talos.dev/self-ips": "1", "talos.dev/owned-taints": "[]",
				},
				Taints: []cluster.Taint{
					{Key: "node.kubernetes.io/unreachable", Effect: "NoExecute"},
					{Key: "node-role.kubernetes.io/control-plane", Effect: "NoSchedule"},
				},
			},
			labels: map[string]string{"node-role.kubernetes.io/worker": ""},
		},
		"what the machine configuration set": {
			node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{ownedLabels: `["zone"]`}}},
			had: cluster.NodeMetadata{
				Labels:      map[string]string{"zone": "a", "rack": "b", "mine": "c"},
				Annotations: map[string]string{ownedLabels: `["rack"]`, ownedTaints: `["gpu"]`},
				Taints:      []cluster.Taint{{Key: "gpu", Effect: "NoSchedule"}},
			},
			labels: map[string]string{"mine": "c"},
		},
		"what recast itself set": {
			node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{rollAnnotation: "new"}}},
			had:  cluster.NodeMetadata{Annotations: map[string]string{rollAnnotation: "old", failedBuildAnnotation: "b1", "note": "x"}},

			annotations: map[string]string{"note": "x"},
		},
		"topology without a cloud controller": {
			had:    cluster.NodeMetadata{Labels: map[string]string{"topology.kubernetes.io/zone": "a"}},
			labels: map[string]string{"topology.kubernetes.io/zone": "a"},
		},
		"topology with one": {
			node: corev1.Node{Spec: corev1.NodeSpec{ProviderID: "proxmox://lab/9011"}},
			had:  cluster.NodeMetadata{Labels: map[string]string{"topology.kubernetes.io/zone": "a"}},
		},
	}, checkLacks)
}

func TestLacksTaints(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string]lacking{
		"taints beside those that are there": {
			node: corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{
				{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule}, {Key: "disk", Value: "hdd", Effect: corev1.TaintEffectNoSchedule},
			}}},
			had: cluster.NodeMetadata{Taints: []cluster.Taint{
				{Key: "disk", Value: "ssd", Effect: "NoSchedule"}, {Key: "gpu", Effect: "NoExecute"},
			}},
			taints: []corev1.Taint{
				{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule},
				{Key: "disk", Value: "ssd", Effect: corev1.TaintEffectNoSchedule},
				{Key: "gpu", Effect: corev1.TaintEffectNoExecute},
			},
		},
	}, checkLacks)
}

func checkLacks(t *testing.T, tc lacking) {
	t.Helper()
	got := missingMetadata(&tc.node, tc.had)
	var want *nodePatch
	if len(tc.labels)+len(tc.annotations)+len(tc.taints) > 0 {
		want = &nodePatch{}
		want.Metadata.Labels, want.Spec.Taints = tc.labels, tc.taints
		for k, v := range tc.annotations {
			want.annotate(k, &v)
		}
	}
	must.Equal(t, "patch", want, got, cmpopts.EquateEmpty())
}

// Users see which paths are taken to hold no data: no fewer and no more.
func TestRegeneratedPathsAreDocumented(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("../../docs/notes/local-data.md"))(t)
	by := map[string]string{}
	for _, r := range regeneratedPaths {
		who := map[string]string{"DaemonSet": "DaemonSets", "static": "static pods", "": "any pod"}[r.pods]
		if r.namespace != "" {
			who += " of `" + r.namespace + "`"
		}
		if by[who] != "" {
			by[who] += ", "
		}
		by[who] += "`" + r.path + "`"
	}
	text := strings.ReplaceAll(string(page), "\n  ", " ")
	for who, paths := range by {
		row := "- by " + who + ": " + paths + "\n"
		must.Not(t, !strings.Contains(text, row), "docs/notes/local-data.md lacks %s", row)
	}
}
