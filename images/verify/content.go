package verify

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/schematics"
)

// Entries among the extensions that the build of an image generates.
const (
	schematicEntry = "schematic"       // what the image was made of: internal/artifacts/schematic.go of siderolabs/image-factory
	configEntry    = "embedded-config" // the machine configuration that the image brings: pkg/imager/embed.go of siderolabs/talos
	modulesEntry   = "modules.dep"     // internal/pkg/extensions/kernel_modules.go of siderolabs/talos
)

// emptySum is the SHA-256 of no bytes.
const emptySum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// wanted is the required content of a locked schematic's images.
type wanted struct {
	lock    schematics.Lock
	entry   schematics.Locked
	args    wantedArgs
	entries []wantedEntry // extensions in their order
	loose   bootimage.Tree
	modules bool // some extension has kernel modules
	grub    bool // the boot ISO may have only GRUB
}

// wantedEntry is a required extension; locked is nil for a generated one.
type wantedEntry struct {
	name   string
	locked *lockedExtension
	config string // SHA-256 of the machine configuration, for configEntry
}

// wanted reads the locked extension images of e.
func (v *Verifier) wanted(ctx context.Context, lock schematics.Lock, e schematics.Locked, note func(text string)) (*wanted, error) {
	c, err := e.Customization()
	if err != nil {
		return nil, err
	}
	list, err := e.BuildOrder()
	if err != nil {
		return nil, err
	}
	w := &wanted{lock: lock, entry: e, grub: c.Bootloader == "grub" && !lock.SecureBoot}
	w.args = wantedArgs{platform: lock.Platform, extra: c.KernelArgs, meta: c.Meta, overlay: e.Overlay != nil}
	for i, x := range list {
		l, err := v.extension(ctx, x, lock.Arch, func() { note(fmt.Sprintf("verifying: %d of %d extensions", i+1, len(list))) })
		if err != nil {
			return nil, err
		}
		w.modules = w.modules || l.hasModules()
		w.entries = append(w.entries, wantedEntry{name: l.is.Name, locked: l})
	}
	w.entries = append(w.entries, wantedEntry{name: schematicEntry})
	if c.EmbeddedConfigSHA256 != "" {
		w.entries = append(w.entries, wantedEntry{name: configEntry, config: c.EmbeddedConfigSHA256})
	}
	w.entries = asListed(w.entries)
	var order []*lockedExtension
	for _, entry := range w.entries {
		if entry.locked != nil {
			order = append(order, entry.locked)
		}
	}
	w.loose, err = looseFiles(order)
	return w, err
}

// asListed sorts entries as imager does. imager keeps extensions in directories named 0, 1, 2 and so on, and reads
// the directories in the order of their names: 1, 10, 11, 2. See List in internal/pkg/extensions of siderolabs/talos.
func asListed(entries []wantedEntry) []wantedEntry {
	numbers := make([]int, len(entries))
	for i := range numbers {
		numbers[i] = i
	}
	slices.SortFunc(numbers, func(a, b int) int { return cmp.Compare(strconv.Itoa(a), strconv.Itoa(b)) })
	sorted := make([]wantedEntry, len(entries))
	for i, n := range numbers {
		sorted[i] = entries[n]
	}
	return sorted
}

// part is one way to boot an image.
type part struct {
	name        string // "installer"
	iso         bool
	arch, talos string // "" if unknown
	uname       string
	cmdline     string
	kernel      *io.SectionReader
	initrd      *io.SectionReader
	read        checked // a part that was read before; an identical initrd is not read again
}

func ukiPart(name string, u *bootimage.UKI, iso bool) part {
	return part{
		name: name, iso: iso, arch: u.Arch, talos: u.Talos, uname: u.Uname, cmdline: u.Cmdline, kernel: u.Kernel, initrd: u.Initrd,
	}
}

// checked is what check has read of a part.
type checked struct {
	Boot
	raw    string // SHA-256 of its initrd as stored
	initrd bootimage.Initrd
}

