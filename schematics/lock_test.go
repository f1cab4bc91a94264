package schematics

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func builtLock(t *testing.T) Lock {
	t.Helper()
	l := resolve(t, request(map[string]string{"default": agent, "plain": "customization: {}\n"}), catalog())
	e := l.Schematics["default"]
	e.Installer = "factory.example/nocloud-installer/" + e.SchematicID + "@" + digestOf("installer")
	e.ISO.SHA256, e.ISO.SizeBytes = sum("iso"), 123456789
	l.Schematics["default"] = e
	l.Checksum = l.checksum()
	return l
}

// TestLockFile writes a lock, compares it with the golden one and reads it back.
func TestLockFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "recast.lock")
	want := builtLock(t)
	must.Do(t, WriteLock(path, want))
	text := must.Get(os.ReadFile(path))(t)
	golden := filepath.Join("testdata", "recast.lock")
	if *update {
		must.Do(t, os.WriteFile(golden, text, 0o644))
	}
	wantText := must.Get(os.ReadFile(golden))(t)
	must.Equal(t, "file", string(wantText), string(text))
	got := must.Get(ReadLock(path))(t)
	must.Equal(t, "read back", want, got)
	entries, err := os.ReadDir(filepath.Dir(path))
	must.Hold(t, err == nil && len(entries) == 1, "left behind: %v %v", entries, err)
}

// TestLockFileWithDisk: a disk image is read back as it was written; a lock without one has no word of it.
func TestLockFileWithDisk(t *testing.T) {
	t.Parallel()
	want := builtLock(t)
	e := want.Schematics["default"]
	e.Disk = Disk{BootFile: BootFile{Name: want.DiskName(e), SHA256: sum("disk"), SizeBytes: 123}, DiskBytes: 456}
	at := time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)
	e.Uploads = []Upload{{Name: e.ISO.NameUpload(), Storage: "nfs", Changed: at}, {Name: e.Disk.NameUpload(), Storage: "local", Host: "pve1", Changed: at}}
	want.Schematics["default"] = e
	want.Checksum = want.checksum()
	text := must.Get(formatLock(want))(t)
	must.Equal(t, "words of a disk image, which one of two schematics has", 1, strings.Count(string(text), "disk:"))
	got := must.Get(ParseLock("recast.lock", text))(t)
	must.Equal(t, "read back", want, got)
	must.Equal(t, "identity", [2]string{builtLock(t).Key(), builtLock(t).Pinned()}, [2]string{got.Key(), got.Pinned()})
	elsewhere := builtLock(t)
	o := elsewhere.Schematics["default"]
	o.Disk = e.Disk
	elsewhere.Schematics["default"] = o
	elsewhere.AdoptUploads([]Lock{builtLock(t), got})
	must.Equal(t, "adopted", want.Schematics, elsewhere.Schematics)
	for _, wrong := range []Upload{{Name: e.ISO.Name, Storage: "nfs"}, {Name: BootFile{Name: "debian.iso"}.NameUpload(), Storage: "nfs"}, {Name: e.ISO.NameUpload()}} {
		bad := want.Clone()
		e.Uploads = []Upload{wrong}
		bad.Schematics["default"] = e
		_, err := ParseLock("recast.lock", must.Get(formatLock(bad))(t))
		must.Contain(t, "error", fmt.Sprint(err), "is no upload of the ISO or the disk image")
	}
}

// TestWithoutFiles: neither a lock nor a directory has to be there to be read, a directory has to be to write into.
func TestWithoutFiles(t *testing.T) {
	t.Parallel()
	none := filepath.Join(t.TempDir(), "none")
	_, err := ReadLock(none)
	must.Hold(t, errors.Is(err, fs.ErrNotExist) && fault.KindOf(err) == fault.Config, "error = %v", err)
	must.Equal(t, "hints", []string{"run `recast lock`"}, fault.Hints(err))
	must.Get(ReadHistory(none))(t)
	if err := WriteLock(filepath.Join(none, "recast.lock"), builtLock(t)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error = %v", err)
	}
}

