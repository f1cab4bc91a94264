package strategy

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
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
			"its boot order names net0, which the VM has not: set the boot order again\nits boot order names scsi9, which the VM has not: set the boot order again"),
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

// everywhere forbids every strategy.
func everywhere(change func(*cluster.Wanted, *observe.Found, *observe.Observation), text string) refusalCase {
	return refusalCase{change: change, recreate: text, reimage: text, inPlace: text}
}

func check(t *testing.T, cases map[string]refusalCase) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for s, want := range map[cluster.Strategy]string{cluster.Recreate: tc.recreate, cluster.Reimage: tc.reimage, cluster.InPlace: tc.inPlace} {
				w, f, o := staleNode()
				w.Strategy = s
				tc.change(&w, &f, &o)
				if diff := cmp.Diff(want, strings.Join(judge(w, f, o).Refused, "\n")); diff != "" {
					t.Errorf("%s:\n%s", s, diff)
				}
			}
		})
	}
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
