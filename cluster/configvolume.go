package cluster

// ConfigVolume is what a machine configuration makes of one volume that holds data, as the Talos that reads it
// understands it: whatever document names the volume, and if none does.
type ConfigVolume struct {
	ID         string // as in VolumeStatus
	Document   string // what defines it, or would: "UserVolumeConfig data", "VolumeConfig ETCD", "machine.disks /dev/sdb"
	Type       VolumeType
	Place      string // what selects its disk, or the volume itself; "": where Talos puts it by default
	Found      bool   // Place is how Talos finds the volume again; else its partition's label is
	Mount      string // only where the configuration chooses it
	Encryption VolumeEncryption
	Filesystem string // that Talos formats it with: "xfs"; "": none, or always anew
}

// VolumeEncryption says how a volume is encrypted, without its secrets.
type VolumeEncryption struct {
	Format string         // "": not encrypted
	Keys   map[int]string // by slot; two keys are the same exactly if these are
}

// Opens says whether a configuration with this encryption opens a volume that was encrypted with another one. slot is
// that of the key that has opened it; nil: unknown. Talos tries its keys by slot, and adds and removes keys once one
// of them fits (Handler.Open and syncKeys in internal/pkg/encryption/encryption.go), but encrypts no volume that has
// something on it, and mounts none that is encrypted as if it was not (HandleEncryption in
// controllers/block/internal/volumes/encrypt.go, Format in format.go).
func (e VolumeEncryption) Opens(was VolumeEncryption, slot *int) bool {
	if e.Format != was.Format {
		return false
	}
	if slot != nil && was.Keys[*slot] != "" {
		return e.Keys[*slot] == was.Keys[*slot]
	}
	for at, key := range was.Keys {
		if e.Keys[at] != key {
			return false
		}
	}
	return true
}
