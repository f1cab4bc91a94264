package simtest

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
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

// cloudRefusals end with a Node whose provider ID can't be reset.
func cloudRefusals() []refusal {
	return []refusal{{
		name: "provider ID", bring: func(l *Lab) {
			n := l.kubeNode("wk1")
			n = n.DeepCopy()
			n.Spec.ProviderID = "proxmox://lab/9031"
			must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Nodes(), n, store.Main)))
		},
		also: []string{"its Node has providerID proxmox://lab/9031: a cloud controller deletes the Node with its VM: use reimage"},
	}}
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
			name: "pending change", bring: change("memory=8192"),
			lift: func(l *Lab) { l.configure(world.ChangeRequest{ID: wk1, Revert: []string{"memory"}}) },
			both: []string{"the VM has pending changes (memory): restart it or revert them"},
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

// loss is the refusal to lose what exists only on the system disk: acceptLoss lifts it, and
// then it is listed.
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

// TestPrivileges removes single privileges from the token: a strategy that needs them is
// refused before anything is touched.
func TestPrivileges(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
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
			{cluster.Reimage, []string{"VM.Config.Network", "VM.Config.CPU", "VM.Config.HWType", "SDN.Use"}, ofHA},
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
	long(t)
	t.Parallel()
	claim := []string{"Sys.Audit", "VM.Audit", "VM.Allocate", "VM.Config.Memory", "VM.Config.Options", "Datastore.Audit", "Datastore.AllocateTemplate"}
	reimage := append(slices.Clone(claim), "VM.Config.Disk", "VM.Config.CDROM", "VM.PowerMgmt", "Datastore.AllocateSpace")
	recreate := append(slices.Clone(reimage), "VM.Config.CPU", "VM.Config.HWType", "VM.Config.Network", "SDN.Use")
	for name, s := range map[string]struct {
		strategy   cluster.Strategy
		privileges []string
		rehearsed  int // scratch VMs that boot a disk
	}{
		"in-place":                            {cluster.InPlace, claim, 0},
		"reimage":                             {cluster.Reimage, reimage, 0},
		"recreate":                            {cluster.Recreate, recreate, 0},
		"recreate by disk, after a rehearsal": {cluster.Recreate, recreate, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				if s.rehearsed > 0 {
					lab.BootsDisks("disk")
					lab.setRoll("rehearse: {enabled: true, addresses: [127.42.7.251/24]}")
				}
				lab.Patch(sim.PatchedExtension)
				strategy(s.strategy)(lab)
				lab.World.AddRole("Recast", s.privileges...)
				rep, err := lab.Client().Roll(t.Context(), planning.Policy{})
				if must(t, err); len(rep.Rehearsed) != s.rehearsed {
					t.Errorf("rehearsed %v", rep.Rehearsed)
				}
				requireInSync(t, lab)
			})
		})
	}
}
