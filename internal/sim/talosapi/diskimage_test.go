package talosapi_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/qcow2"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// imported is a disk that Proxmox has made from a disk image.
func imported(t *testing.T, img artefact.Image, form artefact.DiskForm) []byte {
	t.Helper()
	file, err := artefact.DiskImage(img, form)
	if err != nil {
		t.Fatal(err)
	}
	d, err := qcow2.Open(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(io.NewSectionReader(d, 0, d.Size()))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestBootFromDiskImage: such a machine counts as installed, so it ignores what its
// configuration says about an installation, and does not reboot.
func TestBootFromDiskImage(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.controlPlane(image("old"))
		data := disk("virtio1", "data-wk1", 20, talosapi.DataDisk("u-data", []byte("precious")))
		began := time.Now()
		wk := l.box(workerAddr, disk("virtio0", "system", 10, imported(t, image("new"), artefact.DiskForm{BIOS: true})), data)
		wk.on()
		open := l.maintained(workerAddr)
		got := facts(t, open)
		if got.schematic != "schematic-new" || got.uuid != wk.hw.UUID || strings.Contains(got.cmdline, "halt_if_installed") || got.entry != "talos-v1.13.9.efi" {
			t.Errorf("facts in maintenance mode: %+v", got)
		}
		want(t, "volumes in maintenance mode", volumes(t, open), "META ready /dev/vda4, STATE missing ")

		apply(t, open, l.config(talosapi.Machine{Hostname: "wk1", Installer: "factory.test/nocloud-installer/none:v1.13.9"}))
		secure := l.client(workerAddr, role.Admin)
		l.awaitStage(secure, runtime.MachineStageRunning)
		if got = facts(t, secure); got.entry != "talos-v1.13.9.efi" || !strings.Contains(got.cmdline, "recast.lock=sha256-new") {
			t.Errorf("facts of the node: %+v", got)
		}
		want(t, "volumes", volumes(t, secure), "EPHEMERAL ready /dev/vda6, META ready /dev/vda4, STATE ready /dev/vda5")
		if took := time.Since(began); took > 45*time.Second { // its kubelet may wait 10 s for the next attempt to join
			t.Errorf("it took %s, as if it had rebooted", took)
		}
	})
}

// TestBootFromTruncatedDiskImage: a disk that was filled only in part is no Talos disk.
func TestBootFromTruncatedDiskImage(t *testing.T) {
	raw := imported(t, image("new"), artefact.DiskForm{})
	clear(raw[len(raw)/2:])
	each(t, map[string]world.Drive{"disk": disk("virtio0", "system", 10, raw)}, func(t *testing.T, _ string, d world.Drive) {
		l := newLab(t)
		b := l.box(workerAddr, d)
		b.on()
		time.Sleep(time.Minute)
		if screen := l.lines(&l.screen); len(screen) != 1 || !strings.HasSuffix(screen[0], "no bootable device") {
			t.Errorf("screen: %q", screen)
		}
	})
}

// TestDisksHoldTheInstallersImage: a boot entry is the installer's file, byte for byte,
// whoever wrote it; a large one is stored outside of the disk.
func TestDisksHoldTheInstallersImage(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	inLab(t, func(t *testing.T, l *lab) {
		cp, c := l.node(image("old"))
		const file = "/usr/local/sbin/iscsid"
		large := make([]byte, 2<<20)
		_, _ = rand.NewChaCha8([32]byte{}).Read(large) // never fails
		img := image("new")
		img.Extensions[0].Files[file] = large
		l.installers[newRef] = img
		entry := func(name string, img artefact.Image) string {
			return fmt.Sprintf("%s %.8x", name, sha256.Sum256(ukiOf(t, img)))
		}

		mustInstall(t, c, newRef)
		wk, open := l.blank(workerAddr, img)
		apply(t, open, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef}))
		l.running(workerAddr)
		for _, tc := range []struct {
			b    *box
			want string
		}{
			{cp, "EFI [" + entry("Talos-v1.13.9.efi", image("old")) + ", " + entry("Talos-v1.13.9~1.efi", img) + "];"},
			{wk, "EFI [" + entry("Talos-v1.13.9.efi", img) + "];"},
		} {
			media := tc.b.drives[0].Media
			if got := talosapi.Describe(media.Bytes()); !strings.HasPrefix(got, tc.want) {
				t.Errorf("%s has %s\nwant %s", tc.b.hw.Name, got, tc.want)
			}
			if got := media.Size(); got > 64<<10 {
				t.Errorf("the disk of %s holds %d bytes", tc.b.hw.Name, got)
			}
		}
		got, err := readFile(t.Context(), l.client(workerAddr, role.Admin), file)
		if err != nil || string(got) != string(large) {
			t.Errorf("the installed system has %d bytes, err = %v", len(got), err)
		}
		list, err := c.ImageClient.List(t.Context(), &machine.ImageServiceListRequest{Containerd: criSystem()})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := list.Recv(); err != nil || m.GetSize() != int64(len(ukiOf(t, img))) {
			t.Errorf("the pulled image has %d bytes, err = %v", m.GetSize(), err)
		}
	})
}
