package images

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/diskimage"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/schematics"
)

// diskBench verifies disk images against an installer of the same factory.
type diskBench struct {
	factory  *factory
	lock     schematics.Lock
	entry    schematics.Locked
	verifier *verify.Verifier
	boot     verify.Boot
}

func newDiskBench(t testing.TB) *diskBench {
	t.Helper()
	lock := lockOf(t)
	b := &diskBench{factory: newFactory(), lock: lock, entry: lock.Schematics["default"]}
	b.factory.schematics[b.entry.SchematicID] = b.entry.Schematic
	b.verifier = verify.New(b.factory, t.TempDir())
	t.Cleanup(func() { _ = b.verifier.Close() }) // the directory is removed anyway
	files, err := b.factory.Extract(t.Context(), "factory.example/nocloud-installer/"+b.entry.SchematicID+"@", "amd64")
	noError(t, err)
	if b.boot, err = b.verifier.Installer(t.Context(), lock, b.entry, files, func(string) {}); err != nil {
		t.Fatal(err)
	}
	return b
}

// disk is the factory's disk image.
func (b *diskBench) disk(t testing.TB, form artefact.DiskForm) []byte {
	t.Helper()
	disk := must(artefact.DiskImage(b.factory.image("disk", b.entry.SchematicID, "v1.13.9", "amd64", "nocloud"), form))(t)
	return disk
}

func (b *diskBench) verify(t testing.TB, disk []byte) (int64, error) {
	t.Helper()
	return b.verifier.Disk(t.Context(), b.lock, b.entry, bytes.NewReader(disk), int64(len(disk)), b.boot, func(string) {})
}

func TestDisk(t *testing.T) {
	t.Parallel()
	each(t, map[string]artefact.DiskForm{
		"for UEFI": {}, "for a BIOS, too": {BIOS: true}, "compressed": {By: artefact.Zlib}, "compressed with zstd": {By: artefact.Zstd},
	}, func(t *testing.T, form artefact.DiskForm) {
		b := newDiskBench(t)
		size, err := b.verify(t, b.disk(t, form))
		if err != nil || size == 0 || size%(1<<20) != 0 {
			t.Errorf("a disk of %d bytes, err = %v", size, err)
		}
	})
}

type spoiltDisk struct {
	built func(*factory)
	sent  func([]byte) []byte
	form  artefact.DiskForm
	kind  verify.MismatchKind
	want  string
}

// spoiltDisks have the right name and another content.
func spoiltDisks() map[string]spoiltDisk {
	same := func(b []byte) []byte { return b }
	built := func(change func(*artefact.Image)) func(*factory) { return only("disk", change) }
	none := func(*factory) {}
	return map[string]spoiltDisk{
		"a swapped extension": {
			built(withAgent(func(x *artefact.Extension) { x.Files = agentExtension(digest("zero")).Files })), same,
			artefact.DiskForm{},
			verify.ExtensionContent,
			`disk image: extension "qemu-guest-agent" 1.0 is not the locked one (` + digest("one"),
		},
		"an extension missing": {
			built(func(img *artefact.Image) { img.Extensions = nil }), same,
			artefact.DiskForm{},
			verify.ExtensionMissing,
			`disk image: extension "qemu-guest-agent" 1.0 is not in it, locked at ` + digest("one"),
		},
		"other firmware": {
			built(withAgent(func(x *artefact.Extension) { x.Files["/usr/lib/firmware/agent.bin"] = []byte("backdoor") })), same,
			artefact.DiskForm{},
			verify.OtherFirmware,
			"disk image: firmware and microcode are not those of the locked extensions",
		},
		"another kernel argument": {
			built(func(img *artefact.Image) { img.Cmdline += " init=/bin/sh" }), same,
			artefact.DiskForm{},
			verify.OtherArgs,
			"disk image: other kernel arguments than locked: init=/bin/sh is neither",
		},
		"an ISO's arguments": {
			built(func(img *artefact.Image) {
				img.Cmdline = strings.Replace(img.Cmdline, installerArgs, isoArgs, 1)
			}), same,
			artefact.DiskForm{},
			verify.OtherArgs,
			"disk image: other kernel arguments than locked: talos.halt_if_installed=1 is neither",
		},
		"another schematic": {
			built(func(img *artefact.Image) { img.SchematicID = hash([]byte("other")) }), same,
			artefact.DiskForm{},
			verify.OtherSchematic,
			"disk image: it says that it is of schematic " + hash([]byte("other")),
		},
		"another Talos": {
			built(func(img *artefact.Image) { img.TalosVersion = "v1.13.8" }), same,
			artefact.DiskForm{},
			verify.OtherTalos,
			"disk image: it is Talos v1.13.8, but the lock has v1.13.9",
		},
		"another architecture": {
			built(func(img *artefact.Image) { img.Arch = "arm64" }), same, artefact.DiskForm{}, verify.OtherArch, "disk image: it is for arm64, but the lock is for amd64",
		},
		"another build": {
			built(func(img *artefact.Image) { img.TalosVersion = "v1.13.8" }), same,
			artefact.DiskForm{},
			verify.OtherTalos,
			"disk image: the disk image is of another build than the installer: Talos initramfs ",
		},
		"values that are not locked": {
			none, same,
			artefact.DiskForm{Meta: map[uint8]string{0xa: "secret"}},
			verify.OtherConfig,
			"disk image: other META values than locked: 0xa is not the schematic's",
		},
		"truncated by a sector": {
			none, func(b []byte) []byte { return b[:len(b)-512] }, artefact.DiskForm{}, verify.Damaged, "disk image: damaged or of a foreign format: it is cut short: ",
		},
		"a web page": {
			none, func([]byte) []byte { return []byte("<html>" + strings.Repeat(" ", 100)) }, artefact.DiskForm{}, verify.Damaged, "no qcow2 file",
		},
	}
}

