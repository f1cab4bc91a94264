package cluster

import "net/netip"

// Shape is what recast.yaml says about a node's VM, in Proxmox' own words. What it does not say stays
// as it is found.
type Shape struct {
	Class    string            // its name in the config; "": only the node's own settings
	Addr     netip.Addr        // that the node's machine has; invalid: there is none, or it is unknown
	Settings map[string]string // whole values: "memory": "8192", "tags": "prod;talos"
	Devices  map[string]string // of network cards and host devices, the options given: "net0": "bridge=vmbr1,tag=20"
	Disks    []ShapeDisk
	Pool     string            // "": as found
	HA       map[string]string // "state", "group", …; nil: as found
	Host     string            // "": as found
	// CloudInit is the storage of a new VM's cloud-init drive; "": it gets none.
	CloudInit string
}

// ShapeDisk is one disk of a Shape.
type ShapeDisk struct {
	Key     string // "scsi1"
	Storage string // "": as found, so that it can't be a new disk
	SizeGiB int    // 0: as found
	Options []string
}

// IsEmpty says whether a shape says nothing about the VM.
func (s Shape) IsEmpty() bool {
	return len(s.Settings)+len(s.Devices)+len(s.Disks)+len(s.HA) == 0 && s.Pool == "" && s.Host == ""
}
