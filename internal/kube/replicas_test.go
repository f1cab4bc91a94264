package kube_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
)

// longhorn installs what Longhorn's objects are, and adds some of each kind.
func (l *lab) longhorn(t *testing.T) map[string]func(namespace, name string, content map[string]any) {
	t.Helper()
	add := map[string]func(namespace, name string, content map[string]any){}
	for resource, kind := range map[string]string{"nodes": "Node", "volumes": "Volume", "replicas": "Replica", "settings": "Setting", "engines": "Engine", "orphans": "Orphan"} {
		add[resource] = l.install(t, "longhorn.io", "v1beta2", resource, kind, true)
	}
	return add
}

// TestReplicasOfLonghorn reads objects as longhorn-manager writes them.
func TestReplicasOfLonghorn(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t, "wk1", "wk2")
		add := l.longhorn(t)
		const ns = "longhorn-system"
		condition := func(status, reason string) []any {
			return []any{map[string]any{"type": "Ready", "status": status, "reason": reason, "lastProbeTime": "", "lastTransitionTime": ""}}
		}
		disks := map[string]any{"data": map[string]any{"path": "/var/mnt/longhorn"}}
		add["nodes"](ns, "wk1", map[string]any{"spec": map[string]any{"disks": disks}, "status": map[string]any{
			"conditions": condition("True", ""), "diskStatus": map[string]any{"data": map[string]any{"conditions": condition("False", "DiskNotReady")}},
		}})
		add["nodes"](ns, "wk2", map[string]any{"status": map[string]any{"conditions": condition("False", "ManagerPodDown")}})
		add["nodes"](ns, "wk3", map[string]any{"spec": map[string]any{}})
		add["settings"](ns, "replica-replenishment-wait-interval", map[string]any{"value": "90"})
		add["settings"](ns, "node-drain-policy", map[string]any{"value": "allow-if-replica-is-stopped"})
		volume := func(name string, replicas int64, state, robustness string) {
			add["volumes"](ns, name, map[string]any{"spec": map[string]any{"numberOfReplicas": replicas}, "status": map[string]any{
				"state": state, "robustness": robustness, "kubernetesStatus": map[string]any{"namespace": "db", "pvcName": "data-" + name},
			}})
		}
		volume("a", 3, "attached", "degraded")
		volume("b", 1, "detached", "unknown")
		volume("c", 2, "detached", "faulted")
		const at = "2026-08-21T17:16:52Z"
		copies := map[string]map[string]any{
			"a-r-1": {"volumeName": "a", "nodeID": "wk1", "healthyAt": at, "lastHealthyAt": at, "failedAt": "", "active": true},
			"a-r-2": {"volumeName": "a", "nodeID": "wk2", "healthyAt": at, "lastHealthyAt": at, "failedAt": at, "active": true},
			"a-r-3": {"volumeName": "a", "nodeID": "wk3", "healthyAt": "", "lastHealthyAt": at, "failedAt": "", "active": true},
			"a-r-4": {"volumeName": "a", "nodeID": "wk3", "healthyAt": at, "lastHealthyAt": at, "failedAt": "", "active": false},
			"a-r-5": {"volumeName": "a", "nodeID": "", "healthyAt": "", "failedAt": "", "active": true},
			"b-r-1": {"volumeName": "b", "nodeID": "wk1", "healthyAt": "", "failedAt": "", "active": true},
		}
		for name, spec := range copies {
			state := "stopped"
			if strings.HasPrefix(name, "a-") {
				state = "running"
			}
			add["replicas"](ns, name, map[string]any{"spec": spec, "status": map[string]any{"currentState": state}})
		}
		want := replica.System{
			Name: "Longhorn", Patience: 90 * time.Second, Waits: "replica-replenishment-wait-interval", Holds: true,
			Away: "there is no DaemonSet longhorn-system/longhorn-manager",
			Nodes: []replica.Node{
				{Name: "wk1", Lacks: "its disk data is not ready for Longhorn"},
				{Name: "wk2", Down: "is not ready for Longhorn (ManagerPodDown)"},
				{Name: "wk3", Down: "has no state for Longhorn yet"},
			},
			Volumes: []replica.Volume{
				{Name: "longhorn-system/a", Claim: "db/data-a", Wanted: 3, Replicas: []replica.Replica{
					{Node: "wk1", Healthy: true}, {Node: "wk2"}, {Node: "wk3", Rebuilt: true}, {Node: "wk3"},
				}},
				{Name: "longhorn-system/b", Claim: "db/data-b", Wanted: 1, Alone: true, Idle: true, Replicas: []replica.Replica{{Node: "wk1", Unused: true}}},
				{Name: "longhorn-system/c", Claim: "db/data-c", Wanted: 2},
			},
		}
		c := l.client(t, "system:masters")
		must.Equal(t, "got", []replica.System{want}, must.Get(c.Replicas(t.Context()))(t))
		set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "longhorn-manager", Namespace: ns}}
		set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "longhorn-manager"}}
		set.Spec.Template.Labels = set.Spec.Selector.MatchLabels
		set.Spec.Template.Spec.NodeSelector = map[string]string{"none": "has it"}
		l.put(t, store.DaemonSets(), set)
		time.Sleep(time.Second)
		got := must.Get(c.Replicas(t.Context()))(t)
		must.Equal(t, "away", "no pod of DaemonSet longhorn-system/longhorn-manager is ready", got[0].Away)
	})
}

