package simtest

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
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
		"kept outside of the VM": tiedRefusals(),
		"cloud controller": {{ // its provider ID can't be reset
			name: "provider ID", bring: func(l *Lab) {
				n := l.kubeNode("wk1").DeepCopy()
				n.Spec.ProviderID = "proxmox://lab/9031"
				must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Nodes(), n, store.Main)))
			},
			also: []string{"its Node has providerID proxmox://lab/9031: a cloud controller deletes the Node with its VM: use reimage"},
		}},
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

func requireAuto(t *testing.T, lab *Lab, r refusal) {
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
	plan := lab.plan(planning.Policy{Only: []string{node}})
	mustBe(t, len(plan.Nodes) == 1, "a plan for %s: %+v", node, plan.Nodes)
	return plan.Nodes[0]
}

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
		media := l.media(wk1System)
		of := func(config []byte) []byte { return change(l, config) }
		media.Write(valueOf(talosapi.WithMachineConfig(media.Bytes(), of))(l.t))
	}
}

func reassign(from int, key string, to int, toKey string) edit {
	return func(l *Lab) {
		l.done(l.World.MoveDisk("", "pve1", world.MoveRequest{ID: from, Disk: key, Target: to, TargetDisk: toKey}))
	}
}

func strategy(s cluster.Strategy) edit {
	return configuration("roll:\n", "roll:\n  strategy: "+string(s)+"\n")
}

const wk1 = 9031

// Its volumes, as the lab makes them.
const wk1System, wk1Data = "fast:9031/vm-9031-disk-1.raw", "fast:9031/vm-9031-disk-2.raw"

// edit is a change of the lab by a refusal's fixture, or its reversal.
type edit func(*Lab)

// whileOff makes edits while wk1 is powered off, and waits until it is back.
func whileOff(edits ...edit) edit { return func(l *Lab) { l.powerCycle(l.node("wk1"), edits...) } }

