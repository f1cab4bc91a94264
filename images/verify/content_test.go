package verify

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/schematics"
)

// content is a regular file.
func content(text string) bootimage.File {
	return bootimage.File{Mode: 0o644, SizeBytes: int64(len(text)), SHA256: hash([]byte(text))}
}

// lockedExt is a locked extension image whose microcode files are missing.
func lockedExt(t *testing.T, name string, files bootimage.Tree) *lockedExtension {
	t.Helper()
	l := &lockedExtension{
		locked: schematics.Extension{Name: name, Version: "1.0", Ref: "ghcr.io/siderolabs/" + name, Digest: digest(name)},
		is:     bootimage.Extension{Name: name, Version: "1.0", Author: "Sidero Labs", Files: files},
	}
	var err error
	if l.kept, l.moved, _, err = split(files); err != nil {
		t.Fatal(err)
	}
	return l
}

// wantedOf has two extensions, one with a kernel module and firmware, and a machine configuration.
func wantedOf(t *testing.T) *wanted {
	t.Helper()
	tool := lockedExt(t, "tool", bootimage.Tree{
		"/usr/local/bin/tool": {Mode: 0o755, SizeBytes: 4, SHA256: hash([]byte("tool"))},
		"/usr/local/bin/link": {Mode: fs.ModeSymlink | 0o777, Link: "tool"},
	})
	card := lockedExt(t, "card", bootimage.Tree{
		"/usr/lib/modules/6.12.1-talos/extras/card.ko": content("module"),
		"/usr/lib/firmware/card/card.bin":              content("firmware"),
		"/usr/lib/firmware/card/alias.bin":             {Mode: fs.ModeSymlink | 0o777, Link: "card.bin"},
	})
	w := &wanted{
		lock:    schematics.Lock{Talos: "v1.13.9", Arch: "amd64", Platform: "nocloud"},
		entry:   schematics.Locked{SchematicID: "abcd", Schematic: "customization: {}\n"},
		modules: true,
		entries: []wantedEntry{
			{name: "tool", locked: tool}, {name: "card", locked: card}, {name: schematicEntry}, {name: configEntry, config: hash([]byte("config"))},
		},
	}
	w.loose = must.Get(looseFiles([]*lockedExtension{tool, card}))(t)
	return w
}

// imaged is the initramfs that imager makes of w.
func imaged() bootimage.Initrd {
	return bootimage.Initrd{
		BaseSHA256: "base",
		Extensions: []bootimage.Extension{
			{Name: "tool", Version: "1.0", Author: "Sidero Labs", Files: bootimage.Tree{
				"/usr/local/bin/tool": {Mode: 0o755, SizeBytes: 4, SHA256: hash([]byte("tool"))},
				"/usr/local/bin/link": {Mode: fs.ModeSymlink | 0o755, Link: "tool"},
			}},
			{Name: "card", Version: "1.0", Author: "Sidero Labs", Files: bootimage.Tree{"/usr/lib/modules/6.12.1-talos/extras/card.ko": content("module")}},
			{Name: "schematic", Version: "abcd", Author: "Image Factory (https://factory.example)", ExtraInfo: "customization: {}\n", Files: bootimage.Tree{
				"/usr/local/share/schematic/abcd": content(""),
			}},
			{Name: "embedded-config", Version: hash([]byte("config")), Author: "Imager", Files: bootimage.Tree{
				"/usr/local/etc/talos/config.yaml": {Mode: 0o400, SizeBytes: 6, SHA256: hash([]byte("config"))},
			}},
			{Name: "modules.dep", Version: "6.12.1-talos", Author: "Talos Machinery", Files: bootimage.Tree{
				"/usr/lib/modules/6.12.1-talos/modules.dep": content("dep"), "/usr/lib/modules/6.12.1-talos/modules.alias": content("alias"),
			}},
		},
		Loose: bootimage.Tree{
			"/usr/lib/firmware/card/card.bin":  {Mode: 0o600, SizeBytes: 8, SHA256: hash([]byte("firmware"))},
			"/usr/lib/firmware/card/alias.bin": content("firmware"),
		},
	}
}

// edit changes the extension of that name.
func edit(name string, change func(*bootimage.Extension)) func(*bootimage.Initrd) {
	return func(i *bootimage.Initrd) {
		for n := range i.Extensions {
			if i.Extensions[n].Name == name {
				change(&i.Extensions[n])
			}
		}
	}
}

