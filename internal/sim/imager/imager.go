// Package imager does what Talos' imager does, for images of the lab: [Build] reads a
// profile and makes an installer or a boot ISO from the files that the profile names.
package imager

import (
	"crypto/rand"
	"errors"
	"fmt"
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
)

// profile is the used part of siderolabs/talos pkg/imager/profile.
type profile struct {
	Arch, Platform, Version string
	Customization           struct {
		ExtraKernelArgs []string `yaml:"extraKernelArgs"`
	}
	Input struct {
		BaseInstaller    asset   `yaml:"baseInstaller"`
		SystemExtensions []asset `yaml:"systemExtensions"`
	}
	Output struct{ Kind string }
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
		return iso(img, filepath.Join(out, p.Platform+"-"+p.Arch+".iso"))
	}
	return fmt.Errorf("profile is invalid: unknown output kind %q", p.Output.Kind)
}

// image has the kernel arguments in the order of buildCmdline in siderolabs/talos pkg/imager/imager.go.
func (p profile) image() (artefact.Image, error) {
	args := []string{"talos.platform=" + p.Platform}
	if p.Output.Kind == ISO {
		args = append(args, artefact.HaltIfInstalled)
	}
	args = append(append(args, "console=tty0"), p.Customization.ExtraKernelArgs...)
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

// iso appends a random sector that belongs to nothing, so that no two ISOs are equal.
func iso(img artefact.Image, file string) error {
	b, err := artefact.ISO(img)
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
