package talosapi_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/role"
)

// A configuration can disable the reboot after the installation: the machine goes on as a
// node that runs from its ISO, and boots the disk after a restart.
func TestInstallationWithoutAReboot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLabOf(t, "v1.14.1")
		b, open := l.blank(cpAddr, version("new", "v1.14.1"))
		conf := l.config(cp1(newRef))
		apply(t, open, bytes.Replace(conf, []byte("kind: UnattendedInstallConfig\n"), []byte("kind: UnattendedInstallConfig\nreboot: false\n"), 1))
		time.Sleep(5 * time.Minute)
		c := l.client(cpAddr, role.Admin)
		want(t, "installation", unattended(t, c), "installed")
		// Only the medium shows that it still runs from the ISO.
		now := facts(t, c)
		want(t, "entry", now.entry, "talos-v1.14.1.efi")
		if !strings.Contains(now.cmdline, "talos.halt_if_installed=1") {
			t.Errorf("kernel arguments %s", now.cmdline)
		}
		b.guest.Kill()
		b.on()
		time.Sleep(5 * time.Minute)
		now = facts(t, l.client(cpAddr, role.Admin))
		want(t, "entry after a restart", now.entry, "talos-v1.14.1.efi")
		if strings.Contains(now.cmdline, "talos.halt_if_installed=1") {
			t.Errorf("after a restart it runs from the ISO: %s", now.cmdline)
		}
	})
}
