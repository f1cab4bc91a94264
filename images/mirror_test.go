package images

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
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
	must.Do(t, errors.Join(b.run(t, b.mirroringBuilder(r).Step()), b.run(t, b.mirror(r).Step())))
	b.again(b.saved)
	return b, r
}

func TestMirror(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := newRegistries(b.factory)
	must.Do(t, b.run(t, b.mirroringBuilder(r).Step()))
	want := b.saved.Clone()
	sources := []string{b.sourceOf("default"), b.sourceOf("plain")}
	tags := map[string]string{}
	for name, e := range want.Schematics {
		d := digest("installer " + e.SchematicID)
		e.Installer, tags[b.mirrorTag(name)] = mirrorRepository+"@"+d, d
		want.Schematics[name] = e
	}
	b.notes = nil
	must.Do(t, b.run(t, b.mirror(r).Step()))
	must.Equal(t, "saved lock", want, b.saved)
	must.Equal(t, "tags", tags, r.tags)
	must.Equal(t, "copies", sources, r.copies)
	must.Equal(t, "notes", []string{"mirror/default: 64 MiB of 200 MiB", "mirror/plain: 64 MiB of 200 MiB"}, b.notes)
}

// TestMirroredNeedsNoFactory: mirrored and cached images are found without the factory.
func TestMirroredNeedsNoFactory(t *testing.T) {
	t.Parallel()
	b, r := mirrored(t)
	r.copies, b.factory.fail = nil, errors.New("connection refused")
	must.Do(t, b.run(t, b.mirroringBuilder(r).Step()))
	must.Do(t, b.run(t, b.mirror(r).Step()))
	want := []string{
		"mirror/default skipped " + b.mirrorTag("default") + " is there", "mirror/plain skipped " + b.mirrorTag("plain") + " is there", "mirror done",
	}
	must.Equal(t, "events", want, b.events)
	must.Hold(t, len(r.copies)+b.saves == 0, "%d copies, %d saves", len(r.copies), b.saves)
}

// TestMirrorResumes loses or changes one thing at a time and checks what is copied again.
func TestMirrorResumes(t *testing.T) {
	t.Parallel()
	type row struct {
		lose func(*bench, *registries)
		want func(*bench) []string
	}
	must.Each(t, map[string]row{
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
		must.Do(t, errors.Join(b.run(t, b.mirroringBuilder(r).Step()), b.run(t, b.mirror(r).Step())))
		must.Equal(t, "copies", want, r.copies)
		must.Equal(t, "lock", whole, b.ledger.Lock())
		must.Hold(t, len(r.tags) == tags, "tags = %v", r.tags)
	})
}

func TestMirrorIsCutOff(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := newRegistries(b.factory)
	must.Do(t, b.run(t, b.mirroringBuilder(r).Step()))
	before := b.saved
	r.cut = true
	err := b.run(t, b.mirror(r).Step())
	must.Equal(t, "error", "mirror/default: copy "+b.sourceOf("default")+": connection reset", fmt.Sprint(err))
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
	must.Do(t, b.run(t, builder.Step()))
	for _, name := range []string{"default", "plain"} {
		must.Equal(t, "installer of "+name, b.sourceOf(name), b.saved.Schematics[name].Installer)
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
	must.Each(t, map[string]row{
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
		must.Do(t, b.run(t, b.mirroringBuilder(r).Step()))
		b.again(b.saved)
		tc.spoil(b, r)
		before := b.ledger.Lock()
		err := b.run(t, b.mirror(r).Step())
		if want := strings.ReplaceAll(tc.want, "TAG", b.mirrorTag("default")); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("error\n got %v\nwant it to hold %q", err, want)
		}
		must.Equal(t, "kind", tc.kind, fault.KindOf(err))
		if got := strings.Join(fault.Hints(err), "; "); !strings.HasPrefix(got, tc.hint) {
			t.Errorf("hint\n got %s\nwant %s", got, tc.hint)
		}
		must.Equal(t, "the lock changed despite the error", before, b.ledger.Lock())
		if got, found := r.tags[b.mirrorTag("default")]; found && got != other && tc.kind == fault.Refused {
			t.Errorf("the tag was moved to %s", got)
		}
	})
}

// archive is a repository: tags, manifests and what belongs to them.
type archive struct {
	tags      map[string]string   // tag → digest
	manifests map[string][]string // digest → what it lists
	referrers map[string][]string
	built     map[string]time.Time
	fail      error
	deleteErr error
	deleted   []string
}

func (a *archive) Tags(context.Context, string) ([]string, error) {
	return slices.Collect(maps.Keys(a.tags)), a.fail
}

func (a *archive) Named(_ context.Context, tag string) (Named, bool, error) {
	digest, found := a.tags[tag[strings.LastIndex(tag, ":")+1:]]
	return Named{Digest: digest, Lists: a.manifests[digest]}, found, a.fail
}

