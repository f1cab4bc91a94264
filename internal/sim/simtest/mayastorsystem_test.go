package simtest

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/sim/kubeapi/mayastor"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

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

// agentCore is the control plane's Deployment, as the chart has it.
func agentCore(args ...string) *appsv1.Deployment {
	labels := map[string]string{"app": "agent-core", "openebs.io/release": "openebs"}
	return deployment(openebsSpace, "openebs-agent-core", labels, corev1.PodSpec{Containers: []corev1.Container{
		{Name: "agent-core", Image: "openebs/mayastor-agent-core:v2.8.0", Args: args},
		{Name: "agent-ha-cluster", Image: "openebs/mayastor-agent-ha-cluster:v2.8.0"},
	}})
}

// servedElsewhere adds a volume whose target is on a node, and its pod on another.
func (l *Lab) servedElsewhere(target, user string) {
	l.Kube.Mayastor().AddVolume(mayastor.Volume{
		UUID: mayastorUUID, Wanted: 2, Target: target, Users: []string{user}, Replicas: []*mayastor.Replica{{Node: "wk1", Child: "Online"}, {Node: "wk2", Child: "Online"}},
	})
}

// nexus adds a published volume of Mayastor with healthy replicas on those nodes.
func (l *Lab) nexus(wanted int, nodes ...string) {
	v := mayastor.Volume{UUID: mayastorUUID, Wanted: wanted}
	for _, n := range nodes {
		v.Replicas = append(v.Replicas, &mayastor.Replica{Node: n, Child: "Online"})
	}
	l.Kube.Mayastor().AddVolume(v)
}

// TestPlanOfMayastor: a node is refused, by the volume's UUID, while no other node has a healthy replica.
func TestPlanOfMayastor(t *testing.T) {
	const here = "Mayastor volume " + mayastorUUID + " has its only healthy replica on it"
	const off = ", or roll.storage: {mayastor: off} does not look at it"
	const may = "Mayastor may have volumes on it and does not say how they are now: "
	planStorage(t, (*Lab).runMayastor, map[string]storageCase{
		"two healthy replicas": {change: func(l *Lab) { l.nexus(2, "wk1", "wk2") }},
		"the last replica": {
			change:  func(l *Lab) { l.nexus(2, "wk1") },
			refused: []string{here + ": wait until Mayastor has made another" + off},
		},
		"the only one wanted": {
			change: func(l *Lab) { l.nexus(1, "wk1") },
			notes:  []string{"Mayastor volume " + mayastorUUID + " has its only replica on it, and is not there while the node is away"},
		},
		"a rebuild runs": {
			change: func(l *Lab) {
				l.nexus(2, "wk1", "wk2")
				l.Kube.Mayastor().SetReplica(mayastorUUID, "wk2", func(r *mayastor.Replica) { r.Child = "Degraded" })
			},
			refused: []string{here + ": another one is being rebuilt: wait until that is done" + off},
		},
		"the other's node is down": {
			change: func(l *Lab) {
				l.Kube.Mayastor().AddNode("wk9")
				l.nexus(2, "wk1", "wk9")
				time.Sleep(time.Minute)
			},
			refused: []string{here + ": wk9 is Offline for Mayastor: bring that back first" + off},
		},
		"its API is away": {
			change: func(l *Lab) {
				l.nexus(2, "wk1", "wk2")
				l.stopProgram(openebsSpace, "openebs-api-rest")
			},
			refused: []string{may + `no usable answer from service openebs/openebs-api-rest: no endpoints available for service "openebs-api-rest": bring its controllers back first` + off},
		},
		"it has no API": {
			change:  without(store.Services(), openebsSpace, "openebs-api-rest"),
			refused: []string{may + "there is no Service with app=api-rest,openebs.io/release: bring its controllers back first" + off},
		},
		"not published": {change: func(l *Lab) {
			l.Kube.Mayastor().AddVolume(mayastor.Volume{
				UUID: mayastorUUID, Wanted: 2, Unpublished: true, Replicas: []*mayastor.Replica{{Node: "wk1"}, {Node: "wk2"}},
			})
		}},
		"its target, its pod elsewhere": {
			change: func(l *Lab) { l.servedElsewhere("wk1", "wk2") },
			notes:  []string{"Mayastor volume " + mayastorUUID + " is used by wk2 through it: what writes to it waits until Mayastor serves it through another node"},
		},
		"its target, its pod elsewhere, and no HA": {
			change: func(l *Lab) {
				l.servedElsewhere("wk1", "wk2")
				l.Kube.Mayastor().DisableHA()
				without(store.Deployments(), openebsSpace, "openebs-agent-core")(l)
				l.put(store.Deployments(), agentCore("--disable-ha"))
			},
			refused: []string{"Mayastor volume " + mayastorUUID + " is used by wk2 through it, and waits for it while it is away: its HA agents are off (--disable-ha): " +
				"turn on agents.ha.enabled of its chart, or move the pods that use it to the node" + off},
		},
		"its pod, its target elsewhere": {change: func(l *Lab) { l.servedElsewhere("wk2", "wk1") }},
		"not looked at": {change: func(l *Lab) {
			l.nexus(2, "wk1")
			l.setRoll("storage: off")
		}},
	})
}

// TestRollWaitsForMayastor: each node is out with a replica, Mayastor rebuilds it, and the next node waits for that.
func TestRollWaitsForMayastor(t *testing.T) {
	long(t)
	rollWaits(t, storageRoll{
		run: (*Lab).runMayastor, volume: func(l *Lab) { l.nexus(2, "wk1", "wk2") },
		whole: func(l *Lab) bool { return l.Kube.Mayastor().Whole(mayastorUUID) },
		says:  []string{"volumes whole with wk1: Mayastor: 1 of 2 replicas healthy, 1 being rebuilt; 1 volume not healthy: " + mayastorUUID},
	})
}
