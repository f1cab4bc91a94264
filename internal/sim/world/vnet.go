package world

import (
	"cmp"
	"slices"
)

// VNet is a network of Proxmox' SDN, on all hosts. Its zone's IPAM is not simulated.
type VNet struct {
	Name, Zone string
	IPAM       bool
}

// AddVNet adds a VNet.
func (w *World) AddVNet(v VNet) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.vnets = append(w.vnets, v)
	slices.SortFunc(w.vnets, func(a, b VNet) int { return cmp.Compare(a.Name, b.Name) })
}

// VNets lists the VNets, by name.
func (w *World) VNets() []VNet {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.vnets)
}

// LocalBridge is the only bridge of every host.
const LocalBridge = "vmbr0"

// localZone contains every bridge that is not a VNet (pve-access-control, RPCEnvironment.pm,
// check_sdn_bridge).
const localZone = "localnetwork"

func (w *World) zoneOf(bridge string) string {
	if i := slices.IndexFunc(w.vnets, func(v VNet) bool { return v.Name == bridge }); i >= 0 {
		return w.vnets[i].Zone
	}
	return localZone
}