// check compares one way to boot with what is wanted. err says that check could not compare.
func (w *wanted) check(p part, dir string) (got checked, mismatches []error, err error) {
	if p.arch != "" && p.arch != w.lock.Arch {
		mismatches = append(mismatches, mismatch(OtherArch, "%s: it is for %s, but the lock is for %s", p.name, p.arch, w.lock.Arch))
	}
	if p.talos != "" && p.talos != w.lock.Talos {
		mismatches = append(mismatches, mismatch(OtherTalos, "%s: it is Talos %s, but the lock has %s", p.name, p.talos, w.lock.Talos))
	}
	args := w.args
	args.iso = p.iso
	if found := args.check(p.cmdline); len(found) > 0 {
		mismatches = append(mismatches, mismatch(OtherArgs, "%s: other kernel arguments than locked: %s", p.name, strings.Join(found, "; ")))
	}
	if got.raw, err = rawSum(p.initrd); err != nil {
		return got, nil, fmt.Errorf("%s: %w", p.name, err)
	}
	sumOf := rawSum // without Secure Boot nobody signs the kernel
	if w.lock.SecureBoot {
		sumOf = programSum
	}
	kernel, err := sumOf(p.kernel)
	if err != nil {
		return got, append(mismatches, unreadable(p.name+": kernel", err)), nil
	}
	got.initrd = p.read.initrd
	if got.raw != p.read.raw {
		got.initrd, err = bootimage.ReadInitrd(io.NewSectionReader(p.initrd, 0, p.initrd.Size()), dir)
		if err != nil {
			return got, append(mismatches, unreadable(p.name, err)), nil
		}
	}
	got.kernel, got.talos = kernel, got.initrd.BaseSHA256
	// The UKI's own value is a constant of imager, if imager is of the wanted Talos version.
	release := cmp.Or(bootimage.KernelRelease(p.kernel), p.uname)
	return got, append(mismatches, w.content(p.name, release, got.initrd)...), nil
}

// content compares an initramfs with the locked extensions.
func (w *wanted) content(name, release string, got bootimage.Initrd) []error {
	list, errs := w.generated(name, release, got.Extensions)
	byName := map[string]bootimage.Extension{}
	var names []string
	for _, x := range list {
		if _, twice := byName[x.Name]; twice || !slices.ContainsFunc(w.entries, func(e wantedEntry) bool { return e.name == x.Name }) {
			errs = append(errs, mismatch(ExtensionAdded, "%s: extension %q %s is in it, but not in the lock", name, x.Name, x.Version))
			continue
		}
		byName[x.Name] = x
		names = append(names, x.Name)
	}
	var order []string
	for _, entry := range w.entries {
		x, there := byName[entry.name]
		if !there {
			errs = append(errs, entry.missing(name))
			continue
		}
		order = append(order, entry.name)
		errs = append(errs, w.compare(name, entry, x)...)
	}
	if !slices.Equal(order, names) {
		errs = append(errs, mismatch(ExtensionOrder, "%s: its extensions are in another order: %s; should be %s",
			name, strings.Join(names, ", "), strings.Join(order, ", ")))
	}
	if diff := treeDiff(w.loose, got.Loose, sameContent); diff != "" {
		errs = append(errs, mismatch(OtherFirmware, "%s: firmware and microcode are not those of the locked extensions: %s", name, diff))
	}
	return errs
}

func (e wantedEntry) missing(name string) error {
	switch {
	case e.locked != nil:
		return mismatch(ExtensionMissing, "%s: extension %q %s is not in it, locked at %s", name, e.name, e.locked.is.Version, e.locked.locked.Digest)
	case e.name == schematicEntry:
		return mismatch(OtherSchematic, "%s: it does not name its schematic", name)
	default:
		return mismatch(OtherConfig, "%s: the machine configuration of the schematic is not in it", name)
	}
}

func (w *wanted) compare(name string, e wantedEntry, got bootimage.Extension) []error {
	switch {
	case e.locked != nil:
		return e.locked.compare(name, got)
	case e.name == schematicEntry:
		return w.schematic(name, got)
	default:
		return e.embedded(name, got)
	}
}

