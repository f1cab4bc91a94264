package talosapi_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/qcow2"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

func apply(t *testing.T, c *client.Client, conf []byte) {
	t.Helper()
	applyAs(t, c, conf, machineapi.ApplyConfigurationRequest_AUTO)
}

// applyAs is apply with a mode; it returns what the machine says about it.
func applyAs(t *testing.T, c *client.Client, conf []byte, mode machineapi.ApplyConfigurationRequest_Mode) *machineapi.ApplyConfiguration {
	t.Helper()
	answer := must.Get(c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{Data: conf, Mode: mode}))(t)
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
		must.Equal(t, "the install touched the data disk", before, data.Media.SHA256())
		if _, err := readFacts(t.Context(), open); err == nil {
			t.Error("a client without certificate still gets in")
		}
		must.Equal(t, "kubelets", []string{"up cp1 v1.35.4 cp=true", "up wk1 v1.35.4 cp=false"}, l.lines(&l.kubelets))
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
	truncated := imported(t, image("new"), artefact.DiskForm{})
	clear(truncated[len(truncated)/2:]) // a disk that was filled only in part is no Talos disk
	each(t, map[string]media{
		"nothing to boot":      {screen: "9021: no bootable device"},
		"half of a disk image": {system: truncated, screen: "9021: no bootable device"},
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
		must.Equal(t, "something answers", false, !l.silent(workerAddr, time.Second))
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
		must.Equal(t, "a disk was written", false, len(b.drives[0].Media.Bytes()) > 0)
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
		must.Do(t, c.Reboot(t.Context()))
		time.Sleep(10 * time.Second)
		l.awaitStage(c, runtime.MachineStageRunning)
		second := facts(t, c)
		if second.bootID == first.bootID || second.hostname != "cp-renamed" || second.identity != first.identity {
			t.Errorf("after the reboot: %+v, before: %+v", second, first)
		}
		b.guest.Shutdown()
		time.Sleep(5 * time.Second)
		<-b.off
		must.Equal(t, "kubelets", []string{"up cp1 v1.35.4 cp=true", "down cp1", "up cp-renamed v1.35.4 cp=true", "down cp-renamed"}, l.lines(&l.kubelets))
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
		must.Equal(t, "the data disk changed", sum, data.Media.SHA256())
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
			must.Equal(t, fmt.Sprintf("disk of a machine killed after %s", after), frozen, b.drives[0].Media.SHA256())
			ln, err := l.net.Listen(cpAddr + ":50000")
			if err != nil {
				t.Fatalf("killed after %s: %v", after, err)
			}
			_ = ln.Close()
		}
	})
}

// imported is a disk that Proxmox has made from a disk image.
func imported(t *testing.T, img artefact.Image, form artefact.DiskForm) []byte {
	t.Helper()
	file := must.Get(artefact.DiskImage(img, form))(t)
	d := must.Get(qcow2.Open(bytes.NewReader(file), int64(len(file))))(t)
	return must.Get(io.ReadAll(io.NewSectionReader(d, 0, d.Size())))(t)
}

// TestBootFromDiskImage: such a machine counts as installed, so it ignores what its
// configuration says about an installation, and does not reboot.
func TestBootFromDiskImage(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.controlPlane(image("old"))
		data := disk("virtio1", "data-wk1", 20, talosapi.DataDisk("u-data", []byte("precious")))
		began := time.Now()
		wk := l.box(workerAddr, disk("virtio0", "system", 10, imported(t, image("new"), artefact.DiskForm{BIOS: true})), data)
		wk.on()
		open := l.maintained(workerAddr)
		got := facts(t, open)
		if got.schematic != "schematic-new" || got.uuid != wk.hw.UUID || strings.Contains(got.cmdline, "halt_if_installed") || got.entry != "talos-v1.13.9.efi" {
			t.Errorf("facts in maintenance mode: %+v", got)
		}
		want(t, "volumes in maintenance mode", volumes(t, open), "META ready /dev/vda4, STATE missing ")

		apply(t, open, l.config(talosapi.Machine{Hostname: "wk1", Installer: "factory.test/nocloud-installer/none:v1.13.9"}))
		secure := l.client(workerAddr, role.Admin)
		l.awaitStage(secure, runtime.MachineStageRunning)
		if got = facts(t, secure); got.entry != "talos-v1.13.9.efi" || !strings.Contains(got.cmdline, "recast.lock=sha256-new") {
			t.Errorf("facts of the node: %+v", got)
		}
		want(t, "volumes", volumes(t, secure), "EPHEMERAL ready /dev/vda6, META ready /dev/vda4, STATE ready /dev/vda5")
		if took := time.Since(began); took > 45*time.Second { // its kubelet may wait 10 s for the next attempt to join
			t.Errorf("it took %s, as if it had rebooted", took)
		}
	})
}