// powerCycle powers a node off, makes edits, powers it on, and waits until it is back.
func (l *Lab) powerCycle(n sim.Node, edits ...edit) {
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

func (l *Lab) bootID(node string) string { return l.kubeNode(node).Status.NodeInfo.BootID }

func change(pairs ...string) edit {
	return func(l *Lab) {
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

func (l *Lab) configure(r world.ChangeRequest) { must(l.t, l.World.SetConfig("", "pve1", r)) }

func (l *Lab) done(upid string, err error) {
	must(l.t, err)
	task, ok := l.World.WaitTask(upid)
	mustBe(l.t, ok && task.ExitStatus == "OK", "%+v", task)
}

func setting(key, value string) (bring, lift edit) {
	return whileOff(change(key + "=" + value)), whileOff(remove(key))
}

func configuration(old, fresh string) edit {
	return func(l *Lab) { l.Replace("recast.yaml", old, fresh) }
}

func acceptLoss(names ...string) edit {
	return configuration("{name: wk1,", "{name: wk1, acceptLoss: ['"+strings.Join(names, "', '")+"'],")
}

func (l *Lab) lock() { must(l.t, errOf(l.Client().Lock(l.t.Context(), pipeline.LockOptions{}))) }

func (l *Lab) put(r schema.GroupVersionResource, o store.Object) {
	must(l.t, errOf(l.Kube.Store().Create(l.t.Context(), r, o)))
}

func without(r schema.GroupVersionResource, namespace, name string) edit {
	return func(l *Lab) {
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

func schematic(customization string) edit {
	return func(l *Lab) {
		l.Replace("schematics/storage.yaml", "customization:\n", "customization:\n"+customization)
		l.lock()
	}
}

func plainSchematic(customization string) edit {
	return func(l *Lab) {
		l.Replace("schematics/storage.yaml", customization, "")
		l.lock()
	}
}

func masked(text string) string {
	return regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d UTC`).ReplaceAllString(text, "TIME")
}

func (l *Lab) vm(id int) world.VM { return valueOf(l.World.LookupVM("pve1", id))(l.t) }

// replicated is the refusal for a replication job of wk1, with the arguments to recreate it.
func replicated(args string) string {
	return "replication 9031-0 of the VM, with which Proxmox neither deletes the VM nor gives it a disk on storage fast: " +
		"on pve1 pvesr delete 9031-0, roll once pvesr list no longer shows it, then pvesr create-local-job 9031-0 " + args
}

// tiedRefusals are what Proxmox stores beside the VM and deletes with it.
func tiedRefusals() []refusal {
	acl := world.ACL{Path: "/vms/9031", Who: "alice@pve", Role: "PVEVMUser", Propagate: true}
	job := world.ReplicationJob{ID: "9031-0", Guest: wk1, Target: "pve2", Schedule: "*/15"}
	firewall := func(f world.Firewall) edit { return func(l *Lab) { l.World.SetFirewall(wk1, f) } }
	noFirewall := firewall(world.Firewall{})
	return []refusal{
		{
			name: "replication job", both: []string{replicated("pve2 --schedule '*/15'")},
			bring: func(l *Lab) { l.World.AddReplication(job) }, lift: func(l *Lab) { l.World.RemoveReplication(job.ID) },
		},
		{name: "a firewall", bring: firewall(wholeFirewall()), lift: noFirewall},
		{
			name: "firewall option of an editor's, and an ACL entry", bring: all(firewall(world.Firewall{Options: map[string]string{"ips": "1"}}), func(l *Lab) { l.World.Grant(acl) }),
			lift: all(noFirewall, func(l *Lab) { l.World.Revoke(acl) }),
			also: []string{
				"the VM has a firewall that Proxmox would not take again (option ips, which only an editor writes), which a delete would drop: remove it, or use reimage",
				"the VM has an ACL entry at /vms/9031 (PVEVMUser of user alice@pve), which a delete would drop: remove it, " +
					"and after the roll pveum acl modify /vms/9031 --users alice@pve --roles PVEVMUser; or use reimage",
			},
		},
		onVNet("VNet whose zone has IPAM", world.VNet{Name: "tenant1", Zone: "zone1", IPAM: true}, true,
			"the VM is on VNet tenant1, whose zone keeps its address (IPAM), frees it with the VM, and gives a new VM the next one: use reimage"),
		onVNet("VNet whose zone has no IPAM", world.VNet{Name: "tenant2", Zone: "zone1"}, true),
		onVNet("VNet that the token does not see", world.VNet{Name: "tenant3", Zone: "zone3"}, false, "the VM is on tenant3, which Proxmox does not show the token, "+
			"so it is unknown whether a zone of its SDN keeps the VM's address (IPAM): grant the token SDN.Use on it, or use reimage"),
	}
}

// onVNet attaches wk1's network card to a VNet.
func onVNet(name string, v world.VNet, shown bool, also ...string) refusal {
	plug := func(l *Lab, bridge string) {
		set := map[string]string{"net0": regexp.MustCompile(`bridge=\w+`).ReplaceAllString(l.vm(wk1).Config["net0"], "bridge="+bridge)}
		whileOff(func(l *Lab) { l.configure(world.ChangeRequest{ID: wk1, Set: set}) })(l)
	}
	return refusal{
		name: name, also: also, lift: func(l *Lab) { plug(l, world.LocalBridge) },
		bring: func(l *Lab) {
			l.World.AddVNet(v)
			for _, who := range []string{"recast@pve", "recast@pve!roll"} {
				if !shown {
					l.World.Grant(world.ACL{Path: "/sdn/zones/" + v.Zone, Who: who, Role: world.NoAccess, Propagate: true})
				}
			}
			plug(l, v.Name)
		},
	}
}

const unseenMeta = "the VM has cicustom (meta=local:snippets/meta.yaml), without which file a new VM would not start, and the token does not see it: " +
	"grant it Datastore.Allocate on /storage/local, or remove that part, with which Talos' platform metadata goes; or use reimage"

func ofRoot(key string) string {
	return "its setting " + key + " can only be written by root@pam: use a resource mapping where there is one, or reimage"
}

// settingRefusals are settings that a token can't give to a new VM, or that are lost with the old one.
func settingRefusals() []refusal {
	settings := func(name string, pairs []string, also ...string) refusal {
		var keys []string
		for _, p := range pairs {
			key, _, _ := strings.Cut(p, "=")
			keys = append(keys, key)
		}
		return refusal{name: name, bring: whileOff(change(pairs...)), lift: whileOff(remove(keys...)), also: also}
	}
	roots := []string{
		"affinity=0-3", "amd-sev=type=std", "args=-cpu host,+vmx", "hookscript=local:snippets/hook.pl",
		"hostpci0=0000:01:00.0,pcie=1", "hostpci1=mapping=gpu,romfile=vbios.bin", "hugepages=1024", "intel-tdx=type=tdx", "ivshmem=size=32",
		"keephugepages=1", "parallel0=/dev/parport0", "serial1=/dev/ttyS0", "spice_enhancements=videostreaming=all", "usb0=host=1234:5678",
	}
	var refused []string
	for _, pair := range roots {
		key, _, _ := strings.Cut(pair, "=")
		refused = append(refused, ofRoot(key))
	}
	return []refusal{
		settings("settings of root@pam", roots, refused...),
		settings("what is written by others", []string{"cicustom=meta=local:snippets/meta.yaml", "cipassword=secret"},
			unseenMeta,
			"the VM has cipassword, which Proxmox never shows: remove it, or use reimage"),
		settings("mapped device", []string{"hostpci0=mapping=gpu,pcie=1"}),
		{name: "what a token may write", bring: whileOff(change("serial0=socket", "usb1=spice", "ciuser=talos", "ipconfig0=ip=dhcp", "numa=1", "protection=1"))},
	}
}

// occupiedRefusals are VMs that Proxmox would not let us change.
func occupiedRefusals() []refusal {
	return []refusal{
		{
			name: "snapshots", bring: all(snapshot("a", true), snapshot("b", false)), lift: all(noSnapshot("a"), noSnapshot("b")),
			both: []string{"the VM has snapshots (a, b), whose disks can't leave it: delete them first"},
		},
		{
			name: "backup running", bring: func(l *Lab) {
				l.World.StartBackup("root@pam", "pve1", 25*time.Second, wk1)
				time.Sleep(5 * time.Second)
			},
			lift: func(*Lab) { time.Sleep(time.Minute) },
			both: []string{
				"the VM is locked (backup): wait until that task has ended",
				"locked by a backup: wait until that is over", "running task vzdump 9031 on pve1: wait until that is over",
			},
		},
		{
			name: "backup due", bring: func(l *Lab) {
				l.World.AddBackupJob(world.BackupJob{ID: "backup-0b5f", VMIDs: []int{wk1}, Storage: "local", NextRun: time.Now().Add(29 * time.Minute)})
			},
			lift: func(l *Lab) { l.World.RemoveBackupJob("backup-0b5f") },
			both: []string{"backup job backup-0b5f due at TIME: wait until that is over"},
		},
		{
			name: "replication running", bring: func(l *Lab) {
				l.World.AddReplication(world.ReplicationJob{ID: "9031-0", Guest: wk1, Target: "pve2", NextSync: time.Now().Add(24 * time.Hour), Running: true})
			},
			lift: func(l *Lab) { l.World.RemoveReplication("9031-0") },
			both: []string{"replication job 9031-0 runs: wait until that is over", replicated("pve2")},
		},
		{
			name: "HA disarmed", bring: func(l *Lab) {
				l.World.AddHA(world.HAResource{SID: fmt.Sprintf("vm:%d", wk1), State: "started"})
				must(l.t, l.World.DisarmHA("root@pam", "ignore"))
			},
			lift: func(l *Lab) {
				must(l.t, l.World.DisarmHA("root@pam", ""))
				must(l.t, l.World.DeleteHA("root@pam", fmt.Sprintf("vm:%d", wk1), false))
				time.Sleep(time.Minute)
			},
			both: []string{"Proxmox HA is disarmed, resource mode: ignore (CRM watchdog released), and neither releases a VM nor takes one until ha-manager crm-command arm-ha: wait until that is over"},
		},
		{
			name: "pending change", bring: change("memory=8192"),
			lift: func(l *Lab) { l.configure(world.ChangeRequest{ID: wk1, Revert: []string{"memory"}}) },
			both: []string{"the VM has pending changes (memory): restart it or revert them"},
		},
	}
}

func snapshot(name string, memory bool) edit {
	return func(l *Lab) { must(l.t, l.World.AddSnapshot(wk1, world.Snapshot{Name: name, Memory: memory})) }
}

func noSnapshot(name string) edit {
	return func(l *Lab) { must(l.t, l.World.DeleteSnapshot(wk1, name)) }
}

// loss is the refusal to lose what exists only on the system disk: acceptLoss lifts it, and then it is listed.
func loss(name, what string, bring, undo edit) refusal {
	return refusal{
		name: what, bring: bring, lift: acceptLoss(name), undo: undo, lost: []string{what + " on the system disk will be lost"},
		both: []string{what + " is on the system disk and would be lost: move it to a disk of its own, or name " + name + " in nodes[].acceptLoss"},
	}
}

// lossRefusals are Kubernetes data that exist only on the system disk.
func lossRefusals() []refusal {
	noVolume := without(store.Volumes(), "", "pvc-1")
	noLonghorn := without(longhornNodes.GroupVersionResource, "longhorn-system", "wk1")
	noRook := func(l *Lab) {
		without(cephClusters.GroupVersionResource, "rook-ceph", "ceph")(l)
		must(l.t, errOf(l.Kube.Store().Delete(l.t.Context(), store.Pods(), "rook-ceph", "rook-ceph-mon-a", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})))
	}
	return []refusal{
		loss("pv/pvc-1", "PersistentVolume pvc-1 (claim default/db-0)", volume("pvc-1", local("/var/local-path/pvc-1")), noVolume),
		loss("longhorn/var/lib/longhorn", "Longhorn disk default (2 replicas)", longhorn("/var/lib/longhorn/"), noLonghorn),
		loss("rook/var/lib/rook", "Rook's directory of CephCluster rook-ceph/ceph (rook-ceph-mon)", rook("/var/lib/rook"), noRook),
		{name: "volume on another disk", bring: volume("pvc-1", local("/var/mnt/data/pvc-1")), undo: noVolume},
		{name: "Longhorn on another disk", bring: longhorn("/var/mnt/data/longhorn/"), undo: noLonghorn},
	}
}

// preconfiguredRefusals are whatever would configure the blank machine before recast does.
func preconfiguredRefusals() []refusal {
	const would = "would configure the blank machine before recast can"
	row := func(name string, bring, lift edit, both string, also ...string) refusal {
		return refusal{name: name, bring: bring, lift: lift, both: []string{both}, also: also}
	}
	smbios := func(more string) edit {
		return whileOff(change("smbios1=uuid=5ec0ffee-0000-4000-8000-000000009031" + more))
	}
	userData, noUserData := setting("cicustom", "user=local:snippets/user.yaml,meta=local:snippets/meta.yaml")
	args, noArgs := setting("args", "-smbios type=1,serial=ds=nocloud-net;s=http://10.0.0.1/")
	const (
		kernel   = "  extraKernelArgs: ['talos.config=https://10.0.0.1/wk1.yaml']\n"
		embedded = "  embeddedMachineConfiguration: |\n    version: v1alpha1\n"
	)
	return []refusal{
		row("cloud-init user data", userData, noUserData,
			"cicustom's user data (user=local:snippets/user.yaml,meta=local:snippets/meta.yaml) "+would+": remove its user= part", unseenMeta),
		row("SMBIOS serial in base64", smbios(",base64=1,serial=ZHM9bm9jbG91ZDtzPWh0dHA6Ly8xMC4wLjAuMS8="), smbios(""),
			`the SMBIOS serial "ds=nocloud;s=http://10.0.0.1/" `+would+": remove it from smbios1"),
		row("SMBIOS serial in args", args, noArgs, "the VM's args name ds=nocloud, which "+would+": remove that", ofRoot("args")),
		{name: "kernel argument", bring: schematic(kernel), lift: plainSchematic(kernel), both: []string{bringsArg("talos.config")}, inPlace: true},
		{
			name: "embedded configuration", bring: schematic(embedded), lift: plainSchematic(embedded), inPlace: true,
			both: []string{"the schematic embeds a machine configuration, which " + would + ": remove embeddedMachineConfiguration from it"},
		},
		{name: "another SMBIOS serial", bring: smbios(",serial=rack-7"), undo: smbios("")},
	}
}

const wk1SystemDrive, rawDisk = wk1System + ",iothread=1,discard=on,ssd=1,serial=sys-wk1", "/dev/disk/by-id/nvme-1"

// diskRefusals are drives that can't be moved, or could be the wrong ones.
func diskRefusals() []refusal {
	blind := world.ACL{Path: "/storage/dark", Who: "recast@pve!lab", Role: "Blind", Propagate: true}
	return append([]refusal{
		{
			name: "device of the host", bring: func(l *Lab) {
				l.World.AddDevice("pve1", rawDisk, 1<<30, world.NewMedia(nil))
				change("scsi2=" + rawDisk + ",serial=nvme-1")(l)
			}, lift: remove("scsi2"),
			also: []string{"scsi2 is a device of the host (" + rawDisk + "), which only root@pam can attach, so a new VM could not have it: give the node a volume instead, or use reimage"},
		},
		{
			name: "system disk of the holder", bring: func(l *Lab) {
				l.DefineVM(9053, map[string]string{"name": "holder"})
				configuration("{name: wk1,", "{name: wk1, holder: 9053,")(l)
				whileOff(reassign(wk1, "scsi0", 9053, "scsi5"), change("scsi0=fast:9053/vm-9053-disk-0.raw,serial=sys-wk1"), change("boot=order=scsi0;ide2"))(l)
			}, lift: whileOff(remove("scsi0"), reassign(9053, "scsi5", wk1, "scsi0"), change("boot=order=scsi0;ide2"), change("scsi0="+wk1SystemDrive)),
			both: []string{
				"the system disk scsi0 (fast:9053/vm-9053-disk-0.raw) belongs to the holder, VM 9053: reassign it to VM 9031",
			},
		},
		{
			name: "disk of a storage driver", bring: func(l *Lab) {
				must(l.t, l.World.AddLUN("fast", "pve1", "9999/vm-9999-pvc-0b5f.raw", 1<<30, world.NewMedia(nil)))
				change("scsi7=fast:9999/vm-9999-pvc-0b5f.raw")(l)
				proxmoxVolume("9999/vm-9999-pvc-0b5f.raw")(l)
			}, undo: all(remove("scsi7"), without(store.Volumes(), "", "pvc-proxmox")),
		},
		{
			name: "data disk on ZFS over iSCSI", bring: func(l *Lab) {
				l.World.AddStorage(world.Storage{ID: "zi", Type: "zfs", Shared: true, Content: []string{"images"}})
				change("scsi2=zi:1,serial=zi-1")(l)
			}, lift: discard("scsi2"),
			also: []string{"scsi2 (zi:vm-9031-disk-0) is on storage zi of type zfs, which can't give a disk to another VM: move it to another storage"},
		},
		{
			name: "storage that the token may not see", bring: func(l *Lab) {
				l.World.AddStorage(world.Storage{ID: "dark", Type: "dir", Content: []string{"images"}})
				change("scsi2=dark:1,serial=dark-1")(l)
				l.World.AddRole("Blind", "VM.Audit")
				l.World.Grant(blind)
			},
			also: []string{"scsi2 (dark:9031/vm-9031-disk-0.raw) is on storage dark, which Proxmox does not list: grant the token Datastore.Audit there"},
			lift: func(l *Lab) { l.World.Revoke(blind) }, undo: discard("scsi2"),
		},
	}, provenRefusals()...)
}

// provenRefusals are system disks that can't be proven, and data disks that could not be afterwards.
func provenRefusals() []refusal {
	const (
		vm    = `VM 9031 "wk1" on pve1: system disk can't be proven: `
		names = ": give the drive a name of its own that Talos shows: with qm set 9031 add wwn=0x3 and 15 more hex digits to it (serial= if it is a virtioN), restart the VM once, and try again; with scsihw virtio-scsi-single SCSI drives need none"
		wwn   = ",wwn=0x3000000000000001"
	)
	return []refusal{
		{
			name: "two blank disks of one size", bring: change("scsi2=fast:3", "scsi3=fast:3"),
			also: []string{"the persistent disks scsi2 and scsi3 have one size, and nothing that tells them apart is on them, so the new VM could not prove that each came back to its place: " +
				"qm set 9031 --scsi3 fast:9031/vm-9031-disk-4.raw,size=3G,serial=9031-scsi3 gives one of them a name; the VM need not be restarted for that"},
			lift: change("scsi3=fast:9031/vm-9031-disk-4.raw,size=3G,serial=9031-scsi3"), undo: discard("scsi2", "scsi3"),
		},
		{
			name:  "neither serial nor address, and one size twice",
			bring: whileOff(change("scsihw=megasas", "scsi0="+wk1System, "scsi2=fast:10,serial=other")),
			both:  []string{vm + "no drive matches sda (no serial or WWID of a drive, and sdc has the same size)" + names},
			lift:  whileOff(change("scsi0=" + wk1SystemDrive + wwn)), undo: whileOff(discard("scsi2"), change("scsihw=virtio-scsi-single", "scsi0="+wk1SystemDrive)),
		},
		{
			name:  "data disk that could be either",
			bring: whileOff(change("scsihw=megasas", "scsi0="+wk1SystemDrive+wwn, "scsi2=fast:20,serial=other")),
			both: []string{"what is on sdb (u-data) could be on scsi1 or scsi2, and which of the machine's disks that is can't be determined: " +
				"qm set 9031 --scsi1 " + wk1Data + ",discard=on,iothread=1,size=20G,ssd=1,serial=9031-scsi1,wwn=0x3eb37482376a108b, then shut VM 9031 down and start it (a reboot from inside is not enough), so that Talos shows the name"},
			lift: whileOff(change("scsi1=" + wk1Data + ",discard=on,iothread=1,size=20G,ssd=1,serial=9031-scsi1,wwn=0x3eb37482376a108b")),
			undo: whileOff(discard("scsi2"), change("scsihw=virtio-scsi-single", "scsi0="+wk1SystemDrive,
				"scsi1="+wk1Data+",iothread=1,discard=on,ssd=1,serial=data-wk1")),
		},
		{
			name: "another slot configured", bring: configuration("{name: wk1,", "{name: wk1, systemDisk: {slot: scsi1},"),
			both: []string{vm + "the configuration says scsi1, but the machine runs from scsi0 (address /pci0000:00/0000:00:1e.0/0000:05:04.0/0000:09:01.0/virtio2/host2/target2:0:0/2:0:0:0): correct or remove nodes[].systemDisk.slot"},
			lift: configuration("slot: scsi1", "slot: scsi0"),
		},
	}
}

// partitionRefusals are volumes of Talos that would be lost, unreadable or mistaken for others.
func partitionRefusals() []refusal {
	onData := func(label string, reasons ...string) refusal {
		return refusal{
			name: label + " on the data disk", bring: whileOff(partitioned(wk1Data, labelled(label))), lift: whileOff(unpartitioned(wk1Data, 1)), both: reasons,
		}
	}
	const (
		user = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: cache\n" +
			"provisioning: {diskSelector: {match: system_disk}, minSize: 1GB, maxSize: 1GB}\n"
		existing = "apiVersion: v1alpha1\nkind: ExistingVolumeConfig\nname: old\ndiscovery: {volumeSelector: {match: volume.partition_label == 'scratch'}}\n"
	)
	unmade := whileOff(documents(), unpartitioned(wk1System, 1))
	twice := loss("u-data", "volume u-data", whileOff(partitioned(wk1System, labelled("u-data"))), nil)
	twice.name, twice.lost, twice.lift = "user volume twice", nil, unmade
	twice.both = append(twice.both, "the label u-data is there twice, on sda and on sdb: Talos uses the one on sda: give the other one another label")
	return []refusal{
		onData("META", "sdb carries a META partition (sdb2): the boot ISO would take Talos for installed and halt: delete that partition",
			"the label META is there twice, on sda and on sdb: Talos uses the one on sda: give the other one another label"),
		onData("ETCD"), // its configuration has etcd in a directory
		onData("IMAGECACHE", "sdb carries a IMAGECACHE partition (sdb2) that Talos does not use now and might use then: give that partition another label, which keeps what is on it"),
		onData("u-more"),
		twice,
		loss("u-cache", "volume u-cache", whileOff(documents(user)), unmade),
		loss("e-old", "volume e-old", whileOff(partitioned(wk1System, labelled("scratch")), documents(existing)), unmade),
		{
			name: "locked to STATE", bring: whileOff(encryptsData("", "nodeID: {}, lockToState: true")),
			both: []string{"volume u-data is encrypted with lockToState and would be unreadable once STATE is gone: add a key without lockToState and remove that one, or use in-place"},
			lift: whileOff(encryptsData("nodeID: {}, lockToState: true", "nodeID: {}")), undo: whileOff(encryptsData("nodeID: {}", "")),
		},
		{
			name: "TPM that is not Proxmox's", bring: whileOff(documents("apiVersion: v1alpha1\nkind: VolumeConfig\nname: STATE\n"+encryption("tpm: {}")), change("args=-tpmdev emulator,id=tpm0,chardev=tpm")),
			both: []string{"volume STATE is encrypted with a TPM key, but the VM has no tpmstate0 that recast could keep: add another key and remove that one, or use in-place"},
			also: []string{ofRoot("args")},
			lift: whileOff(remove("args"), change("tpmstate0=fast:1,version=v2.0")), undo: whileOff(documents(), discard("tpmstate0")),
		},
	}
}

// TestWhatADeleteWouldDropIsKeptByReimage rolls a VM with everything that prevents recreate: all of it survives.
func TestWhatADeleteWouldDropIsKeptByReimage(t *testing.T) {
	inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		acl := world.ACL{Path: "/vms/9031", Who: "alice@pve", Role: "PVEVMUser", Propagate: true}
		lab.World.Grant(acl)
		lab.World.SetFirewall(wk1, wholeFirewall())
		whileOff(change("args=-cpu host,+vmx", "hostpci0=0000:01:00.0", "cipassword=secret", "protection=1"))(lab)
		before := lab.vm(wk1)
		requirePlanned(t, planOf(t, lab, "wk1"), cluster.Reimage)
		lab.Client().rollTo(t, planning.Policy{})
		after := lab.vm(wk1)
		for _, config := range []map[string]string{before.Config, after.Config} {
			maps.DeleteFunc(config, func(key, _ string) bool { return key == "scsi0" || key == "description" })
			config["smbios1"] = ofProof.ReplaceAllString(config["smbios1"], "")
		}
		requireSame(t, before.Config, after.Config, "its configuration (-before +after)")
		requireSame(t, wholeFirewall(), lab.World.FirewallOf(wk1), "its firewall (-want +got)")
		require(t, slices.Contains(lab.World.ACLs(), acl), "its ACL entry is gone: %+v", lab.World.ACLs())
	})
}

// TestWhatIsOnTheSystemDiskIsKeptByInPlace rolls a node whose system disk must stay.
func TestWhatIsOnTheSystemDiskIsKeptByInPlace(t *testing.T) {
	inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		whileOff(partitioned(wk1System, labelled("u-cache")))(lab)
		snapshot("before", false)(lab)
		requirePlanned(t, planOf(t, lab, "wk1"), cluster.InPlace)
		lab.Client().rollTo(t, planning.Policy{})
		vm, labels := lab.vm(wk1), lab.labels(wk1System)
		require(t, slices.Contains(labels, "u-cache") && strings.HasPrefix(vm.Config["scsi0"], wk1System+","),
			"its system disk is %s and has %q", vm.Config["scsi0"], labels)
		requireSame(t, 1, len(vm.Snapshots), "its snapshots")
	})
}

