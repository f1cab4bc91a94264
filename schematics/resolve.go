package schematics

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/knownissue"
	"github.com/recast-sh/recast/internal/words"
)

// maxKernelArgs bounds the extra kernel arguments in bytes: the kernel silently truncates its command line at 2048
// (COMMAND_LINE_SIZE), Talos' own part takes up to 260, and platforms and installers add some.
const maxKernelArgs = 1700

// Catalog knows which official extensions were released for a Talos version.
type Catalog interface {
	// Official lists them as they are in the registry now. An unknown Talos version is an error of kind Config.
	Official(ctx context.Context, talos string) ([]OfficialExtension, error)
}

// OfficialExtension is an extension in a list of official extensions.
type OfficialExtension struct {
	Name        string // in schematics: "siderolabs/qemu-guest-agent"
	Version     string // "11.0.2"
	Ref         string // repository: "ghcr.io/siderolabs/qemu-guest-agent"
	Digest      string // of the image index
	Author      string
	Description string
}

// Sources are what a lock is resolved against.
type Sources struct {
	Catalog Catalog
	Images  ExtensionImages // nil only if no schematic has an extension, and the imager builds none
	Factory Factory         // nil only if no factory builds
}

// Request says what to lock.
type Request struct {
	Talos      string
	TalosPlace string // in recast.yaml, for errors: "recast.yaml:5:3: talos.version"
	Arch       string
	Platform   string
	SecureBoot bool
	Files      map[string]File // by the schematics' names in the config
	Imager     Imager          // repositories, with a tag for every Talos version
	// Old is the current lock; nil if there is none. Resolve keeps the results of an unchanged build. It also keeps
	// digests: of official extensions while the Talos version is the same, of other extensions while their reference
	// is the same. With Update, it takes the current digests of registry and factory instead.
	Old    *Lock
	Update bool
	// Note receives what is read next: a server may take minutes to answer. May be nil.
	Note func(text string)
}

// File is a schematic file's content. Path is as in the config.
type File struct {
	Path       string
	Data       []byte
	Extensions []Explicit // extensions that recast.yaml adds to those in the file
	Imager     bool       // the Talos imager builds it, so no factory is asked about it
	Rebuild    bool       // build the same content again, under another name
}

func (r Request) note(format string, args ...any) {
	if r.Note != nil {
		r.Note(fmt.Sprintf(format, args...))
	}
}

// Resolve makes a lock. It reports every problem in the files at once, with kind Config.
func Resolve(ctx context.Context, req Request, from Sources) (Lock, []Warning, error) {
	parsed, err := parseAll(req.Files)
	if err != nil {
		return Lock{}, nil, err
	}
	req.note("the registry's list of official extensions for Talos %s", req.Talos)
	official, err := from.Catalog.Official(ctx, req.Talos)
	if err != nil {
		return Lock{}, nil, fmt.Errorf("list the official extensions for Talos %s: %w", req.Talos, err)
	}
	r := newResolver(req, from, official)
	if err := r.askFactory(ctx, parsed); err != nil {
		return Lock{}, nil, err
	}
	if err := r.pinImager(ctx); err != nil {
		return Lock{}, nil, err
	}
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(parsed)) {
		e, bad, err := r.resolveOne(ctx, name, parsed[name])
		if err != nil {
			return Lock{}, nil, err
		}
		problems = append(problems, bad...)
		r.lock.Schematics[name] = e
	}
	if err := errors.Join(problems...); err != nil {
		return Lock{}, nil, fault.As(fault.Config, err)
	}
	if req.Old != nil {
		r.lock.keepBuilt(*req.Old)
		r.lock.keepSigners(*req.Old)
	}
	r.lock.Checksum = r.lock.checksum()
	r.compareWithFactory(index(official))
	r.warnOfIssue()
	r.compareWithList(index(official))
	return r.lock, r.warnings, nil
}

// resolver makes one lock.
type resolver struct {
	req       Request
	from      Sources
	lock      Lock
	known     map[string]OfficialExtension // official extensions by name, with the digests to lock
	served    served
	described map[string]ExtensionImage // by repository@digest
	warnings  warningList
}

