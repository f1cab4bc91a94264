package schematics

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
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

// overlay resolves the overlay of a schematic; nil if it has none. Factories find
// overlays by name and ignore the image: see siderolabs/image-factory,
// internal/profile/profile.go, EnhanceFromSchematic.
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
		if like := suggest(wanted.Name, names); like != "" {
			return nil, []error{fault.WithHint(err, "did you mean %q?", like)}
		}
		return nil, []error{fault.WithHint(err, "the names are those of the Image Factory, such as \"rpi_generic\"")}
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

func overlayNamed(list []OfficialOverlay, name string) (OfficialOverlay, bool) {
	i := slices.IndexFunc(list, func(o OfficialOverlay) bool { return o.Name == name })
	if i < 0 {
		return OfficialOverlay{}, false
	}
	return list[i], true
}

// renamed returns the current name of an official extension that schematics may
// still call by an older one. Image Factories translate it when they build. See
// ExtensionNameAlias in siderolabs/image-factory, internal/profile/profile.go.
func renamed(name string) string {
	switch name {
	case "siderolabs/v4l-uvc":
		return "siderolabs/v4l-uvc-drivers"
	case "siderolabs/usb-modem":
		return "siderolabs/usb-modem-drivers"
	case "siderolabs/gasket":
		return "siderolabs/gasket-driver"
	case "siderolabs/talos-vmtoolsd":
		return "siderolabs/vmtoolsd-guest-agent"
	case "siderolabs/xe-guest-utilities":
		return "siderolabs/xen-guest-agent"
	case "siderolabs/nvidia-container-toolkit":
		return "siderolabs/nvidia-container-toolkit-lts"
	case "siderolabs/nvidia-open-gpu-kernel-modules":
		return "siderolabs/nvidia-open-gpu-kernel-modules-lts"
	case "siderolabs/nonfree-kmod-nvidia":
		return "siderolabs/nonfree-kmod-nvidia-lts"
	case "siderolabs/nvidia-fabricmanager":
		return "siderolabs/nvidia-fabric-manager-lts"
	case "siderolabs/i915-ucode":
		return "siderolabs/i915"
	case "siderolabs/amdgpu-firmware":
		return "siderolabs/amdgpu"
	}
	return ""
}

// suggest returns the name that was probably meant: with another owner, or misspelt; "" if none is close.
func suggest(unknown string, names []string) string {
	i := slices.IndexFunc(names, func(name string) bool { return path.Base(name) == path.Base(unknown) })
	if i >= 0 {
		return names[i]
	}
	return words.Closest(unknown, names)
}
