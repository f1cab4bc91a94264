package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
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
			must.Hold(t, (hints == "") == (c.hint == "") && strings.Contains(hints, c.hint) && strings.Contains(hints, "onTimeout: delete") == (c.hint != "" && !deletes),
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
	l.judge("no again", true)
	must.Hold(t, l.refused == first && !first.IsZero(), "refused since %s, then since %s", first, l.refused)
	l.judge("busy", false)
	must.Equal(t, "refused since", time.Time{}, l.refused)
}

func TestMayPass(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errors.New("annotation"), apierrors.NewUnauthorized("no"), apierrors.NewBadRequest("no")} {
		must.Hold(t, !isTransient(err), "%v may pass", err)
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

func TestLacks(t *testing.T) {
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
		if r.label != "" {
			who += " with `" + r.label + "`"
		}
		must.Hold(t, r.source != "", "%s has no source", r.path)
		if by[who] != "" {
			by[who] += ", "
		}
		by[who] += "`" + r.path + "`"
	}
	for who, paths := range by {
		must.Contain(t, "docs/notes/local-data.md", strings.ReplaceAll(string(page), "\n  ", " "), "- by "+who+": "+paths+"\n")
	}
}

// answering is an API that answers by path; an answer that is missing is an empty list, and "!x" the error x.
func answering(pages map[string]string) exchange {
	return func(_ context.Context, path string, into any) error {
		body := pages[path]
		switch {
		case strings.HasPrefix(body, "!"):
			return errors.New(body[1:])
		case body == "" && path == "/v1/controller/properties":
			body = "{}"
		case body == "" && strings.HasPrefix(path, "/v0/volumes"):
			body = `{"entries":[]}`
		}
		return json.Unmarshal([]byte(cmp.Or(body, "[]")), into)
	}
}

// system is a LINSTOR with what is the same of each.
func system(s replica.System) replica.System {
	s.Name, s.Waits, s.Holds, s.Evicts = linstorName, evictAfter, true, true
	s.Remedy = "Piraeus sets that of this node, so raise it in the LinstorSatelliteConfiguration"
	return s
}

const twoNodes = `[{"name":"wk1","type":"SATELLITE","connection_status":"ONLINE"},{"name":"wk2","type":"SATELLITE","connection_status":"ONLINE"}]`

// drbd is a resource of DRBD with one volume, connected to those peers.
func drbd(node, flags, disk, more string, peers ...string) string {
	connections := cluster.Each(peers, func(p string) string { return fmt.Sprintf(`%q:{"connected":true,"message":"Connected"}`, p) })
	return fmt.Sprintf(`{"name":"pvc-1","node_name":%q,"flags":[%s],"state":{"in_use":false},"layer_object":{"type":"DRBD","drbd":{"connections":{%s}},"children":[{"type":"STORAGE"}]},`+
		`"volumes":[{"volume_number":0,"state":{"disk_state":%q%s}}]}`, node, flags, strings.Join(connections, ","), disk, more)
}

func list(items ...string) string { return "[" + strings.Join(items, ",") + "]" }

