package kube_test

import (
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestLocalDataOfRook: what an OSD restores from its own device at every start is no loss.
func TestLocalDataOfRook(t *testing.T) {
	t.Parallel()
	const rook = "/var/lib/rook"
	data := func(daemons string) []cluster.LocalData {
		return []cluster.LocalData{{Name: "rook" + rook, What: "Rook's directory of CephCluster rook-ceph/ceph (" + daemons + ")", Path: rook}}
	}
	daemon := func(namespace, app, node string, volumes ...string) []*corev1.Pod {
		paths := map[string]string{}
		for i := 0; i < len(volumes); i += 2 {
			paths[volumes[i]] = rook + volumes[i+1]
		}
		return []*corev1.Pod{daemonPod(namespace, app, node, paths)}
	}
	monData := []string{"ceph-daemon-data", "/mon-a/data", "rook-ceph-log", "/rook-ceph/log"}
	mon := func(node string) []*corev1.Pod { return daemon("rook-ceph", "rook-ceph-mon", node, monData...) }
	osd := func(mode, device string) []*corev1.Pod { return []*corev1.Pod{osdPod(mode, device, osdVolumes)} }
	osdWithData := daemon("rook-ceph", "rook-ceph-osd", "wk1", "activate-osd", "/rook-ceph/f_1")
	finished := osdWithData[0].DeepCopy()
	finished.Status.Phase = corev1.PodSucceeded
	onClaim := osdPod("raw", "/dev/sdb", map[string]string{"set1-data-0-bridge": rook + "/rook-ceph/set1-data-0"})
	onClaim.Spec.Volumes = append(onClaim.Spec.Volumes, corev1.Volume{Name: "set1-data-0", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "set1-data-0"},
	}})
	onClaimOldMode := onClaim.DeepCopy()
	onClaimOldMode.Spec.InitContainers[0].Name = "blkdevmapper" // without an activating container, in the mode lvm
	type row struct {
		dir     string
		pods    []*corev1.Pod
		drained bool // the pods are gone, their Deployments are not
		want    []cluster.LocalData
	}
	must.Bubbles(t, map[string]row{
		"monitor":                          {dir: rook, pods: mon("wk1"), want: data("rook-ceph-mon")},
		"monitor and OSD":                  {dir: rook + "/", pods: append(osdWithData, mon("wk1")...), want: data("rook-ceph-mon, rook-ceph-osd")},
		"drained":                          {dir: rook, pods: mon("wk1"), drained: true, want: data("rook-ceph-mon")},
		"drained, of another node":         {dir: rook, pods: mon("wk2"), drained: true},
		"on another node":                  {dir: rook, pods: mon("wk2")},
		"of another cluster":               {dir: rook, pods: daemon("default", "rook-ceph-mon", "wk1", monData...)},
		"another daemon":                   {dir: rook, pods: daemon("rook-ceph", "rook-ceph-mgr", "wk1", monData...)},
		"monitor on a claim":               {dir: rook, pods: daemon("rook-ceph", "rook-ceph-mon", "wk1", "rook-ceph-log", "/rook-ceph/log")},
		"a neighbour's directory":          {dir: rook, pods: daemon("rook-ceph", "rook-ceph-mon", "wk1", "x", "2")},
		"finished":                         {dir: rook, pods: []*corev1.Pod{finished}},
		"external Ceph":                    {pods: mon("wk1")},
		"monitor on a claim, with sockets": {dir: rook, pods: daemon("rook-ceph", "rook-ceph-mon", "wk1", "ceph-daemons-sock-dir", "/exporter")},
		"OSD, raw":                         {dir: rook, pods: osd("raw", "/dev/sdb")},
		"OSD, raw, drained":                {dir: rook, pods: osd("raw", "/dev/sdb"), drained: true},
		"OSD, LVM":                         {dir: rook, pods: osd("lvm", "/dev/ceph-1/osd-block-1")},
		"OSD, raw, on claim":               {dir: rook, pods: []*corev1.Pod{onClaim}},
		"OSD, raw, and a monitor":          {dir: rook, pods: append(osd("raw", "/dev/sdb"), mon("wk1")...), want: data("rook-ceph-mon")},
		"OSD that nothing activates":       {dir: rook, pods: []*corev1.Pod{onClaimOldMode}, want: data("rook-ceph-osd")},
		"OSD of an unknown mode":           {dir: rook, pods: osd("seastore", "/dev/sdb"), want: data("rook-ceph-osd")},
		"OSD of no mode":                   {dir: rook, pods: osd("", "/dev/sdb"), want: data("rook-ceph-osd")},
		"OSD in a file":                    {dir: rook, pods: osd("raw", "/dev/loop0"), want: data("rook-ceph-osd")},
		"OSD with a directory of data":     {dir: rook, pods: []*corev1.Pod{osdPod("raw", "/dev/sdb", map[string]string{"data": rook + "/osd0"})}, want: data("rook-ceph-osd")},
	}, func(t *testing.T, tc row) {
		l := upLab(t, "wk1", "wk2")
		add := l.install(t, "ceph.rook.io", "v1", "cephclusters", "CephCluster", true)
		add("rook-ceph", "ceph", map[string]any{"spec": map[string]any{"dataDirHostPath": tc.dir}})
		for _, p := range tc.pods {
			if tc.drained {
				l.put(t, store.Deployments(), tied(p))
			} else {
				l.put(t, store.Pods(), p.DeepCopy())
			}
		}
		l.requireData(t, tc.want)
	})
}

