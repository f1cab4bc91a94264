package bootimage_test

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/sim/must"
)

func openISO(b []byte) (*bootimage.ISO, error) {
	return bootimage.OpenISO(bytes.NewReader(b), int64(len(b)))
}

const isoSector = 2048

// catalogue is the El Torito catalogue of an ISO.
func catalogue(b []byte) []byte {
	return b[int64(binary.LittleEndian.Uint32(b[17*isoSector+0x47:]))*isoSector:][:isoSector]
}

// esp is the EFI system partition of a UEFI-only ISO.
func esp(b []byte) []byte { return b[int64(binary.LittleEndian.Uint32(catalogue(b)[40:]))*isoSector:] }

func TestISORefused(t *testing.T) {
	t.Parallel()
	uefi, grub := goldenISO(t, "uefi"), goldenISO(t, "grub")
	// An ISO has 40 MB, so that one change is made after the other.
	change := func(b []byte, change func([]byte)) func() []byte {
		return func() []byte {
			b := slices.Clone(b)
			change(b)
			return b
		}
	}
	text := func(b []byte, from, to string) func() []byte {
		return func() []byte {
			must.Be(t, bytes.Contains(b, []byte(from)) && len(from) == len(to), "%q can't become %q", from, to)
			return bytes.ReplaceAll(b, []byte(from), []byte(to))
		}
	}
	just := func(b []byte) func() []byte { return func() []byte { return b } }
	tests := map[string]struct {
		b    func() []byte
		want string
	}{
		"nothing":                {just(nil), "volume descriptor 0: unexpected EOF"},
		"no ISO":                 {just(make([]byte, 1<<20)), "not an ISO 9660"},
		"cut short":              {just(uefi[:len(uefi)-100<<10]), "unexpected EOF"},
		"another validation":     {change(uefi, func(b []byte) { catalogue(b)[4]++ }), "no validation entry"},
		"another platform":       {change(uefi, func(b []byte) { catalogue(b)[1] = 2; catalogue(b)[29] += 0xed }), "platform 0x2"},
		"not bootable":           {change(uefi, func(b []byte) { catalogue(b)[32] = 0 }), "neither a UKI nor GRUB"},
		"a partition nowhere":    {change(uefi, func(b []byte) { catalogue(b)[43] = 0xff }), "beyond the end"},
		"no boot sector":         {change(uefi, func(b []byte) { esp(b)[510] = 0 }), "EFI system partition: no boot sector"},
		"a cluster of no size":   {change(uefi, func(b []byte) { esp(b)[13] = 0 }), "out of range"},
		"a larger partition":     {change(uefi, func(b []byte) { esp(b)[35] = 1 }), "unexpected EOF"},
		"a root nowhere":         {change(uefi, func(b []byte) { esp(b)[47] = 7 }), "no cluster"},
		"a chain in a circle":    {change(uefi, func(b []byte) { circle(esp(b)) }), "chain of clusters is too long"},
		"a UKI in another place": {text(uefi, "T\x00a\x00l\x00o\x00s\x00", "t\x00a\x00l\x00o\x00s\x00"), ""},
		"another long name":      {text(uefi, "LINUX      ", "LINUS      "), "belongs to another file"},
		"another loader's name":  {text(uefi, "BOOTX64 EFI", "BOOTIA32EFI"), "efi/boot/bootx64.efi: it is missing"},
		"another default entry":  {text(uefi, "timeout 10", "default *w"), `loader/loader.conf: "default *w" is not one of Talos' own`},
		"a name twice":           {func() []byte { return renamed(uefi, "random-seed", "loader.conf") }, "/loader: loader.conf occurs twice"},
		"another menu":           {text(grub, "terminal_input", "source  /x.cfg"), `"source"`},
		"another default":        {text(grub, "set default=0", "set default=1"), "the default is not"},
		"another kernel":         {text(grub, "linux /boot/vmlinuz", "linux /boot/vmlinux"), "another kernel"},
		"another initramfs":      {text(grub, "initrd /boot/initramfs.xz", "initrd /boot/initramfs.zs"), "another initramfs"},
		"a variable":             {text(grub, `quote=\$x`, `quote=1$x`), "is special to GRUB"},
		"a menu in one line":     {text(grub, `"Talos ISO" {`, `"T" {boot;T {`), "more than its title"},
		"two commands in a line": {text(grub, "set timeout=3", "set t=3;boot "), "more than one command"},
		"a module and more":      {text(grub, "insmod all_video", "insmod a; linux2"), "more than one command"},
		"a BIOS without GRUB":    {text(goldenISO(t, "hybrid"), "grub.cfg", "grub.cfh"), "a BIOS would boot something other than GRUB"},
		"a kernel elsewhere":     {text(grub, "vmlinuz", "vmlinux"), "another kernel"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := openISO(tt.b())
			if tt.want == "" {
				must.Hold(t, err == nil, "a change that does not matter: %v", err)
				return
			}
			requireRefused(t, err, "ISO: ", tt.want)
		})
	}
}

