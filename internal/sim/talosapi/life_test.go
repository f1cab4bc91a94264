package talosapi_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/google/go-cmp/cmp"
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
		got := facts(t, open)
		must.Equal(t, "facts of the ISO", []string{"schematic-new", wk.hw.UUID, "iscsi-tools v0.2.0 0.sqsh, schematic schematic-new 1.sqsh"},
			[]string{got.schematic, got.uuid, got.extensions})
		want(t, "firmware variables before", talosapi.Describe(wk.hw.NVRAM.Bytes()), "blank")
		want(t, "volumes in maintenance mode", volumes(t, open), "META missing , STATE missing ")
		ids := partitionIDs(t, open)

		apply(t, open, l.config(talosapi.Machine{
			Hostname: "wk1", Installer: newRef,
			Documents: []string{"apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nprovisioning:\n  diskSelector:\n    match: disk.serial == 'data-wk1'\n  minSize: 1GiB\n"},
		}))
		secure := l.client(workerAddr, role.Admin)
		l.awaitStage(secure, runtime.MachineStageRunning)
		got = facts(t, secure)
		must.Equal(t, "facts of the installed system", []any{"Talos-v1.13.9.efi", "schematic-new", false},
			[]any{got.entry, got.schematic, strings.Contains(got.cmdline, "halt_if_installed")})
		must.Contain(t, "kernel arguments", got.cmdline, "recast.lock=sha256-new")
		want(t, "firmware variables", talosapi.Describe(wk.hw.NVRAM.Bytes()), "NVRAM boots Talos-v1.13.9.efi")
		want(t, "volumes", volumes(t, secure), "EPHEMERAL ready /dev/vda4, META ready /dev/vda2, STATE ready /dev/vda3, u-data ready /dev/vdb1")
		want(t, "identity of the data volume", partitionIDs(t, secure)["vdb1"], ids["vdb1"])
		must.Equal(t, "the install touched the data disk", before, data.Media.SHA256())
		must.Equal(t, "a client without certificate still gets in", false, must.Err(readFacts(t.Context(), open)) == nil)
		must.Equal(t, "kubelets", []string{"up cp1 v1.35.4 cp=true", "up wk1 v1.35.4 cp=false"}, l.lines(&l.kubelets))
		must.Take(t, began, 45*time.Second, 90*time.Second)
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
		must.Equal(t, "with a staged configuration", first, facts(t, c), cmp.AllowUnexported(nodeFacts{}))
		must.Do(t, c.Reboot(t.Context()))
		time.Sleep(10 * time.Second)
		l.awaitStage(c, runtime.MachineStageRunning)
		second := facts(t, c)
		must.Equal(t, "after the reboot: same boot, name, identity", []any{false, "cp-renamed", first.identity},
			[]any{second.bootID == first.bootID, second.hostname, second.identity})
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
		must.Equal(t, "after the recreate: schematic, same identity, name", []any{"schematic-new", false, first.hostname},
			[]any{second.schematic, second.identity == first.identity, second.hostname})
		must.Equal(t, "partitions; the same STATE", []any{ids["vdb1"], ids["vdb2"], false}, []any{now["vdb1"], now["vdb2"], now["vda3"] == ids["vda3"]})
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
			must.Do(t, must.Get(l.net.Listen(cpAddr+":50000"))(t).Close())
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
		must.Equal(t, "facts in maintenance mode", []any{"schematic-new", wk.hw.UUID, false, "talos-v1.13.9.efi"},
			[]any{got.schematic, got.uuid, strings.Contains(got.cmdline, "halt_if_installed"), got.entry})
		want(t, "volumes in maintenance mode", volumes(t, open), "META ready /dev/vda4, STATE missing ")

		apply(t, open, l.config(talosapi.Machine{Hostname: "wk1", Installer: "factory.test/nocloud-installer/none:v1.13.9"}))
		secure := l.client(workerAddr, role.Admin)
		l.awaitStage(secure, runtime.MachineStageRunning)
		got = facts(t, secure)
		must.Contain(t, "entry and arguments of the node", got.entry+" "+got.cmdline, "talos-v1.13.9.efi ", "recast.lock=sha256-new")
		want(t, "volumes", volumes(t, secure), "EPHEMERAL ready /dev/vda6, META ready /dev/vda4, STATE ready /dev/vda5")
		must.Take(t, began, 0, 45*time.Second) // longer if it reboots; its kubelet may wait 10 s for the next attempt to join
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
			must.Contain(t, tc.b.hw.Name, "\n"+talosapi.Describe(media.Bytes()), "\n"+tc.want)
			must.Equal(t, "the disk of "+tc.b.hw.Name+" is large", false, media.Size() > 64<<10)
		}
		got, err := readFile(t.Context(), l.client(workerAddr, role.Admin), file)
		must.Equal(t, "the installed system", []any{nil, string(large)}, []any{err, string(got)})
		list := must.Get(c.ImageClient.List(t.Context(), &machineapi.ImageServiceListRequest{Containerd: criSystem()}))(t)
		must.Equal(t, "bytes of the pulled image", int64(len(ukiOf(t, img))), must.Get(list.Recv())(t).GetSize())
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
			got := must.Get(c.Version(t.Context()))(t).GetMessages()[0]
			must.Equal(t, fmt.Sprintf("configured %t", configured), []any{"amd64", tc.platform, tc.mode, configured},
				[]any{got.GetVersion().GetArch(), got.GetPlatform().GetName(), got.GetPlatform().GetMode(), got.GetFeatures().GetRbac()})
			state := must.Get(get[*runtime.SecurityState](t.Context(), c, runtime.NewSecurityStateSpec(runtime.NamespaceName).Metadata()))(t)
			must.Equal(t, "Secure Boot, UKI", []bool{false, !tc.seabios}, []bool{state.TypedSpec().SecureBoot, state.TypedSpec().BootedWithUKI})
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
		must.Contain(t, "the answer", said, "automatically reverted back in 1m0s")
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
	cfg := must.Get(get[*config.MachineConfig](t.Context(), c, config.NewMachineConfig(nil).Metadata()))(t)
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
		must.Contain(t, "the answer", answer.GetMode().String()+": "+answer.GetModeDetails()+"\n", tc.mode.String()+": ", tc.said+"\n")
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
	must.Bubble(t, func(t *testing.T) {
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
		l.shows("Talos is already installed to disk") // it halts at the next boot
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
		must.Fail(t, must.Err(l.clientWith(cpAddr, conf).Version(t.Context())), c.says)
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
	must.Bubble(t, func(t *testing.T) {
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
		must.Equal(t, "after a restart it runs from the ISO", false, strings.Contains(now.cmdline, "talos.halt_if_installed=1"))
	})
}
