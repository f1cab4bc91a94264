package images

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// Mirror copies the installers of a lock into the user's own repository, and makes the lock name them there.
type Mirror struct {
	Copier     Copier
	Ledger     *Ledger
	Repository string // "ghcr.io/acme/talos"
	// Note receives the progress of the step at a path below Step: "mirror/default". May be nil.
	Note func(path, text string)
}

// Step returns a tree of steps that end with every installer in the repository, tagged with its Talos version and
// build ID. Run it after the Builder's.
func (m Mirror) Step() step.Step {
	return step.Step{
		ID: "mirror", Code: fault.BuildFailed, Title: "mirror installers to " + m.Repository,
		Steps: func(context.Context) ([]step.Step, error) {
			var steps []step.Step
			for _, name := range m.Ledger.Lock().Names() {
				steps = append(steps, step.Step{
					ID: name, Kind: "mirror-installer", Title: "mirror the installer of schematic " + name,
					Skip: func(ctx context.Context) (string, error) { return m.mirrored(ctx, name) },
					Do:   func(ctx context.Context) error { return m.mirror(ctx, name) },
				})
			}
			return steps, nil
		},
	}
}

// mirrored says where the mirrored installer is; "" if the mirror does not have it or the lock does not name it
// there.
func (m Mirror) mirrored(ctx context.Context, name string) (string, error) {
	lock, e := m.Ledger.entry(name)
	if e.Installer == "" {
		return "", nil
	}
	tag := m.Repository + ":" + TagOf(lock, e)
	found, err := m.tagged(ctx, tag, e)
	if errors.Is(err, ErrDenied) {
		return "", nil // the first push creates such a repository; Do checks again after the push
	}
	if repository, _, _ := strings.Cut(e.Installer, "@"); err != nil || !found || repository != m.Repository {
		return "", err
	}
	return tag + " is there", nil
}

// mirror copies the installer and sets the tag last, so an interrupted copy never looks like a complete installer.
func (m Mirror) mirror(ctx context.Context, name string) error {
	lock, e := m.Ledger.entry(name)
	_, digest, _ := strings.Cut(e.Installer, "@")
	if digest == "" {
		return fault.WithHint(fault.LockStale.Configf("schematic %q is not built yet", name), "run `recast publish --only build`")
	}
	note := func(text string) {
		if m.Note != nil {
			m.Note("mirror/"+name, text)
		}
	}
	var tell func(doneBytes int64)
	report := func(doneBytes, totalBytes int64) {
		if tell == nil {
			tell = progress(totalBytes, note)
		}
		tell(doneBytes)
	}
	if err := m.Copier.Copy(ctx, e.Installer, m.Repository, report); err != nil {
		return fmt.Errorf("copy %s: %w", e.Installer, err)
	}
	tag, ref := m.Repository+":"+TagOf(lock, e), m.Repository+"@"+digest
	found, err := m.tagged(ctx, tag, e)
	if err != nil {
		return err
	}
	if !found {
		if err := m.Copier.Tag(ctx, ref, tag); err != nil {
			return fmt.Errorf("tag the installer: %w", err)
		}
	}
	if e.Installer == ref {
		return nil
	}
	return m.Ledger.record(e.BuildID, func(e *schematics.Locked) { e.Installer = ref })
}

// tagged reports whether the tag exists. The tag's name holds the build ID, so a tag on another image than the lock's
// is refused.
func (m Mirror) tagged(ctx context.Context, tag string, e schematics.Locked) (bool, error) {
	got, found, err := m.Copier.Head(ctx, tag)
	if err != nil {
		return false, fmt.Errorf("look for the mirrored installer: %w", err)
	}
	if _, want, _ := strings.Cut(e.Installer, "@"); found && got != want {
		return false, fault.WithHint(
			fault.ImageDiffers.Refusedf("%s is %s, but the lock has %s: it is never overwritten", tag, got, want),
			"the factory has rebuilt it since it was mirrored, or someone moved the tag. "+
				"Use the recast.lock that has the mirrored digest, or delete the tag from the registry")
	}
	return found, nil
}

// TagOf returns the tag under which the installer of a locked schematic is mirrored.
func TagOf(lock schematics.Lock, e schematics.Locked) string {
	return lock.Talos + "-" + schematics.Short(e.BuildID)
}

