package simtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/linstor"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline/checkup"
)

const longhornSpace = "longhorn-system"

// runLonghorn installs Longhorn as its manager writes its objects: its DaemonSet, settings, and a node for each worker.
func (l *Lab) runLonghorn(workers ...string) {
	l.installLonghorn()
	l.put(store.DaemonSets(), daemonSet(longhornSpace, "longhorn-manager", onePod("longhorn-manager")))
	l.longhornSetting("node-drain-policy", "block-if-contains-last-replica")
	l.longhornSetting("replica-replenishment-wait-interval", "600")
	for _, name := range workers {
		ready := []any{map[string]any{"type": "Ready", "status": "True", "reason": "", "message": "", "lastProbeTime": "", "lastTransitionTime": ""}}
		l.put(longhornNodes.GroupVersionResource, object(longhornNodes, longhornSpace, name, map[string]any{
			"spec": map[string]any{
				"name": name, "allowScheduling": true, "evictionRequested": false,
				"disks": map[string]any{"data": map[string]any{"diskType": "filesystem", "path": "/var/mnt/data/longhorn", "allowScheduling": true, "evictionRequested": false}},
			},
			"status": map[string]any{
				"conditions": ready,
				"diskStatus": map[string]any{"data": map[string]any{"diskUUID": "disk-" + name, "conditions": ready, "scheduledReplica": map[string]any{}}},
			},
		}))
	}
	time.Sleep(10 * time.Second) // its pods start
}

func (l *Lab) longhornSetting(name, value string) {
	u := object(longhornSettings, longhornSpace, name, map[string]any{"value": value, "status": map[string]any{"applied": true}})
	if errOf(l.Kube.Store().Update(l.t.Context(), longhornSettings.GroupVersionResource, u, store.Main)) != nil {
		l.put(longhornSettings.GroupVersionResource, u) // there is none yet
	}
}

// replicated adds an attached volume with healthy replicas on those nodes.
func (l *Lab) replicated(name string, wanted int, nodes ...string) {
	robustness := "healthy"
	if len(nodes) < wanted {
		robustness = "degraded"
	}
	l.put(longhornVolumes.GroupVersionResource, object(longhornVolumes, longhornSpace, name, map[string]any{
		"spec": map[string]any{"numberOfReplicas": int64(wanted), "dataEngine": "v1", "size": "10737418240"},
		"status": map[string]any{
			"state": "attached", "robustness": robustness, "currentNodeID": nodes[0],
			"kubernetesStatus": map[string]any{"namespace": "default", "pvcName": "data-" + name, "pvName": name},
		},
	}))
	addresses := map[string]any{}
	for i := range nodes {
		addresses[fmt.Sprintf("%s-r-%08x", name, i)] = fmt.Sprintf("10.244.0.%d:10000", i+1)
	}
	l.put(longhornEngines.GroupVersionResource, object(longhornEngines, longhornSpace, name+"-e-0", map[string]any{
		"spec": map[string]any{"volumeName": name}, "status": map[string]any{"currentState": "running", "currentReplicaAddressMap": addresses, "rebuildStatus": map[string]any{}},
	}))
	for i, node := range nodes {
		at := time.Now().UTC().Format(time.RFC3339)
		u := object(longhornReplicas, longhornSpace, fmt.Sprintf("%s-r-%08x", name, i), map[string]any{
			"spec": map[string]any{
				"volumeName": name, "nodeID": node, "diskID": "disk-" + node, "diskPath": "/var/mnt/data/longhorn", "active": true,
				"healthyAt": at, "lastHealthyAt": at, "failedAt": "", "lastFailedAt": "", "desireState": "running",
			},
			"status": map[string]any{"currentState": "running"},
		})
		u.SetLabels(map[string]string{"longhornnode": node, "longhornvolume": name})
		l.put(longhornReplicas.GroupVersionResource, u)
	}
}

func (l *Lab) copyOf(volume, node string, change func(spec map[string]any)) {
	for _, o := range l.allStored(longhornReplicas.GroupVersionResource, "") {
		u := o.(*unstructured.Unstructured).DeepCopy()
		spec := u.Object["spec"].(map[string]any)
		if spec["volumeName"] == volume && spec["nodeID"] == node {
			change(spec)
			must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), longhornReplicas.GroupVersionResource, u, store.Main)))
			return
		}
	}
	l.t.Fatalf("volume %s has no replica on %s", volume, node)
}

// inStorageLab is a lab with stale workers and a storage system on them.
func inStorageLab(t *testing.T, run func(l *Lab, names ...string), workers int, test func(t *testing.T, lab *Lab)) {
	inLab(t, sim.Options{Workers: workers}, func(t *testing.T, lab *Lab) {
		run(lab, []string{"wk1", "wk2", "wk3", "wk4"}[:workers]...)
		lab.Patch(sim.PatchedExtension)
		test(t, lab)
	})
}

