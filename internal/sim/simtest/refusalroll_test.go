package simtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestWhatADeleteWouldDropIsKeptByReimage rolls a VM with everything that prevents recreate: all of it survives.
func TestWhatADeleteWouldDropIsKeptByReimage(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
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
		}
		requireSame(t, before.Config, after.Config, "its configuration (-before +after)")
		requireSame(t, wholeFirewall(), lab.World.FirewallOf(wk1), "its firewall (-want +got)")
		require(t, slices.Contains(lab.World.ACLs(), acl), "its ACL entry is gone: %+v", lab.World.ACLs())
	})
}

// TestWhatIsOnTheSystemDiskIsKeptByInPlace rolls a node whose system disk must stay.
func TestWhatIsOnTheSystemDiskIsKeptByInPlace(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
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
	inLongLab(t, sim.Options{ControlPlanes: 1, Workers: 1, Holder: true}, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
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
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
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
		lab.Patch(sim.PatchedExtension)
		strategy(cluster.Recreate)(lab)
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
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
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
	claim := []string{"Sys.Audit", "VM.Audit", "VM.Allocate", "VM.Config.Memory", "VM.Config.Options", "Datastore.Audit", "Datastore.AllocateTemplate"}
	reimage := append(slices.Clone(claim), "VM.Config.Disk", "VM.Config.CDROM", "VM.PowerMgmt", "Datastore.AllocateSpace")
	recreate := append(slices.Clone(reimage), "VM.Config.CPU", "VM.Config.HWType", "VM.Config.Network", "SDN.Use")
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
	}, func(t *testing.T, lab *Lab, s story) {
		if s.rehearsed > 0 {
			lab.BootsDisks("disk")
			lab.setRoll("rehearse: {enabled: true, addresses: [127.42.7.251/24]}")
		}
		lab.Patch(sim.PatchedExtension)
		strategy(s.strategy)(lab)
		lab.World.AddRole("Recast", s.privileges...)
		requireSame(t, s.rehearsed, len(lab.Client().mustRoll(planning.Policy{}).Rehearsed), "what was rehearsed")
		requireInSync(t, lab)
	})
}
