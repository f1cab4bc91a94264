package talosapi_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// An installer fails after it has partitioned the disk: since 1.14 the machine goes on as
// a node that runs from its ISO, and reports itself as installed.
func TestUnfinishedUnattendedInstallation(t *testing.T) {
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
		l.fw.BreakImage("schematic-new", talosapi.InstallerFails)
		b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, nil), cdrom(l.iso(img)))
		b.on()
		defer func() { b.guest.Kill() }()
		open := l.insecure(cpAddr)
		l.awaitStage(open, runtime.MachineStageMaintenance)
		apply(t, open, l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: newRef}))
		time.Sleep(10 * time.Second)
		c := l.client(cpAddr, role.Admin)
		look := func() string {
			s, err := get[*runtime.MachineStatus](t.Context(), c, runtime.NewMachineStatus().Metadata())
			if err != nil {
				return err.Error()
			}
			u, err := get[*runtime.UnattendedInstallStatus](t.Context(), c, runtime.NewUnattendedInstallStatus().Metadata())
			if err != nil {
				return err.Error()
			}
			return fmt.Sprint(s.TypedSpec().Stage, " ", s.TypedSpec().Status.Ready, ", ", u.TypedSpec().Phase)
		}
		if diff := cmp.Diff("running false, installing", look()); diff != "" {
			t.Error(diff)
		}
		requireError(t, "too early", c.Bootstrap(t.Context(), &machineapi.BootstrapRequest{}), codes.FailedPrecondition, "bootstrap is not available yet")
		time.Sleep(5 * time.Minute)
		if got := look(); !strings.HasSuffix(got, ", installed") {
			t.Error(got)
		}
		if now := facts(t, c); now.entry != "talos-v1.14.1.efi" { // also the name of the ISO's entry
			t.Errorf("it booted %q", now.entry)
		}
		b.guest.Kill()
		b.on()
		time.Sleep(time.Minute)
		if screen := strings.Join(l.lines(&l.screen), "\n"); !strings.Contains(screen, "Talos is already installed to disk") {
			t.Errorf("it does not halt at the next boot:\n%s", screen)
		}
	})
}

// With a wrong clock and no time server the machine waits, and its certificate has that
// date; once the clock is right it gets a new one.
func TestAClockThatIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		off  time.Duration
		says string
	}{
		"ahead":                         {5 * time.Hour, "x509: certificate has expired or is not yet valid"},
		"behind":                        {-30 * time.Hour, "x509: certificate has expired or is not yet valid"},
		"behind a client's certificate": {-3 * time.Hour, "remote error: tls: expired certificate"},
		"a little":                      {-time.Hour, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				conf, err := l.cluster.Talosconfig(role.Admin, cpAddr)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Hour)
				l.fw.Trouble(9001, talosapi.Trouble{Clock: c.off})
				cp := l.controlPlane()
				defer cp.guest.Kill()
				time.Sleep(5 * time.Minute)
				_, err = l.clientWith(cpAddr, conf).Version(t.Context())
				if fmt.Sprint(err) != "<nil>" && c.says == "" || !strings.Contains(fmt.Sprint(err), c.says) {
					t.Errorf("err = %v", err)
				}
				l.fw.Trouble(9001, talosapi.Trouble{})
				l.running(cpAddr)
			})
		})
	}
}

// A reboot is accepted at once; until the API ends it answers without machined.
func TestTheAPIOfAMachineThatReboots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, b, c := upgradeLab(t)
		defer b.guest.Kill()
		if err := c.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
		var seen []string
		for range 60 {
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
		if diff := cmp.Diff([]string{"rebooting true", "no machined", "away"}, seen); diff != "" {
			t.Error(diff)
		}
	})
}

// Since 1.14 the API tries once, whatever the error; before, it retries for twenty minutes
// unless the image does not exist.
func TestPullsThatFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trouble talosapi.Trouble
		defect  talosapi.Defect
		says    string
		version string
		takes   time.Duration
	}{
		"no room":              {talosapi.Trouble{Full: true}, talosapi.Sound, "no space left on device", "v1.14.1", 0},
		"no credentials":       {talosapi.Trouble{}, talosapi.Unauthorized, "401 Unauthorized", "v1.14.1", 0},
		"not found":            {talosapi.Trouble{}, talosapi.Unpullable, ": not found", "v1.14.1", 0},
		"no room, 1.13":        {talosapi.Trouble{Full: true}, talosapi.Sound, "no space left on device", "v1.13.9", 20 * time.Minute},
		"no credentials, 1.13": {talosapi.Trouble{}, talosapi.Unauthorized, "401 Unauthorized", "v1.13.9", 20 * time.Minute},
		"not found, 1.13":      {talosapi.Trouble{}, talosapi.Unpullable, ": not found", "v1.13.9", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, old := newLab(t), image("old")
				old.TalosVersion = c.version
				l.installers[newRef] = image("new")
				conf := l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: oldRef})
				b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, l.installedControlPlane(conf, old)))
				b.on()
				defer b.guest.Kill()
				l.running(cpAddr)
				conn := l.client(cpAddr, role.Admin)
				l.fw.Trouble(b.hw.VMID, c.trouble)
				l.fw.BreakImage("schematic-new", c.defect)
				began := time.Now()
				err := pull(t.Context(), conn, newRef)
				if !strings.Contains(fmt.Sprint(err), c.says) || time.Since(began).Round(time.Second) != c.takes {
					t.Errorf("after %s: %v", time.Since(began), err)
				}
				l.fw.Trouble(b.hw.VMID, talosapi.Trouble{})
				l.fw.BreakImage("schematic-new", talosapi.Sound)
				if err := pull(t.Context(), conn, newRef); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