// TestPlanOfReplicatedVolumes: a node is refused, by the volume's name, while no other node has a healthy replica.
func TestPlanOfReplicatedVolumes(t *testing.T) {
	const here = "Longhorn volume longhorn-system/pvc-1 (claim default/data-pvc-1) has its only healthy replica on it"
	const off = ", or roll.storage: {longhorn: off} does not look at it"
	copies := func(wanted int, nodes ...string) edit {
		return func(l *Lab) { l.replicated("pvc-1", wanted, nodes...) }
	}
	setting := func(name, value string) edit { return func(l *Lab) { l.longhornSetting(name, value) } }
	planStorage(t, (*Lab).runLonghorn, map[string]storageCase{
		"two healthy replicas": {change: copies(2, "wk1", "wk2")},
		"the last replica":     refusing(here+": wait until Longhorn has made another"+off, copies(2, "wk1")),
		"the only one wanted":  refusing(here+": it is to have one only: give it a second one"+off, copies(1, "wk1")),
		"the only one wanted, and Longhorn lets it go": noting(
			"Longhorn volume longhorn-system/pvc-1 (claim default/data-pvc-1) has its only replica on it, and is not there while the node is away",
			copies(1, "wk1"), setting("node-drain-policy", "always-allow"),
		),
		"a rebuild runs": refusing(here+": another one is being rebuilt: wait until that is done"+off,
			copies(2, "wk1", "wk2"), func(l *Lab) {
				l.copyOf("pvc-1", "wk2", func(spec map[string]any) { spec["healthyAt"], spec["failedAt"] = "", "" })
			}),
		"the other's node is down": refusing(
			here+": wk9 is not ready for Longhorn (ManagerPodDown): bring that back first"+off,
			copies(2, "wk1", "wk9"), func(l *Lab) { l.longhornNodeDown("wk9") }),
		"its controllers are away": refusing(
			"Longhorn has 1 volume on it and does not say how they are now: there is no DaemonSet longhorn-system/longhorn-manager: bring its controllers back first"+off,
			copies(2, "wk1", "wk2"), without(store.DaemonSets(), longhornSpace, "longhorn-manager"),
		),
		"it waits less than the node is away": noting(
			"it is expected to be away for 4m0s, and Longhorn waits 1m0s for its 1 replica on it (replica-replenishment-wait-interval): recast has it wait 8m0s until its volumes are whole again",
			copies(2, "wk1", "wk2"), setting("replica-replenishment-wait-interval", "60"),
		),
		"not looked at": {change: all(copies(2, "wk1"), func(l *Lab) { l.setRoll("storage: off") })},
	})
}

func (l *Lab) longhornNodeDown(name string) {
	l.put(longhornNodes.GroupVersionResource, object(longhornNodes, longhornSpace, name, map[string]any{
		"spec": map[string]any{"allowScheduling": true},
		"status": map[string]any{"conditions": []any{
			map[string]any{"type": "Ready", "status": "False", "reason": "ManagerPodDown", "lastProbeTime": "", "lastTransitionTime": ""},
		}},
	}))
}

// TestRollWaitsForReplicas: each node is out with a replica, Longhorn fills that again, and the next node waits for it.
func TestRollWaitsForReplicas(t *testing.T) {
	long(t)
	const want = "volumes whole with wk1: Longhorn: 1 of 2 replicas healthy, 1 being rebuilt (%d %%); " +
		"1 volume not healthy: longhorn-system/pvc-1"
	rollWaits(t, storageRoll{
		run: (*Lab).runLonghorn, volume: func(l *Lab) { l.replicated("pvc-1", 2, "wk1", "wk2") },
		whole: func(l *Lab) bool { return l.robust("pvc-1") }, says: []string{fmt.Sprintf(want, 50), fmt.Sprintf(want, 75)},
	})
}

// storageRoll is a roll of two workers that each have a replica of a volume.
type storageRoll struct {
	run    func(l *Lab, workers ...string)
	volume func(l *Lab)
	whole  func(l *Lab) bool // the volume
	says   []string          // while the roll waits
	end    func(l *Lab)      // may be nil
}

// rollWaits rolls the workers in both ways: the second one goes once the volume is whole.
func rollWaits(t *testing.T, r storageRoll) {
	ways := storiesOf(cluster.Recreate, cluster.InPlace)
	eachInLab(t, sim.Options{Workers: 2}, ways, func(t *testing.T, lab *Lab, s cluster.Strategy) {
		r.run(lab, "wk1", "wk2")
		lab.patch(sim.PatchedExtension, "strategy: "+string(s))
		r.volume(lab)
		var said []string
		whole := true
		look := func() { whole = r.whole(lab) }
		lab.Client().hears(allOf(
			notes("await-storage-again", &said), whenStarted("wk2/take-down", look), whenStarted("wk2/upgrade", look),
		)).mustRoll(planning.Policy{})
		require(t, whole && r.whole(lab), "a node went while the volume was not whole, or it is not in the end")
		for _, want := range r.says {
			require(t, slices.Contains(said, want), "said %q", said)
		}
		if r.end != nil {
			r.end(lab)
		}
		requireInSync(t, lab)
	})
}

