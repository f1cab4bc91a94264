package talosapi_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/safe"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/talosapi"
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
	cfg := must.Get(get[*configres.MachineConfig](t.Context(), c, configres.NewMachineConfig(nil).Metadata()))(t)
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
	d := must.Get(artefact.ReadDisk(system))(l.t)
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

// said is a status as a line: "OK", or code and message.
func said(err error) string {
	if err == nil {
		return "OK"
	}
	return status.Code(err).String() + " " + client.Status(err).Message()
}

// A machine in maintenance mode has the methods and behaviour of its release.
func TestMaintenanceOfEachRelease(t *testing.T) {
	unimplemented := func(mode string) string {
		return "Unimplemented apply configuration --mode='" + mode + "' is not supported in maintenance mode"
	}
	fourteen := map[string]string{
		"version": "OK", "services": "OK", "list": "OK", "reboot": "PermissionDenied not authorized", "meta": "PermissionDenied not authorized", "lacks": "",
		"mode REBOOT": "OK", "mode AUTO": "OK", "mode NO_REBOOT": "OK", "mode TRY": "OK", "mode STAGED": "OK",
		"mode 7":   "InvalidArgument incorrect mode '7' specified for the apply config call",
		"document": "InvalidArgument 1 error occurred:\n\t* UnattendedInstallConfig config is incompatible with v1alpha1 config (.machine.install)\n\n", "1.13's": "OK", "1.14's": "OK", "volume": "OK",
	}
	with := func(base map[string]string, more ...string) map[string]string {
		out := maps.Clone(base)
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	thirteen := with(fourteen, "mode 7", "Unknown incorrect mode '7' specified for the apply config call", "lacks", " BootID UnattendedInstallStatus",
		"document", `InvalidArgument error decoding document v1alpha1/UnattendedInstallConfig/ (line 2): "UnattendedInstallConfig" "v1alpha1": not registered`,
		"1.14's", `InvalidArgument error decoding document v1alpha1/KernelModuleConfig/nbd (line 1): "KernelModuleConfig" "v1alpha1": not registered`,
		"volume", `InvalidArgument only ["STATE" "EPHEMERAL" "IMAGECACHE"] volumes are supported`)
	twelve := with(thirteen, "version", "Unimplemented API is not implemented in maintenance mode", "meta", "Unimplemented API is not implemented in maintenance mode",
		"services", "Unimplemented method ServiceList not implemented", "list", "Unimplemented method List not implemented", "reboot", "Unimplemented method Reboot not implemented",
		"1.13's", `InvalidArgument error decoding document v1alpha1/EnvironmentConfig/ (line 1): "EnvironmentConfig" "v1alpha1": not registered`,
		"mode NO_REBOOT", unimplemented("no-reboot"), "mode STAGED", unimplemented("staged"), "mode 7", unimplemented("7"))
	answers := map[string]map[string]string{"v1.12.6": twelve, "v1.13.9": thirteen, "v1.14.1": fourteen, "v1.11.2": twelve, "v1.15.0": fourteen}
	each(t, answers, func(t *testing.T, talos string, want map[string]string) {
		l := newLab(t)
		_, c := l.blank(workerAddr, version("new", talos))
		must.Equal(t, "answers", want, inMaintenance(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef})))
	})
}

// inMaintenance requests everything that differs from a machine in maintenance mode; nothing changes the machine.
func inMaintenance(t *testing.T, c *client.Client, conf []byte) map[string]string {
	t.Helper()
	ctx, got := t.Context(), map[string]string{}
	_, err := c.Version(ctx)
	got["version"] = said(err)
	_, err = c.ServiceList(ctx)
	got["services"] = said(err)
	got["reboot"], got["meta"] = said(c.Reboot(ctx)), said(c.MetaWrite(ctx, 0x0c, nil))
	files, err := c.LS(ctx, &machineapi.ListRequest{Root: "/usr"})
	if err == nil {
		_, err = files.Recv()
	}
	got["list"] = said(err)
	all := must.Get(safe.StateListAll[*meta.ResourceDefinition](ctx, c.COSI))(t)
	for _, kind := range []string{"BootID", "UnattendedInstallStatus"} {
		if _, there := all.Find(func(rd *meta.ResourceDefinition) bool { return rd.TypedSpec().DisplayType == kind }); !there {
			got["lacks"] += " " + kind
		}
	}
	got["lacks"] += ""
	apply := func(mode machineapi.ApplyConfigurationRequest_Mode, before string) string {
		_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: slices.Concat([]byte(before), conf), Mode: mode, DryRun: true})
		return said(err)
	}
	for mode, name := range machineapi.ApplyConfigurationRequest_Mode_name {
		got["mode "+name] = apply(machineapi.ApplyConfigurationRequest_Mode(mode), "")
	}
	_, err = c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: conf, Mode: 7})
	got["mode 7"] = said(err)
	const auto = machineapi.ApplyConfigurationRequest_AUTO
	got["document"] = apply(auto, "---\napiVersion: v1alpha1\nkind: UnattendedInstallConfig\ninstaller: {image: "+newRef+"}\nprovisioning: {diskSelector: {match: disk.serial == \"system\"}}\n---\n")
	got["1.13's"] = apply(auto, "apiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables: {A: b}\n---\n")
	got["1.14's"] = apply(auto, "apiVersion: v1alpha1\nkind: KernelModuleConfig\nname: nbd\n---\n")
	got["volume"] = apply(auto, "apiVersion: v1alpha1\nkind: VolumeConfig\nname: ETCD\nprovisioning: {diskSelector: {match: disk.serial == \"data\"}, minSize: 1GiB}\n---\n")
	return got
}

