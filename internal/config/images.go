package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ImageRef names an image on a registry: "ghcr.io/acme/frr:1.7.15@sha256:…". It
// has a tag, a digest or both.
type ImageRef struct {
	Repository string // "ghcr.io/acme/frr"
	Tag        string // "1.7.15"
	Digest     string // "sha256:…"
}

const (
	imageTag    = `[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}`
	imageDigest = `sha256:[0-9a-f]{64}`

	// maxRepository is the limit of registries: see reference.RepositoryNameTotalLengthMax.
	maxRepository = 255
)

// UnmarshalText reads a reference. Its errors never show the text: people put credentials in front of a registry's
// name.
func (r *ImageRef) UnmarshalText(text []byte) error {
	named, digest, digested := strings.Cut(string(text), "@")
	repository, tag, tagged := named, "", false
	if colon := strings.LastIndexByte(named, ':'); colon > strings.LastIndexByte(named, '/') {
		repository, tag, tagged = named[:colon], named[colon+1:], true
	}
	switch {
	case !matches(repository, registryHost+repositoryPath) || len(repository) > maxRepository:
		return errors.New("is not an image reference: write it like ghcr.io/acme/frr:1.7.15@sha256:…, with the registry's name, in lower case, without scheme and user")
	case tagged && !matches(tag, imageTag):
		return errors.New("its tag is invalid: use letters, digits, '-', '_' and '.', at most 128")
	case digested && !matches(digest, imageDigest):
		return errors.New("its digest is invalid: use sha256: and 64 hex digits, as `docker buildx imagetools inspect` or `crane digest` shows it")
	case !tagged && !digested:
		return errors.New("has no tag and no digest: add a tag, such as :1.7.15, a digest, @sha256:…, or both")
	}
	*r = ImageRef{Repository: repository, Tag: tag, Digest: digest}
	return nil
}

// MarshalYAML writes the reference in the form that UnmarshalText reads.
func (r ImageRef) MarshalYAML() (any, error) { return r.String(), nil }

