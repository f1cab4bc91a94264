package images

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// mirrored says where the mirrored installer is; "" if the mirror does not have it or the lock does not name it there.
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

// target is a place that needs a file.
type target struct {
	host    string // for a shared storage: the host that receives the upload
	storage string
	info    StorageInfo
	name    string // of the file there
	wrong   bool   // a file with the same name and another size is there
}

// onHost is the host whose storage it is; "" if the storage is shared.
func (t target) onHost() string {
	if t.info.Shared {
		return ""
	}
	return t.host
}

func (t target) String() string {
	if t.info.Shared {
		return "storage " + t.storage
	}
	return "storage " + t.storage + " on " + t.host
}

// id names the target in step IDs.
func (t target) id() string {
	if t.info.Shared {
		return t.storage
	}
	return t.storage + "-" + t.host
}

// targets returns the places for the files of VMs on the given hosts: a shared storage once, a local storage on each
// host. It reports all problems with the storages at once.
func targets(ctx context.Context, store Storages, of Artefact, storages, hosts []string) ([]target, error) {
	hosts = slices.Compact(slices.Sorted(slices.Values(hosts)))
	var list []target
	var errs []error
	served := map[string]bool{}
	for _, storage := range storages {
		on, err := lookAt(ctx, store, of, storage, hosts)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, t := range on {
			served[t.host] = true
			if t.info.Shared && slices.ContainsFunc(list, func(have target) bool { return have.storage == storage }) {
				continue
			}
			list = append(list, t)
		}
	}
	for _, host := range hosts {
		if len(errs) == 0 && !served[host] {
			errs = append(errs, fault.WithHint(
				fault.StorageUnusable.Configf("no storage for %s on host %s: it has none of %q", of.Plural(), host, storages),
				"name a storage of that host in %s", of.Setting()))
		}
	}
	return list, errors.Join(errs...)
}

// lookAt returns a storage as each host that has it sees it.
func lookAt(ctx context.Context, store Storages, of Artefact, storage string, hosts []string) ([]target, error) {
	var list []target
	for _, host := range hosts {
		info, err := store.Storage(ctx, host, storage)
		if errors.Is(err, ErrNoStorage) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look at storage %q on %s: %w", storage, host, err)
		}
		if !slices.Contains(info.Content, of.Content()) {
			return nil, fault.WithHint(
				fault.StorageUnusable.Configf("storage %q does not take %s: its content is %q", storage, of.Plural(), info.Content),
				"allow the content type with `pvesm set %s --content …,%s`%s, or name another storage in %s", storage, of.Content(), artefacts[of].since, of.Setting())
		}
		if !info.Active {
			return nil, fault.WithHint(fault.StorageUnusable.Errorf("storage %q is not active on %s", storage, host),
				"see `pvesm status --storage %s` on %s", storage, host)
		}
		list = append(list, target{host: host, storage: storage, info: info})
	}
	if len(list) == 0 {
		return nil, fault.WithHint(fault.StorageUnusable.Configf("storage %q is unknown: there is none of that name on %s", storage, strings.Join(hosts, ", ")),
			"`pvesm status --content %s` lists what %s can name", of.Content(), of.Setting())
	}
	return list, nil
}

// Storages describes storages of Proxmox.
type Storages interface {
	// Storage reads a storage as a host sees it. The error is ErrNoStorage if the host has no storage of that name.
	Storage(ctx context.Context, host, storage string) (StorageInfo, error)
}

// Usable returns the storages that take files of the given kind, and the hosts that see one of these storages,
// sorted. why says what is wrong with the other storages and hosts.
func Usable(ctx context.Context, store Storages, of Artefact, storages, hosts []string) (usable, served []string, why []error, err error) {
	for _, storage := range storages {
		on, err := lookAt(ctx, store, of, storage, hosts)
		switch {
		case fault.KindOf(err) == fault.Config:
			why = append(why, err)
			continue
		case err != nil:
			return nil, nil, nil, err
		}
		usable = append(usable, storage)
		for _, t := range on {
			served = append(served, t.host)
		}
	}
	served = slices.Compact(slices.Sorted(slices.Values(served)))
	for _, host := range hosts {
		if len(usable) > 0 && !slices.Contains(served, host) {
			why = append(why, fmt.Errorf("host %s has none of %q", host, usable))
		}
	}
	return usable, served, why, nil
}

