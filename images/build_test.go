package images

import (
	"bytes"
	gocmp "cmp"
	"context"
	"debug/pe"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/diskimage"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/schematics"
)

func TestBuild(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	must.Do(t, b.run(t, b.builder().Step()))
	want := lockOf(t)
	for name, e := range want.Schematics {
		iso := b.factory.bytes(BootISO, RequestOf(want, e))
		e.ISO.SHA256, e.ISO.SizeBytes = hash(iso), int64(len(iso))
		e.Installer = "factory.example/nocloud-installer/" + e.SchematicID + "@" + digest("installer "+e.SchematicID)
		want.Schematics[name] = e
		got, err := os.ReadFile(b.cache.path(e.ISO.Name))
		if err != nil || !bytes.Equal(got, iso) {
			t.Errorf("cached ISO of %s: %v, same bytes: %t", name, err, bytes.Equal(got, iso))
		}
	}
	must.Equal(t, "saved lock", want, b.saved)
	must.Equal(t, "ledger and file differ", b.saved, b.ledger.Lock())
	must.Hold(t, b.factory.downloads == 2 && b.factory.registrations == 2,
		"%d downloads, %d registrations", b.factory.downloads, b.factory.registrations)
	must.Equal(t, "notes", wantNotes(want), b.notes)
	must.Do(t, b.verifier.Close())
	left, err := filepath.Glob(b.cache.path("*.iso"))
	hidden, err2 := filepath.Glob(b.cache.path(".*.part"))
	if err := errors.Join(err, err2); err != nil || len(left) != 2 || len(hidden) != 0 {
		t.Errorf("cache: %v %v %v", left, hidden, err)
	}
}

// wantNotes are a build's progress notes.
func wantNotes(lock schematics.Lock) []string {
	var notes []string
	for _, name := range lock.Names() {
		at := "build/" + name + "/"
		notes = append(notes, at+"verify-installer: reading what the installer holds")
		for i := range lock.Schematics[name].Extensions {
			notes = append(notes, fmt.Sprintf("%sverify-installer: verifying: %d of %d extensions", at, i+1, len(lock.Schematics[name].Extensions)))
		}
		all := lock.Schematics[name].ISO.SizeBytes
		for _, done := range []int64{32 << 10, 64 << 10, all} { // by what io.Copy reads at once
			notes = append(notes, at+"fetch-iso: "+words.Size(done)+" of "+words.Size(all))
		}
		notes = append(notes, at+"fetch-iso: verifying what the boot ISO holds")
	}
	return notes
}

func TestBuildAgainDoesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	must.Do(t, b.run(t, b.builder().Step()))
	// The factory has changed meanwhile: finished builds stay.
	b.factory.extensions = list(digest("two"))
	b.again(b.saved)
	must.Do(t, b.run(t, b.builder().Step()))
	d, p := b.saved.Schematics["default"], b.saved.Schematics["plain"]
	reason := func(e schematics.Locked) string {
		return "installer " + shortDigest(digest("installer "+e.SchematicID)) + " is there; " + e.ISO.Name + " is in the cache"
	}
	want := []string{"build/default skipped " + reason(d), "build/plain skipped " + reason(p), "build done"}
	must.Equal(t, "events", want, b.events)
	if b.factory.downloads+b.factory.registrations+b.saves+len(b.factory.pulls) != 0 {
		t.Errorf("%d downloads, %d registrations, %d saves, pulls %v", b.factory.downloads, b.factory.registrations, b.saves, b.factory.pulls)
	}
}

// TestBuildResumes loses one thing at a time and counts the repeated work.
func TestBuildResumes(t *testing.T) {
	t.Parallel()
	type row struct {
		lose      func(*testing.T, *bench)
		downloads int
		register  int
	}
	must.Each(t, map[string]row{
		"the cached ISO": {func(t *testing.T, b *bench) {
			must.Do(t, os.Remove(b.cache.path(b.saved.Schematics["default"].ISO.Name)))
		}, 1, 0},
		"some bytes of the cached ISO": {func(t *testing.T, b *bench) {
			must.Do(t, os.WriteFile(b.cache.path(b.saved.Schematics["default"].ISO.Name), []byte("rot"), 0o600))
		}, 1, 0},
		"what was recorded": {func(t *testing.T, b *bench) { b.saved = lockOf(t) }, 2, 0},
		"the factory": {func(_ *testing.T, b *bench) {
			b.factory.schematics = map[string]string{}
		}, 0, 2},
	}, func(t *testing.T, tc row) {
		b := newBench(t)
		must.Do(t, b.run(t, b.builder().Step()))
		whole := b.saved
		tc.lose(t, b)
		b.again(b.saved)
		must.Do(t, b.run(t, b.builder().Step()))
		if b.factory.downloads != tc.downloads || b.factory.registrations != tc.register {
			t.Errorf("%d downloads, %d registrations; want %d, %d", b.factory.downloads, b.factory.registrations, tc.downloads, tc.register)
		}
		must.Equal(t, "lock", whole, b.ledger.Lock())
	})
}

