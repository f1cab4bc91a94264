package simtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/mayastor"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// runCeph installs Rook's objects of a Ceph cluster with an OSD on each worker, as its operator writes them.
func (l *Lab) runCeph(workers ...string) {
	l.t.Helper()
	for _, kind := range append([]store.Resource{cephClusters}, cephPools...) {
		l.Kube.Define(kind)
	}
	l.put(store.Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "rook-ceph"}})
	l.put(cephClusters.GroupVersionResource, object(cephClusters, "rook-ceph", "ceph", map[string]any{
		"spec": map[string]any{"disruptionManagement": map[string]any{"managePodBudgets": true}},
	}))
	for i, name := range workers {
		l.cephDaemon("osd", fmt.Sprint(i), name)
	}
	time.Sleep(2 * time.Minute) // its OSDs start, and Rook checks
}

var (
	cephBlockPools = resource("ceph.rook.io/v1", "cephblockpools", "CephBlockPool", true)
	cephFiles      = resource("ceph.rook.io/v1", "cephfilesystems", "CephFilesystem", true)
	cephStores     = resource("ceph.rook.io/v1", "cephobjectstores", "CephObjectStore", true)
	cephPools      = []store.Resource{cephBlockPools, cephFiles, cephStores}
)

func (l *Lab) cephDaemon(kind, id, node string) {
	l.t.Helper()
	labels := map[string]string{"app": "rook-ceph-" + kind, "ceph_daemon_id": id, kind: id, "topology-location-host": node}
	l.put(store.Deployments(), deployment("rook-ceph", "rook-ceph-"+kind+"-"+id, labels, corev1.PodSpec{
		NodeSelector: map[string]string{corev1.LabelHostname: node},
		Tolerations:  []corev1.Toleration{{Key: "node-role.kubernetes.io/control-plane", Operator: corev1.TolerationOpExists}},
		Containers:   []corev1.Container{{Name: kind, Image: "quay.io/ceph/ceph:v19"}},
	}))
}

func idle(d time.Duration) edit { return func(*Lab) { time.Sleep(d) } }

// cephMonitors makes wk1 the host of a monitor, besides others, and not of an OSD.
func cephMonitors(others ...string) edit {
	return func(l *Lab) {
		if len(others) > 0 {
			without(store.Deployments(), "rook-ceph", "rook-ceph-osd-0")(l)
		}
		for i, name := range append([]string{"wk1"}, others...) {
			l.cephDaemon("mon", string(rune('a'+i)), name)
		}
		time.Sleep(2 * time.Minute) // they start, and Rook checks
	}
}

func cephPool(kind store.Resource, spec map[string]any) edit {
	return func(l *Lab) {
		l.put(kind.GroupVersionResource, object(kind, "rook-ceph", "data", map[string]any{"spec": spec}))
	}
}

// cephHealth writes a health of the Ceph cluster, with the messages of its warnings.
func cephHealth(checked time.Duration, warnings map[string]string) edit {
	return func(l *Lab) {
		l.t.Helper()
		details := map[string]any{}
		for code, message := range warnings {
			details[code] = map[string]any{"severity": "HEALTH_WARN", "message": message}
		}
		at := time.Now().Add(-checked).UTC().Format(time.RFC3339)
		u := l.stored(cephClusters.GroupVersionResource, "rook-ceph", "ceph").(*unstructured.Unstructured).DeepCopy()
		u.Object["status"] = map[string]any{"ceph": map[string]any{"health": "HEALTH_WARN", "lastChecked": at, "details": details}}
		must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), cephClusters.GroupVersionResource, u, store.Status)))
	}
}

