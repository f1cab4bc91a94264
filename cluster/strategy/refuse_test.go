package strategy

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/clustertest/vmsetting"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestInPlaceIsImpossible(t *testing.T) {
	t.Parallel()
	check(t, map[string]refusalCase{
		"another build failed": {change: func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) { f.Node.FailedBuild = "other" }},
		"no Node":              {change: func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) { f.Node = nil }},
		"a larger system disk": {
			change:  func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) { w.SystemGiB = 16 },
			inPlace: "in-place can't make the system disk scsi0 larger (10G → 16G): remove nodes[].systemDisk.sizeGiB, or use recreate or reimage",
		},
		"one of two control planes, before 1.13": {
			change: func(_ *cluster.Wanted, f *observe.Found, o *observe.Observation) {
				f.Machine.ControlPlane, f.Machine.TalosVersion = true, "v1.12.6"
				for i := range 2 {
					o.Nodes = append(o.Nodes, cluster.KubeNode{Name: fmt.Sprint("cp", i), ControlPlane: true, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}})
				}
			},
			inPlace: "Talos v1.12.6 itself refuses to upgrade one of two control planes (etcd member count(2) is insufficient to maintain quorum if upgrade commences): use recreate or reimage",
		},
		"a smaller one": {change: func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) { w.SystemGiB = 8 }},
	})
}

func TestRecreateIsImpossible(t *testing.T) {
	t.Parallel()
	check(t, map[string]refusalCase{
		"what a delete drops": {
			change: func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
				f.Ties.Dropped = []string{"a firewall that Proxmox would not take again (option ips)"}
				f.Ties.ACL = []cluster.ACLEntry{{Path: "/vms/9002", Kind: "group", Who: "ops team", Role: "PVEVMUser"}}
			},
			recreate: "the VM has a firewall that Proxmox would not take again (option ips), which a delete would drop: remove it, or use reimage\n" +
				"the VM has an ACL entry at /vms/9002 (PVEVMUser of group ops team), which a delete would drop: remove it, and after the roll " +
				"pveum acl modify /vms/9002 --groups 'ops team' --roles PVEVMUser --propagate 0; or use reimage",
		},
		"a replication job": {
			change: func(_ *cluster.Wanted, f *observe.Found, o *observe.Observation) {
				f.Ties.Jobs = []cluster.ReplicationJob{{ID: "9002-0", Target: "pve2", Schedule: "*/15", Rate: "10", Disabled: true}}
				zfsOf(f, o, "")
			},
			recreate: "replication 9002-0 of the VM, with which Proxmox does not delete the VM, and which would fail for good: " + replicatedText,
			reimage:  "replication 9002-0 of the VM, with which Proxmox does not delete the VM, and which would fail for good: " + replicatedText,
		},
		"a replication job, not of the system disk": {
			change: func(_ *cluster.Wanted, f *observe.Found, o *observe.Observation) {
				f.Ties.Jobs = []cluster.ReplicationJob{{ID: "9002-0", Target: "pve2"}, {ID: "9002-1", Target: "pve3"}}
				zfsOf(f, o, ",replicate=off")
			},
			recreate: "replication 9002-0, 9002-1 of the VM, with which Proxmox does not delete the VM: on pve1 pvesr delete 9002-0 && pvesr delete 9002-1, " +
				"roll once pvesr list no longer shows it, then pvesr create-local-job 9002-0 pve2 && pvesr create-local-job 9002-1 pve3; or use reimage",
		},
		"a cloud controller": {
			change: func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
				f.Node.ProviderID = "proxmox://c/9002"
			},
			recreate: "its Node has providerID proxmox://c/9002: a cloud controller deletes the Node with its VM: use reimage",
		},
		"protection":      {change: set("protection", "1")}, // it is removed, and set again
		"args":            {change: set("args", "-cpu host"), recreate: rootText("args")},
		"huge pages":      {change: set("hugepages", "1024"), recreate: rootText("hugepages")},
		"raw PCI":         {change: set("hostpci0", "0000:01:00.0,pcie=1"), recreate: rootText("hostpci0")},
		"mapped PCI":      {change: set("hostpci0", "mapping=gpu,pcie=1")},
		"mapped PCI, ROM": {change: set("hostpci0", "mapping=gpu,romfile=x.rom"), recreate: rootText("hostpci0")},
		"raw USB":         {change: set("usb0", "host=046d:c52b"), recreate: rootText("usb0")},
		"mapped USB":      {change: set("usb0", "mapping=stick")},
		"SPICE USB":       {change: set("usb0", "spice,usb3=1")},
		"SPICE USB, host": {change: set("usb0", "host=spice")},
		"raw serial":      {change: set("serial0", "/dev/ttyS0"), recreate: rootText("serial0")},
		"serial socket":   {change: set("serial0", "socket")},
		"parallel":        {change: set("parallel0", "/dev/parport0"), recreate: rootText("parallel0")},
		"cicustom without user data": {
			change: set("cicustom", "vendor=local:snippets/v.yaml"),
			recreate: "the VM has cicustom (vendor=local:snippets/v.yaml), without which file a new VM would not start, and the token does not see it: grant it Datastore.Allocate on /storage/local, " +
				"or remove that part, with which Talos' platform metadata goes; or use reimage",
		},
		"cicustom, whose files are there": {change: func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.VM.Config["cicustom"], f.Ties.Snippets = "vendor=local:snippets/v.yaml,meta=local:snippets/m.yaml", []string{"local:snippets/m.yaml", "local:snippets/v.yaml"}
		}},
		"cicustom with a network": {
			change: func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
				f.VM.Config["cicustom"], f.Ties.Snippets = "meta=local:snippets/m.yaml,network=local:snippets/n.yaml", []string{"local:snippets/m.yaml", "local:snippets/n.yaml"}
			},
			recreate: "the VM has cicustom (network=local:snippets/n.yaml), whose content recast can't read: remove it, or use reimage",
		},
		"the host's own architecture": {change: func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			w.Build.Arch, f.VM.Config["arch"], f.Ties.HostArch = "amd64", "x86_64", "x86_64"
		}},
		"an architecture of no known host": {change: func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			w.Build.Arch, f.VM.Config["arch"] = "amd64", "x86_64"
		}, recreate: rootText("arch")},
		"another architecture than the host's": {change: func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			w.Build.Arch, f.VM.Config["arch"], f.Ties.HostArch = "amd64", "x86_64", "aarch64"
		}, recreate: rootText("arch")},
		"cipassword": {change: set("cipassword", "**********"), recreate: "the VM has cipassword, which Proxmox never shows: remove it, or use reimage"},
		"persistent disk without serial": {
			change:   set("virtio3", "bulk:9002/vm-9002-disk-2.raw,size=90G"),
			reimage:  untoldVirtio3,
			recreate: untoldVirtio3,
		},
	})
}

func TestReplacingAnOccupiedVMIsImpossible(t *testing.T) {
	t.Parallel()
	check(t, map[string]refusalCase{
		"edited parking VM": both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Unrecorded = []cluster.VM{{ID: 9900, Name: "recast-parking-wk1", Host: "pve1", Config: map[string]string{"scsi30": "fast:vm-9900-disk-0"}}}
		}, `VM 9900 "recast-parking-wk1" on pve1 was its parking VM, and its Notes, which someone has edited, no longer say what its disks are (it has scsi30 (fast:vm-9900-disk-0)): put the Notes back as they were. `+
			"If nobody has them any more, qm set 9900 --name kept-wk1 has recast leave that VM and its disks alone, and make another one"),
		"template": both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) { f.VM.Template = true }, "the VM is a template: a node can't be one"),
		"lock":     both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) { f.VM.Lock = "backup" }, "the VM is locked (backup): wait until that task has ended"),
		"snapshots": both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.VM.Config["parent"] = "b"
			f.Ties.Snapshots = []string{"a", "b"}
		}, "the VM has snapshots (a, b), whose disks can't leave it: delete them first"),
		"memory on disk": both(set("vmstate", "fast:vm-9002-state-suspend-1"),
			"the VM's memory is on disk (fast:vm-9002-state-suspend-1), as that of one that is suspended: resume it (qm resume 9002)"),
		"a boot order of missing devices": both(set("boot", "order=scsi0;net0;scsi9"),
			"its boot order names net0, which the VM does not have: set the boot order again\nits boot order names scsi9, which the VM does not have: set the boot order again"),
		"a boot order of the old kind": {change: set("boot", "cdn")},
		"a parent snapshot alone":      both(set("parent", "b"), "the VM has snapshots (b), whose disks can't leave it: delete them first"),
		"busy": both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Ties.Busy = []string{"backup job nightly is due in 12m"}
		}, "backup job nightly is due in 12m: wait until that is over"),
		"pending": both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.VM.Pending = []string{"cores", "memory"}
		},
			"the VM has pending changes (cores, memory): restart it or revert them"),
		"a pending pinning to processors": {change: func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) { f.VM.Pending = []string{"affinity"} }},
		"HA is taken care of": {change: func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.VM.HA, f.Ties.HA = true, &cluster.HAResource{VMID: 9002}
		}},
	})
}

