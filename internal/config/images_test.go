package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/config"
)

// FuzzImageRef: what is taken is one tag, one digest or both of one repository,
// is written as it was read, and no error shows what may be a password.
func FuzzImageRef(f *testing.F) {
	digest := "@sha256:" + strings.Repeat("0a", 32)
	for _, s := range []string{
		"ghcr.io/acme/frr:1.7.15" + digest, "ghcr.io/acme/frr" + digest, "localhost:5000/frr:v1", "127.0.0.1:5000/a/b-c__d:_x", "acme/frr:1", "frr",
		"ghcr.io:443/a" + digest + digest, "me:hunter2@ghcr.io/a:1", "https://ghcr.io/a:1", "ghcr.io/a:" + strings.Repeat("b", 128), "ghcr.io/a:b:c", "ghcr.io//a:1", ":", "@", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var r config.ImageRef
		if err := r.UnmarshalText([]byte(text)); err != nil {
			if r != (config.ImageRef{}) {
				t.Errorf("%q: an error, and %+v", text, r)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%q is shown: %v", text, err)
			}
			return
		}
		if r.String() != text {
			t.Errorf("%q is written as %q", text, r)
		}
		if r.Repository == "" || strings.ContainsAny(r.Repository, "@ \n") || r.Tag == "" && r.Digest == "" || strings.ContainsAny(r.Tag, ":/@") {
			t.Errorf("%q makes %+v", text, r)
		}
		if host, path, ok := strings.Cut(r.Repository, "/"); !ok || host == "" || path == "" || path != strings.ToLower(path) {
			t.Errorf("%q: repository %q", text, r.Repository)
		}
	})
}

