package cluster

// Strategies are what a user can ask for, in the order in which Auto tries them.
var Strategies = []Strategy{Recreate, Reimage, InPlace}

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
