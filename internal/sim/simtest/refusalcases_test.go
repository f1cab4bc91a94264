package simtest

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/world"
)

// replicated is the refusal for a replication job of wk1, with the arguments to recreate it.
func replicated(args string) string {
	return "replication 9031-0 of the VM, with which Proxmox neither deletes the VM nor gives it a disk on storage fast: " +
		"on pve1 pvesr delete 9031-0, roll once pvesr list no longer shows it, then pvesr create-local-job 9031-0 " + args
}

// tiedRefusals are what Proxmox stores beside the VM and deletes with it.
func tiedRefusals() []refusal {
	tied := func(what string) []string {
		return []string{"the VM has " + what + ", which a delete would drop: remove it, or use reimage"}
	}
	acl := world.ACL{Path: "/vms/9031", Who: "alice@pve", Role: "PVEVMUser", Propagate: true}
	job := world.ReplicationJob{ID: "9031-0", Guest: wk1, Target: "pve2", Schedule: "*/15"}
	firewall := func(f world.Firewall) edit { return func(l *Lab) { l.World.SetFirewall(wk1, f) } }
	noFirewall := firewall(world.Firewall{})
	byHand, unsettable := world.Firewall{Options: map[string]string{"ips": "1"}}, "a firewall that Proxmox would not take again (option ips, which only an editor writes)"
	return []refusal{
		{
			name: "replication job", both: []string{replicated("pve2 --schedule '*/15'")},
			bring: func(l *Lab) { l.World.AddReplication(job) }, lift: func(l *Lab) { l.World.RemoveReplication(job.ID) },
		},
		{
			name: "ACL entry of its own", also: []string{colleague},
			bring: func(l *Lab) { l.World.Grant(acl) }, lift: func(l *Lab) { l.World.Revoke(acl) },
		},
		{name: "firewall option of an editor's", bring: firewall(byHand), also: tied(unsettable), lift: noFirewall},
		{name: "a firewall", bring: firewall(wholeFirewall()), lift: noFirewall},
		{
			name: "all of them", bring: func(l *Lab) {
				l.World.Grant(acl)
				l.World.SetFirewall(wk1, byHand)
			},
			also: append(tied(unsettable), colleague),
			lift: func(l *Lab) { l.World.Revoke(acl); noFirewall(l) },
		},
		onVNet("VNet whose zone has IPAM", world.VNet{Name: "tenant1", Zone: "zone1", IPAM: true}, true,
			"the VM is on VNet tenant1, whose zone keeps its address (IPAM), frees it with the VM, and gives a new VM the next one: use reimage"),
		onVNet("VNet whose zone has no IPAM", world.VNet{Name: "tenant2", Zone: "zone1"}, true),
		onVNet("VNet that the token does not see", world.VNet{Name: "tenant3", Zone: "zone3"}, false, "the VM is on tenant3, which Proxmox does not show the token, "+
			"so it is unknown whether a zone of its SDN keeps the VM's address (IPAM): grant the token SDN.Use on it, or use reimage"),
		{name: "an ACL entry of another VM", bring: func(l *Lab) { l.World.Grant(world.ACL{Path: "/vms/90310", Who: "alice@pve", Role: "PVEVMUser"}) }},
		{name: "a replication job of another VM", bring: func(l *Lab) { l.World.AddReplication(world.ReplicationJob{ID: "9001-0", Guest: 9001, Target: "pve2"}) }},
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

// cloudRefusals end with a Node whose provider ID can't be reset.
func cloudRefusals() []refusal {
	return []refusal{{
		name: "provider ID", bring: func(l *Lab) {
			n, err := l.Kube.Node(l.t.Context(), "wk1")
			must(l.t, err)
			n = n.DeepCopy()
			n.Spec.ProviderID = "proxmox://lab/9031"
			must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Nodes(), n, store.Main)))
		},
		also: []string{"its Node has providerID proxmox://lab/9031: a cloud controller deletes the Node with its VM: use reimage"},
	}}
}

const unseenMeta = "the VM has cicustom (meta=local:snippets/meta.yaml), without which file a new VM would not start, and the token does not see it: " +
	"grant it Datastore.Allocate on /storage/local, or remove that part, with which Talos' platform metadata goes; or use reimage"