func (l *Lab) robust(volume string) bool { return l.robustness(volume) == "healthy" }

func (l *Lab) robustness(volume string) string {
	o := l.stored(longhornVolumes.GroupVersionResource, longhornSpace, volume)
	s, _, _ := unstructured.NestedString(o.(*unstructured.Unstructured).Object, "status", "robustness")
	return s
}

// TestRollStopsWhereVolumesStayBroken: no other node follows; the next run waits with the other replica's node, too.
func TestRollStopsWhereVolumesStayBroken(t *testing.T) {
	long(t)
	inStorageLab(t, (*Lab).runLonghorn, 2, func(t *testing.T, lab *Lab) {
		lab.Replace("recast.yaml", "try: 40s}", "try: 40s, storage: 2m}")
		lab.replicated("pvc-1", 2, "wk1", "wk2")
		c := lab.Client().hears(whenStarted("wk1/await-storage-again", func() {
			lab.copyOf("pvc-1", "wk1", func(spec map[string]any) { spec["nodeID"] = "wk7" }) // a disk that is gone
		}))
		err := c.roll(planning.Policy{})(t.Context())
		requireFault(t, err, fault.Failed, "roll/canary/wk1/await-storage-again: wk1 is done and takes pods, but no other node is to follow: volumes whole with wk1: gave up after 2m0s; last seen: Longhorn: 1 of 2 replicas healthy")
		requireDrift(t, lab, "wk2")
		lab.requireServing("wk1")
		requireNoClaim(t, lab)

		err = lab.second().roll(planning.Policy{})(t.Context())
		requireRefused(t, err, "has its only healthy replica on it: those on wk7 have failed")
		requireDrift(t, lab, "wk2")

		lab.copyOf("pvc-1", "wk7", func(spec map[string]any) { spec["nodeID"] = "wk1" })
		time.Sleep(time.Minute)
		lab.as(thirdRun).rollTo(t, planning.Policy{})
	})
}

// TestReplicasOfTwoWorkersAtATime: both may go at once, but each has the other replica: one waits for the other.
func TestReplicasOfTwoWorkersAtATime(t *testing.T) {
	long(t)
	inStorageLab(t, (*Lab).runLonghorn, 2, func(t *testing.T, lab *Lab) {
		lab.setRoll("canary: false", "maxUnavailable: {workers: 2, perHost: 2}")
		lab.replicated("pvc-1", 2, "wk1", "wk2")
		lab.replicated("pvc-2", 2, "wk2", "wk1")
		seen := lab.watchOutage()
		faulted := false
		look := func(step.Event) { faulted = faulted || lab.robustness("pvc-1") == "faulted" }
		lab.Client().hears(look).mustRoll(planning.Policy{})
		require(t, !faulted && seen.most <= 1 && lab.robust("pvc-1") && lab.robust("pvc-2"), "%d, %v", seen.most, faulted)
		requireInSync(t, lab)
	})
}

// TestInterruptedRollWaitsForReplicas: the run that finishes a node waits for its volumes before the next one.
func TestInterruptedRollWaitsForReplicas(t *testing.T) {
	long(t)
	inStorageLab(t, (*Lab).runLonghorn, 2, func(t *testing.T, lab *Lab) {
		lab.replicated("pvc-1", 2, "wk1", "wk2")
		first := lab.Client()
		first.Emit = whenStarted("wk1/bring-up/start", first.Kill)
		mustBe(t, first.roll(planning.Policy{})(t.Context()) != nil, "it was killed")
		time.Sleep(10 * time.Second)
		require(t, !lab.robust("pvc-1"), "the volume did not notice")
		whole := false
		lab.second().hears(whenStarted("wk2/take-down", func() { whole = lab.robust("pvc-1") })).mustRoll(planning.Policy{})
		require(t, whole, "wk2 went before the volume was whole")
		requireInSync(t, lab)
	})
}

const piraeusSpace = "piraeus-datastore"

// runLINSTOR installs Piraeus as its operator does: objects, LINSTOR's controller, and a satellite on each worker.
func (l *Lab) runLINSTOR(workers ...string) {
	l.installPiraeus()
	l.put(store.Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: piraeusSpace}})
	l.put(linstorClusters.GroupVersionResource, object(linstorClusters, "", "linstorcluster", map[string]any{"spec": map[string]any{}}))
	l.runProgram(piraeusSpace, "linstor-controller", "linstor-controller", map[string]string{"app.kubernetes.io/component": "linstor-controller"}, 3370)
	for _, name := range workers {
		l.put(linstorSatellites.GroupVersionResource, object(linstorSatellites, "", name, map[string]any{"spec": map[string]any{}}))
		l.Kube.LINSTOR().AddNode(name)
	}
	time.Sleep(10 * time.Second) // its pod starts
}

// runProgram runs a program with an HTTP API, as a Deployment behind a Service.
func (l *Lab) runProgram(namespace, name, container string, labels map[string]string, port int32) {
	l.put(store.Deployments(), deployment(namespace, name, labels, onePod(container)))
	l.put(store.Services(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Name: "api", Port: port}}},
	})
}

