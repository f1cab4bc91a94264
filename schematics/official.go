package schematics

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

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

// extensions resolves the official extensions of a file, sorted by name, and those
// that recast.yaml adds.
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
	if like := suggest(name, slices.Sorted(maps.Keys(known))); like != "" {
		return fault.WithHint(err, "did you mean %q?", like)
	}
	return fault.WithHint(err, "the names are those of the Image Factory, such as \"siderolabs/qemu-guest-agent\"")
}

// describe reads an extension image's description of itself once. An image that is
// unusable for the architecture is a problem.
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