func TestDiskRefused(t *testing.T) {
	t.Parallel()
	each(t, spoiltDisks(), func(t *testing.T, test spoiltDisk) {
		b := newDiskBench(t)
		test.built(b.factory)
		_, err := b.verify(t, test.sent(b.disk(t, test.form)))
		if m, ok := errors.AsType[*verify.Mismatch](err); !ok || m.Kind != test.kind || !strings.Contains(message(err), test.want) {
			t.Errorf("mismatch %+v, err = %v, want %s: %q", m, err, test.kind, test.want)
		}
		if fault.KindOf(err) != fault.Refused || len(fault.Hints(err)) == 0 || strings.Contains(message(err), "secret") {
			t.Errorf("kind = %v, hints %q, err = %v", fault.KindOf(err), fault.Hints(err), err)
		}
		t.Attr("corruptions-caught", "1")
	})
}

// TestDiskCached: the cache keeps a disk image by its checksum, as it does an ISO, and
// nothing that is not as locked.
func TestDiskCached(t *testing.T) {
	t.Parallel()
	b, c := newDiskBench(t), NewCache(t.TempDir())
	disk, name := b.disk(t, artefact.DiskForm{}), "recast-1.qcow2"
	store := func(content []byte) (schematics.BootFile, error) {
		return c.store(bytes.NewReader(content), int64(len(content)), schematics.BootFile{Name: name}, func(f *os.File, got schematics.BootFile) error {
			_, err := b.verifier.Disk(t.Context(), b.lock, b.entry, f, got.SizeBytes, b.boot, func(string) {})
			return err
		})
	}
	_, err := store(disk[:len(disk)-512])
	if _, found, lookErr := c.look(name); found || lookErr != nil || err == nil {
		t.Errorf("a truncated one is kept: %v, %v", err, lookErr)
	}
	kept := must(store(disk))(t)
	got, found, err := c.look(name)
	if want := (schematics.BootFile{Name: name, SHA256: hash(disk), SizeBytes: int64(len(disk))}); got != want || kept != want || !found || err != nil {
		t.Errorf("cached %+v, stored %+v, want %+v; %v", got, kept, want, err)
	}
}

// TestDiskFlippedBytes changes a byte in many places of the UKI's kernel and initramfs.
func TestDiskFlippedBytes(t *testing.T) {
	t.Parallel()
	b := newDiskBench(t)
	disk := b.disk(t, artefact.DiskForm{})
	opened := must(diskimage.Open(bytes.NewReader(disk), int64(len(disk))))(t)
	flipped := 0
	for name, part := range map[string]*io.SectionReader{"kernel": opened.ESP.UKI.Kernel, "initramfs": opened.ESP.UKI.Initrd} {
		content := must(io.ReadAll(part))(t)
		from := bytes.Index(disk, content)
		if from < 0 {
			t.Fatalf("the %s is not in one piece", name)
		}
		if name == "initramfs" { // the archive of microcode before has times and numbers of no meaning
			own := bytes.Index(content, []byte("\x28\xb5\x2f\xfd"))
			from, content = from+own, content[own:]
		}
		for at := from; at < from+len(content); at += 53 {
			_, err := b.verify(t, flip(disk, at))
			if m, ok := errors.AsType[*verify.Mismatch](err); !ok || m.Kind != verify.Damaged && m.Kind != verify.OtherBuild {
				t.Errorf("byte %d of the %s: %v", at-from, name, err)
			}
			flipped++
		}
	}
	if flipped < 20 {
		t.Errorf("only %d bytes", flipped)
	}
	t.Attr("flipped-bytes-caught", strconv.Itoa(flipped))
}