// TestAcceptedLossesAreShownAndRolled: the plan lists an accepted loss, and the roll loses that and nothing else.
func TestAcceptedLossesAreShownAndRolled(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.installLonghorn()
		lab.Patch(sim.PatchedExtension)
		whileOff(partitioned(wk1System, labelled("u-cache"), labelled("scratch")))(lab)
		volume("pvc-1", local("/var/local-path/pvc-1"))(lab)
		volume("pvc-2", local("/var/mnt/data/pvc-2"))(lab)
		longhorn("/var/lib/longhorn")(lab)
		acceptLoss("u-cache", "scratch", "pv/pvc-1")(lab)
		lab.Client().mustRoll(planning.Policy{}) // one of the losses is not accepted, so it is rolled in place
		mustBe(t, slices.Contains(lab.labels(wk1System), "u-cache"), "partitions %q", lab.labels(wk1System))
		lab.Patch(sim.PatchedExtension)
		configuration("'pv/pvc-1'", "'pv/pvc-1', longhorn/var/lib/longhorn, pv/pvc-9")(lab)
		n := lab.second().mustRoll(planning.Policy{}).Plan.Work()[0]
		want := []string{
			"volume u-cache on the system disk will be lost", "volume scratch on the system disk will be lost",
			"Longhorn disk default (2 replicas) on the system disk will be lost",
			"PersistentVolume pvc-1 (claim default/db-0) on the system disk will be lost",
		}
		requireSame(t, cluster.Recreate, n.Strategy, "strategy")
		requireSame(t, want, n.WillLose, "will lose (-want +got)")
		const named = "acceptLoss names pv/pvc-9, but nothing of that name is on its system disk"
		requireSame(t, []string{named}, n.Notes, "notes (-want +got)")
		requireInSync(t, lab)
		system, _, _ := strings.Cut(lab.vm(wk1).Config["scsi0"], ",")
		labels := lab.labels(system)
		require(t, !slices.Contains(labels, "u-cache"), "partitions of the new system disk: %q", labels)
	})
}

