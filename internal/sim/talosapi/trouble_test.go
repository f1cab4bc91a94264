package talosapi_test

import (
	"bytes"
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
		l := newLabOf(t, "v1.14.1")
		l.fw.BreakImage("schematic-new", talosapi.InstallerFails)
		b, open := l.blank(cpAddr, version("new", "v1.14.1"))
		apply(t, open, l.config(cp1(newRef)))
		time.Sleep(10 * time.Second)
		c := l.client(cpAddr, role.Admin)
		stage, err := l.status(c)
		if err != nil {
			t.Fatal(err)
		}
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
		conf, err := l.cluster.Talosconfig(role.Admin, cpAddr)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		l.fw.Trouble(9001, talosapi.Trouble{Clock: c.off})
		l.controlPlane(image("old"))
		time.Sleep(5 * time.Minute)
		_, err = l.clientWith(cpAddr, conf).Version(t.Context())
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
		if err := c.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // never at the moment of a change
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
		if err := pull(t.Context(), conn, newRef); err != nil {
			t.Error(err)
		}
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