func newResolver(req Request, from Sources, official []OfficialExtension) *resolver {
	r := &resolver{
		req: req, from: from, known: index(official), described: map[string]ExtensionImage{},
		lock: Lock{
			Version: lockVersion, Talos: req.Talos, Arch: req.Arch, Platform: req.Platform, SecureBoot: req.SecureBoot,
			Schematics: make(map[string]Locked, len(req.Files)),
		},
	}
	pin(r.known, req)
	if req.Old == nil || req.Old.Arch != req.Arch {
		return r
	}
	for _, e := range req.Old.Schematics {
		for _, x := range e.Extensions {
			r.described[x.Ref+"@"+x.Digest] = ExtensionImage{Architectures: []string{req.Arch}, Name: x.Name, Version: x.Version}
		}
	}
	return r
}

// pinImager pins what the imager's builds are made with. While the Talos version is the same, only Update follows a tag.
func (r *resolver) pinImager(ctx context.Context) error {
	if !slices.ContainsFunc(slices.Collect(maps.Values(r.req.Files)), func(f File) bool { return f.Imager }) {
		return nil
	}
	var old Imager
	if o := r.req.Old; o != nil && o.Talos == r.req.Talos {
		old = o.Imager
	}
	var errImage, errBase error
	r.lock.Imager.Image, errImage = r.pinTag(ctx, r.req.Imager.Image, old.Image)
	r.lock.Imager.Base, errBase = r.pinTag(ctx, r.req.Imager.Base, old.Base)
	return errors.Join(errImage, errBase)
}

// pinTag returns a repository with a digest: the locked one, or the one that the tag for the Talos version names now.
func (r *resolver) pinTag(ctx context.Context, repository, locked string) (string, error) {
	if repository == "" {
		return "", nil
	}
	tagged := repository + ":" + r.req.Talos
	r.req.note("the tag %s", tagged)
	now, found, err := r.from.Images.Digest(ctx, tagged)
	if err != nil {
		return "", fmt.Errorf("look up %s: %w", tagged, err)
	}
	digest, isLocked := strings.CutPrefix(locked, repository+"@")
	if isLocked && now != digest {
		r.warnings.add(Warning{
			Kind: TagMoved, Subject: tagged, Locked: digest, Found: now,
			Text: fmt.Sprintf("%s names %s now, locked is %s", tagged, words.OrNone(now), digest),
			Hint: "Talos publishes each version once: find out who has changed the tag. `recast lock --update` follows the tag, for images that are not built yet",
		})
	}
	switch {
	case isLocked && !r.req.Update:
		return locked, nil
	case !found:
		return "", fault.WithHint(fault.BuildFailed.Configf("there is no %s", tagged),
			"Talos publishes one with each version: see images.imager.image, images.extensions and talos.version")
	}
	return repository + "@" + now, nil
}

// resolveOne resolves one schematic. problems are the errors in the files.
func (r *resolver) resolveOne(ctx context.Context, name string, s Schematic) (e Locked, problems []error, err error) {
	f := r.req.Files[name]
	problems = s.checkKernelArgs()
	extensions, bad, err := r.extensions(ctx, s, f)
	if err != nil {
		return Locked{}, nil, err
	}
	problems = append(bad, problems...)
	overlay, bad := r.overlay(s)
	if problems = append(problems, bad...); len(problems) > 0 {
		return Locked{}, problems, nil
	}
	e = Locked{File: f.Path, Extensions: extensions, Overlay: overlay, Rebuild: r.rebuild(name)}
	e.LockHash = lockHashOf(e)
	locked, err := s.withLock(e.LockHash)
	if err != nil {
		return Locked{}, []error{fault.Configf("%s: %w", s.place.file, err)}, nil
	}
	e.Schematic, e.SchematicID = locked.Canonical(), locked.ID()
	e.BuildID = buildIDOf(r.lock, e)
	e.ISO.Name = isoNameOf(r.lock, e)
	return e, nil, nil
}

// rebuild returns the rebuild count to lock. It never decreases while the schematic is configured: a factory still
// serves what it built under an abandoned name.
func (r *resolver) rebuild(name string) int {
	count := 0
	if r.req.Old != nil {
		count = r.req.Old.Schematics[name].Rebuild
	}
	if r.req.Files[name].Rebuild {
		count++
	}
	return count
}