// TestKernelArgumentsThatConfigureAreRolledAwayInPlace: a plan refuses them, in place too. Where the node has got
// them by another hand, it goes on in place, with and without them, and then it can be recreated.
func TestKernelArgumentsThatConfigureAreRolledAwayInPlace(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const would = ", which would configure the blank machine before recast can: roll in-place once, to an image without it"
		customization := "  extraKernelArgs: ['talos.config=http://10.0.0.1/wk1.yaml?token=secret', talos.config.inline=KLUv]\n"
		schematic(customization)(lab)
		brings := []string{bringsArg("talos.config"), bringsArg("talos.config.inline")}
		requireNoWayIn(t, lab, brings...)
		upgradeByHand(t, lab, lab.locked("wk1").Schematic)
		lab.Patch(sim.PatchedExtension)
		must(t, lab.as(firstRun).roll(onlyWorker)(t.Context())) // it has them already
		plainSchematic(customization)(lab)
		reasons := []string{
			"the machine was booted with the kernel argument talos.config" + would,
			"the machine was booted with the kernel argument talos.config.inline" + would,
		}
		requireRefusal(t, lab, refusal{name: "booted with kernel arguments", bring: func(*Lab) {}, both: reasons, lift: func(l *Lab) {
			l.second().rollTo(t, planning.Policy{})
			l.Patch(sim.PatchedExtension)
		}})
	})
}

