package imager

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// extension reads an extension as the imager gets it: the files of its image. info is the
// content of an entry that describes the image as a whole.
func extension(path string) (e artefact.Extension, info string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return e, "", err
	}
	defer f.Close()
	e.Files, e.Links = map[string][]byte{}, map[string]string{}
	var m struct {
		Metadata struct {
			Name, Version, Author, Description string
			ExtraInfo                          string `yaml:"extraInfo"`
		}
	}
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return e, "", err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return e, "", err
		}
		switch file, ok := strings.CutPrefix(h.Name, "rootfs"); {
		case h.Name == "manifest.yaml":
			err = yaml.Unmarshal(content, &m)
		case ok && h.Typeflag == tar.TypeReg:
			e.Files[file] = content
		case ok && h.Typeflag == tar.TypeSymlink:
			e.Links[file] = h.Linkname
		}
		if err != nil {
			return e, "", err
		}
	}
	e.Name, e.Version, e.Author, e.Description = m.Metadata.Name, m.Metadata.Version, m.Metadata.Author, m.Metadata.Description
	return e, m.Metadata.ExtraInfo, nil
}