// osdVolumes are Rook's volumes for an OSD on a device of the node (rook, pkg/operator/ceph/cluster/osd/spec.go,
// makeDeployment and getActivateOSDInitContainer).
var osdVolumes = map[string]string{
	"rook-data": "/var/lib/rook", "activate-osd": "/var/lib/rook/rook-ceph/f_1", "ceph-daemons-sock-dir": "/var/lib/rook/exporter",
	"rook-ceph-log": "/var/lib/rook/rook-ceph/log", "rook-ceph-crash": "/var/lib/rook/rook-ceph/crash",
	"devices": "/dev", "run-udev": "/run/udev",
}

// osdPod is an OSD on wk1 in a mode of ceph-volume, whose first container activates it.
func osdPod(mode, device string, volumes map[string]string) *corev1.Pod {
	p := daemonPod("rook-ceph", "rook-ceph-osd", "wk1", volumes)
	env := []corev1.EnvVar{{Name: "ROOK_BLOCK_PATH", Value: device}, {Name: "ROOK_CV_MODE", Value: mode}}
	p.Spec.Containers[0].Name, p.Spec.Containers[0].Env = "osd", env
	activate := corev1.Container{Name: "activate", Image: "x"}
	for _, name := range []string{"activate-osd", "set1-data-0-bridge"} {
		if volumes[name] != "" {
			activate.VolumeMounts = append(activate.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/var/lib/ceph/osd/ceph-0"})
		}
	}
	p.Spec.InitContainers = []corev1.Container{activate}
	return p
}

// install serves a custom resource and returns how to add one.
func (l *lab) install(t *testing.T, group, version, resource, kind string, namespaced bool) func(namespace, name string, content map[string]any) {
	t.Helper()
	r := store.Resource{
		GroupVersionResource: schema.GroupVersionResource{Group: group, Version: version, Resource: resource},
		Kind:                 kind, Namespaced: namespaced, Status: true,
	}
	l.Define(r)
	return func(namespace, name string, content map[string]any) {
		t.Helper()
		u := &unstructured.Unstructured{Object: map[string]any{}}
		maps.Copy(u.Object, content)
		u.SetGroupVersionKind(r.GVK())
		u.SetNamespace(namespace)
		if u.GetName() == "" {
			u.SetName(name)
		}
		l.put(t, r.GroupVersionResource, u)
	}
}

// tied is the Deployment of a daemon's pod, without any pod.
func tied(p *corev1.Pod) *appsv1.Deployment {
	spec := p.Spec
	spec.NodeSelector, spec.NodeName = map[string]string{hostname: spec.NodeName}, ""
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: p.Labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: p.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels}, Spec: spec},
		},
	}
}