// put sets a file of the extension of that name.
func put(name, path string, f bootimage.File) func(*bootimage.Initrd) {
	return edit(name, func(x *bootimage.Extension) { x.Files[path] = f })
}

func remove(name string) func(*bootimage.Initrd) {
	return func(i *bootimage.Initrd) {
		i.Extensions = slices.DeleteFunc(i.Extensions, func(x bootimage.Extension) bool { return x.Name == name })
	}
}

type corruption struct {
	spoil func(*bootimage.Initrd)
	kind  MismatchKind
	want  string
}

// corruptions are ways in which an initramfs is not the wanted one.
func corruptions() map[string]corruption {
	all := otherFiles()
	maps.Copy(all, otherEntries())
	return all
}

func otherFiles() map[string]corruption {
	locked := func(name string) string { return fmt.Sprintf("is not the locked one (%s): ", digest(name)) }
	return map[string]corruption{
		"other content": {
			put("tool", "/usr/local/bin/tool", bootimage.File{Mode: 0o755, SizeBytes: 4, SHA256: hash([]byte("evil"))}), ExtensionContent,
			`installer: extension "tool" 1.0 ` + locked("tool") + "1 file differs: /usr/local/bin/tool has 4 bytes with SHA-256 " + shortSum(hash([]byte("evil"))) +
				", locked are 4 with " + shortSum(hash([]byte("tool"))),
		},
		"other permissions": {
			put("tool", "/usr/local/bin/tool", bootimage.File{Mode: 0o755 | fs.ModeSetuid, SizeBytes: 4, SHA256: hash([]byte("tool"))}), ExtensionContent,
			`installer: extension "tool" 1.0 ` + locked("tool") + "1 file differs: /usr/local/bin/tool has mode urwxr-xr-x, locked is -rwxr-xr-x",
		},
		"a link elsewhere": {
			put("tool", "/usr/local/bin/link", bootimage.File{Mode: fs.ModeSymlink | 0o777, Link: "/bin/sh"}), ExtensionContent,
			`installer: extension "tool" 1.0 ` + locked("tool") + `1 file differs: /usr/local/bin/link points to "/bin/sh", locked is "tool"`,
		},
		"a file for a link": {
			put("tool", "/usr/local/bin/link", content("x")), ExtensionContent,
			`installer: extension "tool" 1.0 ` + locked("tool") + "1 file differs: /usr/local/bin/link is a file, locked is a link",
		},
		"files added and missing": {
			edit("tool", func(x *bootimage.Extension) {
				x.Files = bootimage.Tree{"/a": content("a"), "/b": content("b"), "/c": content("c"), "/usr/local/bin/link": x.Files["/usr/local/bin/link"]}
			}), ExtensionContent,
			`installer: extension "tool" 1.0 ` + locked("tool") + "4 files differ: /a is not in the locked one; /b is not in the locked one; /c is not in the locked one; and 1 more",
		},
		"another manifest": {
			edit("tool", func(x *bootimage.Extension) { x.Author = "Mallory" }), ExtensionContent,
			`installer: extension "tool" 1.0 ` + locked("tool") + "its manifest differs",
		},
		"another version": {
			edit("tool", func(x *bootimage.Extension) { x.Version = "0.9" }), ExtensionVersion,
			`installer: extension "tool" has version 0.9, but the locked one (` + digest("tool") + ") 1.0",
		},
	}
}

