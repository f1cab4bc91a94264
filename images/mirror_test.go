package images

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/fault"
)

const mirrorRepository = "ghcr.io/acme/talos"

// registries are the factory's and one with the mirror's repository, which the first
// copy creates: until then requests for it are denied.
type registries struct {
	*factory
	digests map[string]bool
	tags    map[string]string
	copies  []string // what was copied, from where

	exists  bool
	denied  bool              // permanently
	cut     bool              // the next copy is interrupted
	stolen  map[string]string // tags that someone else sets while a copy runs
	tagFail error
}

func newRegistries(f *factory) *registries {
	return &registries{factory: f, digests: map[string]bool{}, tags: map[string]string{}, stolen: map[string]string{}}
}

func (r *registries) Digest(ctx context.Context, ref string) (string, bool, error) {
	repository, digest, _ := strings.Cut(ref, "@")
	if repository != mirrorRepository {
		return r.factory.Digest(ctx, ref)
	}
	return digest, r.digests[digest], nil
}

func (r *registries) Head(_ context.Context, tag string) (string, bool, error) {
	if r.denied || !r.exists {
		return "", false, fmt.Errorf("403: %w", ErrDenied)
	}
	digest, found := r.tags[tag]
	return digest, found, nil
}

func (r *registries) Copy(ctx context.Context, source, repository string, progress func(int64, int64)) error {
	digest, found, err := r.Digest(ctx, source)
	switch {
	case err != nil || !found:
		return errors.Join(errors.New("no such image"), err)
	case r.denied:
		return fault.WithHint(ErrDenied, "docker login")
	}
	r.exists = true
	progress(64*mib, 200*mib)
	if r.cut {
		r.cut = false
		return errors.New("connection reset")
	}
	r.copies = append(r.copies, source)
	r.digests[digest] = true
	maps.Copy(r.tags, r.stolen)
	return nil
}

func (r *registries) Tag(_ context.Context, ref, tag string) error {
	repository, digest, _ := strings.Cut(ref, "@")
	if repository != mirrorRepository || !r.digests[digest] {
		return errors.New("no such image")
	}
	if r.tagFail == nil {
		r.tags[tag] = digest
	}
	return r.tagFail
}

func (b *bench) mirror(r *registries) Mirror {
	return Mirror{Copier: r, Ledger: b.ledger, Repository: mirrorRepository, Note: b.note}
}

func (b *bench) mirroringBuilder(r *registries) Builder {
	builder := b.builder()
	builder.Registry, builder.Mirror = r, mirrorRepository
	return builder
}

// mirrorTag is where a schematic's installer is expected.
func (b *bench) mirrorTag(name string) string {
	return mirrorRepository + ":v1.13.9-" + b.saved.Schematics[name].BuildID[:12]
}

func (b *bench) sourceOf(name string) string {
	id := b.saved.Schematics[name].SchematicID
	return "factory.example/nocloud-installer/" + id + "@" + digest("installer "+id)
}

// mirrored is a bench with built and mirrored images, as a later process finds it.
func mirrored(t *testing.T) (*bench, *registries) {
	t.Helper()
	b := newBench(t)
	r := newRegistries(b.factory)
	noError(t, errors.Join(b.run(t, b.mirroringBuilder(r).Step()), b.run(t, b.mirror(r).Step())))
	b.again(b.saved)
	return b, r
}

func TestMirror(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := newRegistries(b.factory)
	noError(t, b.run(t, b.mirroringBuilder(r).Step()))
	want := b.saved.Clone()
	sources := []string{b.sourceOf("default"), b.sourceOf("plain")}
	tags := map[string]string{}
	for name, e := range want.Schematics {
		d := digest("installer " + e.SchematicID)
		e.Installer, tags[b.mirrorTag(name)] = mirrorRepository+"@"+d, d
		want.Schematics[name] = e
	}
	b.notes = nil
	noError(t, b.run(t, b.mirror(r).Step()))
	same(t, "saved lock", want, b.saved)
	same(t, "tags", tags, r.tags)
	same(t, "copies", sources, r.copies)
	same(t, "notes", []string{"mirror/default: 64 MiB of 200 MiB", "mirror/plain: 64 MiB of 200 MiB"}, b.notes)
}

// TestMirroredNeedsNoFactory: mirrored and cached images are found without the factory.
func TestMirroredNeedsNoFactory(t *testing.T) {
	t.Parallel()
	b, r := mirrored(t)
	r.copies, b.factory.fail = nil, errors.New("connection refused")
	noError(t, b.run(t, b.mirroringBuilder(r).Step()))
	noError(t, b.run(t, b.mirror(r).Step()))
	want := []string{
		"mirror/default skipped " + b.mirrorTag("default") + " is there", "mirror/plain skipped " + b.mirrorTag("plain") + " is there", "mirror done",
	}
	same(t, "events", want, b.events)
	if len(r.copies)+b.saves != 0 {
		t.Errorf("%d copies, %d saves", len(r.copies), b.saves)
	}
}