// No node with OSDs is planned while data has too few replicas; pools and monitors say which node Ceph can spare.
func TestPlanOfCeph(t *testing.T) {
	const off = ", or roll.storage: {ceph: off} does not look at it"
	const rook = "Ceph cluster rook-ceph/ceph"
	const may = rook + " may have the only healthy replica of some data on it: "
	copies := func(n int64) map[string]any { return map[string]any{"size": n} }
	stops := func(name string) edit { return func(l *Lab) { l.stopProgram("rook-ceph", name) } }
	planStorage(t, (*Lab).runCeph, map[string]storageCase{
		"healthy": {change: all()},
		"warnings of other things": {
			change: cephHealth(0, map[string]string{"RECENT_CRASH": "1 daemons have recently crashed", "OSD_DOWN": "1 osds down"}),
		},
		"recovery runs": refusing(may+"PG_DEGRADED (Degraded data redundancy: 3/9 objects degraded): wait until it has repaired that"+off,
			cephHealth(0, map[string]string{"PG_DEGRADED": "Degraded data redundancy: 3/9 objects degraded"})),
		"its operator is away": refusing(may+"Rook checked its health 20m0s ago: its operator may be away: wait until it has repaired that"+off,
			cephHealth(20*time.Minute, nil)),
		"another node's OSD is down": refusing(may+"wk2 does not serve all of its own: bring that back first"+off, stops("rook-ceph-osd-1")),
		"a pool over OSDs, of which it has two": refusing(rook+" may have 2 of the 2 copies of data of CephBlockPool data on it (failureDomain osd), "+
			"and 1 must be there: give the pool the failureDomain host"+off,
			func(l *Lab) { l.cephDaemon("osd", "2", "wk1") },
			cephPool(cephBlockPools, map[string]any{"failureDomain": "osd", "replicated": copies(2)}), idle(2*time.Minute)),
		"a pool with one copy": noting("dataPools[0] of CephFilesystem data of "+rook+" needs 1 of its 1 copies: data with one on it is not there while the node is away",
			cephPool(cephFiles, map[string]any{
				"metadataPool": map[string]any{"replicated": copies(2)}, "dataPools": []any{map[string]any{"replicated": copies(1)}},
			})),
		"the only node with OSDs": noting("it is the only node with OSDs of "+rook+", which is not there while the node is away",
			without(store.Deployments(), "rook-ceph", "rook-ceph-osd-1"), idle(2*time.Minute)),
		"a sole monitor":                    noting(rook+" has its only monitor on it, and is not there while the node is away", cephMonitors()),
		"one of three monitors, and no OSD": {change: cephMonitors("wk2", "cp1")},
		"one of three monitors, another is down, and no OSD": refusing(rook+" loses the quorum of its monitors without it: monitor c on cp1 is not in quorum: bring that back first"+off,
			cephMonitors("wk2", "cp1"), stops("rook-ceph-mon-c"), idle(2*time.Minute)),
	})
}

// The next node goes only once Rook has seen that all data is repaired, though two may go at a time.
func TestRollWaitsForCeph(t *testing.T) {
	long(t)
	inStorageLab(t, (*Lab).runCeph, 3, func(t *testing.T, lab *Lab) {
		lab.setRoll("canary: false", "maxUnavailable: {workers: 2, perHost: 2}")
		seen := lab.watchOutage()
		var said []string
		early := false
		c := lab.Client().hears(allOf(notes("await-storage-again", &said), func(e step.Event) {
			if before("take-down").is(e) {
				u := lab.stored(cephClusters.GroupVersionResource, "rook-ceph", "ceph").(*unstructured.Unstructured)
				_, degraded, _ := unstructured.NestedMap(u.Object, "status", "ceph", "details", "PG_DEGRADED")
				early = early || degraded
			}
		}))
		c.rollTo(t, planning.Policy{})
		require(t, !early && seen.most <= 1, "%d at a time; a node went while data was degraded: %v", seen.most, early)
		requireSays(t, strings.Join(said, "\n"), "volumes whole with wk1: Ceph cluster rook-ceph/ceph: ")
	})
}

func onCeph() sim.Options {
	o := oneWorker()
	o.DiskType, o.SharedDisks = "rbd", true
	return o
}

// inactive is a Ceph that lets reads and writes wait.
var inactive = world.Ceph{Checks: map[string]world.CephCheck{
	"PG_AVAILABILITY": {Severity: "HEALTH_WARN", Message: "Reduced data availability: 3 pgs inactive"},
}}

const inactiveSays = "the Proxmox hosts' Ceph lets reads or writes wait: PG_AVAILABILITY (Reduced data availability: 3 pgs inactive)"

// No node goes while its disks are on a Ceph that lets reads or writes wait, whatever the strategy.
func TestPlanOnCephOfHosts(t *testing.T) {
	check := func(code, severity, message string) *world.Ceph {
		return &world.Ceph{Checks: map[string]world.CephCheck{code: {Severity: severity, Message: message}}}
	}
	type story struct {
		ceph     *world.Ceph // nil: as the lab has it, not installed
		strategy cluster.Strategy
		says     string // why the node is refused; "": it is not
		warn     string // "": nothing of Ceph
	}
	stories := map[string]story{
		"healthy":                {ceph: &world.Ceph{}, strategy: cluster.Recreate},
		"inactive":               {ceph: &inactive, strategy: cluster.Recreate, says: inactiveSays},
		"inactive, and in place": {ceph: &inactive, strategy: cluster.InPlace, says: inactiveSays},
		"nearly full":            {ceph: check("OSD_NEARFULL", "HEALTH_WARN", "1 nearfull osd(s)"), strategy: cluster.Recreate, warn: "the Proxmox hosts' Ceph says OSD_NEARFULL (1 nearfull osd(s))"},
		"its monitors are away": {
			ceph: &world.Ceph{Silent: true}, strategy: cluster.Recreate,
			says: "the Proxmox hosts' Ceph does not say how it is (GET /nodes/pve1/ceph/status: 500 rados_connect failed - Connection timed out)",
		},
	}
	play := func(t *testing.T, lab *Lab, s story) {
		lab.setRoll("strategy: " + string(s.strategy))
		if s.ceph != nil {
			lab.World.SetCeph(*s.ceph)
		}
		var refused []string
		if s.says != "" {
			refused = []string{"storage fast has disks of its VM, and " + s.says + ": wait until it has repaired that, or see what ceph health detail says on pve1"}
		}
		plan := lab.plan(planning.Policy{})
		i := slices.IndexFunc(plan.Nodes, func(n planning.NodePlan) bool { return n.Node == "wk1" })
		requireSame(t, refused, plan.Nodes[i].Refused, "refused (-want +got)")
		requireSame(t, s.warn != "", slices.Contains(plan.Warn, s.warn), "warnings %q (-want +got)", plan.Warn)
	}
	inLab(t, onCeph(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		eachHere(t, lab, map[string]story{"not installed": {strategy: cluster.Recreate}}, play)
		eachHere(t, lab, stories, play)
	})
}