func otherEntries() map[string]corruption {
	return map[string]corruption{
		"an extension missing": {
			remove("card"), ExtensionMissing, `installer: extension "card" 1.0 is not in it, locked at ` + digest("card"),
		},
		"an extension added": {
			func(i *bootimage.Initrd) {
				i.Extensions = slices.Insert(i.Extensions, 1, bootimage.Extension{Name: "miner", Version: "6.6"})
			}, ExtensionAdded, `installer: extension "miner" 6.6 is in it, but not in the lock`,
		},
		"an extension twice": {
			func(i *bootimage.Initrd) { i.Extensions = slices.Insert(i.Extensions, 1, i.Extensions[0]) },
			ExtensionAdded, `installer: extension "tool" 1.0 is in it, but not in the lock`,
		},
		"another order": {
			func(i *bootimage.Initrd) { i.Extensions[0], i.Extensions[1] = i.Extensions[1], i.Extensions[0] }, ExtensionOrder,
			"installer: its extensions are in another order: card, tool, schematic, embedded-config; should be tool, card, schematic, embedded-config",
		},
		"other firmware": {
			func(i *bootimage.Initrd) { i.Loose["/usr/lib/firmware/card/card.bin"] = content("backdoor") }, OtherFirmware,
			"installer: firmware and microcode are not those of the locked extensions: 1 file differs: /usr/lib/firmware/card/card.bin has 8 bytes with SHA-256 " +
				shortSum(hash([]byte("backdoor"))) + ", locked are 8 with " + shortSum(hash([]byte("firmware"))),
		},
		"a program beside the extensions": {
			func(i *bootimage.Initrd) { i.Loose["/init"] = content("init") }, OtherFirmware,
			"installer: firmware and microcode are not those of the locked extensions: 1 file differs: /init is not in the locked one",
		},
		"modules without dependencies": {
			remove("modules.dep"), OtherModules,
			"installer: extensions bring kernel modules, but modules.dep is not the last extension in it: no module would be found",
		},
		"dependencies of another kernel": {
			edit("modules.dep", func(x *bootimage.Extension) {
				x.Version, x.Files = "6.6.6-talos", bootimage.Tree{"/usr/lib/modules/6.6.6-talos/modules.dep": content("dep")}
			}), OtherModules, "installer: modules.dep is for kernel 6.6.6-talos, but it boots 6.12.1-talos",
		},
		"a module among the dependencies": {
			put("modules.dep", "/usr/lib/modules/6.12.1-talos/extras/rootkit.ko", content("x")), OtherModules,
			"installer: modules.dep holds what depmod does not make for kernel 6.12.1-talos: /usr/lib/modules/6.12.1-talos/extras/rootkit.ko",
		},
		"another schematic": {
			edit("schematic", func(x *bootimage.Extension) { x.Version = "ef01" }), OtherSchematic,
			"installer: it says that it is of schematic ef01, but the lock has abcd",
		},
		"another text of the schematic": {
			edit("schematic", func(x *bootimage.Extension) { x.ExtraInfo = "customization:\n" }), OtherSchematic,
			"installer: its text of schematic abcd is not the locked one",
		},
		"files in the schematic entry": {
			put("schematic", "/usr/local/bin/miner", content("x")), OtherSchematic,
			"installer: its schematic entry holds other files than a factory puts there: 1 file differs: /usr/local/bin/miner is not in the locked one",
		},
		"no schematic entry": {remove("schematic"), OtherSchematic, "installer: it does not name its schematic"},
		"another machine configuration": {
			put("embedded-config", "/usr/local/etc/talos/config.yaml", content("other")), OtherConfig,
			"installer: the machine configuration in it is not the schematic's: /usr/local/etc/talos/config.yaml has SHA-256 " + shortSum(hash([]byte("other"))) +
				", locked is " + shortSum(hash([]byte("config"))),
		},
		"no machine configuration": {remove("embedded-config"), OtherConfig, "installer: the machine configuration of the schematic is not in it"},
	}
}

func TestContent(t *testing.T) {
	t.Parallel()
	if errs := wantedOf(t).content("installer", "6.12.1-talos", imaged()); len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	must.Each(t, corruptions(), func(t *testing.T, tc corruption) {
		i := imaged()
		tc.spoil(&i)
		err := errors.Join(wantedOf(t).content("installer", "6.12.1-talos", i)...)
		must.Equal(t, "result", tc.want, must.Text(err))
		if m, ok := errors.AsType[*Mismatch](err); !ok || m.Kind != tc.kind {
			t.Errorf("mismatch = %+v, want kind %s", m, tc.kind)
		}
		must.Hold(t, fault.KindOf(err) == fault.Refused && len(fault.Hints(err)) != 0,
			"kind = %v, hints = %q", fault.KindOf(err), fault.Hints(err))
		t.Attr("corruptions-caught", "1")
	})
}

// TestContentReportsAll: one check finds everything.
func TestContentReportsAll(t *testing.T) {
	t.Parallel()
	all := corruptions()
	i := imaged()
	var kinds []MismatchKind
	for _, name := range []string{"other content", "an extension added", "other firmware", "another schematic", "another machine configuration"} {
		all[name].spoil(&i)
		kinds = append(kinds, all[name].kind)
	}
	var got []MismatchKind
	for _, err := range wantedOf(t).content("installer", "6.12.1-talos", i) {
		if m, ok := errors.AsType[*Mismatch](err); ok {
			got = append(got, m.Kind)
		}
	}
	slices.Sort(kinds)
	slices.Sort(got)
	must.Equal(t, "result", kinds, got)
}