// TestReplicasUnread: a system that is installed and can't be read is an error that names the right; one that
// is not installed costs nothing but the list of API groups.
func TestReplicasUnread(t *testing.T) {
	t.Parallel()
	groups := func(names ...string) page {
		var list []string
		for _, name := range names {
			list = append(list, `{"name":"`+name+`","versions":[{"groupVersion":"`+name+`/v1beta2","version":"v1beta2"}]}`)
		}
		return page{http.StatusOK, `{"kind":"APIGroupList","apiVersion":"v1","groups":[` + strings.Join(list, ",") + `]}`}
	}
	empty := page{http.StatusOK, `{"items":[]}`}
	const at = "/apis/longhorn.io/v1beta2/"
	for _, resource := range []string{"volumes", "replicas", "nodes", "settings"} {
		pages := map[string]page{"/apis": groups("longhorn.io"), at + "volumes": empty, at + "replicas": empty, at + "nodes": empty, at + "settings": empty}
		pages[at+resource] = forbidden(t, resource, "longhorn.io")
		_, err := serve(t, pages).Replicas(t.Context())
		must.FailAs(t, err, fault.Refused, `cannot list resource "`+resource+`" in API group "longhorn.io"`)
		must.Contain(t, "hints", strings.Join(fault.Hints(err), "\n"), "roll.storage: {longhorn: off}", "the resources of Longhorn")
	}
	asked := 0
	c := serveEach(t, func(*http.Request) (page, bool) { asked++; return groups("example.org"), true })
	must.Equal(t, "replicas", []replica.System(nil), must.Get(c.Replicas(t.Context()))(t))
	must.Equal(t, "requests", 1, asked)
	must.Fail(t, must.Err(serve(t, map[string]page{"/apis": {http.StatusOK, `{"groups":[{"name":"longhorn.io","versions":[{"version":"v2"}]}]}`}}).Replicas(t.Context())), "longhorn.io is served as v2 only, recast knows v1beta2")
}

// TestWatchReplicas: a volume that becomes healthy is reported, and nothing else.
func TestWatchReplicas(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		add := l.install(t, "longhorn.io", "v1beta2", "volumes", "Volume", true)
		volumes := schema.GroupVersionResource{Group: "longhorn.io", Version: "v1beta2", Resource: "volumes"}
		add("longhorn-system", "a", map[string]any{"status": map[string]any{"robustness": "degraded"}})
		set := func(robustness string) {
			o := must.Get(l.Store().Get(t.Context(), volumes, "longhorn-system", "a"))(t)
			u := o.(*unstructured.Unstructured).DeepCopy()
			u.Object["status"] = map[string]any{"robustness": robustness}
			must.Get(l.Store().Update(t.Context(), volumes, u, store.Status))(t)
			time.Sleep(time.Second)
		}
		ctx, cancel := context.WithCancel(t.Context())
		told, ended := make(chan bool, 10), make(chan error, 1)
		go func() {
			ended <- l.client(t, "system:masters").WatchReplicas(ctx, "Longhorn", func(look bool) { told <- look })
		}()
		time.Sleep(time.Second)
		for _, robustness := range []string{"unknown", "healthy", "degraded"} {
			set(robustness)
		}
		cancel()
		must.FailIs(t, <-ended, context.Canceled)
		must.Hold(t, len(told) == 2 && !<-told && <-told, "told %d times", len(told))
	})
}