func TestBuilderOf(t *testing.T) {
	t.Parallel()
	plain := config.Schematic{File: "base.yaml"}
	own := config.Schematic{File: "base.yaml", Extensions: []config.ImageRef{{Repository: "ghcr.io/acme/frr", Tag: "1"}}}
	got := map[string][]string{}
	for _, builder := range []string{config.BuilderAuto, config.BuilderFactory, config.BuilderImager} {
		im := config.Images{Builder: builder}
		got[builder] = []string{im.BuilderOf(plain), im.BuilderOf(own)}
	}
	want := map[string][]string{"auto": {"factory", "imager"}, "factory": {"factory", "factory"}, "imager": {"imager", "imager"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("builders of a plain schematic and of one with its own extension, -want +got\n%s", diff)
	}
}

// withExtensions is small with extension images, in a file with a mirror.
func withExtensions(list string) string {
	return strings.Replace(withImages("mirror: ghcr.io/acme/talos"), "default: base.yaml", "default: {file: base.yaml, extensions: "+list+"}", 1)
}

func imageCases() map[string]problemCase {
	const (
		reference = "is not an image reference: write it like ghcr.io/acme/frr:1.7.15@sha256:…, with the registry's name, in lower case, without scheme and user"
		at        = "10:43: schematics.default.extensions[0]: "
		list      = "10:30: schematics.default.extensions: "
		mirror    = " needs images.mirror: what the imager builds is not on an Image Factory, so nodes pull its installer from your repository, such as ghcr.io/acme/talos"
		imager    = "is not a repository: write it like ghcr.io/siderolabs/imager, without scheme, tag and digest"
		tooOld    = " is too old: before v1.10 an installer does not include platform and kernel arguments, so a node would not run what recast.lock says; use v1.10.0 or later"
	)
	return map[string]problemCase{
		"Talos 1.9":              {change("v1.13.9", "v1.9.6"), "4:3: talos.version: v1.9.6" + tooOld},
		"Talos 0.14":             {change("v1.13.9", "v0.14.3"), "4:3: talos.version: v0.14.3" + tooOld},
		"reference, a path":      {withExtensions("[acme/frr:1]"), at + reference},
		"reference, a scheme":    {withExtensions("['https://ghcr.io/acme/frr:1']"), at + reference},
		"reference, a password":  {withExtensions("['me:hunter2@ghcr.io/acme/frr:1']"), at + reference},
		"reference, upper case":  {withExtensions("[ghcr.io/Acme/frr:1]"), at + reference},
		"reference, empty":       {withExtensions("['']"), at + reference},
		"reference, endless":     {withExtensions("[ghcr.io/" + strings.Repeat("a", 250) + ":1]"), at + reference},
		"reference, alone":       {withExtensions("[ghcr.io/acme/frr]"), at + "has no tag and no digest: add a tag, such as :1.7.15, a digest, @sha256:…, or both"},
		"reference, bad tag":     {withExtensions("['ghcr.io/acme/frr:']"), at + "its tag is invalid: use letters, digits, '-', '_' and '.', at most 128"},
		"reference, half digest": {withExtensions("['ghcr.io/acme/frr:1@sha256:12']"), at + "its digest is invalid: use sha256: and 64 hex digits, as `docker buildx imagetools inspect` or `crane digest` shows it"},
		"reference, a number":    {withExtensions("[5]"), at + "must be an image reference such as ghcr.io/acme/frr:1.7.15, not the number 5"},
		"reference, a section":   {withExtensions("[{image: x}]"), at + "must be an image reference such as ghcr.io/acme/frr:1.7.15, not a section"},
		"references, none":       {withExtensions("[]"), list + "is empty: name an image or remove it"},
		"reference twice":        {withExtensions("[ghcr.io/acme/frr:1, ghcr.io/acme/frr:2]"), `10:63: schematics.default.extensions[1]: "ghcr.io/acme/frr" is listed already (line 10)`},
		"references, factory": {
			strings.Replace(withExtensions("[ghcr.io/acme/frr:1]"), "images:", "images:\n  builder: factory", 1),
			"11:30: schematics.default.extensions: an Image Factory builds official extensions only, and images.builder is factory (line 6): use auto or imager",
		},
		"references, no mirror":      {change("base.yaml", "{file: base.yaml, extensions: [ghcr.io/acme/frr:1]}"), "9:30: schematics.default.extensions: your own extension" + mirror},
		"imager, no mirror":          {withImages("builder: imager"), "6:3: images.builder: imager" + mirror},
		"imager, image with a tag":   {withImages("imager: {image: ghcr.io/siderolabs/imager:v1.13.9}"), "6:12: images.imager.image: " + imager},
		"imager, image with a user":  {withImages("imager: {image: 'me:pw@ghcr.io/imager'}"), "6:12: images.imager.image: " + imager},
		"imager, no command":         {withImages("imager: {command: []}"), "6:12: images.imager.command: is empty: name a program or remove it"},
		"imager, image and command":  {withImages("imager: {image: ghcr.io/acme/imager, command: [x]}"), "6:40: images.imager.command: image is given too (line 6): keep one of them"},
		"imager, an empty argument":  {withImages("imager: {command: [run, '']}"), "6:27: images.imager.command[1]: is empty: give it a value or remove it"},
		"imager, command no list":    {withImages("imager: {command: docker}"), "6:12: images.imager.command: must be a list, not text"},
		"boot, something else":       {withImages("boot: disc"), `6:3: images.boot: "disc" is not one of iso, disk, auto, did you mean "disk"?`},
		"boot disk, no storage":      {withImages("boot: disk"), "6:3: images.boot: disk needs images.disk.storage: name a Proxmox storage with content type import"},
		"boot auto, no storage":      {withImages("boot: auto\n  disk: {}"), "6:3: images.boot: auto needs images.disk.storage: name a Proxmox storage with content type import"},
		"boot disk, empty list":      {withImages("boot: disk\n  disk: {storage: []}"), "7:10: images.disk.storage: is empty: name a Proxmox storage with content type import"},
		"boot disk, a storage twice": {withImages("boot: disk\n  disk: {storage: [a, a]}"), `7:23: images.disk.storage[1]: "a" is listed already (line 7)`},
		"boot disk, a bad storage":   {withImages("boot: disk\n  disk: {storage: [a/b]}"), `7:20: images.disk.storage[0]: "a/b" is not a name of a Proxmox storage`},
		"disk storage for nothing":   {withImages("disk: {storage: [local]}"), "6:3: images.disk: is not used while images.boot is iso: set images.boot to disk or auto, or remove it"},
		"CA, empty":                  {withImages("caFile: ''"), "6:3: images.caFile: is empty: give it a value or remove it"},
		"signing key, empty":         {withImages("signingKey: ''"), "6:3: images.signingKey: is empty: give it a value or remove it"},
		"signing key, for nothing":   {withImages("signature: off\n  signingKey: key.pem"), "7:3: images.signingKey: is not used while images.signature is off (line 6): remove one of them"},
		"imager with Secure Boot":    {withImages("mirror: ghcr.io/acme/talos\n  builder: imager\n  secureBoot: true"), "7:3: images.builder: imager is not possible with images.secureBoot (line 8): the imager has no key to sign with, only the Image Factory has"},
		"reference with Secure Boot": {strings.Replace(withExtensions("[ghcr.io/acme/frr:1]"), "images:", "images:\n  secureBoot: true", 1), "11:30: schematics.default.extensions: your own extension is not possible with images.secureBoot (line 6): the imager has no key to sign with, only the Image Factory has"},
	}
}

func imageParseCases(home map[string]string) map[string]parseCase {
	return map[string]parseCase{
		"images, all of it": {
			data: strings.Replace(withExtensions("['ghcr.io/acme/frr:1.7.15@sha256:"+strings.Repeat("a", 64)+"', 'localhost:5000/x@sha256:"+strings.Repeat("b", 64)+"', '127.0.0.1:5000/a/b:v1']"),
				"images:", "images:\n  caFile: ca.pem\n  signature: require\n  signingKey: key.pem\n  imager: {command: [./imager, '{out}']}", 1),
			env: home,
			edit: func(c *config.Config) {
				c.Images.CAFile, c.Images.Mirror, c.Images.Signature, c.Images.SigningKey = "/etc/recast/ca.pem", "ghcr.io/acme/talos", "require", "/etc/recast/key.pem"
				c.Images.Imager = config.Imager{Image: "ghcr.io/siderolabs/imager", Command: []string{"./imager", "{out}"}}
				c.Schematics["default"] = config.Schematic{File: "base.yaml", Path: "/etc/recast/base.yaml", Extensions: []config.ImageRef{
					{Repository: "ghcr.io/acme/frr", Tag: "1.7.15", Digest: "sha256:" + strings.Repeat("a", 64)},
					{Repository: "localhost:5000/x", Digest: "sha256:" + strings.Repeat("b", 64)},
					{Repository: "127.0.0.1:5000/a/b", Tag: "v1"},
				}}
			},
		},
		"machines that boot disks": {
			data: withImages("boot: auto\n  disk: {storage: [images, local]}"), env: home,
			edit: func(c *config.Config) {
				c.Images.Boot, c.Images.Disk.Storage = config.BootAuto, []string{"images", "local"}
			},
		},
		"imager and no signatures": {
			data: withImages("builder: imager\n  mirror: ghcr.io/acme/talos\n  signature: off"), env: home,
			edit: func(c *config.Config) {
				c.Images.Builder, c.Images.Mirror, c.Images.Signature = "imager", "ghcr.io/acme/talos", "off"
			},
		},
		"Secure Boot, the oldest Talos": {
			data: strings.Replace(withImages("secureBoot: True"), "v1.13.9", "v1.10.0-alpha.1", 1), env: home,
			edit: func(c *config.Config) { c.Images.SecureBoot, c.Talos.Version = true, "v1.10.0-alpha.1" },
		},
		"a Talos newer than this recast": {
			data: change("v1.13.9", "v2.0.0-rc.1"), env: home,
			edit: func(c *config.Config) { c.Talos.Version = "v2.0.0-rc.1" },
		},
	}
}