// MirrorShelf finds and removes mirrored installers that are no longer needed.
type MirrorShelf interface {
	// Tags lists the tags of a repository; none if it does not exist.
	Tags(ctx context.Context, repository string) ([]string, error)
	// Named returns what a tag names. found is false only if the registry definitely has no such tag.
	Named(ctx context.Context, tag string) (n Named, found bool, err error)
	// Built returns the build time that is recorded in the image ref; zero if none is recorded.
	Built(ctx context.Context, ref string) (time.Time, error)
	// Referrers lists the digests of the manifests with ref (by digest) as their subject.
	Referrers(ctx context.Context, ref string) ([]string, error)
	// Delete removes the manifest that ref (by digest) names, with all its tags. A missing manifest is not an error.
	Delete(ctx context.Context, ref string) error
}

// Named is what a tag names.
type Named struct {
	Digest string
	Lists  []string // digests of the manifests in an index
}

// MirrorTag is a tag of a mirror.
type MirrorTag struct {
	Repository string    `json:"repository"`
	Tag        string    `json:"tag"`
	Digest     string    `json:"digest"`
	Built      time.Time `json:"built,omitzero"` // only for our tags, from the image; zero if unknown
	Lists      []string  `json:"-"`              // as in Named
}

func (m MirrorTag) String() string { return m.Repository + ":" + m.Tag }

func (m MirrorTag) names(digest string) bool {
	return m.Digest == digest || slices.Contains(m.Lists, digest)
}

var (
	// ourTag matches Mirror's tags of installers; its group is the beginning of the build ID.
	ourTag = regexp.MustCompile(`^v\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?-([0-9a-f]{12})$`)
	// attachedTag matches the tag of what belongs to the digest in the tag's name: cosign's signature, or the list of
	// referrers in a registry without the referrers API.
	attachedTag = regexp.MustCompile(`^(sha256)-([0-9a-f]{64})(?:\.sig)?$`)
)

// ListMirror lists every tag of a repository, including foreign tags: no tag may lose the image that it names.
func ListMirror(ctx context.Context, shelf MirrorShelf, repository string) ([]MirrorTag, error) {
	names, err := shelf.Tags(ctx, repository)
	if err != nil {
		return nil, fmt.Errorf("list the tags of %s: %w", repository, err)
	}
	slices.Sort(names)
	var tags []MirrorTag
	for _, name := range names {
		t := MirrorTag{Repository: repository, Tag: name}
		n, found, err := shelf.Named(ctx, t.String())
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", t, err)
		}
		if !found {
			continue // deleted meanwhile
		}
		t.Digest, t.Lists = n.Digest, n.Lists
		if ourTag.MatchString(name) {
			if t.Built, err = shelf.Built(ctx, repository+"@"+t.Digest); err != nil {
				return nil, fmt.Errorf("look at %s: %w", t, err)
			}
		}
		tags = append(tags, t)
	}
	return tags, nil
}

// MirrorVerdict is the decision about one of our tags.
type MirrorVerdict struct {
	MirrorTag
	Keep    []string `json:"keep,omitempty"` // why the tag stays; none: it can go
	Removed bool     `json:"removed"`        // the tag no longer exists
}

// JudgeMirror decides for each of our tags whether it can go: nothing needs it, no remaining tag names the same
// image, and the image is older than olderThan. Needed.Names holds tags and digests here. The age protects images
// that other Talos clusters, with their own locks, have just put into a shared repository.
func JudgeMirror(tags []MirrorTag, need Needed, olderThan time.Duration, now time.Time) []MirrorVerdict {
	verdicts := []MirrorVerdict{}
	for _, t := range tags {
		m := ourTag.FindStringSubmatch(t.Tag)
		if m == nil {
			continue
		}
		v := MirrorVerdict{MirrorTag: t, Keep: need.why(t.Tag, m[1])}
		if reason := need.Names[t.Digest]; reason != "" && !slices.Contains(v.Keep, reason) {
			v.Keep = append(v.Keep, reason)
		}
		v.Keep = append(v.Keep, tooYoung(t.Built, olderThan, now, "it was built less than %s ago")...)
		verdicts = append(verdicts, v)
	}
	// A tag that stays may keep another tag.
	for changed := true; changed; {
		changed = false
		staying := stayingTags(tags, verdicts)
		for i := range verdicts {
			if v := &verdicts[i]; len(v.Keep) == 0 {
				v.Keep = namedBy(staying, v.Digest)
				changed = changed || len(v.Keep) > 0
			}
		}
	}
	return verdicts
}

