package cluster

// Installable says whether the configuration would choose a disk to install on.
func (m Machine) Installable() bool { return m.FromISO || m.SystemDisk == "" }