func onePod(name string) corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: name, Image: "registry.example.org/" + name}}}
}

func deployment(namespace, name string, labels map[string]string, pod corev1.PodSpec) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
		},
	}
}

func daemonSet(namespace, name string, pod corev1.PodSpec) *appsv1.DaemonSet {
	labels := map[string]string{"app": name}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
		},
	}
}

func (l *Lab) stopProgram(namespace, name string) {
	d := l.stored(store.Deployments(), namespace, name).(*appsv1.Deployment).DeepCopy()
	d.Spec.Replicas = new(int32(0))
	must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Deployments(), d, store.Main)))
	time.Sleep(10 * time.Second)
}

// drbd adds the volume pvc-1 of LINSTOR with current copies on those nodes.
func drbd(wanted int, nodes ...string) edit {
	copies := ofEach(nodes, func(n string) *linstor.Copy { return &linstor.Copy{Node: n, Disk: "UpToDate"} })
	return func(l *Lab) {
		l.Kube.LINSTOR().AddVolume(linstor.Volume{Name: "pvc-1", Claim: "default/data-pvc-1", Wanted: wanted, Copies: copies})
	}
}

type storageCase struct {
	change  func(l *Lab)
	refused []string
	notes   []string
}

// refusing is a change for which the plan of wk1 is refused, and noting one that it notes.
func refusing(reason string, change ...edit) storageCase {
	return storageCase{change: all(change...), refused: []string{reason}}
}

func noting(note string, change ...edit) storageCase {
	return storageCase{change: all(change...), notes: []string{note}}
}

const linstorOff = ", or roll.storage: {linstor: off} does not look at it"

func linstorCopies() map[string]storageCase {
	const here, off = "LINSTOR volume pvc-1 (claim default/data-pvc-1) has its only healthy replica on it", linstorOff
	joins := func(l *Lab) { l.Kube.LINSTOR().AddNode("wk9") }
	later := func(d time.Duration) edit { return func(*Lab) { time.Sleep(d) } }
	return map[string]storageCase{
		"two current copies": {change: drbd(2, "wk1", "wk2")},
		"the last copy":      refusing(here+": wait until LINSTOR has made another"+off, drbd(2, "wk1")),
		"the only one wanted": noting(
			"LINSTOR volume pvc-1 (claim default/data-pvc-1) has its only replica on it, and is not there while the node is away",
			drbd(1, "wk1"),
		),
		"a resync runs": refusing(here+": another one is being rebuilt: wait until that is done"+off,
			drbd(2, "wk1", "wk2"), func(l *Lab) {
				l.Kube.LINSTOR().SetCopy("pvc-1", "wk2", func(c *linstor.Copy) { c.Disk = "Inconsistent" })
			}, later(time.Second)),
		"the other has lost its connection": refusing(
			here+": those on wk2 have failed: wait until LINSTOR has rebuilt them"+off, func(l *Lab) {
				l.Kube.LINSTOR().AddVolume(linstor.Volume{
					Name: "pvc-1", Claim: "default/data-pvc-1", Wanted: 2, User: "wk1",
					Copies: []*linstor.Copy{{Node: "wk1", Disk: "UpToDate"}, {Node: "wk2", Disk: "UpToDate", Cut: true}},
				})
			}),
		"the other's node is down": refusing(here+": wk9 is OFFLINE for LINSTOR: bring that back first"+off,
			joins, drbd(2, "wk1", "wk9"), later(time.Minute)),
		"a quorum is lost": refusing(
			"LINSTOR volume pvc-1 loses its quorum without it: wk9 is OFFLINE for LINSTOR: bring that back first"+off,
			joins, func(l *Lab) {
				l.Kube.LINSTOR().AddVolume(linstor.Volume{
					Name: "pvc-1", Wanted: 2, Quorum: true, Diskless: []string{"wk9"},
					Copies: []*linstor.Copy{{Node: "wk1", Disk: "UpToDate"}, {Node: "wk2", Disk: "UpToDate"}},
				})
			}, later(time.Minute)),
	}
}