func TestReplacingWhatOthersConfigureIsImpossible(t *testing.T) {
	t.Parallel()
	encoded := base64.StdEncoding.EncodeToString([]byte("ds=nocloud-net;s=http://x/"))
	arg := func(wanted, booted []string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			w.Build.KernelArgs, f.Machine.ConfigArgs = wanted, booted
		}
	}
	states := func(customization, arg string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Schematic.YAML = "customization: {" + customization + "}"
			if w.Build.EmbedsConfig = arg == ""; arg != "" {
				w.Build.KernelArgs = []string{arg}
			}
		}
	}
	embeds := func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) { w.Build.EmbedsConfig = true }
	const booted = "the machine was booted with the kernel argument talos.config, which " + would + ": roll in-place once, to an image without it"
	check(t, map[string]refusalCase{
		"cicustom user data": both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.VM.Config["cicustom"], f.Ties.Snippets = "meta=a:snippets/m,user=a:snippets/u", []string{"a:snippets/m"}
		}, "cicustom's user data (meta=a:snippets/m,user=a:snippets/u) "+would+": remove its user= part"),
		"SMBIOS serial": both(set("smbios1", "uuid=u-wk1,serial=ds=nocloud-net;s=http://x/"),
			`the SMBIOS serial "ds=nocloud-net;s=http://x/" `+would+": remove it from smbios1"),
		"SMBIOS serial in base64": both(set("smbios1", "base64=1,serial="+encoded+",uuid=u-wk1"),
			`the SMBIOS serial "ds=nocloud-net;s=http://x/" `+would+": remove it from smbios1"),
		"another serial": {change: set("smbios1", "uuid=u-wk1,serial=ABC")},
		"SMBIOS in args": {
			change:   set("args", "-smbios type=1,serial=ds=nocloud-net"),
			recreate: "the VM's args name ds=nocloud, which " + would + ": remove that\n" + rootText("args"),
			reimage:  "the VM's args name ds=nocloud, which " + would + ": remove that",
		},
		"talos.config": all(arg([]string{"console=ttyS0", "talos.config=http://x/${uuid}"}, nil),
			"the schematic's kernel argument talos.config "+would+": remove it from the schematic"),
		"talos.config, which it has already": both(arg([]string{"console=ttyS0", "talos.config=http://x/${uuid}"}, []string{"talos.config=http://x"}),
			"the schematic's kernel argument talos.config "+would+": remove it from the schematic"),
		"talos.config.inline": all(arg([]string{"talos.config.inline=AAAA"}, nil),
			"the schematic's kernel argument talos.config.inline "+would+": remove it from the schematic"),
		"siderolink.api": all(arg([]string{"siderolink.api=grpc://x?jointoken=secret"}, []string{"talos.config=http://x"}),
			"the schematic's kernel argument siderolink.api "+would+": remove it from the schematic", booted),
		"other arguments":            {change: arg([]string{"talos.platform=metal", "siderolink.wireguard=1", "recast.lock=sha256-x"}, nil)},
		"booted with one":            both(arg(nil, []string{"talos.config=http://x"}), booted),
		"one that its schematic has": both(states("extraKernelArgs: ['talos.config=http://x']", "talos.config=http://x"), "the schematic's kernel argument talos.config "+would+": remove it from the schematic"),
		"embedded":                   all(embeds, "the schematic embeds a machine configuration, which "+would+": remove embeddedMachineConfiguration from it"),
		"embedded already": both(func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
			embeds(w, f, o)
			f.Machine.Extensions = []cluster.ExtensionEntry{{Name: cluster.ConfigEntry}}
		}, "the schematic embeds a machine configuration, which "+would+": remove embeddedMachineConfiguration from it"),
		"one that its schematic embeds": both(states("embeddedMachineConfiguration: x", ""), "the schematic embeds a machine configuration, which "+would+": remove embeddedMachineConfiguration from it"),
	})
}

// TestAMachineOfOmni: an image without the argument is the way out, and only where the argument leaves with the image.
func TestAMachineOfOmni(t *testing.T) {
	t.Parallel()
	const (
		booted  = "the machine was booted with the kernel argument siderolink.api, which would configure the blank machine before recast can: roll in-place once, to an image without it"
		brings  = "the schematic's kernel argument siderolink.api would configure the blank machine before recast can: remove it from the schematic"
		undoes  = "Omni looks after the machine (siderolink.api=grpc://x) and would undo this: take the machine out of Omni, and the argument out of "
		stated  = "customization: {extraKernelArgs: ['siderolink.api=grpc://x?jointoken=s', 'recast.lock=sha256-x']}"
		joining = "kind: SideroLinkConfig\napiVersion: v1alpha1\n"
	)
	machine := func(yaml string, booted, wanted []string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Schematic.YAML, f.Machine.ConfigArgs, w.Build.KernelArgs = yaml, booted, wanted
		}
	}
	by := []string{"siderolink.api=grpc://x"}
	joined := func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
		f.Machine.Configs.Active = cluster.Secret(joining)
	}
	check(t, map[string]refusalCase{
		"to an image without it": both(machine(stated, by, nil), booted),
		"to an image with it":    {change: machine(stated, by, []string{"siderolink.api=grpc://x"}), recreate: brings, reimage: brings, inPlace: undoes + "the schematic: in-place rolls to an image without it"},
		"not from its schematic": {change: machine("customization: {}", by, nil), recreate: booted, reimage: booted, inPlace: undoes + "what its system is booted with (args of the VM, machine.install.extraKernelArgs)"},
		"by its configuration":   all(joined, omniDocument),
		"with a file without": {change: func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
			joined(w, f, o)
			f.File = &cluster.FoundFile{}
		}, inPlace: omniDocument},
		"with a file that has it": all(func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
			joined(w, f, o)
			f.File = &cluster.FoundFile{Omni: true}
		}, omniDocument),
	})
	w, f, o := staleNode()
	w.Strategy = cluster.Auto
	machine(stated, by, nil)(&w, &f, &o)
	want := []string{"its image no longer joins it to Omni (siderolink.api=grpc://x): remove the machine in Omni, too"}
	if d := judge(w, f, o); d.Strategy != cluster.InPlace || len(d.Refused) > 0 || !slices.Equal(d.Notes, want) {
		t.Errorf("without the argument: %+v", d)
	}
}

// all is a case in which no strategy is possible; more is only against a new system disk.
func all(change func(w *cluster.Wanted, f *observe.Found, o *observe.Observation), text string, more ...string) refusalCase {
	replacing := strings.Join(append([]string{text}, more...), "\n")
	return refusalCase{change: change, recreate: replacing, reimage: replacing, inPlace: text}
}

// both is a case in which only in-place is possible.
func both(change func(w *cluster.Wanted, f *observe.Found, o *observe.Observation), text string) refusalCase {
	return refusalCase{change: change, recreate: text, reimage: text}
}

func check(t *testing.T, cases map[string]refusalCase) {
	t.Helper()
	must.Each(t, cases, func(t *testing.T, tc refusalCase) {
		for s, want := range map[cluster.Strategy]string{cluster.Recreate: tc.recreate, cluster.Reimage: tc.reimage, cluster.InPlace: tc.inPlace} {
			w, f, o := staleNode()
			w.Strategy = s
			tc.change(&w, &f, &o)
			must.Equal(t, string(s), want, strings.Join(judge(w, f, o).Refused, "\n"))
		}
	})
}