// What the plan found is asked again before the node goes. A rollback takes its node out, too.
func TestCephOfHostsBeforeANode(t *testing.T) {
	long(t)
	inLab(t, onCeph(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.setRoll("strategy: " + string(cluster.Recreate))
		lab.World.SetCeph(world.Ceph{})
		c := lab.Client().hears(whenStarted("wk1/gate", func() { lab.World.SetCeph(inactive) }))
		requireRefused(t, c.roll(planning.Policy{})(t.Context()), "wk1 has disks on storage fast: "+inactiveSays)
		requireDrift(t, lab, "wk1")
		lab.World.SetCeph(world.Ceph{})
		lab.as(firstRun).rollTo(t, planning.Policy{})
		lab.World.SetCeph(inactive)
		requireRefused(t, lab.as(secondRun).goBack("wk1")(t.Context()), "storage fast has disks of its VM, and "+inactiveSays)
		lab.World.SetCeph(world.Ceph{})
		must(t, lab.as(thirdRun).goBack("wk1")(t.Context()))
	})
}

const (
	openebsSpace = "openebs"
	mayastorUUID = "4be37dbd-4b60-44f3-b807-08f6693522ac"
)

var diskPools = resource("openebs.io/v1beta2", "diskpools", "DiskPool", true)

// runMayastor installs Mayastor as its chart does: its API behind a Service, and a pool on each worker.
func (l *Lab) runMayastor(workers ...string) {
	l.t.Helper()
	l.Kube.Define(diskPools)
	l.put(store.Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: openebsSpace}})
	l.runProgram(openebsSpace, "openebs-api-rest", "api-rest", map[string]string{"app": "api-rest", "openebs.io/release": "openebs"}, 8081)
	l.put(store.Deployments(), agentCore())
	for _, name := range workers {
		l.put(diskPools.GroupVersionResource, object(diskPools, openebsSpace, "pool-on-"+name, map[string]any{
			"spec": map[string]any{"node": name, "disks": []any{"/dev/vdb"}}, "status": map[string]any{"cr_state": "Created", "pool_status": "Online"},
		}))
		l.Kube.Mayastor().AddNode(name)
	}
	time.Sleep(10 * time.Second) // its pod starts
}

func agentCore(args ...string) *appsv1.Deployment {
	labels := map[string]string{"app": "agent-core", "openebs.io/release": "openebs"}
	return deployment(openebsSpace, "openebs-agent-core", labels, corev1.PodSpec{Containers: []corev1.Container{
		{Name: "agent-core", Image: "openebs/mayastor-agent-core:v2.8.0", Args: args},
		{Name: "agent-ha-cluster", Image: "openebs/mayastor-agent-ha-cluster:v2.8.0"},
	}})
}

// mayastorVolume adds a volume with healthy replicas on those nodes. Its target is on a node, and its user on another; "": neither.
func mayastorVolume(wanted int, target, user string, nodes ...string) edit {
	return func(l *Lab) {
		v := mayastor.Volume{UUID: mayastorUUID, Wanted: wanted, Target: target}
		v.Replicas = cluster.Each(nodes, func(n string) *mayastor.Replica { return &mayastor.Replica{Node: n, Child: "Online"} })
		if user != "" {
			v.Users = []string{user}
		}
		l.Kube.Mayastor().AddVolume(v)
	}
}

// nexus is mayastorVolume of a volume without a target or user of its own.
func nexus(wanted int, nodes ...string) edit { return mayastorVolume(wanted, "", "", nodes...) }

