package schematics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// maxKernelArgs bounds the extra kernel arguments in bytes: the kernel silently
// truncates its command line at 2048 (COMMAND_LINE_SIZE), Talos' own part takes up
// to 260, and platforms and installers add some.
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
	Images  ExtensionImages // nil only if no schematic has an extension
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
