package talosapi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

const (
	wholeDisk = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: whole\nvolumeType: disk\nprovisioning: {diskSelector: {match: disk.serial == 'data-a'}}\n"
	directory = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: dir\nvolumeType: directory\n"
	shared    = "apiVersion: v1alpha1\nkind: ExternalVolumeConfig\nname: share\nfilesystemType: virtiofs\nmount: {virtiofs: {tag: share0}}\n"
	onDataB   = "apiVersion: v1alpha1\nkind: %s\nname: %s\nprovisioning: {diskSelector: {match: disk.serial == 'data-b'}, minSize: 1GiB, maxSize: 1GiB}\n"
	withNode  = "encryption: {provider: luks2, keys: [{slot: 0, nodeID: {}}]}\n"
)

// TestVolumesOfEveryKind: each has its status, what pods write lands where it is mounted, and on EPHEMERAL below the same
// path once its document is gone. A recreated machine finds them again, but opens none with another encryption.
func TestVolumesOfEveryKind(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.controlPlane(version("old", "v1.14.1"))
		a, b := disk("virtio1", "data-a", 20, nil), disk("virtio2", "data-b", 20, nil)
		documents := []string{
			wholeDisk, directory, shared, fmt.Sprintf(onDataB, "VolumeConfig", "CRI"), fmt.Sprintf(onDataB, "VolumeConfig", "LOG"),
			fmt.Sprintf(onDataB, "RawVolumeConfig", "raw") + withNode, fmt.Sprintf(onDataB, "UserVolumeConfig", "locked") + withNode,
		}
		create := func(documents ...string) (*box, *client.Client) {
			box, c := l.blank(workerAddr, version("old", "v1.14.1"), a, b)
			apply(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef, Documents: documents}))
			l.running(workerAddr)
			return box, l.client(workerAddr, role.Admin)
		}
		box, c := create(documents...)
		want(t, "volumes", everyVolume(t, c), "CRI partition ready /dev/vdc1, ETCD directory ready , KUBELET directory ready , LOG partition ready /dev/vdc2, r-raw partition ready /dev/vdc4, "+
			"u-dir directory ready , u-locked partition ready /dev/vdc3, u-whole disk ready /dev/vdb, x-share external ready share0")
		writes := func(path, volume string) {
			t.Helper()
			on, err := l.fw.PodWrites(box.hw.VMID, path, []byte("x"))
			if err != nil || on != volume {
				t.Errorf("%s is written to %s, want %s: %v", path, on, volume, err)
			}
		}
		writes("/var/mnt/whole/db", "u-whole")
		writes("/var/log/pods/a", "LOG")
		writes("/var/mnt/dir/db", "EPHEMERAL")
		apply(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef, Documents: slices.Delete(slices.Clone(documents), 0, 1)}))
		writes("/var/mnt/whole/db", "EPHEMERAL")
		if strings.Contains(everyVolume(t, c), "u-whole") {
			t.Error("a volume without a document has a status")
		}
		kept := talosapi.Lasting(a.Media.Bytes())
		box.guest.Kill()

		documents[5], documents[6] = fmt.Sprintf(onDataB, "RawVolumeConfig", "raw"), fmt.Sprintf(onDataB, "UserVolumeConfig", "locked")
		documents[3] = strings.TrimSpace(documents[3]) + "\n" + withNode
		box, c = create(documents...)
		want(t, "volumes of the recreated machine", everyVolume(t, c), "CRI partition failed /dev/vdc1: block dev type mismatch: xfs != luks, ETCD directory ready , KUBELET directory ready , LOG partition ready /dev/vdc2, r-raw partition ready /dev/vdc4, "+
			"u-dir directory ready , u-locked partition failed /dev/vdc3: filesystem type mismatch: luks != xfs, u-whole disk ready /dev/vdb, x-share external ready share0")
		if talosapi.Lasting(a.Media.Bytes()) != kept {
			t.Error("the whole disk changed")
		}
		writes("/var/mnt/locked/db", "EPHEMERAL")
		box.guest.Kill()
	})
}

// everyVolume are the volumes of the configuration, but for EPHEMERAL and those that every system disk has.
func everyVolume(t *testing.T, c *client.Client) string {
	t.Helper()
	all, err := safe.StateListAll[*block.VolumeStatus](t.Context(), c.COSI)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for v := range all.All() {
		if spec := v.TypedSpec(); !slices.Contains([]string{"META", "STATE", "EPHEMERAL"}, v.Metadata().ID()) {
			line := fmt.Sprintf("%s %s %s %s", v.Metadata().ID(), spec.Type, spec.Phase, spec.Location)
			if spec.ErrorMessage != "" {
				line += ": " + spec.ErrorMessage
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

// TestVolumesThatCannotBe: Talos' own errors, for what a selector matches on an installed machine.
func TestVolumesThatCannotBe(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.controlPlane(version("old", "v1.14.1"))
		const partition, whole = "minSize: 1GiB}\n", "}\nvolumeType: disk\n"
		selecting := func(name, match, rest string) string {
			return fmt.Sprintf("apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: %s\nprovisioning: {diskSelector: {match: %q}, %s", name, match, rest)
		}
		_, c := l.blank(workerAddr, version("old", "v1.14.1"), disk("virtio1", "data-a", 20, nil), disk("virtio2", "data-b", 20, nil))
		apply(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef, Documents: []string{
			selecting("none", "disk.transport == 'nvme'", partition), selecting("large", "disk.serial == 'data-a'", "minSize: 900GiB}\n"),
			selecting("two", "disk.serial.startsWith('data-')", whole), selecting("attribute", "!system_disk && disk.size > 1u", whole),
			selecting("system", "disk.size < 15u * GiB && disk.transport == 'virtio' && !disk.cdrom", whole), selecting("fits", "disk.serial == 'data-b'", partition),
		}}))
		l.running(workerAddr)
		got := everyVolume(t, l.client(workerAddr, role.Admin))
		for _, line := range []string{
			"u-none partition failed : no disks matched selector for volume", "u-fits partition ready /dev/vdc1",
			"u-large partition failed : no disks matched for volume (1 matched selector): 1 have not enough space, 0 have wrong format, 0 have other issues",
			"u-two disk failed : multiple disks matched locator for disk volume; matched disks: [/dev/vdb /dev/vdc]",
			"u-attribute disk failed : error evaluating disk locator: no such attribute(s): system_disk",
			"u-system disk failed : filesystem type mismatch: gpt != xfs",
		} {
			if !strings.Contains(got, line) {
				t.Errorf("%q is not in %s", line, got)
			}
		}
	})
}
