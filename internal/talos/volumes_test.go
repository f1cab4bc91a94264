package talos

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/storage"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
)

func disk(id string, spec block.DiskSpec) *block.Disk {
	d := block.NewDisk(block.NamespaceName, id)
	*d.TypedSpec() = spec
	return d
}

func found(id string, spec block.DiscoveredVolumeSpec) *block.DiscoveredVolume {
	d := block.NewDiscoveredVolume(block.NamespaceName, id)
	*d.TypedSpec() = spec
	d.TypedSpec().DevPath = "/dev/" + id
	return d
}

func volumeStatus(id string, phase block.VolumePhase, location string) *block.VolumeStatus {
	s := block.NewVolumeStatus(block.NamespaceName, id)
	s.TypedSpec().Type, s.TypedSpec().Phase, s.TypedSpec().Location = block.VolumeTypePartition, phase, location
	return s
}

// A node with everything that a real one has: an encrypted STATE, EPHEMERAL on a data disk and a stale one elsewhere, a
// filesystem without partition, volumes from the network, and devices that are not drives.
func TestBlockView(t *testing.T) {
	t.Parallel()
	v := blockView{
		disks: []*block.Disk{
			disk("vdb", block.DiskSpec{Serial: "data", Size: 20}), disk("sda", block.DiskSpec{WWID: "naa.3", Size: 10, BusPath: "/pci/2:0:0:0"}),
			disk("sdc", block.DiskSpec{Size: 5}), disk("sdd", block.DiskSpec{Size: 6}), disk("sde", block.DiskSpec{Size: 7}), disk("sdf", block.DiskSpec{Size: 8}),
			disk("sr0", block.DiskSpec{CDROM: true}), disk("loop0", block.DiskSpec{Readonly: true}), disk("loop1", block.DiskSpec{}),
			disk("dm-0", block.DiskSpec{SecondaryDisks: []string{"sda"}}), disk("rbd0", block.DiskSpec{Size: 9}), disk("sdz", block.DiskSpec{Readonly: true}),
		},
		volumes: []*block.DiscoveredVolume{
			found("sda", block.DiscoveredVolumeSpec{Name: "gpt", UUID: "gpt-a"}), found("vdb", block.DiscoveredVolumeSpec{Name: "gpt"}),
			found("sda1", block.DiscoveredVolumeSpec{Parent: "sda", Name: "luks", PartitionLabel: "STATE", PartitionUUID: "p1", UUID: "luks1"}),
			found("vdb1", block.DiscoveredVolumeSpec{Parent: "vdb", Name: "xfs", PartitionLabel: "EPHEMERAL", PartitionUUID: "p2", UUID: "fs2"}),
			found("sdf1", block.DiscoveredVolumeSpec{Parent: "sdf", Name: "xfs", PartitionLabel: "EPHEMERAL", PartitionUUID: "p3", UUID: "fs3"}),
			found("vdb2", block.DiscoveredVolumeSpec{Parent: "vdb", PartitionLabel: "u-new", PartitionUUID: "p4"}),
			found("sdc", block.DiscoveredVolumeSpec{Name: "xfs", UUID: "fs5", Label: "data"}), found("sdd", block.DiscoveredVolumeSpec{}), found("sdf", block.DiscoveredVolumeSpec{}),
			found("sr0", block.DiscoveredVolumeSpec{Name: "iso9660"}), found("dm-0", block.DiscoveredVolumeSpec{Name: "xfs", UUID: "fs6"}),
			found("rbd0", block.DiscoveredVolumeSpec{Name: "ext4", UUID: "fs7"}), found("loop0", block.DiscoveredVolumeSpec{Name: "squashfs"}),
		},
		statuses: []*block.VolumeStatus{
			volumeStatus("STATE", block.VolumePhaseReady, "/dev/sda1"), volumeStatus("EPHEMERAL", block.VolumePhaseReady, "/dev/vdb1"),
			volumeStatus("u-new", block.VolumePhaseWaiting, ""), volumeStatus("META", block.VolumePhaseMissing, ""),
		},
	}
	wantDisks := []cluster.MachineDisk{
		{Device: "sda", WWID: "naa.3", BusPath: "/pci/2:0:0:0", SizeBytes: 10},
		{Device: "sdc", SizeBytes: 5},              // a filesystem
		{Device: "sdd", SizeBytes: 6, Blank: true}, // probed, and empty
		{Device: "sde", SizeBytes: 7},              // not probed
		{Device: "sdf", SizeBytes: 8},              // a partition
		{Device: "vdb", Serial: "data", SizeBytes: 20},
	}
	must.Equal(t, "disks", wantDisks, v.machineDisks())
	wantVolumes := []cluster.Volume{
		{ID: "STATE", Device: "sda1", Disk: "sda", Label: "STATE", PartitionUUID: "p1", FilesystemUUID: "luks1", Format: "luks", Phase: "ready"},
		{Device: "sdc", Disk: "sdc", FilesystemUUID: "fs5", FilesystemLabel: "data", Format: "xfs"},
		{Device: "sdf1", Disk: "sdf", Label: "EPHEMERAL", PartitionUUID: "p3", FilesystemUUID: "fs3", Format: "xfs"},
		{ID: "EPHEMERAL", Device: "vdb1", Disk: "vdb", Label: "EPHEMERAL", PartitionUUID: "p2", FilesystemUUID: "fs2", Format: "xfs", Phase: "ready"},
		{ID: "u-new", Device: "vdb2", Disk: "vdb", Label: "u-new", PartitionUUID: "p4", Phase: "waiting"},
	}
	must.Equal(t, "volumes", wantVolumes, v.machineVolumes())
}