// compare compares an image's extension with the locked one.
func (l *lockedExtension) compare(name string, got bootimage.Extension) []error {
	if got.Version != l.is.Version {
		return []error{mismatch(ExtensionVersion, "%s: extension %q has version %s, but the locked one (%s) %s",
			name, got.Name, got.Version, l.locked.Digest, l.is.Version)}
	}
	diff := treeDiff(l.kept, got.Files, sameFile)
	if diff == "" && (got.Author != l.is.Author || got.Description != l.is.Description || got.ExtraInfo != l.is.ExtraInfo) {
		diff = "its manifest differs"
	}
	if diff == "" {
		return nil
	}
	return []error{mismatch(ExtensionContent, "%s: extension %q %s is not the locked one (%s): %s", name, got.Name, got.Version, l.locked.Digest, diff)}
}

// schematic compares the entry that tells a node what its image was made of.
func (w *wanted) schematic(name string, got bootimage.Extension) []error {
	if got.Version != w.entry.SchematicID {
		return []error{mismatch(OtherSchematic, "%s: it says that it is of schematic %s, but the lock has %s", name, got.Version, w.entry.SchematicID)}
	}
	if got.ExtraInfo != w.entry.Schematic {
		return []error{mismatch(OtherSchematic, "%s: its text of schematic %s is not the locked one", name, schematics.Short(got.Version))}
	}
	want := bootimage.Tree{"/usr/local/share/schematic/" + w.entry.SchematicID: {Mode: 0o644, SHA256: emptySum}}
	if diff := treeDiff(want, got.Files, sameFile); diff != "" {
		return []error{mismatch(OtherSchematic, "%s: its schematic entry holds other files than a factory puts there: %s", name, diff)}
	}
	return nil
}

func (e wantedEntry) embedded(name string, got bootimage.Extension) []error {
	const file = "/usr/local/etc/talos/config.yaml"
	config, ok := got.Files[file]
	if !ok || len(got.Files) != 1 || config.SHA256 != e.config || config.Mode != 0o400 || got.Version != e.config {
		return []error{mismatch(OtherConfig, "%s: the machine configuration in it is not the schematic's: %s has SHA-256 %s, locked is %s",
			name, file, shortSum(config.SHA256), shortSum(e.config))}
	}
	return nil
}

// generated checks the output of depmod for the extensions' kernel modules, which is the last extension, and returns
// the other extensions.
func (w *wanted) generated(name, release string, list []bootimage.Extension) ([]bootimage.Extension, []error) {
	last := len(list) - 1
	if last < 0 || list[last].Name != modulesEntry {
		if w.modules {
			return list, []error{mismatch(OtherModules, "%s: extensions bring kernel modules, but %s is not the last extension in it: no module would be found",
				name, modulesEntry)}
		}
		return list, nil
	}
	if !w.modules {
		return list, nil // the caller reports the extension as added
	}
	x, odd := list[last], []string{}
	for file, f := range x.Files {
		dir, base := path.Split(file)
		if dir != modulesRoot+x.Version+"/" || !strings.HasPrefix(base, "modules.") || f.Mode.Type() != 0 {
			odd = append(odd, file)
		}
	}
	var errs []error
	if len(odd) > 0 {
		slices.Sort(odd)
		errs = append(errs, mismatch(OtherModules, "%s: %s holds what depmod does not make for kernel %s: %s", name, modulesEntry, x.Version, firstFew(odd)))
	}
	if release != "" && x.Version != release {
		errs = append(errs, mismatch(OtherModules, "%s: %s is for kernel %s, but it boots %s", name, modulesEntry, x.Version, release))
	}
	return list[:last], errs
}

// maxNamed is how many differing files a message names; the others are counted.
const maxNamed = 3

// treeDiff says which files of a tree differ from the wanted ones; "" if none do. It does not compare owners, because
// imager gives every file to root. It does not compare directories, times and extended attributes, because imager
// sets these itself (see Untar in pkg/archiver and Compress in internal/pkg/extensions of siderolabs/talos).
func treeDiff(want, got bootimage.Tree, same func(want, got bootimage.File) string) string {
	found := differences(want, got, "%s", "is not in the locked one", same)
	if len(found) == 0 {
		return ""
	}
	text := strings.Join(found[:min(len(found), maxNamed)], "; ")
	if more := len(found) - maxNamed; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	if len(found) == 1 {
		return "1 file differs: " + text
	}
	return fmt.Sprintf("%d files differ: %s", len(found), text)
}