// TestPlanOfMayastor: a node is refused, by the volume's UUID, while no other node has a healthy replica.
func TestPlanOfMayastor(t *testing.T) {
	const volume = "Mayastor volume " + mayastorUUID
	const here = volume + " has its only healthy replica on it"
	const off = ", or roll.storage: {mayastor: off} does not look at it"
	const may = "Mayastor may have volumes on it and does not say how they are now: "
	planStorage(t, (*Lab).runMayastor, map[string]storageCase{
		"two healthy replicas": {change: nexus(2, "wk1", "wk2")},
		"the last replica":     refusing(here+": wait until Mayastor has made another"+off, nexus(2, "wk1")),
		"the only one wanted":  noting(volume+" has its only replica on it, and is not there while the node is away", nexus(1, "wk1")),
		"a rebuild runs": refusing(here+": another one is being rebuilt: wait until that is done"+off, nexus(2, "wk1", "wk2"), func(l *Lab) {
			l.Kube.Mayastor().SetReplica(mayastorUUID, "wk2", func(r *mayastor.Replica) { r.Child = "Degraded" })
		}),
		"the other's node is down": refusing(here+": wk9 is Offline for Mayastor: bring that back first"+off,
			func(l *Lab) { l.Kube.Mayastor().AddNode("wk9") }, nexus(2, "wk1", "wk9"), idle(time.Minute)),
		"its API is away": refusing(may+`no usable answer from service openebs/openebs-api-rest: no endpoints available for service "openebs-api-rest": bring its controllers back first`+off,
			nexus(2, "wk1", "wk2"), func(l *Lab) { l.stopProgram(openebsSpace, "openebs-api-rest") }),
		"it has no API": refusing(may+"there is no Service with app=api-rest,openebs.io/release: bring its controllers back first"+off,
			without(store.Services(), openebsSpace, "openebs-api-rest")),
		"not published": {change: func(l *Lab) {
			l.Kube.Mayastor().AddVolume(mayastor.Volume{
				UUID: mayastorUUID, Wanted: 2, Unpublished: true, Replicas: []*mayastor.Replica{{Node: "wk1"}, {Node: "wk2"}},
			})
		}},
		"its target, its pod elsewhere": noting(volume+" is used by wk2 through it: what writes to it waits until Mayastor serves it through another node",
			mayastorVolume(2, "wk1", "wk2", "wk1", "wk2")),
		"its target, its pod elsewhere, and no HA": refusing(volume+" is used by wk2 through it, and waits for it while it is away: its HA agents are off (--disable-ha): "+
			"turn on agents.ha.enabled of its chart, or move the pods that use it to the node"+off,
			mayastorVolume(2, "wk1", "wk2", "wk1", "wk2"), func(l *Lab) { l.Kube.Mayastor().DisableHA() },
			without(store.Deployments(), openebsSpace, "openebs-agent-core"), func(l *Lab) { l.put(store.Deployments(), agentCore("--disable-ha")) }),
		"its pod, its target elsewhere": {change: mayastorVolume(2, "wk2", "wk1", "wk1", "wk2")},
		"not looked at":                 {change: all(nexus(2, "wk1"), func(l *Lab) { l.setRoll("storage: off") })},
	})
}

// TestRollWaitsForMayastor: each node is out with a replica, Mayastor rebuilds it, and the next node waits for that.
func TestRollWaitsForMayastor(t *testing.T) {
	long(t)
	rollWaits(t, storageRoll{
		run: (*Lab).runMayastor, volume: nexus(2, "wk1", "wk2"),
		whole: func(l *Lab) bool { return l.Kube.Mayastor().Whole(mayastorUUID) },
		says:  []string{"volumes whole with wk1: Mayastor: 1 of 2 replicas healthy, 1 being rebuilt; 1 volume not healthy: " + mayastorUUID},
	})
}

func (l *Lab) initiators() map[string]string {
	l.t.Helper()
	out := map[string]string{}
	for _, n := range l.allStored(store.Nodes(), "") {
		out[n.GetName()] = cluster.InitiatorName(cluster.ISCSI, n.(*corev1.Node).Status.NodeInfo.MachineID)
	}
	return out
}

// letInAll has the server of iSCSI let in all nodes by their present names, and no other.
func (l *Lab) letInAll() { l.Kube.LetIn(slices.Collect(maps.Values(l.initiators()))...) }

