package simtest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/step"
)

const longhornSpace = "longhorn-system"

// runLonghorn installs Longhorn as its manager writes its objects: its DaemonSet, settings, and a node for each worker.
func (l *Lab) runLonghorn(workers ...string) {
	l.t.Helper()
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
	l.t.Helper()
	u := object(longhornSettings, longhornSpace, name, map[string]any{"value": value, "status": map[string]any{"applied": true}})
	if errOf(l.Kube.Store().Update(l.t.Context(), longhornSettings.GroupVersionResource, u, store.Main)) != nil {
		l.put(longhornSettings.GroupVersionResource, u) // there is none yet
	}
}

// replicated adds an attached volume with healthy replicas on those nodes.
func (l *Lab) replicated(name string, wanted int, nodes ...string) {
	l.t.Helper()
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
	l.t.Helper()
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
	t.Helper()
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
	l.t.Helper()
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
	t.Helper()
	ways := storiesOf(cluster.Recreate, cluster.InPlace)
	eachInLab(t, sim.Options{Workers: 2}, ways, func(t *testing.T, lab *Lab, s cluster.Strategy) {
		r.run(lab, "wk1", "wk2")
		lab.Patch(sim.PatchedExtension)
		lab.setRoll("strategy: " + string(s))
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
	l.t.Helper()
	o := l.stored(longhornVolumes.GroupVersionResource, longhornSpace, volume)
	s, _, _ := unstructured.NestedString(o.(*unstructured.Unstructured).Object, "status", "robustness")
	return s
}

// TestRollStopsWhereVolumesStayBroken: a volume is not whole in time, so no other node follows; the next run
// does not take the other replica's node before it is.
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

// TestReplicasOfTwoWorkersAtATime: both may go at once, but each has the other replica of a volume: one waits
// for the other.
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
		require(t, !faulted && seen.most <= 1 && lab.robust("pvc-1") && lab.robust("pvc-2"),
			"%d at a time, faulted: %v", seen.most, faulted)
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