// TestReplicasOfCeph: OSDs are pinned by their Deployments, or are where their pods are.
func TestReplicasOfCeph(t *testing.T) {
	t.Parallel()
	ids := 0
	osd := func(node, ready string) string {
		ids++
		return fmt.Sprintf(`{"metadata":{"labels":{"app":"rook-ceph-osd","ceph-osd-id":"%d"}},`, ids) + `"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/hostname":"` + node + `"}}}},"status":{"availableReplicas":` + ready + `}}`
	}
	pod := func(node, ready, selector string) string {
		ids++
		return fmt.Sprintf(`{"metadata":{"labels":{"app":"rook-ceph-osd","ceph-osd-id":"%d"}},`, ids) + `"spec":{"nodeName":"` + node + `","nodeSelector":{` + selector + `}},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"` + ready + `"}]}}`
	}
	checked := time.Now().UTC().Format(time.RFC3339)
	list := func(kind string, items ...string) page {
		return page{http.StatusOK, `{"kind":"` + kind + `","apiVersion":"v1","items":[` + strings.Join(items, ",") + `]}`}
	}
	apps := func(items ...string) page {
		p := list("DeploymentList", items...)
		p.body = strings.Replace(p.body, `"v1"`, `"apps/v1"`, 1)
		return p
	}
	const spec = `"spec":{"disruptionManagement":{"managePodBudgets":true,"osdMaintenanceTimeout":45}}`
	pages := map[string]page{
		"/apis":                 {http.StatusOK, `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"ceph.rook.io","versions":[{"version":"v1"}]}]}`},
		"/apis/ceph.rook.io/v1": {http.StatusOK, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"ceph.rook.io/v1","resources":[]}`},
		"/apis/ceph.rook.io/v1/cephclusters": list("List",
			`{"metadata":{"namespace":"rook-ceph","name":"ceph"},`+spec+`,"status":{"ceph":{"health":"HEALTH_WARN","lastChecked":"`+checked+`","details":{"OSD_DOWN":{"message":"1 osds down"},"PG_AVAILABILITY":{"message":"Reduced data availability"}}}}}`,
			`{"metadata":{"namespace":"elsewhere","name":"external"},"spec":{"external":{"enable":true}}}`),
		"/apis/apps/v1/namespaces/rook-ceph/deployments": apps(osd("wk1", "1"), osd("wk1", "0"), osd("wk2", "1")),
		"/api/v1/namespaces/rook-ceph/pods":              list("PodList", pod("wk1", "True", `"kubernetes.io/hostname":"wk1"`), pod("wk3", "True", ""), pod("wk4", "False", "")),
		"/apis/apps/v1/namespaces/elsewhere/deployments": apps(), "/api/v1/namespaces/elsewhere/pods": list("PodList"),
	}
	want := []replica.System{{
		Name: "Ceph", Pools: true, Patience: 45 * time.Minute, Waits: "osdMaintenanceTimeout",
		Remedy: "raise disruptionManagement.osdMaintenanceTimeout, which is in minutes",
		Nodes:  []replica.Node{{Name: "wk1"}, {Name: "wk2"}, {Name: "wk3"}, {Name: "wk4"}},
		Volumes: []replica.Volume{{
			Name: "rook-ceph/ceph", Checked: checked, Why: "PG_AVAILABILITY (Reduced data availability)",
			Replicas: []replica.Replica{{Node: "wk1"}, {Node: "wk2", Healthy: true}, {Node: "wk3", Healthy: true}, {Node: "wk4"}},
		}},
	}}
	got := must.Get(serve(t, pages).Replicas(t.Context()))(t)
	must.Equal(t, "got", want, got)
	for managed, patience := range map[string]time.Duration{
		"":                           10 * time.Minute, // Ceph's own: Rook does not set noout
		`"managePodBudgets":false`:   10 * time.Minute,
		`"managePodBudgets":true`:    30 * time.Minute,
		`"osdMaintenanceTimeout":45`: 10 * time.Minute,
	} {
		other := maps.Clone(pages)
		other["/apis/ceph.rook.io/v1/cephclusters"] = list("List", `{"metadata":{"namespace":"rook-ceph","name":"ceph"},"spec":{"disruptionManagement":{`+managed+`}}}`)
		got, err := serve(t, other).Replicas(t.Context())
		must.Hold(t, err == nil && got[0].Patience == patience && got[0].Waits != "" && strings.Contains(got[0].Remedy, "noout") == (patience == 10*time.Minute),
			"%s: %v, %+v", managed, err, got)
	}
	pages["/apis/ceph.rook.io/v1/cephclusters"] = forbidden(t, "cephclusters", "ceph.rook.io")
	must.FailAs(t, must.Err(serve(t, pages).Replicas(t.Context())), fault.Refused, `cannot list resource "cephclusters"`)
}

// replicasCase is what a storage system shows with one page of the API changed.
type replicasCase struct {
	path  string
	page  page
	want  *replica.System // nil: it is not installed
	fails string          // part of the error
}

// checkReplicas reads a storage system once for each case.
func checkReplicas(t *testing.T, pages func() map[string]page, cases map[string]replicasCase) {
	t.Helper()
	must.Each(t, cases, func(t *testing.T, tc replicasCase) {
		all := pages()
		if tc.path != "" {
			all[tc.path] = tc.page
		}
		got, err := serve(t, all).Replicas(t.Context())
		if tc.fails != "" {
			must.Fail(t, err, tc.fails)
			must.Equal(t, "refused", tc.page.code == http.StatusForbidden, fault.KindOf(err) == fault.Refused)
			return
		}
		var want []replica.System
		if tc.want != nil {
			want = append(want, *tc.want)
		}
		must.Do(t, err)
		must.Equal(t, "got", want, got)
	})
}

const (
	behindLINSTOR = "/api/v1/namespaces/piraeus-datastore/services/linstor-controller:3370/proxy"
	piraeusV1     = "/apis/piraeus.io/v1/"
)

// piraeusPages are those of a LINSTOR without volumes, with a satellite on wk1.
func piraeusPages() map[string]page {
	return map[string]page{
		"/apis":                                     {200, `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"piraeus.io","versions":[{"groupVersion":"piraeus.io/v1","version":"v1"}]}]}`},
		piraeusV1 + "linstorclusters":               {200, `{"items":[{"metadata":{"name":"linstorcluster"},"spec":{}}]}`},
		piraeusV1 + "linstorsatellites":             {200, `{"items":[{"metadata":{"name":"wk1"}}]}`},
		"/api/v1/services":                          {200, `{"kind":"ServiceList","apiVersion":"v1","items":[{"metadata":{"name":"linstor-controller","namespace":"piraeus-datastore"}}]}`},
		behindLINSTOR + "/v1/nodes":                 {200, `[{"name":"wk1","connection_status":"ONLINE"}]`},
		behindLINSTOR + "/v1/view/resources":        {200, `[]`},
		behindLINSTOR + "/v1/resource-definitions":  {200, `[]`},
		behindLINSTOR + "/v1/resource-groups":       {200, `[]`},
		behindLINSTOR + "/v1/controller/properties": {200, `{}`},
	}
}

// TestReplicasOfLINSTOR: what its controller does not say leaves all of its nodes unknown, and what recast may not read
// is an error that names the right.
func TestReplicasOfLINSTOR(t *testing.T) {
	t.Parallel()
	known := &replica.System{
		Name: "LINSTOR", Waits: "DrbdOptions/AutoEvictAfterTime", Holds: true, Evicts: true,
		Remedy: "Piraeus sets that of this node, so raise it in the LinstorSatelliteConfiguration",
		Nodes:  []replica.Node{{Name: "wk1", Patience: replica.Forever}},
	}
	away := func(why string) *replica.System {
		return &replica.System{Name: "LINSTOR", Away: why, Holders: []string{"wk1"}}
	}
	const from = "no usable answer from service piraeus-datastore/linstor-controller: "
	unavailable := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","code":503,"message":"no endpoints available for service \"linstor-controller\""}`
	gone := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"services \"linstor-controller\" not found","details":{"name":"linstor-controller","kind":"services"}}`
	checkReplicas(t, piraeusPages, map[string]replicasCase{
		"fine":                     {want: known},
		"no cluster":               {path: piraeusV1 + "linstorclusters", page: page{200, `{"items":[]}`}, want: &replica.System{Name: "LINSTOR"}},
		"no Service":               {path: "/api/v1/services", page: page{200, `{"kind":"ServiceList","apiVersion":"v1","items":[]}`}, want: away("there is no Service with app.kubernetes.io/component=linstor-controller")},
		"no pod":                   {path: behindLINSTOR + "/v1/nodes", page: page{503, unavailable}, want: away(from + `no endpoints available for service "linstor-controller"`)},
		"no pod any more":          {path: behindLINSTOR + "/v1/resource-groups", page: page{503, unavailable}, want: away(from + `no endpoints available for service "linstor-controller"`)},
		"no Service any more":      {path: behindLINSTOR + "/v1/nodes", page: page{404, gone}, want: away(from + `services "linstor-controller" not found`)},
		"an error of LINSTOR":      {path: behindLINSTOR + "/v1/nodes", page: page{500, `[{"ret_code":-1,"message":"broken"}]`}, want: away(from + "status 500 for /v1/nodes")},
		"a token is asked for":     {path: behindLINSTOR + "/v1/nodes", page: page{401, `[{"ret_code":-1,"message":"Unauthorized"}]`}, want: away(from + "status 401 for /v1/nodes")},
		"no such path":             {path: behindLINSTOR + "/v1/nodes", page: page{404, `404`}, want: away(from + "status 404 for /v1/nodes")},
		"another answer":           {path: behindLINSTOR + "/v1/nodes", page: page{200, `{"nodes":[]}`}, fails: "ask service piraeus-datastore/linstor-controller for /v1/nodes: read the answer"},
		"clusters forbidden":       {path: piraeusV1 + "linstorclusters", page: forbidden(t, "linstorclusters", "piraeus.io"), fails: `cannot list resource "linstorclusters"`},
		"services forbidden":       {path: "/api/v1/services", page: forbidden(t, "services", ""), fails: `cannot list resource "services"`},
		"services/proxy forbidden": {path: behindLINSTOR + "/v1/nodes", page: forbidden(t, "services/proxy", ""), fails: `cannot list resource "services/proxy"`},
	})
}

const (
	behindMayastor = "/api/v1/namespaces/openebs/services/openebs-api-rest:8081/proxy"
	diskPoolsPath  = "/apis/openebs.io/v1beta2/diskpools"
	agentCore      = "/apis/apps/v1/namespaces/openebs/deployments"
)

// mayastorPages are those of a Mayastor without volumes, beside another engine of OpenEBS.
func mayastorPages() map[string]page {
	kinds := func(version, name, kind string) page {
		return page{200, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"openebs.io/` + version + `","resources":[{"name":"` + name + `","kind":"` + kind + `"}]}`}
	}
	return map[string]page{
		"/apis": {200, `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"openebs.io","versions":[{"groupVersion":"openebs.io/v1alpha1","version":"v1alpha1"},` +
			`{"groupVersion":"openebs.io/v1beta2","version":"v1beta2"}]}]}`},
		"/apis/openebs.io/v1alpha1":    kinds("v1alpha1", "blockdevices", "BlockDevice"),
		"/apis/openebs.io/v1beta2":     kinds("v1beta2", "diskpools", "DiskPool"),
		diskPoolsPath:                  {200, `{"items":[{"metadata":{"name":"p"},"spec":{"node":"wk1"}}]}`},
		"/api/v1/services":             {200, `{"kind":"ServiceList","apiVersion":"v1","items":[{"metadata":{"name":"openebs-api-rest","namespace":"openebs"}}]}`},
		agentCore:                      {200, `{"kind":"DeploymentList","apiVersion":"apps/v1","items":[]}`},
		behindMayastor + "/v0/nodes":   {200, `[{"id":"wk1","state":{"status":"Online"}}]`},
		behindMayastor + "/v0/pools":   {200, `[]`},
		behindMayastor + "/v0/volumes": {200, `{"entries":[]}`},
	}
}

