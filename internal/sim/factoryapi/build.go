package factoryapi

import (
	"context"
	"fmt"
	"net/http"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/siderolabs/image-factory/pkg/schematic"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/imager/imageropts"
	"github.com/siderolabs/talos/pkg/machinery/imager/quirks"
	"github.com/siderolabs/talos/pkg/machinery/kernel"
	"github.com/siderolabs/talos/pkg/machinery/meta"
)

// order is a requested image.
type order struct {
	kind       kind
	design     design
	version    string
	platform   string
	arch       string
	secureBoot bool
}

// resolve checks an order as the real factory does and finds its extensions in the
// factory's cached list.
func (f *Factory) resolve(ctx context.Context, o order) ([]extensionRef, error) {
	if o.secureBoot {
		return nil, invalidf("secure boot is disabled")
	}
	if o.kind == installer {
		if err := f.requireVersion(o.version); err != nil {
			return nil, fmt.Errorf("failed to get base installer: %w", err) // the real factory's words
		}
	}
	var refs []extensionRef
	wanted := o.design.Customization.SystemExtensions.OfficialExtensions
	if len(wanted) > 0 && o.kind != cmdline {
		available, err := f.extensions(ctx, o.version)
		if err != nil {
			return nil, fmt.Errorf("error getting official extensions: %w", err)
		}
		for _, extension := range wanted {
			ref, ok := findExtension(available, extension)
			if !ok {
				return nil, invalidf("official extension %q is not available for Talos version %s", extension, o.version)
			}
			refs = append(refs, ref)
		}
	}
	if o.design.Overlay.Name != "" && o.kind != cmdline {
		return nil, f.requireOverlay(ctx, o.version, o.design.Overlay.Name)
	}
	return refs, nil
}

// image is the content of the ordered image.
func (f *Factory) image(ctx context.Context, o order, refs []extensionRef) (artefact.Image, error) {
	if err := f.requireVersion(o.version); err != nil {
		return artefact.Image{}, err
	}
	if o.design.Customization.EmbeddedMachineConfiguration != "" {
		return artefact.Image{}, failf(http.StatusNotImplemented, "the lab builds no image with an embedded machine configuration")
	}
	line, err := kernelArgs(o)
	if err != nil {
		return artefact.Image{}, err
	}
	img := artefact.Image{
		TalosVersion: o.version, Arch: o.arch, Platform: o.platform, Cmdline: line,
		SchematicID: o.design.id, SchematicYAML: o.design.yaml, SchematicAuthor: "Image Factory (" + f.opts.URL + ")",
	}
	for _, ref := range refs {
		idx, err := f.registry.index(ctx, ref.repo, ref.digest)
		if err != nil {
			return artefact.Image{}, err
		}
		e, err := artefact.ReadExtension(idx, o.arch)
		if err != nil {
			return artefact.Image{}, fmt.Errorf("%s: %w", ref.repo, err)
		}
		img.Extensions = append(img.Extensions, e)
	}
	return img, nil
}

// kernelArgs is the command line of a Talos image. See siderolabs/talos, pkg/imager/imager.go,
// buildCmdline. An installer has no META, an ISO has it in an argument, a disk in a partition.
func kernelArgs(o order) (string, error) {
	var console []string
	switch o.platform {
	case "metal":
		console = []string{"console=ttyS0", "console=tty0"}
	case "nocloud":
		console = []string{"console=tty1", "console=ttyS0", "net.ifnames=0"}
	default:
		return "", fmt.Errorf("unknown platform %q", o.platform)
	}
	var line args
	line.append(constants.KernelParamPlatform, o.platform)
	line.appendAll(console)
	if o.kind == iso {
		line.append(constants.KernelParamHaltIfInstalled, "1")
	}
	line.appendAll(kernel.DefaultArgs(quirks.New(o.version)))
	if values := metaValues(o.design.Customization.Meta); len(values) > 0 && o.kind != installer && o.kind != uki && o.kind != disk {
		line.append(constants.KernelParamEnvironment, constants.MetaValuesEnvVar+"="+values.Encode(true))
	}
	line.customize(o.design.Customization.ExtraKernelArgs)
	return line.String(), nil
}

// diskForm is what a disk image has beside its UKI: see FillDefaults in
// pkg/imager/profile of siderolabs/talos for the boot loader.
func diskForm(o order) artefact.DiskForm {
	form := artefact.DiskForm{Meta: map[uint8]string{}}
	for _, v := range o.design.Customization.Meta {
		form.Meta[v.Key] = v.Value
	}
	switch o.design.Customization.Bootloader {
	case imageropts.BootLoaderKindNone, imageropts.BootLoaderKindDualBoot:
		form.BIOS = o.arch == "amd64"
	}
	return form
}

func metaValues(wanted []schematic.MetaValue) meta.Values {
	var values meta.Values
	for _, v := range wanted {
		values = append(values, meta.Value{Key: v.Key, Value: v.Value})
	}
	return values
}
