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