// differences says, for each key in order, how its value differs from the wanted one. added is said of a key that is not
// wanted; why, of a key with both values, returns "" if they are the same.
func differences[K cmp.Ordered, V any](want, got map[K]V, format, added string, why func(want, got V) string) []string {
	keys := slices.Concat(slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(got)))
	var found []string
	for _, key := range slices.Compact(slices.Sorted(slices.Values(keys))) {
		w, wanted := want[key]
		g, there := got[key]
		text := added
		switch {
		case !there:
			text = "is missing"
		case wanted:
			text = why(w, g)
		}
		if text != "" {
			found = append(found, fmt.Sprintf(format+" ", key)+text)
		}
	}
	return found
}

// sameFile compares kind, target, content and permissions.
func sameFile(want, got bootimage.File) string {
	if why := sameContent(want, got); why != "" {
		return why
	}
	if want.HardLink && got.SHA256 == emptySum { // imager has not followed the link, nor taken the mode
		want.Mode = want.LinkMode
	}
	if w, g := permissions(want), permissions(got); w != g {
		return fmt.Sprintf("has mode %v, locked is %v", g, w)
	}
	return ""
}

// sameContent compares everything except permissions. The permissions of files that imager moves into the initramfs
// depend on the umask of the process that ran imager.
func sameContent(want, got bootimage.File) string {
	switch {
	case want.Mode.Type() != got.Mode.Type():
		return fmt.Sprintf("is a %s, locked is a %s", kindOf(got), kindOf(want))
	case want.Link != got.Link:
		return fmt.Sprintf("points to %q, locked is %q", got.Link, want.Link)
	case want.HardLink && got.SHA256 == emptySum: // imager has not followed the link: see bootimage.File
	case want.SHA256 != got.SHA256 || want.SizeBytes != got.SizeBytes:
		return fmt.Sprintf("has %d bytes with SHA-256 %s, locked are %d with %s",
			got.SizeBytes, shortSum(got.SHA256), want.SizeBytes, shortSum(want.SHA256))
	}
	return ""
}

// permissions returns the permissions of a regular file. Those of a link mean nothing.
func permissions(f bootimage.File) fs.FileMode {
	if f.Mode.Type() != 0 {
		return 0
	}
	return f.Mode & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
}

func kindOf(f bootimage.File) string {
	switch f.Mode.Type() {
	case 0:
		return "file"
	case fs.ModeSymlink:
		return "link"
	default:
		return "special file"
	}
}

func shortSum(sha256 string) string { return sha256[:min(len(sha256), 12)] }

// firmwareDir holds the files that imager moves out of extensions, because the kernel looks for firmware before any
// extension is mounted: see Compress in internal/pkg/extensions of siderolabs/talos.
const firmwareDir = "/usr/lib/firmware"

const (
	intelMicrocode = "/kernel/x86/microcode/GenuineIntel.bin"
	amdMicrocode   = "/kernel/x86/microcode/AuthenticAMD.bin"
)

// microcodeBlob returns the blob to which imager appends a file; the kernel reads the blob early. It returns "" if
// the file is not CPU microcode: see earlyCPUUcode, ibid.
func microcodeBlob(name string) string {
	dir, base := path.Split(name)
	switch dir {
	case firmwareDir + "/intel-ucode/":
		return intelMicrocode
	case firmwareDir + "/amd-ucode/":
		if strings.HasPrefix(base, "microcode_amd") && strings.HasSuffix(base, ".bin") {
			return amdMicrocode
		}
	}
	return ""
}

// isFirmware reports whether imager moves a file out of its extension.
func isFirmware(name string) bool {
	return name == firmwareDir || strings.HasPrefix(name, firmwareDir+"/")
}