// TestDisksHoldTheInstallersImage: a boot entry is the installer's file, byte for byte,
// whoever wrote it; a large one is stored outside of the disk.
func TestDisksHoldTheInstallersImage(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	inLab(t, func(t *testing.T, l *lab) {
		cp, c := l.node(image("old"))
		const file = "/usr/local/sbin/iscsid"
		large := make([]byte, 2<<20)
		_, _ = rand.NewChaCha8([32]byte{}).Read(large) // never fails
		img := image("new")
		img.Extensions[0].Files[file] = large
		l.installers[newRef] = img
		entry := func(name string, img artefact.Image) string {
			return fmt.Sprintf("%s %.8x", name, sha256.Sum256(ukiOf(t, img)))
		}

		mustInstall(t, c, newRef)
		wk, open := l.blank(workerAddr, img)
		apply(t, open, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef}))
		l.running(workerAddr)
		for _, tc := range []struct {
			b    *box
			want string
		}{
			{cp, "EFI [" + entry("Talos-v1.13.9.efi", image("old")) + ", " + entry("Talos-v1.13.9~1.efi", img) + "];"},
			{wk, "EFI [" + entry("Talos-v1.13.9.efi", img) + "];"},
		} {
			media := tc.b.drives[0].Media
			if got := talosapi.Describe(media.Bytes()); !strings.HasPrefix(got, tc.want) {
				t.Errorf("%s has %s\nwant %s", tc.b.hw.Name, got, tc.want)
			}
			if got := media.Size(); got > 64<<10 {
				t.Errorf("the disk of %s holds %d bytes", tc.b.hw.Name, got)
			}
		}
		got, err := readFile(t.Context(), l.client(workerAddr, role.Admin), file)
		must.Equal(t, "the installed system", []any{nil, string(large)}, []any{err, string(got)})
		list := must.Get(c.ImageClient.List(t.Context(), &machineapi.ImageServiceListRequest{Containerd: criSystem()}))(t)
		if m, err := list.Recv(); err != nil || m.GetSize() != int64(len(ukiOf(t, img))) {
			t.Errorf("the pulled image has %d bytes, err = %v", m.GetSize(), err)
		}
	})
}

// TestWhatTheFirmwareBoots: an image of its own architecture, unless Secure Boot requires a signature.
func TestWhatTheFirmwareBoots(t *testing.T) {
	const denied, nothing = "9021: BdsDxe: failed to load ide2: Access Denied", "9021: no bootable device"
	type scene struct {
		image, arch string // architectures of the image and the machine
		secureBoot  bool
		screen      []string // nil: it boots
	}
	each(t, map[string]scene{
		"the same architecture":     {"amd64", "amd64", false, nil},
		"another architecture":      {"arm64", "amd64", false, []string{nothing}},
		"both others":               {"arm64", "arm64", false, nil},
		"keys that have not signed": {"amd64", "amd64", true, []string{denied, nothing}},
	}, func(t *testing.T, _ string, tc scene) {
		l := newLab(t)
		img := image("new")
		img.Arch = tc.image
		b := l.box(workerAddr, disk("virtio0", "system", 10, nil), cdrom(l.iso(img)))
		b.hw.Arch, b.hw.SecureBoot = tc.arch, tc.secureBoot
		b.on()
		if tc.screen == nil {
			l.maintained(workerAddr)
		}
		time.Sleep(time.Minute)
		must.Equal(t, "lines", tc.screen, l.lines(&l.screen), cmpopts.EquateEmpty())
	})
}