// What Talos reports of LVM and ZFS, and of mount points.
func TestBlockViewOfPools(t *testing.T) {
	t.Parallel()
	uuid := func(n string) string { return "aaaaaa-bbbb-cccc-dddd-eeee-ffff-00000" + n }
	physical := func(id, group, uuid string) *storage.LVMPhysicalVolumeStatus {
		r := storage.NewLVMPhysicalVolumeStatus(storage.NamespaceName, id)
		r.TypedSpec().Device, r.TypedSpec().VGName, r.TypedSpec().UUID = "/dev/"+id, group, uuid
		return r
	}
	v := blockView{
		disks: []*block.Disk{
			disk("sda", block.DiskSpec{}), disk("sdb", block.DiskSpec{}), disk("sdc", block.DiskSpec{}), disk("loop3", block.DiskSpec{}),
			disk("dm-0", block.DiskSpec{SecondaryDisks: []string{"sdc"}}), disk("md0", block.DiskSpec{SecondaryDisks: []string{"sdb", "dm-0"}}),
			disk("dm-1", block.DiskSpec{SecondaryDisks: []string{"loop3"}}), disk("dm-2", block.DiskSpec{SecondaryDisks: []string{"dm-2"}}), disk("rbd0", block.DiskSpec{}),
		},
		volumes: []*block.DiscoveredVolume{
			found("sda", block.DiscoveredVolumeSpec{Name: "gpt"}), found("sda6", block.DiscoveredVolumeSpec{Parent: "sda", Name: "lvm2-pv", Label: uuid("1"), PartitionLabel: "r-lvm"}),
			found("sdb", block.DiscoveredVolumeSpec{Name: "lvm2-pv", Label: uuid("2")}), found("sdc1", block.DiscoveredVolumeSpec{Parent: "sdc", Name: "zfs", Label: "00bab10c"}),
			found("dm-0", block.DiscoveredVolumeSpec{Name: "lvm2-pv", Label: uuid("3")}), found("md0", block.DiscoveredVolumeSpec{Name: "zfs"}),
			found("dm-1", block.DiscoveredVolumeSpec{Name: "lvm2-pv", Label: uuid("4")}), found("dm-2", block.DiscoveredVolumeSpec{Name: "lvm2-pv"}),
			found("rbd0", block.DiscoveredVolumeSpec{Name: "lvm2-pv", Label: uuid("5")}), found("loop3", block.DiscoveredVolumeSpec{Name: "lvm2-pv", Label: uuid("6")}),
			found("dm-9", block.DiscoveredVolumeSpec{Name: "xfs"}),
		},
		physical: []*storage.LVMPhysicalVolumeStatus{physical("sda6", "vg0", uuid("1")), physical("mapper/x", "vg1", uuid("3")), physical("sdz", "vg1", uuid("7"))},
	}
	want := []cluster.PoolMember{
		{Device: "dm-0", Disks: []string{"sdc"}, Format: "lvm2-pv", Group: "vg1"},
		{Device: "dm-1", Format: "lvm2-pv"},
		{Device: "dm-2", Format: "lvm2-pv"},
		{Device: "loop3", Format: "lvm2-pv"},
		{Device: "md0", Disks: []string{"sdb", "sdc"}, Format: "zfs"},
		{Device: "sda6", Disks: []string{"sda"}, Format: "lvm2-pv", Group: "vg0"},
		{Device: "sdb", Disks: []string{"sdb"}, Format: "lvm2-pv"},
		{Device: "sdc1", Disks: []string{"sdc"}, Format: "zfs"},
		{Device: "sdz", Format: "lvm2-pv", Group: "vg1"},
	}
	must.Equal(t, "pools", want, v.poolMembers())
}

