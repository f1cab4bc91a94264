package doctor

import (
	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// NewDisks are the disks that a roll of all these nodes would make.
func (s Survey) NewDisks(wanted []cluster.Wanted, assessments []Assessment) []observe.NewDisk {
	var out []observe.NewDisk
	for i, a := range assessments {
		disk, known := a.SystemDisk()
		if !known || a.Strategy.KeepsVM() {
			continue
		}
		if d := s.NewDisk(wanted[i], a.Host, disk); d != nil {
			out = append(out, *d)
		}
	}
	return out
}
