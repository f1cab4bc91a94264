package cluster

// DiskPlan is one drive in a plan.
type DiskPlan struct {
	Key    string `json:"key"`
	Serial string `json:"serial,omitempty"`
	Volid  string `json:"volid"` // now; "": it has none, and Where says more
	Size   string `json:"size,omitempty"`
	// Where the disk of an unfinished replacement is now: "scsi30 of parking VM 9900".
	Where string `json:"where,omitempty"`
	// NewSize is that of the blank system disk where it differs: never less.
	NewSize string `json:"newSize,omitempty"`
}

const (
	ControlPlane = "control-plane"
	Worker       = "worker"
)

func JoinOptions(volid, options string) string {
	if options == "" {
		return volid
	}
	return volid + "," + options
}