// TestLINSTOR reads answers as LINSTOR writes them.
func TestLINSTOR(t *testing.T) {
	t.Parallel()
	got, err := linstorAPI{get: answering(map[string]string{
		"/v1/nodes": `[{"name":"wk1","type":"SATELLITE","connection_status":"ONLINE"},{"name":"wk2","flags":["EVICTED"],"connection_status":"OFFLINE"},` +
			`{"name":"wk3","connection_status":"VERSION_MISMATCH"},{"name":"wk4","connection_status":"ONLINE","props":{"DrbdOptions/AutoEvictAfterTime":"30"}}]`,
		"/v1/view/resources": list(
			drbd("wk1", "", "UpToDate", "", "wk3", "wk4"), drbd("wk2", `"EVICTED","INACTIVE"`, "UpToDate", ""),
			`{"name":"pvc-1","node_name":"wk3","layer_object":{"type":"DRBD","drbd":{}},"volumes":[{"volume_number":0}]}`,
			drbd("wk4", `"DISKLESS","DRBD_DISKLESS","TIE_BREAKER"`, "Diskless", "", "wk1"),
			`{"name":"local","node_name":"wk1","layer_object":{"type":"LUKS","children":[{"type":"STORAGE"}]},"volumes":[{"state":{"disk_state":"Created"}}]}`,
			`{"name":"local","node_name":"wk3","layer_object":{"type":"STORAGE"},"volumes":[{"state":{"disk_state":"Created"}}]}`),
		"/v1/resource-definitions":  `[{"name":"pvc-1","resource_group_name":"fast","props":{"Aux/csi.storage.k8s.io/pvc/name":"db-0","Aux/csi.storage.k8s.io/pvc/namespace":"db","DrbdOptions/Resource/quorum":"majority"}}]`,
		"/v1/resource-groups":       `[{"name":"DfltRscGrp","select_filter":{"place_count":2}},{"name":"fast","select_filter":{"place_count":3}}]`,
		"/v1/controller/properties": `{"DrbdOptions/AutoEvictAllowEviction":"True","DrbdOptions/AutoEvictAfterTime":"60"}`,
	})}.system(t.Context())
	want := system(replica.System{
		Patience: 30 * time.Minute,
		Nodes: []replica.Node{
			{Name: "wk1", Patience: time.Hour},
			{Name: "wk2", Down: "was evicted by LINSTOR", Patience: replica.Forever},
			{Name: "wk3", Down: "is VERSION_MISMATCH for LINSTOR", Patience: time.Hour},
			{Name: "wk4", Patience: 30 * time.Minute},
		},
		Volumes: []replica.Volume{
			{Name: "local", Wanted: 1, Alone: true, Robust: true, Replicas: []replica.Replica{{Node: "wk1", Healthy: true}}},
			{Name: "local", Wanted: 1, Alone: true, Replicas: []replica.Replica{{Node: "wk3"}}},
			{
				Name: "pvc-1", Claim: "db/db-0", Wanted: 3, Majority: true, Witnesses: []string{"wk4"},
				Replicas: []replica.Replica{{Node: "wk1", Healthy: true}, {Node: "wk2"}, {Node: "wk3"}},
			},
		},
	})
	must.Do(t, err)
	must.Equal(t, "got", want, got)
}

// TestCopiesOfLINSTOR: only a copy is healthy that is UpToDate and connected to all others that run, or that is written to.
func TestCopiesOfLINSTOR(t *testing.T) {
	t.Parallel()
	target := func(state string) string {
		return `,"replication_states":{"wk1":{"replication_state":"` + state + `","done_percentage":12.5}}`
	}
	inUse := strings.Replace(drbd("wk2", "", "UpToDate", ""), `"in_use":false`, `"in_use":true`, 1)
	type row struct {
		wk2    string
		nodes  string // "": both are online
		want   replica.Replica
		robust bool
	}
	cases := map[string]row{
		"current":                  {wk2: drbd("wk2", "", "UpToDate", "", "wk1"), want: replica.Replica{Healthy: true}, robust: true},
		"source of another":        {wk2: drbd("wk2", "", "UpToDate", target("SyncSource"), "wk1"), want: replica.Replica{Healthy: true}, robust: true},
		"not connected":            {wk2: drbd("wk2", "", "UpToDate", "")},
		"not connected, in use":    {wk2: inUse, want: replica.Replica{Healthy: true}, robust: true},
		"the other is away":        {wk2: drbd("wk2", "", "UpToDate", ""), nodes: strings.Replace(twoNodes, "ONLINE", "OFFLINE", 1), want: replica.Replica{Healthy: true}},
		"its satellite is away":    {wk2: drbd("wk2", "", "UpToDate", "", "wk1"), nodes: strings.Replace(twoNodes, `wk2","type":"SATELLITE","connection_status":"ONLINE`, `wk2","connection_status":"OFFLINE`, 1)},
		"inconsistent":             {wk2: drbd("wk2", "", "Inconsistent", "", "wk1")},
		"outdated":                 {wk2: drbd("wk2", "", "Outdated", "", "wk1")},
		"consistent":               {wk2: drbd("wk2", "", "Consistent", "", "wk1")},
		"unknown":                  {wk2: drbd("wk2", "", "DUnknown", "", "wk1")},
		"failed":                   {wk2: drbd("wk2", "", "Failed", "", "wk1")},
		"detached from its disk":   {wk2: drbd("wk2", "", "Diskless", "", "wk1")},
		"a resync":                 {wk2: drbd("wk2", "", "Inconsistent", target("SyncTarget"), "wk1"), want: replica.Replica{Rebuilt: true}},
		"a resync that is paused":  {wk2: drbd("wk2", "", "Inconsistent", target("PausedSyncT"), "wk1"), want: replica.Replica{Rebuilt: true}},
		"a resync in old versions": {wk2: drbd("wk2", "", "SyncTarget(12.50%)", "", "wk1"), want: replica.Replica{Rebuilt: true}},
		"being deleted":            {wk2: drbd("wk2", `"DELETE"`, "UpToDate", "", "wk1")},
		"inactive":                 {wk2: drbd("wk2", `"INACTIVE"`, "UpToDate", "", "wk1")},
		"without volumes":          {wk2: `{"name":"pvc-1","node_name":"wk2","layer_object":{"type":"DRBD","drbd":{"connections":{"wk1":{"connected":true}}}},"volumes":[]}`},
		"without a layer":          {wk2: `{"name":"pvc-1","node_name":"wk2","volumes":[{"state":{"disk_state":"UpToDate"}}]}`},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		s := must.Get(linstorAPI{get: answering(map[string]string{"/v1/nodes": cmp.Or(tc.nodes, twoNodes), "/v1/view/resources": list(drbd("wk1", "", "UpToDate", "", "wk2"), tc.wk2)})}.system(t.Context()))(t)
		tc.want.Node = "wk2"
		must.Equal(t, "replica, robust", []any{tc.want, tc.robust}, []any{s.Volumes[0].Replicas[1], s.Volumes[0].Robust})
	})
}

