package artefact_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestForeignToolsReadIt unpacks images, down to a file of an extension, with the tools that
// people use for Talos' images. Only mtools would take such a small FAT32 for a FAT12.
func TestForeignToolsReadIt(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"xorriso", "fsck.vfat", "objcopy", "cpio", "zstd", "unsquashfs"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	img := image("amd64")
	img.Extensions[0].Files["/usr/lib/firmware/intel-ucode/06-55-04"] = []byte("microcode")
	img.Extensions[0].Files["/usr/local/lib/large"] = make([]byte, 300<<10)
	b := must.Get(artefact.ISO(img))(t)
	uki, err := artefact.UKI(img)
	must.Do(t, err)
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
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, want := range map[string]string{
		"ext0/usr/local/etc/containers/qemu-guest-agent.yaml": "name: qemu-guest-agent\n",
		"ext0/usr/local/lib/large":                            strings.Repeat("\x00", 300<<10),
		"ext2/usr/local/share/schematic/ce4c":                 "",
		"early":                                               "kernel\nkernel/x86\nkernel/x86/microcode\nkernel/x86/microcode/GenuineIntel.bin\n",
		"init":                                                "init v1.13.9 amd64\n",
		"links":                                               "lib.so.0\n/etc\n",
	} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestQEMUReadsDiskImages has QEMU check disk images and their reference counts, and turn each into the same disk.
func TestQEMUReadsDiskImages(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"qemu-img", "/usr/sbin/sfdisk"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	dir := t.TempDir()
	for name, by := range map[string]artefact.Compression{"plain": artefact.Plain, "zlib": artefact.Zlib, "zstd": artefact.Zstd} {
		b, err := artefact.DiskImage(image("amd64"), artefact.DiskForm{BIOS: true, By: by})
		must.Do(t, err)
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
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	must.Contain(t, "sfdisk", string(out), `type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B`, `name="EFI"`, `name="BIOS"`, `name="BOOT"`, `name="META"`)
}