func parseAll(files map[string]File) (map[string]Schematic, error) {
	parsed := make(map[string]Schematic, len(files))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(files)) {
		s, err := Parse(files[name].Path, files[name].Data)
		if err != nil {
			errs = append(errs, err)
		}
		parsed[name] = s
	}
	if len(files) == 0 {
		errs = append(errs, errors.New("there is no schematic to lock"))
	}
	return parsed, fault.As(fault.Config, errors.Join(errs...))
}

func (s Schematic) checkKernelArgs() []error {
	at := []any{"customization", "extraKernelArgs"}
	args := s.doc.Customization.ExtraKernelArgs
	var errs []error
	for i, arg := range args {
		if strings.HasPrefix(strings.TrimLeft(arg, "- \t"), lockArg) {
			errs = append(errs, s.place.errorf(append(slices.Clone(at), i), "the kernel argument %q is recast's own: remove it", arg))
		}
	}
	size := len(lockArg+lockHashOf(Locked{})) + len(strings.Join(args, " ")) + 1
	if size > maxKernelArgs {
		errs = append(errs, s.place.errorf(at, "extra kernel arguments take %d bytes with recast's own; %d is the most that the kernel reads safely",
			size, maxKernelArgs))
	}
	return errs
}

// WarningKind says what a warning is about.
type WarningKind string

// The kinds of warning.
const (
	FactoryDiffers       WarningKind = "factory-differs"         // the factory has another digest of an extension or overlay
	Republished          WarningKind = "republished"             // an official extension's digest in the registry's list is not the locked one
	TagMoved             WarningKind = "tag-moved"               // the tag is gone or names another digest than given
	Renamed              WarningKind = "renamed"                 // an official extension has a new name
	BrokenVersion        WarningKind = "broken-version"          // the factory marked the locked Talos version as broken, or its makers withdrew it
	SecureBootKeyDiffers WarningKind = "secure-boot-key-differs" // the factory signs with another key than the locked one
	PlainHTTP            WarningKind = "plain-http"              // the factory has no TLS
)

// Warning is a problem with a lock that does not prevent making the lock.
type Warning struct {
	Kind    WarningKind `json:"kind"`
	Subject string      `json:"subject"`          // an extension, "siderolabs/qemu-guest-agent", an overlay, an image, a Talos version
	Locked  string      `json:"locked,omitempty"` // digest that the lock has
	Found   string      `json:"found,omitempty"`  // current digest; "" if there is none
	Text    string      `json:"text"`
	Hint    string      `json:"hint"`
}

func (w Warning) String() string { return w.Text }

// warningList drops duplicates: schematics often share extensions.
type warningList []Warning

func (l *warningList) add(list ...Warning) {
	for _, w := range list {
		if !slices.Contains(*l, w) {
			*l = append(*l, w)
		}
	}
}

// index returns the extensions by name. Of two extensions with one name, factories build the first.
func index(list []OfficialExtension) map[string]OfficialExtension {
	m := make(map[string]OfficialExtension, len(list))
	for _, x := range list {
		if _, ok := m[x.Name]; !ok {
			m[x.Name] = x
		}
	}
	return m
}

// pin replaces the catalog's digests with those of the old lock.
func pin(known map[string]OfficialExtension, req Request) {
	if req.Old == nil || req.Update || req.Old.Talos != req.Talos {
		return
	}
	for _, e := range req.Old.Schematics {
		for _, x := range e.Extensions {
			if k, ok := known[x.Official()]; ok && !x.Explicit {
				k.Version, k.Ref, k.Digest = x.Version, x.Ref, x.Digest
				known[x.Official()] = k
			}
		}
	}
}

// extensions resolves the official extensions of a file, sorted by name, and those that recast.yaml adds.
func (r *resolver) extensions(ctx context.Context, s Schematic, f File) (resolved []Extension, problems []error, err error) {
	resolved, problems, err = r.official(ctx, s, f)
	if err != nil {
		return nil, nil, err
	}
	for _, x := range f.Extensions {
		e, problem, err := r.explicit(ctx, x, f, resolved)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", x.Place, err)
		}
		if problem != nil {
			problems = append(problems, problem)
			continue
		}
		resolved = append(resolved, e)
	}
	return resolved, problems, nil
}