// TestPropertiesOfLINSTOR: the nearest one counts.
func TestPropertiesOfLINSTOR(t *testing.T) {
	t.Parallel()
	const allows = `"DrbdOptions/AutoEvictAllowEviction":"true"`
	evictions := map[string]struct {
		controller, node string
		want             time.Duration
	}{
		"not allowed":             {want: 0},
		"not allowed, but a time": {controller: `"DrbdOptions/AutoEvictAfterTime":"5"`},
		"allowed":                 {controller: allows, want: 12 * time.Hour},
		"allowed, and a time":     {controller: allows + `,"DrbdOptions/AutoEvictAfterTime":"5"`, want: 5 * time.Minute},
		"not on this node":        {controller: allows, node: `"DrbdOptions/AutoEvictAllowEviction":"false"`},
	}
	for name, tc := range evictions {
		s, err := linstorAPI{get: answering(map[string]string{
			"/v1/nodes": `[{"name":"wk1","connection_status":"ONLINE","props":{` + tc.node + `}}]`, "/v1/controller/properties": "{" + tc.controller + "}",
		})}.system(t.Context())
		must.Equal(t, name, []any{nil, tc.want}, []any{err, s.Patience})
	}
	const off, on = `{"DrbdOptions/Resource/quorum":"off"}`, `{"DrbdOptions/Resource/quorum":"majority"}`
	for _, tc := range []struct {
		definition, group, controller string
		want                          bool
	}{{"{}", "{}", "{}", false}, {"{}", "{}", on, true}, {"{}", off, on, false}, {on, off, off, true}, {off, on, on, false}} {
		s, err := linstorAPI{get: answering(map[string]string{
			"/v1/nodes": twoNodes, "/v1/view/resources": list(drbd("wk1", "", "UpToDate", "")),
			"/v1/resource-definitions": `[{"name":"pvc-1","resource_group_name":"g","props":` + tc.definition + `}]`,
			"/v1/resource-groups":      `[{"name":"g","props":` + tc.group + `}]`, "/v1/controller/properties": tc.controller,
		})}.system(t.Context())
		must.Pass(t, err)
		must.Equal(t, fmt.Sprintf("majority, %+v", tc), tc.want, s.Volumes[0].Majority)
	}
}

// nodeOf is a controller with one node, wk1, and what was written to it.
func nodeOf(props map[string]string, wrote *[]string) linstorAPI {
	return linstorAPI{
		place: "/proxy",
		get: func(_ context.Context, path string, into any) error {
			var answer any = map[string]string{evictAllowed: "True", evictAfter: "20"}
			if path == "/v1/nodes" {
				answer = []linstorNode{{Name: "wk1", Props: props, Status: "ONLINE"}}
			}
			b, err := json.Marshal(answer)
			return errors.Join(err, json.Unmarshal(b, into))
		},
		put: func(_ context.Context, path string, body any) error {
			b, err := json.Marshal(body)
			*wrote = append(*wrote, path+" "+string(b))
			return err
		},
	}
}

