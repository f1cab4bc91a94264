package talosapi_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

const efivar = "/sys/firmware/efi/efivars/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// version is the build of an image with another version of Talos.
func version(build, talos string) artefact.Image {
	img := image(build)
	img.TalosVersion = talos
	return img
}

// TestSystemDiskUnderOtherVariables: a system disk that was upgraded in place has two
// entries, and the firmware variable with the default entry may have been written for
// another system disk.
func TestSystemDiskUnderOtherVariables(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	tests := map[string]struct {
		upgraded, variables artefact.Image // the disk's latest upgrade; the installation that wrote the variables
		blank, seabios      bool
		want                string // entry
	}{
		"its own":                      {upgraded: image("new"), want: "talos-v1.13.9~1.efi"},
		"none":                         {upgraded: image("new"), blank: true, want: "talos-v1.13.9.efi"},
		"none, of another version":     {upgraded: version("new", "v1.13.10"), blank: true, want: "talos-v1.13.10.efi"},
		"of a new install of the same": {upgraded: image("new"), variables: image("other"), want: "talos-v1.13.9.efi"},
		"of a new install of another":  {upgraded: version("new", "v1.13.10"), variables: version("other", "v1.13.11"), want: "talos-v1.13.10.efi"},
		"no UEFI":                      {upgraded: image("new"), seabios: true, want: "talos-v1.13.9~1.efi"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				l.installers[newRef] = test.upgraded
				conf := l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: oldRef})
				b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, l.installedControlPlane(conf, image("old"))), cdrom(nil))
				if test.seabios {
					b.hw.NVRAM = nil
				}
				b.on()
				l.running(cpAddr)
				c := l.client(cpAddr, role.Admin)
				mustInstall(t, c, newRef)
				b.guest.Kill()
				switch {
				case test.blank:
					b.hw.NVRAM = world.NewMedia(nil)
				case test.variables.TalosVersion != "":
					b.hw.NVRAM = world.NewMedia(talosapi.NVRAM(test.variables))
				}
				b.on()
				defer func() { b.guest.Kill() }()
				l.running(cpAddr)
				c = l.client(cpAddr, role.Admin)
				if now := facts(t, c); now.entry != test.want {
					t.Errorf("boots %s, want %s", now.entry, test.want)
				}
				_, err := readFile(t.Context(), c, efivar)
				if none := test.blank || test.seabios; none != (status.Code(err) == codes.NotFound) {
					t.Errorf("variable: %v", err)
				}
			})
		})
	}
}

// TestInstallWritesVariables: after an installation the firmware variables name its entry.
func TestInstallWritesVariables(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.installers[oldRef] = image("old")
		b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, nil), cdrom(l.iso(image("old"))))
		b.on()
		defer func() { b.guest.Kill() }()
		maintenance := l.insecure(cpAddr)
		l.awaitStage(maintenance, runtime.MachineStageMaintenance)
		if got := talosapi.Describe(b.hw.NVRAM.Bytes()); got != "blank" {
			t.Errorf("before: %s", got)
		}
		apply(t, maintenance, l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: oldRef}))
		for !strings.HasPrefix(talosapi.Describe(b.hw.NVRAM.Bytes()), "NVRAM") {
			time.Sleep(time.Second)
		}
		if got, want := talosapi.Describe(b.hw.NVRAM.Bytes()), "NVRAM boots Talos-v1.13.9.efi"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}
