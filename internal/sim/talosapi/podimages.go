package talosapi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// containerSize is the size of images other than installers.
const containerSize = 28 << 20

// publicImage finds an image in the public registries that the lab does not serve; public
// says whether it belongs to one of these.
func (m *machine) publicImage(ref string) (c cachedImage, public bool, err error) {
	if m.fw.o.PublicImage == nil {
		return c, false, nil
	}
	c.digest, err = m.fw.o.PublicImage(ref)
	if errors.Is(err, errors.ErrUnsupported) {
		return c, false, nil
	}
	if err != nil {
		return c, true, fmt.Errorf("%s: %w", ref, err)
	}
	c.size, c.uki, c.refs = containerSize, strings.TrimPrefix(c.digest, "sha256:"), []string{ref}
	return c, true, nil
}

// pullContainer pulls a container's image, retrying as Talos does. With atOnce it takes no
// time unless the image is broken.
func (b *boot) pullContainer(ctx context.Context, name imageName, retries int, atOnce bool) (imageName, error) {
	if err := b.pullAtOnce(ctx, name, atOnce); !errors.Is(err, errors.ErrUnsupported) {
		return name, err
	}
	return b.pull(ctx, name, retries, func(cachedImage, float64) {})
}

// pullForPod is one attempt of the kubelet.
func (b *boot) pullForPod(ctx context.Context, name imageName, atOnce bool) error {
	if err := b.pullAtOnce(ctx, name, atOnce); !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	given := name.ref
	normal, err := normalRef(given)
	if err != nil {
		return fmt.Errorf("couldn't parse image name %q: invalid reference format", given)
	}
	name.ref = normal
	if _, ok := b.m.cached(name); ok {
		return nil
	}
	c, err := b.m.fetch(ctx, normal, given, b.med.image.Arch)
	if err != nil {
		return fmt.Errorf("rpc error: code = %s desc = failed to pull and unpack image %q: failed to resolve reference %q: %w", codeOf(err), normal, normal, err)
	}
	return b.receive(ctx, name, c, func(cachedImage, float64) {})
}

func codeOf(err error) string {
	if errors.Is(err, ErrNoImage) {
		return "NotFound"
	}
	return "Unknown"
}

// pullAtOnce pulls the image without delay. Without atOnce, or if the image is broken, it
// returns errors.ErrUnsupported.
func (b *boot) pullAtOnce(ctx context.Context, name imageName, atOnce bool) error {
	if b.m.fw.o.PublicImage == nil {
		return nil // these images are not checked
	}
	what := b.m.fw.defects.ofRef(name.ref, b.m.has())
	if !atOnce || what == Unpullable || what == Unauthorized || what == Endless {
		return errors.ErrUnsupported
	}
	normal, err := normalRef(name.ref)
	if err != nil {
		return errors.ErrUnsupported
	}
	name.ref = normal
	if _, ok := b.m.cached(name); ok {
		return nil
	}
	c, public, err := b.m.publicImage(normal)
	if err != nil || !public || ctx.Err() != nil {
		return errors.ErrUnsupported
	}
	c.pulled = time.Now()
	b.m.store(name, c)
	return nil
}