func bringsArg(name string) string {
	return "the schematic's kernel argument " + name + " would configure the blank machine before recast can: remove it from the schematic"
}

func requireNoWayIn(t *testing.T, lab *Lab, reasons ...string) {
	want := ofEach(reasons, func(r string) string { return "recreate, reimage, in-place: " + r })
	requireSame(t, want, planOf(t, lab, "wk1").Refused, "refused (-want +got)")
	requireInPlace(t, lab, "a way in without a way out", reasons...)
}

func requireInPlace(t *testing.T, lab *Lab, name string, want ...string) {
	config := lab.Read("recast.yaml")
	strategy(cluster.InPlace)(lab)
	requireAsked(t, lab, name, cluster.InPlace, want)
	lab.Write("recast.yaml", config)
}

// TestAMachineOfOmni is brought there by another hand, for recast refuses to; an image without the argument brings it back.
func TestAMachineOfOmni(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		customization := "  extraKernelArgs: ['siderolink.api=grpc://10.0.0.1:8090?jointoken=secret']\n"
		schematic(customization)(lab)
		requireNoWayIn(t, lab, bringsArg("siderolink.api"))
		upgradeByHand(t, lab, lab.locked("wk1").Schematic)
		lab.Patch(sim.PatchedExtension)
		requireInPlace(t, lab, "Omni", "Omni looks after the machine (siderolink.api=grpc://10.0.0.1:8090) and would undo this: "+
			"take the machine out of Omni, and the argument out of the schematic: in-place rolls to an image without it")
		plainSchematic(customization)(lab)
		n := planOf(t, lab, "wk1")
		requirePlanned(t, n, cluster.InPlace)
		const left = "its image no longer joins it to Omni (siderolink.api=grpc://10.0.0.1:8090): " +
			"remove the machine in Omni, too"
		require(t, slices.Contains(n.Notes, left), "notes %q", n.Notes)
		lab.Client().rollTo(t, planning.Policy{})
	})
}

