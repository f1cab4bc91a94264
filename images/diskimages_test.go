package images

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/schematics"
)

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
	noError(t, b.run(t, b.diskBuilder().Step()))
	e, plain := b.saved.Schematics["default"], b.saved.Schematics["plain"]
	if want := strings.TrimSuffix(e.ISO.Name, ".iso") + ".qcow2"; e.Disk.Name != want || e.Disk.SizeBytes == 0 || e.Disk.DiskBytes < e.Disk.SizeBytes {
		t.Errorf("the lock has %+v", e.Disk)
	}
	if plain.Disk != (schematics.Disk{}) || plain.ISO.SHA256 == "" {
		t.Errorf("a schematic without disk images: %+v, %+v", plain.Disk, plain.ISO)
	}
	b.again(b.saved)
	if err := b.run(t, b.diskBuilder().Step()); err != nil || b.factory.downloads+b.saves != 0 {
		t.Errorf("the second time: %v, %d downloads, %d saves", err, b.factory.downloads, b.saves)
	}
	noError(t, b.run(t, b.disks().Step()))
	same(t, "changes", []string{"upload pve1/cephfs " + e.Disk.Name}, b.store.changes)
	all := words.Size(e.Disk.SizeBytes)
	same(t, "notes", []string{"publish-disks/default/upload-cephfs: " + all + " of " + all}, b.notes)

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
	noError(t, b.run(t, b.diskBuilder().Step()))
	e := b.saved.Schematics["default"]
	img := b.factory.image("disk", e.SchematicID, "v1.13.9", "amd64", "nocloud")
	content := must(artefact.DiskImage(img, artefact.DiskForm{}))(t)
	b.store.mayNot, b.store.urls[b.factory.DiskURL(RequestOf(b.saved, e))] = "", content
	noError(t, b.run(t, b.disks().Step()))
	same(t, "changes", []string{"download pve1/cephfs " + e.Disk.Name}, b.store.changes)
}

// TestDiskImageRebuilt: other bytes with the locked content replace the recorded ones; other
// content does not.
func TestDiskImageRebuilt(t *testing.T) {
	t.Parallel()
	b := withDisks(t)
	noError(t, b.run(t, b.diskBuilder().Step()))
	was := b.saved.Schematics["default"].Disk
	b.cache = NewCache(t.TempDir())
	only("disk", func(img *artefact.Image) { img.SchematicAuthor = "Image Factory (https://factory.example/rebuilt)" })(b.factory)
	b.again(b.saved)
	noError(t, b.run(t, b.diskBuilder().Step()))
	now := b.saved.Schematics["default"].Disk
	if now.SHA256 == was.SHA256 || now.DiskBytes != was.DiskBytes {
		t.Errorf("rebuilt: %+v, before %+v", now, was)
	}
	b.cache = NewCache(t.TempDir())
	b.again(b.saved)
	only("disk", withAgent(func(x *artefact.Extension) { x.Files = agentExtension(digest("zero")).Files }))(b.factory)
	err := b.run(t, b.diskBuilder().Step())
	if m, is := errors.AsType[*verify.Mismatch](err); !is || m.Kind != verify.ExtensionContent || !strings.Contains(err.Error(), "the factory's disk image differs from the lock's") {
		t.Errorf("error = %v", err)
	}
	if b.saved.Schematics["default"].Disk != now {
		t.Errorf("the lock has %+v", b.saved.Schematics["default"].Disk)
	}
}

func TestDiskImagesRefused(t *testing.T) {
	t.Parallel()
	type row struct {
		spoil func(*bench, *Publisher)
		kind  fault.Kind
		want  string
		hint  string
	}
	each(t, map[string]row{
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
		if err := b.run(t, b.builder().Step()); err != nil { // the ISO is there
			t.Fatal(err)
		}
		p := b.disks()
		tc.spoil(b, &p)
		err := b.run(t, b.diskBuilder().Step())
		if err == nil {
			err = b.run(t, p.Step())
		}
		if fault.KindOf(err) != tc.kind || err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("error = %v (%v), want %q", err, fault.KindOf(err), tc.want)
		}
		if got := strings.Join(fault.Hints(err), "; "); got != tc.hint {
			t.Errorf("hint = %q, want %q", got, tc.hint)
		}
		if b.store.changes != nil {
			t.Errorf("changes despite the error: %q", b.store.changes)
		}
	})
}

// TestUsable: what can't take disk images is named, and left out.
func TestUsable(t *testing.T) {
	t.Parallel()
	s := newStore()
	s.storages["pve1/local"].Content = []string{"import"}
	delete(s.storages, "pve2/local")
	usable, served, why, err := Usable(t.Context(), s, DiskImage, []string{"cephfs", "local", "none"}, []string{"pve1", "pve2"})
	noError(t, err)
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
	if err := CheckStorages(t.Context(), s, DiskImage, []string{"local"}, []string{"pve1", "pve2"}); fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), "no storage for disk images on host pve2") {
		t.Errorf("error = %v", err)
	}
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
