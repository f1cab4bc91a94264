package schematics

import (
	"slices"

	"github.com/recast-sh/recast/internal/fault"
)

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
