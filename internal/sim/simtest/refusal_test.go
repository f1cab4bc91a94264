package simtest

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
)

// refusal is a property of wk1 that prevents recreate, or also reimage.
type refusal struct {
	inPlace bool // what both says is against an upgrade in place, too
	name    string
	bring   edit
	// both are the reasons against recreate and reimage, also those against recreate alone:
	// exactly, in order. With neither nothing is refused.
	both, also []string
	lift       edit     // the remedy in the reasons; nil: only another strategy helps
	lost       []string // what the plan lists as lost afterwards
	undo       edit     // cleans up afterwards; nil: not needed
}

// refusals are groups of them; a group is played sequentially in one lab.
func refusals() map[string][]refusal {
	return map[string][]refusal{
		"kept outside of the VM":  tiedRefusals(),
		"cloud controller":        cloudRefusals(),
		"settings of the VM":      settingRefusals(),
		"occupied":                occupiedRefusals(),
		"disks":                   diskRefusals(),
		"foreign configuration":   preconfiguredRefusals(),
		"data on the system disk": lossRefusals(),
		"data of pods and pools":  localRefusals(),
		"partitions":              partitionRefusals(),
	}
}

// TestEveryRefusal plays everything that prevents the recreation of a node, and then applies the remedy in the refusal.
func TestEveryRefusal(t *testing.T) {
	long(t)
	t.Parallel()
	n := 0
	for group, list := range refusals() {
		for _, r := range list {
			n += len(r.both) + len(r.also)
		}
		t.Run(group, func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.World.AddMapping("pci", "gpu", "pve1")
				lab.installLonghorn()
				lab.Kube.Define(cephClusters)
				lab.installPiraeus()
				lab.Patch(sim.PatchedExtension)
				for _, r := range list {
					requireRefusal(t, lab, r)
				}
				lab.Client().mustRoll(planning.Policy{}) // with everything lifted
				requireInSync(t, lab)
			})
		})
	}
	t.Attr("refusals", strconv.Itoa(n))
	require(t, n >= 60, "only %d refusals", n)
}

func requireRefusal(t *testing.T, lab *Lab, r refusal) {
	t.Helper()
	t.Logf("%s", r.name)
	config := lab.Read("recast.yaml")
	r.bring(lab)
	requireAuto(t, lab, r)
	brought := lab.Read("recast.yaml")
	for s, want := range map[cluster.Strategy][]string{cluster.Recreate: slices.Concat(r.both, r.also), cluster.Reimage: r.both} {
		strategy(s)(lab)
		requireAsked(t, lab, r.name, s, want)
		lab.Write("recast.yaml", brought)
	}
	if r.lift != nil {
		r.lift(lab)
		n := planOf(t, lab, "wk1")
		requirePlanned(t, n, cluster.Recreate)
		requireSame(t, r.lost, n.WillLose, "%s: lost once it is lifted (-want +got)", r.name)
	}
	if r.undo != nil {
		r.undo(lab)
	}
	lab.Write("recast.yaml", config)
}

// requireAuto checks the result of strategy auto, and the reason.
func requireAuto(t *testing.T, lab *Lab, r refusal) {
	t.Helper()
	n := planOf(t, lab, "wk1")
	if r.inPlace {
		requireNoWayIn(t, lab, r.both...)
		return
	}
	strategy, why := cluster.Recreate, "recreate: possible, every persistent disk can be carried over"
	switch {
	case len(r.both) > 0:
		strategy, why = cluster.InPlace, "in-place: recreate and reimage are impossible ("+strings.Join(r.both, "; ")+")"
		if len(r.also) > 0 {
			why += ", recreate also (" + strings.Join(r.also, "; ") + ")"
		}
	case len(r.also) > 0:
		strategy, why = cluster.Reimage, "reimage: recreate is impossible ("+strings.Join(r.also, "; ")+")"
	}
	require(t, n.Strategy == strategy && len(n.Refused)+len(n.WillLose) == 0,
		"%s: auto takes %s, want %s; refused %q, lost %q", r.name, n.Strategy, strategy, n.Refused, n.WillLose)
	requireSame(t, why, masked(n.Why), "%s: why (-want +got)", r.name)
}

// requireAsked checks the result of a requested strategy; if it is refused, a roll does nothing but say so.
func requireAsked(t *testing.T, lab *Lab, name string, s cluster.Strategy, want []string) {
	t.Helper()
	if len(want) == 0 {
		requirePlanned(t, planOf(t, lab, "wk1"), s)
		return
	}
	before := len(lab.Recorder.Calls())
	rep, err := lab.Client().Roll(t.Context(), onlyWorker)
	var got []string
	for _, n := range rep.Plan.Nodes {
		got = append(got, ofEach(n.Refused, masked)...)
	}
	requireSame(t, want, got, "%s: %s is refused (-want +got)", name, s)
	text := "the plan can't be carried out:\n  wk1: " + strings.Join(want, "\n  wk1: ")
	requireSame(t, text, masked(fmt.Sprint(err)), "%s: what a roll by %s says (-want +got)", name, s)
	requireSame(t, fault.Refused, fault.KindOf(err), "%s: kind of the end of a roll by %s (-want +got)", name, s)
	lab.requireNothingSent(before)
}

