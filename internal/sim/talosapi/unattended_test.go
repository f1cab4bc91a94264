package talosapi_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// A configuration can disable the reboot after the installation: the machine goes on as a
// node that runs from its ISO, and boots the disk after a restart.
func TestInstallationWithoutAReboot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		var err error
		if l.cluster, err = talosapi.NewCluster("lab", "https://127.42.7.10:6443", "v1.14.1", "v1.35.4"); err != nil {
			t.Fatal(err)
		}
		img := image("new")
		img.TalosVersion = "v1.14.1"
		l.installers[newRef] = img
		b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, nil), cdrom(l.iso(img)))
		b.on()
		defer func() { b.guest.Kill() }()
		l.awaitStage(l.insecure(cpAddr), runtime.MachineStageMaintenance)
		conf := l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: newRef})
		apply(t, l.insecure(cpAddr), bytes.Replace(conf, []byte("kind: UnattendedInstallConfig\n"), []byte("kind: UnattendedInstallConfig\nreboot: false\n"), 1))
		time.Sleep(5 * time.Minute)
		c := l.client(cpAddr, role.Admin)
		u, err := get[*runtime.UnattendedInstallStatus](t.Context(), c, runtime.NewUnattendedInstallStatus().Metadata())
		if err != nil || u.TypedSpec().Phase != runtime.UnattendedInstallPhaseInstalled {
			t.Errorf("installation: %v, %v", u, err)
		}
		// Only the medium shows that it still runs from the ISO.
		if now := facts(t, c); now.entry != "talos-v1.14.1.efi" {
			t.Errorf("it booted %q", now.entry)
		}
		cmdline, err := get[*runtime.KernelCmdline](t.Context(), c, runtime.NewKernelCmdline().Metadata())
		if err != nil || !strings.Contains(cmdline.TypedSpec().Cmdline, "talos.halt_if_installed=1") {
			t.Errorf("kernel arguments %v, %v", cmdline, err)
		}
		b.guest.Kill()
		b.on()
		time.Sleep(5 * time.Minute)
		if now := facts(t, l.client(cpAddr, role.Admin)); now.entry != "talos-v1.14.1.efi" {
			t.Errorf("after a restart it booted %q", now.entry)
		}
	})
}