// refusalCase is one obstacle to some strategies, with its text.
type refusalCase struct {
	change   func(w *cluster.Wanted, f *observe.Found, o *observe.Observation)
	recreate string // "": possible
	reimage  string
	inPlace  string
}

const replicatedText = "its target keeps the name that the new disk scsi0 gets: on pve1 pvesr delete 9002-0, roll once pvesr list no longer shows it, " +
	"then pvesr create-local-job 9002-0 pve2 --schedule '*/15' --rate 10 --disable 1; or leave scsi0 out of it, and use reimage: qm set 9002 --scsi0 fast:vm-9002-disk-0,serial=sys,size=10G,replicate=0"

func rootText(key string) string {
	return "its setting " + key + " can only be written by root@pam: use a resource mapping where there is one, or reimage"
}

func set(key, value string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) { f.VM.Config[key] = value }
}

const untoldVirtio3 = "what is on vda (none) could be on virtio3, and which of the machine's disks that is can't be determined: " +
	"qm set 9002 --virtio3 bulk:9002/vm-9002-disk-2.raw,size=90G,serial=9002-virtio3, " +
	"then shut VM 9002 down and start it (a reboot from inside is not enough), so that Talos shows the name"

// zfsOf puts the storage of the node's disks on local ZFS, and adds options to its system disk.
func zfsOf(f *observe.Found, o *observe.Observation, options string) {
	o.Storages = slices.Clone(o.Storages)
	for i := range o.Storages {
		o.Storages[i].Type, o.Storages[i].Shared = "zfspool", false
	}
	f.VM.Config["scsi0"] += options
}

func TestReplacingEntangledDisksIsImpossible(t *testing.T) {
	t.Parallel()
	hold := func(value string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
			w.Holder = 200
			f.VM.Config["scsi4"] = "fast:vm-200-disk-0,serial=held"
			o.VMs[1].Config["scsi1"] = value
		}
	}
	held := hold("fast:vm-200-disk-0,serial=held")
	ofPod := func(volid string) func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
		return func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
			set("scsi4", volid)(w, f, o)
			f.VM.Pods = []string{volid}
		}
	}
	check(t, map[string]refusalCase{
		"a holder's disk":                       {change: held},
		"a holder's disk that it does not name": {change: hold("none,media=cdrom")},
		"the same ISO in many VMs": {change: func(_ *cluster.Wanted, _ *observe.Found, o *observe.Observation) {
			o.VMs[1].Config["ide2"] = "isos:iso/debian.iso,media=cdrom"
		}},
		"another VM's disk": both(set("scsi4", "fast:vm-200-disk-0,serial=held"),
			"scsi4 (fast:vm-200-disk-0) belongs to VM 200: name that as nodes[].holder, or reassign the disk to VM 9002"),
		"a disk of no VM that exists": both(set("scsi4", "fast:vm-9999-disk-0,serial=x"),
			"scsi4 (fast:vm-9999-disk-0) carries the number of VM 9999, which does not exist: reassign it to VM 9002"),
		"a disk of a pod": {change: ofPod("csi:vm-9999-pvc-1a2b")},
		"a disk of a pod that is named like any other": {change: ofPod("csi:vm-9999-disk-0")},
		"a disk that is named as a pod's": both(set("scsi4", "csi:vm-9999-pvc-1a2b"),
			"scsi4 (csi:vm-9999-pvc-1a2b) is named as a pod's volume, but no PersistentVolume that Kubernetes tells of has it, so no drain takes it away: "+
				"have Kubernetes answer, or make its PersistentVolume again; or, if it is not needed here, take it out of VM 9002, which keeps the volume, after kubectl drain: qm shutdown 9002 && qm set 9002 --delete scsi4 && qm start 9002"),
		"a disk without an owner": both(set("scsi4", "san:0.0.1.scsi-3600,serial=x"),
			"scsi4 (san:0.0.1.scsi-3600) carries no VM's number, so its owner is unknown: give the node a volume instead"),
		"no such holder": both(func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) { w.Holder = 201 },
			"its holder, VM 201, does not exist: correct nodes[].holder"),
		"the system disk is a holder's": both(func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			w.Holder = 200
			f.VM.Config["scsi0"] = "fast:vm-200-disk-0,serial=sys,size=10G"
		}, "the system disk scsi0 (fast:vm-200-disk-0) belongs to the holder, VM 200: reassign it to VM 9002"),
		"a persistent disk that forgets": both(set("scsi1", "fast:vm-9002-disk-1,serial=data,size=20G,snapshot=1"), forgets("scsi1")),
		"a system disk that forgets": {
			change:   set("scsi0", "fast:vm-9002-disk-0,serial=sys,size=10G,snapshot=on"),
			recreate: forgets("scsi0"), reimage: forgets("scsi0"), inPlace: forgets("system disk scsi0"),
		},
		"a disk that does not": {change: set("scsi1", "fast:vm-9002-disk-1,serial=data,size=20G,snapshot=0")},
		"a disk image for a CD": both(set("ide2", "bulk:9002/vm-9002-disk-5.raw,media=cdrom"),
			"ide2 has a disk image for a CD (bulk:9002/vm-9002-disk-5.raw), which nothing else names: attach it as a disk"),
		"a host's CD drive": both(set("ide2", "cdrom,media=cdrom"), "ide2 is a CD drive of the host (cdrom), which recast can't give back: take it out of the VM"),
		"a host's file for a CD": both(set("ide2", "/dev/sr0,media=cdrom"),
			"ide2 is a CD drive of the host (/dev/sr0), which recast can't give back: take it out of the VM"),
		"an empty CD drive": {change: set("ide2", "none,media=cdrom")},
		"a drive that can't be read": {
			change:   set("scsi9", "serial=x"),
			recreate: unreadDrive, reimage: unreadDrive,
		},
	})
}

func TestReplacingWithADeviceOfTheHost(t *testing.T) {
	t.Parallel()
	check(t, map[string]refusalCase{
		"a device of the host": {
			change:   set("scsi4", "/dev/disk/by-id/ata-x,serial=x"),
			recreate: "scsi4 is a device of the host (/dev/disk/by-id/ata-x), which only root@pam can attach, so a new VM could not have it: give the node a volume instead, or use reimage",
		},
		"a device of another host's name": {
			change: func(_ *cluster.Wanted, f *observe.Found, o *observe.Observation) {
				f.VM.Config["scsi4"] = "/dev/sdb,serial=x"
				o.VMs = append(o.VMs, cluster.VM{ID: 300, Host: "pve2", Config: map[string]string{"scsi4": "/dev/sdb"}})
			},
			recreate: "scsi4 is a device of the host (/dev/sdb), which only root@pam can attach, so a new VM could not have it: give the node a volume instead, or use reimage",
		},
		"a LUN of two hosts": {
			change: func(_ *cluster.Wanted, f *observe.Found, o *observe.Observation) {
				f.VM.Config["scsi4"] = "/dev/disk/by-id/wwn-0x1,serial=x"
				o.VMs = append(o.VMs, cluster.VM{ID: 300, Host: "pve2", Config: map[string]string{"scsi4": "/dev/disk/by-id/wwn-0x1"}})
			},
			recreate: lunOfTwo, reimage: lunOfTwo, inPlace: lunOfTwo,
		},
		"the system disk is a device of the host": both(set("scsi0", "/dev/disk/by-id/ata-x,serial=sys,size=10G"),
			"the system disk scsi0 is a device of the host (/dev/disk/by-id/ata-x), which can't be parked: give the node a volume for it, or use in-place"),
	})
}

const lunOfTwo = "the volume of scsi4 is also scsi4 of VM 300: qm set 300 --delete scsi4 (VM 300 is on pve2) keeps the volume"

func forgets(what string) string {
	return what + " has snapshot=1, so what is written to it is thrown away when the VM stops: remove that option, and restart the VM once"
}

// The system disk can't be proven in such a VM either.
const unreadDrive = `VM 9002 "wk1" on pve1: scsi9: no volume in "serial=x"` + "\n" +
	`VM 9002 "wk1" on pve1: scsi9: no volume in "serial=x": correct the VM's configuration`