func (r *resolver) official(ctx context.Context, s Schematic, f File) (resolved []Extension, problems []error, err error) {
	resolved = []Extension{}
	seen := map[string]bool{}
	for i, name := range s.Extensions() {
		at := []any{"customization", "systemExtensions", "officialExtensions", i}
		x, ok := r.known[name]
		if !ok {
			x, ok = r.known[renamed(name)]
		}
		switch {
		case !ok:
			problems = append(problems, s.unknownExtension(at, name, r.req.Talos, r.known))
			continue
		case seen[x.Name]:
			problems = append(problems, s.place.errorf(at, "extension %q is listed twice", name))
			continue
		case f.pins(x):
			seen[x.Name] = true
			continue
		case !IsDigest(x.Digest):
			problems = append(problems, s.place.errorf(at, "extension %q has no digest in the list of official ones, but %q", name, x.Digest))
			continue
		}
		seen[x.Name] = true
		image, problem, err := r.describe(ctx, x.Ref, x.Digest)
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("%s: extension %q: %w", s.place.at(at), name, err)
		case problem != nil:
			problems = append(problems, s.place.errorf(at, "extension %q: %w", name, problem))
			continue
		case x.Name != name:
			r.warnings.add(Warning{
				Kind: Renamed, Subject: name, Text: fmt.Sprintf("%s: extension %q is now called %q: nodes list it as %q", s.place.at(at), name, x.Name, image.Name),
				Hint: fmt.Sprintf("the old name works as long as factories know it; to write %q changes the schematic, and so rolls its nodes", x.Name),
			})
		}
		resolved = append(resolved, Extension{Name: image.Name, Version: image.Version, Ref: x.Ref, Digest: x.Digest})
	}
	slices.SortFunc(resolved, func(a, b Extension) int { return strings.Compare(a.Ref, b.Ref) })
	return resolved, problems, nil
}

// pins reports whether recast.yaml itself gives the digest of an official extension.
func (f File) pins(o OfficialExtension) bool {
	return slices.ContainsFunc(f.Extensions, func(x Explicit) bool { return x.Repository == o.Ref && x.Digest != "" })
}

func (s Schematic) unknownExtension(at []any, name, talos string, known map[string]OfficialExtension) error {
	err := s.place.errorf(at, "no official extension %q for Talos %s", name, talos)
	return withSuggestion(err, name, slices.Sorted(maps.Keys(known)), "siderolabs/qemu-guest-agent")
}

// describe reads an extension image's description of itself, once. An image that is unusable for the architecture is
// returned as a problem.
func (r *resolver) describe(ctx context.Context, repository, digest string) (image ExtensionImage, problem, err error) {
	ref := repository + "@" + digest
	image, ok := r.described[ref]
	if !ok {
		r.req.note("extension %s", ref)
		if image, err = r.from.Images.Describe(ctx, ref, r.req.Arch); fault.KindOf(err) == fault.Config {
			return ExtensionImage{}, err, nil
		}
		if err != nil {
			return ExtensionImage{}, nil, fmt.Errorf("read the extension: %w", err)
		}
		r.described[ref] = image
	}
	if !slices.Contains(image.Architectures, r.req.Arch) {
		return ExtensionImage{}, fault.ExtensionUnknown.Configf("%s does not exist for %s, only for %s", ref, r.req.Arch, strings.Join(image.Architectures, ", ")), nil
	}
	if image.Name == "" || image.Version == "" {
		return ExtensionImage{}, fault.ExtensionUnknown.Configf("%s names itself %q, version %q, in manifest.yaml: it needs both", ref, image.Name, image.Version), nil
	}
	return image, nil, nil
}

