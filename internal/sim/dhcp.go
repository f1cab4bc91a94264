package sim

import (
	"net/netip"
	"slices"
	"sync"
)

// The DHCP pool for machines without a reservation, as the last byte of the address.
// Addresses above the pool are free for static use.
const (
	firstLease = 231
	lastLease  = 250
)

// leases are those of machines without a reservation. As with Talos, no machine
// releases its lease; when the pool is empty, the oldest one expires.
type leases struct {
	mu   sync.Mutex
	macs []string // by address, the oldest first
	at   map[string]netip.Addr
	free map[string]bool // names of nodes without a reservation
}

// Reserve says whether DHCP reserves a node's address, as it does by default. Without a
// reservation the machine gets a free one from the pool.
func (l *Lab) Reserve(node string, reserved bool) {
	l.leases.mu.Lock()
	defer l.leases.mu.Unlock()
	if l.leases.free == nil {
		l.leases.free = map[string]bool{}
	}
	l.leases.free[node] = !reserved
}

// lease is the DHCP server's answer to a MAC; false without a DHCP server.
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
		addr = l.o.addr(max(firstLease, l.o.last()+1) + n) // above the workers' addresses
	} else { // the oldest lease has expired
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
