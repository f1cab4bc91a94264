package factoryapi

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"go.yaml.in/yaml/v4"
)

// overlaysImage is the repository of the lists of official overlays, by Talos version.
const overlaysImage = "siderolabs/overlays"

// Overlay is an official overlay in their list.
type Overlay struct {
	Name   string `yaml:"name"`   // "rpi_generic"
	Image  string `yaml:"image"`  // "ghcr.io/siderolabs/sbc-raspberrypi:v0.2.0"
	Digest string `yaml:"digest"` // of the index
}

type overlays struct {
	Overlays []Overlay `yaml:"overlays"`
}

// PublishOverlays pushes the list of overlays as siderolabs/overlays:<Talos version>,
// without the overlays: the lab builds no image with one.
func (c Catalog) PublishOverlays(ctx context.Context, talosVersion string, list []Overlay) error {
	reg, err := newRegistryClient(c.Registry, c.Transport)
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(overlays{list})
	if err != nil {
		return fmt.Errorf("overlays list: %w", err)
	}
	img, err := crane.Image(map[string][]byte{"overlays.yaml": text})
	if err != nil {
		return fmt.Errorf("overlays list: %w", err)
	}
	return reg.push(ctx, overlaysImage, talosVersion, img)
}

// overlayInfo is an overlay in the API's list.
type overlayInfo struct {
	Name   string `json:"name"`
	Image  string `json:"image"`
	Ref    string `json:"ref"`
	Digest string `json:"digest"`
}

func (f *Factory) officialOverlays(w http.ResponseWriter, r *http.Request) error {
	tag, err := versionTag(r.PathValue("version"))
	if err != nil {
		return err
	}
	listed, err := f.overlays(r.Context(), tag)
	if err != nil {
		return err
	}
	list := make([]overlayInfo, 0, len(listed))
	for _, o := range listed {
		image, err := name.NewTag(o.Image)
		if err != nil {
			return fmt.Errorf("failed to parse tagged reference %s: %w", o.Image, err)
		}
		list = append(list, overlayInfo{Name: o.Name, Image: image.RepositoryStr(), Ref: image.String(), Digest: o.Digest})
	}
	return json.NewEncoder(w).Encode(list)
}

// overlays returns the list of a Talos version, kept like that of extensions.
func (f *Factory) overlays(ctx context.Context, tag string) ([]Overlay, error) {
	if err := f.requireVersion(tag); err != nil {
		return nil, err
	}
	f.mu.Lock()
	m := f.memory
	f.mu.Unlock()
	return remembered(ctx, f, m, m.overlays, "overlays", tag, f.fetchOverlays)
}

// fetchOverlays fails for an empty list too, like the real one: see
// siderolabs/image-factory, internal/artifacts/versions.go, extractOverlayList.
func (f *Factory) fetchOverlays(ctx context.Context, tag string) ([]Overlay, error) {
	if err := f.take(ctx, listTakes); err != nil {
		return nil, err
	}
	img, err := f.registry.image(ctx, overlaysImage, tag)
	if err != nil {
		return nil, err
	}
	content := mutate.Extract(img)
	defer content.Close()
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("failed to find overlays.yaml file")
		}
		if err != nil {
			return nil, fmt.Errorf("error reading tar header: %w", err)
		}
		if header.Name != "overlays.yaml" {
			continue
		}
		var list overlays
		if err := yaml.NewDecoder(archive).Decode(&list); err != nil {
			return nil, fmt.Errorf("error reading overlays.yaml file: %w", err)
		}
		if len(list.Overlays) == 0 {
			return nil, errors.New("failed to find overlays.yaml file")
		}
		return list.Overlays, nil
	}
}

// requireOverlay refuses overlays that the real factory can't find or the lab can't build.
func (f *Factory) requireOverlay(ctx context.Context, tag, overlay string) error {
	list, err := f.overlays(ctx, tag)
	if err != nil {
		return fmt.Errorf("error getting official overlays: %w", err)
	}
	if !slices.ContainsFunc(list, func(o Overlay) bool { return o.Name == overlay }) {
		// The real one prints an empty reference in place of the name.
		return invalidf("official overlay %q is not available for Talos version %s", struct{ Name, TaggedReference, Digest string }{}, tag)
	}
	return failf(http.StatusNotImplemented, "the lab builds no image with an overlay")
}

// secureBootCertificate fails like the real factory without Secure Boot.
func (f *Factory) secureBootCertificate(http.ResponseWriter, *http.Request) error {
	return errors.New("secure boot is disabled")
}