// TestNoModules: without kernel modules depmod is not run.
func TestNoModules(t *testing.T) {
	t.Parallel()
	w := wantedOf(t)
	w.modules = false
	err := errors.Join(w.content("installer", "", imaged())...)
	if m, ok := errors.AsType[*Mismatch](err); !ok || m.Kind != ExtensionAdded {
		t.Errorf("err = %v", err)
	}
}

// TestAsListed: imager reads its directories in the order of their names.
func TestAsListed(t *testing.T) {
	t.Parallel()
	var entries []wantedEntry
	for i := range 12 {
		entries = append(entries, wantedEntry{name: fmt.Sprint(i)})
	}
	var got []string
	for _, e := range asListed(entries) {
		got = append(got, e.name)
	}
	must.Equal(t, "result", "0 1 10 11 2 3 4 5 6 7 8 9", strings.Join(got, " "))
}

func TestSplit(t *testing.T) {
	t.Parallel()
	files := bootimage.Tree{
		"/usr/local/bin/x":                                     content("x"),
		"/usr/lib/firmwares":                                   content("not firmware"),
		"/usr/lib/firmware/a.bin":                              content("a"),
		"/usr/lib/firmware/b.bin":                              {Mode: fs.ModeSymlink, Link: "sub/../a.bin"},
		"/usr/lib/firmware/intel-ucode/06-01-01":               content("1"),
		"/usr/lib/firmware/intel-ucode/.hidden":                content("2"),
		"/usr/lib/firmware/amd-ucode/microcode_amd.bin":        content("3"),
		"/usr/lib/firmware/amd-ucode/microcode_amd_fam17h.bin": content("4"),
		"/usr/lib/firmware/amd-ucode/microcode_amd.bin.asc":    content("5"),
	}
	kept, moved, microcode, err := split(files)
	must.Do(t, err)
	wantKept := maps.Clone(files)
	maps.DeleteFunc(wantKept, func(name string, _ bootimage.File) bool { return strings.HasPrefix(name, "/usr/lib/firmware/") })
	must.Equal(t, "kept", wantKept, kept)
	wantMoved := bootimage.Tree{
		"/usr/lib/firmware/a.bin": content("a"), "/usr/lib/firmware/b.bin": content("a"),
		"/usr/lib/firmware/amd-ucode/microcode_amd.bin.asc": content("5"),
	}
	must.Equal(t, "moved", wantMoved, moved)
	wantMicrocode := map[string][]string{
		intelMicrocode: {"/usr/lib/firmware/intel-ucode/.hidden", "/usr/lib/firmware/intel-ucode/06-01-01"},
		amdMicrocode:   {"/usr/lib/firmware/amd-ucode/microcode_amd.bin", "/usr/lib/firmware/amd-ucode/microcode_amd_fam17h.bin"},
	}
	must.Equal(t, "microcode", wantMicrocode, microcode)
}

func TestSplitRefuses(t *testing.T) {
	t.Parallel()
	link := func(to string) bootimage.File { return bootimage.File{Mode: fs.ModeSymlink, Link: to} }
	type row struct {
		files bootimage.Tree
		want  string
	}
	must.Each(t, map[string]row{
		"nowhere":   {bootimage.Tree{"/usr/lib/firmware/a": link("b")}, "/usr/lib/firmware/a leads to /usr/lib/firmware/b, which is not a file of the extension"},
		"out":       {bootimage.Tree{"/usr/lib/firmware/a": link("/etc/shadow")}, "/usr/lib/firmware/a leads out of the extension, to /etc/shadow"},
		"round":     {bootimage.Tree{"/usr/lib/firmware/a": link("a")}, "/usr/lib/firmware/a leads through more than 8 links"},
		"microcode": {bootimage.Tree{"/usr/lib/firmware/intel-ucode/a": link("b")}, "/usr/lib/firmware/intel-ucode/a is CPU microcode, but a link"},
	}, func(t *testing.T, tc row) {
		_, _, _, err := split(tc.files)
		must.Equal(t, "result", tc.want, must.Text(err))
	})
}