// TestReplicasOfMayastor: what its API does not say leaves all of its nodes unknown, and what recast may not read is an
// error that names the right.
func TestReplicasOfMayastor(t *testing.T) {
	t.Parallel()
	known := func(patience time.Duration) *replica.System {
		return &replica.System{
			Name: "Mayastor", Waits: "--faulted-child-wait-period", Patience: patience, Nodes: []replica.Node{{Name: "wk1"}},
			Unstuck: "turn on agents.ha.enabled of its chart, or move the pods that use it to the node",
		}
	}
	stuck := func(why string) *replica.System {
		s := known(10 * time.Minute)
		s.Stuck = why
		return s
	}
	const core = `{"name":"agent-core","args":["--store=x","%s"]}`
	deployment := func(containers string) page {
		return page{200, `{"kind":"DeploymentList","apiVersion":"apps/v1","items":[{"spec":{"template":{"spec":{"containers":[` + containers + `]}}}}]}`}
	}
	told := func(arg string) page { return deployment(fmt.Sprintf(core, arg) + `,{"name":"agent-ha-cluster"}`) }
	checkReplicas(t, mayastorPages, map[string]replicasCase{
		"fine":                       {path: agentCore, page: told("-x"), want: known(10 * time.Minute)},
		"HA is off":                  {path: agentCore, page: told("--disable-ha"), want: stuck("its HA agents are off (--disable-ha)")},
		"it has no HA agent":         {path: agentCore, page: deployment(fmt.Sprintf(core, "-x")), want: stuck("there is no Deployment with a container agent-ha-cluster")},
		"it has no agent-core":       {want: stuck("there is no Deployment with a container agent-ha-cluster")},
		"it is told to wait":         {path: agentCore, page: told("--faulted-child-wait-period=1h 30m"), want: known(90 * time.Minute)},
		"it is told something else":  {path: agentCore, page: told("--faulted-child-wait-period=1week"), want: known(0)},
		"another engine":             {path: "/apis/openebs.io/v1beta2", page: page{200, `{"kind":"APIResourceList","apiVersion":"v1","resources":[]}`}},
		"no pool":                    {path: diskPoolsPath, page: page{200, `{"items":[]}`}, want: &replica.System{Name: "Mayastor", Waits: "--faulted-child-wait-period"}},
		"its control plane is away":  {path: behindMayastor + "/v0/nodes", page: page{503, `{"details":"x","message":"y","kind":"Unavailable"}`}, want: &replica.System{Name: "Mayastor", Waits: "--faulted-child-wait-period", Away: "no usable answer from service openebs/openebs-api-rest: status 503 for /v0/nodes", Holders: []string{"wk1"}}},
		"another answer":             {path: behindMayastor + "/v0/nodes", page: page{200, `{"nodes":[]}`}, fails: "ask service openebs/openebs-api-rest for /v0/nodes: read the answer"},
		"pools forbidden":            {path: diskPoolsPath, page: forbidden(t, "diskpools", "openebs.io"), fails: `cannot list resource "diskpools"`},
		"services forbidden":         {path: "/api/v1/services", page: forbidden(t, "services", ""), fails: `cannot list resource "services"`},
		"services/proxy forbidden":   {path: behindMayastor + "/v0/volumes", page: forbidden(t, "services/proxy", ""), fails: `cannot list resource "services/proxy"`},
		"deployments forbidden":      {path: agentCore, page: forbidden(t, "deployments", "apps"), fails: `cannot list resource "deployments"`},
		"the group's kinds are gone": {path: "/apis/openebs.io/v1alpha1", page: page{404, "404 page not found"}, fails: "list resources of openebs.io/v1alpha1"},
	})
}