// split divides an extension's files as imager does: kept stays in the extension, moved goes into the initramfs
// beside the extension, and microcode lists the files that become part of each microcode blob.
func split(files bootimage.Tree) (kept, moved bootimage.Tree, microcode map[string][]string, err error) {
	kept, moved, microcode = bootimage.Tree{}, bootimage.Tree{}, map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		if !isFirmware(name) {
			kept[name] = f
			continue
		}
		if blob := microcodeBlob(name); blob != "" {
			if f.Mode.Type() != 0 {
				return nil, nil, nil, fmt.Errorf("%s is CPU microcode, but a %s", name, kindOf(f))
			}
			if !f.HardLink { // imager finds a hard link empty
				microcode[blob] = append(microcode[blob], name)
			}
			continue
		}
		if f.Mode.Type() == fs.ModeSymlink { // imager copies the file that a link points to
			if f, err = follow(files, name); err != nil {
				return nil, nil, nil, err
			}
		}
		moved[name] = f
	}
	return kept, moved, microcode, nil
}

// follow returns the regular file that a link within an extension leads to.
func follow(files bootimage.Tree, name string) (bootimage.File, error) {
	const most = 8
	at := name
	for range most {
		f, ok := files[at]
		switch {
		case !ok:
			return f, fmt.Errorf("%s leads to %s, which is not a file of the extension", name, at)
		case f.Mode.Type() != fs.ModeSymlink:
			return f, nil
		case path.IsAbs(f.Link): // imager would follow it in its own file system
			return f, fmt.Errorf("%s leads out of the extension, to %s", name, f.Link)
		}
		at = path.Join(path.Dir(at), f.Link)
	}
	return bootimage.File{}, fmt.Errorf("%s leads through more than %d links", name, most)
}

// looseFiles returns the files that imager puts beside the extensions. It takes the extensions in their order: a
// later file replaces an earlier one, and microcode is appended.
func looseFiles(order []*lockedExtension) (bootimage.Tree, error) {
	loose := bootimage.Tree{}
	blobs := map[string][]string{} // the files that hold the parts of each blob
	for _, x := range order {
		maps.Copy(loose, x.moved)
		for blob, parts := range x.microcode {
			blobs[blob] = append(blobs[blob], parts...)
		}
	}
	for blob, parts := range blobs {
		f, err := joined(parts)
		if err != nil {
			return nil, fmt.Errorf("put the CPU microcode together: %w", err)
		}
		loose[blob] = f
	}
	return loose, nil
}

// joined describes the concatenation of files.
func joined(files []string) (bootimage.File, error) {
	sum := sha256.New()
	var total int64
	for _, name := range files {
		n, err := copyFile(sum, name)
		if err != nil {
			return bootimage.File{}, err
		}
		total += n
	}
	return bootimage.File{SizeBytes: total, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

func copyFile(w io.Writer, name string) (int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return io.Copy(w, f)
}

// keepMicrocode reads an extension image again and keeps its microcode in files of dir: the hash of a blob covers all
// its parts together, so the parts' own hashes do not help. It returns the files of each blob, sorted by name.
func (v *Verifier) keepMicrocode(ctx context.Context, ref, arch, dir string, microcode map[string][]string) (map[string][]string, error) {
	kept := map[string]string{} // files by the path in the image
	parts := map[string][]string{}
	for blob, names := range microcode {
		for _, name := range names {
			file := filepath.Join(dir, strconv.Itoa(len(kept)))
			kept["rootfs"+name] = file
			parts[blob] = append(parts[blob], file)
		}
	}
	image, err := v.images.Extract(ctx, ref, arch)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	err = eachFile(image, func(name string, r io.Reader) error {
		if to, wanted := kept[name]; wanted {
			return writeFile(to, r)
		}
		return nil
	})
	return parts, err
}

// eachFile calls do for every regular file of a tar, with its path without a leading slash. It reads the stream to
// its end, so that the whole stream is checked.
func eachFile(stream io.Reader, do func(name string, r io.Reader) error) error {
	return eachEntry(stream, func(kind byte, name string, r io.Reader) error {
		if kind != tar.TypeReg {
			return nil
		}
		return do(name, r)
	})
}

// eachEntry does the same as eachFile for all entries, including directories and links.
func eachEntry(stream io.Reader, do func(kind byte, name string, r io.Reader) error) error {
	t := tar.NewReader(stream)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, stream)
			return err
		}
		if err != nil {
			return err
		}
		if err := do(h.Typeflag, strings.TrimPrefix(path.Clean(h.Name), "/"), t); err != nil {
			return err
		}
	}
}