func TestBlockViewOfMounts(t *testing.T) {
	t.Parallel()
	type row struct {
		mount block.MountSpec
		want  string
	}
	must.Each(t, map[string]row{
		"EPHEMERAL":             {block.MountSpec{TargetPath: "/var"}, "/var"},
		"user volume":           {block.MountSpec{TargetPath: "data", ParentID: "/var/mnt"}, "/var/mnt/data"},
		"LOG":                   {block.MountSpec{TargetPath: "log", ParentID: "EPHEMERAL"}, "/var/log"},
		"machine.disks":         {block.MountSpec{TargetPath: "/var/lib/extra/"}, "/var/lib/extra"},
		"mounted nowhere":       {block.MountSpec{}, ""},
		"below an unknown one":  {block.MountSpec{TargetPath: "x", ParentID: "u-data"}, ""},
		"relative, and nowhere": {block.MountSpec{TargetPath: "x"}, ""},
	}, func(t *testing.T, tc row) {
		s := volumeStatus("v", block.VolumePhaseReady, "/dev/sdb1")
		s.TypedSpec().MountSpec = tc.mount
		v := blockView{
			disks:    []*block.Disk{disk("sdb", block.DiskSpec{})},
			volumes:  []*block.DiscoveredVolume{found("sdb1", block.DiscoveredVolumeSpec{Parent: "sdb", Name: "xfs"}), found("sdb2", block.DiscoveredVolumeSpec{Parent: "sdb", Name: "xfs"})},
			statuses: []*block.VolumeStatus{s},
		}
		got := v.machineVolumes()
		must.Equal(t, "mounted at", []string{tc.want, ""}, []string{got[0].Mount, got[1].Mount})
	})
}

