package schematics

import (
	"context"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/internal/fault"
)

// ExtensionImages reads extension images that recast.yaml names itself.
type ExtensionImages interface {
	// Digest returns the digest of what ref (a tag or a digest) names, which may be
	// an index. found is false only if the registry definitely has none.
	Digest(ctx context.Context, ref string) (digest string, found bool, err error)
	// Describe reads an image's description of itself, by digest, for an
	// architecture. A missing image, or one that is not an extension, is an error of
	// kind Config.
	Describe(ctx context.Context, ref, arch string) (ExtensionImage, error)
}

// ExtensionImage is an extension image's description of itself, in manifest.yaml.
type ExtensionImage struct {
	Architectures []string // for which the image exists, sorted: "amd64"
	Name, Version string   // "" if the requested architecture is not among them
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

// explicit resolves an extension to be built in after others.
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

// digestOf is the digest to lock: the given one, the one locked for the tag, or what
// the tag names now.
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

// lockedDigest is the current lock's digest for a tag.
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
