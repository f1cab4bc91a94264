package talosapi_test

import (
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

const efivar = "/sys/firmware/efi/efivars/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// TestSystemDiskUnderOtherVariables: a system disk that was upgraded in place has two
// entries, and the firmware variable with the default entry may have been written for
// another system disk.
func TestSystemDiskUnderOtherVariables(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	type scene struct {
		upgraded, variables artefact.Image // the disk's latest upgrade; the installation that wrote the variables
		blank, seabios      bool
		want                string // entry
	}
	each(t, map[string]scene{
		"its own":                      {upgraded: image("new"), want: "talos-v1.13.9~1.efi"},
		"none":                         {upgraded: image("new"), blank: true, want: "talos-v1.13.9.efi"},
		"none, of another version":     {upgraded: version("new", "v1.13.10"), blank: true, want: "talos-v1.13.10.efi"},
		"of a new install of the same": {upgraded: image("new"), variables: image("other"), want: "talos-v1.13.9.efi"},
		"of a new install of another":  {upgraded: version("new", "v1.13.10"), variables: version("other", "v1.13.11"), want: "talos-v1.13.10.efi"},
		"no UEFI":                      {upgraded: image("new"), seabios: true, want: "talos-v1.13.9~1.efi"},
	}, func(t *testing.T, _ string, test scene) {
		l := newLab(t)
		l.installers[newRef] = test.upgraded
		b := l.controlPlane(image("old"))
		if test.seabios {
			b.guest.Kill()
			b.hw.NVRAM = nil
			b.on()
		}
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
		l.running(cpAddr)
		c = l.client(cpAddr, role.Admin)
		want(t, "boots", facts(t, c).entry, test.want)
		_, err := readFile(t.Context(), c, efivar)
		if none := test.blank || test.seabios; none != (status.Code(err) == codes.NotFound) {
			t.Errorf("variable: %v", err)
		}
	})
}