// TestUndoOfAMachineOfOmni: while every strategy is refused, its kept system disk still boots.
func TestUndoOfAMachineOfOmni(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		before := lab.machine("wk1")
		lab.Patch(sim.PatchedExtension)
		must(t, lab.Client().roll(policyFor("wk1"))(t.Context())) // a recreate, which keeps the old system disk
		schematic("  extraKernelArgs: ['siderolink.api=grpc://10.0.0.1:8090?jointoken=secret']\n")(lab)
		upgradeByHand(t, lab, lab.locked("wk1").Schematic)
		joined := lab.machine("wk1").Omni()
		mustBe(t, len(joined) == 1, "the machine is joined by %q", joined)
		must(t, errOf(lab.as("20000101-0000-0111").Undo(t.Context(), policyFor("wk1"), planning.Undone{})))
		m := lab.machine("wk1")
		require(t, len(m.Omni()) == 0 && m.Schematic.LockHash() == before.Schematic.LockHash(),
			"it runs %+v, joined by %q", m.Schematic, m.Omni())
	})
}

// TestAHoldersDisksAreRefusedUntilItIsNamed removes the holder from the configuration.
func TestAHoldersDisksAreRefusedUntilItIsNamed(t *testing.T) {
	inStaleLab(t, sim.Options{ControlPlanes: 1, Workers: 1, Holder: true}, func(t *testing.T, lab *Lab) {
		requireRefusal(t, lab, refusal{
			name: "holder that is not named", bring: configuration("wk1, schematic: storage, vmid: 9031, holder: 9201", "wk1, schematic: storage, vmid: 9031"),
			both: []string{"scsi1 (fast:9201/vm-9201-disk-0.raw) belongs to VM 9201: name that as nodes[].holder, or reassign the disk to VM 9031"},
			lift: configuration("vmid: 9031", "vmid: 9031, holder: 9201"),
		})
		lab.Client().rollTo(t, planning.Policy{})
	})
}

