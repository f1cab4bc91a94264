// Package imager does what Talos' imager does, for images of the lab: [Build] reads a
// profile and makes an installer, a boot ISO or a disk image from the files that the profile names.
package imager

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// The kinds of output.
const (
	Installer = "installer"
	ISO       = "iso"
	Disk      = "image"
)

// profile is the used part of siderolabs/talos pkg/imager/profile.
type profile struct {
	Arch, Platform, Version string
	Customization           struct {
		ExtraKernelArgs []string    `yaml:"extraKernelArgs"`
		MetaContents    []metaValue `yaml:"metaContents"`
	}
	Input struct {
		BaseInstaller    asset   `yaml:"baseInstaller"`
		SystemExtensions []asset `yaml:"systemExtensions"`
	}
	Output struct {
		Kind         string
		ImageOptions *imageOptions `yaml:"imageOptions"`
	}
}

type metaValue struct {
	Key   uint8
	Value string
}

type imageOptions struct {
	DiskSize   int64  `yaml:"diskSize"`
	DiskFormat string `yaml:"diskFormat"`
	Bootloader string
}

type asset struct {
	ImageRef    string `yaml:"imageRef"`
	TarballPath string `yaml:"tarballPath"`
	OCIPath     string `yaml:"ociPath"`
}

// Build makes one output in a directory, named as the imager does. As with the imager, no
// two runs make the same bytes. spoil changes the image's content; it may be nil.
func Build(text []byte, out string, spoil func(kind string, img *artefact.Image)) error {
	var p profile
	if err := yaml.Unmarshal(text, &p); err != nil {
		return fmt.Errorf("read the profile: %w", err)
	}
	img, err := p.image()
	if err != nil {
		return err
	}
	if spoil != nil {
		spoil(p.Output.Kind, &img)
	}
	switch p.Output.Kind {
	case Installer:
		return p.installer(img, filepath.Join(out, "installer-"+p.Arch+".tar"))
	case ISO:
		b, err := artefact.ISO(img)
		return write(b, err, filepath.Join(out, p.Platform+"-"+p.Arch+".iso"))
	case Disk:
		b, err := p.disk(img)
		return write(b, err, filepath.Join(out, p.Platform+"-"+p.Arch+".qcow2"))
	}
	return fmt.Errorf("profile is invalid: unknown output kind %q", p.Output.Kind)
}

// image has the kernel arguments in the order of buildCmdline in siderolabs/talos pkg/imager/imager.go.
func (p profile) image() (artefact.Image, error) {
	args := []string{"talos.platform=" + p.Platform}
	if p.Output.Kind == ISO {
		args = append(args, artefact.HaltIfInstalled)
	}
	args = append(args, "console=tty0")
	switch meta := p.Customization.MetaContents; {
	case len(meta) > 0 && p.Output.Kind == Installer:
		return artefact.Image{}, errors.New("profile is invalid: customization of meta partition is not supported for installer output")
	case len(meta) > 0 && p.Output.Kind == ISO:
		args = append(args, "talos.environment=INSTALLER_META_BASE64="+encoded(meta))
	}
	args = append(args, p.Customization.ExtraKernelArgs...)
	img := artefact.Image{TalosVersion: p.Version, Arch: p.Arch, Platform: p.Platform, Cmdline: strings.Join(args, " ")}
	for _, a := range p.Input.SystemExtensions {
		e, info, err := extension(a.TarballPath)
		if err != nil {
			return img, fmt.Errorf("extracting %s: %w", a.TarballPath, err)
		}
		if info != "" {
			img.SchematicID, img.SchematicYAML, img.SchematicAuthor = e.Version, info, e.Author
			continue
		}
		img.Extensions = append(img.Extensions, e)
	}
	return img, nil
}

// encoded has META values for an installer's environment: Encode in siderolabs/talos pkg/machinery/meta.
func encoded(values []metaValue) string {
	var list []string
	for _, v := range values {
		list = append(list, fmt.Sprintf("0x%x=%s", v.Key, v.Value))
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, strings.Join(list, ";")) // into memory
	_ = z.Close()
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// disk is buildImage and outImage in siderolabs/talos pkg/imager/out.go, for the one format and the boot loaders of UEFI.
func (p profile) disk(img artefact.Image) ([]byte, error) {
	o := p.Output.ImageOptions
	switch {
	case o == nil:
		return nil, errors.New("profile is invalid: image options are required for image output")
	case o.DiskSize == 0:
		return nil, errors.New("profile is invalid: disk size is required for image output")
	case o.DiskFormat != "qcow2" || o.Bootloader == "grub":
		return nil, fmt.Errorf("the lab makes no disk image in format %q with boot loader %q", o.DiskFormat, o.Bootloader)
	}
	form := artefact.DiskForm{Meta: map[uint8]string{}, BIOS: p.Arch == "amd64" && o.Bootloader != "sd-boot"}
	for _, v := range p.Customization.MetaContents {
		form.Meta[v.Key] = v.Value
	}
	return artefact.DiskImage(img, form)
}

// write appends a random sector that belongs to nothing, so that no two files are equal.
func write(b []byte, err error, file string) error {
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, fmt.Sprintf("%2048s", rand.Text())...), 0o644)
}

// installer is the base plus one layer: outInstaller in siderolabs/talos pkg/imager/out.go.
func (p profile) installer(img artefact.Image, file string) error {
	base, err := p.base()
	if err != nil {
		return fmt.Errorf("pull the base installer: %w", err)
	}
	payload, err := artefact.InstallerPayload(img)
	if err != nil {
		return err
	}
	made, err := mutate.AppendLayers(base, payload)
	if err != nil {
		return err
	}
	made, err = mutate.Config(made, v1.Config{
		Entrypoint: []string{"/bin/installer"}, Env: []string{"VERSION=" + p.Version},
		Labels: map[string]string{"alpha.talos.dev/version": p.Version, "build": rand.Text()},
	})
	if err != nil {
		return err
	}
	made, err = mutate.CreatedAt(made, v1.Time{Time: time.Now()})
	if err != nil {
		return err
	}
	ref, err := name.ParseReference(p.Input.BaseInstaller.ImageRef)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file, ref, made)
}

// base is the profile's base installer for its architecture, read from an OCI layout.
func (p profile) base() (v1.Image, error) {
	path, err := layout.FromPath(p.Input.BaseInstaller.OCIPath)
	if err != nil {
		return nil, err
	}
	index, err := path.ImageIndex()
	if err != nil {
		return nil, err
	}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, d := range m.Manifests {
		if d.Platform != nil && d.Platform.OS == "linux" && d.Platform.Architecture == p.Arch {
			return index.Image(d.Digest)
		}
	}
	return nil, errors.New("no OCI image found for " + p.Arch)
}
