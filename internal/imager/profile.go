package imager

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path"

	"github.com/recast-sh/recast/images"
	"go.yaml.in/yaml/v4"
)

// profile is the part that we need of siderolabs/talos pkg/imager/profile/{profile,input,output,customization}.go.
// The imager fills in the rest: it uses its own kernel and initramfs.
type profile struct {
	Arch          string        `yaml:"arch"`
	Platform      string        `yaml:"platform"`
	SecureBoot    bool          `yaml:"secureboot"`
	Version       string        `yaml:"version"`
	Customization customization `yaml:"customization"`
	Input         input         `yaml:"input"`
	Overlay       *overlay      `yaml:"overlay,omitempty"`
	Output        output        `yaml:"output"`
}

type customization struct {
	ExtraKernelArgs []string    `yaml:"extraKernelArgs,omitempty"`
	MetaContents    []metaValue `yaml:"metaContents,omitempty"`
}

type metaValue struct {
	Key   uint8  `yaml:"key"`
	Value string `yaml:"value"`
}

type input struct {
	BaseInstaller    *asset  `yaml:"baseInstaller,omitempty"`
	OverlayInstaller *asset  `yaml:"overlayInstaller,omitempty"`
	SystemExtensions []asset `yaml:"systemExtensions"`
}

type asset struct {
	ImageRef    string `yaml:"imageRef,omitempty"`
	TarballPath string `yaml:"tarballPath,omitempty"`
	OCIPath     string `yaml:"ociPath,omitempty"`
}

type overlay struct {
	Name    string         `yaml:"name"`
	Image   asset          `yaml:"image"`
	Options map[string]any `yaml:"options,omitempty"`
}

type output struct {
	Kind         string        `yaml:"kind"`
	OutFormat    string        `yaml:"outFormat"`
	ISOOptions   *isoOptions   `yaml:"isoOptions,omitempty"`
	ImageOptions *imageOptions `yaml:"imageOptions,omitempty"`
}

type isoOptions struct {
	Bootloader string `yaml:"bootloader"`
}

type imageOptions struct {
	DiskSize          int64  `yaml:"diskSize"`
	DiskFormat        string `yaml:"diskFormat"`
	DiskFormatOptions string `yaml:"diskFormatOptions"`
	Bootloader        string `yaml:"bootloader,omitempty"`
}

// diskBytes is the size of the disk in Talos' own profiles of nocloud and metal, and in the requests of the Image
// Factory: MinRAWDiskSize in siderolabs/talos pkg/imager/profile/default.go. The imager adds what the Talos version
// and GRUB need. recast makes a larger disk when it imports the image.
const diskBytes = 1246 << 20

// profileOf writes the imager's input. seen is the job's directory as the imager sees it. An installer gets no META
// values: the imager refuses them there, and the Image Factory omits them, too. The options of a disk image are the
// factory's: siderolabs/image-factory internal/profile/profile.go, ParseFromPath.
func profileOf(job images.ImagerJob, seen string) ([]byte, error) {
	file := func(name string) string { return path.Join(seen, name) }
	p := profile{
		Arch: job.Arch, Platform: job.Platform, Version: job.Talos,
		Customization: customization{ExtraKernelArgs: job.Customization.KernelArgs},
		Output:        output{Kind: string(job.Output), OutFormat: "raw"},
	}
	for _, x := range job.Extensions {
		p.Input.SystemExtensions = append(p.Input.SystemExtensions, asset{TarballPath: file(x.File)})
	}
	p.Input.SystemExtensions = append(p.Input.SystemExtensions, asset{TarballPath: file(markerFile)})
	if job.Output != images.OutputInstaller {
		for _, m := range job.Customization.Meta {
			p.Customization.MetaContents = append(p.Customization.MetaContents, metaValue(m))
		}
	}
	bootloader := job.Customization.Bootloader
	switch job.Output {
	case images.OutputInstaller:
		p.Input.BaseInstaller = &asset{ImageRef: job.BaseInstaller.Ref, OCIPath: file(job.BaseInstaller.File)}
	case images.OutputISO:
		if bootloader != "" {
			p.Output.ISOOptions = &isoOptions{Bootloader: bootloader}
		}
	case images.OutputDisk:
		p.Output.ImageOptions = &imageOptions{DiskSize: diskBytes, DiskFormat: "qcow2", DiskFormatOptions: "cluster_size=8k", Bootloader: bootloader}
	}
	if o := job.Overlay; o != nil {
		p.Overlay = &overlay{Name: o.Name, Image: asset{TarballPath: file(o.Host.File)}, Options: job.Customization.OverlayOptions}
		p.Input.OverlayInstaller = &asset{TarballPath: file(o.Target.File)}
	}
	text, err := yaml.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("write the imager's profile: %w", err)
	}
	return text, nil
}

// markerFile is the file with the schematic's entry in the job's directory.
const markerFile = "in/schematic.tar"

// Author distinguishes the schematic's entry of an image that was built here from
// that of an Image Factory, whose entries say "Image Factory (<url>)".
const Author = "recast"

// manifest is manifest.yaml of an extension: siderolabs/talos pkg/machinery/extensions.
type manifest struct {
	Version  string `yaml:"version"`
	Metadata struct {
		Name          string `yaml:"name"`
		Version       string `yaml:"version"`
		Author        string `yaml:"author"`
		Description   string `yaml:"description"`
		Compatibility struct {
			Talos struct {
				Version string `yaml:"version"`
			} `yaml:"talos"`
		} `yaml:"compatibility"`
		ExtraInfo string `yaml:"extraInfo"`
	} `yaml:"metadata"`
}

// writeMarker writes the extension that tells on a node which schematic the node runs. The extension is the same as
// the Image Factory's, except for the author: siderolabs/image-factory internal/artifacts/schematic.go.
func writeMarker(path, id, canonical string) error {
	m := manifest{Version: "v1alpha1"}
	m.Metadata.Name, m.Metadata.Version, m.Metadata.Author, m.Metadata.ExtraInfo = "schematic", id, Author, canonical
	m.Metadata.Description = "Virtual extension which specifies the schematic of the image built with recast."
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
