package verify

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path"
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
	config string // SHA-256 of the machine configuration, of configEntry
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

// asListed sorts as imager does: it keeps extensions in directories named 0, 1, 2
// and so on and reads these in the order of their names: 1, 10, 11, 2. See List in
// internal/pkg/extensions of siderolabs/talos.
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
	read        checked // another part, whose identical initrd need not be read again
}

func ukiPart(name string, u *bootimage.UKI, iso bool) part {
	return part{
		name: name, iso: iso, arch: u.Arch, talos: u.Talos, uname: u.Uname, cmdline: u.Cmdline, kernel: u.Kernel, initrd: u.Initrd,
	}
}

// checked is what was read of a part.
type checked struct {
	Boot
	raw    string // SHA-256 of its initrd as stored
	initrd bootimage.Initrd
}

// check compares one way to boot with what is wanted. err says that it could not compare.
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

// generated checks the output of depmod for the extensions' kernel modules, which is
// the last extension, and returns the others.
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
		return list, nil // reported as added
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