func TestReplacingAnUnprovenSystemDiskIsImpossible(t *testing.T) {
	t.Parallel()
	check(t, map[string]refusalCase{
		"not named": both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) { f.Machine.SystemDisk = "" },
			`VM 9002 "wk1" on pve1: system disk can't be proven: the machine does not name it: `+cluster.NameDrives(cluster.VM{ID: 9002})),
		"not what the user says": both(func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) { w.SystemDisk = "scsi1" },
			`VM 9002 "wk1" on pve1: system disk can't be proven: the configuration says scsi1, but the machine runs from scsi0 (serial sys): correct or remove nodes[].systemDisk.slot`),
	})
}

func TestParkingOnAStorageThatCannotReassign(t *testing.T) {
	t.Parallel()
	typed := func(storage, kind string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, _ *observe.Found, o *observe.Observation) {
			i := slices.IndexFunc(o.Storages, func(s cluster.Storage) bool { return s.Name == storage })
			o.Storages[i].Type = kind
		}
	}
	const (
		bulk = "virtio3 (bulk:9002/vm-9002-disk-2.raw) is on storage bulk of type "
		cant = ", which can't give a disk to another VM: move it to another storage"
		sys  = "scsi0 (fast:vm-9002-disk-0) is on storage fast of type iscsidirect" + cant
	)
	cases := map[string]refusalCase{
		"a persistent disk on ZFS over iSCSI": {change: typed("bulk", "zfs"), recreate: bulk + "zfs" + cant},
		"a persistent disk on a plugin":       {change: typed("bulk", "linstor"), recreate: bulk + "linstor" + cant},
		"the system disk": {
			change:  typed("fast", "iscsidirect"),
			reimage: sys,
			recreate: "efidisk0 (fast:vm-9002-disk-3) is on storage fast of type iscsidirect" + cant + "\n" + sys + "\n" +
				"scsi1 (fast:vm-9002-disk-1) is on storage fast of type iscsidirect" + cant + "\n" +
				"unused0 (fast:vm-9002-disk-7) is on storage fast of type iscsidirect" + cant,
		},
		"a storage that is not listed": {
			change:   func(_ *cluster.Wanted, _ *observe.Found, o *observe.Observation) { o.Storages = o.Storages[1:] },
			recreate: "virtio3 (bulk:9002/vm-9002-disk-2.raw) is on storage bulk, which Proxmox does not list: grant the token Datastore.Audit there",
		},
		"a system disk with a model": both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.VM.Config["ide1"] = "fast:vm-9002-disk-0,serial=sys,size=10G,model=ACME"
			delete(f.VM.Config, "scsi0")
		}, "the system disk ide1 has the option model=, which the SCSI drive that it is parked as can't have: remove it"),
		"a holder's disk is not parked": {change: func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			w.Holder = 200
			f.VM.Config["scsi4"] = "san:vm-200-disk-0,serial=held"
		}},
	}
	for _, kind := range []string{"btrfs", "cifs", "dir", "glusterfs", "lvm", "lvmthin", "nfs", "rbd", "zfspool"} {
		cases[kind] = refusalCase{change: typed("bulk", kind)}
	}
	check(t, cases)
}

// Mounts, LVM and ZFS in Talos show which disk local data is on.
func TestDataProvenToBeElsewhereIsNoLoss(t *testing.T) {
	t.Parallel()
	data := func(places ...cluster.LocalData) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			for _, l := range places {
				l.Name, l.What = "pv/pvc-1", "PersistentVolume pvc-1 (claim default/db-0)"
				f.Local = append(f.Local, l)
			}
		}
	}
	members := func(all ...cluster.PoolMember) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			for i, m := range all {
				m.Device, m.Format = fmt.Sprintf("pv%d", i), cmp.Or(m.Format, cluster.FormatLVM)
				f.Machine.PoolMembers = append(f.Machine.PoolMembers, m)
			}
		}
	}
	onB, onSystem := cluster.PoolMember{Disks: []string{"sdb"}}, cluster.PoolMember{Disks: []string{"sda"}}
	lvm := cluster.LocalData{Format: cluster.FormatLVM}
	vg0 := cluster.LocalData{Format: cluster.FormatLVM, Group: "vg0"}
	of := func(m cluster.PoolMember, group string) cluster.PoolMember { m.Group = group; return m }
	mounted := func(disk, label, at string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return volume(cluster.Volume{Device: disk + "9", Disk: disk, Label: label, Phase: "ready", Mount: at})
	}
	share := func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
		f.Machine.VolumeStatuses = append(f.Machine.VolumeStatuses, cluster.VolumeStatus{ID: "x-share", Type: cluster.ExternalVolume, Phase: "ready", Mount: "/var/mnt/share"})
	}
	const what = "PersistentVolume pvc-1 (claim default/db-0)"
	pv := wouldBeLost(what, "pv/pvc-1")
	check(t, map[string]refusalCase{
		"on a user volume that is a whole disk":   {change: inTurn(volume(cluster.Volume{Device: "sdb", Disk: "sdb", Mount: "/var/mnt/big"}), localAt("/var/mnt/big/pvc-1"))},
		"on an existing volume of another disk":   {change: inTurn(mounted("sdb", "old", "/var/mnt/old"), localAt("/var/mnt/old"))},
		"on a user disk of machine.disks":         {change: inTurn(mounted("sdb", "", "/var/lib/extra"), localAt("/var/lib/extra/pvc-1"))},
		"in a directory of the VM's host":         {change: inTurn(share, localAt("/var/mnt/share/db"))},
		"beside that directory":                   both(inTurn(share, localAt("/var/mnt/shared")), pv),
		"beside such a mount":                     both(inTurn(mounted("sdb", "", "/var/lib/extra"), localAt("/var/lib/extra2")), pv),
		"LOG on the system disk, all else is not": both(inTurn(ephemeralOn("sdb"), mounted("sda", "LOG", "/var/log"), localAt("/var/log/a")), pv),
		"on the other one, beside LOG":            {change: inTurn(ephemeralOn("sdb"), mounted("sda", "LOG", "/var/log"), localAt("/var/lib/a"))},
		"listed in two places, either is here":    both(data(cluster.LocalData{Path: "/var/mnt/data"}, cluster.LocalData{Path: "/var/a"}, cluster.LocalData{Path: "/var/b"}), pv),
		"listed in two places, neither is":        {change: data(cluster.LocalData{Path: "/var/mnt/data/a"}, cluster.LocalData{Path: "/var/mnt/data/b"})},

		"LVM that Talos does not show":                 both(data(lvm), pv),
		"LVM on another disk":                          {change: inTurn(members(onB), data(lvm))},
		"LVM on another disk, which group unknown":     {change: inTurn(members(onB), data(vg0))},
		"LVM on the system disk":                       both(inTurn(members(onSystem), data(lvm)), pv),
		"LVM on both":                                  both(inTurn(members(onB, onSystem), data(lvm)), pv),
		"LVM on both, groups unknown":                  both(inTurn(members(onB, onSystem), data(vg0)), pv),
		"another group on the system disk":             {change: inTurn(members(of(onB, "vg0"), of(onSystem, "vg1")), data(vg0))},
		"that group on the system disk":                both(inTurn(members(of(onB, "vg1"), of(onSystem, "vg0")), data(vg0)), pv),
		"a group on both":                              both(inTurn(members(of(onB, "vg0"), of(onSystem, "vg0")), data(vg0)), pv),
		"groups known, the volume's is not":            both(inTurn(members(of(onB, "vg0"), of(onSystem, "vg1")), data(lvm)), pv),
		"a group that Talos does not show":             both(inTurn(members(of(onB, "vg1")), data(vg0)), pv),
		"a physical volume on a file":                  both(inTurn(members(onB, cluster.PoolMember{}), data(lvm)), pv),
		"one that spans two disks":                     both(inTurn(members(cluster.PoolMember{Disks: []string{"sdb", "sda"}}), data(lvm)), pv),
		"ZFS, but LVM is on another disk":              both(inTurn(members(onB), data(cluster.LocalData{Format: cluster.FormatZFS})), pv),
		"ZFS on another disk":                          {change: inTurn(members(cluster.PoolMember{Disks: []string{"sdb"}, Format: cluster.FormatZFS}), data(cluster.LocalData{Format: cluster.FormatZFS, Group: "tank"}))},
		"a driver that says nothing":                   both(inTurn(members(onB), data(cluster.LocalData{})), pv),
		"place unknown, only Talos on the system disk": {change: inTurn(ephemeralOn("sdb"), data(cluster.LocalData{}))},
		"place unknown, machine does not answer":       both(inTurn(ephemeralOn("sdb"), func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) { f.Machine.Remembered = true }, data(cluster.LocalData{})), pv),
		"place unknown, other data on the system disk": both(inTurn(ephemeralOn("sdb"), volume(cluster.Volume{Device: "sda5", Disk: "sda", Label: "u-logs"}), data(cluster.LocalData{})), wouldBeLost("volume u-logs", "u-logs")+"\n"+pv),
	})
}