func settings(t *testing.T, c linstorAPI) []replica.Setting {
	t.Helper()
	return must.Get(c.settings(t.Context()))(t)
}

// TestHoldOfLINSTOR: what was there is written with the change, and given back exactly; what someone else has set stays.
func TestHoldOfLINSTOR(t *testing.T) {
	t.Parallel()
	const ours = `{"was":"","set":"60","nodes":{"wk1":60},"run":"r1","since":"2000-01-01T00:00:00Z"}`
	const oursOf25 = `{"was":"25","set":"60","nodes":{"wk1":60}}`
	const memoOf = `\"nodes\":{\"wk1\":60},\"run\":\"r1\",\"since\":\"2000-01-01T00:00:00Z\"}"},"delete_props":[]}`
	const what = "DrbdOptions/AutoEvictAfterTime of wk1 in LINSTOR "
	hold := func(ctx context.Context, c linstorAPI) (string, error) {
		return replica.HoldRebuild(ctx, settings(t, c), "wk1", "r1", 59*time.Minute+time.Second)
	}
	back := func(ctx context.Context, c linstorAPI) (string, error) {
		return replica.GiveBack(ctx, settings(t, c), "wk2", "wk1")
	}
	type row struct {
		props map[string]string
		do    func(context.Context, linstorAPI) (string, error)
		wrote string // "": nothing
		said  string
	}
	must.Bubbles(t, map[string]row{
		"of the controller":        {nil, hold, `{"override_props":{"Aux/recast.dev/hold":"{\"was\":\"\",\"set\":\"60\",` + strings.TrimSuffix(memoOf, `},"delete_props":[]}`) + `,"DrbdOptions/AutoEvictAfterTime":"60"},"delete_props":[]}`, what + "is 60 instead of the controller's"},
		"of the node":              {map[string]string{evictAfter: "25"}, hold, `{"override_props":{"Aux/recast.dev/hold":"{\"was\":\"25\",\"set\":\"60\",` + strings.TrimSuffix(memoOf, `},"delete_props":[]}`) + `,"DrbdOptions/AutoEvictAfterTime":"60"},"delete_props":[]}`, what + "is 60 instead of 25"},
		"long enough":              {map[string]string{evictAfter: "60"}, hold, "", ""},
		"held already":             {map[string]string{evictAfter: "60", holdMemo: ours}, hold, "", ""},
		"not held":                 {map[string]string{evictAfter: "60"}, back, "", ""},
		"back to the controller's": {map[string]string{evictAfter: "60", holdMemo: ours}, back, `{"override_props":{},"delete_props":["DrbdOptions/AutoEvictAfterTime","Aux/recast.dev/hold"]}`, what + "is the controller's again"},
		"back to the node's":       {map[string]string{evictAfter: "60", holdMemo: oursOf25}, back, `{"override_props":{"DrbdOptions/AutoEvictAfterTime":"25"},"delete_props":["Aux/recast.dev/hold"]}`, what + "is 25 again"},
		"someone else has set it":  {map[string]string{evictAfter: "90", holdMemo: oursOf25}, back, `{"override_props":{},"delete_props":["Aux/recast.dev/hold"]}`, what + "stays 90: someone else has set that"},
		"someone else removed it":  {map[string]string{holdMemo: oursOf25}, back, `{"override_props":{},"delete_props":["Aux/recast.dev/hold"]}`, what + "stays the controller's: someone else has set that"},
	}, func(t *testing.T, tc row) {
		var wrote []string
		said, err := tc.do(t.Context(), nodeOf(tc.props, &wrote))
		must.Equal(t, "said", []any{nil, tc.said}, []any{err, said})
		var want []string
		if tc.wrote != "" {
			want = []string{"/v1/nodes/wk1 " + tc.wrote}
		}
		must.Equal(t, "-want +got", want, wrote)
	})
}

