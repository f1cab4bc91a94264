package talosapi_test

import (
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// silent says whether the machine's API is unreachable for d.
func (l *lab) silent(addr string, d time.Duration) bool {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
		if conn, err := l.net.Dialer().DialContext(l.t.Context(), "tcp", net.JoinHostPort(addr, "50000")); err == nil {
			_ = conn.Close()
			return false
		}
	}
	return true
}

func TestUpgradeToASystemThatRollsBack(t *testing.T) {
	t.Parallel()
	for _, broken := range []string{"schematic-new", newRef} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, b, c := upgradeLab(t)
				defer func() { b.guest.Kill() }()
				l.fw.BreakImage(broken, talosapi.RollsBack)
				old := facts(t, c)
				mustInstall(t, c, newRef)
				now := l.reboot(c, func() error { return c.Reboot(t.Context()) })
				if now.schematic != old.schematic || now.entry != old.entry || now.bootID == old.bootID {
					t.Errorf("now %+v, before %+v", now, old)
				}
				if screen := strings.Join(l.lines(&l.screen), "\n"); !strings.Contains(screen, `reverting failed upgrade, switching to "Talos-v1.13.9.efi"`) {
					t.Errorf("screen:\n%s", screen)
				}
				if got, want := efi(b), "EFI boots Talos-v1.13.9.efi of Talos-v1.13.9.efi Talos-v1.13.9~1.efi META"; got != want {
					t.Errorf("disk: %s\nwant:  %s", got, want)
				}
			})
		})
	}
}

func TestUpgradeToASystemThatNeverComesUp(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	for name, defect := range map[string]talosapi.Defect{"hangs": talosapi.Hangs, "loops": talosapi.Loops} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, b, c := upgradeLab(t)
				l.fw.BreakImage("schematic-new", defect)
				mustInstall(t, c, newRef)
				if err := c.Reboot(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				if !l.silent(cpAddr, 30*time.Minute) {
					t.Error("the API came up")
				}
				reboots := strings.Count(strings.Join(l.lines(&l.screen), "\n"), "rebooting")
				if looped := reboots > 10; looped != (defect == talosapi.Loops) {
					t.Errorf("%d reboots", reboots)
				}
				b.guest.Shutdown() // no effect
				time.Sleep(time.Minute)
				select {
				case <-b.off:
					t.Error("the machine switched itself off")
				default:
				}
				b.guest.Kill()
				if got, want := efi(b), `EFI boots Talos-v1.13.9~1.efi of Talos-v1.13.9.efi Talos-v1.13.9~1.efi META {"Upgrade":"Talos-v1.13.9.efi"}`; got != want {
					t.Errorf("disk: %s\nwant:  %s", got, want)
				}
				l.fw.BreakImage("schematic-new", talosapi.Sound)
				b.on()
				l.running(cpAddr)
				b.guest.Kill()
			})
		})
	}
}

func TestImageThatCannotBePulled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, b, c := upgradeLab(t)
		defer b.guest.Kill()
		l.fw.BreakImage("schematic-new", talosapi.Unpullable)
		err := pull(t.Context(), c, newRef)
		want := `error pulling image: failed to pull image "` + newRef + `": failed to resolve reference "` + newRef + `": ` + newRef + `: not found`
		if status.Code(err) != codes.NotFound || status.Convert(err).Message() != want {
			t.Errorf("err = %v", err)
		}
	})
}

func TestInstallerThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, b, c := upgradeLab(t)
		defer func() { b.guest.Kill() }()
		l.fw.BreakImage("schematic-new", talosapi.InstallerFails)
		before, old := efi(b), facts(t, c)
		if err := pull(t.Context(), c, newRef); err != nil {
			t.Fatal(err)
		}
		if code, err := install(t.Context(), c, newRef); err != nil || code != 1 {
			t.Errorf("exit code %d, err = %v", code, err)
		}
		if now := facts(t, c); now != old || efi(b) != before {
			t.Errorf("now %+v, disk %s", now, efi(b))
		}
		// the old upgrade call takes the node down in vain
		now := l.reboot(c, func() error { _, err := legacy(t.Context(), c, newRef); return err })
		if now.schematic != old.schematic || efi(b) != before {
			t.Errorf("now %+v, disk %s", now, efi(b))
		}
	})
}

func TestFreshInstallOfABrokenImage(t *testing.T) {
	t.Parallel()
	for name, defect := range map[string]talosapi.Defect{
		"hangs": talosapi.Hangs, "loops": talosapi.Loops, "has nothing to roll back to": talosapi.RollsBack, "installer fails": talosapi.InstallerFails,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				l.installers[newRef] = image("new")
				l.fw.BreakImage("schematic-new", defect)
				b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, nil), cdrom(l.iso(image("new"))))
				b.on()
				defer b.guest.Kill()
				open := l.insecure(cpAddr)
				l.awaitStage(open, runtime.MachineStageMaintenance)
				apply(t, open, l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: newRef}))
				time.Sleep(2 * time.Minute)
				if !l.silent(cpAddr, 10*time.Minute) {
					t.Error("the API came up")
				}
				if defect == talosapi.InstallerFails { // it has rebooted from the ISO, which halts
					if screen := strings.Join(l.lines(&l.screen), "\n"); !strings.Contains(screen, "task failed with exit code 1") || !strings.Contains(screen, "Talos is already installed to disk") {
						t.Errorf("screen:\n%s", screen)
					}
					return
				}
				if got, want := efi(b), "EFI boots Talos-v1.13.9.efi of Talos-v1.13.9.efi META"; got != want {
					t.Errorf("disk: %s\nwant:  %s", got, want)
				}
			})
		})
	}
}

func TestOneInstallerAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, b, c := upgradeLab(t)
		defer b.guest.Kill()
		if err := pull(t.Context(), c, newRef); err != nil {
			t.Fatal(err)
		}
		s, err := c.LifecycleClient.Upgrade(t.Context(), &machineapi.LifecycleServiceUpgradeRequest{
			Containerd: criSystem(), Source: &machineapi.InstallArtifactsSource{ImageName: newRef},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		if _, err := install(t.Context(), c, newRef); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("err = %v", err)
		}
	})
}