// linstorUnread are states in which LINSTOR says little, or something else than where copies are.
func linstorUnread() map[string]storageCase {
	const off = linstorOff
	const may = "LINSTOR may have volumes on it and does not say how they are now: "
	const gate = "roll.storage: {linstor: off} with a gate that asks linstor, see examples/gates/piraeus.yaml"
	cluster := func(spec map[string]any) edit {
		return func(l *Lab) {
			u := object(linstorClusters, "", "linstorcluster", map[string]any{"spec": spec})
			must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), linstorClusters.GroupVersionResource, u, store.Main)))
		}
	}
	evicts := func(minutes string) edit { return func(l *Lab) { l.evicting(minutes) } }
	roll := func(line string) edit { return func(l *Lab) { l.setRoll(line) } }
	apiTLS := cluster(map[string]any{"apiTLS": map[string]any{}})
	return map[string]storageCase{
		"its controller is away": refusing(
			may+`no usable answer from service piraeus-datastore/linstor-controller: no endpoints available for service "linstor-controller": bring its controllers back first`+off,
			drbd(2, "wk1", "wk2"), func(l *Lab) { l.stopProgram(piraeusSpace, "linstor-controller") },
		),
		"it has no controller": refusing(
			may+"there is no Service with app.kubernetes.io/component=linstor-controller: bring its controllers back first"+off,
			without(store.Services(), piraeusSpace, "linstor-controller"),
		),
		"it wants client certificates": refusing(
			may+"its API asks for a client certificate (spec.apiTLS of the LinstorCluster), and the API server's proxy has none: "+gate, apiTLS,
		),
		"it redirects": refusing(
			may+"no usable answer from service piraeus-datastore/linstor-controller: status 302 for /v1/nodes: bring its controllers back first"+off,
			func(l *Lab) { l.Kube.LINSTOR().EnableTLS() },
		),
		"its controller is elsewhere": refusing(
			may+"its controller is outside of the cluster (http://linstor.example.org:3370), and recast reads only one inside: "+gate,
			cluster(map[string]any{"externalController": map[string]any{"url": "http://linstor.example.org:3370"}}),
		),
		"it evicts nodes that are away": noting(
			"LINSTOR evicts it once it is away for 2m0s (DrbdOptions/AutoEvictAfterTime): recast has it wait 1h0m0s until its volumes are whole again",
			drbd(2, "wk1", "wk2"), evicts("2"),
		),
		"Piraeus says when this node is evicted": noting(
			"LINSTOR evicts it once it is away for 3m0s (DrbdOptions/AutoEvictAfterTime), and it is expected to be away for 4m0s: "+
				"Piraeus sets that of this node, so raise it in the LinstorSatelliteConfiguration",
			drbd(2, "wk1", "wk2"), evicts("720"), func(l *Lab) {
				l.Kube.LINSTOR().SetNodeProperty("wk1", evictAfter, "3")
				l.Kube.LINSTOR().SetNodeProperty("wk1", "Aux/piraeus.io/last-applied", `["DrbdOptions/AutoEvictAfterTime"]`)
			},
		),
		"nothing is looked at": {change: all(drbd(2, "wk1"), roll("storage: off"))},
		"it is not looked at":  {change: all(apiTLS, roll("storage: {linstor: off}"))},
		"another one is not looked at": refusing(
			"LINSTOR volume pvc-1 (claim default/data-pvc-1) has its only healthy replica on it: wait until LINSTOR has made another"+off,
			drbd(2, "wk1"), roll("storage: {longhorn: off}"),
		),
	}
}

// TestPlanOfLINSTOR: a node is refused, by the volume's name, while no other node has a current copy.
func TestPlanOfLINSTOR(t *testing.T) {
	cases := linstorCopies()
	maps.Copy(cases, linstorUnread())
	planStorage(t, (*Lab).runLINSTOR, cases)
}

func planStorage(t *testing.T, run func(l *Lab, names ...string), cases map[string]storageCase) {
	inStorageLab(t, run, 2, func(t *testing.T, lab *Lab) {
		eachHere(t, lab, cases, func(t *testing.T, lab *Lab, tc storageCase) {
			tc.change(lab)
			n := planOf(t, lab, "wk1")
			requireSame(t, tc.refused, n.Refused, "refused (-want +got)")
			requireSame(t, tc.notes, n.Notes, "notes (-want +got)")
		})
	})
}

func storageLab(run func(l *Lab, names ...string), workers int) inLabOf {
	return func(t *testing.T, test func(t *testing.T, lab *Lab)) { inStorageLab(t, run, workers, test) }
}

// TestRollWaitsForLINSTOR: the next node waits for DRBD, also while the controller moves. Properties stay as they are.
func TestRollWaitsForLINSTOR(t *testing.T) {
	long(t)
	rollWaits(t, storageRoll{
		run: (*Lab).runLINSTOR,
		volume: func(l *Lab) {
			drbd(2, "wk1", "wk2")(l)
			l.Kube.LINSTOR().SetProperty(evictAfter, "17")
		},
		whole: func(l *Lab) bool { return l.Kube.LINSTOR().Whole("pvc-1") },
		says:  []string{"volumes whole with wk1: LINSTOR: 1 of 2 replicas healthy, 1 being rebuilt; 1 volume not healthy: pvc-1"},
		end: func(l *Lab) {
			requireSame(l.t, "17", l.Kube.LINSTOR().Property(evictAfter), "%s is (-want +got)", evictAfter)
		},
	})
}