func (r ImageRef) String() string {
	s := r.Repository
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

const (
	BuilderAuto    = "auto"
	BuilderFactory = "factory"
	BuilderImager  = "imager"
)

const (
	BootISO  = "iso"
	BootDisk = "disk"
	BootAuto = "auto"
)

// BuilderOf returns the builder of a schematic's images: BuilderFactory or BuilderImager.
func (im Images) BuilderOf(s Schematic) string {
	if im.Builder == BuilderImager || im.Builder == BuilderAuto && len(s.Extensions) > 0 {
		return BuilderImager
	}
	return BuilderFactory
}

// An image repository is a path on a registry. Docker and the nodes take a first part without dot and port as a path
// on docker.io: see reference.ParseNormalizedNamed.
const (
	repositoryPath = `(/[a-z0-9]+([-._]+[a-z0-9]+)*)+`
	hostLabel      = `[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?`
	registryHost   = `(localhost|` + hostLabel + `(\.` + hostLabel + `)+|` + hostLabel + `(\.` + hostLabel + `)*:[0-9]+)`
)

func (k checker) images() {
	im := k.c.Images
	if k.given("images.factory") {
		k.url("images.factory", im.Factory, "https", "http")
	}
	// The message does not show the value: people put credentials in front of a registry's name.
	if !matches(im.Extensions, `[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?`+repositoryPath) {
		k.add("images.extensions", "is not a registry and organization: write it like ghcr.io/siderolabs, without scheme and tag")
	}
	if k.given("images.mirror") && !matches(im.Mirror, registryHost+repositoryPath) {
		k.add("images.mirror", "is not a repository: write it like ghcr.io/acme/talos, in lower case, without scheme, user, tag and digest")
	}
	if k.c.History.Share == ShareAlways && im.Mirror == "" {
		k.add("history.share", "always needs images.mirror, where runs are kept: set it")
	}
	k.imager()
	k.notEmpty("images.caFile", im.CAFile)
	k.notEmpty("images.signingKey", im.SigningKey)
	if k.given("images.signingKey") && im.Signature == "off" {
		k.add("images.signingKey", "is not used while images.signature is off (line %d): remove one of them", k.line("images.signature"))
	}
	k.storages("images.iso.storage", im.ISO.Storage, "iso")
	k.disk()
}

// disk checks that images.disk is given exactly if something boots disk images.
func (k checker) disk() {
	const section, list = "images.disk", "images.disk.storage"
	im := k.c.Images
	switch {
	case im.Boot == BootISO && k.given(section):
		k.add(section, "is not used while images.boot is iso: set images.boot to disk or auto, or remove it")
	case im.Boot != BootISO && !k.given(list) && !k.bad[section] && !k.bad["images.boot"]:
		k.add("images.boot", "%s needs images.disk.storage: name a Proxmox storage with content type import", im.Boot)
	}
	k.storages(list, im.Disk.Storage, "import")
}

// storages checks a list of Proxmox storages; content is the content type that they need.
func (k checker) storages(list string, names []string, content string) {
	if k.given(list) && len(names) == 0 {
		k.add(list, "is empty: name a Proxmox storage with content type %s", content)
	}
	for i, s := range names {
		path := fmt.Sprintf("%s[%d]", list, i)
		k.pattern(path, s, `[A-Za-z]([-A-Za-z0-9_.]*[A-Za-z0-9])?`, "name of a Proxmox storage")
	}
	k.names(list, "of a Proxmox storage", names)
}

// imager checks how the imager is run, and that its output has a mirror.
func (k checker) imager() {
	im := k.c.Images
	if !matches(im.Imager.Image, registryHost+repositoryPath) {
		k.add("images.imager.image", "is not a repository: write it like ghcr.io/siderolabs/imager, without scheme, tag and digest")
	}
	const command = "images.imager.command"
	if k.given(command) && len(im.Imager.Command) == 0 {
		k.add(command, "is empty: name a program or remove it")
	}
	if k.given("images.imager.env") && !k.given(command) {
		k.add("images.imager.env", "is for images.imager.command, which is not given")
	}
	k.env("images.imager", im.Imager.Env)
	if k.given(command) && k.given("images.imager.image") {
		k.add(command, "image is given too (line %d): keep one of them", k.line("images.imager.image"))
	}
	for i, arg := range im.Imager.Command {
		if arg == "" {
			k.add(fmt.Sprintf("%s[%d]", command, i), "is empty: give it a value or remove it")
		}
	}
	if im.Builder == BuilderImager {
		k.builtHere("images.builder", "imager")
	}
}

// builtHere checks settings that the imager needs. path and what name the setting that selects the imager.
func (k checker) builtHere(path, what string) {
	if !k.given("images.mirror") {
		k.add(path, "%s needs images.mirror: what the imager builds is not on an Image Factory, so nodes pull its installer from your repository, such as ghcr.io/acme/talos", what)
	}
	if k.c.Images.SecureBoot {
		k.add(path, "%s is not possible with images.secureBoot (line %d): the imager has no key to sign with, only the Image Factory has", what, k.line("images.secureBoot"))
	}
}

func (k checker) schematics() {
	if k.given("schematics") && len(k.c.Schematics) == 0 {
		k.add("schematics", "is empty: name at least one schematic")
	}
	for name, s := range k.c.Schematics {
		path := spot{path: "schematics"}.key(name).path
		k.pattern(path, name, `[A-Za-z0-9]([-A-Za-z0-9_]{0,61}[A-Za-z0-9])?`, "name of a schematic: letters, digits, '-' and '_'")
		if file := path + ".file"; s.File == "" && !k.bad[file] {
			k.add(path, "is empty: name its file")
		}
		k.extensions(path+".extensions", s)
	}
}

// extensions checks the extensions that a schematic names by reference.
func (k checker) extensions(path string, s Schematic) {
	if !k.given(path) || k.bad[path] {
		return
	}
	if len(s.Extensions) == 0 {
		k.add(path, "is empty: name an image or remove it")
		return
	}
	for i, e := range s.Extensions {
		same := func(other ImageRef) bool { return other.Repository == e.Repository }
		if first := slices.IndexFunc(s.Extensions, same); first < i && e.Repository != "" {
			k.add(fmt.Sprintf("%s[%d]", path, i), "%s is listed already (line %d)", quote(e.Repository), k.line(fmt.Sprintf("%s[%d]", path, first)))
		}
	}
	if k.c.Images.Builder == BuilderFactory {
		k.add(path, "an Image Factory builds official extensions only, and images.builder is factory (line %d): use auto or imager", k.line("images.builder"))
		return
	}
	k.builtHere(path, "your own extension")
}