// TestNothingIsPossible refuses a node under auto if there is a reason against each strategy.
func TestNothingIsPossible(t *testing.T) {
	inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		snapshot("before", false)(lab)
		bring, lift := setting("args", "-cpu host,+vmx")
		bring(lab)
		configuration("{name: wk1,", "{name: wk1, systemDisk: {sizeGiB: 20},")(lab)
		const (
			snapshots = "the VM has snapshots (before), whose disks can't leave it: delete them first"
			size      = "in-place can't make the system disk scsi0 larger (10G → 20G): remove nodes[].systemDisk.sizeGiB, or use recreate or reimage"
		)
		n := planOf(t, lab, "wk1")
		want := []string{"recreate, reimage: " + snapshots, "recreate: " + ofRoot("args"), "in-place: " + size}
		requireSame(t, want, n.Refused, "refused (-want +got)")
		requireSame(t, "no strategy is possible", n.Why, "why (-want +got)")
		requireRollRefused(t, lab, "wk1: recreate, reimage: "+snapshots, "--exclude")
		requireInPlace(t, lab, "larger system disk", size)
		noSnapshot("before")(lab)
		lift(lab)
		lab.Client().rollTo(t, planning.Policy{})
		requireSays(t, lab.vm(wk1).Config["scsi0"], "size=20G")
	})
}

// TestEtcdRefusesANewSystemDisk is about clusters whose etcd needs the node.
func TestEtcdRefusesANewSystemDisk(t *testing.T) {
	const only = "the only etcd member's data would be lost with the system disk: use in-place, " +
		"or put etcd's data on a persistent disk (a VolumeConfig for ETCD or EPHEMERAL), with recast backup before the installation that this takes, and recast restore after it"
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		n := planOf(t, lab, "cp1")
		require(t, n.Strategy == cluster.InPlace && n.Why == "in-place: a new system disk is impossible ("+only+")" &&
			len(n.Refused) == 0, "auto: %s, %s, refused %q", n.Strategy, n.Why, n.Refused)
		brought := lab.Read("recast.yaml")
		for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
			strategy(s)(lab)
			requireSame(t, []string{only}, planOf(t, lab, "cp1").Refused, "%s (-want +got)", s)
			requireRollRefused(t, lab, "cp1: "+only, "--exclude")
			lab.Write("recast.yaml", brought)
		}
	})
}

// requireRollRefused rolls: it must be refused with that text and hint, and nothing must be done.
func requireRollRefused(t *testing.T, lab *Lab, text, hint string) {
	before := len(lab.Recorder.Calls())
	err := lab.Client().roll(planning.Policy{})(t.Context())
	requireRefused(t, err, text)
	requireSays(t, strings.Join(fault.Hints(err), "\n"), hint)
	lab.requireNothingSent(before, "factory")
}

// TestChangesSinceThePlanAreSeen makes changes during the confirmation that the VM's
// digest does not show: the node is left as it is.
func TestChangesSinceThePlanAreSeen(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.patch(sim.PatchedExtension, "strategy: recreate")
		acl := world.ACL{Path: "/vms/9031", Who: "alice@pve", Role: "PVEVMUser"}
		before := lab.vm(wk1).Config
		for i, tc := range []struct {
			bring, lift edit
			text        string
		}{
			{
				func(l *Lab) { l.World.SetFirewall(wk1, world.Firewall{Options: map[string]string{"ips": "1"}}) },
				func(l *Lab) { l.World.SetFirewall(wk1, world.Firewall{}) }, "the VM has a firewall that Proxmox would not take again",
			},
			{func(l *Lab) { l.World.Grant(acl) }, func(l *Lab) { l.World.Revoke(acl) }, "the VM has an ACL entry at /vms/9031"},
			{volume("pvc-1", local("/var/local-path/pvc-1")), without(store.Volumes(), "", "pvc-1"), "PersistentVolume pvc-1 (claim default/db-0) is on the system disk"},
			{
				func(l *Lab) {
					l.World.AddBackupJob(world.BackupJob{ID: "backup-1", All: true, Storage: "local", NextRun: time.Now().Add(time.Minute)})
				},
				func(l *Lab) { l.World.RemoveBackupJob("backup-1") }, "backup job backup-1 due at ",
			},
		} {
			c := lab.as(fmt.Sprintf("20000101-0000-000%d", i))
			c.Confirm = func(planning.Plan) (bool, error) { tc.bring(lab); return true, nil }
			requireRefused(t, c.roll(planning.Policy{})(t.Context()),
				"recreate became impossible for wk1 since the plan was made: "+tc.text)
			tc.lift(lab)
			diff := cmp.Diff(before, lab.vm(wk1).Config)
			mustBe(t, diff == "", "after %q (-before +after):\n%s", tc.text, diff)
		}
		lab.second().rollTo(t, planning.Policy{})
	})
}

