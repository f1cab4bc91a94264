package factory

import "go.yaml.in/yaml/v4"

// lock is what the tests look at in recast.lock.
type lock struct {
	SecureBootKey string `yaml:"secureBootKey"`
	Schematics    map[string]struct {
		BuildID     string `yaml:"buildID"`
		SchematicID string `yaml:"schematicID"`
		Installer   string `yaml:"installer"`
		Signer      string `yaml:"signer"`
		Extensions  []struct {
			Name, Version, Digest string
			Explicit              bool
		} `yaml:"extensions"`
		ISO struct {
			Name, SHA256 string
			SizeBytes    int64 `yaml:"sizeBytes"`
		} `yaml:"iso"`
	} `yaml:"schematics"`
}

func (s *teller) lock() lock {
	s.t.Helper()
	var l lock
	if err := yaml.Unmarshal([]byte(s.read("recast.lock")), &l); err != nil {
		s.t.Fatal(err)
	}
	return l
}