// rookPages are those of a Ceph cluster with pools of one kind: two OSDs on wk1, one of them of hard disks, one on wk2,
// and two on wk3 that are portable, so each is a host of its own.
func rookPages(kind, spec, mon string) map[string]page {
	osd := func(id, node, class, host string) string {
		return `{"metadata":{"labels":{"app":"rook-ceph-osd","ceph-osd-id":"` + id + `","device-class":"` + class + `","topology-location-host":"` + host + `","topology-location-zone":"z"}},` +
			`"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/hostname":"` + node + `"}}}},"status":{"availableReplicas":1}}`
	}
	list := func(version, kind string, items ...string) page {
		return page{http.StatusOK, `{"kind":"` + kind + `","apiVersion":"` + version + `","items":[` + strings.Join(items, ",") + `]}`}
	}
	return map[string]page{
		"/apis":                 {http.StatusOK, `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"ceph.rook.io","versions":[{"version":"v1"}]}]}`},
		"/apis/ceph.rook.io/v1": {http.StatusOK, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"ceph.rook.io/v1","resources":[{"name":"` + kind + `"},{"name":"` + kind + `/status"}]}`},
		"/apis/ceph.rook.io/v1/cephclusters": list("v1", "List", `{"metadata":{"namespace":"rook-ceph","name":"ceph"},"spec":{"mon":{`+mon+`}},"status":{"ceph":{"health":"HEALTH_OK","lastChecked":"`+
			time.Now().UTC().Format(time.RFC3339)+`"}}}`),
		"/apis/ceph.rook.io/v1/" + kind: list("v1", "List", `{"metadata":{"namespace":"rook-ceph","name":"x"},"spec":`+spec+`}`, `{"metadata":{"namespace":"elsewhere","name":"y"},"spec":`+spec+`}`),
		"/apis/apps/v1/namespaces/rook-ceph/deployments": list("apps/v1", "DeploymentList", osd("0", "wk1", "ssd", "wk1"), osd("1", "wk1", "hdd", "wk1"), osd("2", "wk2", "ssd", "wk2"),
			osd("3", "wk3", "ssd", "claim-a"), osd("4", "wk3", "ssd", "claim-b")),
		"/api/v1/namespaces/rook-ceph/pods": list("v1", "PodList"),
	}
}

// TestPlacementsOfCeph: how many copies of an object may be on a node follows from the pool's CRUSH rule, as Rook makes it.
func TestPlacementsOfCeph(t *testing.T) {
	t.Parallel()
	const block, files, store, zone = "cephblockpools", "cephfilesystems", "cephobjectstores", "cephobjectzones"
	on := func(wk1, wk2, wk3 int) map[string]int { return map[string]int{"wk1": wk1, "wk2": wk2, "wk3": wk3} }
	one := func(pool, domain string, copies, needs int, on map[string]int) []replica.Placement {
		return []replica.Placement{{Pool: pool, Domain: domain, Copies: copies, Needs: needs, On: on}}
	}
	const rbd = "CephBlockPool x"
	type row struct {
		kind, spec, mon string
		want            []replica.Placement
	}
	cases := map[string]row{
		"hosts, by default":       {kind: block, spec: `{"replicated":{"size":3}}`, want: one(rbd, "host", 3, 2, on(1, 1, 2))},
		"OSDs":                    {kind: block, spec: `{"failureDomain":"osd","replicated":{"size":3}}`, want: one(rbd, "osd", 3, 2, on(2, 1, 2))},
		"OSDs of a class":         {kind: block, spec: `{"failureDomain":"osd","deviceClass":"hdd","replicated":{"size":2}}`, want: one(rbd, "osd", 2, 1, on(1, 0, 0))},
		"OSDs, one copy":          {kind: block, spec: `{"failureDomain":"osd","replicated":{"size":1}}`, want: one(rbd, "osd", 1, 1, on(1, 1, 1))},
		"zones":                   {kind: block, spec: `{"failureDomain":"zone","replicated":{"size":2}}`, want: one(rbd, "zone", 2, 1, on(1, 1, 1))},
		"racks, without labels":   {kind: block, spec: `{"failureDomain":"rack","replicated":{"size":2}}`, want: one(rbd, "rack", 2, 1, on(1, 1, 1))},
		"a level unknown":         {kind: block, spec: `{"failureDomain":"shelf","replicated":{"size":2}}`, want: one(rbd, "shelf", 2, 1, on(2, 1, 2))},
		"a min_size":              {kind: block, spec: `{"replicated":{"size":3},"parameters":{"min_size":"1"}}`, want: one(rbd, "host", 3, 1, on(1, 1, 2))},
		"size by ratio":           {kind: block, spec: `{"replicated":{"size":0,"targetSizeRatio":0.5}}`, want: one(rbd, "host", 3, 2, on(1, 1, 2))},
		"coded":                   {kind: block, spec: `{"failureDomain":"osd","erasureCoded":{"dataChunks":2,"codingChunks":1}}`, want: one(rbd, "osd", 3, 2, on(2, 1, 2))},
		"coded, with two to lose": {kind: block, spec: `{"failureDomain":"osd","erasureCoded":{"dataChunks":4,"codingChunks":2}}`, want: one(rbd, "osd", 6, 5, on(2, 1, 2))},
		"two in each zone":        {kind: block, spec: `{"failureDomain":"zone","replicated":{"size":4,"replicasPerFailureDomain":2}}`, want: one(rbd, "zone", 4, 2, on(1, 1, 2))},
		"two on each host":        {kind: block, spec: `{"replicated":{"size":4,"replicasPerFailureDomain":2,"subFailureDomain":"osd"}}`, want: one(rbd, "host", 4, 2, on(2, 1, 4))},
		"hybrid": {
			kind: block, spec: `{"replicated":{"size":3,"hybridStorage":{"primaryDeviceClass":"ssd","secondaryDeviceClass":"hdd"}}}`, want: one(rbd, "host", 3, 2, on(2, 1, 1)),
		},
		"a stretched cluster": {kind: block, spec: `{"failureDomain":"osd","replicated":{"size":4}}`, mon: `"stretchCluster":{}`, want: one(rbd, "osd", 4, 2, on(1, 1, 2))},
		"files": {
			kind: files, spec: `{"metadataPool":{"replicated":{"size":2}},"dataPools":[{"name":"default","replicated":{"size":1}},{"failureDomain":"osd","replicated":{"size":2}}]}`,
			want: []replica.Placement{
				{Pool: "metadataPool of CephFilesystem x", Domain: "host", Copies: 2, Needs: 1, On: on(1, 1, 2)},
				{Pool: "dataPools[0] of CephFilesystem x", Domain: "host", Copies: 1, Needs: 1, On: on(1, 1, 1)},
				{Pool: "dataPools[1] of CephFilesystem x", Domain: "osd", Copies: 2, Needs: 1, On: on(2, 1, 2)},
			},
		},
		"objects": {
			kind: store, spec: `{"metadataPool":{"replicated":{"size":2}},"dataPool":{"failureDomain":"osd","erasureCoded":{"dataChunks":2,"codingChunks":1}}}`,
			want: []replica.Placement{
				{Pool: "metadataPool of CephObjectStore x", Domain: "host", Copies: 2, Needs: 1, On: on(1, 1, 2)},
				{Pool: "dataPool of CephObjectStore x", Domain: "osd", Copies: 3, Needs: 2, On: on(2, 1, 2)},
			},
		},
		"objects in pools of others": {kind: store, spec: `{"metadataPool":null,"sharedPools":{"dataPoolName":"y"}}`},
		"a zone":                     {kind: zone, spec: `{"dataPool":{"replicated":{"size":2}}}`, want: one("dataPool of CephObjectZone x", "host", 2, 1, on(1, 1, 2))},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		got := must.Get(serve(t, rookPages(tc.kind, tc.spec, tc.mon)).Replicas(t.Context()))(t)
		must.Equal(t, "systems", 1, len(got))
		must.Equal(t, "got", tc.want, got[0].Volumes[0].Placements)
	})
	for _, path := range []string{"", "/cephblockpools"} {
		pages := rookPages(block, `{}`, "")
		pages["/apis/ceph.rook.io/v1"+path] = forbidden(t, "cephblockpools", "ceph.rook.io")
		must.Hold(t, must.Err(serve(t, pages).Replicas(t.Context())) != nil, "%q forbidden: no error", path)
	}
}

// TestVotersOfCeph: MON_DOWN says which monitors are in quorum, and Deployments which run; one on a claim is where its pod is.
func TestVotersOfCeph(t *testing.T) {
	t.Parallel()
	mon := func(id, node, available, more string) string {
		return `{"metadata":{"labels":{"app":"rook-ceph-mon","ceph_daemon_id":"` + id + `"` + more + `}},"spec":{"template":{"spec":{"nodeSelector":{` + node + `}}}},"status":{"availableReplicas":` + available + `}}`
	}
	at := func(node string) string { return `"kubernetes.io/hostname":"` + node + `"` }
	pod := func(id, node, phase, ready string) string {
		return `{"metadata":{"labels":{"app":"rook-ceph-mon","ceph_daemon_id":"` + id + `"}},"spec":{"nodeName":"` + node + `"},"status":{"phase":"` + phase + `","conditions":[{"type":"Ready","status":"` + ready + `"}]}}`
	}
	three := []string{mon("a", at("wk1"), "1", ""), mon("b", at("wk4"), "1", ""), mon("c", at("wk5"), "1", "")}
	votes := func(a, b, c bool) []replica.Voter {
		return []replica.Voter{{Name: "a", Node: "wk1", Votes: a}, {Name: "b", Node: "wk4", Votes: b}, {Name: "c", Node: "wk5", Votes: c}}
	}
	type row struct {
		monitors, pods []string
		details        string
		want           []replica.Voter
		doubt          string
	}
	cases := map[string]row{
		"all":                {monitors: three, want: votes(true, true, true)},
		"one is out":         {monitors: three, details: `"MON_DOWN":{"message":"1/3 mons down, quorum a,c"}`, want: votes(true, false, true)},
		"without names":      {monitors: three, details: `"MON_DOWN":{"message":"1/3 mons down"}`, want: votes(false, false, false), doubt: "MON_DOWN (1/3 mons down)"},
		"Ceph is silent":     {monitors: three, details: `"error":{"message":"timed out"}`, want: votes(true, true, true), doubt: "error (timed out)"},
		"one does not run":   {monitors: append([]string{mon("d", at("wk1"), "0", "")}, three...), want: append(votes(true, true, true), replica.Voter{Name: "d", Node: "wk1"})},
		"a canary":           {monitors: append([]string{mon("d", at("wk1"), "1", `,"mon_canary":"true"`)}, three...), want: votes(true, true, true)},
		"on a claim":         {monitors: []string{mon("a", "", "1", "")}, pods: []string{pod("a", "wk6", "Running", "True")}, want: []replica.Voter{{Name: "a", Node: "wk6", Votes: true}}},
		"on a claim, moving": {monitors: []string{mon("a", "", "1", "")}, pods: []string{pod("a", "wk6", "Running", "False"), pod("a", "wk7", "Running", "True")}, want: []replica.Voter{{Name: "a", Node: "wk7", Votes: true}}},
		"on a claim, moved":  {monitors: []string{mon("a", "", "0", "")}, pods: []string{pod("a", "wk6", "Failed", "False")}, want: []replica.Voter{{Name: "a"}}},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		pages := rookPages("cephblockpools", `{}`, "")
		edit := func(path, from, to string) {
			p := pages[path]
			p.body = strings.Replace(p.body, from, to, 1)
			pages[path] = p
		}
		edit("/apis/ceph.rook.io/v1/cephclusters", `"HEALTH_OK"`, `"HEALTH_OK","details":{`+tc.details+`}`)
		edit("/apis/apps/v1/namespaces/rook-ceph/deployments", `"items":[`, `"items":[`+strings.Join(tc.monitors, ",")+",")
		edit("/api/v1/namespaces/rook-ceph/pods", `"items":[`, `"items":[`+strings.Join(tc.pods, ","))
		v := must.Get(serve(t, pages).Replicas(t.Context()))(t)[0].Volumes[0]
		must.Equal(t, "voters, doubt", []any{tc.want, tc.doubt}, []any{v.Voters, v.Doubt})
	})
}
