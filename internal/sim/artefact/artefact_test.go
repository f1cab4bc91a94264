package artefact_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/klauspost/compress/zstd"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
)

func agent() artefact.Extension {
	return artefact.Extension{
		Name: "qemu-guest-agent", Version: "11.0.2", Author: "Sidero Labs", Description: "The QEMU guest agent: <&\">",
		Digest: "sha256:" + strings.Repeat("a", 64),
		Files: map[string][]byte{
			"/usr/local/lib/containers/qemu-guest-agent/qemu-ga": {0, 1, 2, 0xff},
			"/usr/local/etc/containers/qemu-guest-agent.yaml":    []byte("name: qemu-guest-agent\n"),
		},
		Links: map[string]string{
			"/usr/local/lib/containers/qemu-guest-agent/lib.so": "lib.so.0",
			"/usr/local/lib/containers/qemu-guest-agent/etc":    "/etc",
		},
	}
}

func image(arch string) artefact.Image {
	return artefact.Image{
		TalosVersion: "v1.13.9", Arch: arch, Platform: "nocloud",
		Cmdline:     "talos.platform=nocloud console=ttyS0 recast.lock=sha256-abc",
		SchematicID: "ce4c", SchematicYAML: "customization: {}\n", SchematicAuthor: "Image Factory (http://127.0.0.1:8080)",
		Extensions: []artefact.Extension{agent(), {Name: "iscsi-tools", Version: "v0.2.0"}},
	}
}

func TestBootImagesRoundTrip(t *testing.T) {
	t.Parallel()
	type row struct {
		make func(artefact.Image) ([]byte, error)
		read func([]byte) (artefact.Image, error)
		want func(*artefact.Image)

		limit int
	}
	must.Each(t, map[string]row{
		"ISO": {artefact.ISO, artefact.ReadISO, func(i *artefact.Image) { i.Cmdline += " talos.halt_if_installed=1" }, 100 << 10},
		"UKI": {artefact.UKI, artefact.ReadUKI, func(*artefact.Image) {}, 20 << 10},
	}, func(t *testing.T, tt row) {
		b := must.Get(tt.make(image("amd64")))(t)
		got := must.Get(tt.read(b))(t)
		want := booted("amd64")
		tt.want(&want)
		must.Equal(t, "read image", want, got)
		again := must.Get(tt.make(got))(t)
		must.Equal(t, "the same image made twice has other bytes", false, !bytes.Equal(b, again))
		must.Equal(t, "the command line appears as it is in the bytes", true, bytes.Contains(b, []byte(want.Cmdline)))
		must.Equal(t, "larger than the lab can afford", false, len(b) > tt.limit)
		uki := must.Get(artefact.UKI(want))(t)
		requireDamageFound(t, b, uki, tt.read)
	})
}

// madeTwice is what a machine finds in the UKI of img, which made again has the same bytes.
func madeTwice(t *testing.T, img artefact.Image) artefact.Image {
	t.Helper()
	b := must.Get(artefact.UKI(img))(t)
	got := must.Get(artefact.ReadUKI(b))(t)
	again := must.Get(artefact.UKI(got))(t)
	must.Equal(t, "the image that was read, made again, has other bytes", false, !bytes.Equal(b, again))
	return got
}

// requireDamageFound changes bytes of the initramfs, which a machine unpacks: nothing
// verifies the rest. Truncation is found everywhere.
func requireDamageFound(t *testing.T, b, uki []byte, read func([]byte) (artefact.Image, error)) {
	t.Helper()
	start := bytes.Index(b, []byte("\x28\xb5\x2f\xfd"))
	end := bytes.Index(b, uki) + len(bytes.TrimRight(uki, "\x00"))
	for i := start; i < end; i += 37 {
		bad := slices.Clone(b)
		bad[i] ^= 0x20
		refused(read(bad))(t, fmt.Sprintf("byte %d changed", i), artefact.ErrNotBootable)
	}
	for i := 0; i < len(b); i += 97 {
		refused(read(b[:i]))(t, fmt.Sprintf("cut to %d bytes", i), artefact.ErrNotBootable)
	}
	refused(read(b[:len(b)-1]))(t, "the last byte is missing", artefact.ErrNotBootable)
}

// booted is what a machine finds in image(arch): no digest.
func booted(arch string) artefact.Image {
	img := image(arch)
	for i := range img.Extensions {
		img.Extensions[i].Digest = ""
	}
	return img
}