// TestEachFile: a tar is read to its end, whatever follows.
func TestEachFile(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "usr/"}, {Typeflag: tar.TypeReg, Name: "./usr/a"}, {Typeflag: tar.TypeSymlink, Name: "usr/b", Linkname: "a"},
	} {
		must.Do(t, w.WriteHeader(h))
	}
	must.Do(t, w.Close())
	b.WriteString("what follows")
	var names []string
	err := eachFile(&b, func(name string, _ io.Reader) error {
		names = append(names, name)
		return nil
	})
	if err != nil || !slices.Equal(names, []string{"usr/a"}) || b.Len() != 0 {
		t.Errorf("%v %v, %d bytes left", names, err, b.Len())
	}
}

// bzImage is an x86 kernel with its release in the boot header.
func bzImage(release string) []byte {
	b := make([]byte, 1024)
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x20e:], 0x100)
	copy(b[0x300:], release+" (root@buildkitsandbox) #1 SMP\x00")
	return b
}

// TestKernelRelease: modules must match the booted kernel. The UKI's .uname is a constant of imager if that is of the
// wanted Talos version (internal/pkg/uki/generate.go of siderolabs/talos), so a kernel's own release takes precedence.
func TestKernelRelease(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kernel []byte
		uname  string
		other  string // the mismatch of modules.dep; "": none
	}{
		"the constant differs":         {bzImage("6.12.1-talos"), "6.18.0-talos", ""},
		"the kernel differs":           {bzImage("6.6.6-talos"), "6.12.1-talos", "installer: modules.dep is for kernel 6.12.1-talos, but it boots 6.6.6-talos"},
		"no constant":                  {bzImage("6.6.6-talos"), "", "installer: modules.dep is for kernel 6.12.1-talos, but it boots 6.6.6-talos"},
		"a kernel that does not tell":  {[]byte("ARM"), "6.18.0-talos", "installer: modules.dep is for kernel 6.12.1-talos, but it boots 6.18.0-talos"},
		"neither of them tells":        {[]byte("ARM"), "", ""},
		"a header that points nowhere": {bzImage("6.12.1-talos")[:0x300], "6.12.1-talos", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			section := func(b []byte) *io.SectionReader {
				return io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b)))
			}
			p := part{name: "installer", uname: tc.uname, kernel: section(tc.kernel), initrd: section([]byte("initrd"))}
			p.read = checked{raw: hash([]byte("initrd")), initrd: imaged()}
			_, found, err := wantedOf(t).check(p, t.TempDir())
			must.Do(t, err)
			got := ""
			for _, err := range found {
				if m, ok := errors.AsType[*Mismatch](err); ok && m.Kind == OtherModules {
					got = m.Text
				}
			}
			must.Equal(t, "mismatch of the modules", tc.other, got)
		})
	}
}

// TestHardLinks: imager makes an empty file of a hard link in an extension image (Untar in pkg/archiver of
// siderolabs/talos v1.14.1 takes it for a file), and of nothing else.
func TestHardLinks(t *testing.T) {
	t.Parallel()
	file, empty, other := content("x"), content(""), content("y")
	hard := file
	hard.HardLink, hard.LinkMode = true, 0o755
	as := func(f bootimage.File, mode fs.FileMode) bootimage.File { f.Mode = mode; return f }
	type row struct {
		want, got bootimage.File
		same      bool
	}
	must.Each(t, map[string]row{
		"left empty":      {hard, as(empty, 0o755), true},
		"with its mode":   {hard, as(empty, 0o644), false}, // the file's, not the link's own
		"with another":    {hard, as(empty, 0o755|fs.ModeSetuid), false},
		"followed, mode":  {hard, as(file, 0o755), false},
		"followed":        {hard, file, true},
		"something else":  {hard, other, false},
		"a file, emptied": {file, empty, false},
	}, func(t *testing.T, tc row) {
		why := sameFile(tc.want, tc.got)
		must.Hold(t, (why == "") == tc.same, "why = %q", why)
	})
	files := bootimage.Tree{firmwareDir + "/intel-ucode/06-01-01": file, firmwareDir + "/intel-ucode/06-01-02": hard}
	if _, _, microcode, err := split(files); err != nil || len(microcode[intelMicrocode]) != 1 {
		t.Errorf("microcode = %v, %v", microcode, err)
	}
}

