package talosapi_test

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

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