// TestBuildTakesARebuiltISO: a factory whose cache is gone rebuilds the ISO, never
// with the same bytes. One with the locked content becomes the lock's ISO.
func TestBuildTakesARebuiltISO(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	must.Do(t, b.run(t, b.builder().Step()))
	was := b.saved
	only("iso", func(img *artefact.Image) { img.SchematicAuthor += "rebuilt" })(b.factory)
	b.cache = NewCache(t.TempDir())
	b.again(b.saved)
	must.Do(t, b.run(t, b.builder().Step()))
	want := was.Clone()
	for name, e := range want.Schematics {
		iso := b.factory.bytes(BootISO, RequestOf(want, e))
		e.ISO.SHA256, e.ISO.SizeBytes = hash(iso), int64(len(iso))
		must.Be(t, e.ISO != was.Schematics[name].ISO, "the factory has built the same bytes for %s", name)
		want.Schematics[name] = e
		note := fmt.Sprintf("build/%s/fetch-iso: its content is as locked: its SHA-256 %s replaces %s in recast.lock", name, e.ISO.SHA256, was.Schematics[name].ISO.SHA256)
		must.Hold(t, slices.Contains(b.notes, note), "no note %q in %q", note, b.notes)
	}
	must.Equal(t, "saved lock", want, b.saved)
	b.again(b.saved)
	if err := b.run(t, b.builder().Step()); err != nil || b.factory.downloads+b.saves != 0 {
		t.Errorf("the third time: %v, %d downloads, %d saves", err, b.factory.downloads, b.saves)
	}
}

// TestBuildTrustsPublished: on a fresh machine a published ISO is not fetched.
func TestBuildTrustsPublished(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	must.Do(t, errors.Join(b.run(t, b.builder().Step()), b.run(t, b.pub.Step())))
	b.cache = NewCache(t.TempDir())
	b.again(b.saved)
	builder := b.builder()
	builder.Published = func(ctx context.Context, _ Artefact, name string) (string, error) { return b.pub.Published(ctx, name) }
	must.Do(t, errors.Join(b.run(t, builder.Step()), b.run(t, b.pub.Step())))
	if b.factory.downloads != 1 || b.store.changes != nil { // "plain" is published nowhere
		t.Errorf("%d downloads, uploads %v", b.factory.downloads, b.store.changes)
	}
}

// spoiltBuild is a way in which building goes wrong.
type spoiltBuild struct {
	built bool // once, before it breaks
	spoil func(*bench)
	kind  fault.Kind
	want  []string
	hint  string
}

func spoiltBuilds() map[string]spoiltBuild {
	rebuilt := func(b *bench) { b.factory.salt = "rebuilt" }
	return map[string]spoiltBuild{
		"a stale factory": {
			spoil: func(b *bench) { b.factory.extensions = list(digest("zero")) }, kind: fault.Refused,
			want: []string{"build/default/check-factory: ", agent, digest("zero"), digest("one")},
			hint: "the factory keeps its list until it restarts",
		},
		"a factory without the extension": {
			spoil: func(b *bench) { b.factory.extensions = nil }, kind: fault.Refused,
			want: []string{"the factory does not have extension " + agent, digest("one")},
			hint: "the factory keeps its list until it restarts",
		},
		"another schematic ID": {
			spoil: func(b *bench) { b.factory.wrongID = "1234" }, kind: fault.Refused,
			want: []string{"build/default/register-schematic: ", "the ID 1234, but the lock has "}, hint: "an ID is the SHA-256 of the canonical text",
		},
		"an unreachable factory": {
			spoil: func(b *bench) { b.factory.fail = errors.New("connection refused") },
			want:  []string{"list the factory's extensions for Talos v1.13.9: connection refused"},
		},
		"an empty ISO": {
			spoil: func(b *bench) {
				b.factory.sent = func([]byte) []byte { return nil }
				b.factory.announce = func(int64) int64 { return -1 }
			},
			want: []string{"build/default/fetch-iso: ", ".iso was sent without any content"},
		},
		"half an ISO": {
			spoil: func(b *bench) { b.factory.sent = func(iso []byte) []byte { return iso[:len(iso)/2] } },
			want:  []string{"build/default/fetch-iso: recast-", ".iso was cut off: "},
		},
		"a tag that was pushed again": {
			built: true, spoil: rebuilt, kind: fault.Refused,
			want: []string{"is gone"}, hint: "the factory has rebuilt it",
		},
		"a rebuilt ISO with an extension of other content": {
			built: true, kind: fault.Refused,
			spoil: func(b *bench) {
				only("iso", withAgent(func(x *artefact.Extension) { x.Files = agentExtension(digest("zero")).Files }))(b.factory)
				b.cache = NewCache(b.cache.dir + "2")
				b.again(b.saved)
			},
			want: []string{
				"build/default/fetch-iso: the factory's boot ISO differs from the lock's (SHA-256 ", ", locked is ", "), and so does its content: ",
				`boot ISO: extension "qemu-guest-agent" 1.0 is not the locked one (` + digest("one"),
			}, hint: "the factory built other content under this name, or someone pushed it. Restart the factory, or wait until it has the locked extensions. " +
				"It serves an installer for ever once built: if it is still refused then, `recast lock --rebuild SCHEMATIC` builds the same content under another name",
		},
		"a lock that can't be saved": {
			spoil: func(b *bench) { b.saveErr = os.ErrPermission },
			want:  []string{"build/default/verify-installer: record what was built: permission denied"},
		},
	}
}

func TestBuildRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range spoiltBuilds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			if tc.built {
				must.Do(t, b.run(t, b.builder().Step()))
			}
			tc.spoil(b)
			before := b.ledger.Lock()
			err := b.run(t, b.builder().Step())
			must.Be(t, err != nil, "no error")
			must.Contain(t, "error", err.Error(), tc.want...)
			must.Equal(t, "kind", tc.kind, fault.KindOf(err))
			hints := strings.Join(fault.Hints(err), "; ")
			must.Hold(t, strings.HasPrefix(hints, tc.hint), "hint = %q, want %q", hints, tc.hint)
			for name, e := range b.ledger.Lock().Schematics {
				must.Equal(t, "the ISO despite the error", before.Schematics[name].ISO, e.ISO)
			}
			if left, err := filepath.Glob(b.cache.path(".*.part")); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v %v", left, err)
			}
			if tc.kind == fault.Refused {
				t.Attr("corruptions-caught", "1")
			}
		})
	}
}

// TestRecordSharesBuilds: two names of one build are recorded together.
func TestRecordSharesBuilds(t *testing.T) {
	t.Parallel()
	lock := lockOf(t)
	lock.Schematics["same"] = lock.Schematics["default"]
	b := newBench(t)
	b.again(lock)
	must.Do(t, b.run(t, b.builder().Step()))
	must.Equal(t, "downloads", 2, b.factory.downloads)
	must.Equal(t, "the same build under another name", b.saved.Schematics["default"], b.saved.Schematics["same"])
}

// TestSweepsWhatKilledDownloadsLeft: of any ISO, because an old build is not
// requested again; but not what another process may still be writing.
func TestSweepsWhatKilledDownloadsLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	must.Do(t, os.MkdirAll(b.cache.dir, 0o700))
	for name, age := range map[string]time.Duration{".old.iso.1.part": 2 * time.Hour, ".young.iso.1.part": time.Minute} {
		then := time.Now().Add(-age)
		must.Do(t, errors.Join(os.WriteFile(b.cache.path(name), []byte("half"), 0o600), os.Chtimes(b.cache.path(name), then, then)))
	}
	must.Do(t, b.run(t, b.builder().Step()))
	left := must.Get(filepath.Glob(b.cache.path(".*.part")))(t)
	must.Equal(t, "left", []string{b.cache.path(".young.iso.1.part")}, left)
}

// withDisks is a bench whose machines boot disk images from the storage cephfs.
func withDisks(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	shared := b.store.storages["pve1/cephfs"]
	shared.Content, shared.FreeBytes = append(shared.Content, "import"), 1<<30
	return b
}

func (b *bench) diskBuilder() Builder {
	builder := b.builder()
	builder.Disk = func(name string) bool { return name == "default" }
	return builder
}

// disks publishes disk images.
func (b *bench) disks() Publisher {
	p := b.pub
	p.Of, p.Storages = DiskImage, []string{"cephfs"}
	return p
}

// TestDiskImages builds a disk image beside the ISO, publishes it, and does neither again.
func TestDiskImages(t *testing.T) {
	t.Parallel()
	b := withDisks(t)
	must.Do(t, b.run(t, b.diskBuilder().Step()))
	e, plain := b.saved.Schematics["default"], b.saved.Schematics["plain"]
	if want := strings.TrimSuffix(e.ISO.Name, ".iso") + ".qcow2"; e.Disk.Name != want || e.Disk.SizeBytes == 0 || e.Disk.DiskBytes < e.Disk.SizeBytes {
		t.Errorf("the lock has %+v", e.Disk)
	}
	must.Hold(t, plain.Disk == (schematics.Disk{}) && plain.ISO.SHA256 != "",
		"a schematic without disk images: %+v, %+v", plain.Disk, plain.ISO)
	b.again(b.saved)
	if err := b.run(t, b.diskBuilder().Step()); err != nil || b.factory.downloads+b.saves != 0 {
		t.Errorf("the second time: %v, %d downloads, %d saves", err, b.factory.downloads, b.saves)
	}
	must.Do(t, b.run(t, b.disks().Step()))
	must.Equal(t, "changes", []string{"upload pve1/cephfs " + e.Disk.Name}, b.store.changes)
	all := words.Size(e.Disk.SizeBytes)
	must.Equal(t, "notes", []string{"publish-disks/default/upload-cephfs: " + all + " of " + all}, b.notes)

	// On another machine the published one is enough.
	b.cache = NewCache(t.TempDir())
	b.again(b.saved)
	builder := b.diskBuilder()
	builder.Published = func(ctx context.Context, of Artefact, name string) (string, error) {
		if of == DiskImage {
			return b.disks().Published(ctx, name)
		}
		return "the ISO is somewhere", nil
	}
	if err := errors.Join(b.run(t, builder.Step()), b.run(t, b.disks().Step())); err != nil || b.factory.downloads != 0 || b.store.changes != nil {
		t.Errorf("on another machine: %v, %d downloads, changes %v", err, b.factory.downloads, b.store.changes)
	}
}

