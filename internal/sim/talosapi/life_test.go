package talosapi_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

func apply(t *testing.T, c *client.Client, conf []byte) {
	t.Helper()
	if _, err := c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{
		Data: conf, Mode: machineapi.ApplyConfigurationRequest_AUTO,
	}); err != nil {
		t.Fatal(err)
	}
}

func TestInstallFromISO(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.installers[newRef] = image("new")
		cp := l.controlPlane()
		defer cp.guest.Kill()
		data := disk("virtio1", "data-wk1", 20, talosapi.DataDisk("u-data", []byte("precious")))
		before := data.Media.SHA256()
		wk := l.box(9011, "02:00:00:00:00:1F", disk("virtio0", "system", 10, nil), data, cdrom(l.iso(image("new"))))
		began := time.Now()
		wk.on()
		defer func() { wk.guest.Kill() }()

		open := l.insecure(workerAddr)
		l.awaitStage(open, runtime.MachineStageMaintenance)
		ctx := t.Context()
		if _, err := get[*config.MachineConfig](ctx, open, config.NewMachineConfig(nil).Metadata()); status.Code(err) != codes.PermissionDenied {
			t.Errorf("machine configuration in maintenance mode: %v", err)
		}
		if err := open.Reboot(ctx); status.Code(err) != codes.PermissionDenied {
			t.Errorf("reboot in maintenance mode: %v", err)
		}
		if got, want := facts(t, open), image("new"); got.schematic != want.SchematicID || got.uuid != wk.hw.UUID || got.extensions != "iscsi-tools v0.2.0 0.sqsh, schematic schematic-new 1.sqsh" {
			t.Errorf("facts of the ISO: %+v", got)
		}
		if got, want := volumes(t, open), "EPHEMERAL waiting , META missing , STATE missing "; got != want {
			t.Errorf("volumes in maintenance mode: %s, want %s", got, want)
		}
		ids := partitionIDs(t, open)

		apply(t, open, l.config(talosapi.Machine{
			Hostname: "wk1", Installer: newRef,
			Documents: []string{"apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nprovisioning:\n  diskSelector:\n    match: disk.serial == 'data-wk1'\n  minSize: 1GiB\n"},
		}))
		secure := l.client(workerAddr, role.Admin)
		l.awaitStage(secure, runtime.MachineStageRunning)
		got := facts(t, secure)
		if got.entry != "Talos-v1.13.9.efi" || got.schematic != "schematic-new" || strings.Contains(got.cmdline, "halt_if_installed") || !strings.Contains(got.cmdline, "recast.lock=sha256-new") {
			t.Errorf("facts of the installed system: %+v", got)
		}
		if got, want := volumes(t, secure), "EPHEMERAL ready /dev/vda4, META ready /dev/vda2, STATE ready /dev/vda3, u-data ready /dev/vdb1"; got != want {
			t.Errorf("volumes: %s, want %s", got, want)
		}
		if got, want := partitionIDs(t, secure)["vdb1"], ids["vdb1"]; got != want || want == "" {
			t.Errorf("identity of the data volume: %s, before %s", got, want)
		}
		if data.Media.SHA256() != before {
			t.Error("the install touched the data disk")
		}
		if _, err := readFacts(t.Context(), open); err == nil {
			t.Error("a client without certificate still gets in")
		}
		if diff := cmp.Diff([]string{"up cp1 v1.35.4 cp=true", "up wk1 v1.35.4 cp=false"}, l.lines(&l.kubelets)); diff != "" {
			t.Errorf("kubelets (-want +got):\n%s", diff)
		}
		if took := time.Since(began); took < 45*time.Second || took > 90*time.Second {
			t.Errorf("the install took %s", took)
		}
	})
}

func TestBytesDecideWhatBoots(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]string{"old": "old", "new": "new"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				b := l.box(9011, "02:00:00:00:00:1F", disk("virtio0", "system", 10, nil), cdrom(l.iso(image(build))))
				b.on()
				defer b.guest.Kill()
				c := l.insecure(workerAddr)
				l.awaitStage(c, runtime.MachineStageMaintenance)
				if got := facts(t, c).schematic; got != "schematic-"+build {
					t.Errorf("schematic = %s", got)
				}
			})
		})
	}
}