// A node with a new system disk has another name for iSCSI, which the server has to let in before the next node goes.
func TestAServerThatKnowsNodesByName(t *testing.T) {
	inLab(t, twoWorkers, func(t *testing.T, lab *Lab) {
		lab.isImpatient()
		lab.Replace("recast.yaml", "timeouts: {", "timeouts: {storage: 10m, ")
		lab.Patch(sim.PatchedExtension)
		pods := podsOf("db").Spec
		pods.Volumes = []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "10.0.0.1", IQN: "iqn.2000-01.com.example:disk"}}}}
		lab.put(store.DaemonSets(), daemonSet(corev1.NamespaceDefault, "db", pods))
		lab.letInAll()
		time.Sleep(20 * time.Second)
		was := lab.initiators()
		workers := planning.Policy{Only: []string{"wk1", "wk2"}, MaxUnavailable: func(int) int { return 2 }}
		for _, node := range workers.Only {
			n := lab.planOf(lab.Client(), node, workers)
			requireSays(t, strings.Join(n.Notes, "\n"), "its name for iSCSI ("+was[node]+") changes with the system disk, "+
				"as its machine-id does: where the server of volume disk of DaemonSet default/db lets")
		}
		var said []string
		user := lab.Client().hears(func(e step.Event) { said = append(said, e.Text) })
		err := user.roll(workers)(t.Context())
		is := lab.initiators()
		requireError(t, err, "wk1 is done and takes pods, but no other node is to follow",
			"with volume disk of DaemonSet default/db on iSCSI, on wk1, whose name is "+is["wk1"]+" (before: "+was["wk1"]+")")
		mustBe(t, is["wk1"] != was["wk1"] && is["wk2"] == was["wk2"], "names before %v, after %v", was, is)
		requireSays(t, strings.Join(said, "\n"), "its name for iSCSI is now "+is["wk1"])
		requireRefused(t, lab.Client().roll(workers)(t.Context()), "wk1, whose name is "+is["wk1"])
		mustBe(t, lab.initiators()["wk2"] == was["wk2"], "the next roll renamed wk2")
		lab.letInAll()
		time.Sleep(20 * time.Second)
		user = lab.Client().hears(whenStarted("wk2/await-served-again", lab.letInAll))
		must(t, user.roll(workers)(t.Context()))
	})
}

const (
	waitSetting = "replica-replenishment-wait-interval"
	patchOfWait = "settings/" + waitSetting + " " + http.MethodPatch
)

// waits is how long Longhorn is told to wait, and what recast remembers of that.
func (l *Lab) waits() (value, memo string) {
	l.t.Helper()
	u := l.stored(longhornSettings.GroupVersionResource, longhornSpace, waitSetting).(*unstructured.Unstructured)
	value, _, _ = unstructured.NestedString(u.Object, "value")
	return value, setBy.ReplaceAllString(u.GetAnnotations()["recast.dev/hold"], "")
}

// setBy is when, and by which run, a setting was changed.
var setBy = regexp.MustCompile(`,"run":"[^"]+","since":"20[^"]+Z"`)

func (l *Lab) requireWaits(value, memo string) {
	l.t.Helper()
	v, m := l.waits()
	require(l.t, v == value && m == memo, "%s is %s, held: %s", waitSetting, v, m)
}

// setWaits changes the setting besides recast; memo "" leaves what is remembered.
func (l *Lab) setWaits(value, memo string) {
	l.t.Helper()
	u := l.stored(longhornSettings.GroupVersionResource, longhornSpace, waitSetting).(*unstructured.Unstructured).DeepCopy()
	u.Object["value"] = value
	if memo != "" {
		u.SetAnnotations(map[string]string{"recast.dev/hold": memo})
	}
	must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), longhornSettings.GroupVersionResource, u, store.Main)))
}

func (l *Lab) replicasOn(volume string) (nodes []string) {
	l.t.Helper()
	for _, o := range l.allStored(longhornReplicas.GroupVersionResource, "") {
		spec := o.(*unstructured.Unstructured).Object["spec"].(map[string]any)
		if spec["volumeName"] == volume {
			nodes = append(nodes, spec["nodeID"].(string))
		}
	}
	slices.Sort(nodes)
	return nodes
}

// inImpatientLab has volume pvc-1 on wk1 and wk2, room on wk3, and a Longhorn that waits less than a node is away.
func inImpatientLab(t *testing.T, test func(t *testing.T, lab *Lab)) {
	t.Helper()
	inStorageLab(t, (*Lab).runLonghorn, 3, func(t *testing.T, lab *Lab) {
		lab.isImpatient()
		test(t, lab)
	})
}

type inLabOf = func(t *testing.T, test func(t *testing.T, lab *Lab))

func (l *Lab) isImpatient() {
	l.t.Helper()
	l.longhornSetting(waitSetting, "30")
	l.replicated("pvc-1", 2, "wk1", "wk2")
}

