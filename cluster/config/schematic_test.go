package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

// TestCompare: whatever differs is named, and nothing secret is shown.
func TestCompare(t *testing.T) {
	t.Parallel()
	type row struct {
		found, wanted string
		want          []string
	}
	must.Each(t, map[string]row{
		"the same, locked otherwise": {"customization: {extraKernelArgs: [a=1, recast.lock=sha256-1]}", "customization: {extraKernelArgs: [a=1, recast.lock=sha256-2]}", nil},
		"an argument is new":         {"customization: {}", "customization: {extraKernelArgs: [mitigations=off]}", []string{"kernel argument mitigations=off is missing"}},
		"one goes":                   {"customization: {extraKernelArgs: [mitigations=off, quiet]}", "customization: {extraKernelArgs: [quiet]}", []string{"kernel argument mitigations=off is not in the schematic"}},
		"another value":              {"customization: {extraKernelArgs: [a=1]}", "customization: {extraKernelArgs: [a=2]}", []string{"kernel argument a: 1 → 2"}},
		"one of two":                 {"customization: {extraKernelArgs: [console=tty0, console=ttyS0]}", "customization: {extraKernelArgs: [console=tty0, console=ttyS1]}", []string{"kernel argument console: ttyS0 → ttyS1"}},
		"twice":                      {"customization: {extraKernelArgs: [a=1]}", "customization: {extraKernelArgs: [a=1, a=1]}", []string{"kernel argument a=1 is missing"}},
		"several in one entry":       {"customization: {extraKernelArgs: ['a=1 b=2']}", "customization: {extraKernelArgs: [a=1, b=2]}", nil},
		"another order":              {"customization: {extraKernelArgs: [a=1, b=2]}", "customization: {extraKernelArgs: [b=2, a=1]}", []string{"order of the kernel arguments: a=1 b=2 → b=2 a=1"}},
		"a token":                    {"customization: {}", "customization: {extraKernelArgs: ['siderolink.api=grpc://x?jointoken=hush']}", []string{"kernel argument siderolink.api=[redacted] is missing"}},
		"another token": {
			"customization: {extraKernelArgs: ['siderolink.api=grpc://x?jointoken=hush']}", "customization: {extraKernelArgs: ['siderolink.api=grpc://x?jointoken=hush2']}",
			[]string{"kernel argument siderolink.api has another value"},
		},
		"META": {
			"customization: {meta: [{key: 12, value: a}, {key: 0xd, value: x}]}", "customization: {meta: [{key: 12, value: b}, {key: 14, value: \"hush\\nhush\"}]}",
			[]string{"META value 0xc: a → b", "META value 0xd x is not in the schematic", "META value 0xe [redacted] is missing"},
		},
		"an overlay": {"customization: {}", "overlay: {name: rpi_generic, image: siderolabs/sbc-raspberrypi, options: {configTxt: x}}\ncustomization: {}", []string{
			"image of the overlay siderolabs/sbc-raspberrypi is missing", "overlay rpi_generic is missing", "option of the overlay configTxt x is missing",
		}},
		"another overlay":   {"overlay: {name: a, image: i}", "overlay: {name: b, image: i}", []string{"overlay: a → b"}},
		"a boot loader":     {"customization: {}", "customization: {bootloader: grub}", []string{"bootloader grub is missing"}},
		"keys":              {"customization: {secureboot: {enrollKeys: force}}", "customization: {}", []string{"Secure Boot setting enrollKeys force is not in the schematic"}},
		"a configuration":   {"customization: {embeddedMachineConfiguration: hush}", "customization: {}", []string{"embedded machine configuration [redacted] is not in the schematic"}},
		"another one":       {"customization: {embeddedMachineConfiguration: hush}", "customization: {embeddedMachineConfiguration: hush2}", []string{"embedded machine configuration has another value"}},
		"what nobody knows": {"customization: {}", "customization: {future: {a: [1]}}", []string{"schematic's future.a[0] 1 is missing"}},
		"extensions in another order": {
			"customization: {systemExtensions: {officialExtensions: [a, b]}}", "customization: {systemExtensions: {officialExtensions: [b, a]}}",
			[]string{"order of the extensions: a, b → b, a"},
		},
		"other extensions": {"customization: {systemExtensions: {officialExtensions: [a]}}", "customization: {systemExtensions: {officialExtensions: [b]}}", nil}, // the node lists them
	}, func(t *testing.T, tc row) {
		found, errFound := ParseSchematic(tc.found)
		wanted, errWanted := ParseSchematic(tc.wanted)
		if errFound != nil || errWanted != nil {
			t.Fatal(errFound, errWanted)
		}
		var got []string
		for _, c := range CompareSchematics(found, wanted) {
			got = append(got, c.String())
		}
		must.Hold(t, slices.Equal(got, tc.want) && !strings.Contains(strings.Join(got, ""), "hush"),
			"%q, want %q", got, tc.want)
	})
	for _, text := range []string{"", "- a", "customization: {extraKernelArgs: hush}", "customization: {meta: [hush]}", "{"} {
		if _, err := ParseSchematic(text); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestRole: as Talos reads machine.type (config/machine, ParseType).
func TestRole(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		role     string
		typeInit bool
	}{
		"machine: {type: controlplane}":  {"control-plane", false},
		"machine: {type: init}":          {"control-plane", true},
		"machine: {type: worker}":        {"worker", false},
		"machine: {type: join}":          {"worker", false},
		"machine: {}":                    {"worker", false},
		"machine: {type: {}}":            {"worker", false},
		"kind: X\nmachine: {type: init}": {"worker", false},
	} {
		docs, err := Parse([]byte(text))
		if err != nil || docs.Role() != want.role || docs.TypeInit() != want.typeInit {
			t.Errorf("%q: %s, %v, %v", text, docs.Role(), docs.TypeInit(), err)
		}
	}
}

// TestDiscoveryAndKubeSpan: a registry in Kubernetes alone has no discovery service.
func TestDiscoveryAndKubeSpan(t *testing.T) {
	t.Parallel()
	type row struct {
		ask   func(Documents) bool
		cases map[string]bool
	}
	must.Each(t, map[string]row{
		"discovers": {Documents.Discovers, map[string]bool{
			"": false,
			"version: v1alpha1\ncluster: {discovery: {enabled: true}}\n":                                     true,
			"version: v1alpha1\ncluster: {discovery: {enabled: false}}\n":                                    false,
			"version: v1alpha1\ncluster: {}\n":                                                               false,
			"version: v1alpha1\nmachine: {}\n---\napiVersion: v1alpha1\nkind: DiscoveryServiceConfig\n":      true,
			"version: v1alpha1\nmachine: {}\n---\napiVersion: v1alpha1\nkind: DiscoveryIdentityConfig\n":     false,
			"version: v1alpha1\n---\napiVersion: v1alpha1\nkind: DiscoveryServiceConfig\nname: of-our-own\n": true,
		}},
		"KubeSpan": {Documents.KubeSpan, map[string]bool{
			"": false,
			"version: v1alpha1\nmachine: {network: {kubespan: {enabled: true}}}\n":                                     true,
			"version: v1alpha1\nmachine: {network: {kubespan: {enabled: false}}}\n":                                    false,
			"version: v1alpha1\nmachine: {network: {kubespan: {mtu: 1400}}}\n":                                         false,
			"version: v1alpha1\nmachine: {network: {}}\n":                                                              false,
			"version: v1alpha1\nmachine: {}\n---\napiVersion: v1alpha1\nkind: KubeSpanConfig\nenabled: true\n":         true,
			"version: v1alpha1\nmachine: {}\n---\napiVersion: v1alpha1\nkind: KubeSpanConfig\n":                        false,
			"version: v1alpha1\n---\napiVersion: v1alpha1\nkind: KubeSpanEndpointsConfig\nextraAnnouncedEndpoints: []": false,
		}},
		"a discovery service": {Documents.DiscoveryService, map[string]bool{
			"version: v1alpha1\ncluster: {}\n":                           false,
			"version: v1alpha1\ncluster: {discovery: {enabled: true}}\n": true,
			"version: v1alpha1\ncluster: {discovery: {enabled: true, registries: {service: {endpoint: https://discovery.example}}}}\n":           true,
			"version: v1alpha1\ncluster: {discovery: {enabled: true, registries: {service: {disabled: true}, kubernetes: {disabled: false}}}}\n": false,
			"version: v1alpha1\ncluster: {discovery: {enabled: false}}\n":                                                                        false,
			"version: v1alpha1\ncluster: {}\n---\napiVersion: v1alpha1\nkind: DiscoveryServiceConfig\n":                                          true,
		}},
	}, func(t *testing.T, tc row) {
		for text, want := range tc.cases {
			docs := must.Get(Parse([]byte(text)))(t)
			must.Equal(t, text, want, tc.ask(docs))
		}
	})
}