func TestMachinesWithoutAPI(t *testing.T) {
	t.Parallel()
	meta := artefact.WriteDisk(artefact.Disk{Partitions: []artefact.Partition{{Label: "META", UUID: "m"}}})
	tests := map[string]struct {
		system, data, iso []byte
		screen            string
	}{
		"nothing to boot":      {screen: "9011: no bootable device"},
		"broken ISO":           {iso: []byte("no image at all"), screen: "9011: no bootable device"},
		"META on a data disk":  {iso: []byte("iso"), data: meta, screen: "9011: Talos is already installed to disk but booted from another media"},
		"half-installed":       {iso: []byte("iso"), system: meta, screen: "9011: Talos is already installed to disk but booted from another media"},
		"installed and no ISO": {system: meta, screen: "9011: no bootable device"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				if string(tc.iso) == "iso" {
					tc.iso = l.iso(image("new"))
				}
				b := l.box(9011, "02:00:00:00:00:1F", disk("virtio0", "system", 10, tc.system), disk("virtio1", "data", 10, tc.data), cdrom(tc.iso))
				b.on()
				time.Sleep(70 * time.Minute)
				b.guest.Shutdown()
				time.Sleep(time.Minute)
				// A halted machine reboots after seventy minutes, and halts again.
				if screen := slices.Compact(l.lines(&l.screen)); len(screen) != 1 || !strings.HasPrefix(screen[0], tc.screen) {
					t.Errorf("screen: %q", screen)
				}
				if _, err := l.net.Dialer().DialContext(t.Context(), "tcp", workerAddr+":50000"); err == nil {
					t.Error("something answers")
				}
				select {
				case <-b.off:
					t.Error("the machine switched itself off")
				default:
				}
				b.guest.Kill()
			})
		})
	}
}

func TestNoDiskMatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.installers[newRef] = image("new")
		system := disk("virtio0", "other", 10, nil)
		b := l.box(9001, "02:00:00:00:00:0B", system, cdrom(l.iso(image("new"))))
		b.on()
		defer b.guest.Kill()
		c := l.insecure(cpAddr)
		l.awaitStage(c, runtime.MachineStageMaintenance)
		_, err := c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{
			Data: l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: newRef}), Mode: machineapi.ApplyConfigurationRequest_AUTO,
		})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "v1alpha1.Config: 1 error occurred:\n\t* no disks matched the expression: ") {
			t.Errorf("err = %v", err)
		}
		if len(system.Media.Bytes()) > 0 {
			t.Error("a disk was written")
		}
	})
}

func TestPowerLossDuringInstallLeavesAHaltingMachine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.installers[newRef] = image("new")
		b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, nil), cdrom(l.iso(image("new"))))
		b.on()
		c := l.insecure(cpAddr)
		l.awaitStage(c, runtime.MachineStageMaintenance)
		apply(t, c, l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: newRef}))
		time.Sleep(15 * time.Second)
		b.guest.Kill()
		b.on()
		time.Sleep(time.Minute)
		b.guest.Kill()
		screen := l.lines(&l.screen)
		if last := screen[len(screen)-1]; !strings.Contains(last, "already installed") {
			t.Errorf("screen: %q", screen)
		}
	})
}

func TestRebootKeepsConfigAndData(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, func(o *talosapi.Options) { o.BootLog = true })
		b := l.controlPlane()
		defer func() { b.guest.Kill() }()
		c := l.client(cpAddr, role.Admin)
		l.awaitStage(c, runtime.MachineStageRunning)
		first := facts(t, c)
		staged := l.config(talosapi.Machine{Hostname: "cp-renamed", ControlPlane: true, Installer: oldRef})
		if _, err := c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{Data: staged, Mode: machineapi.ApplyConfigurationRequest_STAGED}); err != nil {
			t.Fatal(err)
		}
		if now := facts(t, c); now != first {
			t.Errorf("a staged configuration changed %+v to %+v", first, now)
		}
		if err := c.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		l.awaitStage(c, runtime.MachineStageRunning)
		second := facts(t, c)
		if second.bootID == first.bootID || second.hostname != "cp-renamed" || second.identity != first.identity {
			t.Errorf("after the reboot: %+v, before: %+v", second, first)
		}
		d, err := artefact.ReadDisk(b.drives[0].Media.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if log := string(d.Partitions[3].Data); strings.Count(log, "\n") != 2 || !strings.HasPrefix(log, first.bootID) {
			t.Errorf("boot log: %q", log)
		}
		b.guest.Shutdown()
		time.Sleep(5 * time.Second)
		<-b.off
		if diff := cmp.Diff([]string{"up cp1 v1.35.4 cp=true", "down cp1", "up cp-renamed v1.35.4 cp=true", "down cp-renamed"}, l.lines(&l.kubelets)); diff != "" {
			t.Errorf("kubelets (-want +got):\n%s", diff)
		}
	})
}