// What imager writes for Talos 1.13 on nocloud, before META and the schematic's arguments.
const (
	installerArgs = "talos.platform=nocloud console=tty1 console=ttyS0 net.ifnames=0 slab_nomerge pti=on consoleblank=0 " +
		"printk.devkmsg=on selinux=1 module.sig_enforce=1 proc_mem.force_override=never"
	isoArgs = "talos.platform=nocloud console=tty1 console=ttyS0 net.ifnames=0 talos.halt_if_installed=1 slab_nomerge pti=on consoleblank=0 " +
		"printk.devkmsg=on selinux=1 module.sig_enforce=1 proc_mem.force_override=never"
	lockArgs = "recast.lock=sha256-1234"
)

func metaArgs(text string) string {
	return metaArg + "=" + metaPrefix + base64.StdEncoding.EncodeToString([]byte(text))
}

type argsCase struct {
	line  string
	extra string // beside recast's own
	meta  []schematics.MetaValue
	want  wantedArgs
	bad   []string // parts of what is found, one each
}

func argsCases() map[string]argsCase {
	return map[string]argsCase{
		"an installer": {line: installerArgs + " " + lockArgs},
		"an ISO":       {line: isoArgs + " " + lockArgs, want: wantedArgs{iso: true}},
		"arguments of the schematic": {
			line: installerArgs + " a=1 a=2 b " + lockArgs, extra: "a=1 b a=2",
		},
		"another value of Talos' own": {
			line: strings.Replace(installerArgs, "pti=on", "pti=on pti=off", 1) + " " + lockArgs, extra: "pti=off",
		},
		"another console": {
			line: strings.Replace(installerArgs, "console=tty1 console=ttyS0", "console=ttyS1,115200", 1) + " " + lockArgs, extra: "console=ttyS1,115200",
		},
		"one removed": {
			line: strings.Replace(installerArgs, " consoleblank=0", "", 1) + " " + lockArgs, extra: "-consoleblank",
		},
		"one value removed": {
			line: strings.Replace(installerArgs, "console=tty1 ", "", 1) + " x " + lockArgs, extra: "-console=tty1 x",
		},
		// The following are the results of procfs.Cmdline.AppendAll of siderolabs/go-procfs v0.1.2, with the options that
		// imager uses (buildCmdline in pkg/imager).
		"one value for another": {
			line: strings.Replace(installerArgs, "consoleblank=0", "consoleblank=60", 1) + " " + lockArgs, extra: "-consoleblank=0 consoleblank=60",
		},
		"one value for another, in any order": {
			line: strings.Replace(installerArgs, "pti=on", "pti=auto", 1) + " x " + lockArgs, extra: "pti=auto x -pti=on",
		},
		"a key for another": {
			line: strings.Replace(installerArgs, " consoleblank=0", "", 1) + " consoleblank=60 " + lockArgs, extra: "-consoleblank consoleblank=60",
		},
		"a missing value removed": {line: installerArgs + " " + lockArgs, extra: "-pti=off"},
		"a lone hyphen":           {line: installerArgs + " - " + lockArgs, extra: "-"},
		"a value, and none":       {line: strings.Replace(installerArgs, "console=tty1 ", "", 1) + " " + lockArgs, extra: "-console=tty1 -console"},
		"META of an ISO": {
			line: isoArgs + " " + metaArgs("0xa=x: y;0xc=z") + " " + lockArgs, want: wantedArgs{iso: true},
			meta: []schematics.MetaValue{{Key: 10, Value: "x: y"}, {Key: 12, Value: "z"}},
		},
		"no META of an installer": {line: installerArgs + " " + lockArgs, meta: []schematics.MetaValue{{Key: 10, Value: "x"}}},
		"an unknown one that the schematic names": {
			line: strings.Replace(installerArgs, "pti=on", "pti=on new=1", 1) + " new=1 " + lockArgs, extra: "new=1",
			bad: []string{"they are in another order"}, // imager keeps the values of a key together
		},
		"an unknown one that the schematic names, where it is": {
			line: installerArgs + " new=1 new=1 " + lockArgs, extra: "new=1",
		},
		"an overlay's": {line: installerArgs + " board=x " + lockArgs, want: wantedArgs{overlay: true}},

		"no lock":     {line: installerArgs, bad: []string{"the schematic's recast.lock=sha256-1234 is missing"}},
		"other lock":  {line: installerArgs + " recast.lock=sha256-5678", bad: []string{"recast.lock=sha256-5678 is neither Talos' nor", "the schematic's recast.lock=sha256-1234 is missing"}},
		"two locks":   {line: installerArgs + " recast.lock=sha256-5678 " + lockArgs, bad: []string{"recast.lock=sha256-5678 is neither Talos' nor"}},
		"too early":   {line: lockArgs + " " + installerArgs, bad: []string{"they are in another order, recast.lock talos.platform console "}},
		"other order": {line: installerArgs + " b a " + lockArgs, extra: "a b", bad: []string{"b a recast.lock; should be talos.platform"}},
		"one added":   {line: installerArgs + " talos.config=http://10.0.0.1/ " + lockArgs, bad: []string{"talos.config=http://10.0.0.1/… is neither"}},
		"one added in an overlay's build": {
			line: installerArgs + " talos.config=http://10.0.0.1/ " + lockArgs, want: wantedArgs{overlay: true}, bad: []string{"talos.config=http://10.0.0.1/… is neither"},
		},
		"a secret": {
			line: installerArgs + " talos.config=https://me:secret@h.example/secret?t=secret " + lockArgs,
			bad:  []string{"talos.config=https://h.example/… is neither Talos' nor the schematic's"},
		},
		"not removed": {line: installerArgs + " " + lockArgs, extra: "-consoleblank", bad: []string{"consoleblank is there, but the schematic removes it"}},
		"not replaced": {
			line: installerArgs + " consoleblank=60 " + lockArgs, extra: "-consoleblank=0 consoleblank=60", bad: []string{"consoleblank"},
		},
		"another platform": {
			line: strings.Replace(installerArgs, "=nocloud", "=metal", 1) + " " + lockArgs, bad: []string{"talos.platform=metal is neither"},
		},
		"no platform":             {line: "console=tty0 " + lockArgs, bad: []string{"talos.platform=nocloud is missing"}},
		"an installer that halts": {line: isoArgs + " " + lockArgs, bad: []string{"talos.halt_if_installed=1 is neither"}},
		"an ISO that does not":    {line: installerArgs + " " + lockArgs, want: wantedArgs{iso: true}, bad: []string{"talos.halt_if_installed=1 is missing"}},
		"other META": {
			line: isoArgs + " " + metaArgs("0xa=other") + " " + lockArgs, want: wantedArgs{iso: true}, meta: []schematics.MetaValue{{Key: 10, Value: "x"}},
			bad: []string{"talos.environment=", "META values are missing"},
		},
		"META of no schematic": {line: isoArgs + " " + metaArgs("0xa=x") + " " + lockArgs, want: wantedArgs{iso: true}, bad: []string{"talos.environment="}},
	}
}

