package talosapi_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestWhatTheFirmwareBoots: an image of its own architecture, unless Secure Boot requires
// a signature.
func TestWhatTheFirmwareBoots(t *testing.T) {
	const denied, nothing = "9021: BdsDxe: failed to load ide2: Access Denied", "9021: no bootable device"
	type scene struct {
		image, arch string // architectures of the image and the machine
		secureBoot  bool
		screen      []string // nil: it boots
	}
	each(t, map[string]scene{
		"the same architecture":     {"amd64", "amd64", false, nil},
		"another architecture":      {"arm64", "amd64", false, []string{nothing}},
		"both others":               {"arm64", "arm64", false, nil},
		"keys that have not signed": {"amd64", "amd64", true, []string{denied, nothing}},
	}, func(t *testing.T, _ string, tc scene) {
		l := newLab(t)
		img := image("new")
		img.Arch = tc.image
		b := l.box(workerAddr, disk("virtio0", "system", 10, nil), cdrom(l.iso(img)))
		b.hw.Arch, b.hw.SecureBoot = tc.arch, tc.secureBoot
		b.on()
		if tc.screen == nil {
			l.maintained(workerAddr)
		}
		time.Sleep(time.Minute)
		if diff := cmp.Diff(tc.screen, l.lines(&l.screen), cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestWhatTheImageIsFor: what a machine reports about it, blank and configured.
func TestWhatTheImageIsFor(t *testing.T) {
	type scene struct {
		platform, mode string
		seabios        bool
	}
	each(t, map[string]scene{
		"nocloud": {"nocloud", "cloud", false}, "metal": {"metal", "metal", false}, "SeaBIOS": {"metal", "metal", true},
	}, func(t *testing.T, _ string, tc scene) {
		l := newLab(t)
		img := image("new")
		img.Platform, img.Cmdline = tc.platform, "talos.platform="+tc.platform
		l.installers[newRef] = img
		l.controlPlane(image("old"))
		b := l.box(workerAddr, disk("virtio0", "system", 10, nil), cdrom(l.iso(img)))
		if tc.seabios {
			b.hw.NVRAM = nil
		}
		b.on()
		open := l.maintained(workerAddr)
		for _, configured := range []bool{false, true} {
			c := open
			if configured {
				apply(t, open, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef}))
				l.running(workerAddr)
				c = l.client(workerAddr, role.Reader)
			}
			v, err := c.Version(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := v.GetMessages()[0]
			if got.GetVersion().GetArch() != "amd64" || got.GetPlatform().GetName() != tc.platform || got.GetPlatform().GetMode() != tc.mode || got.GetFeatures().GetRbac() != configured {
				t.Errorf("configured %t: %v", configured, got)
			}
			state, err := get[*runtime.SecurityState](t.Context(), c, runtime.NewSecurityStateSpec(runtime.NamespaceName).Metadata())
			if err != nil || state.TypedSpec().SecureBoot || state.TypedSpec().BootedWithUKI == tc.seabios {
				t.Errorf("configured %t: %+v, %v", configured, state, err)
			}
		}
	})
}

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