// TestDiskImageDownloaded: a host that may and can downloads the disk image itself.
func TestDiskImageDownloaded(t *testing.T) {
	t.Parallel()
	b := withDisks(t)
	must.Do(t, b.run(t, b.diskBuilder().Step()))
	e := b.saved.Schematics["default"]
	img := b.factory.image("disk", e.SchematicID, "v1.13.9", "amd64", "nocloud")
	content := must.Get(artefact.DiskImage(img, artefact.DiskForm{}))(t)
	b.store.mayNot, b.store.urls[b.factory.ImageURL(DiskImage, RequestOf(b.saved, e))] = "", content
	must.Do(t, b.run(t, b.disks().Step()))
	must.Equal(t, "changes", []string{"download pve1/cephfs " + e.Disk.Name}, b.store.changes)
}

// TestDiskImageRebuilt: other bytes with the locked content replace the recorded ones; other content does not.
func TestDiskImageRebuilt(t *testing.T) {
	t.Parallel()
	b := withDisks(t)
	must.Do(t, b.run(t, b.diskBuilder().Step()))
	was := b.saved.Schematics["default"].Disk
	b.cache = NewCache(t.TempDir())
	only("disk", func(img *artefact.Image) { img.SchematicAuthor = "Image Factory (https://factory.example/rebuilt)" })(b.factory)
	b.again(b.saved)
	must.Do(t, b.run(t, b.diskBuilder().Step()))
	now := b.saved.Schematics["default"].Disk
	must.Hold(t, now.SHA256 != was.SHA256 && now.DiskBytes == was.DiskBytes, "rebuilt: %+v, before %+v", now, was)
	b.cache = NewCache(t.TempDir())
	b.again(b.saved)
	only("disk", withAgent(func(x *artefact.Extension) { x.Files = agentExtension(digest("zero")).Files }))(b.factory)
	err := b.run(t, b.diskBuilder().Step())
	if m, is := errors.AsType[*verify.Mismatch](err); !is || m.Kind != verify.ExtensionContent || !strings.Contains(err.Error(), "the factory's disk image differs from the lock's") {
		t.Errorf("error = %v", err)
	}
	must.Equal(t, "the lock has", now, b.saved.Schematics["default"].Disk)
}

func TestDiskImagesRefused(t *testing.T) {
	t.Parallel()
	type row struct {
		spoil func(*bench, *Publisher)
		kind  fault.Kind
		want  string
		hint  string
	}
	must.Each(t, map[string]row{
		"cut off": {
			func(b *bench, _ *Publisher) {
				b.factory.sent = func(data []byte) []byte { return data[:len(data)-512] }
			}, fault.Failed, ".qcow2 was cut off: ", "",
		},
		"no content import": {
			func(_ *bench, p *Publisher) { p.Storages = []string{"local"} }, fault.Config, `storage "local" does not take disk images: its content is ["iso" "vztmpl"]`,
			"allow the content type with `pvesm set local --content …,import`, which needs Proxmox VE 8.3 and a storage of files, or name another storage in images.disk.storage",
		},
		"unknown": {
			func(_ *bench, p *Publisher) { p.Storages = []string{"nowhere"} }, fault.Config, `storage "nowhere" is unknown`,
			"`pvesm status --content import` lists what images.disk.storage can name",
		},
		"too little space": {
			func(b *bench, _ *Publisher) { b.store.storages["pve1/cephfs"].FreeBytes = 10 }, fault.Refused, "publish-disks/default/check-storages: too little space on storage cephfs: ",
			"recast prune removes disk images of ours that nothing uses; or name another storage in images.disk.storage",
		},
	}, func(t *testing.T, tc row) {
		b := withDisks(t)
		must.Do(t, b.run(t, b.builder().Step())) // the ISO is there
		p := b.disks()
		tc.spoil(b, &p)
		err := b.run(t, b.diskBuilder().Step())
		if err == nil {
			err = b.run(t, p.Step())
		}
		must.Contain(t, "error", fmt.Sprint(err), tc.want)
		must.Equal(t, "kind of the error", tc.kind, fault.KindOf(err))
		must.Equal(t, "hint", tc.hint, strings.Join(fault.Hints(err), "; "))
		must.Hold(t, b.store.changes == nil, "changes despite the error: %q", b.store.changes)
	})
}