func diskStatus(ready string, replicas ...string) map[string]any {
	scheduled := map[string]any{}
	for _, r := range replicas {
		scheduled[r] = int64(1 << 30)
	}
	return map[string]any{
		"diskUUID": "0b5f", "scheduledReplica": scheduled,
		"conditions": []any{map[string]any{"type": "Ready", "status": ready, "lastTransitionTime": "", "lastProbeTime": ""}},
	}
}

func longhornNode(disks, status map[string]any) map[string]any {
	return map[string]any{"spec": map[string]any{"disks": disks}, "status": map[string]any{"diskStatus": status}}
}

func TestLocalDataOfLonghorn(t *testing.T) {
	t.Parallel()
	disk := func(kind, path string) map[string]any { return map[string]any{"diskType": kind, "path": path} }
	def := map[string]any{"default": disk("filesystem", "/var/lib/longhorn/")}
	only := func(what string) []cluster.LocalData {
		return []cluster.LocalData{{Name: "longhorn/var/lib/longhorn", What: "Longhorn disk default (" + what + ")", Path: "/var/lib/longhorn"}}
	}
	unknown := only("not ready: what is on it is unknown")
	imaged := diskStatus("True", "r1")
	imaged["scheduledBackingImage"] = map[string]any{"bi": int64(1)}
	noUUID := diskStatus("True")
	delete(noUUID, "diskUUID")
	type row struct {
		disks, status map[string]any
		want          []cluster.LocalData
	}
	cases := map[string]row{
		"replicas":            {def, map[string]any{"default": diskStatus("True", "r1", "r2")}, only("2 replicas")},
		"and backing images":  {def, map[string]any{"default": imaged}, only("1 replicas, 1 backing images")},
		"empty":               {disks: def, status: map[string]any{"default": diskStatus("True")}},
		"no status yet":       {def, nil, unknown},
		"status of null":      {def, map[string]any{"default": nil}, unknown},
		"not ready":           {def, map[string]any{"default": diskStatus("False")}, unknown},
		"not known by a UUID": {def, map[string]any{"default": noUUID}, unknown},
		"block devices":       {disks: map[string]any{"a": disk("block", "/dev/sdb"), "b": disk("lvm", "/dev/sdc")}},
		"two disks": {
			map[string]any{"a": disk("", "/var/mnt/b"), "b": disk("filesystem", "/var/mnt/a")},
			map[string]any{"a": diskStatus("True", "r1"), "b": diskStatus("True", "r2")},
			[]cluster.LocalData{
				{Name: "longhorn/var/mnt/a", What: "Longhorn disk b (1 replicas)", Path: "/var/mnt/a"},
				{Name: "longhorn/var/mnt/b", What: "Longhorn disk a (1 replicas)", Path: "/var/mnt/b"},
			},
		},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		l := upLab(t, "wk1", "wk2")
		add := l.install(t, "longhorn.io", "v1beta2", "nodes", "Node", true)
		add("longhorn-system", "wk1", longhornNode(tc.disks, tc.status))
		c := l.client(t, "system:masters")
		must.Equal(t, "wk1", tc.want, l.localData(t, c, "wk1"))
		must.Equal(t, "wk2 has no node of Longhorn, but data", 0, len(l.localData(t, c, "wk2")))
	})
}

