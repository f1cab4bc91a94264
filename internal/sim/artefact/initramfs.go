package artefact

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"go.yaml.in/yaml/v4"
)

const (
	fileMode       = 0o644
	extensionsFile = "extensions.yaml"
	schematicName  = "schematic" // of the factory's own extension
	schematicDir   = "/usr/local/share/schematic/"
	modulesName    = "modules.dep"
	modulesDir     = "/usr/lib/modules/"
)

// layers is extensions.yaml.
type layers struct {
	Layers []extensionLayer `yaml:"layers"`
}

type extensionLayer struct {
	Image    string            `yaml:"image"`
	Metadata extensionMetadata `yaml:"metadata"`
}

// initramfs is imager's result: the CPU microcode in an uncompressed archive, Talos' own
// part, and an archive with the extensions and the firmware. Without extensions there is
// only Talos' own part.
func initramfs(img Image) ([]byte, error) {
	base, err := baseInitramfs(img)
	if err != nil {
		return nil, err
	}
	extensions, err := img.layers()
	if err != nil {
		return nil, err
	}
	if len(extensions) == 0 && len(img.Loose) == 0 {
		return base, nil
	}
	added, loose := map[string][]byte{}, maps.Clone(img.Loose)
	if loose == nil {
		loose = map[string][]byte{}
	}
	var config layers
	for n, e := range extensions {
		name := strconv.Itoa(n) + ".sqsh"
		if e.Name == modulesName {
			name = modulesName + ".sqsh"
		}
		if e, err = moveFirmware(e, loose); err == nil {
			added[name], err = squash(e.Files, e.Links)
		}
		if err != nil {
			return nil, fmt.Errorf("extension %s: %w", e.Name, err)
		}
		config.Layers = append(config.Layers, extensionLayer{Image: name, Metadata: e.metadata(img.SchematicYAML)})
	}
	if added[extensionsFile], err = yaml.Marshal(config); err != nil {
		return nil, fmt.Errorf("encode %s: %w", extensionsFile, err)
	}
	early := map[string][]byte{}
	for name, content := range loose {
		if strings.HasPrefix(name, "/kernel/") {
			early[name] = content
		} else {
			added[relative(name)] = content
		}
	}
	var b []byte
	if len(early) > 0 {
		b = cpioArchive(early)
	}
	packed, err := compressed(cpioArchive(added))
	return append(append(b, base...), packed...), err
}

// layers are the extensions in imager's order: the factory's own after the others, and
// modules.dep last.
func (img Image) layers() ([]Extension, error) {
	var found, dependencies []Extension
	modules := map[string][]byte{}
	for _, e := range img.Extensions {
		if e.Name == modulesName {
			dependencies = append(dependencies, e)
			continue
		}
		found = append(found, e)
		for _, name := range e.paths() {
			inner, ok := strings.CutPrefix(name, modulesDir)
			if !ok {
				continue
			}
			module, ok := strings.CutPrefix(inner, img.kernel()+"/")
			if !ok {
				return nil, fmt.Errorf("copying kernel modules of %s failed: %s is for another kernel than %s", e.Name, name, img.kernel())
			}
			modules[module] = nil
		}
	}
	if img.SchematicID != "" {
		found = append(found, img.schematicExtension())
	}
	if len(dependencies) == 0 && len(modules) > 0 {
		dependencies = append(dependencies, modulesExtension(img.kernel(), slices.Sorted(maps.Keys(modules))))
	}
	return append(found, dependencies...), nil
}

// modulesExtension is imager's extension for kernel modules
// (GenerateKernelModuleDependencyTreeExtension in internal/pkg/extensions of Talos).
func modulesExtension(kernel string, modules []string) Extension {
	dir := modulesDir + kernel + "/"
	return Extension{
		Name: modulesName, Version: kernel, Author: "Talos Machinery", Description: "Combined modules.dep for all extensions",
		Files: map[string][]byte{
			dir + "modules.dep":   []byte(strings.Join(modules, ":\n") + ":\n"),
			dir + "modules.alias": []byte("# Aliases extracted from modules themselves.\n"),
		},
	}
}

// schematicExtension is the factory's virtual extension (internal/artifacts/schematic.go
// of image-factory): an empty file; the rest is metadata.
func (img Image) schematicExtension() Extension {
	return Extension{
		Name: schematicName, Version: img.SchematicID, Author: img.SchematicAuthor,
		Description: "Virtual extension which specifies the schematic of the image built with Image Factory.",
		Files:       map[string][]byte{schematicDir + img.SchematicID: {}},
	}
}

// baseInitramfs is Talos' own part, a tiny one.
func baseInitramfs(img Image) ([]byte, error) {
	rootfs, err := squash(map[string][]byte{
		"/usr/lib/os-release": osRelease(img.TalosVersion),
		"/sbin/init":          fmt.Appendf(nil, "machined %s %s\n", img.TalosVersion, img.Arch),
	}, nil)
	if err != nil {
		return nil, err
	}
	return compressed(cpioArchive(map[string][]byte{
		"init":        fmt.Appendf(nil, "init %s %s\n", img.TalosVersion, img.Arch),
		"rootfs.sqsh": rootfs,
	}))
}

// osRelease is /etc/os-release of Talos (pkg/machinery/version/os-release).
func osRelease(version string) []byte {
	return fmt.Appendf(nil, "NAME=\"Talos\"\nID=talos\nVERSION_ID=%s\nPRETTY_NAME=\"Talos (%s)\"\n"+
		"HOME_URL=\"https://www.talos.dev/\"\nBUG_REPORT_URL=\"https://github.com/siderolabs/talos/issues\"\n"+
		"VENDOR_NAME=\"Sidero Labs\"\nVENDOR_URL=\"https://www.siderolabs.com/\"\n", version, version)
}

// compressed is one zstd frame, deterministic.
func compressed(b []byte) ([]byte, error) {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	out := w.EncodeAll(b, nil)
	return out, w.Close()
}