// TestVolumeStatuses: volumes of every kind are known by ID and location. A partition whose volume is a directory now
// is not of Talos, whatever its label.
func TestVolumeStatuses(t *testing.T) {
	t.Parallel()
	status := func(id string, kind block.VolumeType, location string, mount block.MountSpec) *block.VolumeStatus {
		s := volumeStatus(id, block.VolumePhaseReady, location)
		s.TypedSpec().Type, s.TypedSpec().MountSpec = kind, mount
		return s
	}
	failed := volumeStatus("u-lost", block.VolumePhaseFailed, "")
	failed.TypedSpec().ErrorMessage = "no disks matched selector for volume"
	encrypted := status("r-secret", block.VolumeTypePartition, "/dev/sdc2", block.MountSpec{})
	encrypted.TypedSpec().EncryptionSlot = new(1)
	in := func(name string) block.MountSpec { return block.MountSpec{TargetPath: name, ParentID: "/var/mnt"} }
	v := blockView{
		disks: []*block.Disk{disk("sda", block.DiskSpec{}), disk("sdb", block.DiskSpec{}), disk("sdc", block.DiskSpec{}), disk("dm-0", block.DiskSpec{SecondaryDisks: []string{"sdc"}})},
		volumes: []*block.DiscoveredVolume{
			found("sda6", block.DiscoveredVolumeSpec{Parent: "sda", Name: "xfs", PartitionLabel: "ETCD"}),
			found("sdb", block.DiscoveredVolumeSpec{Name: "ext4", UUID: "b"}),
			found("sdc1", block.DiscoveredVolumeSpec{Parent: "sdc", Name: "xfs"}),
			found("sdc2", block.DiscoveredVolumeSpec{Parent: "sdc", Name: "luks", PartitionLabel: "r-secret"}),
		},
		statuses: []*block.VolumeStatus{
			status("ETCD", block.VolumeTypeDirectory, "", block.MountSpec{TargetPath: "etcd", ParentID: "/var/lib"}), status("/var/lib/cni", block.VolumeTypeDirectory, "", block.MountSpec{TargetPath: "cni"}),
			status("u-whole", block.VolumeTypeDisk, "/dev/sdb", in("whole")), status("u-dir", block.VolumeTypeDirectory, "", in("dir")),
			status("x-share", block.VolumeTypeExternal, "share0", in("share")), status("/run", block.VolumeTypeTmpfs, "", block.MountSpec{}),
			status("/dev/sdc-1", block.VolumeTypePartition, "/dev/sdc1", block.MountSpec{TargetPath: "mnt/old", ParentID: "EPHEMERAL"}), failed, encrypted,
		},
	}
	want := []cluster.VolumeStatus{
		{ID: "/dev/sdc-1", Type: "partition", Phase: "ready", Location: "/dev/sdc1", Disk: "sdc", Mount: "/var/mnt/old"},
		{ID: "ETCD", Type: "directory", Phase: "ready", Mount: "/var/lib/etcd"},
		{ID: "r-secret", Type: "partition", Phase: "ready", Location: "/dev/sdc2", Disk: "sdc", Slot: new(1)},
		{ID: "u-dir", Type: "directory", Phase: "ready", Mount: "/var/mnt/dir"},
		{ID: "u-lost", Type: "partition", Phase: "failed", Error: "no disks matched selector for volume"},
		{ID: "u-whole", Type: "disk", Phase: "ready", Location: "/dev/sdb", Disk: "sdb", Mount: "/var/mnt/whole"},
		{ID: "x-share", Type: "external", Phase: "ready", Location: "share0", Mount: "/var/mnt/share"},
	}
	must.Equal(t, "statuses", want, v.volumeStatuses())
	var ids []string
	for _, volume := range v.machineVolumes() {
		ids = append(ids, volume.Device+" "+volume.ID+" "+volume.Phase)
	}
	must.Equal(t, "volumes", []string{"sda6  ", "sdb u-whole ready", "sdc1 /dev/sdc-1 ready", "sdc2 r-secret ready"}, ids)
}

// selectingMachine has a system disk, two data disks, a CD and the image of its system.
func selectingMachine(system string) selectable {
	drive := func(id string, size uint64, symlink string) *block.Disk {
		return disk(id, block.DiskSpec{DevPath: "/dev/" + id, Size: size << 30, Transport: "virtio", Serial: "serial-" + id, Symlinks: []string{"/dev/disk/by-id/" + symlink}})
	}
	part := func(id, parent, label, format string) *block.DiscoveredVolume {
		return found(id, block.DiscoveredVolumeSpec{Parent: parent, ParentDevPath: "/dev/" + parent, PartitionLabel: label, Name: format})
	}
	return selectable{
		system: system,
		blockView: blockView{
			disks: []*block.Disk{
				disk("loop0", block.DiskSpec{DevPath: "/dev/loop0", Readonly: true, Size: 1 << 20}), disk("sr0", block.DiskSpec{DevPath: "/dev/sr0", CDROM: true, Size: 1 << 30}),
				drive("vda", 10, "a"), drive("vdb", 20, "b"), drive("vdc", 30, "c"),
			},
			volumes: []*block.DiscoveredVolume{
				found("vda", block.DiscoveredVolumeSpec{Name: "gpt"}), part("vda1", "vda", "EPHEMERAL", "xfs"), part("vdb1", "vdb", "backup", "xfs"),
				found("vdb", block.DiscoveredVolumeSpec{Name: "gpt"}), found("vdc", block.DiscoveredVolumeSpec{}),
			},
		},
	}
}

const (
	aSelector  = "kind: %s\nname: %s\nprovisioning: {diskSelector: {match: %q}, minSize: 1GiB}\n"
	aMember    = "kind: %s\nname: data\n%sprovisioning: {volumeSelector: {match: %q}}\n"
	anExisting = "kind: ExistingVolumeConfig\nname: data\ndiscovery: {volumeSelector: {match: %q}}\n"
	installing = "kind: UnattendedInstallConfig\ninstaller: {image: example.com/i}\nprovisioning: {diskSelector: {match: %q}}\n"
	inMain     = "machine: {type: worker, %s}\ncluster: {}\n"
)