// Longhorn's own objects prove that a disk is not empty, whatever its Node's status says.
func TestLonghornDiskIsEmptyOnlyWithoutReplicas(t *testing.T) {
	t.Parallel()
	replica := func(node, uuid, path string) map[string]any {
		return map[string]any{
			"metadata": map[string]any{"name": "pvc-1-r-1a2b3c4d", "labels": map[string]any{"longhornnode": node}},
			"spec":     map[string]any{"volumeName": "pvc-1", "nodeID": node, "diskID": uuid, "diskPath": path},
		}
	}
	orphan := func(node, kind string) map[string]any {
		return map[string]any{"spec": map[string]any{"nodeID": node, "orphanType": kind, "parameters": map[string]any{"DiskPath": "/var/lib/longhorn/"}}}
	}
	down := diskStatus("False")
	down["conditions"].([]any)[0].(map[string]any)["reason"] = "NodeNotReady"
	more := diskStatus("True")
	more["storageScheduled"] = int64(1 << 30)
	changed := diskStatus("False")
	changed["conditions"].([]any)[0].(map[string]any)["reason"] = "DiskFilesystemChanged"
	type row struct {
		status, replica, orphan map[string]any
		want                    string // "" for no loss
	}
	cases := map[string]row{
		"nothing":                      {status: diskStatus("True")},
		"nothing, and its node down":   {status: down},
		"another filesystem":           {status: changed, want: "not ready: what is on it is unknown"},
		"more than is listed":          {status: more, want: "not ready: what is on it is unknown"},
		"replica by the disk's UUID":   {status: diskStatus("True"), replica: replica("wk1", "0b5f", "/x"), want: "1 replicas"},
		"replica by its path":          {status: diskStatus("True"), replica: replica("wk1", "", "/var/lib/longhorn/"), want: "1 replicas"},
		"replica, and its node down":   {status: down, replica: replica("wk1", "0b5f", "/var/lib/longhorn/"), want: "1 replicas"},
		"replica of another disk":      {status: diskStatus("True"), replica: replica("wk1", "1c6a", "/var/mnt/x")},
		"replica of another node":      {status: diskStatus("True"), replica: replica("wk2", "1c6a", "/var/lib/longhorn/")},
		"orphaned directory":           {status: diskStatus("True"), orphan: orphan("wk1", "replica"), want: "0 replicas, 1 orphaned directories"},
		"orphaned directory elsewhere": {status: diskStatus("True"), orphan: orphan("wk2", "replica")},
		"orphaned instance":            {status: diskStatus("True"), orphan: orphan("wk1", "replica-instance")},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		l := upLab(t, "wk1", "wk2")
		disks := map[string]any{"default": map[string]any{"diskType": "filesystem", "path": "/var/lib/longhorn/"}}
		add := l.longhorn(t)
		add["nodes"]("longhorn-system", "wk1", longhornNode(disks, map[string]any{"default": tc.status}))
		if tc.replica != nil {
			add["replicas"]("longhorn-system", "pvc-1-r-1a2b3c4d", tc.replica)
		}
		if tc.orphan != nil {
			add["orphans"]("longhorn-system", "orphan-1", tc.orphan)
		}
		got := cluster.Each(l.localData(t, l.client(t, "system:masters"), "wk1"), func(d cluster.LocalData) string { return d.What })
		must.Equal(t, "local data", strings.TrimSuffix("Longhorn disk default ("+tc.want+")", "Longhorn disk default ()"), strings.Join(got, ""))
	})
}

// For what Longhorn can move to another node, the hint has the command that requests it.
func TestLonghornMovesWhatAnotherNodeTakes(t *testing.T) {
	t.Parallel()
	const evict = `kubectl -n longhorn-system patch nodes.longhorn.io wk1 --type merge -p '{"spec":{"allowScheduling":false,"evictionRequested":true,"disks":{"default":{"allowScheduling":false}}}}'`
	node := func(replicas []string, edit func(spec, status map[string]any)) map[string]any {
		n := longhornNode(map[string]any{"default": map[string]any{"diskType": "filesystem", "path": "/var/lib/longhorn/", "allowScheduling": true}},
			map[string]any{"default": diskStatus("True", replicas...)})
		spec, status := n["spec"].(map[string]any), n["status"].(map[string]any)
		spec["allowScheduling"] = true
		if edit != nil {
			edit(spec, status)
		}
		return n
	}
	down := func(_, status map[string]any) {
		status["conditions"] = []any{map[string]any{"type": "Ready", "status": "False"}}
	}
	type row struct {
		own           func(spec, status map[string]any)
		other         map[string]any
		command, says string
	}
	cases := map[string]row{
		"another node":               {other: node(nil, nil), command: evict, says: "has Longhorn move it to its other nodes; roll once the disk has no replicas, then undo that"},
		"one with another volume":    {other: node([]string{"pvc-2-r-1"}, nil), command: evict, says: "roll once"},
		"one that has the volume":    {other: node([]string{"pvc-1-r-2"}, nil), says: "every other Longhorn node that takes replicas has one of volume pvc-1"},
		"one that takes none":        {other: node(nil, func(spec, _ map[string]any) { spec["allowScheduling"] = false })},
		"one that is evicted itself": {other: node(nil, func(spec, _ map[string]any) { spec["evictionRequested"] = true })},
		"one that is down":           {other: node(nil, down)},
		"none":                       {},
		"asked already": {
			own: func(spec, _ map[string]any) { spec["allowScheduling"], spec["evictionRequested"] = false, true }, other: node(nil, nil),
			says: "Longhorn was asked to move it: roll once the disk has no replicas",
		},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		l := upLab(t, "wk1", "wk2")
		add := l.install(t, "longhorn.io", "v1beta2", "nodes", "Node", true)
		add("longhorn-system", "wk1", node([]string{"pvc-1-r-1"}, tc.own))
		if tc.other != nil {
			add("longhorn-system", "wk3", tc.other) // a node that the lab does not know: nothing is moved there
		}
		data := l.localData(t, l.client(t, "system:masters"), "wk1")
		must.Hold(t, len(data) == 1 && data[0].Command == tc.command && strings.Contains(data[0].Lift, tc.says) && (tc.says != "" || data[0].Lift == ""),
			"got %+v, want the command %q and %q", data, tc.command, tc.says)
	})
}

