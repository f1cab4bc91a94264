package schematics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// maxKernelArgs is how many bytes extra kernel arguments may take: the kernel
// cuts its line off at 2048 (COMMAND_LINE_SIZE) without a word, Talos' own part is
// up to 260, and platforms and installers add some more.
const maxKernelArgs = 1700

// Catalog knows which official extensions were released for a Talos version.
type Catalog interface {
	// Official lists them as the registry has them now. An unknown Talos version
	// is an error of kind Config.
	Official(ctx context.Context, talos string) ([]OfficialExtension, error)
}

// FactoryList knows what an Image Factory would build; it may lag behind the Catalog.
type FactoryList interface {
	// Extensions lists the official extensions that the factory has for a Talos version.
	Extensions(ctx context.Context, talos string) ([]OfficialExtension, error)
}

// OfficialExtension is an extension as a list of official ones has it.
type OfficialExtension struct {
	Name        string // as schematics name it: "siderolabs/qemu-guest-agent"
	Version     string // "11.0.2"
	Ref         string // repository: "ghcr.io/siderolabs/qemu-guest-agent"
	Digest      string // of the image index
	Author      string
	Description string
}

// Request is what to lock.
type Request struct {
	Talos      string
	Arch       string
	Platform   string
	SecureBoot bool
	Files      map[string]File // by the schematics' names in the config
	// Old is the present lock, nil if there is none. What was built of an
	// unchanged build is kept. So are extension digests while the Talos version
	// stays, unless Update asks for what the catalog has now.
	Old    *Lock
	Update bool
}

// File is a schematic file's content. Path is as the config names it.
type File struct {
	Path string
	Data []byte
}

// Resolve makes a lock. Every problem in the files is reported at once, with
// kind Config. factory may be nil where no factory builds.
func Resolve(ctx context.Context, req Request, catalog Catalog, factory FactoryList) (Lock, []Warning, error) {
	parsed, err := parseAll(req.Files)
	if err != nil {
		return Lock{}, nil, err
	}
	official, err := catalog.Official(ctx, req.Talos)
	if err != nil {
		return Lock{}, nil, fmt.Errorf("list the official extensions for Talos %s: %w", req.Talos, err)
	}
	l := Lock{
		Version: lockVersion, Talos: req.Talos, Arch: req.Arch, Platform: req.Platform, SecureBoot: req.SecureBoot,
		Schematics: make(map[string]Locked, len(req.Files)),
	}
	known := index(official)
	pin(known, req)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(parsed)) {
		e, err := resolveOne(l, parsed[name], known)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		e.File = req.Files[name].Path
		l.Schematics[name] = e
	}
	if err := errors.Join(errs...); err != nil {
		return Lock{}, nil, fault.As(fault.Config, err)
	}
	if req.Old != nil {
		l.keepBuilt(*req.Old)
	}
	l.Checksum = l.checksum()
	if factory == nil {
		return l, nil, nil
	}
	served, err := factory.Extensions(ctx, req.Talos)
	if err != nil {
		return Lock{}, nil, fmt.Errorf("list the factory's extensions for Talos %s: %w", req.Talos, err)
	}
	return l, warnings(l, served, index(official)), nil
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

// index finds extensions by name. Of two with one name, factories build the first.
func index(list []OfficialExtension) map[string]OfficialExtension {
	m := make(map[string]OfficialExtension, len(list))
	for _, x := range list {
		if _, ok := m[x.Name]; !ok {
			m[x.Name] = x
		}
	}
	return m
}

// pin puts the digests of the old lock in place of the catalog's.
func pin(known map[string]OfficialExtension, req Request) {
	if req.Old == nil || req.Update || req.Old.Talos != req.Talos {
		return
	}
	for _, e := range req.Old.Schematics {
		for _, x := range e.Extensions {
			if k, ok := known[x.Official()]; ok {
				k.Version, k.Ref, k.Digest = x.Version, x.Ref, x.Digest
				known[x.Official()] = k
			}
		}
	}
}

func resolveOne(l Lock, s Schematic, known map[string]OfficialExtension) (Locked, error) {
	extensions, err := s.resolveExtensions(l.Talos, known)
	if err := errors.Join(err, s.checkKernelArgs()); err != nil {
		return Locked{}, err
	}
	e := Locked{Extensions: extensions, LockHash: lockHashOf(extensions)}
	locked, err := s.withLock(e.LockHash)
	if err != nil {
		return Locked{}, fault.Configf("%s: %w", s.place.file, err)
	}
	e.Schematic, e.SchematicID = locked.Canonical(), locked.ID()
	e.BuildID = buildIDOf(l, e)
	e.ISO.Name = isoNameOf(l, e)
	return e, nil
}

func (s Schematic) resolveExtensions(talos string, known map[string]OfficialExtension) ([]Extension, error) {
	at := func(i int) []any { return []any{"customization", "systemExtensions", "officialExtensions", i} }
	resolved := []Extension{}
	seen := map[string]bool{}
	var errs []error
	for i, name := range s.Extensions() {
		x, ok := known[name]
		if !ok {
			x, ok = known[renamed(name)]
		}
		switch {
		case !ok:
			errs = append(errs, s.unknownExtension(at(i), name, talos, known))
			continue
		case seen[x.Name]:
			errs = append(errs, s.place.errorf(at(i), "extension %q is listed twice", name))
			continue
		case !IsDigest(x.Digest):
			errs = append(errs, s.place.errorf(at(i), "extension %q has no digest in the list of official ones, but %q", name, x.Digest))
			continue
		}
		seen[x.Name] = true
		resolved = append(resolved, Extension{Name: path.Base(x.Name), Version: x.Version, Ref: x.Ref, Digest: x.Digest})
	}
	slices.SortFunc(resolved, func(a, b Extension) int { return strings.Compare(a.Ref, b.Ref) })
	return resolved, errors.Join(errs...)
}

func (s Schematic) unknownExtension(at []any, name, talos string, known map[string]OfficialExtension) error {
	err := s.place.errorf(at, "no official extension %q for Talos %s", name, talos)
	if like := suggest(name, slices.Sorted(maps.Keys(known))); like != "" {
		return fault.WithHint(err, "did you mean %q?", like)
	}
	return fault.WithHint(err, "the names are those of the Image Factory, such as \"siderolabs/qemu-guest-agent\"")
}

func (s Schematic) checkKernelArgs() error {
	at := []any{"customization", "extraKernelArgs"}
	args := s.doc.Customization.ExtraKernelArgs
	var errs []error
	for i, arg := range args {
		if strings.HasPrefix(strings.TrimLeft(arg, "- \t"), lockArg) {
			errs = append(errs, s.place.errorf(append(slices.Clone(at), i), "the kernel argument %q is recast's own: remove it", arg))
		}
	}
	size := len(lockArg+lockHashOf(nil)) + len(strings.Join(args, " ")) + 1
	if size > maxKernelArgs {
		errs = append(errs, s.place.errorf(at, "extra kernel arguments take %d bytes with recast's own; %d is the most that the kernel reads safely",
			size, maxKernelArgs))
	}
	return errors.Join(errs...)
}
