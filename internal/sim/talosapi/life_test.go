package talosapi_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

func apply(t *testing.T, c *client.Client, conf []byte) {
	t.Helper()
	applyAs(t, c, conf, machineapi.ApplyConfigurationRequest_AUTO)
}

// applyAs is apply with a mode; it returns what the machine says about it.
func applyAs(t *testing.T, c *client.Client, conf []byte, mode machineapi.ApplyConfigurationRequest_Mode) *machineapi.ApplyConfiguration {
	t.Helper()
	answer, err := c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{Data: conf, Mode: mode})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetMessages()[0]
}

func TestInstallFromISO(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.controlPlane(image("old"))
		data := disk("virtio1", "data-wk1", 20, talosapi.DataDisk("u-data", []byte("precious")))
		before := data.Media.SHA256()
		began := time.Now()
		wk, open := l.blank(workerAddr, image("new"), data)
		ctx := t.Context()
		_, err := get[*config.MachineConfig](ctx, open, config.NewMachineConfig(nil).Metadata())
		requireError(t, "machine configuration in maintenance mode", err, codes.PermissionDenied, "")
		requireError(t, "reboot in maintenance mode", open.Reboot(ctx), codes.PermissionDenied, "")
		if got := facts(t, open); got.schematic != "schematic-new" || got.uuid != wk.hw.UUID || got.extensions != "iscsi-tools v0.2.0 0.sqsh, schematic schematic-new 1.sqsh" {
			t.Errorf("facts of the ISO: %+v", got)
		}
		want(t, "firmware variables before", talosapi.Describe(wk.hw.NVRAM.Bytes()), "blank")
		want(t, "volumes in maintenance mode", volumes(t, open), "META missing , STATE missing ")
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
		want(t, "firmware variables", talosapi.Describe(wk.hw.NVRAM.Bytes()), "NVRAM boots Talos-v1.13.9.efi")
		want(t, "volumes", volumes(t, secure), "EPHEMERAL ready /dev/vda4, META ready /dev/vda2, STATE ready /dev/vda3, u-data ready /dev/vdb1")
		want(t, "identity of the data volume", partitionIDs(t, secure)["vdb1"], ids["vdb1"])
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

func TestMachinesWithoutAPI(t *testing.T) {
	meta := artefact.WriteDisk(artefact.Disk{Partitions: []artefact.Partition{{Label: "META", UUID: "m"}}})
	type media struct {
		system, data, iso []byte
		screen            string
	}
	each(t, map[string]media{
		"nothing to boot":      {screen: "9021: no bootable device"},
		"broken ISO":           {iso: []byte("no image at all"), screen: "9021: no bootable device"},
		"META on a data disk":  {iso: []byte("iso"), data: meta, screen: "9021: Talos is already installed to disk but booted from another media"},
		"half-installed":       {iso: []byte("iso"), system: meta, screen: "9021: Talos is already installed to disk but booted from another media"},
		"installed and no ISO": {system: meta, screen: "9021: no bootable device"},
	}, func(t *testing.T, _ string, tc media) {
		l := newLab(t)
		if string(tc.iso) == "iso" {
			tc.iso = l.iso(image("new"))
		}
		b := l.box(workerAddr, disk("virtio0", "system", 10, tc.system), disk("virtio1", "data", 10, tc.data), cdrom(tc.iso))
		b.on()
		time.Sleep(70 * time.Minute)
		b.guest.Shutdown()
		time.Sleep(time.Minute)
		// A halted machine reboots after seventy minutes, and halts again.
		if screen := slices.Compact(l.lines(&l.screen)); len(screen) != 1 || !strings.HasPrefix(screen[0], tc.screen) {
			t.Errorf("screen: %q", screen)
		}
		if !l.silent(workerAddr, time.Second) {
			t.Error("something answers")
		}
		b.requireOn()
	})
}

// requireOn requires that the machine has not switched itself off.
func (b *box) requireOn() {
	b.l.t.Helper()
	select {
	case <-b.off:
		b.l.t.Error("the machine switched itself off")
	default:
	}
}

func TestNoDiskMatches(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		b, c := l.blank(cpAddr, image("new"))
		other := cp1(newRef)
		other.InstallSerial = "other"
		_, err := c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{
			Data: l.config(other), Mode: machineapi.ApplyConfigurationRequest_AUTO,
		})
		requireError(t, "apply", err, codes.InvalidArgument, "v1alpha1.Config: 1 error occurred:\n\t* no disks matched the expression: ")
		if len(b.drives[0].Media.Bytes()) > 0 {
			t.Error("a disk was written")
		}
	})
}

func TestRebootKeepsConfigAndData(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		b, c := l.node(image("old"))
		first := facts(t, c)
		renamed := cp1(oldRef)
		renamed.Hostname = "cp-renamed"
		applyAs(t, c, l.config(renamed), machineapi.ApplyConfigurationRequest_STAGED)
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
	inLab(t, func(t *testing.T, l *lab) {
		l.controlPlane(image("old"))
		data := disk("virtio1", "data-wk1", 20, nil)
		create := func(build string) (*box, *client.Client) {
			b, c := l.blank(workerAddr, image(build), data)
			apply(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef, Documents: []string{ephemeral}}))
			l.running(workerAddr)
			c = l.client(workerAddr, role.Admin)
			want(t, "volumes of "+build, volumes(t, c), "EPHEMERAL ready /dev/vdb1, META ready /dev/vda2, STATE ready /dev/vda3, u-data ready /dev/vdb2")
			return b, c
		}
		b, c := create("old")
		first, ids, sum := facts(t, c), partitionIDs(t, c), data.Media.SHA256()
		b.guest.Kill()

		_, c = create("new")
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
	inLab(t, func(t *testing.T, l *lab) {
		conf := l.config(cp1(newRef))
		for after := time.Duration(0); after < 70*time.Second; after += 1700 * time.Millisecond {
			b := l.box(cpAddr, disk("virtio0", "system", 10, nil), cdrom(l.iso(image("new"))))
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