// refused reports a call that does not end with the wanted error; nil stands for any.
func refused[T any](_ T, err error) func(t *testing.T, what string, want error) {
	return func(t *testing.T, what string, want error) {
		t.Helper()
		must.Hold(t, err != nil && (want == nil || errors.Is(err, want)), "%s: err = %v, want %v", what, err, want)
	}
}

func TestInvalidImagesAreNotMade(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string]func(*artefact.Image){
		"no version":     func(i *artefact.Image) { i.TalosVersion = "" },
		"other platform": func(i *artefact.Image) { i.Platform = "metal" },
		"no platform":    func(i *artefact.Image) { i.Platform = "" },
		"no such arch":   func(i *artefact.Image) { i.Arch = "riscv64" },
		"nameless":       func(i *artefact.Image) { i.Extensions[1].Name = "" },
		"relative path":  func(i *artefact.Image) { i.Extensions[0].Files["usr/x"] = nil },
		"path with dots": func(i *artefact.Image) { i.Extensions[0].Files["/usr/../x"] = nil },
		"relative link":  func(i *artefact.Image) { i.Extensions[0].Links["usr/x"] = "y" },
		"empty link":     func(i *artefact.Image) { i.Extensions[0].Links["/usr/x"] = "" },
		"link and file": func(i *artefact.Image) {
			i.Extensions[0].Links["/usr/local/etc/containers/qemu-guest-agent.yaml"] = "x"
		},
		"file below a link": func(i *artefact.Image) {
			i.Extensions[0].Files["/usr/local/lib/containers/qemu-guest-agent/etc/passwd"] = nil
		},
		"firmware that leads out": func(i *artefact.Image) { i.Extensions[0].Links["/usr/lib/firmware/a"] = "/etc/passwd" },
		"firmware that has moved": func(i *artefact.Image) {
			i.Extensions[0].Files["/usr/lib/firmware/a"], i.Extensions[0].Links["/usr/lib/firmware/b"] = nil, "a"
		},
		"firmware in a circle": func(i *artefact.Image) { i.Extensions[0].Links["/usr/lib/firmware/a"] = "a" },
	}, func(t *testing.T, spoil func(*artefact.Image)) {
		img := image("amd64")
		spoil(&img)
		refused(artefact.ISO(img))(t, "ISO", nil)
		refused(artefact.Installer(built, img))(t, "Installer", nil)
	})
}

// built is the build time of the installers here.
var built = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func TestInstallerRoundTrip(t *testing.T) {
	t.Parallel()
	idx := must.Get(artefact.Installer(built, image("amd64"), image("arm64")))(t)
	must.Do(t, validate.Index(idx))
	for _, arch := range []string{"amd64", "arm64"} {
		got := must.Get(artefact.ReadInstaller(idx, arch))(t)
		must.Equal(t, arch, booted(arch), got)
	}
	refused(artefact.ReadInstaller(idx, "riscv64"))(t, "an architecture that the index lacks was read", nil)
	again := must.Get(artefact.Installer(built, image("amd64"), image("arm64")))(t)
	must.Equal(t, "digests of the same image, made twice", digest(t, again), digest(t, idx))
}

func TestInstallerOfSomethingElse(t *testing.T) {
	t.Parallel()
	refused(artefact.ReadInstaller(empty.Index, "amd64"))(t, "empty index", nil)
	idx := must.Get(artefact.ExtensionIndex(agent()))(t)
	refused(artefact.ReadInstaller(idx, "amd64"))(t, "extension image", artefact.ErrNotBootable)
	installer := must.Get(artefact.Installer(built, image("amd64")))(t)
	refused(artefact.ReadExtension(installer, "amd64"))(t, "installer read as an extension", nil)
}

func TestExtensionRoundTrip(t *testing.T) {
	t.Parallel()
	idx := must.Get(artefact.ExtensionIndex(agent()))(t)
	must.Do(t, validate.Index(idx))
	for _, arch := range []string{"amd64", "arm64"} {
		got := must.Get(artefact.ReadExtension(idx, arch))(t)
		want := agent()
		want.Digest = digest(t, idx)
		must.Equal(t, arch, want, got)
	}
}

