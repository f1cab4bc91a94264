package factory

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// kernelRelease is the release of the fake kernel.
const kernelRelease = "6.18.5-talos"

// talosFiles writes the imager container's /usr/install: a Talos that can't boot, in the
// form that imager expects.
func talosFiles(t *testing.T, dir string) {
	t.Helper()
	for _, arch := range architectures {
		to := filepath.Join(dir, arch)
		write(t, filepath.Join(to, "vmlinuz"), kernel(t, arch))
		write(t, filepath.Join(to, "systemd-boot.efi"), executable(t, arch))
		write(t, filepath.Join(to, "systemd-stub.efi"), executable(t, arch))
		initramfs(t, filepath.Join(to, "initramfs.xz"), arch)
	}
}

// imagerImage is siderolabs/imager: the factory takes the files of both architectures from the amd64 one.
func imagerImage(t *testing.T, files string) v1.Image {
	t.Helper()
	var entries []entry
	for _, arch := range architectures {
		for _, name := range []string{"vmlinuz", "initramfs.xz", "systemd-boot.efi", "systemd-stub.efi"} {
			b := must(os.ReadFile(filepath.Join(files, arch, name)))(t)
			entries = append(entries, entry{name: "usr/install/" + arch + "/" + name, mode: 0o644, content: b})
		}
	}
	return image(t, "amd64", v1.Config{}, packed(t, entries...))
}

// installerBase is siderolabs/installer-base with two layers, of which imager replaces the
// second.
func installerBase(t *testing.T, talos string) v1.ImageIndex {
	t.Helper()
	return index(func(arch string) v1.Image {
		config := v1.Config{
			Entrypoint: []string{"/bin/installer"}, Env: []string{"VERSION=" + talos},
			Labels: map[string]string{"alpha.talos.dev/version": talos, "org.opencontainers.image.source": "https://github.com/siderolabs/talos"},
		}
		return image(t, arch, config,
			packed(t, directory("bin"), entry{name: "bin/installer", mode: 0o755, content: []byte("installer " + talos + " " + arch)}),
			packed(t, directory("usr"), directory("usr/install")))
	})
}

// kernel is also a UEFI program, like every Talos kernel. It has the x86 boot header, from which imager reads
// the release; an arm64 kernel has none. See internal/pkg/uki/kernel.go in siderolabs/talos.
func kernel(t *testing.T, arch string) []byte {
	t.Helper()
	const programHeaders = 0x1d8
	b := random("kernel "+arch, 256<<10)
	copy(b, executable(t, arch)[:programHeaders])
	if arch != "amd64" {
		return b
	}
	const setupSectors, versionAt = 4, 0x400
	b[0x1f1] = setupSectors
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x20e:], versionAt)
	copy(b[versionAt+0x200:], kernelRelease+" (root@buildkitsandbox) #1 SMP\x00")
	return b
}

// executable is a PE32+ program with an .sbat section and no symbols, which is all that
// imager requires of systemd's stub.
func executable(t *testing.T, arch string) []byte {
	t.Helper()
	const page, sector, headers = 0x1000, 0x200, 0x200
	machine := uint16(pe.IMAGE_FILE_MACHINE_AMD64)
	if arch == "arm64" {
		machine = pe.IMAGE_FILE_MACHINE_ARM64
	}
	sections := []struct {
		name    string
		content string
	}{
		{".text", "\xf4\xeb\xfd"},
		{".sbat", "sbat,1,SBAT Version,sbat,1,https://github.com/rhboot/shim/blob/main/SBAT.md\nsystemd-stub,1,The systemd Developers,systemd,258,https://systemd.io/\n"},
	}
	var b bytes.Buffer
	dos := make([]byte, 0x80)
	copy(dos, "MZ")
	binary.LittleEndian.PutUint32(dos[0x3c:], uint32(len(dos)))
	b.Write(dos)
	b.WriteString("PE\x00\x00")
	put := func(v any) {
		mustDo(t, binary.Write(&b, binary.LittleEndian, v))
	}
	optional := pe.OptionalHeader64{
		Magic: 0x20b, ImageBase: 0x140000000, AddressOfEntryPoint: page, BaseOfCode: page, SectionAlignment: page, FileAlignment: sector,
		SizeOfImage: uint32(page * (len(sections) + 1)), SizeOfHeaders: headers, Subsystem: pe.IMAGE_SUBSYSTEM_EFI_APPLICATION, NumberOfRvaAndSizes: 16,
	}
	put(pe.FileHeader{
		Machine: machine, NumberOfSections: uint16(len(sections)), SizeOfOptionalHeader: uint16(binary.Size(optional)),
		Characteristics: pe.IMAGE_FILE_EXECUTABLE_IMAGE | pe.IMAGE_FILE_LARGE_ADDRESS_AWARE,
	})
	put(optional)
	for i, s := range sections {
		h := pe.SectionHeader32{
			VirtualSize: uint32(len(s.content)), VirtualAddress: uint32(page * (i + 1)), SizeOfRawData: sector,
			PointerToRawData: uint32(headers + sector*i), Characteristics: pe.IMAGE_SCN_CNT_INITIALIZED_DATA | pe.IMAGE_SCN_MEM_READ,
		}
		copy(h.Name[:], s.name)
		put(h)
	}
	for i, s := range sections {
		b.Write(make([]byte, headers+sector*i-b.Len()))
		b.WriteString(s.content)
	}
	b.Write(make([]byte, headers+sector*len(sections)-b.Len()))
	return b.Bytes()
}