// overlay resolves the overlay of a schematic; nil if it has none. Factories find overlays by name and ignore the
// image: see siderolabs/image-factory, internal/profile/profile.go, EnhanceFromSchematic.
func (r *resolver) overlay(s Schematic) (*Overlay, []error) {
	wanted := s.doc.Overlay
	if wanted.Name == "" {
		return nil, nil
	}
	at := []any{"overlay", "name"}
	found, ok := overlayNamed(r.served.overlays, wanted.Name)
	if !ok {
		err := s.place.errorf(at, "no official overlay %q for Talos %s", wanted.Name, r.req.Talos)
		var names []string
		for _, o := range r.served.overlays {
			names = append(names, o.Name)
		}
		return nil, []error{withSuggestion(err, wanted.Name, names, "rpi_generic")}
	}
	if wanted.Image != "" && wanted.Image != found.Image {
		return nil, []error{s.place.errorf([]any{"overlay", "image"}, "overlay %q is in %q, not in %q", wanted.Name, found.Image, wanted.Image)}
	}
	if old := r.req.Old; old != nil && !r.req.Update && old.Talos == r.req.Talos {
		for _, name := range old.Names() {
			if o := old.Schematics[name].Overlay; o != nil && o.Name == wanted.Name {
				return new(*o), nil
			}
		}
	}
	if !IsDigest(found.Digest) {
		return nil, []error{s.place.errorf(at, "overlay %q has no digest in the factory's list, but %q", wanted.Name, found.Digest)}
	}
	return &Overlay{Name: found.Name, Ref: found.Ref, Digest: found.Digest}, nil
}

func overlayNamed(list []OfficialOverlay, name string) (found OfficialOverlay, ok bool) {
	for _, o := range list {
		if o.Name == name {
			return o, true
		}
	}
	return found, false
}

// renamed returns the current name of an official extension that schematics may still call by an older name. Image
// Factories translate the older name when they build. See ExtensionNameAlias in siderolabs/image-factory,
// internal/profile/profile.go.
func renamed(name string) string {
	return map[string]string{
		"siderolabs/v4l-uvc":                        "siderolabs/v4l-uvc-drivers",
		"siderolabs/usb-modem":                      "siderolabs/usb-modem-drivers",
		"siderolabs/gasket":                         "siderolabs/gasket-driver",
		"siderolabs/talos-vmtoolsd":                 "siderolabs/vmtoolsd-guest-agent",
		"siderolabs/xe-guest-utilities":             "siderolabs/xen-guest-agent",
		"siderolabs/nvidia-container-toolkit":       "siderolabs/nvidia-container-toolkit-lts",
		"siderolabs/nvidia-open-gpu-kernel-modules": "siderolabs/nvidia-open-gpu-kernel-modules-lts",
		"siderolabs/nonfree-kmod-nvidia":            "siderolabs/nonfree-kmod-nvidia-lts",
		"siderolabs/nvidia-fabricmanager":           "siderolabs/nvidia-fabric-manager-lts",
		"siderolabs/i915-ucode":                     "siderolabs/i915",
		"siderolabs/amdgpu-firmware":                "siderolabs/amdgpu",
	}[name]
}

// withSuggestion adds a hint to err: the name that was probably meant, or else an example.
func withSuggestion(err error, unknown string, names []string, example string) error {
	if like := suggest(unknown, names); like != "" {
		return fault.WithHint(err, "did you mean %q?", like)
	}
	return fault.WithHint(err, "the names are those of the Image Factory, such as %q", example)
}

// suggest returns the name that was probably meant: with another owner, or misspelt; "" if none is close.
func suggest(unknown string, names []string) string {
	i := slices.IndexFunc(names, func(name string) bool { return path.Base(name) == path.Base(unknown) })
	if i >= 0 {
		return names[i]
	}
	return words.Closest(unknown, names)
}

// ExtensionImages reads extension images that recast.yaml names itself.
type ExtensionImages interface {
	// Digest returns the digest of the manifest that ref (a tag or a digest) names; the manifest may be an index.
	// found is false only if the registry definitely has no such manifest.
	Digest(ctx context.Context, ref string) (digest string, found bool, err error)
	// Describe reads the description of itself that an image (by digest) has for an architecture. A missing image, or
	// an image that is not an extension, is an error of kind Config.
	Describe(ctx context.Context, ref, arch string) (ExtensionImage, error)
}

