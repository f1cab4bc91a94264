package bootimage

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Extension is a system extension: its metadata and its files.
type Extension struct {
	Image                              string // "0.sqsh", its squashfs in an initramfs; empty for an extension image
	Name, Version, Author, Description string
	ExtraInfo                          string // of the factory's `schematic` extension: the schematic
	Files                              Tree
}

const (
	extensionPart = "extension"
	manifestFile  = "/manifest.yaml"
	rootfsDir     = "/rootfs"
)

// ReadExtension reads the flattened tar of an extension image: manifest.yaml and rootfs/.
func ReadExtension(tarOfImage io.Reader) (Extension, error) {
	src := &source{r: tarOfImage}
	e, err := readExtension(src)
	if err != nil {
		return Extension{}, refuse(extensionPart, src.or(err))
	}
	return e, nil
}

func readExtension(r io.Reader) (Extension, error) {
	files, manifest, budget := Tree{}, []byte(nil), newBudget()
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Extension{}, err
		}
		name, err := absolute(h.Name)
		if err != nil {
			return Extension{}, err
		}
		if name == manifestFile {
			if manifest != nil || h.Typeflag != tar.TypeReg {
				return Extension{}, errors.New(manifestFile + " has to be one file")
			}
			if manifest, err = readAll(t, maxConfigBytes); err != nil {
				return Extension{}, fmt.Errorf("%s: %w", manifestFile, err)
			}
			continue
		}
		if err := addTarred(files, name, h, t, budget); err != nil {
			return Extension{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	// Also read what follows the archive's end: the bytes' checksum is verified when they end.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return Extension{}, err
	}
	if manifest == nil {
		return Extension{}, errors.New("no " + manifestFile)
	}
	var m struct {
		Metadata metadata `yaml:"metadata"`
	}
	if err := yaml.Unmarshal(manifest, &m); err != nil {
		return Extension{}, fmt.Errorf("%s: %w", manifestFile, err)
	}
	if m.Metadata.Name == "" {
		return Extension{}, errors.New(manifestFile + " does not name the extension")
	}
	return m.Metadata.extension("", files), nil
}

// addTarred adds what is below rootfs/; except for that and the manifest, Talos
// allows only directories (Load in internal/pkg/extensions/extensions.go).
func addTarred(files Tree, name string, h *tar.Header, content io.Reader, b *budget) error {
	if h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	inner, ok := strings.CutPrefix(name, rootfsDir+"/")
	if !ok {
		return errors.New("neither the manifest nor below rootfs/")
	}
	if err := errors.Join(b.take(h.Size), b.keep(inner, h.Linkname)); err != nil {
		return err
	}
	inner = "/" + inner
	switch h.Typeflag {
	case tar.TypeReg:
		f, err := regular(permissions(uint32(h.Mode)), content, nil)
		if err != nil {
			return err
		}
		return files.add(inner, f)
	case tar.TypeSymlink:
		return files.add(inner, symlink(h.Linkname))
	case tar.TypeLink:
		target, err := absolute(h.Linkname)
		if err != nil {
			return err
		}
		f, ok := files[strings.TrimPrefix(target, rootfsDir)]
		if !ok {
			return fmt.Errorf("a hard link to %s, which does not come before it", target)
		}
		if f.HardLink = f.Mode.IsRegular(); f.HardLink {
			f.LinkMode = permissions(uint32(h.Mode))
		}
		return files.add(inner, f)
	}
	return errors.New("neither a file, a directory nor a link")
}

// ReadOverlayOptions reads /overlay/extra-options of an installer, which is YAML:
// the options that the overlay's program gets in addition to the machine's disk.
func ReadOverlayOptions(r io.Reader) (map[string]any, error) {
	const part = "overlay options"
	src := &source{r: r}
	b, err := readAll(src, maxConfigBytes)
	var options map[string]any
	if err == nil {
		err = yaml.Unmarshal(b, &options)
	}
	if err != nil {
		return nil, refuse(part, src.or(err))
	}
	return options, nil
}