// TestQuorumOfTwoWorkersAtATime: a volume with three copies needs two, so one worker goes after the other.
func TestQuorumOfTwoWorkersAtATime(t *testing.T) {
	long(t)
	stories := map[string]int{"with a quorum": 1, "without": 2}
	eachBy(t, storageLab((*Lab).runLINSTOR, 3), stories, func(t *testing.T, lab *Lab, most int) {
		lab.setRoll("canary: false", "maxUnavailable: {workers: 2, perHost: 2}")
		copies := []*linstor.Copy{
			{Node: "wk1", Disk: "UpToDate"}, {Node: "wk2", Disk: "UpToDate"}, {Node: "wk3", Disk: "UpToDate"},
		}
		lab.Kube.LINSTOR().AddVolume(linstor.Volume{Name: "pvc-1", Wanted: 3, Quorum: most == 1, Copies: copies})
		seen := lab.watchOutage()
		lab.Client().rollTo(t, planning.Policy{})
		require(t, seen.most == most, "%d workers at a time, want %d", seen.most, most)
	})
}

// TestRollStopsWhereDRBDStaysApart: a copy does not connect again, so no other node follows.
func TestRollStopsWhereDRBDStaysApart(t *testing.T) {
	long(t)
	inStorageLab(t, (*Lab).runLINSTOR, 2, func(t *testing.T, lab *Lab) {
		lab.Replace("recast.yaml", "try: 40s}", "try: 40s, storage: 2m}")
		drbd(2, "wk1", "wk2")(lab)
		c := lab.Client().hears(whenStarted("wk1/await-storage-again", func() {
			lab.Kube.LINSTOR().SetCopy("pvc-1", "wk1", func(k *linstor.Copy) { k.Cut = true })
		}))
		err := c.roll(planning.Policy{})(t.Context())
		requireFault(t, err, fault.Failed, "roll/canary/wk1/await-storage-again: wk1 is done and takes pods, but no other node is to follow: volumes whole with wk1: gave up after 2m0s; last seen: LINSTOR: 0 of 2 replicas healthy")
		requireDrift(t, lab, "wk2")
		lab.Kube.LINSTOR().SetCopy("pvc-1", "wk1", func(k *linstor.Copy) { k.Cut = false })
		time.Sleep(time.Minute)
		lab.second().rollTo(t, planning.Policy{})
	})
}

const evictAfter, linstorHold = "DrbdOptions/AutoEvictAfterTime", "Aux/recast.dev/hold"

func (l *Lab) evicting(minutes string) {
	l.Kube.LINSTOR().SetProperty("DrbdOptions/AutoEvictAllowEviction", "True")
	l.Kube.LINSTOR().SetProperty(evictAfter, minutes)
}

func (l *Lab) requireEvictAfter(node, value string, held bool) {
	c := l.Kube.LINSTOR()
	v, memo := c.NodeProperty(node, evictAfter), c.NodeProperty(node, linstorHold)
	require(l.t, v == value && memo != "" == held, "%s of %s is %q, memo %q", evictAfter, node, v, memo)
}

// inEvictingLab runs a test with a LINSTOR on three workers that evicts each of them within its outage.
func inEvictingLab(t *testing.T, test func(t *testing.T, lab *Lab)) {
	long(t)
	inStorageLab(t, (*Lab).runLINSTOR, 3, func(t *testing.T, lab *Lab) {
		drbd(2, "wk1", "wk2")(lab)
		lab.evicting("1")
		test(t, lab)
	})
}

// TestRollKeepsLINSTORFromEvicting: no node is evicted while it is away, and each has its own property back.
func TestRollKeepsLINSTORFromEvicting(t *testing.T) {
	inEvictingLab(t, func(t *testing.T, lab *Lab) {
		lab.Kube.LINSTOR().SetNodeProperty("wk2", evictAfter, "2")
		var said []string
		held := map[string]string{}
		goes := func(n string) func(step.Event) {
			return whenStarted(n+"/take-down", func() { held[n] = lab.Kube.LINSTOR().NodeProperty(n, linstorHold) })
		}
		lab.Client().hears(allOf(notes("await-storage", &said), goes("wk1"), goes("wk2"))).mustRoll(planning.Policy{})
		for n, was := range map[string]string{"wk1": "", "wk2": "2"} {
			var m replica.Memo
			err := json.Unmarshal([]byte(held[n]), &m)
			require(t, err == nil && m.Was == was && m.Set == "60" && m.Nodes[n] == 60 && m.Run != "" && !m.Since.IsZero(),
				"held for %s: %s, %v", n, held[n], err)
			lab.requireEvictAfter(n, was, false)
			require(t, !lab.Kube.LINSTOR().Evicted(n), "%s was evicted", n)
		}
		for _, want := range []string{evictAfter + " of wk1 in LINSTOR is 60 instead of the controller's", evictAfter + " of wk2 in LINSTOR is 60 instead of 2"} {
			require(t, slices.Contains(said, want), "%q is missing in %q", want, said)
		}
		requireInSync(t, lab)
	})
}

// TestLINSTOREvictsWithoutHold: the lab's LINSTOR evicts a node as the real one does, so that the others prove something.
func TestLINSTOREvictsWithoutHold(t *testing.T) {
	inEvictingLab(t, func(t *testing.T, lab *Lab) {
		lab.setRoll("storage: {linstor: off}", "strategy: recreate")
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		c := lab.Kube.LINSTOR()
		require(t, c.Evicted("wk1") && !c.Whole("pvc-1"), "wk1 was not evicted")
	})
}

