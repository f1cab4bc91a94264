package cluster

import (
	"testing"
)

// TestEmbeddedConfigIsNoExtension: imager lists an embedded configuration among the extensions.
func TestEmbeddedConfigIsNoExtension(t *testing.T) {
	t.Parallel()
	m := RunningSystem{Extensions: []ExtensionEntry{{Name: "embedded-config", Version: "beef"}}}
	if got := DiffExtensions(Build{EmbedsConfig: true}, m); len(got) > 0 {
		t.Errorf("with one: %+v", got)
	}
	if got := DiffExtensions(Build{}, m); len(got) != 1 || got[0].Code != "extension-extra" {
		t.Errorf("without: %+v", got)
	}
}