const colleague = "the VM has an ACL entry at /vms/9031 (PVEVMUser of user alice@pve), which a delete would drop: remove it, " +
	"and after the roll pveum acl modify /vms/9031 --users alice@pve --roles PVEVMUser; or use reimage"

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
	ofRoot := []string{
		"affinity=0-3", "amd-sev=type=std", "args=-cpu host,+vmx", "hookscript=local:snippets/hook.pl",
		"hostpci0=0000:01:00.0,pcie=1", "hostpci1=mapping=gpu,romfile=vbios.bin", "hugepages=1024", "intel-tdx=type=tdx", "ivshmem=size=32",
		"keephugepages=1", "parallel0=/dev/parport0", "serial1=/dev/ttyS0", "spice_enhancements=videostreaming=all", "usb0=host=1234:5678",
	}
	var root []string
	for _, pair := range ofRoot {
		key, _, _ := strings.Cut(pair, "=")
		root = append(root, "its setting "+key+" can only be written by root@pam: use a resource mapping where there is one, or reimage")
	}
	return []refusal{
		settings("settings of root@pam", ofRoot, root...),
		settings("what is written by others", []string{"cicustom=meta=local:snippets/meta.yaml", "cipassword=secret"},
			unseenMeta,
			"the VM has cipassword, which Proxmox never shows: remove it, or use reimage"),
		{name: "protection", bring: change("protection=1"), lift: change("protection=0")},
		settings("mapped device", []string{"hostpci0=mapping=gpu,pcie=1"}),
		{name: "what a token may write", bring: whileOff(change("serial0=socket", "usb1=spice", "ciuser=talos", "ipconfig0=ip=dhcp", "numa=1"))},
	}
}

// occupiedRefusals are VMs that Proxmox would not let us change.
func occupiedRefusals() []refusal {
	const id = "backup-0b5f"
	job := func(j world.BackupJob, in time.Duration) edit {
		return func(l *Lab) {
			j.ID, j.Storage, j.NextRun = id, "local", time.Now().Add(in)
			l.World.AddBackupJob(j)
		}
	}
	noJob := func(l *Lab) { l.World.RemoveBackupJob(id) }
	lock := func(lock string) edit { return func(l *Lab) { l.World.SetLock(wk1, lock) } }
	replication := func(in time.Duration, running bool) edit {
		return func(l *Lab) {
			l.World.AddReplication(world.ReplicationJob{ID: "9031-0", Guest: wk1, Target: "pve2", NextSync: time.Now().Add(in), Running: running})
		}
	}
	noReplication := func(l *Lab) { l.World.RemoveReplication("9031-0") }
	due := []string{"backup job " + id + " due at TIME: wait until that is over"}
	later := func(*Lab) { time.Sleep(time.Minute) }
	backup := func(vmids ...int) edit {
		return func(l *Lab) {
			l.World.StartBackup("root@pam", "pve1", 25*time.Second, vmids...)
			time.Sleep(5 * time.Second)
		}
	}
	revert := func(keys ...string) edit {
		return func(l *Lab) { l.configure(world.ChangeRequest{ID: wk1, Revert: keys}) }
	}
	return []refusal{
		{
			name: "snapshot", bring: snapshot("before-upgrade", false), lift: noSnapshot("before-upgrade"),
			both: []string{"the VM has snapshots (before-upgrade), whose disks can't leave it: delete them first"},
		},
		{
			name: "snapshot with memory", bring: func(l *Lab) { snapshot("a", true)(l); snapshot("b", false)(l) },
			lift: func(l *Lab) { noSnapshot("a")(l); noSnapshot("b")(l) },
			both: []string{"the VM has snapshots (a, b), whose disks can't leave it: delete them first"},
		},
		{name: "lock", bring: lock("migrate"), lift: lock(""), both: []string{"the VM is locked (migrate): wait until that task has ended"}},
		{
			name: "backup running", bring: backup(wk1), lift: later,
			both: []string{
				"the VM is locked (backup): wait until that task has ended",
				"locked by a backup: wait until that is over", "running task vzdump 9031 on pve1: wait until that is over",
			},
		},
		{
			name: "backup of several VMs running", bring: backup(9001, wk1), lift: later,
			both: []string{"running task vzdump on pve1 of several VMs: wait until that is over"},
		},
		{name: "backup of another VM running", bring: backup(9001), undo: later},
		{name: "backup due", bring: job(world.BackupJob{VMIDs: []int{wk1}}, 29*time.Minute), both: due, lift: noJob},
		{name: "backup of all due", bring: job(world.BackupJob{All: true}, time.Minute), both: due, lift: noJob},
		{name: "backup due later", bring: job(world.BackupJob{VMIDs: []int{wk1}}, time.Hour), undo: noJob},
		{name: "disabled backup", bring: job(world.BackupJob{VMIDs: []int{wk1}, Disabled: true}, time.Minute), undo: noJob},
		{name: "backup of all but this", bring: job(world.BackupJob{All: true, Exclude: []int{wk1}}, time.Minute), undo: noJob},
		{name: "backup on another host", bring: job(world.BackupJob{All: true, Host: "pve2"}, time.Minute), undo: noJob},
		{name: "replication due", bring: replication(10*time.Minute, false), lift: noReplication, both: []string{replicated("pve2")}},
		{
			name: "replication running", bring: replication(24*time.Hour, true), lift: noReplication,
			both: []string{"replication job 9031-0 runs: wait until that is over", replicated("pve2")},
		},
		{name: "replication due later", bring: replication(24*time.Hour, false), lift: noReplication, both: []string{replicated("pve2")}},
		{
			name: "pending change", bring: change("memory=8192"), lift: revert("memory"),
			both: []string{"the VM has pending changes (memory): restart it or revert them"},
		},
		{
			name: "pending removal", bring: remove("ide2"), lift: revert("ide2", "boot"), // it names it
			both: []string{"the VM has pending changes (boot, ide2): restart it or revert them"},
		},
		{
			name: "template", bring: change("template=1"), lift: revert("template"),
			both: []string{"the VM is a template: a node can't be one", "the VM has pending changes (template): restart it or revert them"},
		},
	}
}