// An installer fails after it has partitioned the disk: since 1.14 the machine goes on as
// a node that runs from its ISO, and reports itself as installed.
func TestUnfinishedUnattendedInstallation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLabOf(t, "v1.14.1")
		l.fw.BreakImage("schematic-new", talosapi.InstallerFails)
		b, open := l.blank(cpAddr, version("new", "v1.14.1"))
		apply(t, open, l.config(cp1(newRef)))
		time.Sleep(10 * time.Second)
		c := l.client(cpAddr, role.Admin)
		stage := must.Get(l.status(c))(t)
		want(t, "stage", stage, "running ready=false services: kubelet not running")
		want(t, "installation", unattended(t, c), "installing")
		requireError(t, "too early", c.Bootstrap(t.Context(), &machineapi.BootstrapRequest{}), codes.FailedPrecondition, "bootstrap is not available yet")
		time.Sleep(5 * time.Minute)
		want(t, "installation", unattended(t, c), "installed")
		want(t, "entry", facts(t, c).entry, "talos-v1.14.1.efi") // also the name of the ISO's entry
		b.guest.Kill()
		b.on()
		time.Sleep(time.Minute)
		if !l.onScreen("Talos is already installed to disk") {
			t.Errorf("it does not halt at the next boot: %q", l.lines(&l.screen))
		}
	})
}

// With a wrong clock and no time server the machine waits, and its certificate has that
// date; once the clock is right it gets a new one.
func TestAClockThatIsWrong(t *testing.T) {
	type clock struct {
		off  time.Duration
		says string
	}
	each(t, map[string]clock{
		"ahead":                         {5 * time.Hour, "x509: certificate has expired or is not yet valid"},
		"behind":                        {-30 * time.Hour, "x509: certificate has expired or is not yet valid"},
		"behind a client's certificate": {-3 * time.Hour, "remote error: tls: expired certificate"},
		"a little":                      {-time.Hour, ""},
	}, func(t *testing.T, _ string, c clock) {
		l := newLab(t)
		conf := must.Get(l.cluster.Talosconfig(role.Admin, cpAddr))(t)
		time.Sleep(2 * time.Hour)
		l.fw.Trouble(9001, talosapi.Trouble{Clock: c.off})
		l.controlPlane(image("old"))
		time.Sleep(5 * time.Minute)
		_, err := l.clientWith(cpAddr, conf).Version(t.Context())
		if err != nil && c.says == "" || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("err = %v", err)
		}
		l.fw.Trouble(9001, talosapi.Trouble{})
		l.running(cpAddr)
	})
}

// A reboot is accepted at once; until the API ends it answers without machined.
func TestTheAPIOfAMachineThatReboots(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		_, c := l.node(image("old"))
		must.Do(t, c.Reboot(t.Context()))
		time.Sleep(100 * time.Millisecond) // never at the moment of a change
		var seen []string
		for range 56 { // until just before its API is back
			time.Sleep(250 * time.Millisecond)
			_, err := c.Version(t.Context())
			s, errStage := get[*runtime.MachineStatus](t.Context(), c, runtime.NewMachineStatus().Metadata())
			what := ""
			switch {
			case errStage == nil:
				what = fmt.Sprint(s.TypedSpec().Stage, " ", s.TypedSpec().Status.Ready)
			case strings.Contains(fmt.Sprint(err), "dial unix /system/run/machined/machine.sock: connect: connection refused"):
				what = "no machined"
			case status.Code(err) == codes.Unavailable:
				what = "away"
			}
			if len(seen) == 0 || seen[len(seen)-1] != what {
				seen = append(seen, what)
			}
		}
		must.Equal(t, "seen", []string{"rebooting true", "no machined", "away"}, seen)
	})
}

// Since 1.14 the API tries once, whatever the error; before, it retries for twenty minutes
// unless the image does not exist.
func TestPullsThatFail(t *testing.T) {
	const missing = `error pulling image: failed to pull image "` + newRef + `": failed to resolve reference "` + newRef + `": ` + newRef + `: not found`
	type failure struct {
		trouble talosapi.Trouble
		defect  talosapi.Defect
		says    string
		version string
		takes   time.Duration
	}
	each(t, map[string]failure{
		"no room":              {talosapi.Trouble{Full: true}, talosapi.Sound, "no space left on device", "v1.14.1", 0},
		"no credentials":       {talosapi.Trouble{}, talosapi.Unauthorized, "401 Unauthorized", "v1.14.1", 0},
		"not found":            {talosapi.Trouble{}, talosapi.Unpullable, missing, "v1.14.1", 0},
		"no room, 1.13":        {talosapi.Trouble{Full: true}, talosapi.Sound, "no space left on device", "v1.13.9", 20 * time.Minute},
		"no credentials, 1.13": {talosapi.Trouble{}, talosapi.Unauthorized, "401 Unauthorized", "v1.13.9", 20 * time.Minute},
		"not found, 1.13":      {talosapi.Trouble{}, talosapi.Unpullable, missing, "v1.13.9", 0},
	}, func(t *testing.T, _ string, c failure) {
		l := newLab(t)
		_, conn := l.node(version("old", c.version))
		l.fw.Trouble(9001, c.trouble)
		l.fw.BreakImage("schematic-new", c.defect)
		began := time.Now()
		err := pull(t.Context(), conn, newRef)
		if !strings.Contains(fmt.Sprint(err), c.says) || time.Since(began).Round(time.Second) != c.takes || (status.Code(err) == codes.NotFound) != (c.says == missing) {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		l.fw.Trouble(9001, talosapi.Trouble{})
		l.fw.BreakImage("schematic-new", talosapi.Sound)
		must.Do(t, pull(t.Context(), conn, newRef))
	})
}

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
		must.Contain(t, "kernel arguments", now.cmdline, "talos.halt_if_installed=1")
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
