package cluster

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestEmbeddedConfigIsNoExtension: imager lists an embedded configuration among the extensions.
func TestEmbeddedConfigIsNoExtension(t *testing.T) {
	t.Parallel()
	m := RunningSystem{Extensions: []ExtensionEntry{{Name: "embedded-config", Version: "beef"}}}
	must.Equal(t, "with one", 0, len(DiffExtensions(Build{EmbedsConfig: true}, m)))
	if got := DiffExtensions(Build{}, m); len(got) != 1 || got[0].Code != "extension-extra" {
		t.Errorf("without: %+v", got)
	}
}

func TestWhenAChangeOfKernelArgumentsTakesEffect(t *testing.T) {
	t.Parallel()
	m := Machine{RunningSystem: RunningSystem{TalosVersion: "v1.13.9"}}
	for path, want := range map[string]string{
		"machine.install.extraKernelArgs[0]": "machine.install.extraKernelArgs takes effect at a recreate or reimage by ISO at the earliest, without grubUseUKICmdline: true: ",
		"machine.install.grubUseUKICmdline":  "machine.install.grubUseUKICmdline takes effect at a recreate or reimage by ISO at the earliest: ",
		"machine.install.disk":               "",
	} {
		if got := ArgsWait(VM{}, m, []config.Change{{Document: config.MainDocument, Path: path}}); !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: %q", path, got)
		}
	}
}