func (a *archive) Built(_ context.Context, ref string) (time.Time, error) {
	_, digest, _ := strings.Cut(ref, "@")
	return a.built[digest], a.fail
}

func (a *archive) Referrers(_ context.Context, ref string) ([]string, error) {
	_, digest, _ := strings.Cut(ref, "@")
	return a.referrers[digest], a.fail
}

func (a *archive) Delete(_ context.Context, ref string) error {
	_, digest, _ := strings.Cut(ref, "@")
	if a.deleteErr != nil {
		return a.deleteErr
	}
	delete(a.manifests, digest)
	maps.DeleteFunc(a.tags, func(_, d string) bool { return d == digest })
	a.deleted = append(a.deleted, digest)
	return nil
}

func sha(c string) string { return "sha256:" + strings.Repeat(c, 64) }

func tagOf(build string) string { return "v1.13.9-" + strings.Repeat(build, 12) }

func sigOf(digest string) string { return strings.Replace(digest, ":", "-", 1) + ".sig" }

var mirrorNow = time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)

// newArchive has installers of builds a, b and c, each of two images and signed, an
// image that a and b share, and a foreign tag.
func newArchive() *archive {
	old := mirrorNow.Add(-1000 * time.Hour)
	return &archive{
		tags: map[string]string{
			tagOf("a"): sha("a"), tagOf("b"): sha("b"), tagOf("c"): sha("c"), "latest": sha("9"),
			sigOf(sha("a")): sha("1"), sigOf(sha("b")): sha("2"), sigOf(sha("9")): sha("8"), "sha256-" + sha("c")[7:]: sha("7"),
		},
		manifests: map[string][]string{
			sha("a"): {sha("d"), sha("e")}, sha("b"): {sha("e"), sha("f")}, sha("c"): {sha("0")}, sha("9"): nil,
			sha("7"): {sha("6")},
		},
		referrers: map[string][]string{sha("a"): {sha("3")}, sha("c"): {sha("6")}},
		built:     map[string]time.Time{sha("a"): old, sha("b"): old, sha("c"): old},
	}
}

func TestJudgeMirror(t *testing.T) {
	t.Parallel()
	type row struct {
		change func(*archive)
		need   Needed
		age    time.Duration
		want   map[string][]string
	}
	must.Each(t, map[string]row{
		"nothing needs them": {age: week, want: map[string][]string{tagOf("a"): nil, tagOf("b"): nil, tagOf("c"): nil}},
		"the lock, by tag and by digest": {
			need: Needed{Names: map[string]string{tagOf("a"): "recast.lock has it", sha("a"): "recast.lock has it", sha("b"): "the lock before"}},
			want: map[string][]string{tagOf("a"): {"recast.lock has it"}, tagOf("b"): {"the lock before"}, tagOf("c"): nil},
		},
		"a node": {
			need: Needed{Builds: map[string]string{strings.Repeat("b", 64): "wk1 was made from it"}},
			want: map[string][]string{tagOf("a"): nil, tagOf("b"): {"wk1 was made from it"}, tagOf("c"): nil},
		},
		"a foreign tag of the same": {
			change: func(a *archive) { a.tags["latest"] = sha("a") },
			want:   map[string][]string{tagOf("a"): {"latest names the same image"}, tagOf("b"): nil, tagOf("c"): nil},
		},
		"a foreign index that lists it": {
			change: func(a *archive) { a.manifests[sha("9")] = []string{sha("b")} },
			want:   map[string][]string{tagOf("a"): nil, tagOf("b"): {"latest lists it"}, tagOf("c"): nil},
		},
		"one that stays lists another": {
			change: func(a *archive) {
				a.manifests[sha("a")] = append(a.manifests[sha("a")], sha("b"))
				a.manifests[sha("b")] = append(a.manifests[sha("b")], sha("c"))
			},
			need: Needed{Names: map[string]string{tagOf("a"): "recast.lock has it"}},
			want: map[string][]string{tagOf("a"): {"recast.lock has it"}, tagOf("b"): {tagOf("a") + " lists it"}, tagOf("c"): {tagOf("b") + " lists it"}},
		},
		"young, and of no known age": {
			change: func(a *archive) {
				a.built[sha("a")] = mirrorNow.Add(-time.Hour)
				delete(a.built, sha("b"))
			}, age: week,
			want: map[string][]string{tagOf("a"): {"it was built less than 168h ago"}, tagOf("b"): {"its age is unknown (--older-than 0 ignores age)"}, tagOf("c"): nil},
		},
		"names that are not ours": {
			change: func(a *archive) {
				a.tags = map[string]string{"v1.13.9": sha("a"), "v1.13.9-abcdef": sha("a"), "x" + tagOf("a"): sha("a"), tagOf("a") + "0": sha("a"), tagOf("g"): sha("a")}
			},
			want: map[string][]string{},
		},
	}, func(t *testing.T, tc row) {
		a := newArchive()
		if tc.change != nil {
			tc.change(a)
		}
		tags := must.Get(ListMirror(t.Context(), a, mirrorRepository))(t)
		got := map[string][]string{}
		for _, v := range JudgeMirror(tags, tc.need, tc.age, mirrorNow) {
			got[v.Tag] = v.Keep
		}
		must.Equal(t, "kept", tc.want, got)
	})
}