// putOfNode is recast's change of wk1 in LINSTOR.
const putOfNode = "services/linstor-controller:3370/proxy/v1/nodes/wk1 " + http.MethodPut

// TestLINSTORHoldOfAKilledRun: the next run gives back exactly what was there, and so does recover.
func TestLINSTORHoldOfAKilledRun(t *testing.T) {
	moments := []moment{
		{server: putOfNode, unsent: true}, onServer(putOfNode), before("wk1/take-down/delete-vm"), before("finish/uncordon"), before("wk1/await-storage-again"),
	}
	inLab := func(t *testing.T, test func(t *testing.T, lab *Lab)) {
		inEvictingLab(t, func(t *testing.T, lab *Lab) {
			lab.setRoll("strategy: recreate")
			lab.Kube.LINSTOR().SetNodeProperty("wk1", evictAfter, "2")
			test(t, lab)
		})
	}
	goOnAfterKills(t, inLab, moments, func(t *testing.T, lab *Lab, m moment) {
		set := lab.Kube.LINSTOR().NodeProperty("wk1", evictAfter)
		require(t, m.unsent || set == "60", "the killed run left %s", set)
	}, func(t *testing.T, lab *Lab) {
		lab.requireEvictAfter("wk1", "2", false)
		require(t, !lab.Kube.LINSTOR().Evicted("wk1"), "wk1 was evicted")
	})
}

// TestLINSTORHoldChangedBySomeoneElse: their value stays.
func TestLINSTORHoldChangedBySomeoneElse(t *testing.T) {
	inEvictingLab(t, func(t *testing.T, lab *Lab) {
		c := lab.Client()
		c.Emit = whenStarted("wk1/take-down", func() { lab.Kube.LINSTOR().SetNodeProperty("wk1", evictAfter, "90") })
		must(t, c.roll(planning.Policy{})(t.Context()))
		lab.requireEvictAfter("wk1", "90", false)
	})
}

// TestDoctorOfLINSTOR: doctor says when it evicts nodes, and what becomes of that.
func TestDoctorOfLINSTOR(t *testing.T) {
	const evicts = "1 volume; evicts a node that is away for %s (" + evictAfter + ")"
	type story struct {
		do    func(l *Lab)
		state checkup.State
		seen  string
	}
	stories := map[string]story{
		"never":       {func(*Lab) {}, checkup.OK, "1 volume"},
		"soon":        {func(l *Lab) { l.evicting("20") }, checkup.OK, fmt.Sprintf(evicts, 20*time.Minute) + ", and wk1 is expected to be away for 4m0s: a roll has it wait 1h0m0s"},
		"after a day": {func(l *Lab) { l.evicting("1440") }, checkup.OK, fmt.Sprintf(evicts, 24*time.Hour)},
		"what is left": {func(l *Lab) {
			l.evicting("20")
			l.Kube.LINSTOR().SetNodeProperty("wk1", evictAfter, "60")
			l.Kube.LINSTOR().SetNodeProperty("wk1", linstorHold, `{"was":"","set":"60","nodes":{"wk1":60}}`)
		}, checkup.Warning, evictAfter + " of wk1 was not set before recast set it to 60, while wk1 is away"},
	}
	inStorageLab(t, (*Lab).runLINSTOR, 2, func(t *testing.T, lab *Lab) {
		eachHere(t, lab, stories, func(t *testing.T, lab *Lab, s story) {
			drbd(2, "wk1", "wk2")(lab)
			s.do(lab)
			requireStorageCheck(t, lab, "LINSTOR", s.state, s.seen)
		})
	})
}

// TestLINSTORHoldIsRefused: if the property can't be changed, the node is not touched; doctor names the right before.
func TestLINSTORHoldIsRefused(t *testing.T) {
	set := func(l *Lab) string {
		c := l.Kube.LINSTOR()
		return c.NodeProperty("wk1", evictAfter) + " " + c.NodeProperty("wk1", linstorHold)
	}
	refusedHolds(t, inEvictingLab, "LINSTOR", set, map[string]refusedHold{
		"no answer": {silentLINSTOR, "have LINSTOR wait for wk1: gave up after 1m0s", ""},
		"no right": {func(l *Lab) {
			l.mayAll(func(r kubeapi.Request) bool { return r.Verb != "update" || r.Resource != "services/proxy" })
		}, `cannot update resource "services/proxy"`, "the kubeconfig may not update services/proxy of LINSTOR's controller"},
		"a memo that recast does not know": {func(l *Lab) {
			l.Kube.LINSTOR().SetNodeProperty("wk1", linstorHold, "{}")
		}, "property " + linstorHold + " of LINSTOR's node wk1 is not as recast writes it", ""},
	})
}