// volume adds a volume to what the machine shows.
func volume(v cluster.Volume) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
		f.Machine.Volumes = append(f.Machine.Volumes, v)
	}
}

// localAt is a local volume at that path of the node.
func localAt(path string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
		f.Local = []cluster.LocalData{{Name: "pv/pvc-1", What: "PersistentVolume pvc-1 (claim default/db-0)", Path: path}}
	}
}

// inTurn makes several changes.
func inTurn(changes ...func(*cluster.Wanted, *observe.Found, *observe.Observation)) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
		for _, change := range changes {
			change(w, f, o)
		}
	}
}

// ephemeralOn has nothing but EPHEMERAL, on each of those disks.
func ephemeralOn(disks ...string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
		f.Machine.Volumes = f.Machine.Volumes[:0:0]
		for _, disk := range disks {
			f.Machine.Volumes = append(f.Machine.Volumes, cluster.Volume{Device: disk + "1", Disk: disk, Label: "EPHEMERAL", Phase: "ready"})
		}
	}
}

// wouldBeLost is the refusal to lose some data.
func wouldBeLost(what, name string) string {
	return what + " is on the system disk and would be lost: move it to a disk of its own, or name " + name + " in nodes[].acceptLoss"
}

func TestReplacingTheOnlyDataIsImpossible(t *testing.T) {
	t.Parallel()
	accept := func(names ...string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) { w.AcceptLoss = names }
	}
	logs := volume(cluster.Volume{Device: "sda5", Disk: "sda", Label: "u-logs"})
	status := func(v cluster.VolumeStatus) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.VolumeStatuses = append(f.Machine.VolumeStatuses, v)
		}
	}
	existing := volume(cluster.Volume{ID: "e-old", Device: "sda5", Disk: "sda", Label: "scratch", Phase: "ready"})
	legacy := volume(cluster.Volume{ID: "/dev/sda-5", Device: "sda5", Disk: "sda", Phase: "ready"})
	directory := status(cluster.VolumeStatus{ID: "u-dir", Type: cluster.DirectoryVolume, Phase: "ready"})
	pv := wouldBeLost("PersistentVolume pvc-1 (claim default/db-0)", "pv/pvc-1")
	extension := func(name string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Extensions = append(f.Machine.Extensions, cluster.ExtensionEntry{Name: name, Version: "1.0.0"})
		}
	}
	tailscale := wouldBeLost("state of extension tailscale (its node key and login, /var/lib/tailscale)", "extension/tailscale")
	check(t, map[string]refusalCase{
		"an extension's state":                     both(extension("tailscale"), tailscale),
		"an extension's state, accepted":           {change: inTurn(extension("tailscale"), accept("extension/tailscale"))},
		"of zerotier":                              both(extension("zerotier"), wouldBeLost("state of extension zerotier (its identity, /var/lib/zerotier-one)", "extension/zerotier")),
		"of netbird":                               both(extension("netbird"), wouldBeLost("state of extension netbird (its key and login, /var/lib/netbird)", "extension/netbird")),
		"on EPHEMERAL elsewhere":                   {change: inTurn(ephemeralOn("sdb"), extension("tailscale"))},
		"an extension without state":               {change: extension("iscsi-tools")},
		"below the path of a volume that is gone":  both(inTurn(localAt("/var/mnt/data/pvc-1"), status(cluster.VolumeStatus{ID: "META", Type: cluster.PartitionVolume})), pv),
		"below the path of a volume":               {change: inTurn(localAt("/var/mnt/data/pvc-1"), status(cluster.VolumeStatus{ID: "u-data", Type: cluster.PartitionVolume, Phase: "ready", Location: "/dev/sdb1"}))},
		"below the path of a directory":            both(inTurn(localAt("/var/mnt/data/pvc-1"), status(cluster.VolumeStatus{ID: "u-data", Type: cluster.DirectoryVolume, Phase: "ready"})), wouldBeLost("volume u-data, a directory on EPHEMERAL,", "u-data")+"\n"+pv),
		"user volume":                              both(logs, wouldBeLost("volume u-logs", "u-logs")),
		"user volume, accepted":                    {change: inTurn(logs, accept("u-logs"))},
		"something else accepted":                  both(inTurn(logs, accept("logs", "u-data")), wouldBeLost("volume u-logs", "u-logs")),
		"an existing volume":                       both(existing, wouldBeLost("volume e-old", "e-old")),
		"an existing volume, by its label":         {change: inTurn(existing, accept("scratch"))},
		"of machine.disks":                         both(legacy, wouldBeLost("volume /dev/sda-5", "/dev/sda-5")),
		"of machine.disks, by its device":          {change: inTurn(legacy, accept("sda5"))},
		"a directory":                              both(directory, wouldBeLost("volume u-dir, a directory on EPHEMERAL,", "u-dir")),
		"a directory, accepted":                    {change: inTurn(directory, accept("u-dir"))},
		"a directory of Talos":                     {change: status(cluster.VolumeStatus{ID: "LOG", Type: cluster.DirectoryVolume, Phase: "ready"})},
		"of the VM's host":                         {change: status(cluster.VolumeStatus{ID: "x-share", Type: cluster.ExternalVolume, Phase: "ready"})},
		"raw volume":                               both(volume(cluster.Volume{Device: "sda5", Disk: "sda", Label: "r-osd"}), wouldBeLost("volume r-osd", "r-osd")),
		"a label of one's own":                     both(volume(cluster.Volume{Device: "sda5", Disk: "sda", Label: "mine"}), wouldBeLost("volume mine", "mine")),
		"no label at all":                          both(volume(cluster.Volume{Device: "sda5", Disk: "sda"}), wouldBeLost("partition sda5", "sda5")),
		"swap holds nothing":                       {change: volume(cluster.Volume{Device: "sda5", Disk: "sda", Label: "s-swap"})},
		"Talos' own volumes":                       {change: volume(cluster.Volume{Device: "sda5", Disk: "sda", Label: "KUBELET", Phase: "ready"})},
		"local data":                               both(localAt("/var/lib/rancher/pvc-1"), pv),
		"local data, accepted":                     {change: inTurn(localAt("/var/lib/rancher/pvc-1"), accept("pv/pvc-1"))},
		"local data without path":                  both(localAt(""), pv),
		"on a user volume of another disk":         {change: localAt("/var/mnt/data/pvc-1")},
		"on a user volume, not quite":              both(localAt("/var/mnt/data/../other/pvc-1"), pv),
		"on a user volume of the system disk":      both(inTurn(logs, localAt("/var/mnt/logs")), wouldBeLost("volume u-logs", "u-logs")+"\n"+pv),
		"on EPHEMERAL of another disk":             {change: inTurn(ephemeralOn("sdb"), localAt("/var/lib/x"))},
		"on an EPHEMERAL that Talos does not show": both(inTurn(ephemeralOn(), localAt("/var/lib/x")), pv),
		"on one of two EPHEMERALs, none is known":  both(inTurn(ephemeralOn("sda", "sdb"), localAt("/var/lib/x")), pv+"\nthe label EPHEMERAL is there twice, on sda and on sdb: find out which one is in use, and give the other one another label"),
	})
}

