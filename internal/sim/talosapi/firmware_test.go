package talosapi_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestWhatTheFirmwareBoots: an image of its own architecture, unless Secure Boot requires
// a signature.
func TestWhatTheFirmwareBoots(t *testing.T) {
	t.Parallel()
	const denied, nothing = "9011: BdsDxe: failed to load ide2: Access Denied", "9011: no bootable device"
	for name, tc := range map[string]struct {
		arch   string // of the image
		change func(*world.Hardware)
		screen []string // nil: it boots
	}{
		"the same architecture":     {"amd64", func(*world.Hardware) {}, nil},
		"another architecture":      {"arm64", func(*world.Hardware) {}, []string{nothing}},
		"both others":               {"arm64", func(hw *world.Hardware) { hw.Arch = "arm64" }, nil},
		"keys that have not signed": {"amd64", func(hw *world.Hardware) { hw.SecureBoot = true }, []string{denied, nothing}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				img := image("new")
				img.Arch = tc.arch
				b := l.box(9011, "02:00:00:00:00:1F", disk("virtio0", "system", 10, nil), cdrom(l.iso(img)))
				tc.change(&b.hw)
				b.on()
				defer b.guest.Kill()
				if tc.screen == nil {
					l.awaitStage(l.insecure(workerAddr), runtime.MachineStageMaintenance)
				}
				time.Sleep(time.Minute)
				if diff := cmp.Diff(tc.screen, l.lines(&l.screen), cmpopts.EquateEmpty()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// TestWhatTheImageIsFor: what a machine reports about it, blank and configured.
func TestWhatTheImageIsFor(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		platform, mode string
		seabios        bool
	}{
		"nocloud": {"nocloud", "cloud", false}, "metal": {"metal", "metal", false}, "SeaBIOS": {"metal", "metal", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				img := image("new")
				img.Platform, img.Cmdline = tc.platform, "talos.platform="+tc.platform
				l.installers[newRef] = img
				cp := l.controlPlane()
				defer cp.guest.Kill()
				b := l.box(9011, "02:00:00:00:00:1F", disk("virtio0", "system", 10, nil), cdrom(l.iso(img)))
				if tc.seabios {
					b.hw.NVRAM = nil
				}
				b.on()
				defer b.guest.Kill()
				open := l.insecure(workerAddr)
				l.awaitStage(open, runtime.MachineStageMaintenance)
				for _, configured := range []bool{false, true} {
					c := open
					if configured {
						apply(t, open, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef}))
						c = l.client(workerAddr, role.Reader)
						l.awaitStage(c, runtime.MachineStageRunning)
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
		})
	}
}