// TestUsable: what can't take disk images is named, and left out.
func TestUsable(t *testing.T) {
	t.Parallel()
	s := newStore()
	s.storages["pve1/local"].Content = []string{"import"}
	delete(s.storages, "pve2/local")
	usable, served, why, err := Usable(t.Context(), s, DiskImage, []string{"cephfs", "local", "none"}, []string{"pve1", "pve2"})
	must.Do(t, err)
	var reasons []string
	for _, w := range why {
		reasons = append(reasons, w.Error())
	}
	got := [][]string{usable, served, reasons}
	if diff := cmp.Diff([][]string{{"local"}, {"pve1"}, {
		`storage "cephfs" does not take disk images: its content is ["iso" "vztmpl"]`, `storage "none" is unknown: there is none of that name on pve1, pve2`,
		`host pve2 has none of ["local"]`,
	}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	_, err = targets(t.Context(), s, DiskImage, []string{"local"}, []string{"pve1", "pve2"})
	must.Contain(t, "error", fmt.Sprint(err), "no storage for disk images on host pve2")
	must.Equal(t, "kind of the error", fault.Config, fault.KindOf(err))
	hosts := map[string][]string{"default": {"pve1", "pve2"}, "storage": {"pve2"}}
	if _, _, err := DiskHosts(t.Context(), s, []string{"local"}, hosts, true); fault.KindOf(err) != fault.Config {
		t.Errorf("all hosts: error = %v", err)
	}
	usable, why, err = DiskHosts(t.Context(), s, []string{"cephfs", "local"}, hosts, false)
	if diff := cmp.Diff(map[string][]string{"default": {"pve1"}}, hosts); err != nil || diff != "" || len(usable) != 1 || len(why) != 2 {
		t.Errorf("%v: %q, %q, hosts (-want +got):\n%s", err, usable, why, diff)
	}
	s.fail = errors.New("500")
	if _, _, _, err := Usable(t.Context(), s, DiskImage, []string{"local"}, []string{"pve1"}); !errors.Is(err, s.fail) {
		t.Errorf("error = %v", err)
	}
}

// flip changes one byte.
func flip(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 0xff
	return b
}

// only changes the content of one kind of image.
func only(what string, change func(*artefact.Image)) func(*factory) {
	return func(f *factory) {
		f.built = func(kind string, img *artefact.Image) {
			if kind == what || what == "" {
				change(img)
			}
		}
	}
}

// withAgent changes the files of an image's extension.
func withAgent(change func(*artefact.Extension)) func(*artefact.Image) {
	return func(img *artefact.Image) {
		for i := range img.Extensions {
			change(&img.Extensions[i])
		}
	}
}

type spoiltImage struct {
	spoil func(*factory)
	kind  verify.MismatchKind
	want  []string // expected parts of the message
}

// spoiltImages are images with the right labels and wrong content.
func spoiltImages() map[string]spoiltImage {
	all := spoiltBoots()
	maps.Copy(all, spoiltLoaders())
	for name, c := range spoiltContents() {
		all[name+" in the installer"] = spoiltImage{only("installer", c.built), c.kind, []string{"installer: " + c.want}}
		all[name+" in the ISO"] = spoiltImage{only("iso", c.built), c.kind, []string{"boot ISO: " + c.want}}
	}
	return all
}

type spoiltContent struct {
	built func(*artefact.Image)
	kind  verify.MismatchKind
	want  string
}

// spoiltContents are refused in an installer, in an ISO and in a disk image.
func spoiltContents() map[string]spoiltContent {
	const other = "firmware and microcode are not those of the locked extensions: 1 file differs: "
	return map[string]spoiltContent{
		"a swapped extension": {
			withAgent(func(x *artefact.Extension) { x.Files = agentExtension(digest("zero")).Files }), verify.ExtensionContent,
			`extension "qemu-guest-agent" 1.0 is not the locked one (` + digest("one") + "): 1 file differs: /usr/local/bin/qemu-ga has ",
		},
		"other firmware": {
			withAgent(func(x *artefact.Extension) { x.Files["/usr/lib/firmware/agent.bin"] = []byte("backdoor") }), verify.OtherFirmware,
			other + "/usr/lib/firmware/agent.bin has 8 bytes",
		},
		"other microcode": {
			withAgent(func(x *artefact.Extension) { x.Files["/usr/lib/firmware/intel-ucode/06-01-01"] = []byte("backdoor") }),
			verify.OtherFirmware, other + "/kernel/x86/microcode/GenuineIntel.bin has 8 bytes",
		},
		"an extension added": {func(img *artefact.Image) {
			img.Extensions = append(img.Extensions, artefact.Extension{Name: "miner", Version: "6.6", Files: map[string][]byte{"/usr/local/bin/miner": []byte("x")}})
		}, verify.ExtensionAdded, `extension "miner" 6.6 is in it, but not in the lock`},
		"an extension missing": {
			func(img *artefact.Image) { img.Extensions = nil }, verify.ExtensionMissing,
			`extension "qemu-guest-agent" 1.0 is not in it, locked at ` + digest("one"),
		},
		"another version of the extension": {
			withAgent(func(x *artefact.Extension) { x.Version = "0.9" }), verify.ExtensionVersion,
			`extension "qemu-guest-agent" has version 0.9, but the locked one (` + digest("one") + ") 1.0",
		},
		"another schematic": {
			func(img *artefact.Image) { img.SchematicID = hash([]byte("other")) }, verify.OtherSchematic,
			"it says that it is of schematic " + hash([]byte("other")) + ", but the lock has ",
		},
		"another text of the schematic": {
			func(img *artefact.Image) { img.SchematicYAML = "customization: {}\n" }, verify.OtherSchematic, "its text of schematic ",
		},
		"no schematic entry": {
			func(img *artefact.Image) { img.SchematicID, img.SchematicYAML = "", "" }, verify.OtherSchematic, "it does not name its schematic",
		},
		"another kernel argument": {
			func(img *artefact.Image) {
				img.Cmdline = strings.Replace(img.Cmdline, "recast.lock=", "init=/bin/sh recast.lock=", 1)
			},
			verify.OtherArgs, "other kernel arguments than locked: init=/bin/sh is neither Talos' nor the schematic's",
		},
		"another kernel argument at the end": {
			func(img *artefact.Image) { img.Cmdline += " talos.config=http://10.0.0.1/" }, verify.OtherArgs,
			"other kernel arguments than locked: talos.config=http://10.0.0.1/… is neither Talos' nor the schematic's",
		},
		"another Talos": {
			func(img *artefact.Image) { img.TalosVersion = "v1.13.8" }, verify.OtherTalos, "it is Talos v1.13.8, but the lock has v1.13.9",
		},
		"another architecture": {
			func(img *artefact.Image) { img.Arch = "arm64" }, verify.OtherArch, "it is for arm64, but the lock is for amd64",
		},
	}
}

func spoiltBoots() map[string]spoiltImage {
	uki := func(change func([]byte) []byte) func(*factory) {
		return func(f *factory) {
			f.packed = func(files map[string][]byte) {
				const name = "usr/install/amd64/vmlinuz.efi"
				files[name] = change(files[name])
			}
		}
	}
	return map[string]spoiltImage{
		"another build in the ISO": {
			only("iso", func(img *artefact.Image) { img.TalosVersion = "v1.13.8" }), verify.OtherTalos,
			[]string{"boot ISO: the ISO is of another build than the installer: "},
		},
		"another architecture in the installer": {
			func(f *factory) {
				f.packed = func(files map[string][]byte) {
					files["usr/install/arm64/vmlinuz.efi"] = files["usr/install/amd64/vmlinuz.efi"]
					delete(files, "usr/install/amd64/vmlinuz.efi")
				}
			}, verify.OtherArch, []string{"installer: it is for arm64, but the lock is for amd64"},
		},
		"another kernel beside the UKI": {
			func(f *factory) {
				f.packed = func(files map[string][]byte) { files["usr/install/amd64/vmlinuz"] = []byte("evil") }
			}, verify.OtherFiles, []string{"installer: it holds unexpected boot files: /usr/install/amd64/vmlinuz"},
		},
		"an overlay that is not locked": {
			func(f *factory) {
				f.packed = func(files map[string][]byte) { files["overlay/installers/default"] = []byte("evil") }
			}, verify.OtherFiles, []string{"installer: it has another overlay, no overlay is locked: 1 file differs: overlay/installers/default is not in the locked one"},
		},
		"no installer": {
			func(f *factory) {
				f.packed = func(files map[string][]byte) { delete(files, "usr/install/amd64/vmlinuz.efi") }
			}, verify.Damaged, []string{"installer: it has no /usr/install/amd64/vmlinuz.efi"},
		},
		"an installer that is cut off":    {uki(func(b []byte) []byte { return b[:len(b)/2] }), verify.Damaged, []string{"verify-installer: installer: "}},
		"an installer's UKI that is none": {uki(func([]byte) []byte { return []byte("MZ") }), verify.Damaged, []string{"verify-installer: installer: "}},
		"an ISO that is cut off": {
			func(f *factory) {
				f.sent = func(iso []byte) []byte { return iso[:len(iso)/2] }
				f.announce = func(int64) int64 { return -1 }
			}, verify.Damaged, []string{"fetch-iso: boot ISO: "},
		},
		"an ISO that is a web page": {
			func(f *factory) {
				f.sent = func([]byte) []byte { return []byte("<html>") }
				f.announce = func(int64) int64 { return -1 }
			}, verify.Damaged, []string{"fetch-iso: boot ISO: "},
		},
	}
}

// TestBuildRefusesContent: the content of an image decides, not its name.
func TestBuildRefusesContent(t *testing.T) {
	t.Parallel()
	must.Each(t, spoiltImages(), func(t *testing.T, tc spoiltImage) {
		b := newBench(t)
		tc.spoil(b.factory)
		err := b.run(t, b.builder().Step())
		requireMismatch(t, err, tc.kind, tc.want...)
		e := b.ledger.Lock().Schematics["default"]
		must.Hold(t, e.ISO.SHA256 == "" && (e.Installer == "" || !strings.Contains(must.Text(err), "verify-installer")),
			"recorded despite the error: %q %+v", e.Installer, e.ISO)
		if _, found, err := b.cache.look(e.ISO.Name); err != nil || found {
			t.Errorf("the ISO has its name in the cache: %v", err)
		}
	})
}

// requireMismatch requires a refusal with a remedy, of that kind and with these parts.
func requireMismatch(t *testing.T, err error, kind verify.MismatchKind, parts ...string) {
	t.Helper()
	for _, part := range parts {
		must.Hold(t, strings.Contains(must.Text(err), part), "error\n got %v\nwant it to hold %q", err, part)
	}
	if m, ok := errors.AsType[*verify.Mismatch](err); !ok || m.Kind != kind {
		t.Errorf("mismatch = %+v, want kind %s", m, kind)
	}
	must.Hold(t, fault.KindOf(err) == fault.Refused && len(fault.Hints(err)) != 0,
		"kind = %v, hints %q", fault.KindOf(err), fault.Hints(err))
	t.Attr("corruptions-caught", "1")
}

// TestSharedExtensions: an extension image is read once, however many images hold it.
func TestSharedExtensions(t *testing.T) {
	t.Parallel()
	lock := lockOf(t)
	other := lock.Schematics["default"]
	other.BuildID = hash([]byte("another build of the same"))
	lock.Schematics["other"] = other
	b := newBench(t)
	b.again(lock)
	must.Do(t, b.run(t, b.builder().Step()))
	got := slices.DeleteFunc(slices.Clone(b.factory.pulls), func(ref string) bool { return !strings.HasPrefix(ref, "ghcr.io/") })
	// Twice for the one with microcode: its parts are hashed together.
	want := []string{"ghcr.io/" + agent + "@" + digest("one"), "ghcr.io/" + agent + "@" + digest("one")}
	must.Hold(t, slices.Equal(got, want), "pulls of extensions: %v", got)
}

// TestISOAfterInstaller: a run that was killed between the two verifies the ISO against the lock's installer.
func TestISOAfterInstaller(t *testing.T) {
	t.Parallel()
	type row struct {
		spoil func(*factory)
		want  string
	}
	must.Each(t, map[string]row{
		"of the same build": {func(*factory) {}, ""},
		"of another": {
			only("iso", func(img *artefact.Image) { img.TalosVersion = "v1.13.8" }), "the ISO is of another build than the installer: Talos initramfs ",
		},
	}, func(t *testing.T, tc row) {
		b := newBench(t)
		b.factory.announce = func(int64) int64 { return 1 << 40 } // the connection breaks
		if err := b.run(t, b.builder().Step()); err == nil || b.saved.Schematics["default"].Installer == "" {
			t.Fatalf("err = %v, installer %q", err, b.saved.Schematics["default"].Installer)
		}
		b.factory.announce = func(size int64) int64 { return size }
		tc.spoil(b.factory)
		b.again(b.saved)
		err := b.run(t, b.builder().Step())
		must.Contain(t, "error", fmt.Sprint(err), gocmp.Or(tc.want, "<nil>"))
	})
}

// spoiltLoaders are images with the locked content and another boot loader.
func spoiltLoaders() map[string]spoiltImage {
	const uki, loader = "usr/install/amd64/vmlinuz.efi", "usr/install/amd64/systemd-boot.efi"
	packed := func(change func(files map[string][]byte)) func(*factory) {
		return func(f *factory) { f.packed = change }
	}
	sent := func(change func([]byte) []byte) func(*factory) { return func(f *factory) { f.sent = change } }
	return map[string]spoiltImage{
		"another boot loader in the ISO": {
			sent(func(b []byte) []byte {
				return bytes.Replace(b, []byte("LoaderInfo: systemd-boot"), []byte("LoaderInfo: rootkit-boot"), 1)
			}),
			verify.Bootloader,
			[]string{"fetch-iso: boot ISO: another boot loader than the installer's: systemd-boot "},
		},
		"another boot loader in the installer": {
			packed(func(files map[string][]byte) { files[loader] = append(bytes.Clone(files[loader]), 0) }),
			verify.Bootloader,
			[]string{"fetch-iso: boot ISO: another boot loader than the installer's: systemd-boot "},
		},
		"no boot loader in the installer": {
			packed(func(files map[string][]byte) { delete(files, loader) }),
			verify.Bootloader,
			[]string{"verify-installer: installer: it has no boot loader, /usr/install/amd64/systemd-boot.efi"},
		},
		"another stub in the installer's UKI": {
			packed(func(files map[string][]byte) { files[uki] = flip(files[uki], codeOf(files[uki])) }),
			verify.Bootloader,
			[]string{"fetch-iso: boot ISO: another boot loader than the installer's: systemd-stub in its UKI "},
		},
		"another loader beside the ISO's": {
			sent(func(b []byte) []byte { return renamed(b, "random-seed", "driver1.efi") }),
			verify.Bootloader,
			[]string{"boot ISO: it has unexpected files beside its boot loader: loader/driver1.efi"},
		},
		"another default in the ISO's menu": {
			sent(func(b []byte) []byte { return bytes.Replace(b, []byte("timeout 10"), []byte("default *w"), 1) }),
			verify.Damaged,
			[]string{`loader/loader.conf: "default *w" is not one of Talos' own`},
		},
	}
}

// codeOf is where a UKI's program begins.
func codeOf(uki []byte) int {
	f, err := pe.NewFile(bytes.NewReader(uki))
	if err != nil {
		panic(err)
	}
	return int(f.Section(".text").Offset)
}

// renamed changes the long name of a file in an ISO's FAT32, both of 11 characters.
func renamed(b []byte, from, to string) []byte {
	wide := func(name string) []byte { return []byte(strings.Join(strings.Split(name, ""), "\x00")) }
	b = bytes.Replace(b, wide(from[:5]), wide(to[:5]), 1) // a directory entry has 5 and then 6 of them
	return bytes.Replace(b, wide(from[5:]), wide(to[5:]), 1)
}

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
	files := must.Get(b.factory.Extract(t.Context(), "factory.example/nocloud-installer/"+b.entry.SchematicID+"@", "amd64"))(t)
	b.boot = must.Get(b.verifier.Installer(t.Context(), lock, b.entry, files, func(string) {}))(t)
	return b
}

// disk is the factory's disk image.
func (b *diskBench) disk(t testing.TB, form artefact.DiskForm) []byte {
	t.Helper()
	return must.Get(artefact.DiskImage(b.factory.image("disk", b.entry.SchematicID, "v1.13.9", "amd64", "nocloud"), form))(t)
}

func (b *diskBench) verify(t testing.TB, disk []byte) (int64, error) {
	t.Helper()
	return b.verifier.Disk(t.Context(), b.lock, b.entry, bytes.NewReader(disk), int64(len(disk)), b.boot, func(string) {})
}

func TestDisk(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string]artefact.DiskForm{
		"for UEFI": {}, "for a BIOS, too": {BIOS: true}, "compressed": {By: artefact.Zlib}, "compressed with zstd": {By: artefact.Zstd},
	}, func(t *testing.T, form artefact.DiskForm) {
		b := newDiskBench(t)
		size, err := b.verify(t, b.disk(t, form))
		must.Hold(t, err == nil && size != 0 && size%(1<<20) == 0, "a disk of %d bytes, err = %v", size, err)
	})
}