func TestReplacingUnderEncryptionIsImpossible(t *testing.T) {
	t.Parallel()
	encrypted := func(e cluster.Encryption) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Encryption = []cluster.Encryption{e}
		}
	}
	locked := func(volume string) string {
		return "volume " + volume + " is encrypted with lockToState and would be unreadable once STATE is gone: " +
			"add a key without lockToState and remove that one, or use in-place"
	}
	tpm := cluster.Encryption{Volume: "u-data", Keys: []string{"static", "tpm"}}
	check(t, map[string]refusalCase{
		"lockToState on a persistent disk":                 both(encrypted(cluster.Encryption{Volume: "u-data", Keys: []string{"nodeID"}, LockToState: true}), locked("u-data")),
		"lockToState on a volume that Talos does not show": both(encrypted(cluster.Encryption{Volume: "u-gone", LockToState: true}), locked("u-gone")),
		"lockToState on the system disk":                   {change: encrypted(cluster.Encryption{Volume: "EPHEMERAL", LockToState: true})},
		"lockToState on another EPHEMERAL": both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Volumes[3].Disk = "sdb"
			f.Machine.Encryption = []cluster.Encryption{{Volume: "EPHEMERAL", LockToState: true}}
		}, locked("EPHEMERAL")),
		"node ID": {change: encrypted(cluster.Encryption{Volume: "u-data", Keys: []string{"nodeID"}})},
		"TPM without its state": both(encrypted(tpm), "volume u-data is encrypted with a TPM key, but the VM has no tpmstate0 that recast could keep: "+
			"add another key and remove that one, or use in-place"),
		"TPM with its state": {change: func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Encryption = []cluster.Encryption{tpm}
			f.VM.Config["tpmstate0"] = "fast:vm-9002-disk-8,size=4M,version=v2.0"
		}},
	})
}

func TestReplacingBesideTalosLabelsIsImpossible(t *testing.T) {
	t.Parallel()
	stale := func(disk, label, device string) string {
		return disk + " carries a " + label + " partition (" + device + ") that Talos does not use now and might use then: "
	}
	const (
		drop    = "delete that partition"
		relabel = "give that partition another label, which keeps what is on it"
	)
	directory := func(id string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.VolumeStatuses = append(f.Machine.VolumeStatuses, cluster.VolumeStatus{ID: id, Type: cluster.DirectoryVolume, Phase: "ready"})
		}
	}
	twice := func(label string) string {
		return "the label " + label + " is there twice, on sda and on sdb: Talos uses the one on sda: give the other one another label"
	}
	check(t, map[string]refusalCase{
		"META": both(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "META"}),
			"sdb carries a META partition (sdb2): the boot ISO would take Talos for installed and halt: delete that partition\n"+twice("META")),
		"STATE": both(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "STATE"}), stale("sdb", "STATE", "sdb2")+drop+"\n"+twice("STATE")),
		"a second EPHEMERAL": both(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "EPHEMERAL"}),
			stale("sdb", "EPHEMERAL", "sdb2")+relabel+"\n"+twice("EPHEMERAL")),
		"an ETCD that Talos does not use":    both(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "ETCD"}), stale("sdb", "ETCD", "sdb2")+relabel),
		"an ETCD whose document was dropped": {change: inTurn(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "ETCD"}), directory("ETCD"))},
		"one that the next file uses": both(inTurn(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "ETCD"}), directory("ETCD"), func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.File = &cluster.FoundFile{Volumes: []cluster.ConfigVolume{{ID: "ETCD", Type: cluster.PartitionVolume}}}
		}), stale("sdb", "ETCD", "sdb2")+relabel),
		"another's is a directory":       both(inTurn(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "ETCD"}), directory("CRI")), stale("sdb", "ETCD", "sdb2")+relabel),
		"an ETCD that it uses":           {change: volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "ETCD", Phase: "ready"})},
		"EPHEMERAL on a persistent disk": {change: func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) { f.Machine.Volumes[3].Disk = "sdb" }},
		"a user volume twice": both(volume(cluster.Volume{Device: "sdc1", Disk: "sdc", Label: "u-data"}),
			"the label u-data is there twice, on sdb and on sdc: Talos uses the one on sdb: give the other one another label"),
		"a copy of the system disk's STATE": both(inTurn(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Volumes[2].PartitionUUID = "p-state"
		}, volume(cluster.Volume{Device: "sdb3", Disk: "sdb", Label: "STATE", PartitionUUID: "p-state"})),
			stale("sdb", "STATE", "sdb3")+"it is the same as sda3, so one disk is a copy of the other: find out which, and take the copy out of the VM while that is off\n"+twice("STATE")),
		"a META in a pool": both(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "META", Format: cluster.FormatLVM}),
			"sdb carries a META partition (sdb2): the boot ISO would take Talos for installed and halt: something uses it: find out what before you change it\n"+twice("META")),
	})
}

func TestAnotherArchitecture(t *testing.T) {
	t.Parallel()
	const (
		machineText = "the images are for arm64, and the machine is amd64: set images.arch to amd64, then recast lock"
		vmText      = "the images are for amd64, and the VM is arch=aarch64: set images.arch to arm64, then recast lock"
		rootText    = "its setting arch can only be written by root@pam: use a resource mapping where there is one, or reimage"
	)
	requireFits(t, map[string]fit{
		"the same": {},
		"it says nothing": {change: edits{func(_ *cluster.Wanted, f *observe.Found) {
			f.Machine.Arch, f.Machine.Platform, f.Machine.SecureBoot, f.Machine.BootEntry = "", "", nil, ""
		}}},
		"another architecture": {change: edits{func(w *cluster.Wanted, _ *observe.Found) { w.Build.Arch = "arm64" }}, all: []string{machineText}},
		"the VM's architecture": {
			change: edits{func(_ *cluster.Wanted, f *observe.Found) { f.Machine.Arch = "" }, setting("arch", "aarch64")},
			all:    []string{vmText}, also: map[cluster.Strategy][]string{cluster.Recreate: {rootText}},
		},
		"ARM throughout": {
			change: edits{func(w *cluster.Wanted, f *observe.Found) { w.Build.Arch, f.Machine.Arch = "arm64", "arm64" }, setting("arch", "aarch64")},
			also:   map[cluster.Strategy][]string{cluster.Recreate: {rootText}},
		},
		"ARM by its host": {change: edits{func(w *cluster.Wanted, f *observe.Found) { w.Build.Arch, f.Machine.Arch = "arm64", "arm64" }}},
	})
}

func TestAnotherPlatform(t *testing.T) {
	t.Parallel()
	const (
		filesText   = "the VM has cicustom (network=local:snippets/n.yaml), whose content recast can't read: remove it, or use reimage"
		grubText    = "systemd-boot did not boot it, and with GRUB in-place keeps platform nocloud: use recreate or reimage, or keep the platform (images.platform)"
		networkNote = "platform nocloud → metal: network settings that are in neither its machine configuration nor DHCP will change"
	)
	address := func(of string) []string {
		return []string{"the VM's cloud-init drive gives a fixed address (" + of + "), which platforms nocloud and metal do not both read: keep platform nocloud (images.platform), or have DHCP give the node its address and remove that"}
	}
	metal := func(w *cluster.Wanted, _ *observe.Found) { w.Build.Platform = "metal" }
	requireFits(t, map[string]fit{
		"another platform":                 {change: edits{metal}, notes: []string{networkNote}},
		"another platform, GRUB":           {change: edits{metal, func(_ *cluster.Wanted, f *observe.Found) { f.Machine.BootEntry = "" }}, also: map[cluster.Strategy][]string{cluster.InPlace: {grubText}}, notes: []string{networkNote}},
		"another platform, DHCP":           {change: edits{metal, setting("ipconfig0", "ip=dhcp,ip6=auto")}, notes: []string{networkNote}},
		"another platform, fixed address":  {change: edits{metal, setting("ipconfig1", "gw=10.0.0.1,ip=10.0.0.2/24")}, all: address("ipconfig1: gw=10.0.0.1,ip=10.0.0.2/24")},
		"another platform, fixed IPv6":     {change: edits{metal, setting("ipconfig0", "ip6=fd00::2/64")}, all: address("ipconfig0: ip6=fd00::2/64")},
		"another platform, network file":   {change: edits{metal, setting("cicustom", "network=local:snippets/n.yaml")}, all: address("cicustom: network=local:snippets/n.yaml"), also: map[cluster.Strategy][]string{cluster.Recreate: {filesText}}},
		"another platform, no drive":       {change: edits{metal, setting("ipconfig0", "ip=10.0.0.2/24"), func(_ *cluster.Wanted, f *observe.Found) { delete(f.VM.Config, "ide0") }}, notes: []string{networkNote}},
		"the same platform, fixed address": {change: edits{setting("ipconfig0", "ip=10.0.0.2/24")}},
	})
}