// While a node with replicas is away, Longhorn waits longer than it would, and makes no other replica; then as before.
func TestRollHoldsTheRebuild(t *testing.T) {
	long(t)
	type story struct{ strategy, set string }
	stories := storiesOf(story{"recreate", "480"}, story{"in-place", "240"})
	eachBy(t, inImpatientLab, stories, func(t *testing.T, lab *Lab, s story) {
		lab.setRoll("strategy: " + s.strategy)
		set := s.set
		var said []string
		looked := 0
		looks := func(at, value, memo string) func(step.Event) {
			return whenStarted(at, func() {
				looked++
				lab.requireWaits(value, memo)
			})
		}
		held := func(node string) string {
			return `{"was":"30","set":"` + set + `","nodes":{"` + node + `":` + set + `}}`
		}
		lab.Client().hears(allOf(
			notes("await-storage", &said), looks("wk1/gate", set, held("wk1")),
			looks("wk2/await-storage-again", set, held("wk2")), looks("wk3/gate", "30", ""),
		)).rollTo(t, planning.Policy{})
		lab.requireWaits("30", "")
		requireSame(t, []string{"wk1", "wk2"}, lab.replicasOn("pvc-1"), "replicas (-want +got)")
		require(t, looked == 3, "looked %d times", looked)
		require(t, slices.Contains(said, waitSetting+" of Longhorn is "+set+" instead of 30"), "said %q", said)
	})
}

// Wherever a run is killed, the next roll, or a recover, gives back exactly what was there.
func TestHoldOfAKilledRun(t *testing.T) {
	long(t)
	moments := []moment{
		{server: patchOfWait, unsent: true},
		onServer(patchOfWait), after("wk1/await-storage"), before("wk1/take-down"), before("wk1/take-down/drain"),
		before("wk1/take-down/delete-vm"), before("wk1/bring-up/start"), before("finish/uncordon"), before("wk1/await-storage-again"), after("wk1/await-storage-again"),
	}
	var left atomic.Int32
	goOnAfterKills(t, inImpatientLab, moments, func(t *testing.T, lab *Lab, _ moment) {
		if v, _ := lab.waits(); v != "30" {
			left.Add(1)
		}
	}, func(_ *testing.T, lab *Lab) { lab.requireWaits("30", "") })
	t.Cleanup(func() {
		want := 3 * (len(moments) - 2) // the first one set nothing, and the last one was done
		require(t, int(left.Load()) == want || t.Failed(), "%d of %d kills left something set", left.Load(), want)
	})
}

// goOnAfterKills kills a roll of wk1 at each moment and goes on by that roll, a recover, or a roll of another node.
func goOnAfterKills(t *testing.T, in inLabOf, moments []moment, killed func(*testing.T, *Lab, moment), end func(*testing.T, *Lab)) {
	t.Helper()
	for _, m := range moments {
		for _, way := range []string{"roll", "recover", "another node"} {
			t.Run(m.String()+", then "+way, func(t *testing.T) {
				in(t, func(t *testing.T, lab *Lab) {
					lab.Client().rollKilled(m, onlyWorker)
					killed(t, lab, m)
					next := lab.second()
					switch way {
					case "roll":
						next.rollTo(t, onlyWorker, "wk2", "wk3")
					case "recover":
						_, err := next.Recover(t.Context(), "wk1")
						if err != nil && fault.KindOf(err) != fault.Refused { // nothing was begun, or it is done
							t.Fatal(err)
						}
					case "another node":
						must(t, next.roll(policyFor("wk3"))(t.Context()))
					}
					end(t, lab)
					requireNoClaim(t, lab)
				})
			})
		}
	}
}

// What an earlier run has not given back is seen by plan and status, and given back by any roll, and by a recover.
func TestLeftHold(t *testing.T) {
	long(t)
	const memo = `{"was":"600","set":"1800","nodes":{"wk1":1800}}`
	ways := map[string]deed{
		"roll with nothing to do": roll,
		"recover": func(ctx context.Context, c *Client) error {
			_, err := c.Recover(ctx, "wk1")
			if fault.KindOf(err) != fault.Refused {
				return errors.Join(errors.New("it is not refused"), err)
			}
			return nil
		},
	}
	eachInLab(t, sim.Options{Workers: 2}, ways, func(t *testing.T, lab *Lab, do deed) {
		lab.runLonghorn("wk1", "wk2")
		lab.setWaits("1800", memo)
		plan := lab.plan(planning.Policy{})
		const held = "Longhorn: " + waitSetting + " was 600 before recast set it to 1800, while wk1 is away"
		require(t, len(plan.Storage) == 1 && plan.Storage[0].Held == held && plan.Storage[0].WaitSeconds == 600,
			"planned %+v", plan.Storage)
		status := lab.status()
		require(t, len(status.Held) == 1 && status.Held[0].What == held && len(status.Held[0].Next) == 2, "%+v", status.Held)
		requireStorageCheck(t, lab, "Longhorn", checkup.Warning, waitSetting+" was 600 before recast set it to 1800, while wk1 is away")
		must(t, do(t.Context(), lab.Client()))
		lab.requireWaits("600", "")
		requireNoClaim(t, lab)
	})
}

