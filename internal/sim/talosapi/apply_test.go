package talosapi_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

func TestApplyToAConfiguredMachine(t *testing.T) {
	t.Parallel()
	//lint:ignore SA1019 the zero value is under test
	const reboot = machineapi.ApplyConfigurationRequest_REBOOT
	for version, tc := range map[string]struct {
		mode machineapi.ApplyConfigurationRequest_Mode
		dry  bool
		want string // error code, then the active installer and the one after a reboot
	}{
		"v1.14.1":           {machineapi.ApplyConfigurationRequest_AUTO, false, "OK new new"},
		"v1.14.1 no reboot": {machineapi.ApplyConfigurationRequest_NO_REBOOT, false, "OK new new"},
		"v1.14.1 staged":    {machineapi.ApplyConfigurationRequest_STAGED, false, "OK old new"},
		"v1.14.1 try":       {machineapi.ApplyConfigurationRequest_TRY, false, "OK new old"},
		"v1.12.4 try":       {machineapi.ApplyConfigurationRequest_TRY, false, "OK new old"},
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
				b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, l.installedControlPlane(conf(oldRef), img)))
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

// TestTriedConfiguration: one trial times out, another one is confirmed.
func TestTriedConfiguration(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"left alone": "new old", "confirmed": "new new"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				conf := func(ref string) []byte {
					return l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: ref})
				}
				b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, l.installedControlPlane(conf(oldRef), image("old"))))
				b.on()
				defer func() { b.guest.Kill() }()
				l.running(cpAddr)
				c := l.client(cpAddr, role.Admin)
				apply := func(mode machineapi.ApplyConfigurationRequest_Mode) string {
					answer, err := c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{Data: conf(newRef), Mode: mode})
					if err != nil {
						t.Fatal(err)
					}
					return answer.GetMessages()[0].GetModeDetails()
				}
				said := apply(machineapi.ApplyConfigurationRequest_TRY)
				if !strings.HasSuffix(said, "automatically reverted back in 1m0s") {
					t.Errorf("it says %q", said)
				}
				got := installerOf(t, c)
				if name == "confirmed" {
					apply(machineapi.ApplyConfigurationRequest_NO_REBOOT)
				}
				time.Sleep(2 * time.Minute)
				if got += " " + installerOf(t, c); got != want {
					t.Errorf("got %s, want %s", got, want)
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

// TestFirstConfiguration: what a configuration from maintenance mode does now and after
// the next reboot, with the system on disk and without.
func TestFirstConfiguration(t *testing.T) {
	t.Parallel()
	const staged, try = machineapi.ApplyConfigurationRequest_STAGED, machineapi.ApplyConfigurationRequest_TRY
	for name, tc := range map[string]struct {
		mode      machineapi.ApplyConfigurationRequest_Mode
		installed bool
		said      string
		now, then runtime.MachineStage
	}{
		"staged":                    {staged, true, "Staged configuration to be applied after the next reboot", runtime.MachineStageMaintenance, runtime.MachineStageRunning},
		"staged, nothing installed": {staged, false, "Staged configuration to be applied after the next reboot", runtime.MachineStageMaintenance, runtime.MachineStageMaintenance},
		"tried":                     {try, true, "reverted back in 1m0s", runtime.MachineStageRunning, runtime.MachineStageMaintenance},
		"no reboot":                 {machineapi.ApplyConfigurationRequest_NO_REBOOT, true, "without a reboot", runtime.MachineStageRunning, runtime.MachineStageRunning},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				conf := l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: oldRef})
				var system []byte
				if tc.installed {
					system = l.withoutState(l.installed(conf, image("old")))
				}
				b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, system), cdrom(l.iso(image("old"))))
				b.on()
				defer func() { b.guest.Kill() }()
				l.awaitStage(l.insecure(cpAddr), runtime.MachineStageMaintenance)
				answer, err := l.insecure(cpAddr).ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{Data: conf, Mode: tc.mode})
				if err != nil || !strings.HasSuffix(answer.GetMessages()[0].GetModeDetails(), tc.said) || answer.GetMessages()[0].GetMode() != tc.mode {
					t.Errorf("it says %v, %v", answer, err)
				}
				for _, stage := range []runtime.MachineStage{tc.now, tc.then} {
					time.Sleep(time.Minute)
					if stage == runtime.MachineStageRunning {
						l.alone(cpAddr)
						l.running(cpAddr)
					} else {
						l.awaitStage(l.insecure(cpAddr), stage)
					}
					b.guest.Kill()
					b.on()
				}
			})
		})
	}
}

// withoutState is a system disk with an empty STATE partition.
func (l *lab) withoutState(system []byte) []byte {
	l.t.Helper()
	d, err := artefact.ReadDisk(system)
	if err != nil {
		l.t.Fatal(err)
	}
	i := slices.IndexFunc(d.Partitions, func(p artefact.Partition) bool { return p.Label == "STATE" })
	d.Partitions[i].Data = nil
	return artefact.WriteDisk(d)
}

// alone bootstraps the etcd of the control plane at addr, unless it has one.
func (l *lab) alone(addr string) {
	l.t.Helper()
	err := l.client(addr, role.Admin).Bootstrap(l.t.Context(), &machineapi.BootstrapRequest{})
	if code := status.Code(err); code != codes.OK && code != codes.AlreadyExists {
		l.t.Fatal(err)
	}
}