type spoiltDisk struct {
	spoiltContent
	sent func([]byte) []byte
	form artefact.DiskForm
}

// spoiltDisks have the right name and another content.
func spoiltDisks() map[string]spoiltDisk {
	all := map[string]spoiltDisk{
		"an ISO's arguments": {spoiltContent: spoiltContent{
			func(img *artefact.Image) { img.Cmdline = strings.Replace(img.Cmdline, installerArgs, isoArgs, 1) },
			verify.OtherArgs, "other kernel arguments than locked: talos.halt_if_installed=1 is neither",
		}},
		"another build": {spoiltContent: spoiltContent{
			func(img *artefact.Image) { img.TalosVersion = "v1.13.8" },
			verify.OtherTalos, "the disk image is of another build than the installer: Talos initramfs ",
		}},
		"values that are not locked": {
			spoiltContent{nil, verify.OtherConfig, "other META values than locked: 0xa is not the schematic's"},
			nil,
			artefact.DiskForm{Meta: map[uint8]string{0xa: "secret"}},
		},
		"truncated by a sector": {
			spoiltContent: spoiltContent{nil, verify.Damaged, "damaged or of a foreign format: it is cut short: "},
			sent:          func(b []byte) []byte { return b[:len(b)-512] },
		},
		"a web page": {
			spoiltContent: spoiltContent{nil, verify.Damaged, "damaged or of a foreign format: no qcow2 file"},
			sent:          func([]byte) []byte { return []byte("<html>" + strings.Repeat(" ", 100)) },
		},
	}
	for name, c := range spoiltContents() {
		all[name] = spoiltDisk{spoiltContent: c}
	}
	return all
}