func snapshot(name string, memory bool) edit {
	return func(l *Lab) {
		l.t.Helper()
		must(l.t, l.World.AddSnapshot(wk1, world.Snapshot{Name: name, Memory: memory}))
	}
}

func noSnapshot(name string) edit {
	return func(l *Lab) {
		l.t.Helper()
		must(l.t, l.World.DeleteSnapshot(wk1, name))
	}
}

// lossRefusals are Kubernetes data that exist only on the system disk. Each is lifted by
// acceptLoss, and then listed.
func lossRefusals() []refusal {
	loss := func(name, what string, bring, undo edit) refusal {
		return refusal{
			name: what, bring: bring, lift: acceptLoss(name), undo: undo, lost: []string{what + " on the system disk will be lost"},
			both: []string{what + " is on the system disk and would be lost: move it to a disk of its own, or name " + name + " in nodes[].acceptLoss"},
		}
	}
	noVolume := without(store.Volumes(), "", "pvc-1")
	released := func(policy corev1.PersistentVolumeReclaimPolicy) func(*corev1.PersistentVolume) {
		return func(pv *corev1.PersistentVolume) {
			pv.Status.Phase, pv.Spec.PersistentVolumeReclaimPolicy = corev1.VolumeReleased, policy
		}
	}
	anywhere := func(pv *corev1.PersistentVolume) { pv.Spec.NodeAffinity = nil }
	elsewhere := func(pv *corev1.PersistentVolume) {
		pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values = []string{"cp1"}
	}
	csi := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "local.csi.openebs.io", VolumeHandle: "pvc-1"}}
	noLonghorn := without(longhornNodes.GroupVersionResource, "longhorn-system", "wk1")
	noRook := func(l *Lab) {
		without(cephClusters.GroupVersionResource, "rook-ceph", "ceph")(l)
		must(l.t, errOf(l.Kube.Store().Delete(l.t.Context(), store.Pods(), "rook-ceph", "rook-ceph-mon-a", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})))
	}
	const pv = "PersistentVolume pvc-1 (claim default/db-0)"
	return []refusal{
		loss("pv/pvc-1", pv, volume("pvc-1", local("/var/local-path/pvc-1")), noVolume),
		loss("pv/pvc-1", pv, volume("pvc-1", hostPath("/opt/data")), noVolume),
		loss("pv/pvc-1", "PersistentVolume pvc-1 (claim default/db-0, on any node)", volume("pvc-1", hostPath("/var/db"), anywhere), noVolume),
		loss("pv/pvc-1", "PersistentVolume pvc-1 (kept after its release, claim default/db-0)",
			volume("pvc-1", local("/var/local-path/pvc-1"), released(corev1.PersistentVolumeReclaimRetain)), noVolume),
		loss("pv/pvc-1", pv, volume("pvc-1", csi), noVolume),
		loss("longhorn/var/lib/longhorn", "Longhorn disk default (2 replicas)", longhorn("/var/lib/longhorn/"), noLonghorn),
		loss("longhorn/var/mnt/other", "Longhorn disk default (2 replicas)", longhorn("/var/mnt/other"), noLonghorn),
		loss("rook/var/lib/rook", "Rook's directory of CephCluster rook-ceph/ceph (rook-ceph-mon)", rook("/var/lib/rook"), noRook),
		{name: "volume on another disk", bring: volume("pvc-1", local("/var/mnt/data/pvc-1")), undo: noVolume},
		{name: "volume of another node", bring: volume("pvc-1", local("/var/local-path/pvc-1"), elsewhere), undo: noVolume},
		{name: "released volume that goes anyway", bring: volume("pvc-1", local("/var/x"), released(corev1.PersistentVolumeReclaimDelete)), undo: noVolume},
		{name: "Longhorn on another disk", bring: longhorn("/var/mnt/data/longhorn/"), undo: noLonghorn},
		{name: "Rook on another disk", bring: rook("/var/mnt/data/rook"), undo: noRook},
	}
}

