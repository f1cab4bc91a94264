package artefact

import (
	"errors"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.yaml.in/yaml/v4"
)

// extensionManifest is manifest.yaml of an extension image.
type extensionManifest struct {
	Version  string            `yaml:"version"`
	Metadata extensionMetadata `yaml:"metadata"`
}

// extensionMetadata is an extension's entry in manifest.yaml and extensions.yaml
// (pkg/machinery/extensions of Talos).
type extensionMetadata struct {
	Name          string `yaml:"name"`
	Version       string `yaml:"version"`
	Author        string `yaml:"author"`
	Description   string `yaml:"description"`
	Compatibility struct {
		Talos struct {
			Version string `yaml:"version"`
		} `yaml:"talos"`
	} `yaml:"compatibility"`
	ExtraInfo string `yaml:"extraInfo,omitempty"`
}

// metadata is the extension's own; only the factory's extension has a schematic.
func (e Extension) metadata(schematic string) extensionMetadata {
	m := extensionMetadata{Name: e.Name, Version: e.Version, Author: e.Author, Description: e.Description}
	switch e.Name {
	case schematicName:
		m.Compatibility.Talos.Version, m.ExtraInfo = ">= 1.0.0", schematic
	case modulesName:
	default:
		m.Compatibility.Talos.Version = ">= v1.5.0"
	}
	return m
}

const (
	manifestFile = "manifest.yaml"
	rootfsDir    = "rootfs"
)

// ExtensionIndex makes an extension image for amd64 and arm64: manifest.yaml and the files
// below rootfs/. It does not contain e.Digest.
func ExtensionIndex(e Extension) (v1.ImageIndex, error) {
	if err := e.validate(); err != nil {
		return nil, err
	}
	manifest, err := yaml.Marshal(extensionManifest{Version: "v1alpha1", Metadata: e.metadata("")})
	if err != nil {
		return nil, fmt.Errorf("extension %s: encode manifest: %w", e.Name, err)
	}
	files, links := map[string][]byte{manifestFile: manifest}, map[string]string{}
	for path, content := range e.Files {
		files[rootfsDir+path] = content
	}
	for path, target := range e.Links {
		links[rootfsDir+path] = target
	}
	content, err := layer(files, links, types.OCILayer)
	if err != nil {
		return nil, fmt.Errorf("extension %s: %w", e.Name, err)
	}
	index := v1.ImageIndex(empty.Index)
	for _, arch := range []string{"amd64", "arm64"} {
		img, err := image(arch, v1.Config{
			Labels: map[string]string{"org.opencontainers.image.source": "https://github.com/siderolabs/extensions"},
		}, content)
		if err != nil {
			return nil, fmt.Errorf("extension %s: %w", e.Name, err)
		}
		index = withPlatform(index, ociImage(img), arch)
	}
	return index, nil
}

// ReadExtension reads an extension image; Digest is that of the index.
func ReadExtension(idx v1.ImageIndex, arch string) (Extension, error) {
	img, err := imageFor(idx, arch)
	if err != nil {
		return Extension{}, fmt.Errorf("extension image: %w", err)
	}
	files, links, err := readFiles(img)
	if err != nil {
		return Extension{}, fmt.Errorf("extension image: %w", err)
	}
	manifest, ok := files[manifestFile]
	if !ok {
		return Extension{}, errors.New("extension image: no " + manifestFile)
	}
	var m extensionManifest
	if err := yaml.Unmarshal(manifest, &m); err != nil {
		return Extension{}, fmt.Errorf("extension image: read %s: %w", manifestFile, err)
	}
	digest, err := idx.Digest()
	if err != nil {
		return Extension{}, fmt.Errorf("extension image: %w", err)
	}
	e := Extension{
		Name: m.Metadata.Name, Version: m.Metadata.Version,
		Author: m.Metadata.Author, Description: m.Metadata.Description,
		Digest: digest.String(), Files: map[string][]byte{},
	}
	for name, content := range files {
		if path, ok := strings.CutPrefix(name, rootfsDir); ok {
			e.Files[path] = content
		}
	}
	for name, target := range links {
		if path, ok := strings.CutPrefix(name, rootfsDir); ok {
			if e.Links == nil {
				e.Links = map[string]string{}
			}
			e.Links[path] = target
		}
	}
	if err := e.validate(); err != nil {
		return Extension{}, fmt.Errorf("extension image: %w", err)
	}
	return e, nil
}
