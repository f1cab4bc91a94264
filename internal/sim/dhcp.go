package sim

import (
	"net/netip"
	"slices"
	"sync"
)

// The last bytes of the addresses that DHCP gives to machines which have no
// reservation. Those after them are nobody's: for whoever needs a fixed one.
const (
	firstLease = 231
	lastLease  = 250
)

// leases are those of machines without a reservation. No machine gives one back,
// as Talos does not: they end when the pool has no other address left.
type leases struct {
	mu   sync.Mutex
	macs []string // by address, the oldest first
	at   map[string]netip.Addr
	free map[string]bool // nodes without a reservation
}

// Reserve says whether DHCP has a node's address reserved for its card, as it has
// at first. Without that the machine is given some other one that is free.
func (l *Lab) Reserve(node string, reserved bool) {
	l.leases.mu.Lock()
	defer l.leases.mu.Unlock()
	if l.leases.free == nil {
		l.leases.free = map[string]bool{}
	}
	l.leases.free[node] = !reserved
}

// lease is the DHCP server, if there is one. A node's MAC has the same address for as long as that is reserved.
func (l *Lab) lease(mac string) (netip.Addr, bool) {
	l.leases.mu.Lock()
	defer l.leases.mu.Unlock()
	if l.o.NoDHCP {
		return netip.Addr{}, false
	}
	for _, n := range l.Nodes {
		if n.MAC == mac && !l.leases.free[n.Name] {
			return n.Addr, true
		}
	}
	if addr, known := l.leases.at[mac]; known {
		return addr, true
	}
	addr := netip.Addr{}
	if n := len(l.leases.macs); n <= lastLease-firstLease {
		addr = l.o.addr(max(firstLease, l.o.last()+1) + n) // behind many workers
	} else { // the one that was given out first has run out by then
		addr = l.leases.at[l.leases.macs[0]]
		delete(l.leases.at, l.leases.macs[0])
		l.leases.macs = slices.Delete(l.leases.macs, 0, 1)
	}
	if l.leases.at == nil {
		l.leases.at = map[string]netip.Addr{}
	}
	l.leases.macs, l.leases.at[mac] = append(l.leases.macs, mac), addr
	return addr, true
}
