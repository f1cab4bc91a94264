package artefact

import (
	"errors"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.yaml.in/yaml/v4"
)

// ListedExtension is one line of the list of official extensions of a Talos version.
type ListedExtension struct {
	Ref         string // "ghcr.io/siderolabs/iscsi-tools:v0.2.0@sha256:…", with the digest of the index
	Author      string
	Description string
}

const (
	digestsFile      = "image-digests"
	descriptionsFile = "descriptions.yaml"
)

type description struct {
	Author      string `yaml:"author"`
	Description string `yaml:"description"`
}

// ExtensionsList makes the image siderolabs/extensions:<Talos version>.
func ExtensionsList(refs []ListedExtension) (v1.Image, error) {
	var lines strings.Builder
	descriptions := map[string]description{}
	for _, r := range refs {
		lines.WriteString(r.Ref + "\n")
		descriptions[r.Ref] = description{Author: r.Author, Description: r.Description}
	}
	texts, err := yaml.Marshal(descriptions)
	if err != nil {
		return nil, fmt.Errorf("extensions list: encode descriptions: %w", err)
	}
	content, err := layer(map[string][]byte{
		digestsFile:      []byte(lines.String()),
		descriptionsFile: texts,
	}, nil, types.OCILayer)
	if err != nil {
		return nil, fmt.Errorf("extensions list: %w", err)
	}
	img, err := image("amd64", v1.Config{}, content)
	if err != nil {
		return nil, fmt.Errorf("extensions list: %w", err)
	}
	return ociImage(img), nil
}

// ReadExtensionsList reads the list in its order.
func ReadExtensionsList(img v1.Image) ([]ListedExtension, error) {
	files, _, err := readFiles(img)
	if err != nil {
		return nil, fmt.Errorf("extensions list: %w", err)
	}
	digests, ok := files[digestsFile]
	if !ok {
		return nil, errors.New("extensions list: no " + digestsFile)
	}
	var descriptions map[string]description
	if err := yaml.Unmarshal(files[descriptionsFile], &descriptions); err != nil {
		return nil, fmt.Errorf("extensions list: read %s: %w", descriptionsFile, err)
	}
	var list []ListedExtension
	for line := range strings.Lines(string(digests)) {
		ref := strings.TrimSpace(line)
		if !strings.Contains(ref, "@") {
			continue
		}
		d := descriptions[ref]
		list = append(list, ListedExtension{Ref: ref, Author: d.Author, Description: d.Description})
	}
	return list, nil
}