func writeFile(name string, r io.Reader) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

const (
	platformArg = "talos.platform"
	consoleArg  = "console"
	haltArg     = "talos.halt_if_installed"
	metaArg     = "talos.environment"
	metaPrefix  = "INSTALLER_META_BASE64="
)

// ownArgs returns the arguments that Talos 1.10 and later add themselves: see DefaultArgs and SecureBootArgs in
// pkg/machinery/kernel and the KernelArgs of the platforms metal and nocloud in siderolabs/talos.
func ownArgs() map[string][]string {
	return map[string][]string{
		consoleArg:                {"tty0", "tty1", "ttyS0", "ttyAMA0"},
		"net.ifnames":             {"0"},
		"init_on_alloc":           {"1"},
		"slab_nomerge":            {""},
		"pti":                     {"on"},
		"consoleblank":            {"0"},
		"nvme_core.io_timeout":    {"4294967295"},
		"printk.devkmsg":          {"on"},
		"ima_template":            {"ima-ng"},
		"ima_appraise":            {"fix"},
		"ima_hash":                {"sha512"},
		"selinux":                 {"1"},
		"module.sig_enforce":      {"1"},
		"proc_mem.force_override": {"never"},
		"lockdown":                {"confidentiality"},
	}
}

// wantedArgs is what the lock says about a kernel command line.
type wantedArgs struct {
	platform string
	extra    []string // the schematic's, recast's own last
	meta     []schematics.MetaValue
	iso      bool
	overlay  bool // the overlay adds arguments that only its program knows
}

// check lists how a command line differs from imager's, which has Talos' own arguments and then the schematic's. See
// buildCmdline in pkg/imager of siderolabs/talos.
func (w wantedArgs) check(line string) []string {
	extra := parseArgs(strings.Join(w.extra, " "))
	got := parseArgs(line)
	own := got.less(extra)
	found := w.checkOwn(own, extra)
	want := own.plus(extra)
	for _, a := range want {
		if !slices.Equal(got.values(a.key), a.values) {
			found = append(found, fmt.Sprintf("the schematic's %s is missing", shown(a.key, extra.values(a.key))))
		}
	}
	for _, a := range got {
		if want.find(a.key) == nil {
			found = append(found, fmt.Sprintf("%s is there, but the schematic removes it", a.key))
		}
	}
	if len(found) == 0 && want.String() != strings.Join(strings.Fields(line), " ") {
		found = append(found, fmt.Sprintf("they are in another order, %s; should be %s", argKeys(parseArgs(line)), argKeys(want)))
	}
	return found
}

// checkOwn checks a command line without the schematic's arguments. It accepts an unknown argument that the schematic
// names, too.
func (w wantedArgs) checkOwn(own, extra cmdline) []string {
	var found []string
	known := ownArgs()
	known[platformArg] = []string{w.platform}
	if w.iso {
		known[haltArg] = []string{"1"}
	}
	var meta bool
	for _, a := range own {
		for _, value := range a.values {
			switch {
			case a.replaced: // by the schematic's values, which are compared
			case a.key == metaArg && w.iso && !meta && len(w.meta) > 0 && sameMeta(value, w.meta):
				meta = true
			case slices.Contains(extra.values(a.key), value):
			case w.overlay && !strings.HasPrefix(a.key, "talos.") && known[a.key] == nil:
			case !slices.Contains(known[a.key], value):
				found = append(found, fmt.Sprintf("%s is neither Talos' nor the schematic's", shown(a.key, []string{value})))
			}
		}
	}
	if own.find(platformArg) == nil {
		found = append(found, fmt.Sprintf("%s=%s is missing", platformArg, w.platform))
	}
	if w.iso && own.find(haltArg) == nil && extra.find("-"+haltArg) == nil {
		found = append(found, haltArg+"=1 is missing")
	}
	if w.iso && len(w.meta) > 0 && !meta {
		found = append(found, "the schematic's META values are missing from "+metaArg)
	}
	return found
}