// TestHoldsOfLINSTOR: what is held is listed with what gives it back, and LINSTOR's own patience is what it would be without.
func TestHoldsOfLINSTOR(t *testing.T) {
	t.Parallel()
	memo := replica.Memo{Was: "25", Set: "60", Nodes: map[string]int{"wk1": 60}}
	want := []replica.Hold{{
		System: "LINSTOR", Setting: "DrbdOptions/AutoEvictAfterTime of wk1", Now: "60", Memo: memo,
		Undo: `echo '{"override_props":{"DrbdOptions/AutoEvictAfterTime":"25"},"delete_props":["Aux/recast.dev/hold"]}' | kubectl replace --raw /proxy/v1/nodes/wk1 -f -`,
	}}
	held := map[string]string{evictAfter: "60", holdMemo: `{"was":"25","set":"60","nodes":{"wk1":60}}`}
	must.Equal(t, "got", want, must.Get(replica.Held(settings(t, nodeOf(held, nil))))(t))
	s, err := linstorAPI{get: answering(map[string]string{
		"/v1/nodes":                 `[{"name":"wk1","connection_status":"ONLINE","props":{"DrbdOptions/AutoEvictAfterTime":"60","Aux/recast.dev/hold":"{\"was\":\"25\",\"set\":\"60\",\"nodes\":{\"wk1\":60}}"}}]`,
		"/v1/controller/properties": `{"DrbdOptions/AutoEvictAllowEviction":"true"}`,
	})}.system(t.Context())
	must.Hold(t, err == nil && s.PatienceFor("wk1") == 25*time.Minute && len(s.Held) == 1 && s.Holding("wk1", time.Minute) == time.Hour && s.Holding("wk9", time.Hour) == 0,
		"%+v, %v", s, err)
}

// TestHoldOfLINSTORRefuses: nothing is written over what can't be understood.
func TestHoldOfLINSTORRefuses(t *testing.T) {
	t.Parallel()
	for _, memo := range []string{"", "{}", `{"was":"x","set":"60","nodes":{"wk1":60}}`, `{"was":"","set":"","nodes":{"wk1":60}}`, `{"was":"20","set":"60"}`} {
		var wrote []string
		read := settings(t, nodeOf(map[string]string{evictAfter: "60", holdMemo: memo}, &wrote))
		for _, err := range []error{
			must.Err(replica.HoldRebuild(t.Context(), read, "wk1", "r1", time.Hour)), must.Err(replica.GiveBack(t.Context(), read, "wk1")), must.Err(replica.Held(read)),
		} {
			must.Hold(t, fault.KindOf(err) == fault.Refused && len(fault.Hints(err)) != 0 && len(wrote) == 0, "%q: %v, wrote %q", memo, err, wrote)
		}
	}
}

const firstPage = "/v0/volumes?max_entries=200&starting_token=0"

// volumeOf is a volume with those replicas.
func volumeOf(uuid, target, status string, wanted int, replicas ...string) string {
	var list []string
	for i, r := range replicas {
		list = append(list, fmt.Sprintf(`"r%d":%s`, i, r))
	}
	return fmt.Sprintf(`{"spec":{"uuid":%q,"num_replicas":%d%s},"state":{"uuid":%q,"status":%q,"replica_topology":{%s}}}`, uuid, wanted, target, uuid, status, strings.Join(list, ","))
}

const published = `,"target":{"node":"wk1","protocol":"nvmf","frontend_nodes":[{"name":"wk2","nqn":"nqn.2019-05.io.openebs:node-name:wk2"}]}`

