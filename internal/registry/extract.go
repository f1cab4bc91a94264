package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// Extract streams the files of an image as images.Puller has it. Close also ends
// a stream that was not read to its end.
func (c *Client) Extract(ctx context.Context, ref, arch string) (io.ReadCloser, error) {
	r, err := name.ParseReference(ref)
	if err != nil {
		return nil, fault.Configf("image reference %q: %w", ref, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	img, err := c.image(ctx, r, arch)
	if err != nil {
		cancel()
		return nil, err
	}
	return &extraction{ctx: ctx, archive: flatten(img), cancel: cancel, ref: r}, nil
}

// image returns the image for an architecture; so far only manifests are fetched.
func (a access) image(ctx context.Context, ref name.Reference, arch string) (v1.Image, error) {
	ref = a.relocate(ref)
	desc, err := a.get(ctx, ref)
	if err != nil {
		return nil, err
	}
	if desc.MediaType.IsIndex() {
		return a.childOf(desc, ref, arch)
	}
	img, err := desc.Image()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ref, foreign.Error(err))
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ref, explain(err, ref.Context()))
	}
	// A handmade image need not name an architecture.
	if config.Architecture != "" && config.Architecture != arch {
		return nil, otherArch(ref, arch, []string{config.Architecture})
	}
	return img, nil
}

func (a access) childOf(desc *remote.Descriptor, ref name.Reference, arch string) (v1.Image, error) {
	index, err := desc.ImageIndex()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ref, foreign.Error(err))
	}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ref, foreign.Error(err))
	}
	digest, err := digestFor(m, ref, arch)
	if err != nil {
		return nil, err
	}
	img, err := index.Image(digest)
	if notFound(err) {
		return nil, missingError(ref.Context().Digest(digest.String()), err)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s for %s: %w", ref, arch, explain(err, ref.Context()))
	}
	return img, nil
}

// digestFor returns the digest of the only image for an architecture. Of two, for
// example for variants of it, a node may choose another than we do.
func digestFor(m *v1.IndexManifest, ref name.Reference, arch string) (digest v1.Hash, err error) {
	for _, d := range m.Manifests {
		switch {
		case d.Platform == nil || !d.Platform.Satisfies(v1.Platform{OS: "linux", Architecture: arch}) || d.Digest == digest:
		case digest != v1.Hash{}:
			return digest, fault.WithHint(fault.ExtensionUnknown.Refusedf("%s has more than one image for %s: %s and %s", ref, arch, digest, d.Digest),
				"a node might run either: build and push one image for each architecture")
		default:
			digest = d.Digest
		}
	}
	if (digest == v1.Hash{}) {
		return digest, otherArch(ref, arch, architectures(m))
	}
	return digest, nil
}

// architectures returns an index's architectures, sorted.
func architectures(m *v1.IndexManifest) []string {
	var there []string
	for _, d := range m.Manifests {
		// Attestations of docker buildx have platform unknown/unknown.
		if d.Platform != nil && d.Platform.OS == "linux" {
			there = append(there, d.Platform.Architecture)
		}
	}
	slices.Sort(there)
	return slices.Compact(there)
}

func otherArch(ref name.Reference, arch string, there []string) error {
	if len(there) == 0 {
		there = []string{"none"}
	}
	return fault.WithHint(fault.ExtensionUnknown.Errorf("%s has no image for %s: there is %s", ref, arch, strings.Join(there, ", ")),
		"build and push the image for linux/%s too, under one index", arch)
}

func missingError(ref name.Reference, err error) error {
	return fault.WithHint(fault.ExtensionUnknown.Errorf("registry %s has no %s: %w", ref.Context().RegistryStr(), ref, foreign.Error(err)),
		"it was deleted or never pushed, or these credentials may not see it: the registry's next clean-up deletes what only a digest names")
}

// extraction is a tar stream that is produced while it is read.
type extraction struct {
	ctx     context.Context // of the requests for its layers
	cancel  context.CancelFunc
	archive io.ReadCloser
	ref     name.Reference
}

func (e *extraction) Read(p []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, fmt.Errorf("read %s: %w", e.ref, foreign.Error(err))
	}
	n, err := e.archive.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("read %s: %w", e.ref, explain(err, e.ref.Context()))
	}
	return n, err
}

func (e *extraction) Close() error {
	e.cancel()
	// The producer has ended when the stream has. Its cancellation is not an error
	// of Close.
	_, _ = io.Copy(io.Discard, e.archive)
	return e.archive.Close()
}
