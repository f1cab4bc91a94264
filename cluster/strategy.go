package cluster

// DisksWith lists the disks that carry a volume with that label, one entry for each volume.
func (m Machine) DisksWith(label string) []string {
	var out []string
	for _, v := range m.Volumes {
		if v.Label == label {
			out = append(out, v.Disk)
		}
	}
	return out
}

// BootFailure is the policy for a node that does not come back from an in-place upgrade.
type BootFailure string

// The policies. The node's own rollback needs an API that answers; a reimage does not.
const (
	StopOnBootFailure     BootFailure = "stop"
	RollbackOnBootFailure BootFailure = "rollback"
	ReimageOnBootFailure  BootFailure = "reimage"
)

// Reboot is how a machine gets into the system that was installed on it.
type Reboot string

// The ways. A boot by kexec proves nothing about the next one through the firmware.
const (
	ByKexec      Reboot = "kexec"      // from the running kernel, where Talos can
	ByFirmware   Reboot = "powercycle" // as after a power failure
	FirmwareOnce Reboot = "canary"     // the first node of each image through the firmware, the others by kexec
)

// Obstacle is one thing that stands against a strategy.
type Obstacle struct {
	Text string `json:"text"` // what it is, and what lifts it, in words
	// Command lifts it, as root on the VM's host, or from anywhere if it is kubectl; "": no single command does.
	Command string `json:"command,omitempty"`
	// Config is what recast.yaml has to say besides, before the next recast lock.
	Config string `json:"config,omitempty"`
}

// Texts are the obstacles in words.
func Texts(obstacles []Obstacle) []string {
	var out []string
	for _, o := range obstacles {
		out = append(out, o.Text)
	}
	return out
}

// Selector chooses nodes by the labels of their Node objects.
type Selector struct {
	Text    string // as the user gave it; "": every node
	Matches func(labels map[string]string) bool
}

// GoneSystemDisk is the name of the system disk of a machine that does not answer: its device name
// is not recorded.
const GoneSystemDisk = "the system disk"
