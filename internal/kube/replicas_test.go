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

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestReplicasOfLonghorn reads objects as longhorn-manager writes them.
func TestReplicasOfLonghorn(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t, "wk1", "wk2")
		add := map[string]func(namespace, name string, content map[string]any){}
		for resource, kind := range map[string]string{"nodes": "Node", "volumes": "Volume", "replicas": "Replica", "settings": "Setting", "engines": "Engine"} {
			add[resource] = l.install(t, "longhorn.io", "v1beta2", resource, kind, true)
		}
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
		got, err := c.Replicas(t.Context())
		must.Do(t, err)
		must.Equal(t, "got", []replica.System{want}, got)
		set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "longhorn-manager", Namespace: ns}}
		set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "longhorn-manager"}}
		set.Spec.Template.Labels = set.Spec.Selector.MatchLabels
		set.Spec.Template.Spec.NodeSelector = map[string]string{"none": "has it"}
		l.put(t, store.DaemonSets(), set)
		time.Sleep(time.Second)
		got = must.Get(c.Replicas(t.Context()))(t)
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
	got := must.Get(c.Replicas(t.Context()))(t)
	must.Equal(t, "replicas known, requests", []any{false, 1}, []any{got != nil, asked})
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
		if len(told) != 2 || <-told || !<-told {
			t.Errorf("told %d times", len(told))
		}
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
		if err != nil || got[0].Patience != patience || got[0].Waits == "" || strings.Contains(got[0].Remedy, "noout") != (patience == 10*time.Minute) {
			t.Errorf("%s: %v, %+v", managed, err, got)
		}
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
			if refused := tc.page.code == http.StatusForbidden; refused != (fault.KindOf(err) == fault.Refused) {
				t.Errorf("kind %v", fault.KindOf(err))
			}
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
