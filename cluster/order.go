package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// QuorumOnOneHost warns of a Proxmox host with so many control planes that etcd has no quorum without it.
func (o Observation) QuorumOnOneHost() (warn []string) {
	by := map[string][]string{}
	hosts := map[string]bool{}
	for _, vm := range o.VMs {
		hosts[vm.Host] = true
	}
	all := 0
	for _, f := range o.Found {
		if f.Machine != nil && f.Machine.ControlPlane {
			all++
			by[f.Host()] = append(by[f.Host()], f.Name)
		}
	}
	if all < 3 || len(hosts) < 2 {
		return nil
	}
	for _, host := range slices.Sorted(maps.Keys(by)) {
		if names := by[host]; all-len(names) < all/2+1 {
			warn = append(warn, fmt.Sprintf("%d of %d control planes are on Proxmox host %s (%s): etcd has no quorum without that host", len(names), all, host, strings.Join(names, ", ")))
		}
	}
	return warn
}
