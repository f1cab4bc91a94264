package config

import "strings"

// Discovers says whether the configuration has its machine register with the discovery of its cluster.
func (d Documents) Discovers() bool {
	for _, doc := range d.list {
		if strings.HasPrefix(doc.id, "DiscoveryServiceConfig") {
			return true
		}
		if doc.id != MainDocument || doc.root == nil {
			continue
		}
		if on := doc.root.at([]string{"cluster", "discovery", "enabled"}); on != nil && on.shown == "true" {
			return true
		}
	}
	return false
}
