package factory

import (
	"slices"
	"testing"

	"go.yaml.in/yaml/v4"
)

// lock is the part of recast.lock that the tests check.
type lock struct {
	SecureBootKey string            `yaml:"secureBootKey"`
	Schematics    map[string]locked `yaml:"schematics"`
}

type locked struct {
	BuildID     string            `yaml:"buildID"`
	SchematicID string            `yaml:"schematicID"`
	Schematic   string            `yaml:"schematic"`
	Installer   string            `yaml:"installer"`
	Signer      string            `yaml:"signer"`
	Extensions  []lockedExtension `yaml:"extensions"`
	ISO         struct {
		Name, SHA256 string
		SizeBytes    int64 `yaml:"sizeBytes"`
	} `yaml:"iso"`
	Disk struct {
		Name, SHA256 string
		SizeBytes    int64 `yaml:"sizeBytes"`
		DiskBytes    int64 `yaml:"diskBytes"`
	} `yaml:"disk"`
}

type lockedExtension struct {
	Name, Version, Digest string
	Explicit              bool
}

// extension finds an extension, which must be there once.
func (l locked) extension(t *testing.T, name string) lockedExtension {
	t.Helper()
	i := slices.IndexFunc(l.Extensions, func(e lockedExtension) bool { return e.Name == name })
	if i < 0 || slices.ContainsFunc(l.Extensions[i+1:], func(e lockedExtension) bool { return e.Name == name }) {
		t.Fatalf("%s is not locked once: %+v", name, l.Extensions)
	}
	return l.Extensions[i]
}

func (s *teller) lock() lock {
	s.t.Helper()
	var l lock
	mustDo(s.t, yaml.Unmarshal([]byte(s.read("recast.lock")), &l))
	return l
}