// preconfiguredRefusals are whatever would configure the blank machine before recast does.
func preconfiguredRefusals() []refusal {
	const would = "would configure the blank machine before recast can"
	smbios := func(more string) edit {
		return whileOff(change("smbios1=uuid=5ec0ffee-0000-4000-8000-000000009031" + more))
	}
	plain := smbios("")
	const root = "its setting args can only be written by root@pam: use a resource mapping where there is one, or reimage"
	var list []refusal
	add := func(name string, bring, lift edit, both string, also ...string) {
		list = append(list, refusal{name: name, bring: bring, lift: lift, both: []string{both}, also: also})
	}
	bring, lift := setting("cicustom", "user=local:snippets/user.yaml,meta=local:snippets/meta.yaml")
	add("cloud-init user data", bring, lift,
		"cicustom's user data (user=local:snippets/user.yaml,meta=local:snippets/meta.yaml) "+would+": remove its user= part", unseenMeta)
	add("SMBIOS serial", smbios(",serial=ds=nocloud-net;s=http://10.0.0.1/"), plain,
		`the SMBIOS serial "ds=nocloud-net;s=http://10.0.0.1/" `+would+": remove it from smbios1")
	add("SMBIOS serial in base64", smbios(",base64=1,serial=ZHM9bm9jbG91ZDtzPWh0dHA6Ly8xMC4wLjAuMS8="), plain,
		`the SMBIOS serial "ds=nocloud;s=http://10.0.0.1/" `+would+": remove it from smbios1")
	for sign, args := range map[string]string{
		"ds=nocloud":     "-smbios type=1,serial=ds=nocloud-net;s=http://10.0.0.1/",
		"talos.config":   "-append talos.config=http://10.0.0.1/",
		"siderolink.api": "-append siderolink.api=grpc://10.0.0.1",
	} {
		bring, lift := setting("args", args)
		add("args with "+sign, bring, lift, "the VM's args name "+sign+", which "+would+": remove that", root)
	}
	for name, arg := range map[string]string{
		"talos.config": "talos.config=https://10.0.0.1/wk1.yaml", "talos.config.inline": "talos.config.inline=KLUv", "siderolink.api": "siderolink.api=grpc://10.0.0.1:8090",
	} {
		customization := "  extraKernelArgs: ['" + arg + "']\n"
		add("kernel argument "+name, schematic(customization), plainSchematic(customization),
			fmt.Sprintf("the schematic's kernel argument %s %s: remove it from the schematic", name, would))
	}
	const embedded = "  embeddedMachineConfiguration: |\n    version: v1alpha1\n"
	add("embedded configuration", schematic(embedded), plainSchematic(embedded),
		"the schematic embeds a machine configuration, which "+would+": remove embeddedMachineConfiguration from it")
	list = append(list, refusal{name: "another SMBIOS serial", bring: smbios(",serial=rack-7"), undo: plain})
	return list
}