// TestMayastor reads answers as Mayastor writes them, in pages.
func TestMayastor(t *testing.T) {
	t.Parallel()
	got, err := readMayastor(t.Context(), answering(map[string]string{
		"/v0/nodes": `[{"id":"wk1","spec":{"id":"wk1"},"state":{"id":"wk1","status":"Online"}},{"id":"wk2","state":{"status":"Offline"}},{"id":"wk3","spec":{"id":"wk3"}}]`,
		"/v0/pools": `[{"id":"p2","spec":{"node":"wk1"}},{"id":"p1","spec":{"node":"wk1"},"state":{"status":"Faulted"}},{"id":"p0","spec":{"node":"wk1"},"state":{"status":"Online"}},{"id":"p3","spec":{"node":"wk2"},"state":{"status":"Online"}}]`,
		firstPage: `{"next_token":1,"entries":[` + volumeOf("a", published, "Degraded", 3,
			`{"node":"wk1","pool":"p0","state":"Online","child-status":"Online"}`, `{"node":"wk2","state":"Unknown","child-status":"Faulted"}`) + `]}`,
		"/v0/volumes?max_entries=200&starting_token=1": `{"entries":[` + volumeOf("b", "", "Online", 1, `{"node":"wk1","state":"Online"}`) + "," +
			volumeOf("c", "", "Faulted", 2) + `]}`,
	}))
	want := replica.System{
		Name: "Mayastor",
		Nodes: []replica.Node{
			{Name: "wk1", Lacks: "its pool p1 is Faulted, p2 is unknown for Mayastor"}, {Name: "wk2", Down: "is Offline for Mayastor"}, {Name: "wk3", Down: "is unknown for Mayastor"},
		},
		Volumes: []replica.Volume{
			{Name: "a", Wanted: 3, Through: "wk1", Users: []string{"wk2"}, Replicas: []replica.Replica{{Node: "wk1", Healthy: true}, {Node: "wk2"}}},
			{Name: "b", Wanted: 1, Alone: true, Idle: true, Robust: true, Replicas: []replica.Replica{{Node: "wk1", Healthy: true}}},
			{Name: "c", Wanted: 2},
		},
	}
	must.Do(t, err)
	must.Equal(t, "got", want, got)
}

// TestReplicasInMayastor: while a volume is published, its nexus says which replicas are current.
func TestReplicasInMayastor(t *testing.T) {
	t.Parallel()
	type row struct {
		target, replica string
		want            replica.Replica
	}
	cases := map[string]row{
		"in the nexus":            {published, `{"node":"wk1","state":"Online","child-status":"Online"}`, replica.Replica{Healthy: true}},
		"not in the nexus":        {published, `{"node":"wk1","state":"Online"}`, replica.Replica{}},
		"faulted in the nexus":    {published, `{"node":"wk1","state":"Online","child-status":"Faulted"}`, replica.Replica{}},
		"unknown in the nexus":    {published, `{"node":"wk1","state":"Online","child-status":"Unknown"}`, replica.Replica{}},
		"rebuilt":                 {published, `{"node":"wk1","state":"Online","child-status":"Degraded","rebuild-progress":0}`, replica.Replica{Rebuilt: true}},
		"rebuilt, not started":    {published, `{"node":"wk1","state":"Online","child-status":"Degraded"}`, replica.Replica{Rebuilt: true}},
		"rebuilt, still online":   {published, `{"node":"wk1","state":"Online","child-status":"Online","rebuild-progress":7}`, replica.Replica{Rebuilt: true}},
		"its pool is away":        {published, `{"node":"wk1","state":"Unknown","child-status":"Online"}`, replica.Replica{}},
		"its pool has a fault":    {published, `{"node":"wk1","state":"Faulted","child-status":"Degraded"}`, replica.Replica{}},
		"not published":           {"", `{"node":"wk1","state":"Online"}`, replica.Replica{Healthy: true}},
		"not published, and away": {"", `{"node":"wk1","state":"Unknown"}`, replica.Replica{}},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		s := must.Get(readMayastor(t.Context(), answering(map[string]string{firstPage: `{"entries":[` + volumeOf("a", tc.target, "Online", 1, tc.replica) + `]}`})))(t)
		tc.want.Node = "wk1"
		must.Equal(t, "replica, robust", []any{tc.want, tc.want.Healthy}, []any{s.Volumes[0].Replicas[0], s.Volumes[0].Robust})
	})
}

// TestStorageSystemFails: one answer that is missing is an error.
func TestStorageSystemFails(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"/v1/nodes", "/v1/view/resources", "/v1/resource-definitions", "/v1/resource-groups", "/v1/controller/properties", "/v0/nodes", "/v0/pools", firstPage,
	} {
		get := answering(map[string]string{path: "!refused"})
		_, err := linstorAPI{get: get}.system(t.Context())
		if strings.HasPrefix(path, "/v0/") {
			_, err = readMayastor(t.Context(), get)
		}
		must.Equal(t, path, "refused", fmt.Sprint(err))
	}
}
