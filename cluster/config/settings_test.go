package config

import "testing"

func TestDiscovers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"": false,
		"version: v1alpha1\ncluster: {discovery: {enabled: true}}\n":                                     true,
		"version: v1alpha1\ncluster: {discovery: {enabled: false}}\n":                                    false,
		"version: v1alpha1\ncluster: {}\n":                                                               false,
		"version: v1alpha1\nmachine: {}\n---\napiVersion: v1alpha1\nkind: DiscoveryServiceConfig\n":      true,
		"version: v1alpha1\nmachine: {}\n---\napiVersion: v1alpha1\nkind: DiscoveryIdentityConfig\n":     false,
		"version: v1alpha1\n---\napiVersion: v1alpha1\nkind: DiscoveryServiceConfig\nname: of-our-own\n": true,
	} {
		docs, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := docs.Discovers(); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}

func TestKubeSpan(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"": false,
		"version: v1alpha1\nmachine: {network: {kubespan: {enabled: true}}}\n":                                     true,
		"version: v1alpha1\nmachine: {network: {kubespan: {enabled: false}}}\n":                                    false,
		"version: v1alpha1\nmachine: {network: {kubespan: {mtu: 1400}}}\n":                                         false,
		"version: v1alpha1\nmachine: {network: {}}\n":                                                              false,
		"version: v1alpha1\nmachine: {}\n---\napiVersion: v1alpha1\nkind: KubeSpanConfig\nenabled: true\n":         true,
		"version: v1alpha1\nmachine: {}\n---\napiVersion: v1alpha1\nkind: KubeSpanConfig\n":                        false,
		"version: v1alpha1\n---\napiVersion: v1alpha1\nkind: KubeSpanEndpointsConfig\nextraAnnouncedEndpoints: []": false,
	} {
		docs, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := docs.KubeSpan(); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}

// TestDiscoveryService: a registry in Kubernetes alone has no service.
func TestDiscoveryService(t *testing.T) {
	t.Parallel()
	const document = "---\napiVersion: v1alpha1\nkind: DiscoveryServiceConfig\n"
	for text, want := range map[string]bool{
		"version: v1alpha1\ncluster: {}\n":                           false,
		"version: v1alpha1\ncluster: {discovery: {enabled: true}}\n": true,
		"version: v1alpha1\ncluster: {discovery: {enabled: true, registries: {service: {endpoint: https://discovery.example}}}}\n":           true,
		"version: v1alpha1\ncluster: {discovery: {enabled: true, registries: {service: {disabled: true}, kubernetes: {disabled: false}}}}\n": false,
		"version: v1alpha1\ncluster: {discovery: {enabled: false}}\n":                                                                        false,
		"version: v1alpha1\ncluster: {}\n" + document:                                                                                        true,
	} {
		docs, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := docs.DiscoveryService(); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
