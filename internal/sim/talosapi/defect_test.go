package talosapi_test

import (
	"net"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"

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
	each(t, map[string]string{"by schematic": "schematic-new", "by reference": newRef}, func(t *testing.T, _, broken string) {
		l := newLab(t)
		b, c := l.node(image("old"))
		l.fw.BreakImage(broken, talosapi.RollsBack)
		old := facts(t, c)
		mustInstall(t, c, newRef)
		now := l.reboot(c, func() error { return c.Reboot(t.Context()) })
		if now.schematic != old.schematic || now.entry != old.entry || now.bootID == old.bootID {
			t.Errorf("now %+v, before %+v", now, old)
		}
		if !l.onScreen(`reverting failed upgrade, switching to "Talos-v1.13.9.efi"`) {
			t.Errorf("screen: %q", l.lines(&l.screen))
		}
		want(t, "disk", efi(b), "EFI boots Talos-v1.13.9.efi of Talos-v1.13.9.efi Talos-v1.13.9~1.efi META")
	})
}

func TestInstallerThatFails(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		b, c := l.node(image("old"))
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
	each(t, map[string]talosapi.Defect{
		"hangs": talosapi.Hangs, "loops": talosapi.Loops, "has nothing to roll back to": talosapi.RollsBack, "installer fails": talosapi.InstallerFails,
	}, func(t *testing.T, _ string, defect talosapi.Defect) {
		l := newLab(t)
		l.fw.BreakImage("schematic-new", defect)
		b, open := l.blank(cpAddr, image("new"))
		apply(t, open, l.config(cp1(newRef)))
		time.Sleep(2 * time.Minute)
		if !l.silent(cpAddr, 10*time.Minute) {
			t.Error("the API came up")
		}
		if defect != talosapi.InstallerFails {
			want(t, "disk", efi(b), "EFI boots Talos-v1.13.9.efi of Talos-v1.13.9.efi META")
		} else if !l.onScreen("task failed with exit code 1") || !l.onScreen("Talos is already installed to disk") {
			t.Errorf("it has not rebooted from the ISO, which halts: %q", l.lines(&l.screen))
		}
	})
}

func TestOneInstallerAtATime(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		_, c := l.node(image("old"))
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
		_, err = install(t.Context(), c, newRef)
		requireError(t, "the second", err, codes.FailedPrecondition, "")
	})
}