// TestESP: files beside the UKI are reported.
func TestESP(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	uefi := goldenISO(t, "uefi")
	for name, tt := range map[string]struct {
		b   []byte
		odd []string
	}{
		"as imager makes it": {uefi, nil},
		"another file":       {renamed(uefi, "random-seed", "random.efi!"), []string{"loader/random.efi!"}},
	} {
		iso := must.Get(openISO(tt.b))(t)
		must.Hold(t, slices.Equal(iso.Odd, tt.odd) && iso.Keys == nil && iso.Certificate == "",
			"%s: odd %q, keys %q, certificate %q", name, iso.Odd, iso.Keys, iso.Certificate)
		if head, err := io.ReadAll(io.LimitReader(iso.Loader, 2)); err != nil || string(head) != "MZ" {
			t.Errorf("%s: the loader begins with %q, %v", name, head, err)
		}
	}
}

// renamed changes the long name of a file in an EFI system partition, both of 11 characters.
func renamed(b []byte, from, to string) []byte {
	wide := func(name string) []byte { return []byte(strings.Join(strings.Split(name, ""), "\x00")) }
	b = bytes.Replace(b, wide(from[:5]), wide(to[:5]), 1) // a directory entry has 5 and then 6 of them
	return bytes.Replace(b, wide(from[5:]), wide(to[5:]), 1)
}

// circle makes the root directory's cluster chain circular.
func circle(esp []byte) {
	table := int(binary.LittleEndian.Uint16(esp[14:])) * int(binary.LittleEndian.Uint16(esp[11:]))
	root := int(binary.LittleEndian.Uint32(esp[44:]))
	for at := table; at <= table+int(binary.LittleEndian.Uint32(esp[36:]))*512; at += int(binary.LittleEndian.Uint32(esp[36:])) * 512 {
		binary.LittleEndian.PutUint32(esp[at+4*root:], uint32(root))
	}
}

// TestRealGRUB: grub-mkrescue, called as imager does.
func TestRealGRUB(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: makes an ISO with grub-mkrescue")
	}
	if _, err := exec.LookPath("grub-mkrescue"); err != nil {
		t.Skip("grub-mkrescue is not installed")
	}
	if _, err := os.Stat("/usr/lib/grub/i386-pc"); err != nil {
		t.Skip("GRUB's modules for a BIOS are not installed")
	}
	dir := t.TempDir()
	const config = "set default=0\nmenuentry \"Talos ISO\" {\n\tlinux /boot/vmlinuz talos.platform=metal\n\tinitrd /boot/initramfs.xz\n}\n"
	for name, content := range map[string]string{"vmlinuz": "kernel", "initramfs.xz": "initramfs", "grub/grub.cfg": config} {
		path := filepath.Join(dir, "tree", "boot", name)
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)))
	}
	cmd := exec.CommandContext(t.Context(), "grub-mkrescue", "--compress=xz", "--output=talos.iso", "--directory=/usr/lib/grub/i386-pc",
		"tree", "-iso-level", "3", "--", "-volid", "TALOS_V1_13_9")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		if strings.Contains(string(out), "xorriso") || strings.Contains(string(out), "mformat") {
			t.Skipf("grub-mkrescue lacks a program: %s", out)
		}
		t.Fatalf("%v\n%s", err, out)
	}
	b := must.Get(os.ReadFile(filepath.Join(dir, "talos.iso")))(t)
	iso := must.Get(openISO(b))(t)
	must.Be(t, iso.UKI == nil && iso.GRUB != nil && iso.GRUB.Cmdline == "talos.platform=metal", "ISO = %+v", iso)
	requireSame(t, "kernel", iso.GRUB.Kernel, []byte("kernel"))
	requireSame(t, "initrd", iso.GRUB.Initrd, []byte("initramfs"))
}

