package config

// DraftNew is what a first recast.yaml says about a cluster that is not there yet.
type DraftNew struct {
	Secrets       string // path of the file with the cluster's secrets
	Endpoint      string // URL of the Kubernetes API
	Release       string // of Talos, whose defaults the configurations have: "v1.14"
	ControlPlanes []string
	Patches       []string // of the control planes
	Classes       []DraftClass
}

// DraftClass is one entry of "vmClasses".
type DraftClass struct {
	Name      string
	Cores     int
	MemoryMiB int
	Storage   string // of its disks and its cloud-init drive
	Bridge    string
	System    DiskSize
	Data      *DiskSize // nil: no data disk
}
