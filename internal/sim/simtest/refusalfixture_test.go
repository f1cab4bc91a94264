package simtest

import (
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
)

// wk1 is the VM of the worker that most refusals are about.
const wk1 = 9031

// Its volumes, as the lab makes them.
const (
	wk1System = "fast:9031/vm-9031-disk-1.raw"
	wk1Data   = "fast:9031/vm-9031-disk-2.raw"
)

// edit is a change of the lab by a refusal's fixture, or its reversal.
type edit func(*Lab)

// whileOff makes edits while wk1 is powered off, and waits until it is back.
func whileOff(edits ...edit) edit {
	return func(l *Lab) {
		l.t.Helper()
		l.powerCycle(l.node("wk1"), edits...)
	}
}

// powerCycle powers a node off, makes edits, powers it on, and waits until it is back.
func (l *Lab) powerCycle(n sim.Node, edits ...edit) {
	l.t.Helper()
	boot := l.bootID(n.Name)
	must(l.t, l.World.PowerOff(n.VMID))
	for _, e := range edits {
		e(l)
	}
	must(l.t, l.World.PowerOn(n.VMID))
	for range 300 {
		if l.bootID(n.Name) != boot {
			break
		}
		time.Sleep(time.Second)
	}
	must(l.t, l.WaitReady(l.t.Context()))
}

func (l *Lab) bootID(node string) string {
	l.t.Helper()
	n := l.kubeNode(node)
	return n.Status.NodeInfo.BootID
}

// change is an administrator's change of wk1's configuration: key=value pairs.
func change(pairs ...string) edit {
	return func(l *Lab) {
		l.t.Helper()
		set := map[string]string{}
		for _, p := range pairs {
			key, value, _ := strings.Cut(p, "=")
			set[key] = value
		}
		l.configure(world.ChangeRequest{ID: wk1, Set: set})
	}
}

func remove(keys ...string) edit {
	return func(l *Lab) {
		l.t.Helper()
		l.configure(world.ChangeRequest{ID: wk1, Delete: keys})
	}
}

// discard frees drives that remove would only detach.
func discard(keys ...string) edit {
	return func(l *Lab) {
		l.t.Helper()
		l.configure(world.ChangeRequest{ID: wk1, Delete: keys, Force: true})
	}
}

func (l *Lab) configure(r world.ChangeRequest) {
	l.t.Helper()
	must(l.t, l.World.SetConfig("", "pve1", r))
}

// done requires a task to end well.
func (l *Lab) done(upid string, err error) {
	l.t.Helper()
	must(l.t, err)
	if task, ok := l.World.WaitTask(upid); !ok || task.ExitStatus != "OK" {
		l.t.Fatalf("%+v", task)
	}
}

// setting is a setting of wk1 that needs a restart, and its removal.
func setting(key, value string) (bring, lift edit) {
	return whileOff(change(key + "=" + value)), whileOff(remove(key))
}

// configuration edits recast.yaml; the check reverts it.
func configuration(old, fresh string) edit {
	return func(l *Lab) {
		l.t.Helper()
		l.Replace("recast.yaml", old, fresh)
	}
}

func acceptLoss(names ...string) edit {
	return configuration("{name: wk1,", "{name: wk1, acceptLoss: ['"+strings.Join(names, "', '")+"'],")
}

// partitioned adds partitions to a disk, as a person would.
func partitioned(volid string, added ...artefact.Partition) edit {
	return partitions(volid, func(p []artefact.Partition) []artefact.Partition { return append(p, added...) })
}

// unpartitioned deletes the last partitions of a disk.
func unpartitioned(volid string, n int) edit {
	return partitions(volid, func(p []artefact.Partition) []artefact.Partition { return p[:len(p)-n] })
}

func partitions(volid string, change func([]artefact.Partition) []artefact.Partition) edit {
	return func(l *Lab) {
		l.t.Helper()
		media := l.media(volid)
		disk, err := artefact.ReadDisk(media.Bytes())
		must(l.t, err)
		disk.Partitions = change(disk.Partitions)
		media.Write(artefact.WriteDisk(disk))
	}
}

func (l *Lab) media(volid string) *world.Media {
	l.t.Helper()
	m := l.World.Media(volid, "pve1")
	if m == nil {
		l.t.Fatalf("there is no %s", volid)
	}
	return m
}

