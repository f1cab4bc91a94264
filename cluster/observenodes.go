package cluster

const (
	// ObserveLimit bounds how many VMs or hosts a server of the cluster is asked about at once.
	ObserveLimit = 8
	// MachinesAtOnce bounds how many machines are read at once: each is a server of its own.
	MachinesAtOnce = 64
)
