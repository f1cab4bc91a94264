package bootimage_test

import (
	"bytes"
	"debug/pe"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/bootimage"
)

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
	each(t, map[string]row{
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
		u := must(bootimage.OpenUKI(bytes.NewReader(b), int64(len(b))))(t)
		requireSame(t, "kernel", u.Kernel, []byte("kernel"))
		requireSame(t, "initrd", u.Initrd, []byte("initrd"))
		got := *u
		got.Kernel, got.Initrd, got.File, got.Stub = nil, nil, nil, ""
		tt.want.Talos = "v1.13.9"
		if got != tt.want {
			t.Errorf("UKI = %+v, want %+v", got, tt.want)
		}
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
	each(t, map[string]row{
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
		u := must(bootimage.OpenUKI(bytes.NewReader(b), int64(len(b))))(t)
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
		if (tt.got == want) != tt.same {
			t.Errorf("%s: the same stub = %t", name, !tt.same)
		}
	}
}
