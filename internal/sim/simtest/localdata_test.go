package simtest

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

var (
	linstorSatellites = resource("piraeus.io/v1", "linstorsatellites", "LinstorSatellite", false)
	linstorClusters   = resource("piraeus.io/v1", "linstorclusters", "LinstorCluster", false)
)

// installPiraeus serves the kinds of Piraeus.
func (l *Lab) installPiraeus() {
	l.Kube.Define(linstorSatellites)
	l.Kube.Define(linstorClusters)
}

// daemons are pods on every node that write to a host path.
func daemons(namespace, name, at string) edit {
	return func(l *Lab) {
		l.t.Helper()
		l.put(store.DaemonSets(), daemonSet(namespace, name, writesTo(name, at)))
		time.Sleep(20 * time.Second)
	}
}

// writesTo is a pod that writes to a host path.
func writesTo(name, at string) corev1.PodSpec {
	return corev1.PodSpec{
		Containers: []corev1.Container{{Name: name, Image: "registry.k8s.io/pause", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
		Volumes:    []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: at}}}},
	}
}

func noDaemons(namespace, name string) edit {
	return func(l *Lab) {
		without(store.DaemonSets(), namespace, name)(l)
		time.Sleep(time.Minute)
	}
}

// pool is a LINSTOR storage pool on wk1.
func pool(kind string, pairs ...string) edit {
	spec := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		spec[pairs[i]] = pairs[i+1]
	}
	return func(l *Lab) {
		l.t.Helper()
		l.put(linstorSatellites.GroupVersionResource, object(linstorSatellites, "", "wk1", map[string]any{
			"spec": map[string]any{"storagePools": []any{map[string]any{"name": "pool", kind: spec}}},
		}))
	}
}

// physicalVolume is a partition with an LVM physical volume.
func physicalVolume(label, group string) artefact.Partition {
	return artefact.Partition{
		Label: label, UUID: "0b5f0000-0000-4000-8000-0000000000" + label[len(label)-2:],
		Filesystem: "lvm2-pv", FilesystemUUID: "aaaaaa-bbbb-cccc-dddd-eeee-ffff-0000" + label[len(label)-2:], VolumeGroup: group,
	}
}

// twoGroups puts LINSTOR's volume group on the data disk, and another one on the system disk.
func twoGroups(l *Lab) {
	l.t.Helper()
	pool("lvmPool", "volumeGroup", "vg0")(l)
	whileOff(partitioned(wk1System, physicalVolume("r-lvm11", "vg1")), partitioned(wk1Data, physicalVolume("r-lvm22", "vg0")))(l)
}

func all(edits ...edit) edit {
	return func(l *Lab) {
		for _, e := range edits {
			e(l)
		}
	}
}

// localRefusals are data of pods, LINSTOR and LVM that exist only on the system disk.
func localRefusals() []refusal {
	only := func(what, name string) string {
		return what + " is on the system disk and would be lost: move it to a disk of its own, or name " + name + " in nodes[].acceptLoss"
	}
	loss := func(name, what string, bring, undo edit) refusal {
		return refusal{
			name: what, bring: bring, lift: acceptLoss(name), undo: undo,
			both: []string{only(what, name)}, lost: []string{what + " on the system disk will be lost"},
		}
	}
	topolvm := volume("pvc-1", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "topolvm.io", VolumeHandle: "h"}})
	const pv = "PersistentVolume pvc-1 (claim default/db-0)"
	noVolume, noPool := without(store.Volumes(), "", "pvc-1"), without(linstorSatellites.GroupVersionResource, "", "wk1")
	const vg0 = "LINSTOR storage pool pool (vg0)"
	return []refusal{
		loss("hostpath/var/lib/agent", "hostPath /var/lib/agent (DaemonSet default/agent)", daemons("default", "agent", "/var/lib/agent"), noDaemons("default", "agent")),
		{name: "what a DaemonSet makes anew", bring: daemons("default", "vector", "/var/lib/vector"), undo: noDaemons("default", "vector")},
		{name: "hostPath on another disk", bring: daemons("default", "agent", "/var/mnt/data/agent"), undo: noDaemons("default", "agent")},
		loss("linstor/var/lib/linstor-pools/pool", "LINSTOR storage pool pool (/var/lib/linstor-pools/pool)", pool("fileThinPool"), noPool),
		{name: "LINSTOR's files on another disk", bring: pool("filePool", "directory", "/var/mnt/data/linstor"), undo: noPool},
		loss("pv/pvc-1", pv, topolvm, noVolume),
		{
			name: "TopoLVM on another disk", bring: all(topolvm, whileOff(partitioned(wk1Data, physicalVolume("r-lvm22", "vg0")))),
			undo: all(noVolume, whileOff(unpartitioned(wk1Data, 1))),
		},
		{
			name: "TopoLVM on the system disk", bring: all(topolvm, whileOff(partitioned(wk1System, physicalVolume("r-lvm11", "vg1")))),
			both: []string{only("volume r-lvm11", "r-lvm11"), only(pv, "pv/pvc-1")}, lift: acceptLoss("r-lvm11", "pv/pvc-1"),
			lost: []string{"volume r-lvm11 on the system disk will be lost", pv + " on the system disk will be lost"},
			undo: all(noVolume, whileOff(unpartitioned(wk1System, 1))),
		},
		{
			name: "two volume groups, and Talos before 1.14 does not tell them apart", bring: twoGroups,
			both: []string{only("volume r-lvm11", "r-lvm11"), only(vg0, "linstor/pool")}, lift: acceptLoss("r-lvm11", "linstor/pool"),
			lost: []string{"volume r-lvm11 on the system disk will be lost", vg0 + " on the system disk will be lost"},
			undo: all(noPool, whileOff(unpartitioned(wk1System, 1), unpartitioned(wk1Data, 1))),
		},
	}
}

// Since 1.14 Talos reports the volume groups, so that only the one on the system disk counts as
// lost.
func TestVolumeGroupsAreToldApart(t *testing.T) {
	o := oneWorker()
	o.TalosVersion = talos14
	inLab(t, o, func(t *testing.T, lab *Lab) {
		lab.installPiraeus()
		lab.Patch(sim.PatchedExtension)
		twoGroups(lab)
		strategy(cluster.Recreate)(lab)
		n := planOf(t, lab, "wk1")
		want := []string{"volume r-lvm11 is on the system disk and would be lost: move it to a disk of its own, or name r-lvm11 in nodes[].acceptLoss"}
		requireSame(t, want, n.Refused, "refused (-want +got)")
	})
}