// TestPrivileges: a strategy without a privilege that it needs is refused before anything is touched.
func TestPrivileges(t *testing.T) {
	inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.World.AddMapping("pci", "gpu", "pve1")
		lab.World.AddMapping("usb", "dongle", "pve1")
		whileOff(change(
			"startup=order=1", "hostpci0=mapping=gpu", "usb0=mapping=dongle", "rng0=source=/dev/hwrng", "virtiofs0=dirid=share",
		))(lab)
		lab.World.AddHA(world.HAResource{SID: "vm:9031", State: "started"})
		const (
			ofHA      = "Sys.Console on /"
			ofVM      = "Sys.Console, Sys.Modify on /; Mapping.Use on /mapping/dir/share; Mapping.Use on /mapping/hwrng; Mapping.Use on /mapping/pci/gpu; Mapping.Use on /mapping/usb/dongle"
			onVMs     = " on /vms"
			onStorage = "Datastore.AllocateSpace on /storage/fast"
		)
		config := lab.Read("recast.yaml")
		for _, tc := range []struct {
			strategy cluster.Strategy
			without  []string // of the lab's role
			lacks    string
		}{
			{cluster.Recreate, nil, ofVM},
			{cluster.Recreate, []string{"VM.Config.Network", "VM.Config.CPU"}, ofVM + "; VM.Config.CPU, VM.Config.Network" + onVMs},
			{cluster.Recreate, []string{"SDN.Use"}, ofVM + "; SDN.Use on /sdn/zones/localnetwork/vmbr0"},
			{cluster.Recreate, []string{"Datastore.AllocateSpace"}, ofVM + "; " + onStorage},
			{cluster.Recreate, []string{"Datastore.AllocateTemplate"}, ofVM + "; Datastore.AllocateTemplate on /storage/isos"},
			{cluster.Reimage, nil, ofHA},
			{cluster.Reimage, []string{"VM.Config.Network", "VM.Config.CPU", "SDN.Use"}, ofHA},
			{cluster.Reimage, []string{"VM.Config.HWType"}, ofHA + "; VM.Config.HWType" + onVMs},
			{cluster.Reimage, []string{"VM.Config.Disk", "VM.Config.CDROM"}, ofHA + "; VM.Config.CDROM, VM.Config.Disk" + onVMs},
			{cluster.Reimage, []string{"Datastore.AllocateSpace"}, ofHA + "; " + onStorage},
		} {
			strategy(tc.strategy)(lab)
			lab.World.AddRole("Recast", slices.DeleteFunc(sim.Privileges(), func(p string) bool { return slices.Contains(tc.without, p) })...)
			requireRollRefused(t, lab, "the Proxmox token lacks privileges: "+tc.lacks, "pveum acl modify")
			lab.Write("recast.yaml", config)
		}
	})
}

// TestFewPrivilegesSuffice rolls with the minimum privileges of a strategy.
func TestFewPrivilegesSuffice(t *testing.T) {
	claim := []string{"Sys.Audit", "VM.Audit", "VM.Allocate", "VM.Config.Memory", "VM.Config.Options", "Datastore.Audit", "Datastore.AllocateTemplate"}
	reimage := append(slices.Clone(claim), "VM.Config.Disk", "VM.Config.CDROM", "VM.Config.HWType", "VM.PowerMgmt", "Datastore.AllocateSpace")
	recreate := append(slices.Clone(reimage), "VM.Config.CPU", "VM.Config.Network", "SDN.Use")
	type story struct {
		strategy   cluster.Strategy
		privileges []string
		rehearsed  int // scratch VMs that boot a disk
	}
	eachLong(t, oneWorker(), map[string]story{
		"in-place":                            {cluster.InPlace, claim, 0},
		"reimage":                             {cluster.Reimage, reimage, 0},
		"recreate":                            {cluster.Recreate, recreate, 0},
		"recreate by disk, after a rehearsal": {cluster.Recreate, recreate, 1},
		"reshape":                             {cluster.Reshape, append(slices.Clone(claim), "VM.PowerMgmt"), 0},
	}, func(t *testing.T, lab *Lab, s story) {
		if s.strategy == cluster.Reshape {
			lab.shape("wk1", "memory: 6144")
			lab.World.AddRole("Recast", s.privileges...)
			lab.Client().mustRoll(policyFor("wk1"))
			requireInSync(t, lab)
			return
		}
		if s.rehearsed > 0 {
			lab.BootsDisks("disk")
			lab.setRoll("rehearse: {enabled: true, addresses: [127.42.7.251/24]}")
		}
		lab.patch(sim.PatchedExtension, "strategy: "+string(s.strategy))
		lab.World.AddRole("Recast", s.privileges...)
		requireSame(t, s.rehearsed, len(lab.Client().mustRoll(planning.Policy{}).Rehearsed), "what was rehearsed")
		requireInSync(t, lab)
	})
}