func sections() []section {
	return []section{
		{name: ".text", content: "\xc3"},
		{name: ".osrel", content: "ID=talos\nVERSION_ID=v1.13.9\n"},
		{name: ".cmdline", content: "console=ttyS0 quiet\x00"},
		{name: ".linux", content: "kernel"},
		{name: ".initrd", content: "initrd"},
	}
}

func TestOpenUKI(t *testing.T) {
	t.Parallel()
	type row struct {
		machine uint16
		add     []section
		want    bootimage.UKI
	}
	must.Each(t, map[string]row{
		"plain": {want: bootimage.UKI{Arch: "amd64", Cmdline: "console=ttyS0 quiet"}},
		"arm64": {machine: pe.IMAGE_FILE_MACHINE_ARM64, want: bootimage.UKI{Arch: "arm64", Cmdline: "console=ttyS0 quiet"}},
		"uname": {add: []section{{name: ".uname", content: "6.18.0-talos\n"}}, want: bootimage.UKI{Arch: "amd64", Cmdline: "console=ttyS0 quiet", Uname: "6.18.0-talos"}},
		"profiles": {
			add: []section{
				{name: ".profile", content: "ID=main"}, {name: ".profile", content: "ID=reset"}, {name: ".cmdline", content: "wipe"},
			},
			want: bootimage.UKI{Arch: "amd64", Cmdline: "console=ttyS0 quiet"},
		},
		"the main profile has its own": {
			add:  []section{{name: ".profile", content: "ID=main"}, {name: ".cmdline", content: "main"}, {name: ".cmdline", content: "never"}},
			want: bootimage.UKI{Arch: "amd64", Cmdline: "main"},
		},
		"the first one counts": {
			add: []section{{name: ".linux", content: "other"}, {name: ".cmdline", content: "other"}}, want: bootimage.UKI{Arch: "amd64", Cmdline: "console=ttyS0 quiet"},
		},
	}, func(t *testing.T, tt row) {
		machine := uint16(pe.IMAGE_FILE_MACHINE_AMD64)
		if tt.machine != 0 {
			machine = tt.machine
		}
		b := portable(t, machine, append(sections(), tt.add...)...)
		u := must.Get(bootimage.OpenUKI(bytes.NewReader(b), int64(len(b))))(t)
		requireSame(t, "kernel", u.Kernel, []byte("kernel"))
		requireSame(t, "initrd", u.Initrd, []byte("initrd"))
		got := *u
		got.Kernel, got.Initrd, got.File, got.Stub = nil, nil, nil, ""
		tt.want.Talos = "v1.13.9"
		must.Equal(t, "UKI", tt.want, got)
	})
}