func requireStorageCheck(t *testing.T, lab *Lab, system string, state checkup.State, seen string) {
	t.Helper()
	checks := diagnosis(t, lab.Client()).Checks
	if !slices.ContainsFunc(checks, func(c checkup.Check) bool { return c.What == system && c.State == state && c.Seen == seen }) {
		checks = slices.DeleteFunc(checks, func(c checkup.Check) bool { return c.What != system })
		t.Errorf("no %s %q in %+v", state, seen, checks)
	}
}

// TestDoctorOfLonghorn: doctor says how long it waits, and what becomes of that.
func TestDoctorOfLonghorn(t *testing.T) {
	const waits = "1 volume; waits %s for a node that is away (" + waitSetting + ")"
	type story struct {
		change func(l *Lab)
		state  checkup.State
		seen   string
	}
	stories := map[string]story{
		"long enough": {func(l *Lab) { l.longhornSetting(waitSetting, "600") }, checkup.OK, fmt.Sprintf(waits, "10m0s")},
		"less":        {func(*Lab) {}, checkup.OK, fmt.Sprintf(waits, "30s") + ", and wk1 is expected to be away for 4m0s: a roll has it wait 8m0s"},
		"not at all":  {func(l *Lab) { l.longhornSetting(waitSetting, "0") }, checkup.OK, fmt.Sprintf(waits, "0s") + ", and wk1 is expected to be away for 4m0s: a roll has it wait 8m0s"},
		"controllers away": {
			func(l *Lab) { without(store.DaemonSets(), longhornSpace, "longhorn-manager")(l) },
			checkup.Problem, "there is no DaemonSet longhorn-system/longhorn-manager",
		},
	}
	inImpatientLab(t, func(t *testing.T, lab *Lab) {
		eachHere(t, lab, stories, func(t *testing.T, lab *Lab, s story) {
			s.change(lab)
			requireStorageCheck(t, lab, "Longhorn", s.state, s.seen)
		})
	})
}

// TestHoldOfTwoWorkersAtATime: both need it, and it ends with the last one.
func TestHoldOfTwoWorkersAtATime(t *testing.T) {
	long(t)
	inStorageLab(t, (*Lab).runLonghorn, 4, func(t *testing.T, lab *Lab) {
		lab.setRoll("canary: false", "maxUnavailable: {workers: 2, perHost: 2}")
		lab.longhornSetting(waitSetting, "30")
		lab.replicated("pvc-1", 2, "wk1", "wk3")
		lab.replicated("pvc-2", 2, "wk2", "wk4")
		most := 0
		c := lab.Client().hears(func(step.Event) {
			_, memo := lab.waits()
			most = max(most, strings.Count(memo, `"wk`))
		})
		must(t, c.roll(policyFor("wk1", "wk2"))(t.Context()))
		require(t, most == 2, "held for %d at a time", most)
		lab.requireWaits("30", "")
		requireSame(t, []string{"wk1", "wk3"}, lab.replicasOn("pvc-1"), "replicas (-want +got)")
		requireSame(t, []string{"wk2", "wk4"}, lab.replicasOn("pvc-2"), "replicas (-want +got)")
	})
}

func unanswered(l *Lab) { l.dropsCalls(patchOfWait) }

// dropsCalls has no request to that server's path and method arrive.
func (l *Lab) dropsCalls(server string) {
	l.Recorder.Hooks(func(c record.Call) error {
		if (moment{server: server}).isCall(c) {
			return errors.New("connection reset by peer")
		}
		return nil
	}, nil)
}

// mayAll gives recast a kubeconfig that may do everything that a function allows.
func (l *Lab) mayAll(allowed func(kubeapi.Request) bool) {
	l.Kube.Grant("recast", allowed)
	b, err := l.Kubeconfig("recast", time.Hour)
	must(l.t, err)
	l.Write("kubeconfig", b)
}

type refusedHold struct {
	strike func(l *Lab)
	want   string
	doctor string
}

// refusedHolds rolls with each of them: the node is not touched, and nothing is set; doctor names the right before.
func refusedHolds(t *testing.T, in inLabOf, system string, set func(*Lab) string, cases map[string]refusedHold) {
	t.Helper()
	eachBy(t, in, cases, func(t *testing.T, lab *Lab, tc refusedHold) {
		tc.strike(lab)
		was := set(lab)
		if tc.doctor != "" {
			requireStorageCheck(t, lab, system, checkup.Problem, tc.doctor)
		}
		requireFault(t, lab.Client().roll(onlyWorker)(t.Context()), fault.Refused, tc.want)
		lab.Recorder.Hooks(nil, nil)
		requireDrift(t, lab, "wk1", "wk2", "wk3")
		requireSame(t, was, set(lab), "what it was told (-before +after)")
		lab.requireServing("wk1")
		requireNoClaim(t, lab)
	})
}