// initramfs has Talos' root file system with the kernel's modules. It is big enough for
// the FAT32 of an ISO, for which mtools requires some 34 MB.
func initramfs(t *testing.T, to, arch string) {
	t.Helper()
	scratch := t.TempDir()
	root := filepath.Join(scratch, "root")
	modules := filepath.Join(root, "usr/lib/modules", kernelRelease)
	write(t, filepath.Join(modules, "modules.order"), []byte("kernel/drivers/net/dummy.ko\n"))
	write(t, filepath.Join(modules, "modules.builtin"), []byte("kernel/fs/squashfs/squashfs.ko\n"))
	write(t, filepath.Join(modules, "kernel/drivers/net/dummy.ko"), module("dummy", arch))
	padding := 36 << 20
	if arch != "amd64" { // no ISO is made for it
		padding = 1 << 20
	}
	write(t, filepath.Join(root, "usr/bin/machined"), random("machined "+arch, padding))
	write(t, filepath.Join(root, "usr/lib/os-release"), []byte("NAME=\"Talos\"\nID=talos\nVERSION_ID="+talosVersion+"\n"))
	write(t, filepath.Join(root, "sbin/init"), []byte("machined "+talosVersion+" "+arch+"\n"))
	run(t, scratch, "", "mksquashfs", root, "rootfs.sqsh", "-all-root", "-noappend", "-no-progress", "-quiet", "-comp", "zstd", "-Xcompression-level", "1")
	write(t, filepath.Join(scratch, "init"), []byte("init "+arch))
	run(t, scratch, "init\nrootfs.sqsh\n", "cpio", "-H", "newc", "--create", "--reproducible", "--quiet", "-R", "+0:+0", "-F", "initramfs.cpio")
	run(t, scratch, "", "zstd", "-1", "--quiet", "-f", "initramfs.cpio", "-o", to)
}

// module is an ELF object with the section that depmod reads.
func module(name, arch string) []byte {
	modinfo := []byte("license=GPL\x00name=" + name + "\x00vermagic=" + kernelRelease + " SMP mod_unload \x00depends=\x00")
	names := []byte("\x00.modinfo\x00.shstrtab\x00")
	machine := uint16(62) // EM_X86_64
	if arch == "arm64" {
		machine = 183 // EM_AARCH64
	}
	const header = 64
	var b bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			_ = binary.Write(&b, binary.LittleEndian, v) // fixed sizes into memory
		}
	}
	sections := uint64(header + len(modinfo) + len(names))
	put([16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, uint16(1), machine, uint32(1), uint64(0), uint64(0), sections, uint32(0), uint16(header), uint16(0), uint16(0), uint16(64), uint16(3), uint16(2))
	b.Write(modinfo)
	b.Write(names)
	section := func(name, kind uint32, flags, at, size uint64) {
		put(name, kind, flags, uint64(0), at, size, uint32(0), uint32(0), uint64(1), uint64(0))
	}
	section(0, 0, 0, 0, 0)
	section(1, 1, 2, header, uint64(len(modinfo)))
	section(10, 3, 0, uint64(header+len(modinfo)), uint64(len(names)))
	return b.Bytes()
}

// random are incompressible bytes, deterministic by seed.
func random(seed string, size int) []byte {
	var key [32]byte
	copy(key[:], seed)
	b := make([]byte, size)
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
	return b
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	mustDo(t, os.MkdirAll(filepath.Dir(path), 0o755))
	mustDo(t, os.WriteFile(path, content, 0o644))
}

func run(t *testing.T, dir, stdin, program string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), program, args...)
	c.Dir, c.Stdin = dir, strings.NewReader(stdin)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
}