func TestAnotherSecureBoot(t *testing.T) {
	t.Parallel()
	const (
		signText  = "its firmware boots only what is signed (Secure Boot), and the images are not: set images.secureBoot to true, then recast lock, or turn Secure Boot off in its firmware first"
		enrolText = "Secure Boot is not on, and in-place enrols no keys: use recreate or reimage, whose boot ISO does"
		enrolNote = "the boot ISO enrols its keys in the VM's firmware, which then boots signed systems only: the present one can't be put back if it is not signed"
	)
	lacks := func(what string) []string {
		return []string{"Secure Boot needs bios=ovmf and an efidisk0 with efitype=4m and without keys of others (pre-enrolled-keys=0), but " + what + ": change that, or set images.secureBoot to false, then recast lock"}
	}
	secure := func(w *cluster.Wanted, _ *observe.Found) { w.Build.SecureBoot = true }
	secured := func(_ *cluster.Wanted, f *observe.Found) { f.Machine.SecureBoot = new(true) }
	requireFits(t, map[string]fit{
		"Secure Boot throughout":            {change: edits{secure, secured, setting("efidisk0", "fast:vm-9002-disk-3,efitype=4m,pre-enrolled-keys=1")}},
		"no longer Secure Boot":             {change: edits{secured}, all: []string{signText}},
		"Secure Boot to come":               {change: edits{secure}, also: map[cluster.Strategy][]string{cluster.InPlace: {enrolText}}, notes: []string{enrolNote}},
		"Secure Boot, it does not say":      {change: edits{secure, func(_ *cluster.Wanted, f *observe.Found) { f.Machine.SecureBoot = nil }}, also: map[cluster.Strategy][]string{cluster.InPlace: {enrolText}}, notes: []string{enrolNote}},
		"Secure Boot, SeaBIOS":              {change: edits{secure, setting("bios", "seabios")}, all: lacks("the VM has SeaBIOS"), also: map[cluster.Strategy][]string{cluster.InPlace: {enrolText}}},
		"Secure Boot, nothing to keep keys": {change: edits{secure, func(_ *cluster.Wanted, f *observe.Found) { delete(f.VM.Config, "efidisk0") }}, all: lacks("the VM has no efidisk0"), also: map[cluster.Strategy][]string{cluster.InPlace: {enrolText}}},
		"Secure Boot, 2 MB":                 {change: edits{secure, setting("efidisk0", "fast:vm-9002-disk-3,size=128K")}, all: lacks("its efidisk0 has another efitype"), also: map[cluster.Strategy][]string{cluster.InPlace: {enrolText}}},
		"Secure Boot, keys of others":       {change: edits{secure, setting("efidisk0", "fast:vm-9002-disk-3,efitype=4m,pre-enrolled-keys=1")}, all: lacks("its efidisk0 has pre-enrolled-keys=1"), also: map[cluster.Strategy][]string{cluster.InPlace: {enrolText}}},
	})
}

func TestUnsupportedWay(t *testing.T) {
	t.Parallel()
	way := []string{"not from there", "not with that"}
	change := func(_ *cluster.Wanted, f *observe.Found) { f.Unsupported = way }
	requireFits(t, map[string]fit{"Talos does not support it": {change: edits{change}, all: way}})
	w, f, _ := staleNode()
	change(&w, &f)
	must.Equal(t, "notes of the drift", way, observe.Diff(w, f, clustertest.Past).Notes)
}

type edits []func(*cluster.Wanted, *observe.Found)

// fit lists the obstacles to a wanted image after some changes to a node that it fits.
type fit struct {
	change edits
	all    []string // against every strategy
	also   map[cluster.Strategy][]string
	notes  []string // of those that are possible
}

// fitting is a node whose machine reports all that an image is made for, and an image that fits it.
func fitting() (cluster.Wanted, observe.Found, observe.Observation) {
	w, f, o := staleNode()
	w.Build.Arch, w.Build.Platform = "amd64", "nocloud"
	f.Machine.Arch, f.Machine.Platform, f.Machine.SecureBoot = "amd64", "nocloud", new(false)
	f.Machine.BootEntry = "talos-v1.13.9.efi"
	f.VM.Config["bios"], f.VM.Config["efidisk0"] = "ovmf", "fast:vm-9002-disk-3,efitype=4m,pre-enrolled-keys=0,size=528K"
	return w, f, o
}

func requireFits(t *testing.T, cases map[string]fit) {
	t.Helper()
	must.Each(t, cases, func(t *testing.T, tc fit) {
		for _, s := range cluster.Strategies {
			w, f, o := fitting()
			w.Strategy = s
			for _, change := range tc.change {
				change(&w, &f)
			}
			want := Decision{Strategy: s, Why: string(s) + ": as configured", Refused: append(append([]string(nil), tc.all...), tc.also[s]...)}
			if len(want.Refused) == 0 {
				want.Notes = tc.notes
			}
			if s == cluster.Recreate {
				want.ToRecreate = inWords(want.Refused)
			}
			must.Equal(t, string(s), want, judge(w, f, o))
		}
	})
}

func setting(key, value string) func(*cluster.Wanted, *observe.Found) {
	return func(_ *cluster.Wanted, f *observe.Found) { f.VM.Config[key] = value }
}

func TestKernelArgumentsAreNotLostUnsaid(t *testing.T) {
	t.Parallel()
	machine := func(bios, talos, entry, config, cmdline string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			w.Schematic = "storage"
			f.Machine.TalosVersion, f.Machine.BootEntry = talos, entry
			f.Machine.Configs.Active = cluster.Secret("machine:\n  install: {" + config + "}\n")
			f.Machine.Cmdline = cluster.Secret(cmdline)
			if bios != "" {
				f.VM.Config["bios"] = bios
			}
		}
	}
	const (
		named = "grubUseUKICmdline: false, extraKernelArgs: [net.ifnames=0, quiet]"
		runs  = "talos.platform=metal net.ifnames=0 console=tty0"
		put   = "add it to customization.extraKernelArgs of schematic storage and run recast lock --update, or name kernel-arg/net.ifnames=0 in nodes[].acceptLoss"
		lost  = "its kernel has net.ifnames=0 from machine.install.extraKernelArgs, and the next one would not have it "
		boot  = lost + "(systemd-boot takes only the image's): " + put
		api   = lost + "(the upgrade API of Talos 1.13 and later passes none to GRUB: talos#13967): " + put
	)
	accepts := func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) {
		w.AcceptLoss = []string{"kernel-arg/net.ifnames=0"}
	}
	image := func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) {
		w.Build.KernelArgs = []string{"net.ifnames=0"}
	}
	otherwise := func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) {
		w.Build.KernelArgs = []string{"console=ttyS0", "mitigations=auto"}
	}
	check(t, map[string]refusalCase{
		"GRUB, in place since 1.13":           {change: machine("", "v1.13.9", "", named, runs), inPlace: api},
		"GRUB, in place by the old API":       {change: machine("", "v1.12.6", "", named, runs)},
		"GRUB with UEFI, which gives that up": {change: machine("ovmf", "v1.13.9", "", named, runs), recreate: boot, reimage: boot, inPlace: api},
		"systemd-boot never gave it":          {change: machine("ovmf", "v1.13.9", "talos-v1.13.9.efi", named, "talos.platform=metal")},
		"several in one entry":                {change: machine("", "v1.13.9", "", "extraKernelArgs: [' net.ifnames=0 quiet']", runs), inPlace: api},
		"one that the image has otherwise":    {change: inTurn(machine("", "v1.13.9", "", "extraKernelArgs: [mitigations=off]", "mitigations=off console=tty0"), otherwise)},
		"one that counts several times":       {change: inTurn(machine("", "v1.13.9", "", "extraKernelArgs: [console=ttyS1]", "console=ttyS0 console=ttyS1"), otherwise), inPlace: strings.ReplaceAll(api, "net.ifnames=0", "console=ttyS1")},
		"accepted":                            {change: inTurn(machine("", "v1.13.9", "", named, runs), accepts)},
		"in the schematic":                    {change: inTurn(machine("ovmf", "v1.13.9", "", named, runs), image)},
		"none":                                {change: machine("", "v1.13.9", "", "disk: /dev/sda", runs)},
	})
}