// TestLINSTORHoldIsLeft: the roll says so, with the command that gives the property back; the next one does that.
func TestLINSTORHoldIsLeft(t *testing.T) {
	inEvictingLab(t, func(t *testing.T, lab *Lab) {
		c := lab.Client().hears(whenStarted("wk1/await-storage-again", func() { silentLINSTOR(lab) }))
		err := c.roll(onlyWorker)(t.Context())
		requireFault(t, err, fault.Failed, "give back what storage systems were told")
		const undo = `by hand: echo '{"override_props":{},"delete_props":["DrbdOptions/AutoEvictAfterTime","Aux/recast.dev/hold"]}' | ` +
			"kubectl replace --raw /api/v1/namespaces/piraeus-datastore/services/linstor-controller:3370/proxy/v1/nodes/wk1 -f -"
		require(t, slices.Contains(fault.Hints(err), undo), "hints %q", fault.Hints(err))
		lab.Recorder.Hooks(nil, nil)
		lab.requireEvictAfter("wk1", "60", true)
		requireNoClaim(t, lab)
		requireHeldInDrift(t, lab, true)
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		lab.requireEvictAfter("wk1", "", false)
		res := lab.drift()
		require(t, len(res.Held) == 0 && res.InSync, "%+v", res)
	})
}

// requireHeldInDrift compares what drift says of the property of wk1: it is drift once no run is active.
func requireHeldInDrift(t *testing.T, lab *Lab, left bool) {
	res := lab.drift()
	mustBe(t, len(res.Held) == 1 && res.HeldLeft == left && !res.InSync, "%+v", res)
	h := res.Held[0]
	require(t, h.What == "LINSTOR: "+evictAfter+" of wk1 was not set before recast set it to 60, while wk1 is away" &&
		h.Run != "" && time.Since(h.Since) <= time.Hour && len(h.Next) == 2, "%+v", h)
}

// TestDriftDuringARoll: what an active roll holds is shown, and no drift.
func TestDriftDuringARoll(t *testing.T) {
	inEvictingLab(t, func(t *testing.T, lab *Lab) {
		looked := false
		c := lab.Client().hears(whenStarted("wk1/await-storage-again", func() {
			looked = true
			requireHeldInDrift(t, lab, false)
		}))
		must(t, c.roll(onlyWorker)(t.Context()))
		require(t, looked, "it did not look")
	})
}

// TestHoldBesideASilentSystem: what one system is told is given back though another one does not answer.
func TestHoldBesideASilentSystem(t *testing.T) {
	long(t)
	inImpatientLab(t, func(t *testing.T, lab *Lab) {
		lab.runLINSTOR()
		lab.stopProgram(piraeusSpace, "linstor-controller")
		err := lab.Client().roll(onlyWorker)(t.Context())
		requireFault(t, err, fault.Failed, "give back what storage systems were told: read what storage systems were told: gave up after 20s")
		lab.requireWaits("30", "")
		requireDrift(t, lab, "wk2", "wk3")
	})
}

// silentLINSTOR has no change of wk1 in LINSTOR arrive.
func silentLINSTOR(l *Lab) { l.dropsCalls(putOfNode) }

var (
	longhornNodes    = resource("longhorn.io/v1beta2", "nodes", "Node", true)
	longhornReplicas = resource("longhorn.io/v1beta2", "replicas", "Replica", true)
	longhornSettings = resource("longhorn.io/v1beta2", "settings", "Setting", true)
	longhornEngines  = resource("longhorn.io/v1beta2", "engines", "Engine", true)
	longhornKinds    = []store.Resource{longhornNodes, longhornVolumes, longhornReplicas, longhornSettings, longhornEngines}
	cephClusters     = resource("ceph.rook.io/v1", "cephclusters", "CephCluster", true)
)

// longhorn has two replicas on wk1, in that directory.
func longhorn(path string) edit {
	return func(l *Lab) {
		l.put(longhornNodes.GroupVersionResource, object(longhornNodes, "longhorn-system", "wk1", map[string]any{
			"spec": map[string]any{"disks": map[string]any{"default": map[string]any{"diskType": "filesystem", "path": path}}},
			"status": map[string]any{"diskStatus": map[string]any{"default": map[string]any{
				"diskUUID": "0b5f", "scheduledReplica": map[string]any{"r1": int64(1 << 30), "r2": int64(1 << 30)},
				"conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
			}}},
		}))
	}
}

// rook has a monitor on wk1 with its data below that directory.
func rook(dir string) edit {
	return func(l *Lab) {
		l.put(cephClusters.GroupVersionResource, object(cephClusters, "rook-ceph", "ceph", map[string]any{"spec": map[string]any{"dataDirHostPath": dir}}))
		l.put(store.Pods(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "rook-ceph-mon-a", Namespace: "rook-ceph", Labels: map[string]string{"app": "rook-ceph-mon"}},
			Spec: corev1.PodSpec{
				NodeName: "wk1", Containers: []corev1.Container{{Name: "mon", Image: "quay.io/ceph/ceph"}},
				Volumes: []corev1.Volume{{Name: "ceph-daemon-data", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir + "/mon-a/data"}}}},
			},
		})
	}
}

func object(r store.Resource, namespace, name string, content map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(r.GVK())
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}