// sameMeta decodes META values as Talos does: see Encode in pkg/machinery/meta of siderolabs/talos.
func sameMeta(value string, want []schematics.MetaValue) bool {
	text, ok := strings.CutPrefix(value, metaPrefix)
	if !ok {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return false
	}
	var list []string
	for _, m := range want {
		list = append(list, fmt.Sprintf("0x%x=%s", m.Key, m.Value))
	}
	wanted := strings.Join(list, ";")
	if !bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		return string(raw) == wanted
	}
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return false
	}
	plain, err := io.ReadAll(io.LimitReader(z, int64(len(wanted))+1))
	return err == nil && string(plain) == wanted
}

// cmdline is a kernel command line as Talos handles it (siderolabs/go-procfs): the
// values of a key are kept together, at the key's first position.
type cmdline []argument

type argument struct {
	key      string
	values   []string // "" for a key without a value
	replaced bool     // the schematic's values replace Talos' own
}

func parseArgs(line string) cmdline {
	var c cmdline
	for field := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(field, "=")
		c = c.add(key, value)
	}
	return c
}

func (c cmdline) find(key string) *argument {
	for i := range c {
		if c[i].key == key {
			return &c[i]
		}
	}
	return nil
}

func (c cmdline) values(key string) []string {
	if a := c.find(key); a != nil {
		return a.values
	}
	return nil
}

func (c cmdline) add(key string, values ...string) cmdline {
	if a := c.find(key); a != nil {
		a.values = append(slices.Clone(a.values), values...)
		return c
	}
	return append(c, argument{key: key, values: values})
}

// replaces reports whether the schematic's values of a key replace Talos' own.
func replaces(key string) bool { return key == consoleArg || key == platformArg }

// less returns the command line before the schematic's arguments were added.
func (c cmdline) less(extra cmdline) cmdline {
	var own cmdline
	for _, a := range c {
		e := extra.find(a.key)
		switch {
		case e == nil:
		case replaces(a.key):
			a.replaced = true
		case len(a.values) >= len(e.values) && slices.Equal(a.values[len(a.values)-len(e.values):], e.values):
			a.values = a.values[:len(a.values)-len(e.values)]
		}
		// If the schematic removes Talos' own values, their key stays in place for the values that the schematic adds.
		emptied := ownArgs()[a.key] != nil && extra.find("-"+a.key) != nil
		if len(a.values) > 0 || emptied {
			own = append(own, a)
		}
	}
	return own
}

// plus returns the command line with the schematic's arguments, as imager adds them.
func (c cmdline) plus(extra cmdline) cmdline {
	c = slices.Clone(c)
	for _, e := range extra {
		switch key, negated := strings.CutPrefix(e.key, "-"); {
		case negated && key != "": // a lone "-" is an ordinary argument
			c = c.without(key, e.values)
		case replaces(e.key) && c.find(e.key) != nil:
			c.find(e.key).values = e.values
		default:
			c = c.add(e.key, e.values...)
		}
	}
	return c
}

// without removes values of a key. The key keeps its place for values that are added later. An empty first value
// removes the key: see AppendAll of siderolabs/go-procfs.
func (c cmdline) without(key string, values []string) cmdline {
	var left cmdline
	for _, a := range c {
		switch {
		case a.key != key:
		case values[0] == "":
			continue
		default:
			a.values = slices.DeleteFunc(slices.Clone(a.values), func(v string) bool { return slices.Contains(values, v) })
		}
		left = append(left, a)
	}
	return left
}

func (c cmdline) String() string {
	var list []string
	for _, a := range c {
		for _, value := range a.values {
			list = append(list, arg(a.key, value))
		}
	}
	return strings.Join(list, " ")
}

// shown formats arguments for people. It shows only the beginning of a URL: the rest may be a password or a token.
func shown(key string, values []string) string {
	const most = 80
	var list []string
	for _, value := range values {
		if u, err := url.Parse(value); err == nil && u.Host != "" {
			value = u.Scheme + "://" + u.Host + "/…"
		}
		if len(value) > most {
			value = value[:most] + "…"
		}
		list = append(list, arg(key, value))
	}
	return strings.Join(list, " ")
}

func argKeys(c cmdline) string {
	var list []string
	for _, a := range c {
		list = append(list, a.key)
	}
	return strings.Join(list, " ")
}

func arg(key, value string) string {
	if value == "" {
		return key
	}
	return key + "=" + value
}