func TestKernelArgs(t *testing.T) {
	t.Parallel()
	must.Each(t, argsCases(), func(t *testing.T, tc argsCase) {
		w := tc.want
		w.platform, w.meta = "nocloud", tc.meta
		w.extra = append(strings.Fields(tc.extra), lockArgs)
		got := w.check(tc.line)
		must.Be(t, len(got) == len(tc.bad), "found %q, want %d", got, len(tc.bad))
		for i, want := range tc.bad {
			if !strings.Contains(got[i], want) {
				t.Errorf("found %q, want it to hold %q", got[i], want)
			}
		}
	})
}

// TestLongMeta: imager compresses long values.
func TestLongMeta(t *testing.T) {
	t.Parallel()
	// echo -n "0xa=aaaa" | gzip -9n, as pkg/machinery/meta does above 256 bytes.
	const packed = "H4sIAAAAAAACAzOoSLRNBAIAyYitKQgAAAA="
	must.Hold(t, sameMeta(metaPrefix+packed, []schematics.MetaValue{{Key: 10, Value: "aaaa"}}), "not recognised")
	must.Hold(t, !sameMeta(metaPrefix+packed, []schematics.MetaValue{{Key: 10, Value: "aaa"}}),
		"another value is accepted")
}

// TestArgsRoundTrip: a parsed and reassembled command line is the same.
func TestArgsRoundTrip(t *testing.T) {
	t.Parallel()
	must.Equal(t, "result", installerArgs+" "+lockArgs, parseArgs(installerArgs+"  "+lockArgs+"\n").String())
}
