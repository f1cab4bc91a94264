package imager

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"

	"go.yaml.in/yaml/v4"
)

// markerFile is the schematic's entry in the job's directory.
const markerFile = "in/schematic.tar"

// Author distinguishes the schematic's entry of an image that was built here from
// that of an Image Factory, whose entries say "Image Factory (<url>)".
const Author = "recast"

// manifest is manifest.yaml of an extension: siderolabs/talos pkg/machinery/extensions.
type manifest struct {
	Version  string   `yaml:"version"`
	Metadata metadata `yaml:"metadata"`
}

type metadata struct {
	Name          string        `yaml:"name"`
	Version       string        `yaml:"version"`
	Author        string        `yaml:"author"`
	Description   string        `yaml:"description"`
	Compatibility compatibility `yaml:"compatibility"`
	ExtraInfo     string        `yaml:"extraInfo"`
}

type compatibility struct {
	Talos struct {
		Version string `yaml:"version"`
	} `yaml:"talos"`
}

// writeMarker writes the extension that tells on a node which schematic it runs. It
// is the Image Factory's, except for the author: siderolabs/image-factory
// internal/artifacts/schematic.go.
func writeMarker(path, id, canonical string) error {
	m := manifest{Version: "v1alpha1", Metadata: metadata{
		Name: "schematic", Version: id, Author: Author, ExtraInfo: canonical,
		Description: "Virtual extension which specifies the schematic of the image built with recast.",
	}}
	m.Metadata.Compatibility.Talos.Version = ">= 1.0.0"
	text, err := yaml.Marshal(m)
	if err != nil {
		return fmt.Errorf("write its manifest: %w", err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	headers := []*tar.Header{{Name: "manifest.yaml", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}}
	for _, dir := range []string{"rootfs/", "rootfs/usr/", "rootfs/usr/local/", "rootfs/usr/local/share/", "rootfs/usr/local/share/schematic/"} {
		headers = append(headers, &tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755})
	}
	headers = append(headers, &tar.Header{Name: "rootfs/usr/local/share/schematic/" + id, Typeflag: tar.TypeReg, Mode: 0o644})
	for _, h := range headers {
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if h.Size > 0 {
			if _, err := w.Write(text); err != nil {
				return err
			}
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}