func TestKernelArgumentsThatTakeNoEffectAreTold(t *testing.T) {
	t.Parallel()
	const (
		names  = "its configuration names the kernel arguments net.ifnames=0 talos.config (machine.install.extraKernelArgs), which its kernel does not have: "
		put    = "; customization.extraKernelArgs of its schematic does it"
		loses  = "its kernel has quiet from machine.install.extraKernelArgs, and its next one would not after "
		uefi   = "(systemd-boot takes only the image's)"
		image  = "(with grubUseUKICmdline, GRUB takes only the image's)"
		api    = "(the upgrade API of Talos 1.13 and later passes none to GRUB: talos#13967)"
		config = "extraKernelArgs: [net.ifnames=0, quiet, talos.config=https://me:secret@host]"
	)
	for name, c := range map[string]struct {
		bios, config, cmdline, talos string
		image                        string // kernel arguments of the running one's schematic
		want                         []string
	}{
		"systemd-boot": {"ovmf", config, "quiet", "v1.13.9", "", []string{
			names + "never with systemd-boot, with which the VM's firmware boots each new system" + put, loses + "recreate " + uefi + ", reimage " + uefi + ", in-place " + api,
		}},
		"GRUB": {"", config, "quiet", "v1.13.9", "", []string{
			names + "at a recreate or reimage by ISO at the earliest, without grubUseUKICmdline: true: the upgrade API of Talos 1.13 and later passes none to GRUB (talos#13967)" + put,
			loses + "in-place " + api,
		}},
		"GRUB, by the old API": {"", config, "quiet", "v1.12.6", "", []string{names + "at the next upgrade, recreate or reimage, without grubUseUKICmdline: true"}},
		"GRUB, by the image": {"", "grubUseUKICmdline: true, " + config, "quiet", "v1.13.9", "", []string{
			names + "never with grubUseUKICmdline: true, with which GRUB takes the image's" + put, loses + "recreate " + image + ", reimage " + image + ", in-place " + image,
		}},
		"the image has it":     {"", "extraKernelArgs: [quiet]", "quiet", "v1.13.9", "quiet", nil}, // what it loses is compared with the lock
		"none":                 {"", "disk: /dev/sda", "quiet", "v1.13.9", "", nil},
		"no command line read": {"", config, "", "v1.13.9", "", nil},
	} {
		m := cluster.Machine{RunningSystem: cluster.RunningSystem{TalosVersion: c.talos, Cmdline: cluster.Secret(c.cmdline)}}
		m.Schematic.YAML = "customization: {extraKernelArgs: ['" + c.image + "']}"
		m.Configs.Active = cluster.Secret("machine:\n  install: {" + c.config + "}\n")
		vm := cluster.VM{Config: map[string]string{"bios": c.bios}}
		must.Equal(t, name, c.want, cluster.Wanted{}.TellArgs(vm, m))
	}
}

// The exchange itself sets two keys.
func TestEverySettingIsListed(t *testing.T) {
	t.Parallel()
	for _, key := range slices.Concat(cluster.RootOnly, carried, hidden, cluster.NeverCarried) {
		if _, listed := vmsetting.Every[key]; !listed && !slices.Contains([]string{"boot", "description", "digest", "onboot"}, key) {
			t.Errorf("%s has no sample", key)
		}
	}
	for _, list := range [][]string{cluster.RootOnly, carried, cluster.CarriedBuses, hidden} {
		must.Hold(t, slices.IsSorted(list), "the lists are compared by eye with Proxmox's source: keep them sorted: %q", list)
	}
}

// TestEverySettingIsJudged: a setting that a new VM can't have is an obstacle before anything is changed.
func TestEverySettingIsJudged(t *testing.T) {
	t.Parallel()
	for key, setting := range vmsetting.Every {
		w, f, o := staleNode()
		w.Strategy = cluster.Recreate
		if setting.Value != "" {
			f.VM.Config[key] = setting.Value
		}
		if refused := judge(w, f, o).Refused; (len(refused) > 0) != (setting.Fate == vmsetting.Never) {
			t.Errorf("%s=%s: refused %q, want it %s", key, setting.Value, refused, setting.Fate)
		}
	}
}

// On a storage that is not shared, a volid means another volume on every host.
func TestVolumesOfOtherHosts(t *testing.T) {
	t.Parallel()
	otherVM := func(host string, shared bool) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, _ *observe.Found, o *observe.Observation) {
			o.VMs[1].Host, o.VMs[1].Config["scsi5"] = host, "fast:vm-9002-disk-1,serial=data"
			o.Storages[1].Shared = shared
		}
	}
	holder := func(host string, shared bool) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
			w.Holder, f.VM.Config["scsi4"] = 200, "fast:vm-200-disk-0,serial=held"
			o.VMs[1].Host, o.VMs[1].Config["scsi1"] = host, "fast:vm-200-disk-0,serial=held"
			o.Storages[1].Shared = shared
		}
	}
	const (
		twice     = "the volume of scsi1 is also scsi5 of VM 200: qm set 200 --delete scsi5 keeps the volume"
		twiceAway = "the volume of scsi1 is also scsi5 of VM 200: qm set 200 --delete scsi5 (VM 200 is on pve2) keeps the volume"
		elsewhere = "scsi4 (fast:vm-200-disk-0) carries the number of its holder, VM 200, but that is on another host and storage fast is not shared: " +
			"what the holder has under that name is another volume. Reassign this one to VM 9002"
	)
	check(t, map[string]refusalCase{
		"a namesake on another host":            {change: otherVM("pve2", false)},
		"shared with a VM on another host":      all(otherVM("pve2", true), twiceAway),
		"shared with a VM on the same host":     all(otherVM("pve1", true), twice),
		"local, with a VM on the same host":     all(otherVM("pve1", false), twice),
		"a holder beside it":                    {change: holder("pve1", false)},
		"a holder elsewhere, on shared storage": {change: holder("pve2", true)},
		"a holder elsewhere, on local storage":  both(holder("pve2", false), elsewhere),
	})
}

// A machine that is off is judged by its record: a pool that was on another disk is still there,
// and one on the system disk is lost with it.
func TestPoolsAreRemembered(t *testing.T) {
	t.Parallel()
	was := cluster.Machine{SystemDisk: "sda", PoolMembers: []cluster.PoolMember{
		{Device: "sdb1", Disks: []string{"sdb"}, Format: cluster.FormatLVM, Group: "elsewhere"},
		{Device: "sda5", Disks: []string{"sda"}, Format: cluster.FormatLVM, Group: "here"},
		{Device: "loop1", Format: cluster.FormatLVM, Group: "nobody-knows"},
	}}
	packed := must.Get(parking.Memory{VM: cluster.VM{ID: 101}, Pools: was.Pools()}.Pack())(t)
	mem := must.Get(parking.UnpackMemory(packed))(t)
	off := Candidate{Machine: mem.Machine()}
	for group, lost := range map[string]bool{"elsewhere": false, "here": true, "nobody-knows": true, "never-seen": true} {
		d := cluster.LocalData{Name: "linstor/" + group, Format: cluster.FormatLVM, Group: group}
		must.Equal(t, "volume group "+group+" goes with the system disk", lost, onSystemDisk(off, d))
	}
}

func TestBlankMachineWithoutItsAddress(t *testing.T) {
	t.Parallel()
	const metal = "its address 10.0.0.31 (eth0) is in its machine configuration alone, so a blank machine would not have it: " +
		"set images.platform to nocloud, then recast lock: recast then has the VM's cloud-init drive tell the blank machine its address; " +
		"or reserve it for MAC BC:24:11:00:00:31 in DHCP and have the machine configuration say dhcp: true there; or use in-place"
	check(t, map[string]refusalCase{
		"static on metal": both(func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			w.Build.Platform = "metal"
			observetest.Static(f)
		}, metal),
		"static on nocloud, no drive": both(func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			w.Build.Platform = "nocloud"
			observetest.Static(f)
			delete(f.VM.Config, "ide0")
		}, "its address 10.0.0.31 (eth0) is in its machine configuration alone, so a blank machine would not have it: "+
			"give the VM a cloud-init drive (qm set 9002 --scsi30 fast:cloudinit); "+
			"or reserve it for MAC BC:24:11:00:00:31 in DHCP and have the machine configuration say dhcp: true there; or use in-place"),
		"nothing shown": both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) { f.Machine.Addresses = nil },
			"Talos does not show where its address 10.0.0.31 comes from (talosctl -n 10.0.0.31 get addresses), so whether a blank machine would have it can't be determined: use in-place"),
	})
}
