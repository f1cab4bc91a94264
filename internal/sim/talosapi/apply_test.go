package talosapi_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

func TestApplyToAConfiguredMachine(t *testing.T) {
	//lint:ignore SA1019 the zero value is under test
	const reboot = machineapi.ApplyConfigurationRequest_REBOOT
	type request struct {
		mode machineapi.ApplyConfigurationRequest_Mode
		dry  bool
		want string // error code, then the active installer and the one after a reboot
	}
	each(t, map[string]request{
		"v1.14.1":           {machineapi.ApplyConfigurationRequest_AUTO, false, "OK new new"},
		"v1.14.1 no reboot": {machineapi.ApplyConfigurationRequest_NO_REBOOT, false, "OK new new"},
		"v1.14.1 staged":    {machineapi.ApplyConfigurationRequest_STAGED, false, "OK old new"},
		"v1.14.1 try":       {machineapi.ApplyConfigurationRequest_TRY, false, "OK new old"},
		"v1.12.4 try":       {machineapi.ApplyConfigurationRequest_TRY, false, "OK new old"},
		"v1.14.1 dry":       {machineapi.ApplyConfigurationRequest_AUTO, true, "OK old old"},
		"v1.14.1 reboot":    {reboot, false, "Unimplemented old old"},
		"v1.13.9 reboot":    {reboot, false, "OK old new"},
		"v1.12.4 reboot":    {reboot, false, "OK old new"},
	}, func(t *testing.T, name string, tc request) {
		l := newLab(t)
		talos, _, _ := strings.Cut(name, " ")
		_, c := l.node(version("old", talos))
		first := facts(t, c).bootID
		_, err := c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{Data: l.config(cp1(newRef)), Mode: tc.mode, DryRun: tc.dry})
		got := status.Code(err).String() + " " + installerOf(t, c)
		if tc.mode == reboot && err == nil {
			l.rebooted(c, first)
		} else {
			l.reboot(c, func() error { return c.Reboot(t.Context()) })
		}
		want(t, "answer", got+" "+installerOf(t, c), tc.want)
	})
}

// TestWhatNeedsAReboot: Talos up to 1.13 refuses, or reboots for, fields that it can't change at once,
// and says so in a dry run; 1.14 no longer looks.
func TestWhatNeedsAReboot(t *testing.T) {
	const auto, now = machineapi.ApplyConfigurationRequest_AUTO, machineapi.ApplyConfigurationRequest_NO_REBOOT
	type request struct {
		mode  machineapi.ApplyConfigurationRequest_Mode
		field string
		want  string // error code, then the mode in the answer
	}
	each(t, map[string]request{
		"v1.12.4 udev":                 {auto, "udev: {rules: [x]}", "OK REBOOT"},
		"v1.13.9 udev":                 {auto, "udev: {rules: [x]}", "OK REBOOT"},
		"v1.14.1 udev":                 {auto, "udev: {rules: [x]}", "OK NO_REBOOT"},
		"v1.13.9 udev, at once":        {now, "udev: {rules: [x]}", "InvalidArgument "},
		"v1.13.9 udev, on trial":       {machineapi.ApplyConfigurationRequest_TRY, "udev: {rules: [x]}", "InvalidArgument "},
		"v1.13.9 sysctl":               {auto, "sysctls: {vm.swappiness: \"1\"}", "OK NO_REBOOT"},
		"v1.13.9 annotation, at once":  {now, "nodeAnnotations: {a: b}", "OK NO_REBOOT"},
		"v1.12.4 annotation, on trial": {machineapi.ApplyConfigurationRequest_TRY, "nodeAnnotations: {a: b}", "OK TRY"},
	}, func(t *testing.T, name string, tc request) {
		l := newLab(t)
		talos, _, _ := strings.Cut(name, " ")
		_, c := l.node(version("old", talos))
		data := strings.Replace(string(l.config(cp1(newRef))), "machine:\n", "machine:\n    "+tc.field+"\n", 1)
		res, err := c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{Data: []byte(data), Mode: tc.mode, DryRun: true})
		mode := ""
		for _, m := range res.GetMessages() {
			mode = m.GetMode().String()
		}
		want(t, "answer", status.Code(err).String()+" "+mode, tc.want)
	})
}

// TestTriedConfiguration: one trial times out, another one is confirmed.
func TestTriedConfiguration(t *testing.T) {
	each(t, map[string]string{"left alone": "new old", "confirmed": "new new"}, func(t *testing.T, name, installers string) {
		l := newLab(t)
		_, c := l.node(image("old"))
		conf := l.config(cp1(newRef))
		said := applyAs(t, c, conf, machineapi.ApplyConfigurationRequest_TRY).GetModeDetails()
		if !strings.HasSuffix(said, "automatically reverted back in 1m0s") {
			t.Errorf("it says %q", said)
		}
		got := installerOf(t, c)
		if name == "confirmed" {
			applyAs(t, c, conf, machineapi.ApplyConfigurationRequest_NO_REBOOT)
		}
		time.Sleep(2 * time.Minute)
		want(t, "installers", got+" "+installerOf(t, c), installers)
	})
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
	const staged, try = machineapi.ApplyConfigurationRequest_STAGED, machineapi.ApplyConfigurationRequest_TRY
	type request struct {
		mode      machineapi.ApplyConfigurationRequest_Mode
		installed bool
		said      string
		now, then runtime.MachineStage
	}
	each(t, map[string]request{
		"staged":                    {staged, true, "Staged configuration to be applied after the next reboot", runtime.MachineStageMaintenance, runtime.MachineStageRunning},
		"staged, nothing installed": {staged, false, "Staged configuration to be applied after the next reboot", runtime.MachineStageMaintenance, runtime.MachineStageMaintenance},
		"tried":                     {try, true, "reverted back in 1m0s", runtime.MachineStageRunning, runtime.MachineStageMaintenance},
		"no reboot":                 {machineapi.ApplyConfigurationRequest_NO_REBOOT, true, "without a reboot", runtime.MachineStageRunning, runtime.MachineStageRunning},
	}, func(t *testing.T, _ string, tc request) {
		l := newLab(t)
		conf := l.config(cp1(oldRef))
		var system []byte
		if tc.installed {
			system = l.withoutState(l.installed(conf, image("old")))
		}
		b := l.box(cpAddr, disk("virtio0", "system", 10, system), cdrom(l.iso(image("old"))))
		b.on()
		answer := applyAs(t, l.maintained(cpAddr), conf, tc.mode)
		if !strings.HasSuffix(answer.GetModeDetails(), tc.said) || answer.GetMode() != tc.mode {
			t.Errorf("it says %v", answer)
		}
		for _, stage := range []runtime.MachineStage{tc.now, tc.then} {
			time.Sleep(time.Minute)
			if stage == runtime.MachineStageRunning {
				l.alone(cpAddr)
				l.running(cpAddr)
			} else {
				l.maintained(cpAddr)
			}
			b.guest.Kill()
			b.on()
		}
	})
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