func TestUKIRefused(t *testing.T) {
	t.Parallel()
	amd64 := uint16(pe.IMAGE_FILE_MACHINE_AMD64)
	without := func(name string) []section {
		return slices.DeleteFunc(sections(), func(s section) bool { return s.name == name })
	}
	type row struct {
		b    []byte
		want string
	}
	must.Each(t, map[string]row{
		"nothing":                {nil, "EOF"},
		"no PE":                  {make([]byte, 4096), "no PE file"},
		"symbols":                {symbols(portable(t, amd64, sections()...)), "table of symbols"},
		"another machine":        {portable(t, pe.IMAGE_FILE_MACHINE_I386, sections()...), "machine type"},
		"no kernel":              {portable(t, amd64, without(".linux")...), "no section .linux"},
		"no initrd":              {portable(t, amd64, without(".initrd")...), "no section .initrd"},
		"no command line":        {portable(t, amd64, without(".cmdline")...), "no section .cmdline"},
		"no version":             {portable(t, amd64, append(without(".osrel"), section{name: ".osrel", content: "ID=talos\n"})...), "no VERSION_ID"},
		"microcode":              {portable(t, amd64, append(sections(), section{name: ".ucode", content: "x"})...), ".ucode does not belong"},
		"a device tree":          {portable(t, amd64, append(sections(), section{name: ".dtb", content: "x"})...), ".dtb does not belong"},
		"kernel of another":      {portable(t, amd64, append(sections(), section{name: ".profile"}, section{name: ".profile"}, section{name: ".linux", content: "x"})...), "profile 1 has a .linux"},
		"a hidden argument":      {portable(t, amd64, append(without(".cmdline"), section{name: ".cmdline", content: "a\x00b"})...), "zero byte"},
		"larger in memory":       {portable(t, amd64, append(without(".initrd"), section{name: ".initrd", content: "x", virtualSize: 4096})...), ".initrd ends after"},
		"a section over another": {portable(t, amd64, append(sections(), section{name: ".profile", content: "x", at: 4096})...), ".profile overlaps another one in memory"},
		"a long text":            {portable(t, amd64, append(without(".cmdline"), section{name: ".cmdline", content: strings.Repeat("x", 65<<10)})...), "too large"},
	}, func(t *testing.T, tt row) {
		_, err := bootimage.OpenUKI(bytes.NewReader(tt.b), int64(len(tt.b)))
		requireRefused(t, err, "UKI: ", tt.want)
	})
	b := portable(t, amd64, sections()...)
	for i := range b {
		if _, err := bootimage.OpenUKI(bytes.NewReader(b[:i]), int64(i)); !errors.Is(err, bootimage.ErrFormat) {
			t.Fatalf("cut to %d bytes: err = %v", i, err)
		}
	}
}

func symbols(b []byte) []byte {
	b[0x80+4+8] = 1
	return b
}

// requireRefused requires a format error that names its part.
func requireRefused(t *testing.T, err error, part, want string) {
	t.Helper()
	if !errors.Is(err, bootimage.ErrFormat) || !strings.HasPrefix(err.Error(), part) || !strings.Contains(err.Error(), want) {
		t.Errorf("err = %v, want ErrFormat of %q with %q", err, part, want)
	}
}

// TestStub: the stub's sum does not depend on what the UKI boots.
func TestStub(t *testing.T) {
	t.Parallel()
	stub := func(machine uint16, sections ...section) string {
		b := portable(t, machine, sections...)
		u := must.Get(bootimage.OpenUKI(bytes.NewReader(b), int64(len(b))))(t)
		return u.Stub
	}
	const amd64 = pe.IMAGE_FILE_MACHINE_AMD64
	without := func(name string) []section {
		return slices.DeleteFunc(sections(), func(s section) bool { return s.name == name })
	}
	want := stub(amd64, sections()...)
	for name, tt := range map[string]struct {
		got  string
		same bool
	}{
		"another initrd": {stub(amd64, append(without(".initrd"), section{name: ".initrd", content: strings.Repeat("x", 9000)})...), true},
		"a longer command line": {
			stub(amd64, append([]section{{name: ".text", content: "\xc3"}, {name: ".cmdline", content: strings.Repeat("x", 9000)}}, sections()[1:]...)...), true,
		},
		"a profile":          {stub(amd64, append(sections(), section{name: ".profile", content: "ID=main"}, section{name: ".pcrsig", content: "{}"})...), true},
		"other code":         {stub(amd64, append([]section{{name: ".text", content: "\xcc"}}, sections()[1:]...)...), false},
		"the code elsewhere": {stub(amd64, append(without(".text"), section{name: ".text", content: "\xc3"})...), false},
		"more code":          {stub(amd64, append(sections(), section{name: ".more", content: "\xc3"})...), false},
		"another machine":    {stub(pe.IMAGE_FILE_MACHINE_ARM64, sections()...), false},
	} {
		must.Equal(t, name+": the same stub", tt.same, tt.got == want)
	}
}
