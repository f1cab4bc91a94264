package talosapi_test

import (
	"strings"
	"testing"
	"testing/synctest"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

func TestApplyToAConfiguredMachine(t *testing.T) {
	t.Parallel()
	//lint:ignore SA1019 the zero value is what this is about
	const reboot = machineapi.ApplyConfigurationRequest_REBOOT
	for version, tc := range map[string]struct {
		mode machineapi.ApplyConfigurationRequest_Mode
		dry  bool
		want string // error code, then the installer that is active and the one that is after a reboot
	}{
		"v1.14.1":           {machineapi.ApplyConfigurationRequest_AUTO, false, "OK new new"},
		"v1.14.1 no reboot": {machineapi.ApplyConfigurationRequest_NO_REBOOT, false, "OK new new"},
		"v1.14.1 staged":    {machineapi.ApplyConfigurationRequest_STAGED, false, "OK old new"},
		"v1.14.1 dry":       {machineapi.ApplyConfigurationRequest_AUTO, true, "OK old old"},
		"v1.14.1 reboot":    {reboot, false, "Unimplemented old old"},
		"v1.13.9 reboot":    {reboot, false, "OK old new"},
		"v1.12.4 reboot":    {reboot, false, "OK old new"},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				img := image("old")
				img.TalosVersion, _, _ = strings.Cut(version, " ")
				conf := func(ref string) []byte {
					return l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: ref})
				}
				b := l.box(9001, "02:00:00:00:00:0B", disk("scsi0", "system", 10, l.installedControlPlane(conf(oldRef), img)))
				b.on()
				defer func() { b.guest.Kill() }()
				l.running(cpAddr)
				c := l.client(cpAddr, role.Admin)
				first := facts(t, c).bootID
				_, err := c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{Data: conf(newRef), Mode: tc.mode, DryRun: tc.dry})
				got := status.Code(err).String() + " " + installerOf(t, c)
				if tc.mode == reboot && err == nil {
					l.rebooted(c, first)
				} else {
					l.reboot(c, func() error { return c.Reboot(t.Context()) })
				}
				if got += " " + installerOf(t, c); got != tc.want {
					t.Errorf("got %s, want %s", got, tc.want)
				}
			})
		})
	}
}

// installerOf is "old" or "new", from the active configuration.
func installerOf(t *testing.T, c *client.Client) string {
	t.Helper()
	cfg, err := get[*configres.MachineConfig](t.Context(), c, configres.NewMachineConfig(nil).Metadata())
	if err != nil {
		t.Fatal(err)
	}
	ref := cfg.Config().Machine().Install().Image()
	return map[string]string{oldRef: "old", newRef: "new"}[ref]
}