// ExtensionImage is an extension image's description of itself, in manifest.yaml.
type ExtensionImage struct {
	Architectures []string // for which the image exists, sorted: "amd64"
	Name, Version string   // "" if the image does not exist for the requested architecture
}

// Explicit is an extension image that recast.yaml names itself.
type Explicit struct {
	Repository string // "ghcr.io/acme/frr"
	Tag        string // "1.7.15"; "" if only a digest is given
	Digest     string // "" if only a tag is given
	Place      string // in recast.yaml, for errors: "recast.yaml:14:9: schematics.bgp.extensions[0]"
}

func (x Explicit) String() string {
	s := x.Repository
	if x.Tag != "" {
		s += ":" + x.Tag
	}
	if x.Digest != "" {
		s += "@" + x.Digest
	}
	return s
}

// explicit resolves an extension that recast.yaml names. It is built in after others.
func (r *resolver) explicit(ctx context.Context, x Explicit, f File, others []Extension) (e Extension, problem, err error) {
	bad := func(format string, args ...any) (Extension, error, error) {
		return Extension{}, fault.As(fault.Config, fmt.Errorf("%s: %w", x.Place, fmt.Errorf(format, args...))), nil
	}
	for _, o := range r.known {
		if o.Ref == x.Repository && x.Digest == "" {
			_, problem, _ := bad("%s is the official extension %q", x.Repository, o.Name)
			return Extension{}, fault.WithHint(problem, "name it in %s instead: recast.lock pins its digest, too. Or give the digest that is to be built in: %s@sha256:…", f.Path, x.Repository), nil
		}
	}
	digest, found, err := r.digestOf(ctx, x)
	if err != nil {
		return Extension{}, nil, err
	}
	if !found {
		return bad("the registry has no %s", x)
	}
	image, problem, err := r.describe(ctx, x.Repository, digest)
	if err != nil {
		return Extension{}, nil, err
	}
	if problem != nil {
		return bad("%w", problem)
	}
	// Factory and imager add entries with these names to an image themselves.
	if image.Name == "schematic" || image.Name == "modules.dep" || image.Name == "embedded-config" {
		return bad("%s calls itself %q, which is one of Talos' own entries", x, image.Name)
	}
	if i := slices.IndexFunc(others, func(o Extension) bool { return o.Name == image.Name }); i >= 0 {
		return bad("%s calls itself %q, as %s does: a node can't tell them apart", x, image.Name, others[i].Ref)
	}
	return Extension{Name: image.Name, Version: image.Version, Ref: x.Repository, Digest: digest, Explicit: true, Tag: x.Tag}, nil, nil
}

// digestOf returns the digest to lock: the given one, the one locked for the tag, or the one that the tag names now.
func (r *resolver) digestOf(ctx context.Context, x Explicit) (digest string, found bool, err error) {
	if x.Digest == "" {
		if locked, ok := r.lockedDigest(x); ok && !r.req.Update {
			return locked, true, nil
		}
	}
	if x.Tag == "" {
		return x.Digest, true, nil
	}
	tagged := x.Repository + ":" + x.Tag
	r.req.note("the tag %s", tagged)
	now, found, err := r.from.Images.Digest(ctx, tagged)
	if err != nil {
		return "", false, fmt.Errorf("look up %s: %w", tagged, err)
	}
	if x.Digest == "" {
		return now, found, nil
	}
	if now != x.Digest {
		r.warnings.add(tagMoved(x, tagged, now))
	}
	return x.Digest, true, nil
}

// lockedDigest returns the current lock's digest for a tag.
func (r *resolver) lockedDigest(x Explicit) (string, bool) {
	if r.req.Old == nil {
		return "", false
	}
	for _, name := range r.req.Old.Names() {
		for _, o := range r.req.Old.Schematics[name].Extensions {
			if o.Explicit && o.Ref == x.Repository && o.Tag == x.Tag {
				return o.Digest, true
			}
		}
	}
	return "", false
}

