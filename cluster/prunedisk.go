package cluster

// Use is a VM or a snapshot with the values of its configuration.
type Use struct {
	By     string // as VM prints: `VM 101 "cp1" on pve1`, or "snapshot before of VM 101 …"
	Values []string
}
