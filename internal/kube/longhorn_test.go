package kube_test

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/must"
)

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
	unknown := []cluster.LocalData{{Name: "longhorn/var/lib/longhorn", What: "Longhorn disk default (not ready: what is on it is unknown)", Path: "/var/lib/longhorn"}}
	imaged := diskStatus("True", "r1")
	imaged["scheduledBackingImage"] = map[string]any{"bi": int64(1)}
	noUUID := diskStatus("True")
	delete(noUUID, "diskUUID")
	type row struct {
		disks, status map[string]any
		want          []cluster.LocalData
	}
	cases := map[string]row{
		"replicas": {def, map[string]any{"default": diskStatus("True", "r1", "r2")}, []cluster.LocalData{
			{Name: "longhorn/var/lib/longhorn", What: "Longhorn disk default (2 replicas)", Path: "/var/lib/longhorn"},
		}},
		"and backing images": {def, map[string]any{"default": imaged}, []cluster.LocalData{
			{Name: "longhorn/var/lib/longhorn", What: "Longhorn disk default (1 replicas, 1 backing images)", Path: "/var/lib/longhorn"},
		}},
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
		status          map[string]any
		replica, orphan map[string]any
		want            string // "" for no loss
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
		l.install(t, "longhorn.io", "v1beta2", "nodes", "Node", true)("longhorn-system", "wk1", longhornNode(disks, map[string]any{"default": tc.status}))
		replicas, orphans := l.install(t, "longhorn.io", "v1beta2", "replicas", "Replica", true), l.install(t, "longhorn.io", "v1beta2", "orphans", "Orphan", true)
		if tc.replica != nil {
			replicas("longhorn-system", "pvc-1-r-1a2b3c4d", tc.replica)
		}
		if tc.orphan != nil {
			orphans("longhorn-system", "orphan-1", tc.orphan)
		}
		var got strings.Builder
		for _, d := range l.localData(t, l.client(t, "system:masters"), "wk1") {
			got.WriteString(d.What)
		}
		must.Equal(t, "local data", strings.TrimSuffix("Longhorn disk default ("+tc.want+")", "Longhorn disk default ()"), got.String())
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
		own     func(spec, status map[string]any)
		other   map[string]any
		command string
		says    string
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
		if len(data) != 1 || data[0].Command != tc.command || !strings.Contains(data[0].Lift, tc.says) || tc.says == "" && data[0].Lift != "" {
			t.Errorf("got %+v, want the command %q and %q", data, tc.command, tc.says)
		}
	})
}

func TestLonghornOfAnotherVersionIsAnError(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		l.install(t, "longhorn.io", "v1", "nodes", "Node", true)
		_, err := l.client(t, "system:masters").LocalData(t.Context(), cluster.KubeNode{Name: "wk1"})
		must.Fail(t, err, "longhorn.io is served as v1 only, recast knows v1beta2")
	})
}

// TestRebuildsOfLonghorn: an Engine says how far the replicas are that it fills; without the right to list
// engines that is not known, and no error.
func TestRebuildsOfLonghorn(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t)
		add := map[string]func(namespace, name string, content map[string]any){}
		for resource, kind := range map[string]string{"nodes": "Node", "volumes": "Volume", "replicas": "Replica", "settings": "Setting", "engines": "Engine"} {
			add[resource] = l.install(t, "longhorn.io", "v1beta2", resource, kind, true)
		}
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