// documentsThatSelect are all kinds of documents that select a disk, or something on one, with the volume's ID.
func documentsThatSelect(expr string) map[string]string {
	out := map[string]string{
		"u-data": fmt.Sprintf(aSelector, "UserVolumeConfig", "data", expr), "r-data": fmt.Sprintf(aSelector, "RawVolumeConfig", "data", expr),
		"s-data": fmt.Sprintf(aSelector, "SwapVolumeConfig", "data", expr),
	}
	for _, id := range []string{"EPHEMERAL", "ETCD", "CRI", "KUBELET", "LOG"} {
		out[id] = fmt.Sprintf(aSelector, "VolumeConfig", id, expr)
	}
	return out
}

func selectors(t *testing.T, document string, on selectable) []cluster.DiskSelector {
	t.Helper()
	text := mainDocument + "---\napiVersion: v1alpha1\n" + document
	if strings.HasPrefix(document, "machine:") {
		text = "version: v1alpha1\n" + document
	}
	cfg, _, err := loadKnown([]byte(text))
	must.Do(t, err)
	on.cfg = cfg
	var out []cluster.DiskSelector
	for _, s := range selectorsOf(cfg, "v1.14.1") {
		s.evaluate(on)
		out = append(out, s.DiskSelector)
	}
	return out
}

const mainDocument = "version: v1alpha1\nmachine: {type: worker}\ncluster: {}\n"

// TestSelectorsOfPartitions: Talos makes a partition on a disk that matches; before it knows its system disk, what needs
// that is unknown, but not what is plain without it.
func TestSelectorsOfPartitions(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]cluster.DiskSelector{
		`disk.transport == "nvme" && disk.size > 500u * GB`: {},
		`disk.serial == "serial-vdb"`:                       {Found: []string{"vdb"}},
		`!system_disk`:                                      {Found: []string{"vdb", "vdc"}},
		`disk.size > 1u * MB`:                               {Found: []string{"vda", "vdb", "vdc"}, System: "vda"},
		`system_disk`:                                       {Found: []string{"vda"}, System: "vda"},
		`disk.cdrom || disk.readonly`:                       {},
		`"/dev/disk/by-id/c" in disk.symlinks`:              {Found: []string{"vdc"}},
		`disk.size / 0u > 1u`:                               {Broken: "division by zero"},
	} {
		for id, document := range documentsThatSelect(expr) {
			got := selectors(t, document, selectingMachine("vda"))
			must.Hold(t, len(got) == 1 && got[0].ID == id && got[0].Kind == cluster.ForPartition && slices.Equal(got[0].Found, want.Found) && got[0].System == want.System && got[0].Unknown == "" && got[0].Broken == want.Broken,
				"%s, %s: %+v, want %+v", id, expr, got, want)
		}
	}
	for expr, unknown := range map[string]bool{`!system_disk`: true, `system_disk && disk.transport == "nvme"`: false, `disk.size > 1u * MB`: false} {
		for id, document := range documentsThatSelect(expr) {
			got := selectors(t, document, selectingMachine(""))
			must.Hold(t, (got[0].Unknown != "") == unknown && got[0].Broken == "", "%s, %s, before it is installed: %+v", id, expr, got)
		}
	}
}