func TestListMirror(t *testing.T) {
	t.Parallel()
	a := newArchive()
	maps.DeleteFunc(a.tags, func(tag, _ string) bool { return tag != tagOf("a") && tag != "latest" })
	got := must.Get(ListMirror(t.Context(), a, mirrorRepository))(t)
	want := []MirrorTag{
		{Repository: mirrorRepository, Tag: "latest", Digest: sha("9")},
		{Repository: mirrorRepository, Tag: tagOf("a"), Digest: sha("a"), Built: a.built[sha("a")], Lists: []string{sha("d"), sha("e")}},
	}
	must.Equal(t, "tags", want, got)
	a.fail = errors.New("500")
	if _, err := ListMirror(t.Context(), a, mirrorRepository); !errors.Is(err, a.fail) {
		t.Errorf("error is %v", err)
	}
}

func TestOurTag(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, e := range b.saved.Schematics {
		if m := ourTag.FindStringSubmatch(TagOf(b.saved, e)); m == nil || !strings.HasPrefix(e.BuildID, m[1]) {
			t.Errorf("schematic %s: %s is not recognised as ours", name, TagOf(b.saved, e))
		}
	}
}

func TestMirrorPruner(t *testing.T) {
	t.Parallel()
	type row struct {
		change func(a *archive, guard *error)
		want   []string
		fails  string
		kind   fault.Kind
	}
	must.Each(t, map[string]row{
		// a's signature and referrer, a, and the image that b lacks; then what is left of b.
		"all that can go": {want: []string{sha("1"), sha("3"), sha("a"), sha("d"), sha("2"), sha("b"), sha("e"), sha("f")}},
		"what another has too": {
			change: func(a *archive, _ *error) {
				a.tags["v1"] = sha("5")
				a.manifests[sha("5")] = []string{sha("f"), sha("3")}
			},
			want: []string{sha("1"), sha("a"), sha("d"), sha("2"), sha("b"), sha("e")},
		},
		"it has got another tag": {
			change: func(a *archive, _ *error) { a.tags["stable"] = sha("a") },
			fails:  tagOf("a") + " stays: stable names the same image", kind: fault.Refused,
		},
		"the tag was moved": {
			change: func(a *archive, _ *error) { a.tags[tagOf("a")] = sha("9") },
			fails:  tagOf("a") + " names " + sha("9") + " now, not " + sha("a") + ": it stays", kind: fault.Refused,
		},
		"one is gone": {
			change: func(a *archive, _ *error) { delete(a.tags, tagOf("a")) },
			want:   []string{sha("2"), sha("b"), sha("e"), sha("f")},
		},
		"the claim is lost": {
			change: func(_ *archive, guard *error) { *guard = fault.As(fault.Claimed, errors.New("lost the claim")) }, fails: "lost the claim", kind: fault.Claimed,
		},
		"a registry that does not delete": {
			change: func(a *archive, _ *error) { a.deleteErr = ErrUndeletable }, fails: "delete " + mirrorRepository + ":" + tagOf("a") + ": the registry does not delete images",
			kind: fault.Failed,
		},
		"use is no longer known": {
			change: func(a *archive, _ *error) { a.fail = errors.New("503") }, fails: "503", kind: fault.Failed,
		},
	}, func(t *testing.T, tc row) {
		a := newArchive()
		tags := must.Get(ListMirror(t.Context(), a, mirrorRepository))(t)
		p := MirrorPruner{Shelf: a, Verdicts: JudgeMirror(tags, Needed{Names: map[string]string{tagOf("c"): "recast.lock has it"}}, week, mirrorNow)}
		var guard error
		if tc.change != nil {
			tc.change(a, &guard)
		}
		p.Write = unless(&guard)
		prune(t, p.Steps(), tc.fails, tc.kind)
		must.Equal(t, "deleted", tc.want, a.deleted)
		for _, v := range p.Verdicts {
			if _, there := a.tags[v.Tag]; v.Removed == there {
				t.Errorf("%s: removed is %t", v, v.Removed)
			}
		}
		for _, tag := range []string{"latest", sigOf(sha("9")), tagOf("c"), "sha256-" + sha("c")[7:]} {
			must.Hold(t, a.tags[tag] != "", "%s is gone", tag)
		}
	})
}
