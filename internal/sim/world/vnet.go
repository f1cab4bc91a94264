package world

import (
	"cmp"
	"slices"
)

// VNet is a network of Proxmox' SDN, which all hosts have. What its zone's IPAM does
// with addresses is not simulated.
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

// VNets lists them, by name.
func (w *World) VNets() []VNet {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.vnets)
}

// LocalBridge is the only bridge of every host.
const LocalBridge = "vmbr0"

// localZone has every bridge that is no VNet (pve-access-control, RPCEnvironment.pm, check_sdn_bridge).
const localZone = "localnetwork"

func (w *World) zoneOf(bridge string) string {
	if i := slices.IndexFunc(w.vnets, func(v VNet) bool { return v.Name == bridge }); i >= 0 {
		return w.vnets[i].Zone
	}
	return localZone
}