// TestSelectorsOfOtherKinds: each kind is evaluated as Talos does it.
func TestSelectorsOfOtherKinds(t *testing.T) {
	t.Parallel()
	whole := func(expr string) string {
		return fmt.Sprintf("kind: UserVolumeConfig\nname: data\nvolumeType: disk\nprovisioning: {diskSelector: {match: %q}}\n", expr)
	}
	device := func(path string) string {
		return fmt.Sprintf(inMain, "disks: [{device: "+path+", partitions: [{size: 1GB, mountpoint: /var/mnt/a}]}]")
	}
	for name, tc := range map[string]struct {
		document string
		kind     cluster.SelectorKind
		found    []string
		system   string
		broken   string // part of it
	}{
		"a whole disk":               {document: whole(`disk.serial == "serial-vdc"`), kind: cluster.ForWholeDisk, found: []string{"vdc"}},
		"no whole disk":              {document: whole(`disk.transport == "nvme"`), kind: cluster.ForWholeDisk},
		"several, of each type":      {document: whole(`disk.size > 1u`), kind: cluster.ForWholeDisk, found: []string{"loop0", "sr0", "vda", "vdb", "vdc"}, system: "vda"},
		"Talos has no system_disk":   {document: whole(`!system_disk && disk.transport == "virtio"`), kind: cluster.ForWholeDisk, broken: "no such attribute(s): system_disk"},
		"an existing volume":         {document: fmt.Sprintf(anExisting, `volume.partition_label == "backup"`), kind: cluster.ForExisting, found: []string{"vdb1"}},
		"no existing volume":         {document: fmt.Sprintf(anExisting, `volume.name == "ext4"`), kind: cluster.ForExisting},
		"two existing volumes":       {document: fmt.Sprintf(anExisting, `volume.name == "xfs"`), kind: cluster.ForExisting, found: []string{"vda1", "vdb1"}, system: "vda1"},
		"by its disk":                {document: fmt.Sprintf(anExisting, `disk.size == 20u * GiB && volume.name == "xfs"`), kind: cluster.ForExisting, found: []string{"vdb1"}},
		"members":                    {document: fmt.Sprintf(aMember, "LVMVolumeGroupConfig", "", `disk.transport == "virtio"`), kind: cluster.ForMembers, found: []string{"vdc"}},
		"no members":                 {document: fmt.Sprintf(aMember, "LVMVolumeGroupConfig", "", `volume_id == "r-data"`), kind: cluster.ForMembers},
		"an array":                   {document: fmt.Sprintf(aMember, "RAIDArrayConfig", "level: raid1\n", `disk.size > 1u || volume.partition_label == "EPHEMERAL"`), kind: cluster.ForMembers, found: []string{"vdc"}},
		"machine.disks":              {document: device("/dev/vdb"), kind: cluster.ForDevice, found: []string{"vdb"}},
		"machine.disks by a link":    {document: device("/dev/disk/by-id/c"), kind: cluster.ForDevice, found: []string{"vdc"}},
		"machine.disks, nothing":     {document: device("/dev/sdb"), kind: cluster.ForDevice},
		"machine.disks, the system":  {document: device("/dev/vda"), kind: cluster.ForDevice, found: []string{"vda"}, system: "vda"},
		"install":                    {document: fmt.Sprintf(inMain, "install: {diskSelector: {size: '> 15GB'}}"), kind: cluster.ForInstall, found: []string{"vdb", "vdc"}},
		"install, nothing":           {document: fmt.Sprintf(inMain, "install: {diskSelector: {serial: other}}"), kind: cluster.ForInstall},
		"an unattended installation": {document: fmt.Sprintf(installing, `disk.serial == "serial-vda"`), kind: cluster.ForInstall, found: []string{"vda"}, system: "vda"},
	} {
		got := selectors(t, tc.document, selectingMachine("vda"))
		must.Hold(t, len(got) == 1 && got[0].Kind == tc.kind && slices.Equal(got[0].Found, tc.found) && got[0].System == tc.system && (got[0].Broken == "") == (tc.broken == "") && strings.Contains(got[0].Broken, tc.broken) && got[0].Unknown == "",
			"%s: %+v", name, got)
	}
	for _, document := range []string{"kind: UserVolumeConfig\nname: data\nvolumeType: directory\n", "kind: VolumeConfig\nname: EPHEMERAL\nprovisioning: {maxSize: 5GiB}\n", fmt.Sprintf(inMain, "install: {disk: /dev/sda}")} {
		must.Equal(t, document, []cluster.DiskSelector(nil), selectors(t, document, selectingMachine("vda")))
	}
	arrays := fmt.Sprintf(aSelector, "UserVolumeConfig", "data", `disk.dev_path == "/dev/md127"`) + "---\napiVersion: v1alpha1\n" + fmt.Sprintf(aMember, "RAIDArrayConfig", "level: raid1\n", "disk.size > 1u")
	got := selectors(t, arrays, selectingMachine("vda"))
	must.Hold(t, got[0].Unknown != "", "an array that the same configuration makes: %+v", got)
}

// TestSelectorsWithoutAMachine are unknown, not without a match.
func TestSelectorsWithoutAMachine(t *testing.T) {
	t.Parallel()
	documents := []string{mainDocument}
	for _, document := range documentsThatSelect("!system_disk") {
		documents = append(documents, "apiVersion: v1alpha1\n"+document)
	}
	text := strings.Join(documents, "---\n")
	got, err := (&Client{}).Selectors(t.Context(), netip.Addr{}, false, []byte(text), "v1.14.1")
	must.Hold(t, err == nil && len(got) == 8 && !slices.ContainsFunc(got, func(s cluster.DiskSelector) bool { return s.Unknown == "" }),
		"%v, %+v", err, got)
	got = must.Get((&Client{}).Selectors(t.Context(), netip.Addr{}, false, []byte(text), "v1.13.9"))(t)
	must.Equal(t, "selectors as Talos 1.13 reads it", 4, len(got))
}