func labelled(label string) artefact.Partition {
	return artefact.Partition{Label: label, UUID: "0b5f0000-0000-4000-8000-000000000001", Filesystem: "xfs", FilesystemUUID: "0b5f0000-0000-4000-8000-000000000002"}
}

func (l *Lab) lock() {
	l.t.Helper()
	must(l.t, errOf(l.Client().Lock(l.t.Context(), pipeline.LockOptions{})))
}

// put adds a Kubernetes object.
func (l *Lab) put(r schema.GroupVersionResource, o store.Object) {
	l.t.Helper()
	must(l.t, errOf(l.Kube.Store().Create(l.t.Context(), r, o)))
}

func without(r schema.GroupVersionResource, namespace, name string) edit {
	return func(l *Lab) {
		l.t.Helper()
		must(l.t, errOf(l.Kube.Store().Delete(l.t.Context(), r, namespace, name, metav1.DeleteOptions{})))
	}
}

// volume is a bound PersistentVolume, on wk1 unless its source says otherwise.
func volume(name string, source corev1.PersistentVolumeSource, more ...func(*corev1.PersistentVolume)) edit {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: source, StorageClassName: "local", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "db-0"},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"wk1"}}},
			}}}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	for _, m := range more {
		m(pv)
	}
	return func(l *Lab) {
		l.t.Helper()
		l.put(store.Volumes(), pv.DeepCopy())
	}
}

func local(path string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}}
}

var (
	longhornNodes = store.Resource{
		GroupVersionResource: schema.GroupVersionResource{Group: "longhorn.io", Version: "v1beta2", Resource: "nodes"},
		Kind:                 "Node", Namespaced: true, Status: true,
	}
	longhornReplicas = resource("longhorn.io/v1beta2", "replicas", "Replica", true)
	longhornSettings = resource("longhorn.io/v1beta2", "settings", "Setting", true)
	longhornEngines  = resource("longhorn.io/v1beta2", "engines", "Engine", true)
	longhornKinds    = []store.Resource{longhornNodes, longhornVolumes, longhornReplicas, longhornSettings, longhornEngines}
	cephClusters     = store.Resource{
		GroupVersionResource: schema.GroupVersionResource{Group: "ceph.rook.io", Version: "v1", Resource: "cephclusters"},
		Kind:                 "CephCluster", Namespaced: true, Status: true,
	}
)

// longhorn has two replicas on wk1, in that directory.
func longhorn(path string) edit {
	return func(l *Lab) {
		l.t.Helper()
		u := object(longhornNodes, "longhorn-system", "wk1", map[string]any{
			"spec": map[string]any{"disks": map[string]any{"default": map[string]any{"diskType": "filesystem", "path": path}}},
			"status": map[string]any{"diskStatus": map[string]any{"default": map[string]any{
				"diskUUID": "0b5f", "scheduledReplica": map[string]any{"r1": int64(1 << 30), "r2": int64(1 << 30)},
				"conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
			}}},
		})
		l.put(longhornNodes.GroupVersionResource, u)
	}
}

// rook has a monitor on wk1 with its data below that directory.
func rook(dir string) edit {
	return func(l *Lab) {
		l.t.Helper()
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

// schematic changes the workers' schematic and locks it.
func schematic(customization string) edit {
	return func(l *Lab) {
		l.t.Helper()
		l.Replace("schematics/storage.yaml", "customization:\n", "customization:\n"+customization)
		l.lock()
	}
}

func plainSchematic(customization string) edit {
	return func(l *Lab) {
		l.t.Helper()
		l.Replace("schematics/storage.yaml", customization, "")
		l.lock()
	}
}

// masked hides what differs between runs.
func masked(text string) string {
	return regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d UTC`).ReplaceAllString(text, "TIME")
}

const documentsMark = "\n# further documents\n"

// withDocuments replaces the additional documents of a machine configuration.
func withDocuments(config []byte, docs []string) []byte {
	text, _, _ := strings.Cut(string(config), documentsMark)
	text += documentsMark
	for _, d := range docs {
		text += "---\n" + d
	}
	return []byte(text)
}

// labels are those of a disk's partitions.
func (l *Lab) labels(volid string) []string {
	l.t.Helper()
	media := l.media(volid)
	disk, err := artefact.ReadDisk(media.Bytes())
	must(l.t, err)
	var labels []string
	for _, p := range disk.Partitions {
		labels = append(labels, p.Label)
	}
	return labels
}