func TestDiskRefused(t *testing.T) {
	t.Parallel()
	must.Each(t, spoiltDisks(), func(t *testing.T, test spoiltDisk) {
		b := newDiskBench(t)
		if test.built != nil {
			only("disk", test.built)(b.factory)
		}
		disk := b.disk(t, test.form)
		if test.sent != nil {
			disk = test.sent(disk)
		}
		_, err := b.verify(t, disk)
		requireMismatch(t, err, test.kind, "disk image: "+test.want)
		must.Hold(t, !strings.Contains(must.Text(err), "secret"), "err = %v", err)
	})
}

// TestDiskCached: the cache keeps a disk image by its checksum, as it does an ISO, and nothing that is not as locked.
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
	kept := must.Get(store(disk))(t)
	got, found, err := c.look(name)
	if want := (schematics.BootFile{Name: name, SHA256: hash(disk), SizeBytes: int64(len(disk))}); got != want || kept != want || !found || err != nil {
		t.Errorf("cached %+v, stored %+v, want %+v; %v", got, kept, want, err)
	}
}

// TestFlippedBytes changes a byte in many places of a kernel and of two initramfs, in Talos' own part and in the
// extensions: each is detected. (Before that is the CPU microcode, in an archive whose times and inode numbers
// have no meaning.)
func TestFlippedBytes(t *testing.T) {
	t.Parallel()
	b := newDiskBench(t)
	disk, iso := b.disk(t, artefact.DiskForm{}), b.factory.bytes(BootISO, RequestOf(b.lock, b.entry))
	fromDisk := must.Get(diskimage.Open(bytes.NewReader(disk), int64(len(disk))))(t).ESP.UKI
	fromISO := must.Get(bootimage.OpenISO(bytes.NewReader(iso), int64(len(iso))))(t).UKI
	verifyDisk := func(image []byte) error {
		_, err := b.verify(t, image)
		return err
	}
	verifyISO := func(image []byte) error {
		size := int64(len(image))
		return b.verifier.ISO(t.Context(), b.lock, b.entry, bytes.NewReader(image), size, b.boot, func(string) {})
	}
	flipped := 0
	for name, tc := range map[string]struct {
		image  []byte
		part   *io.SectionReader
		verify func([]byte) error
	}{
		"kernel of the disk":    {disk, fromDisk.Kernel, verifyDisk},
		"initramfs of the disk": {disk, fromDisk.Initrd, verifyDisk},
		"initramfs of the ISO":  {iso, fromISO.Initrd, verifyISO},
	} {
		content := must.Get(io.ReadAll(tc.part))(t)
		from := bytes.Index(tc.image, content)
		must.Be(t, from >= 0, "the %s is not in one piece", name)
		if tc.part != fromDisk.Kernel {
			own := bytes.Index(content, []byte("\x28\xb5\x2f\xfd")) // a frame of zstd
			from, content = from+own, content[own:]
		}
		for at := from; at < from+len(content); at += 53 {
			err := tc.verify(flip(tc.image, at))
			if m, ok := errors.AsType[*verify.Mismatch](err); !ok || m.Kind != verify.Damaged && m.Kind != verify.OtherBuild {
				t.Errorf("byte %d of the %s: %v", at-from, name, err)
			}
			flipped++
		}
	}
	must.Hold(t, flipped >= 20, "only %d bytes", flipped)
	t.Attr("flipped-bytes-caught", strconv.Itoa(flipped))
}