// TestReadLockRefusesEdits changes the file in one place at a time.
func TestReadLockRefusesEdits(t *testing.T) {
	t.Parallel()
	text := must.Get(formatLock(builtLock(t)))(t)
	other := digestOf("other")
	type row struct{ from, to, want string }
	must.Each(t, map[string]row{
		"newer format":        {"version: 1\n", "version: 2\nnew: x\n", "recast.lock:2:10: this recast reads locks of version 1 only"},
		"unknown key":         {"talos:", "extra: 1\ntalos:", `recast.lock:3:1: unknown key "extra"`},
		"Talos version":       {"talos: v1.13.9", "talos: v1.13.8", "schematics.default.buildID: it is "},
		"no Talos version":    {"talos: v1.13.9", "talos: \"\"", `recast.lock:3:8: talos: "" is not one`},
		"extension digest":    {digestOf("qemu-guest-agent"), other, "schematics.default.lockHash: it is "},
		"digest cut":          {digestOf("qemu-guest-agent"), "sha256:00", "is not a whole extension"},
		"kernel argument":     {"- recast.lock=", "- quiet\n              - recast.lock=", "schematics.default.schematicID: it is "},
		"own argument gone":   {"recast.lock=", "recast.lack=", "schematics.default.schematic: its last kernel argument is not recast.lock="},
		"schematic broken":    {"systemExtensions:", "systemExtension:", `schematics.default.schematic: schematic:4:5: unknown key "systemExtension"`},
		"installer":           {digestOf("installer"), other, "recast.lock:44:11: the file was cut off or edited by hand"},
		"installer's tag":     {"@" + digestOf("installer"), ":v1.13.9", "does not end in a digest"},
		"ISO's name":          {"name: recast-", "name: racest-", "schematics.default.iso: it is named "},
		"ISO's sum":           {sum("iso"), "\"\"", "schematics.default.iso: sha256 and sizeBytes contradict each other"},
		"ISO's size":          {"123456789", "123456788", "the file was cut off or edited"},
		"key, no Secure Boot": {"arch: amd64", "arch: amd64\nsecureBootKey: " + sum("key"), "recast.lock:5:16: secureBootKey: it must be a SHA-256 in hex with secureBoot"},
		"Secure Boot, no key": {"arch: amd64", "arch: amd64\nsecureBoot: true", "secureBootKey: it must be a SHA-256 in hex with secureBoot"},
		"signer, no key":      {"    iso:\n", "    signer: me\n    iso:\n", `schematics.default.signer: "me" is not the SHA-256 of a key that signed the installer`},
		"former signer":       {"schematics:\n", "signers: [me]\nschematics:\n", "recast.lock:6:10: signers: each must be a SHA-256 in hex"},
		"half an overlay":     {"    installer:", "    overlay: {name: rpi, ref: ghcr.io/x/y, digest: latest}\n    installer:", `schematics.default.overlay: "rpi" (ghcr.io/x/y@latest) is not a whole overlay`},
		"rebuilt":             {"    installer:", "    rebuild: 1\n    installer:", "schematics.default.lockHash: it is "},
		"rebuilt, no count":   {"    installer:", "    rebuild: -1\n    installer:", "schematics.default.rebuild: -1 is not a count"},
		"now explicit":        {"digest: " + digestOf("qemu-guest-agent"), "digest: " + digestOf("qemu-guest-agent") + "\n      explicit: true", "schematics.default.lockHash: it is "},
		"disk, another name":  {"    schematic: |", "    disk: {name: x.qcow2, sha256: " + sum("disk") + ", sizeBytes: 1, diskBytes: 2}\n    schematic: |", `schematics.default.disk: it is named "x.qcow2", not "recast-v1.13.9-`},
		"disk, no size":       {"    schematic: |", "    disk: {name: x.qcow2, sha256: " + sum("disk") + ", sizeBytes: 1, diskBytes: 0}\n    schematic: |", "schematics.default.disk: sha256, sizeBytes and diskBytes are not those of an image"},
		"disk, no file":       {"    schematic: |", "    disk: {name: x.qcow2, sha256: " + sum("disk") + ", sizeBytes: 0, diskBytes: 1}\n    schematic: |", "schematics.default.disk: sha256, sizeBytes and diskBytes are not those of an image"},
		"disk, no sum":        {"    schematic: |", "    disk: {name: x.qcow2, sha256: x, sizeBytes: 1, diskBytes: 1}\n    schematic: |", "schematics.default.disk: sha256, sizeBytes and diskBytes are not those of an image"},
		"checksum":            {"checksum: sha256-", "checksum: sha256-0", "the file was cut off or edited"},
	}, func(t *testing.T, tc row) {
		edited := strings.Replace(string(text), tc.from, tc.to, 1)
		must.Be(t, edited != string(text), "the edit changes nothing")
		_, err := ParseLock("recast.lock", []byte(edited))
		must.Hold(t, err != nil && strings.Contains(err.Error(), tc.want) && strings.HasPrefix(err.Error(), "recast.lock:"),
			"error\n got %v\nwant it to hold %q", err, tc.want)
		must.Equal(t, "kind", fault.Config, fault.KindOf(err))
	})
}

// TestReadLockRefusesCutFiles truncates the file at the end of every line but the last, and at places between.
func TestReadLockRefusesCutFiles(t *testing.T) {
	t.Parallel()
	text := must.Get(formatLock(builtLock(t)))(t)
	for n := range len(text) - 1 {
		if n%13 != 0 && n > 0 && text[n-1] != '\n' {
			continue
		}
		if _, err := ParseLock("recast.lock", text[:n]); err == nil {
			t.Fatalf("read without an error after byte %d:\n%s", n, text[:n])
		}
	}
}