func TestLonghornOfAnotherVersionIsAnError(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		l.install(t, "longhorn.io", "v1", "nodes", "Node", true)
		must.Fail(t, must.Err(l.client(t, "system:masters").LocalData(t.Context(), cluster.KubeNode{Name: "wk1"})), "longhorn.io is served as v1 only, recast knows v1beta2")
	})
}

// TestRebuildsOfLonghorn: an Engine says how far the replicas are that it fills; without the right to list
// engines that is not known, and no error.
func TestRebuildsOfLonghorn(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t)
		add := l.longhorn(t)
		const ns, at = "longhorn-system", "2026-08-21T17:16:52Z"
		add["volumes"](ns, "a", map[string]any{"spec": map[string]any{"numberOfReplicas": int64(2)}, "status": map[string]any{"state": "attached", "robustness": "degraded"}})
		for name, spec := range map[string]map[string]any{
			"a-r-1": {"volumeName": "a", "nodeID": "wk1", "healthyAt": at, "lastHealthyAt": at, "failedAt": "", "active": true},
			"a-r-3": {"volumeName": "a", "nodeID": "wk3", "healthyAt": "", "lastHealthyAt": at, "failedAt": "", "active": true},
		} {
			add["replicas"](ns, name, map[string]any{"spec": spec, "status": map[string]any{"currentState": "running"}})
		}
		add["engines"](ns, "a-e-0", map[string]any{"status": map[string]any{
			"currentReplicaAddressMap": map[string]any{"a-r-1": "10.0.0.1:10000", "a-r-3": "10.0.0.3:10010"},
			"rebuildStatus": map[string]any{
				"tcp://10.0.0.1:10000": map[string]any{"isRebuilding": false, "progress": int64(100), "state": "complete"},
				"tcp://10.0.0.3:10010": map[string]any{"isRebuilding": true, "progress": int64(42), "state": "in_progress"},
			},
		}})
		l.Grant("readers", func(r kubeapi.Request) bool { return r.Resource != "engines" })
		for group, percent := range map[string]int{"system:masters": 42, "readers": 0} {
			got := must.Get(l.client(t, group).Replicas(t.Context()))(t)
			want := []replica.Replica{{Node: "wk1", Healthy: true}, {Node: "wk3", Rebuilt: true, Percent: percent}}
			must.Equal(t, group, want, got[0].Volumes[0].Replicas)
		}
	})
}

const (
	waitSetting = "replica-replenishment-wait-interval"
	holdMemo    = "recast.dev/hold"
)

var settingsOfLonghorn = schema.GroupVersionResource{Group: "longhorn.io", Version: "v1beta2", Resource: "settings"}

// withSetting is a lab with Longhorn's setting as longhorn-manager writes it.
func withSetting(t *testing.T) (*lab, *kube.Client) {
	t.Helper()
	l := newLab(t)
	l.install(t, "longhorn.io", "v1beta2", "settings", "Setting", true)("longhorn-system", waitSetting, map[string]any{
		"metadata": map[string]any{"name": waitSetting, "annotations": map[string]any{"longhorn.io/configmap-resource-version": "7"}},
		"value":    "600", "status": map[string]any{"applied": true},
	})
	return l, l.client(t, "system:masters")
}

// setting is the value, and the annotations besides Longhorn's own.
func (l *lab) setting(t *testing.T) (value, memo string) {
	t.Helper()
	u := must.Get(l.Store().Get(t.Context(), settingsOfLonghorn, "longhorn-system", waitSetting))(t).(*unstructured.Unstructured)
	must.Equal(t, "annotation of Longhorn", "7", u.GetAnnotations()["longhorn.io/configmap-resource-version"])
	value, _, _ = unstructured.NestedString(u.Object, "value")
	return value, sameRun(t, u.GetAnnotations()[holdMemo])
}

// sameRun removes the run from a memo, and when it was, after a look at them.
func sameRun(t *testing.T, memo string) string {
	t.Helper()
	run := fmt.Sprintf(`,"run":"run-1","since":"%s`, time.Now().UTC().Format("2006-01-02T"))
	before, since, found := strings.Cut(memo, run)
	if _, after, ends := strings.Cut(since, `Z"`); found && ends {
		return before + after
	}
	return memo
}

// set changes the setting as a person does, besides recast.
func (l *lab) set(t *testing.T, value, memo string) {
	t.Helper()
	u := must.Get(l.Store().Get(t.Context(), settingsOfLonghorn, "longhorn-system", waitSetting))(t).(*unstructured.Unstructured).DeepCopy()
	u.Object["value"] = value
	if memo != "" {
		a := u.GetAnnotations()
		a[holdMemo] = memo
		u.SetAnnotations(a)
	}
	must.Get(l.Store().Update(t.Context(), settingsOfLonghorn, u, store.Main))(t)
}

func (l *lab) requireSetting(t *testing.T, value, memo string) {
	t.Helper()
	v, m := l.setting(t)
	must.Equal(t, "value, memo", []string{value, memo}, []string{v, m})
}

