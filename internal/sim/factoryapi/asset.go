package factoryapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/siderolabs/image-factory/pkg/schematic"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/imager/imageropts"
	"github.com/siderolabs/talos/pkg/machinery/imager/quirks"
	"github.com/siderolabs/talos/pkg/machinery/kernel"
	"github.com/siderolabs/talos/pkg/machinery/meta"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// kind is the kind of an image.
type kind int

const (
	iso kind = iota
	uki
	cmdline
	disk
	installer // only through the registry API
)

func (k kind) String() string {
	return [...]string{iso: "iso", uki: "uki", cmdline: "cmdline", disk: "disk", installer: "installer"}[k]
}

// asset answers /image/<schematic>/<version>/<asset>. HEAD builds too; the headers say nothing about the content but
// its length, and Range is ignored.
func (f *Factory) asset(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("asset")
	if strings.HasSuffix(name, ".sha256") || strings.HasSuffix(name, ".sha512") {
		return failf(http.StatusPaymentRequired, "enterprise not enabled: checksum endpoint is not available")
	}
	d, err := f.design(r.PathValue("schematic"))
	if err != nil {
		return err
	}
	version, err := versionTag(r.PathValue("version"))
	if err != nil {
		return err
	}
	o, err := parseAsset(name)
	if err != nil {
		return fmt.Errorf("error parsing profile from path: %w", err)
	}
	o.design, o.version = d, version
	content, err := f.built(r.Context(), name, o)
	if err != nil {
		return err
	}
	filename := name
	if override := r.URL.Query().Get("filename"); override != "" {
		filename = override
	}
	if f.opts.Store != "" && r.Method != http.MethodHead {
		http.Redirect(w, r, f.storeURL(content), http.StatusFound)
		return nil
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	w.Header().Set("Content-Type", contentType(o.kind))
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s"`, filename))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	_, err = w.Write(content)
	return err
}

func contentType(k kind) string {
	switch k {
	case iso:
		return "application/x-iso9660-image"
	case uki:
		return "application/efi"
	default:
		return "application/octet-stream"
	}
}

// parseAsset parses <platform>-<arch>[-secureboot].iso and the like.
func parseAsset(name string) (order, error) {
	if rest, ok := strings.CutPrefix(name, "cmdline-"); ok {
		return parsePlatform(cmdline, rest)
	}
	for k, ending := range map[kind]string{iso: ".iso", uki: "-uki.efi", disk: ".qcow2"} {
		if rest, ok := strings.CutSuffix(name, ending); ok {
			return parsePlatform(k, rest)
		}
	}
	for _, known := range []string{"kernel-", "initramfs-", ".raw", ".qcow2.", ".vhd", ".ova", ".tar"} {
		if strings.Contains(name, known) {
			return order{}, failf(http.StatusNotImplemented, "the lab builds no %s", name)
		}
	}
	return order{}, invalidf("invalid profile path: %q", name)
}

func parsePlatform(k kind, text string) (order, error) {
	text, secureBoot := strings.CutSuffix(text, "-secureboot")
	platform, arch, ok := strings.Cut(text, "-")
	if !ok {
		return order{}, invalidf("invalid platform-arch: %q", text)
	}
	if arch != "amd64" && arch != "arm64" {
		return order{}, invalidf("invalid architecture: %q", arch)
	}
	return order{kind: k, platform: platform, arch: arch, secureBoot: secureBoot}, nil
}

// cacheKey returns an asset's key in the cache. The key includes the digests of the extensions, so a factory that has
// learned a new digest builds a new ISO for an old schematic.
func cacheKey(name string, o order, refs []extensionRef) string {
	parts := []string{name, o.version, o.design.id}
	for _, ref := range refs {
		parts = append(parts, ref.digest)
	}
	return strings.Join(parts, "/")
}

// built returns an asset from the cache, or builds it.
func (f *Factory) built(ctx context.Context, name string, o order) ([]byte, error) {
	refs, err := f.resolve(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("error enhancing profile from schematic: %w", err)
	}
	key := cacheKey(name, o, refs)
	content, err, _ := f.builds.Do(key, func() (any, error) {
		f.mu.Lock()
		cached, ok := f.assets[key]
		f.mu.Unlock()
		if ok {
			return cached, nil
		}
		return f.buildAsset(ctx, key, o, refs)
	})
	if err != nil {
		return nil, err
	}
	return content.([]byte), nil
}

func (f *Factory) buildAsset(ctx context.Context, key string, o order, refs []extensionRef) ([]byte, error) {
	ctx, done := f.outlive(ctx)
	defer done()
	img, err := f.image(ctx, o, refs)
	if err != nil {
		return nil, err
	}
	var content []byte
	switch o.kind {
	case iso:
		content, err = artefact.ISO(img)
	case uki:
		content, err = artefact.UKI(img)
	case cmdline:
		content = []byte(img.Cmdline)
	case disk:
		content, err = artefact.DiskImage(img, diskForm(o))
	default:
		err = fmt.Errorf("no asset of kind %d", o.kind)
	}
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("%s %s %s %s-%s", o.kind, o.design.id, o.version, o.platform, o.arch)
	if err := f.build(ctx, what, assetTakes); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.assets[key] = content
	return content, nil
}

// order is a requested image.
type order struct {
	kind       kind
	design     design
	version    string
	platform   string
	arch       string
	secureBoot bool
}

// resolve checks an order as the real factory does and finds its extensions in the factory's cached list.
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

// image returns the content of the ordered image.
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

// kernelArgs returns the command line of a Talos image. See siderolabs/talos, pkg/imager/imager.go, buildCmdline. An
// installer has no META; an ISO has META in an argument, a disk in a partition.
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

// diskForm returns what a disk image has beside its UKI: see FillDefaults in pkg/imager/profile of siderolabs/talos
// for the boot loader.
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

// createSchematic stores a schematic. Like the real factory, it does not check that the schematic's extensions exist.
func (f *Factory) createSchematic(w http.ResponseWriter, r *http.Request) error {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	s, err := schematic.Unmarshal(data)
	if err != nil {
		return invalidf("%w", err)
	}
	if err := s.Validate(false); err != nil {
		return invalidf("%w", err)
	}
	id, err := s.ID()
	if err != nil {
		return err
	}
	canonical, err := s.Marshal()
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.schematics[id] = canonical
	f.mu.Unlock()

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	return json.NewEncoder(w).Encode(struct {
		ID        string `json:"id"`
		Schematic string `json:"schematic"`
	}{id, string(canonical)})
}

func (f *Factory) getSchematic(w http.ResponseWriter, r *http.Request) error {
	canonical, ok := f.stored(r.PathValue("schematic"))
	if !ok {
		return missingf("schematic not found")
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, err := w.Write(canonical)
	return err
}

func (f *Factory) stored(id string) ([]byte, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	canonical, ok := f.schematics[id]
	return canonical, ok
}

// design is a stored schematic.
type design struct {
	schematic.Schematic
	id, yaml string
}

func (f *Factory) design(id string) (design, error) {
	canonical, ok := f.stored(id)
	if !ok {
		return design{}, missingf("schematic ID %q not found", id)
	}
	s, err := schematic.Unmarshal(canonical)
	if err != nil {
		return design{}, err
	}
	return design{Schematic: *s, id: id, yaml: string(canonical)}, nil
}

// args is a kernel command line as the imager assembles it: all values of a key are at its
// first position. See siderolabs/go-procfs.
type args []parameter

type parameter struct {
	key    string
	values []string // "" for a key without a value
}

// parseArgs parses "key=value" and "key".
func parseArgs(list []string) args {
	var c args
	for arg := range strings.FieldsSeq(strings.Join(list, " ")) {
		key, value, _ := strings.Cut(arg, "=")
		c.append(key, value)
	}
	return c
}

func (c args) index(key string) int {
	return slices.IndexFunc(c, func(p parameter) bool { return p.key == key })
}

func (c *args) append(key string, values ...string) {
	if i := c.index(key); i >= 0 {
		(*c)[i].values = append((*c)[i].values, values...)
		return
	}
	*c = append(*c, parameter{key: key, values: values})
}

func (c *args) set(p parameter) {
	if i := c.index(p.key); i >= 0 {
		(*c)[i] = p
		return
	}
	*c = append(*c, p)
}

// appendAll adds the arguments common to all images.
func (c *args) appendAll(list []string) {
	for _, p := range parseArgs(list) {
		c.append(p.key, p.values...)
	}
}

// customize adds a schematic's arguments: for some keys, they replace the values, and a "-" removes the values.
func (c *args) customize(list []string) {
	for _, p := range parseArgs(list) {
		switch {
		case len(p.key) > 1 && p.key[0] == '-':
			c.remove(p.key[1:], p.values)
		case p.key == "console" || p.key == "talos.platform":
			c.set(p)
		default:
			c.append(p.key, p.values...)
		}
	}
}

// remove removes values of a key; without values it removes the key.
func (c *args) remove(key string, values []string) {
	i := c.index(key)
	switch {
	case i < 0:
	case values[0] == "":
		*c = slices.Delete(*c, i, i+1)
	default:
		(*c)[i].values = slices.DeleteFunc((*c)[i].values, func(v string) bool { return slices.Contains(values, v) })
	}
}

func (c args) String() string {
	var words []string
	for _, p := range c {
		for _, v := range p.values {
			if v == "" {
				words = append(words, p.key)
			} else {
				words = append(words, p.key+"="+v)
			}
		}
	}
	return strings.Join(words, " ")
}

func (f *Factory) versions(w http.ResponseWriter, r *http.Request) error {
	list := f.buildable()
	if r.URL.Query().Get("broken") == "true" {
		list = append([]string{}, f.opts.Broken...)
	}
	return json.NewEncoder(w).Encode(list)
}

// buildable returns the versions that are not marked as broken. For broken versions the factory has no lists: see
// siderolabs/image-factory, internal/artifacts, validateTalosVersion.
func (f *Factory) buildable() []string {
	return slices.DeleteFunc(append([]string{}, f.opts.Versions...), func(v string) bool { return slices.Contains(f.opts.Broken, v) })
}

// versionTag parses a version in a path, with or without its "v".
func versionTag(text string) (string, error) {
	number := strings.TrimPrefix(text, "v")
	if ok, err := regexp.MatchString(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`, number); err != nil || !ok {
		return "", fmt.Errorf("error parsing version: %q", text)
	}
	return "v" + number, nil
}

func (f *Factory) requireVersion(tag string) error {
	if !slices.Contains(f.buildable(), tag) {
		return missingf("version %s is not available", strings.TrimPrefix(tag, "v"))
	}
	return nil
}

// latest returns the newest stable version.
func (f *Factory) latest() (string, error) {
	for _, v := range slices.Backward(f.buildable()) {
		if !strings.Contains(v, "-") {
			return v, nil
		}
	}
	return "", errors.New("no stable version of Talos")
}