// TestReplaceLock: results for one lock do not overwrite another that was written meanwhile.
func TestReplaceLock(t *testing.T) {
	t.Parallel()
	read := builtLock(t)
	learnt, other := read.Clone(), read.Clone()
	for lock, sizeBytes := range map[*Lock]int64{&learnt: 1, &other: 2} {
		e := lock.Schematics["default"]
		e.ISO.SizeBytes = sizeBytes
		lock.Schematics["default"] = e
		lock.Checksum = lock.checksum()
	}
	type row struct {
		there *Lock // nil: none
		was   Lock
		want  Lock
		err   string
	}
	must.Each(t, map[string]row{
		"as it was read":         {&read, read, learnt, ""},
		"the same was learnt":    {&learnt, read, learnt, ""},
		"another lock":           {&other, read, other, "was changed by someone else meanwhile"},
		"gone":                   {nil, read, Lock{}, "no lock"},
		"the first":              {nil, Lock{}, learnt, ""},
		"the first, but not now": {&other, Lock{}, other, "was changed by someone else meanwhile"},
	}, func(t *testing.T, tc row) {
		path := filepath.Join(t.TempDir(), "recast.lock")
		if tc.there != nil {
			must.Do(t, WriteLock(path, *tc.there))
		}
		err := ReplaceLock(path, tc.was, learnt)
		must.Contain(t, "error", fmt.Sprint(err), cmp.Or(tc.err, "<nil>"))
		got, err := ReadLock(path)
		must.Be(t, err == nil || errors.Is(err, fs.ErrNotExist), "%v", err)
		must.Equal(t, "lock", tc.want, got)
	})
}

func TestHistory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	past := builtLock(t)
	for range 2 { // a second time changes nothing
		must.Do(t, Archive(dir, past))
	}
	req := request(map[string]string{"default": agent})
	present := resolve(t, req, catalog().with("siderolabs/qemu-guest-agent", digestOf("patched")))
	h := must.Get(ReadHistory(dir, present))(t)
	for hash, want := range map[string]string{
		past.Schematics["default"].LockHash:    digestOf("qemu-guest-agent"),
		present.Schematics["default"].LockHash: digestOf("patched"),
	} {
		got, ok := h.ByLockHash(hash)
		must.Hold(t, ok && len(got.Extensions) == 1 && got.Extensions[0].Digest == want,
			"%s: %v %t, want digest %s", hash, got, ok, want)
	}
	if got, ok := h.ByLockHash("sha256-00"); ok {
		t.Errorf("an unknown hash yields %v", got)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	must.Be(t, err == nil && len(files) == 1, "files: %v %v", files, err)
	if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode: %v %v", info.Mode(), err)
	}

	must.Do(t, os.WriteFile(files[0], []byte("version: 1\n"), 0o600))
	h, err = ReadHistory(dir, present)
	must.Contain(t, "error", fmt.Sprint(err), files[0])
	if _, ok := h.ByLockHash(present.Schematics["default"].LockHash); !ok {
		t.Error("a broken past lock hides the current one")
	}
}

// TestHistoryNames: a lock proves the digests that its hash stands for, but not the names.
func TestHistoryNames(t *testing.T) {
	t.Parallel()
	honest := builtLock(t)
	e := honest.Schematics["default"]
	e.Extensions = slices.Clone(e.Extensions)
	e.Extensions[0].Name, e.Extensions[0].Version = "siderolabs/of-another-name", "v9"
	text := must.Get(formatLock(Lock{
		Talos: honest.Talos, Arch: honest.Arch, Platform: honest.Platform, SecureBoot: honest.SecureBoot, SecureBootKey: honest.SecureBootKey,
		Signers: honest.Signers, Schematics: map[string]Locked{"default": e},
	}))(t)
	other := must.Get(ParseLock("other", text))(t)
	h, err := ReadHistory(t.TempDir(), honest, other)
	if got, _ := h.ByLockHash(e.LockHash); err != nil || got.Extensions[0].Name != honest.Schematics["default"].Extensions[0].Name {
		t.Errorf("%v, %v", got, err)
	}
}

func FuzzReadLock(f *testing.F) {
	text := must.Get(os.ReadFile(filepath.Join("testdata", "recast.lock")))(f)
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Add([]byte("version: 1\nschematics: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := ParseLock("recast.lock", data)
		if err != nil {
			must.Equal(t, "kind of the error", fault.Config, fault.KindOf(err))
			return
		}
		again := must.Get(formatLock(l))(t)
		must.Equal(t, "the parsed file can't be written and read again", l, must.Get(ParseLock("recast.lock", again))(t))
		must.Be(t, bytes.HasPrefix(again, []byte(lockHeader)), "the header is missing")
	})
}
