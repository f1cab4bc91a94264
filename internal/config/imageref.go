package config

import (
	"errors"
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

// UnmarshalText reads a reference. Its errors never show the text: people put
// credentials in front of a registry's name.
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

// MarshalYAML writes the reference as it is read.
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