// TestMirrorResumes loses or changes one thing at a time and checks what is copied again.
func TestMirrorResumes(t *testing.T) {
	t.Parallel()
	type row struct {
		lose func(*bench, *registries)
		want func(*bench) []string
	}
	each(t, map[string]row{
		"the tag": {
			func(b *bench, r *registries) { delete(r.tags, b.mirrorTag("plain")) },
			func(b *bench) []string { return []string{b.saved.Schematics["plain"].Installer} },
		},
		"the image": {
			func(b *bench, r *registries) {
				_, d, _ := strings.Cut(b.saved.Schematics["plain"].Installer, "@")
				delete(r.digests, d)
				delete(r.tags, b.mirrorTag("plain"))
			},
			func(b *bench) []string { return []string{b.sourceOf("plain")} },
		},
		"what was recorded": {
			func(b *bench, _ *registries) {
				lock := b.saved.Clone()
				e := lock.Schematics["plain"]
				e.Installer = ""
				lock.Schematics["plain"] = e
				b.again(lock)
			},
			func(b *bench) []string { return []string{b.sourceOf("plain")} },
		},
		"another mirror before": {
			func(b *bench, _ *registries) {
				lock := b.saved.Clone()
				e := lock.Schematics["plain"]
				e.Installer = strings.Replace(e.Installer, "acme", "elsewhere", 1)
				lock.Schematics["plain"] = e
				b.again(lock)
			},
			func(b *bench) []string { return []string{b.sourceOf("plain")} },
		},
	}, func(t *testing.T, tc row) {
		b, r := mirrored(t)
		whole, tags := b.saved, len(r.tags)
		r.copies = nil
		tc.lose(b, r)
		want := tc.want(b)
		noError(t, errors.Join(b.run(t, b.mirroringBuilder(r).Step()), b.run(t, b.mirror(r).Step())))
		same(t, "copies", want, r.copies)
		same(t, "lock", whole, b.ledger.Lock())
		if len(r.tags) != tags {
			t.Errorf("tags = %v", r.tags)
		}
	})
}

func TestMirrorIsCutOff(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := newRegistries(b.factory)
	noError(t, b.run(t, b.mirroringBuilder(r).Step()))
	before := b.saved
	r.cut = true
	err := b.run(t, b.mirror(r).Step())
	if err == nil || err.Error() != "mirror/default: copy "+b.sourceOf("default")+": connection reset" {
		t.Errorf("err = %v", err)
	}
	if diff := cmp.Diff(before, b.saved); diff != "" || len(r.tags) != 0 {
		t.Errorf("an interrupted copy counts as complete: tags %v, lock (-want +got):\n%s", r.tags, diff)
	}
	if err := b.run(t, b.mirror(r).Step()); err != nil || len(r.tags) != 2 {
		t.Errorf("again: %v, tags %v", err, r.tags)
	}
}

// TestWithoutMirror: without a mirror in the configuration the lock names the factory's installer again.
func TestWithoutMirror(t *testing.T) {
	t.Parallel()
	b, r := mirrored(t)
	builder := b.builder()
	builder.Registry = r
	noError(t, b.run(t, builder.Step()))
	for _, name := range []string{"default", "plain"} {
		if got := b.saved.Schematics[name].Installer; got != b.sourceOf(name) {
			t.Errorf("installer of %s = %s", name, got)
		}
	}
}

func TestMirrorRefuses(t *testing.T) {
	t.Parallel()
	other := digest("other")
	type row struct {
		spoil      func(*bench, *registries)
		kind       fault.Kind
		want, hint string
	}
	each(t, map[string]row{
		"a tag of something else": {
			func(b *bench, r *registries) { r.exists, r.tags[b.mirrorTag("default")] = true, other }, fault.Refused,
			"TAG is " + other + ", but the lock has ", "the factory has rebuilt it since it was mirrored, or someone moved the tag",
		},
		"a tag set meanwhile": {
			func(b *bench, r *registries) { r.stolen[b.mirrorTag("default")] = other }, fault.Refused,
			"TAG is " + other + ", but the lock has ", "the factory has rebuilt it since it was mirrored, or someone moved the tag",
		},
		"not built": {
			func(b *bench, _ *registries) { b.again(lockOf(t)) }, fault.Config,
			`schematic "default" is not built yet`, "run `recast publish --only build`",
		},
		"denied": {
			func(_ *bench, r *registries) { r.denied = true }, fault.Failed, "denied by the registry", "docker login",
		},
		"a tag that can't be set": {
			func(_ *bench, r *registries) { r.tagFail = errors.New("405") }, fault.Failed, "tag the installer: 405", "",
		},
		"a lock that can't be saved": {
			func(b *bench, _ *registries) { b.saveErr = errors.New("read-only") }, fault.Failed, "record what was built: read-only", "",
		},
	}, func(t *testing.T, tc row) {
		b := newBench(t)
		r := newRegistries(b.factory)
		noError(t, b.run(t, b.mirroringBuilder(r).Step()))
		b.again(b.saved)
		tc.spoil(b, r)
		before := b.ledger.Lock()
		err := b.run(t, b.mirror(r).Step())
		if want := strings.ReplaceAll(tc.want, "TAG", b.mirrorTag("default")); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("error\n got %v\nwant it to hold %q", err, want)
		}
		if kind := fault.KindOf(err); kind != tc.kind {
			t.Errorf("kind = %v, want %v", kind, tc.kind)
		}
		if got := strings.Join(fault.Hints(err), "; "); !strings.HasPrefix(got, tc.hint) {
			t.Errorf("hint\n got %s\nwant %s", got, tc.hint)
		}
		if diff := cmp.Diff(before, b.ledger.Lock()); diff != "" {
			t.Errorf("the lock changed despite the error (-before +after):\n%s", diff)
		}
		if got, found := r.tags[b.mirrorTag("default")]; found && got != other && tc.kind == fault.Refused {
			t.Errorf("the tag was moved to %s", got)
		}
	})
}