// TestHoldAndGiveBack: the value and what was before are written at once, and come back exactly.
func TestHoldAndGiveBack(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l, c := withSetting(t)
		require := func(want string) func(said string, err error) {
			return func(said string, err error) {
				t.Helper()
				must.Equal(t, "said, error", []any{want, nil}, []any{said, err})
			}
		}
		require(waitSetting + " of Longhorn is 900 instead of 600")(c.HoldRebuild(t.Context(), "Longhorn", "wk1", "run-1", 15*time.Minute))
		l.requireSetting(t, "900", `{"was":"600","set":"900","nodes":{"wk1":900}}`)
		require("")(c.HoldRebuild(t.Context(), "Longhorn", "wk2", "run-1", 11*time.Minute))
		holds, err := c.Holds(t.Context())
		want := []replica.Hold{{
			System: "Longhorn", Setting: waitSetting, Now: "900", Memo: replica.Memo{Was: "600", Set: "900", Nodes: map[string]int{"wk1": 900, "wk2": 660}, Run: "run-1", Since: time.Now().UTC().Truncate(time.Second)},
			Undo: `kubectl --namespace longhorn-system patch settings.longhorn.io ` + waitSetting + ` --type merge --patch '{"value":"600","metadata":{"annotations":{"recast.dev/hold":null}}}'`,
		}}
		must.Do(t, err)
		must.Equal(t, "holds", want, holds)
		must.Equal(t, "got", "Longhorn: "+waitSetting+" was 600 before recast set it to 900, while wk1, wk2 are away", holds[0].String())
		require(waitSetting + " of Longhorn is 660, for wk2")(c.GiveBack(t.Context(), "Longhorn", "wk1"))
		require(waitSetting + " of Longhorn is 600 again")(c.GiveBack(t.Context(), "Longhorn", "wk2"))
		require("")(c.GiveBack(t.Context(), "Longhorn", "wk2"))
		l.requireSetting(t, "600", "")
		holds, err = c.Holds(t.Context())
		must.Hold(t, err == nil && len(holds) == 0, "%v, %v", holds, err)

		require(waitSetting + " of Longhorn is 900 instead of 600")(c.HoldRebuild(t.Context(), "Longhorn", "wk1", "run-1", 15*time.Minute))
		l.set(t, "1200", "")
		holds, err = c.Holds(t.Context())
		must.Hold(t, err == nil && strings.HasSuffix(holds[0].String(), "; someone else has set it to 1200 since") && holds[0].Undo == "kubectl --namespace longhorn-system annotate settings.longhorn.io "+waitSetting+" recast.dev/hold-",
			"%v, %v", holds, err)
		require(waitSetting + " of Longhorn stays 1200: someone else has set that")(c.GiveBack(t.Context(), "Longhorn", "wk1"))
		l.requireSetting(t, "1200", "")
	})
}

// TestHoldSurvivesFaults: a lost answer or a concurrent change neither loses what was before nor
// overwrites another's change.
func TestHoldSurvivesFaults(t *testing.T) {
	type row struct {
		strike func(t *testing.T, l *lab)
		was    string
	}
	cases := map[string]row{
		"the answer is lost": {func(_ *testing.T, l *lab) { l.loseAnswer() }, "600"},
		"the change is lost": {func(_ *testing.T, l *lab) { l.loseChange() }, "600"},
		"a person is faster": {func(t *testing.T, l *lab) { l.atFirstPatch(func() error { l.set(t, "700", ""); return nil }) }, "700"},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		l, c := withSetting(t)
		tc.strike(t, l)
		must.Get(c.HoldRebuild(t.Context(), "Longhorn", "wk1", "run-1", 15*time.Minute))(t)
		l.requireSetting(t, "900", `{"was":"`+tc.was+`","set":"900","nodes":{"wk1":900}}`)
		must.Get(c.GiveBack(t.Context(), "Longhorn", "wk1"))(t)
		l.requireSetting(t, tc.was, "")
	})
}

// TestHoldRefuses: nothing is written over what can't be understood, or without the right to.
func TestHoldRefuses(t *testing.T) {
	type row struct {
		do   func(t *testing.T, l *lab)
		want string
	}
	cases := map[string]row{
		"an annotation that is not ours": {func(t *testing.T, l *lab) { l.set(t, "600", "{}") }, "annotation recast.dev/hold of Longhorn's setting " + waitSetting + " is not as recast writes it"},
		"an annotation without a number": {func(t *testing.T, l *lab) { l.set(t, "900", `{"was":"{}","set":"900","nodes":{"wk1":900}}`) }, "is not as recast writes it"},
		"no number":                      {func(t *testing.T, l *lab) { l.set(t, "{}", "") }, `Longhorn's setting ` + waitSetting + `: "{}" is not a number`},
		"two settings": {func(t *testing.T, l *lab) {
			u := &unstructured.Unstructured{Object: map[string]any{"value": "1"}}
			u.SetGroupVersionKind(settingsOfLonghorn.GroupVersion().WithKind("Setting"))
			u.SetNamespace("other")
			u.SetName(waitSetting)
			l.put(t, settingsOfLonghorn, u)
		}, "Longhorn has 2 settings " + waitSetting + " instead of one"},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		l, c := withSetting(t)
		tc.do(t, l)
		value, memo := l.setting(t)
		must.FailAs(t, must.Err(c.HoldRebuild(t.Context(), "Longhorn", "wk1", "run-1", 15*time.Minute)), fault.Refused, tc.want)
		l.requireSetting(t, value, memo)
	})
}

// TestMayHold: doctor says beforehand that the right is missing; without it nothing is changed.
func TestMayHold(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l, c := withSetting(t)
		must.Pass(t, c.MayHold(t.Context(), "Longhorn"))
		l.Grant("readers", func(r kubeapi.Request) bool { return r.Verb == "get" || r.Verb == "list" })
		reader := l.client(t, "readers")
		must.FailAs(t, reader.MayHold(t.Context(), "Longhorn"), fault.Refused)
		start := time.Now()
		err := must.Err(reader.HoldRebuild(t.Context(), "Longhorn", "wk1", "run-1", 15*time.Minute))
		must.FailAs(t, err, fault.Refused)
		must.Hold(t, len(fault.Hints(err)) != 0 && time.Since(start) <= time.Second, "%v has no hint, or is late", err)
		l.requireSetting(t, "600", "")
	})
}
