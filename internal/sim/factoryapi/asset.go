package factoryapi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// kind is the kind of an image.
type kind int

const (
	iso kind = iota
	uki
	cmdline
	disk
	installer // only through the registry API
)

func (k kind) String() string {
	return [...]string{iso: "iso", uki: "uki", cmdline: "cmdline", disk: "disk", installer: "installer"}[k]
}

// asset answers /image/<schematic>/<version>/<asset>. HEAD builds too; of the content the
// headers have only the length, and Range is ignored.
func (f *Factory) asset(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("asset")
	if strings.HasSuffix(name, ".sha256") || strings.HasSuffix(name, ".sha512") {
		return failf(http.StatusPaymentRequired, "enterprise not enabled: checksum endpoint is not available")
	}
	d, err := f.design(r.PathValue("schematic"))
	if err != nil {
		return err
	}
	version, err := versionTag(r.PathValue("version"))
	if err != nil {
		return err
	}
	o, err := parseAsset(name)
	if err != nil {
		return fmt.Errorf("error parsing profile from path: %w", err)
	}
	o.design, o.version = d, version
	content, err := f.built(r.Context(), name, o)
	if err != nil {
		return err
	}
	filename := name
	if override := r.URL.Query().Get("filename"); override != "" {
		filename = override
	}
	if f.opts.Store != "" && r.Method != http.MethodHead {
		http.Redirect(w, r, f.storeURL(content), http.StatusFound)
		return nil
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	w.Header().Set("Content-Type", contentType(o.kind))
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s"`, filename))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	_, err = w.Write(content)
	return err
}

func contentType(k kind) string {
	switch k {
	case iso:
		return "application/x-iso9660-image"
	case uki:
		return "application/efi"
	default:
		return "application/octet-stream"
	}
}

// parseAsset parses <platform>-<arch>[-secureboot].iso and the like.
func parseAsset(name string) (order, error) {
	if rest, ok := strings.CutPrefix(name, "cmdline-"); ok {
		return parsePlatform(cmdline, rest)
	}
	if rest, ok := strings.CutSuffix(name, ".iso"); ok {
		return parsePlatform(iso, rest)
	}
	if rest, ok := strings.CutSuffix(name, "-uki.efi"); ok {
		return parsePlatform(uki, rest)
	}
	if rest, ok := strings.CutSuffix(name, ".qcow2"); ok {
		return parsePlatform(disk, rest)
	}
	for _, known := range []string{"kernel-", "initramfs-", ".raw", ".qcow2.", ".vhd", ".ova", ".tar"} {
		if strings.Contains(name, known) {
			return order{}, failf(http.StatusNotImplemented, "the lab builds no %s", name)
		}
	}
	return order{}, invalidf("invalid profile path: %q", name)
}

func parsePlatform(k kind, text string) (order, error) {
	text, secureBoot := strings.CutSuffix(text, "-secureboot")
	platform, arch, ok := strings.Cut(text, "-")
	if !ok {
		return order{}, invalidf("invalid platform-arch: %q", text)
	}
	if arch != "amd64" && arch != "arm64" {
		return order{}, invalidf("invalid architecture: %q", arch)
	}
	return order{kind: k, platform: platform, arch: arch, secureBoot: secureBoot}, nil
}

// cacheKey is an asset's key in the cache. It includes the digests of the extensions, so a
// factory that has learned a new digest builds a new ISO for an old schematic.
func cacheKey(name string, o order, refs []extensionRef) string {
	parts := []string{name, o.version, o.design.id}
	for _, ref := range refs {
		parts = append(parts, ref.digest)
	}
	return strings.Join(parts, "/")
}

// built returns an asset from the cache, or builds it.
func (f *Factory) built(ctx context.Context, name string, o order) ([]byte, error) {
	refs, err := f.resolve(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("error enhancing profile from schematic: %w", err)
	}
	key := cacheKey(name, o, refs)
	content, err, _ := f.builds.Do(key, func() (any, error) {
		f.mu.Lock()
		cached, ok := f.assets[key]
		f.mu.Unlock()
		if ok {
			return cached, nil
		}
		return f.buildAsset(ctx, key, o, refs)
	})
	if err != nil {
		return nil, err
	}
	return content.([]byte), nil
}

func (f *Factory) buildAsset(ctx context.Context, key string, o order, refs []extensionRef) ([]byte, error) {
	ctx, done := f.outlive(ctx)
	defer done()
	img, err := f.image(ctx, o, refs)
	if err != nil {
		return nil, err
	}
	var content []byte
	switch o.kind {
	case iso:
		content, err = artefact.ISO(img)
	case uki:
		content, err = artefact.UKI(img)
	case cmdline:
		content = []byte(img.Cmdline)
	case disk:
		content, err = artefact.DiskImage(img, diskForm(o))
	default:
		err = fmt.Errorf("no asset of kind %d", o.kind)
	}
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("%s %s %s %s-%s", o.kind, o.design.id, o.version, o.platform, o.arch)
	if err := f.build(ctx, what, assetTakes); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.assets[key] = content
	return content, nil
}
