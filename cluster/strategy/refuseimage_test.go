package strategy

import (
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
		networkNote = "platform nocloud → metal: network settings that are in neither its machine configuration nor DHCP will be others"
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
		boot  = lost + "(systemd-boot takes only those of the image): " + put
		api   = lost + "(the upgrade API of Talos 1.13 and later hands none to GRUB: talos#13967): " + put
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
		uefi   = "(systemd-boot takes only those of the image)"
		image  = "(with grubUseUKICmdline, GRUB takes only those of the image)"
		api    = "(the upgrade API of Talos 1.13 and later hands none to GRUB: talos#13967)"
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
			names + "at a recreate or reimage by ISO at the earliest, without grubUseUKICmdline: true: the upgrade API of Talos 1.13 and later hands none to GRUB (talos#13967)" + put,
			loses + "in-place " + api,
		}},
		"GRUB, by the old API": {"", config, "quiet", "v1.12.6", "", []string{names + "at the next upgrade, recreate or reimage, without grubUseUKICmdline: true"}},
		"GRUB, by the image": {"", "grubUseUKICmdline: true, " + config, "quiet", "v1.13.9", "", []string{
			names + "never with grubUseUKICmdline: true, with which GRUB takes those of the image" + put, loses + "recreate " + image + ", reimage " + image + ", in-place " + image,
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
		if !slices.IsSorted(list) {
			t.Errorf("the lists are compared by eye with Proxmox's source: keep them sorted: %q", list)
		}
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