// ephemeral puts EPHEMERAL and a user volume on the disk with serial data-wk1.
const ephemeral = `apiVersion: v1alpha1
kind: VolumeConfig
name: EPHEMERAL
provisioning:
  diskSelector:
    match: disk.serial == 'data-wk1'
  maxSize: 10GiB
---
apiVersion: v1alpha1
kind: UserVolumeConfig
name: data
provisioning:
  diskSelector:
    match: "!system_disk && disk.size > 15u * GiB"
  minSize: 1GiB
`

func TestRecreateFindsItsVolumesAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.installers[oldRef], l.installers[newRef] = image("old"), image("new")
		cp := l.controlPlane()
		defer cp.guest.Kill()
		data := disk("virtio1", "data-wk1", 20, nil)
		create := func(build, ref string) (*box, *client.Client) {
			b := l.box(9011, "02:00:00:00:00:1F", disk("virtio0", "system", 10, nil), data, cdrom(l.iso(image(build))))
			b.on()
			c := l.insecure(workerAddr)
			l.awaitStage(c, runtime.MachineStageMaintenance)
			apply(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: ref, Documents: []string{ephemeral}}))
			c = l.client(workerAddr, role.Admin)
			l.awaitStage(c, runtime.MachineStageRunning)
			return b, c
		}
		b, c := create("old", oldRef)
		want := "EPHEMERAL ready /dev/vdb1, META ready /dev/vda2, STATE ready /dev/vda3, u-data ready /dev/vdb2"
		if got := volumes(t, c); got != want {
			t.Errorf("volumes: %s, want %s", got, want)
		}
		first, ids, sum := facts(t, c), partitionIDs(t, c), data.Media.SHA256()
		b.guest.Kill()

		b, c = create("new", newRef)
		defer b.guest.Kill()
		if got := volumes(t, c); got != want {
			t.Errorf("volumes after the recreate: %s, want %s", got, want)
		}
		second, now := facts(t, c), partitionIDs(t, c)
		if second.schematic != "schematic-new" || second.identity == first.identity || second.hostname != first.hostname {
			t.Errorf("after the recreate: %+v, before: %+v", second, first)
		}
		if now["vdb1"] != ids["vdb1"] || now["vdb2"] != ids["vdb2"] || now["vda3"] == ids["vda3"] {
			t.Errorf("partitions: %v, before: %v", now, ids)
		}
		if data.Media.SHA256() != sum {
			t.Error("the data disk changed")
		}
	})
}

func TestKillAtAnyTime(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.installers[newRef] = image("new")
		conf := l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: newRef})
		for after := time.Duration(0); after < 70*time.Second; after += 1700 * time.Millisecond {
			b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, nil), cdrom(l.iso(image("new"))))
			b.on()
			go func() {
				time.Sleep(16 * time.Second)
				c := l.insecure(cpAddr)
				// the machine may be down already, or go down while it answers
				_, _ = c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{Data: conf, Mode: machineapi.ApplyConfigurationRequest_AUTO})
			}()
			time.Sleep(after)
			b.guest.Kill()
			frozen := b.drives[0].Media.SHA256()
			time.Sleep(2 * time.Minute)
			if b.drives[0].Media.SHA256() != frozen {
				t.Errorf("killed after %s: the disk changed later", after)
			}
			ln, err := l.net.Listen(cpAddr + ":50000")
			if err != nil {
				t.Fatalf("killed after %s: %v", after, err)
			}
			_ = ln.Close()
		}
	})
}

func TestTenMinutesCostLittle(t *testing.T) {
	t.Parallel()
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		b := l.controlPlane()
		defer b.guest.Kill()
		c := l.client(cpAddr, role.Reader)
		l.awaitStage(c, runtime.MachineStageRunning)
		for range 120 {
			if got := volumes(t, c); !strings.HasPrefix(got, "EPHEMERAL ready /dev/vda4") {
				t.Fatal(got)
			}
			time.Sleep(5 * time.Second)
		}
	})
	t.Logf("ten minutes with a read every 5 s: %s", time.Since(began))
}