// DiskHosts says, before anything is built or sent, on which storages disk images are published. In hosts, by
// schematic, it leaves only the hosts that see such a storage. If all is set, every storage and host has to be
// usable, and an unusable one is an error; otherwise why says what is unusable.
func DiskHosts(ctx context.Context, store Storages, storages []string, hosts map[string][]string, all bool) (usable []string, why []error, err error) {
	if all || len(hosts) == 0 {
		for _, name := range slices.Sorted(maps.Keys(hosts)) { // the errors of all schematics would mostly say the same
			if _, err = targets(ctx, store, DiskImage, storages, hosts[name]); err != nil {
				break
			}
		}
		return storages, nil, err
	}
	each := slices.Compact(slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(hosts))...))))
	usable, served, why, err := Usable(ctx, store, DiskImage, storages, each)
	if err != nil {
		return nil, nil, err
	}
	for name, list := range hosts {
		hosts[name] = slices.DeleteFunc(slices.Clone(list), func(host string) bool { return !slices.Contains(served, host) })
	}
	maps.DeleteFunc(hosts, func(_ string, list []string) bool { return len(list) == 0 })
	return usable, why, nil
}

// Artefact is a kind of file that machines boot and that a [Publisher] brings to Proxmox storage.
type Artefact int

// The kinds of Artefact. Proxmox keeps them as content of the types "iso" and "import", and recognises them by the
// ends of their names.
const (
	BootISO Artefact = iota
	DiskImage
)

// artefacts holds what differs between the kinds.
var artefacts = [...]struct {
	name, plural string // in messages
	noun         string // in step IDs, titles and settings
	content      string // the type on Proxmox storage
	since        string // the Proxmox VE that has the type, if not every one; import came with pve-storage 8.2.8
	publish      string // the ID of the Publisher's step
	output       ImagerOutput
	stored       func(Finder, context.Context, string, string, string) (StoredISO, bool, error)
	list         func(Shelf, context.Context, string, string) ([]StoredISO, error)
}{
	BootISO: {
		name: "boot ISO", plural: "ISOs", noun: "iso", content: "iso", publish: "publish", output: OutputISO,
		stored: Finder.ISO, list: Shelf.ISOs,
	},
	DiskImage: {
		name: "disk image", plural: "disk images", noun: "disk", content: "import", publish: "publish-disks", output: OutputDisk,
		since:  ", which needs Proxmox VE 8.3 and a storage of files",
		stored: Finder.DiskImage, list: Shelf.DiskImages,
	},
}

// String returns the kind's name in messages.
func (a Artefact) String() string { return artefacts[a].name }

// Plural returns the plural of the kind's name in messages.
func (a Artefact) Plural() string { return artefacts[a].plural }

// Content returns the kind's content type on Proxmox storage.
func (a Artefact) Content() string { return artefacts[a].content }

// Setting returns the key in recast.yaml that names the kind's storages.
func (a Artefact) Setting() string { return "images." + artefacts[a].noun + ".storage" }

// Stored looks for a file of the kind on a storage.
func (a Artefact) Stored(ctx context.Context, s Finder, host, storage, name string) (file StoredISO, found bool, err error) {
	return artefacts[a].stored(s, ctx, host, storage, name)
}

// File returns the kind's file in a lock. Without SHA256 the file was not built yet.
func (a Artefact) File(lock schematics.Lock, e schematics.Locked) schematics.BootFile {
	if a == BootISO {
		return e.ISO
	}
	if e.Disk == (schematics.Disk{}) {
		return schematics.BootFile{Name: lock.DiskName(e)}
	}
	return e.Disk.BootFile
}