func tagMoved(x Explicit, tagged, now string) Warning {
	w := Warning{Kind: TagMoved, Subject: tagged, Locked: x.Digest, Found: now}
	if now == "" {
		w.Text = fmt.Sprintf("%s: %s: the registry no longer has this tag; the build uses %s, as given", x.Place, tagged, x.Digest)
		w.Hint = "registries delete what no tag names: keep a copy, or use an existing tag"
		return w
	}
	w.Text = fmt.Sprintf("%s: %s now names %s; the build uses %s, as given", x.Place, tagged, now, x.Digest)
	w.Hint = "someone pushed other content under the same tag. To take it, write its digest; to keep the given one, remove the tag"
	return w
}

// Factory knows what an Image Factory would build; its lists may lag behind the Catalog.
type Factory interface {
	// Extensions lists the official extensions that the factory has for a Talos version.
	Extensions(ctx context.Context, talos string) ([]OfficialExtension, error)
	// Overlays lists the official overlays that the factory has for a Talos version.
	Overlays(ctx context.Context, talos string) ([]OfficialOverlay, error)
	// Broken lists the Talos versions that the factory has marked as broken: it
	// builds nothing for them, and has no lists for them.
	Broken(ctx context.Context) ([]string, error)
	// SecureBootCertificate returns the PEM certificate with which the factory signs images for Secure Boot. A
	// factory that signs none is an error of kind Config.
	SecureBootCertificate(ctx context.Context) ([]byte, error)
}

// OfficialOverlay is an overlay in a factory's list.
type OfficialOverlay struct {
	Name   string // "rpi_generic"
	Image  string // in schematics: "siderolabs/sbc-raspberrypi"
	Ref    string // repository: "ghcr.io/siderolabs/sbc-raspberrypi"
	Digest string // of the image index
}

// served is what the factory says it would build.
type served struct {
	asked      bool // the list was read: the factory has something to build, and builds the Talos version
	extensions []OfficialExtension
	overlays   []OfficialOverlay
}

// askFactory asks the factory for everything that the lock depends on.
func (r *resolver) askFactory(ctx context.Context, parsed map[string]Schematic) error {
	builds, overlays := false, false
	for name, s := range parsed {
		builds = builds || !r.req.Files[name].Imager
		overlays = overlays || s.doc.Overlay.Name != ""
	}
	switch {
	case r.from.Factory != nil:
	case r.req.SecureBoot:
		return fault.Configf("images for Secure Boot are signed by an Image Factory, and no factory is used here")
	case overlays:
		return fault.Configf("overlays are listed by an Image Factory, and there is none")
	default:
		return nil
	}
	if builds {
		if err := r.askExtensions(ctx); err != nil {
			return err
		}
	}
	if r.req.SecureBoot {
		if err := r.askSecureBoot(ctx); err != nil {
			return err
		}
	}
	if !overlays {
		return nil
	}
	r.req.note("the Image Factory's list of overlays for Talos %s", r.req.Talos)
	var err error
	if r.served.overlays, err = r.from.Factory.Overlays(ctx, r.req.Talos); err != nil {
		return fmt.Errorf("list the factory's overlays for Talos %s: %w", r.req.Talos, err)
	}
	return nil
}

// askExtensions reads the factory's list of extensions. The factory has no list for a version that is marked as
// broken: siderolabs/image-factory, internal/artifacts, validateTalosVersion.
func (r *resolver) askExtensions(ctx context.Context) error {
	talos := r.req.Talos
	r.req.note("the Image Factory's list of extensions for Talos %s", talos)
	broken, err := r.from.Factory.Broken(ctx)
	if err != nil {
		return fmt.Errorf("ask the factory which Talos versions are marked broken: %w", err)
	}
	list, err := r.from.Factory.Extensions(ctx, talos)
	switch {
	case err == nil:
		r.served.asked, r.served.extensions = true, list
		return nil
	case !slices.Contains(broken, talos):
		return fmt.Errorf("list the factory's extensions for Talos %s: %w", talos, err)
	case r.req.Old == nil || r.req.Old.Talos != talos:
		err := fault.ExtensionUnknown.Configf("Talos %s is marked broken by the Image Factory, which does not build it", talos)
		if r.req.TalosPlace != "" {
			err = fault.Configf("%s: %w", r.req.TalosPlace, err)
		}
		return fault.WithHint(err, "choose another version: the release notes of Talos say which one fixes it")
	}
	r.lock.Broken = true
	r.warnings.add(Warning{
		Kind: BrokenVersion, Subject: talos,
		Text: fmt.Sprintf("Talos %s, which is locked, was marked broken by the Image Factory: it no longer builds it", talos),
		Hint: "what was built and published stays usable; choose another version: the release notes of Talos say which one fixes it",
	})
	return nil
}