func TestExtensionDigestFollowsItsContent(t *testing.T) {
	t.Parallel()
	type row struct {
		change func(*artefact.Extension)
		same   bool
	}
	base := must.Get(artefact.ExtensionIndex(agent()))(t)
	before := digest(t, base)
	must.Each(t, map[string]row{
		"nothing":      {func(*artefact.Extension) {}, true},
		"provenance":   {func(e *artefact.Extension) { e.Digest = "" }, true},
		"a file":       {func(e *artefact.Extension) { e.Files["/usr/local/etc/containers/qemu-guest-agent.yaml"] = nil }, false},
		"another file": {func(e *artefact.Extension) { e.Files["/new"] = nil }, false},
		"another link": {func(e *artefact.Extension) { e.Links["/new"] = "x" }, false},
		"a target":     {func(e *artefact.Extension) { e.Links["/usr/local/lib/containers/qemu-guest-agent/etc"] = "/usr" }, false},
		"version":      {func(e *artefact.Extension) { e.Version = "11.0.3" }, false},
	}, func(t *testing.T, tt row) {
		e := agent()
		tt.change(&e)
		idx := must.Get(artefact.ExtensionIndex(e))(t)
		must.Equal(t, "same digest", tt.same, digest(t, idx) == before)
	})
}

func TestExtensionsListRoundTrip(t *testing.T) {
	t.Parallel()
	want := []artefact.ListedExtension{
		{Ref: "ghcr.io/siderolabs/qemu-guest-agent:11.0.2@sha256:" + strings.Repeat("b", 64), Author: "Sidero Labs", Description: "agent: yes"},
		{Ref: "ghcr.io/siderolabs/iscsi-tools:v0.2.0@sha256:" + strings.Repeat("a", 64)},
	}
	img := must.Get(artefact.ExtensionsList(want))(t)
	must.Do(t, validate.Image(img))
	got := must.Get(artefact.ReadExtensionsList(img))(t)
	must.Equal(t, "list", want, got)
	refused(artefact.ReadExtensionsList(empty.Image))(t, "an image without a list", nil)
}

func TestDiskRoundTrip(t *testing.T) {
	t.Parallel()
	want := artefact.Disk{Partitions: []artefact.Partition{
		{Label: "EFI", UUID: "u1", FilesystemUUID: "f1", Filesystem: "vfat", Data: []byte{0, 1, 2}},
		{Label: "META", UUID: "u2"},
	}}
	b := artefact.WriteDisk(want)
	got := must.Get(artefact.ReadDisk(b))(t)
	must.Equal(t, "disk", want, got)
	must.Equal(t, "bytes of a blank disk", 0, len(artefact.WriteDisk(artefact.Disk{})))
	must.Equal(t, "partitions of a blank disk", 0, len(must.Get(artefact.ReadDisk(nil))(t).Partitions))
	for i := 1; i < len(b); i++ {
		refused(artefact.ReadDisk(b[:i]))(t, fmt.Sprintf("cut to %d bytes", i), artefact.ErrNoPartitionTable)
	}
	refused(artefact.ReadDisk([]byte("user data")))(t, "foreign bytes", artefact.ErrNoPartitionTable)
}

