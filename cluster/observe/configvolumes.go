package observe

import (
	"github.com/recast-sh/recast/cluster"
)

// ConfigVolumes are the volumes that a machine's configurations define. They are read only where the machine may get
// other ones than it has.
type ConfigVolumes struct {
	Runs  []cluster.ConfigVolume // by the configuration that it runs
	Keeps []cluster.ConfigVolume // by the one for its next boot, as the wanted Talos reads it
	Err   error
}

// readConfigVolumes leaves out a machine that will run what it runs now: its file says the same, so does what it
// keeps, and no older Talos is to read it.
func readConfigVolumes(m cluster.Maintenance, w cluster.Wanted, f *Found) (v ConfigVolumes) {
	if f.Away || f.Machine == nil || f.Machine.ConfigHidden || f.Machine.Configs.Stored == nil {
		return v
	}
	has, other := f.Machine.Configs, f.File != nil && len(f.File.Volumes) > 0
	if !other && has.Same() && !olderMinor(f.Machine.TalosVersion, w.Build.TalosVersion) {
		return v
	}
	if v.Runs, v.Err = m.ConfigVolumes(has.Active, f.Machine.TalosVersion); v.Err == nil {
		v.Keeps, v.Err = m.ConfigVolumes(has.Stored, w.Build.TalosVersion)
	}
	return v
}

// olderMinor says whether the wanted Talos is of an earlier minor release than the running one.
func olderMinor(runs, wanted string) bool {
	is, errIs := cluster.ParseVersion(runs)
	next, errNext := cluster.ParseVersion(wanted)
	return errIs == nil && errNext == nil && (next.Major < is.Major || next.Major == is.Major && next.Minor < is.Minor)
}
