package talos

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/resources/block"

	"github.com/recast-sh/recast/cluster"
)

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
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
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
			if len(got) != 1 || got[0].ID != id || got[0].Kind != cluster.ForPartition || !slices.Equal(got[0].Found, want.Found) || got[0].System != want.System || got[0].Unknown != "" || got[0].Broken != want.Broken {
				t.Errorf("%s, %s: %+v, want %+v", id, expr, got, want)
			}
		}
	}
	for expr, unknown := range map[string]bool{`!system_disk`: true, `system_disk && disk.transport == "nvme"`: false, `disk.size > 1u * MB`: false} {
		for id, document := range documentsThatSelect(expr) {
			if got := selectors(t, document, selectingMachine("")); (got[0].Unknown != "") != unknown || got[0].Broken != "" {
				t.Errorf("%s, %s, before it is installed: %+v", id, expr, got)
			}
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
		if len(got) != 1 || got[0].Kind != tc.kind || !slices.Equal(got[0].Found, tc.found) || got[0].System != tc.system || (got[0].Broken == "") != (tc.broken == "") || !strings.Contains(got[0].Broken, tc.broken) || got[0].Unknown != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for _, document := range []string{"kind: UserVolumeConfig\nname: data\nvolumeType: directory\n", "kind: VolumeConfig\nname: EPHEMERAL\nprovisioning: {maxSize: 5GiB}\n", fmt.Sprintf(inMain, "install: {disk: /dev/sda}")} {
		if got := selectors(t, document, selectingMachine("vda")); len(got) > 0 {
			t.Errorf("selects %+v: %s", got, document)
		}
	}
	arrays := fmt.Sprintf(aSelector, "UserVolumeConfig", "data", `disk.dev_path == "/dev/md127"`) + "---\napiVersion: v1alpha1\n" + fmt.Sprintf(aMember, "RAIDArrayConfig", "level: raid1\n", "disk.size > 1u")
	if got := selectors(t, arrays, selectingMachine("vda")); got[0].Unknown == "" {
		t.Errorf("an array that the same configuration makes: %+v", got)
	}
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
	if err != nil || len(got) != 8 || slices.ContainsFunc(got, func(s cluster.DiskSelector) bool { return s.Unknown == "" }) {
		t.Errorf("%v, %+v", err, got)
	}
	if got, err = (&Client{}).Selectors(t.Context(), netip.Addr{}, false, []byte(text), "v1.13.9"); err != nil || len(got) != 4 {
		t.Errorf("as Talos 1.13 reads it: %v, %+v", err, got)
	}
}