// systemPartition is a VolumeConfig that makes its volume a partition; of the others that need none, "" has no document.
const systemPartition = "---\napiVersion: v1alpha1\nkind: VolumeConfig\nname: %s\nprovisioning: {%s}\n"

func configVolumes(t *testing.T, text, version string) map[string]cluster.ConfigVolume {
	t.Helper()
	out := map[string]cluster.ConfigVolume{}
	for _, v := range must.Get((&Client{}).ConfigVolumes(cluster.Secret(text), version))(t) {
		out[v.ID] = v
	}
	return out
}

// TestSystemVolumesByConfiguration: ETCD, CRI, KUBELET and LOG are partitions exactly where a document has provisioning,
// and Talos knows that.
func TestSystemVolumesByConfiguration(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"ETCD", "CRI", "KUBELET", "LOG"} {
		for name, tc := range map[string]struct {
			text, talos string
			want        cluster.VolumeType
		}{
			"no document":     {mainDocument, "v1.14.1", "directory"},
			"no provisioning": {mainDocument + fmt.Sprintf("---\napiVersion: v1alpha1\nkind: VolumeConfig\nname: %s\n", id), "v1.14.1", "directory"},
			"empty":           {mainDocument + fmt.Sprintf(systemPartition, id, ""), "v1.14.1", "directory"},
			"a selector":      {mainDocument + fmt.Sprintf(systemPartition, id, "diskSelector: {match: \"!system_disk\"}"), "v1.14.1", "partition"},
			"a size":          {mainDocument + fmt.Sprintf(systemPartition, id, "maxSize: 5GiB"), "v1.14.0-rc.1", "partition"},
			"grows":           {mainDocument + fmt.Sprintf(systemPartition, id, "grow: false"), "", "partition"},
			"for Talos 1.13":  {mainDocument + fmt.Sprintf(systemPartition, id, "maxSize: 5GiB"), "v1.13.9", "directory"},
			"another one's":   {mainDocument + fmt.Sprintf(systemPartition, "EPHEMERAL", "maxSize: 5GiB"), "v1.14.1", "directory"},
		} {
			got := configVolumes(t, tc.text, tc.talos)[id]
			must.Hold(t, got.Type == tc.want && got.Document == "VolumeConfig "+id, "%s, %s: %+v", id, name, got)
		}
	}
}

// TestUserVolumesByConfiguration: volumes of every kind have their ID, and what Talos finds them by.
func TestUserVolumesByConfiguration(t *testing.T) {
	t.Parallel()
	const document = "---\napiVersion: v1alpha1\nkind: %s\nname: data\n%s\n"
	for text, want := range map[string]cluster.ConfigVolume{
		fmt.Sprintf(document, "UserVolumeConfig", "provisioning: {diskSelector: {match: \"!system_disk\"}, minSize: 1GiB}"):                  {ID: "u-data", Document: "UserVolumeConfig data", Type: "partition", Place: "!system_disk", Filesystem: "xfs"},
		fmt.Sprintf(document, "UserVolumeConfig", "volumeType: disk\nprovisioning: {diskSelector: {match: \"!system_disk\"}}"):               {ID: "u-data", Document: "UserVolumeConfig data", Type: "disk", Place: "!system_disk", Found: true, Filesystem: "xfs"},
		fmt.Sprintf(document, "UserVolumeConfig", "volumeType: directory"):                                                                   {ID: "u-data", Document: "UserVolumeConfig data", Type: "directory"},
		fmt.Sprintf(document, "RawVolumeConfig", "provisioning: {diskSelector: {match: \"!system_disk\"}, minSize: 1GiB}"):                   {ID: "r-data", Document: "RawVolumeConfig data", Type: "partition", Place: "!system_disk"},
		fmt.Sprintf(document, "SwapVolumeConfig", "provisioning: {diskSelector: {match: \"!system_disk\"}, minSize: 1GiB}"):                  {ID: "s-data", Document: "SwapVolumeConfig data", Type: "partition", Place: "!system_disk"},
		fmt.Sprintf(document, "ExistingVolumeConfig", "discovery: {volumeSelector: {match: \"volume.name == 'xfs'\"}}"):                      {ID: "e-data", Document: "ExistingVolumeConfig data", Type: "partition", Place: "volume.name == 'xfs'", Found: true},
		fmt.Sprintf(document, "ExternalVolumeConfig", "filesystemType: virtiofs\nmount: {virtiofs: {tag: share0}}"):                          {ID: "x-data", Document: "ExternalVolumeConfig data", Type: "external", Place: "virtiofs share0", Found: true},
		strings.Replace(mainDocument, "worker", "worker, disks: [{device: /dev/sdb, partitions: [{size: 1GB, mountpoint: /var/mnt/a}]}]", 1): {ID: "/dev/sdb-1", Document: "machine.disks /dev/sdb", Type: "partition", Mount: "/var/mnt/a", Found: true},
	} {
		if !strings.HasPrefix(text, "version") {
			text = mainDocument + text
		}
		must.Equal(t, text, want, configVolumes(t, text, "v1.14.1")[want.ID])
	}
}