// warnOfIssue warns of a release that has a known issue, but that no factory marks as broken. Only a node's plan can
// say whether a defect of the release concerns the node.
func (r *resolver) warnOfIssue() {
	if issue, known := knownissue.Of(r.req.Talos); known && !issue.Scheduler {
		r.warnings.add(Warning{Kind: BrokenVersion, Subject: r.req.Talos, Text: issue.String(), Hint: issue.Hint()})
	}
}

// askSecureBoot pins the certificate with which the factory signs.
func (r *resolver) askSecureBoot(ctx context.Context) error {
	r.req.note("the Image Factory's certificate for Secure Boot")
	text, err := r.from.Factory.SecureBootCertificate(ctx)
	if err != nil {
		return fmt.Errorf("ask for the factory's Secure Boot certificate: %w", err)
	}
	key, err := secureBootKey(text)
	if err != nil {
		return err
	}
	r.lock.SecureBootKey = key
	if old := r.req.Old; old != nil && old.SecureBoot && old.SecureBootKey != key && !r.req.Update {
		r.lock.SecureBootKey = old.SecureBootKey
		r.warnings.add(Warning{
			Kind: SecureBootKeyDiffers, Subject: "Secure Boot", Locked: old.SecureBootKey, Found: key,
			Text: fmt.Sprintf("the factory signs for Secure Boot with certificate %s now, but the lock has %s", key, old.SecureBootKey),
			Hint: enrolHint,
		})
	}
	return nil
}

const enrolHint = "machines that have enrolled only the locked certificate do not boot what the other one signed: make sure that they know the new one, then run `recast lock --update`"

// checkSecureBoot compares the factory's certificate with the locked one.
func (l Lock) checkSecureBoot(certificate []byte) error {
	key, err := secureBootKey(certificate)
	if err != nil || key == l.SecureBootKey {
		return err
	}
	return fault.WithHint(fault.ImageDiffers.Refusedf("the factory signs for Secure Boot with certificate %s, but the lock has %s", key, l.SecureBootKey),
		enrolHint)
}

// secureBootKey returns the SHA-256 of a PEM certificate's DER form.
func secureBootKey(certificate []byte) (string, error) {
	block, _ := pem.Decode(certificate)
	if block == nil || block.Type != "CERTIFICATE" {
		return "", fmt.Errorf("the factory's Secure Boot certificate is not a PEM certificate")
	}
	return sum(string(block.Bytes)), nil
}

// compareWithList warns of official extensions that were republished since they were locked. It does not warn if the
// factory already builds the republished ones: another warning says so.
func (r *resolver) compareWithList(official map[string]OfficialExtension) {
	for _, name := range r.lock.Names() {
		for _, x := range r.lock.Schematics[name].Extensions {
			now, listed := official[x.Official()]
			said := func(w Warning) bool { return w.Subject == x.Official() && w.Found == now.Digest }
			if x.Explicit || !listed || now.Digest == x.Digest || slices.ContainsFunc(r.warnings, said) {
				continue
			}
			r.warnings.add(Warning{
				Kind: Republished, Subject: x.Official(), Locked: x.Digest, Found: now.Digest,
				Text: fmt.Sprintf("extension %s %s was republished: the registry lists %s, locked is %s", x.Official(), now.Version, now.Digest, x.Digest),
				Hint: "`recast lock --update` takes it; until then the locked one is built in",
			})
		}
	}
}

// compareWithFactory warns of what the factory would build differently.
func (r *resolver) compareWithFactory(official map[string]OfficialExtension) {
	for _, name := range r.lock.Names() {
		if !r.served.asked || r.req.Files[name].Imager {
			continue
		}
		e := r.lock.Schematics[name]
		r.warnings.add(e.outdatedWithHints(r.served.extensions, official)...)
		r.warnings.add(e.OutdatedOverlay(r.served.overlays)...)
	}
}