// TestHoldIsRefused: if the setting can't be changed, the node is not touched; doctor names the right before.
func TestHoldIsRefused(t *testing.T) {
	long(t)
	set := func(l *Lab) string { return fmt.Sprint(l.waits()) }
	refusedHolds(t, inImpatientLab, "Longhorn", set, map[string]refusedHold{
		"no answer": {unanswered, "hold back the rebuild of Longhorn for wk1: gave up after 1m0s", ""},
		"no right": {func(l *Lab) {
			l.mayAll(func(r kubeapi.Request) bool { return r.Verb != "patch" || r.Resource != "settings" })
		}, `cannot patch resource "settings"`, "the kubeconfig may not patch settings of longhorn.io"},
		"an annotation that recast does not know": {func(l *Lab) {
			l.setWaits("60", `{"was":"{}","set":"60","nodes":{"wk3":60}}`)
		}, `annotation recast.dev/hold of Longhorn's setting ` + waitSetting + ` is not as recast writes it`, ""},
	})
}

// A run that is interrupted gives nothing back for a node that it leaves out; the one that finishes or cancels it does.
func TestHoldStaysWhileTheNodeIsOut(t *testing.T) {
	long(t)
	ways := map[string]leaveFunc{"roll": byRoll, "recover": byRecover}
	eachBy(t, inImpatientLab, ways, func(t *testing.T, lab *Lab, do leaveFunc) {
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		err := lab.Client().hears(whenStarted("wk1/bring-up/start", interrupt)).roll(onlyWorker)(ctx)
		mustBe(t, err != nil, "it was interrupted")
		requireNoClaim(t, lab)
		lab.requireWaits("480", `{"was":"30","set":"480","nodes":{"wk1":480}}`)
		must(t, errOf(do(t.Context(), lab.second())))
		lab.requireWaits("30", "")
		requireNoClaim(t, lab)
	})
}

// However a node's time away ends, what Longhorn was told is given back, or said to be left.
func TestEndOfAHold(t *testing.T) {
	long(t)
	eachBy(t, inImpatientLab, map[string]func(*testing.T, *Lab){
		"none was needed, and another replica is made": func(t *testing.T, lab *Lab) {
			lab.setRoll("storage: off")
			must(t, lab.Client().roll(onlyWorker)(t.Context()))
			requireSame(t, []string{"wk1", "wk2", "wk3"}, lab.replicasOn("pvc-1"), "replicas (-want +got)")
			lab.requireWaits("30", "")
		},
		"a person has set another value meanwhile": func(t *testing.T, lab *Lab) {
			var said []string
			lab.Client().hears(allOf(
				notes("await-storage-again", &said), whenStarted("wk1/take-down", func() { lab.setWaits("1000", "") }),
			)).mustRoll(onlyWorker)
			lab.requireWaits("1000", "")
			require(t, slices.Contains(said, waitSetting+" of Longhorn stays 1000: someone else has set that"), "said %q", said)
		},
		"its controllers do not come back": func(t *testing.T, lab *Lab) {
			lab.Replace("recast.yaml", "try: 40s}", "try: 40s, storage: 2m}")
			gone := without(store.DaemonSets(), longhornSpace, "longhorn-manager")
			c := lab.Client().hears(whenStarted("wk1/await-storage-again", func() { gone(lab) }))
			err := c.roll(planning.Policy{})(t.Context())
			requireFault(t, err, fault.Failed, "last seen: Longhorn: there is no DaemonSet longhorn-system/longhorn-manager")
			lab.requireWaits("30", "")
			requireDrift(t, lab, "wk2", "wk3")
		},
		"Kubernetes does not answer, and the next roll gives back": func(t *testing.T, lab *Lab) {
			err := lab.Client().hears(whenStarted("wk1/await-storage-again", func() { unanswered(lab) })).roll(onlyWorker)(t.Context())
			requireFault(t, err, fault.Failed, "give back what storage systems were told", "by hand: kubectl --namespace longhorn-system patch")
			lab.Recorder.Hooks(nil, nil)
			lab.requireWaits("480", `{"was":"30","set":"480","nodes":{"wk1":480}}`)
			requireNoClaim(t, lab)
			time.Sleep(time.Minute)
			must(t, lab.second().roll(onlyWorker)(t.Context()))
			lab.requireWaits("30", "")
		},
	}, func(t *testing.T, lab *Lab, play func(*testing.T, *Lab)) { play(t, lab) })
}