// TestEncryptionByConfiguration: what opens a volume is the same wherever it is written, and no key is shown.
func TestEncryptionByConfiguration(t *testing.T) {
	t.Parallel()
	legacy := func(keys string) string {
		return strings.Replace(mainDocument, "worker", "worker, systemDiskEncryption: {ephemeral: {provider: luks2, keys: ["+keys+"]}}", 1)
	}
	document := func(encryption string) string {
		return mainDocument + "---\napiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nencryption: {" + encryption + "}\n"
	}
	nodeID := document("provider: luks2, keys: [{slot: 0, nodeID: {}}]")
	hush := document("provider: luks2, keys: [{slot: 0, static: {passphrase: hush}}]")
	for name, tc := range map[string]struct {
		was, is string
		opens   bool
	}{
		"moved to its document":   {legacy("{slot: 0, nodeID: {}}"), nodeID, true},
		"in both":                 {nodeID, strings.Replace(nodeID, "type: worker", "type: worker, systemDiskEncryption: {ephemeral: {provider: luks2, keys: [{slot: 0, static: {passphrase: x}}]}}", 1), true},
		"gone":                    {legacy("{slot: 0, nodeID: {}}"), mainDocument, false},
		"new":                     {mainDocument, legacy("{slot: 0, nodeID: {}}"), false},
		"another passphrase":      {hush, strings.Replace(hush, "hush", "shush", 1), false},
		"the same passphrase":     {hush, hush, true},
		"another kind of key":     {hush, nodeID, false},
		"another slot":            {hush, strings.Replace(hush, "slot: 0", "slot: 1", 1), false},
		"locked to STATE":         {hush, strings.Replace(hush, "slot: 0", "slot: 0, lockToState: true", 1), false},
		"one more key":            {hush, strings.Replace(hush, "keys: [", "keys: [{slot: 1, nodeID: {}}, ", 1), true},
		"another server":          {document("provider: luks2, keys: [{slot: 0, kms: {endpoint: 'https://a'}}]"), document("provider: luks2, keys: [{slot: 0, kms: {endpoint: 'https://b'}}]"), false},
		"the usual cipher, named": {hush, document("provider: luks2, cipher: aes-xts-plain64, keys: [{slot: 0, static: {passphrase: hush}}]"), true},
		"another cipher":          {hush, document("provider: luks2, cipher: aes-xts-plain, keys: [{slot: 0, static: {passphrase: hush}}]"), false},
		"faster":                  {hush, document("provider: luks2, options: [no_read_workqueue], keys: [{slot: 0, static: {passphrase: hush}}]"), true},
	} {
		was, is := configVolumes(t, tc.was, "v1.14.1")["EPHEMERAL"].Encryption, configVolumes(t, tc.is, "v1.14.1")["EPHEMERAL"].Encryption
		must.Equal(t, name, tc.opens, is.Opens(was, nil))
		shown := fmt.Sprint(was, is)
		must.Hold(t, !strings.Contains(shown, "hush") && !slices.Contains([]string{was.Keys[0], is.Keys[0]}, "x"), "%s shows %s", name, shown)
	}
}