// stayingTags returns all tags except those that go and those of what belongs to their images.
func stayingTags(tags []MirrorTag, verdicts []MirrorVerdict) []MirrorTag {
	going := map[string]bool{}
	for _, v := range verdicts {
		if len(v.Keep) == 0 {
			going[v.Tag], going[v.Digest] = true, true
		}
	}
	return slices.DeleteFunc(slices.Clone(tags), func(t MirrorTag) bool { return going[t.Tag] || going[subjectOf(t.Tag)] })
}

// subjectOf returns the digest that a tag's content belongs to; "" for an independent tag.
func subjectOf(tag string) string {
	m := attachedTag.FindStringSubmatch(tag)
	if m == nil {
		return ""
	}
	return m[1] + ":" + m[2]
}

func namedBy(tags []MirrorTag, digest string) []string {
	var why []string
	for _, t := range tags {
		switch {
		case t.Digest == digest:
			why = append(why, t.Tag+" names the same image")
		case t.names(digest):
			why = append(why, t.Tag+" lists it")
		}
	}
	return why
}

// MirrorPruner removes the mirrored installers that can go.
type MirrorPruner struct {
	Shelf    MirrorShelf
	Verdicts []MirrorVerdict // Removed is set for each tag that was removed
	Write    Write
}

// Steps returns one step for each tag that has no reason to stay.
func (p MirrorPruner) Steps() []step.Step {
	return removals(p.Verdicts, func(v *MirrorVerdict) removal {
		return removal{
			id: "delete-mirrored-" + v.Tag, kind: "delete-mirrored", what: v, keep: v.Keep, removed: &v.Removed,
			gone: func(ctx context.Context) (bool, error) {
				_, found, err := p.Shelf.Named(ctx, v.String())
				return !found, err
			},
			do: func(ctx context.Context) error { return p.delete(ctx, v) },
		}
	})
}

func (p MirrorPruner) delete(ctx context.Context, v *MirrorVerdict) error {
	digests, err := p.toDelete(ctx, v)
	if err != nil {
		return err
	}
	for _, digest := range digests {
		err := p.Write(ctx, func(ctx context.Context) error {
			if err := p.Shelf.Delete(ctx, v.Repository+"@"+digest); err != nil {
				return fmt.Errorf("delete %s: %w", v, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// toDelete returns the digests to delete with a tag, after another look at all tags. The image's signature and
// referrers come first, because they cannot be found afterwards. The manifests that the image lists come last, so
// that no tag is left on a part of an image. A registry deletes a digest with all its tags.
func (p MirrorPruner) toDelete(ctx context.Context, v *MirrorVerdict) ([]string, error) {
	tags, err := ListMirror(ctx, p.Shelf, v.Repository)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(tags, func(t MirrorTag) bool { return t.Tag == v.Tag })
	if at < 0 {
		return nil, nil
	}
	if tags[at].Digest != v.Digest {
		return nil, retryHint(fault.PruneRefused.Refusedf("%s names %s now, not %s: it stays", v, tags[at].Digest, v.Digest))
	}
	if why := namedBy(stayingTags(tags, p.Verdicts), v.Digest); len(why) > 0 {
		return nil, retryHint(fault.PruneRefused.Refusedf("%s stays: %s", v, strings.Join(why, "; ")))
	}
	parts, err := p.attachments(ctx, v, tags)
	if err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(slices.Clone(tags), func(t MirrorTag) bool { return t.Digest == v.Digest || subjectOf(t.Tag) == v.Digest })
	taken := func(digest string) bool {
		return slices.ContainsFunc(others, func(t MirrorTag) bool { return t.names(digest) })
	}
	toDelete := append(slices.DeleteFunc(parts, taken), v.Digest)
	return append(toDelete, slices.DeleteFunc(slices.Clone(tags[at].Lists), taken)...), nil
}

// attachments returns the digests of an image's signature and referrers.
func (p MirrorPruner) attachments(ctx context.Context, v *MirrorVerdict, tags []MirrorTag) ([]string, error) {
	parts, err := p.Shelf.Referrers(ctx, v.Repository+"@"+v.Digest)
	if err != nil {
		return nil, fmt.Errorf("list what refers to %s: %w", v, err)
	}
	parts = slices.Clone(parts)
	for _, t := range tags {
		if subjectOf(t.Tag) == v.Digest {
			parts = append(parts, t.Digest)
		}
	}
	slices.Sort(parts)
	return slices.Compact(parts), nil
}

func retryHint(err error) error { return fault.WithHint(err, "run recast prune again") }

// ErrUndeletable says that a registry does not delete manifests. Adapters wrap it.
var ErrUndeletable = errors.New("the registry does not delete images")