// TestWhatTheImageIsFor: what a machine reports about it, blank and configured.
func TestWhatTheImageIsFor(t *testing.T) {
	type scene struct {
		platform, mode string
		seabios        bool
	}
	each(t, map[string]scene{
		"nocloud": {"nocloud", "cloud", false}, "metal": {"metal", "metal", false}, "SeaBIOS": {"metal", "metal", true},
	}, func(t *testing.T, _ string, tc scene) {
		l := newLab(t)
		img := image("new")
		img.Platform, img.Cmdline = tc.platform, "talos.platform="+tc.platform
		l.installers[newRef] = img
		l.controlPlane(image("old"))
		b := l.box(workerAddr, disk("virtio0", "system", 10, nil), cdrom(l.iso(img)))
		if tc.seabios {
			b.hw.NVRAM = nil
		}
		b.on()
		open := l.maintained(workerAddr)
		for _, configured := range []bool{false, true} {
			c := open
			if configured {
				apply(t, open, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef}))
				l.running(workerAddr)
				c = l.client(workerAddr, role.Reader)
			}
			v := must.Get(c.Version(t.Context()))(t)
			got := v.GetMessages()[0]
			if got.GetVersion().GetArch() != "amd64" || got.GetPlatform().GetName() != tc.platform || got.GetPlatform().GetMode() != tc.mode || got.GetFeatures().GetRbac() != configured {
				t.Errorf("configured %t: %v", configured, got)
			}
			state, err := get[*runtime.SecurityState](t.Context(), c, runtime.NewSecurityStateSpec(runtime.NamespaceName).Metadata())
			if err != nil || state.TypedSpec().SecureBoot || state.TypedSpec().BootedWithUKI == tc.seabios {
				t.Errorf("configured %t: %+v, %v", configured, state, err)
			}
		}
	})
}

const efivar = "/sys/firmware/efi/efivars/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// TestSystemDiskUnderOtherVariables: a system disk that was upgraded in place has two entries, and the firmware
// variable with the default entry may have been written for another system disk.
func TestSystemDiskUnderOtherVariables(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	type scene struct {
		upgraded, variables artefact.Image // the disk's latest upgrade; the installation that wrote the variables
		blank, seabios      bool
		want                string // entry
	}
	each(t, map[string]scene{
		"its own":                      {upgraded: image("new"), want: "talos-v1.13.9~1.efi"},
		"none":                         {upgraded: image("new"), blank: true, want: "talos-v1.13.9.efi"},
		"none, of another version":     {upgraded: version("new", "v1.13.10"), blank: true, want: "talos-v1.13.10.efi"},
		"of a new install of the same": {upgraded: image("new"), variables: image("other"), want: "talos-v1.13.9.efi"},
		"of a new install of another":  {upgraded: version("new", "v1.13.10"), variables: version("other", "v1.13.11"), want: "talos-v1.13.10.efi"},
		"no UEFI":                      {upgraded: image("new"), seabios: true, want: "talos-v1.13.9~1.efi"},
	}, func(t *testing.T, _ string, test scene) {
		l := newLab(t)
		l.installers[newRef] = test.upgraded
		b := l.controlPlane(image("old"))
		if test.seabios {
			b.guest.Kill()
			b.hw.NVRAM = nil
			b.on()
		}
		l.running(cpAddr)
		c := l.client(cpAddr, role.Admin)
		mustInstall(t, c, newRef)
		b.guest.Kill()
		switch {
		case test.blank:
			b.hw.NVRAM = world.NewMedia(nil)
		case test.variables.TalosVersion != "":
			b.hw.NVRAM = world.NewMedia(talosapi.NVRAM(test.variables))
		}
		b.on()
		l.running(cpAddr)
		c = l.client(cpAddr, role.Admin)
		want(t, "boots", facts(t, c).entry, test.want)
		_, err := readFile(t.Context(), c, efivar)
		must.Equal(t, "variable", status.Code(err) == codes.NotFound, test.blank || test.seabios)
	})
}