func planOf(t *testing.T, lab *Lab, node string) planning.NodePlan {
	t.Helper()
	plan := lab.plan(planning.Policy{Only: []string{node}})
	mustBe(t, len(plan.Nodes) == 1, "a plan for %s: %+v", node, plan.Nodes)
	return plan.Nodes[0]
}

// encryption is the section of a volume's document that gives it a key; "" for none.
func encryption(key string) string {
	if key == "" {
		return ""
	}
	return "encryption: {provider: luks2, keys: [{slot: 0, " + key + "}]}\n"
}

// encryptsData replaces the key of the user volume that every worker has, on the disk as well.
func encryptsData(old, key string) edit {
	const volume = "kind: UserVolumeConfig\nname: data\n"
	return configured(func(l *Lab, config []byte) []byte {
		state := ""
		if strings.Contains(key, "lockToState") {
			state = talosapi.StateUUID(l.media(wk1System).Bytes())
		}
		media := l.media(wk1Data)
		media.Write(valueOf(talosapi.Encrypted(media.Bytes(), "u-data", l.node("wk1").UUID, state, key != ""))(l.t))
		mustBe(l.t, bytes.Contains(config, []byte(volume+encryption(old))), "no %q in\n%s", volume+encryption(old), config)
		return bytes.Replace(config, []byte(volume+encryption(old)), []byte(volume+encryption(key)), 1)
	})
}

// documents makes these the only additional documents of wk1's machine configuration.
func documents(docs ...string) edit {
	return configured(func(_ *Lab, config []byte) []byte {
		const mark = "\n# further documents\n"
		text, _, _ := strings.Cut(string(config), mark)
		return []byte(strings.Join(append([]string{text + mark}, docs...), "---\n"))
	})
}

// configured changes wk1's machine configuration on its disk.
func configured(change func(l *Lab, config []byte) []byte) edit {
	return func(l *Lab) {
		l.t.Helper()
		media := l.media(wk1System)
		of := func(config []byte) []byte { return change(l, config) }
		media.Write(valueOf(talosapi.WithMachineConfig(media.Bytes(), of))(l.t))
	}
}

func reassign(from int, key string, to int, toKey string) edit {
	return func(l *Lab) {
		l.t.Helper()
		l.done(l.World.MoveDisk("", "pve1", world.MoveRequest{ID: from, Disk: key, Target: to, TargetDisk: toKey}))
	}
}

func strategy(s cluster.Strategy) edit {
	return configuration("roll:\n", "roll:\n  strategy: "+string(s)+"\n")
}

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
func whileOff(edits ...edit) edit { return func(l *Lab) { l.powerCycle(l.node("wk1"), edits...) } }

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
	return l.kubeNode(node).Status.NodeInfo.BootID
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
	return func(l *Lab) { l.configure(world.ChangeRequest{ID: wk1, Delete: keys}) }
}

// discard frees drives that remove would only detach.
func discard(keys ...string) edit {
	return func(l *Lab) { l.configure(world.ChangeRequest{ID: wk1, Delete: keys, Force: true}) }
}

func (l *Lab) configure(r world.ChangeRequest) {
	l.t.Helper()
	must(l.t, l.World.SetConfig("", "pve1", r))
}

// done requires a task to end well.
func (l *Lab) done(upid string, err error) {
	l.t.Helper()
	must(l.t, err)
	task, ok := l.World.WaitTask(upid)
	mustBe(l.t, ok && task.ExitStatus == "OK", "%+v", task)
}

// setting is a setting of wk1 that needs a restart, and its removal.
func setting(key, value string) (bring, lift edit) {
	return whileOff(change(key + "=" + value)), whileOff(remove(key))
}

// configuration edits recast.yaml; the check reverts it.
func configuration(old, fresh string) edit {
	return func(l *Lab) { l.Replace("recast.yaml", old, fresh) }
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
		disk := valueOf(artefact.ReadDisk(media.Bytes()))(l.t)
		disk.Partitions = change(disk.Partitions)
		media.Write(artefact.WriteDisk(disk))
	}
}

func (l *Lab) media(volid string) *world.Media {
	l.t.Helper()
	m := l.World.Media(volid, "pve1")
	mustBe(l.t, m != nil, "there is no %s", volid)
	return m
}

func labelled(label string) artefact.Partition {
	return artefact.Partition{Label: label, UUID: "0b5f0000-0000-4000-8000-000000000001", Filesystem: "xfs", FilesystemUUID: "0b5f0000-0000-4000-8000-000000000002"}
}

func (l *Lab) lock() {
	l.t.Helper()
	must(l.t, errOf(l.Client().Lock(l.t.Context(), pipeline.LockOptions{})))
}

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
	return func(l *Lab) { l.put(store.Volumes(), pv.DeepCopy()) }
}

func local(path string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}}
}

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
		l.t.Helper()
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

func masked(text string) string {
	return regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d UTC`).ReplaceAllString(text, "TIME")
}

func (l *Lab) labels(volid string) []string {
	l.t.Helper()
	disk := valueOf(artefact.ReadDisk(l.media(volid).Bytes()))(l.t)
	return ofEach(disk.Partitions, func(p artefact.Partition) string { return p.Label })
}

func (l *Lab) vm(id int) world.VM {
	l.t.Helper()
	return valueOf(l.World.LookupVM("pve1", id))(l.t)
}
