package factoryapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/recast-sh/recast/internal/sim/artefact"
)

// installerImages is the repository prefix of the factory's installers, before image name, schematic and
// tag.
const installerImages = "factory"

// manifest answers a manifest request for an installer. A tag in the registry with the
// factory's signature is served unchanged for ever; a missing version is built for both
// architectures; everything else is proxied to the registry.
func (f *Factory) manifest(w http.ResponseWriter, r *http.Request) error {
	d, err := f.design(r.PathValue("schematic"))
	if err != nil {
		return err
	}
	image := r.PathValue("image")
	o, err := parseInstaller(image)
	if err != nil {
		return err
	}
	reference := r.PathValue("reference")
	if reference == "latest" {
		if reference, err = f.latest(); err != nil {
			return err
		}
	}
	if strings.HasPrefix(reference, "sha256:") || !strings.HasPrefix(reference, "v") {
		return f.proxy(w, r, "manifests", reference)
	}
	o.design, o.version = d, reference
	repo := strings.Join([]string{installerImages, image, d.id}, "/")
	digest, err, _ := f.builds.Do("installer/"+repo+":"+reference, func() (any, error) {
		return f.installer(r.Context(), repo, o)
	})
	if err != nil {
		return err
	}
	return f.proxy(w, r, "manifests", digest.(string))
}

func (f *Factory) blob(w http.ResponseWriter, r *http.Request) error {
	if _, err := f.design(r.PathValue("schematic")); err != nil {
		return err
	}
	if _, err := parseInstaller(r.PathValue("image")); err != nil {
		return err
	}
	return f.proxy(w, r, "blobs", r.PathValue("digest"))
}

// parseInstaller parses [<platform>-]installer[-secureboot]; the default platform is metal.
func parseInstaller(image string) (order, error) {
	text, secureBoot := strings.CutSuffix(image, "-secureboot")
	if text == "installer" {
		return order{kind: installer, platform: "metal", secureBoot: secureBoot}, nil
	}
	platform, ok := strings.CutSuffix(text, "-installer")
	if !ok {
		return order{}, invalidf("invalid image: %s", image)
	}
	return order{kind: installer, platform: platform, secureBoot: secureBoot}, nil
}

// installer returns the digest of an installer in the registry, and builds a missing one.
func (f *Factory) installer(ctx context.Context, repo string, o order) (string, error) {
	ctx, done := f.outlive(ctx)
	defer done()
	tag := f.registry.registry.Repo(repo).Tag(o.version)
	desc, err := remote.Head(tag, f.registry.options(ctx)...)
	if err == nil {
		// If its signature can't be verified, for whatever reason, it is rebuilt.
		if signed, err := f.signed(ctx, tag.Context().Digest(desc.Digest.String())); err == nil && signed {
			return desc.Digest.String(), nil
		}
		return f.buildInstaller(ctx, repo, o)
	}
	if e, ok := errors.AsType[*transport.Error](err); !ok || e.StatusCode != http.StatusNotFound {
		return "", fmt.Errorf("look for %s: %w", tag, err)
	}
	if _, err := versionTag(o.version); err != nil {
		return "", err
	}
	return f.buildInstaller(ctx, repo, o)
}

func (f *Factory) buildInstaller(ctx context.Context, repo string, o order) (string, error) {
	var images []artefact.Image
	var key string
	for _, o.arch = range []string{"amd64", "arm64"} {
		refs, err := f.resolve(ctx, o)
		if err != nil {
			return "", fmt.Errorf("error enhancing profile from schematic: %w", err)
		}
		img, err := f.image(ctx, o, refs)
		if err != nil {
			return "", err
		}
		img.Signed = f.opts.SignsInstallers
		images, key = append(images, img), cacheKey(o.platform+"-installer", o, refs)
	}
	idx, err := artefact.Installer(f.made(key), images...)
	if err != nil {
		return "", err
	}
	if err := f.build(ctx, fmt.Sprintf("installer %s %s %s", o.design.id, o.version, o.platform), installerTakes); err != nil {
		return "", err
	}
	if err := f.registry.push(ctx, repo, o.version, idx); err != nil {
		return "", err
	}
	digest, err := idx.Digest()
	if err != nil {
		return "", err
	}
	return digest.String(), f.sign(ctx, f.registry.registry.Repo(repo).Digest(digest.String()))
}

// made is the build time of the installer with that key: imager writes the time into the
// image (outInstaller in siderolabs/talos pkg/imager/out.go), and afterwards the cached
// image is used under any name.
func (f *Factory) made(key string) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.installers[key]; !ok {
		f.installers[key] = time.Now()
	}
	return f.installers[key]
}

// proxy fetches a manifest or blob of an installer from the registry.
func (f *Factory) proxy(w http.ResponseWriter, r *http.Request, what, reference string) error {
	u := url.URL{
		Scheme: f.registry.registry.Scheme(), Host: f.registry.registry.RegistryStr(),
		Path: "/" + strings.Join([]string{"v2", installerImages, r.PathValue("image"), r.PathValue("schematic"), what, reference}, "/"),
	}
	req, err := http.NewRequestWithContext(r.Context(), r.Method, u.String(), nil)
	if err != nil {
		return err
	}
	req.Header["Accept"] = r.Header["Accept"]
	resp, err := f.opts.Transport.RoundTrip(req)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return nil
	}
	defer resp.Body.Close()
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	_, err = io.Copy(w, resp.Body)
	return err
}