func FuzzRead(f *testing.F) {
	iso := must.Get(artefact.ISO(image("amd64")))(f)
	uki, err := artefact.UKI(image("arm64"))
	must.Do(f, err)
	f.Add(iso)
	f.Add(uki)
	f.Add(artefact.WriteDisk(artefact.Disk{Partitions: []artefact.Partition{{Label: "STATE"}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if img, err := artefact.ReadISO(b); err == nil {
			requireValid(t, img)
		}
		if img, err := artefact.ReadUKI(b); err == nil {
			requireValid(t, img)
		}
		if d, err := artefact.ReadDisk(b); err == nil && len(b) > 0 {
			if again, err := artefact.ReadDisk(artefact.WriteDisk(d)); err != nil || !cmp.Equal(d, again) {
				t.Errorf("disk changes when written again: %v", err)
			}
		}
	})
}

func requireValid(t *testing.T, img artefact.Image) {
	t.Helper()
	must.Pass(t, must.Err(artefact.UKI(img)))
}

func digest(t *testing.T, idx interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	return must.Get(idx.Digest())(t).String()
}

// TestFirmwareIsMoved: imager moves it out of the extensions, because the kernel needs it before they are mounted.
func TestFirmwareIsMoved(t *testing.T) {
	t.Parallel()
	img := image("amd64")
	img.Extensions[1].Files = map[string][]byte{
		"/usr/local/bin/tool":                         []byte("tool"),
		"/usr/lib/firmware/i915/adlp_dmc.bin":         []byte("firmware"),
		"/usr/lib/firmware/intel-ucode/06-55-04":      []byte("one"),
		"/usr/lib/firmware/intel-ucode/06-55-07":      []byte("two"),
		"/usr/lib/firmware/amd-ucode/microcode_amd.b": []byte("no microcode by its name"),
	}
	img.Extensions[1].Links = map[string]string{
		"/usr/local/lib/firmware":              "../../lib/firmware",
		"/usr/lib/firmware/card.bin":           "i915/adlp_dmc.bin",
		"/usr/lib/firmware/a.bin":              "./card.bin",
		"/usr/lib/firmware/intel-ucode/00-one": "06-55-04",
	}
	got := madeTwice(t, img)
	want := booted("amd64")
	want.Extensions[1].Files = map[string][]byte{"/usr/local/bin/tool": []byte("tool")}
	want.Extensions[1].Links = map[string]string{"/usr/local/lib/firmware": "../../lib/firmware"}
	want.Loose = map[string][]byte{
		"/usr/lib/firmware/i915/adlp_dmc.bin":         []byte("firmware"),
		"/usr/lib/firmware/card.bin":                  []byte("firmware"),
		"/usr/lib/firmware/a.bin":                     []byte("firmware"),
		"/usr/lib/firmware/amd-ucode/microcode_amd.b": []byte("no microcode by its name"),
		"/kernel/x86/microcode/GenuineIntel.bin":      []byte("oneonetwo"),
	}
	must.Equal(t, "read image", want, got)
}

// TestModuleDependencies: imager runs depmod over all kernel modules and puts the result into one more extension.
func TestModuleDependencies(t *testing.T) {
	t.Parallel()
	img := image("amd64")
	const dir = "/usr/lib/modules/6.18.0-talos/"
	img.Extensions[1].Files = map[string][]byte{dir + "extras/card.ko": []byte("module")}
	got := madeTwice(t, img)
	want := booted("amd64")
	want.Extensions[1].Files = img.Extensions[1].Files
	want.Extensions = append(want.Extensions, artefact.Extension{
		Name: "modules.dep", Version: "6.18.0-talos", Author: "Talos Machinery", Description: "Combined modules.dep for all extensions",
		Files: map[string][]byte{
			dir + "modules.dep":   []byte("extras/card.ko:\n"),
			dir + "modules.alias": []byte("# Aliases extracted from modules themselves.\n"),
		},
	})
	must.Equal(t, "read image", want, got)
	img.Extensions[1].Files = map[string][]byte{"/usr/lib/modules/5.0.0/card.ko": nil}
	refused(artefact.UKI(img))(t, "an image with modules of another kernel was made", nil)
	img.Kernel = "5.0.0"
	got = madeTwice(t, img)
	must.Equal(t, "with that kernel", []string{"5.0.0", "5.0.0"}, []string{got.Kernel, got.Extensions[2].Version})
}

// TestForeignTalosBoots: Talos' own part may be anybody's, as long as it is complete.
func TestForeignTalosBoots(t *testing.T) {
	t.Parallel()
	packed := must.Get(os.ReadFile("../../../testdata/bootimages/uefi.iso.zst"))(t)
	d := must.Get(zstd.NewReader(nil))(t)
	defer d.Close()
	b := must.Get(d.DecodeAll(packed, nil))(t)
	img := must.Get(artefact.ReadISO(b))(t)
	must.Equal(t, "extensions, schematic", []any{1, "tools", "ce4c"}, []any{len(img.Extensions), img.Extensions[0].Name, img.SchematicID})
	want := map[string]string{"/usr/local/lib/symlink": "../bin/tool"}
	must.Equal(t, "links", want, img.Extensions[0].Links)
	magic := []byte("\x28\xb5\x2f\xfd")
	own := bytes.Index(b, magic)
	added := own + 1 + bytes.Index(b[own+1:], magic)
	end := b[added-20 : added]
	bad := bytes.Clone(end)
	bad[19] ^= 1
	must.FailIs(t, must.Err(artefact.ReadISO(bytes.ReplaceAll(b, end, bad))), artefact.ErrNotBootable)
}

// TestReadImagesAreTheCallersOwn: changes by one reader are invisible to the next one.
func TestReadImagesAreTheCallersOwn(t *testing.T) {
	t.Parallel()
	b := must.Get(artefact.UKI(image("amd64")))(t)
	for range 3 {
		img := must.Get(artefact.ReadUKI(b))(t)
		must.Equal(t, "read image", booted("amd64"), img)
		delete(img.Extensions[0].Files, "/usr/local/etc/containers/qemu-guest-agent.yaml")
		img.Extensions[0].Links["/new"] = "x"
		img.Extensions[1].Name = "changed"
	}
}

func TestUserData(t *testing.T) {
	t.Parallel()
	const config = "version: v1alpha1\n"
	iso := artefact.CloudInitISO([]byte(config))
	got, ok := artefact.UserData(iso)
	must.Equal(t, "user data", []any{true, config}, []any{ok, string(got)})
	refused(artefact.ReadISO(iso))(t, "it boots", nil)
	for name, b := range map[string][]byte{"nothing": nil, "text": make([]byte, 1<<17), "cut off": iso[:20*2048]} {
		_, ok := artefact.UserData(b)
		must.Equal(t, name+" has user data", false, ok)
	}
}

func needs(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
}

// shell returns what a script says in a directory.
func shell(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	must.Be(t, err == nil, "%v\n%s", err, out)
	return string(out)
}

// TestForeignToolsReadIt unpacks images, down to a file of an extension, with the tools that
// people use for Talos' images. Only mtools would take such a small FAT32 for a FAT12.
func TestForeignToolsReadIt(t *testing.T) {
	t.Parallel()
	needs(t, "xorriso", "fsck.vfat", "objcopy", "cpio", "zstd", "unsquashfs")
	img := image("amd64")
	img.Extensions[0].Files["/usr/lib/firmware/intel-ucode/06-55-04"] = []byte("microcode")
	img.Extensions[0].Files["/usr/local/lib/large"] = make([]byte, 300<<10)
	b := must.Get(artefact.ISO(img))(t)
	uki := must.Get(artefact.UKI(img))(t)
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, "uki"), uki, 0o600))
	must.Do(t, os.WriteFile(filepath.Join(dir, "talos.iso"), b, 0o600))
	script := `set -e
xorriso -indev talos.iso -report_el_torito plain 2>/dev/null | grep -q 'UEFI.*y '
tail -c +$((24 * 2048 + 1)) talos.iso > esp
PATH=$PATH:/usr/sbin fsck.vfat -n -v esp
objcopy -O binary --only-section=.cmdline uki cmdline
objcopy --dump-section .initrd=initrd uki copy
grep -q 'console=ttyS0.*recast.lock' cmdline
cpio -t --quiet < initrd > early
tail -c +1025 initrd > rest
zstd -dc < rest > all
{ cpio -i --quiet; cpio -i --quiet; } < all
unsquashfs -n -q -d ext0 0.sqsh > /dev/null
unsquashfs -n -q -d ext2 2.sqsh > /dev/null
cd ext0/usr/local/lib/containers/qemu-guest-agent
readlink lib.so etc > "$OLDPWD/links"
`
	shell(t, dir, script)
	for name, want := range map[string]string{
		"ext0/usr/local/etc/containers/qemu-guest-agent.yaml": "name: qemu-guest-agent\n",
		"ext0/usr/local/lib/large":                            strings.Repeat("\x00", 300<<10),
		"ext2/usr/local/share/schematic/ce4c":                 "",
		"early":                                               "kernel\nkernel/x86\nkernel/x86/microcode\nkernel/x86/microcode/GenuineIntel.bin\n",
		"init":                                                "init v1.13.9 amd64\n",
		"links":                                               "lib.so.0\n/etc\n",
	} {
		must.Equal(t, name, want, string(must.Get(os.ReadFile(filepath.Join(dir, name)))(t)))
	}
}

// TestQEMUReadsDiskImages has QEMU check disk images and their reference counts, and turn each into the same disk.
func TestQEMUReadsDiskImages(t *testing.T) {
	t.Parallel()
	needs(t, "qemu-img", "/usr/sbin/sfdisk")
	dir := t.TempDir()
	for name, by := range map[string]artefact.Compression{"plain": artefact.Plain, "zlib": artefact.Zlib, "zstd": artefact.Zstd} {
		b := must.Get(artefact.DiskImage(image("amd64"), artefact.DiskForm{BIOS: true, By: by}))(t)
		must.Do(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	script := `set -e
for name in plain zlib zstd; do
	qemu-img check -q -f qcow2 $name
	qemu-img convert -f qcow2 -O raw $name $name.raw
	cmp plain.raw $name.raw
done
/usr/sbin/sfdisk --verify plain.raw 2>&1 | grep -q 'No errors detected'
/usr/sbin/sfdisk --dump plain.raw
`
	must.Contain(t, "sfdisk", shell(t, dir, script), `type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B`, `name="EFI"`, `name="BIOS"`, `name="BOOT"`, `name="META"`)
}
