package talos

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/recast-sh/recast/cluster"
)

// volumePrefix is what Talos puts before the name in a document of that kind to name the volume.
var volumePrefix = map[string]string{
	"VolumeConfig": "", "UserVolumeConfig": constants.UserVolumePrefix,
	"RawVolumeConfig": constants.RawVolumePrefix, "SwapVolumeConfig": constants.SwapVolumePrefix,
}

// encryptionSpec is how a volume is encrypted. Keys are kept undecoded, so that what
// a newer Talos adds is seen.
type encryptionSpec struct {
	Provider string           `yaml:"provider"`
	Keys     []map[string]any `yaml:"keys"`
}

// volumeDocument is what is read of the main document and of volume documents.
type volumeDocument struct {
	Kind       string          `yaml:"kind"`
	Name       string          `yaml:"name"`
	Encryption *encryptionSpec `yaml:"encryption"`
	Machine    struct {
		SystemDisk struct {
			State     *encryptionSpec `yaml:"state"`
			Ephemeral *encryptionSpec `yaml:"ephemeral"`
		} `yaml:"systemDiskEncryption"`
	} `yaml:"machine"`
}

// encryption lists the volumes that a configuration encrypts, by name. Its errors do not quote it.
func encryption(docs []*document) ([]cluster.Encryption, error) {
	var out []cluster.Encryption
	for _, d := range docs {
		var v volumeDocument
		if d.node == nil {
			continue
		}
		if err := d.node.Decode(&v); err != nil {
			return nil, errors.New("a volume's encryption is not in Talos' format" + linesOf(err.Error()))
		}
		if v.Kind == "" {
			out = append(out, v.Machine.SystemDisk.State.volume(constants.StatePartitionLabel)...)
			out = append(out, v.Machine.SystemDisk.Ephemeral.volume(constants.EphemeralPartitionLabel)...)
			continue
		}
		prefix, known := volumePrefix[v.Kind]
		if !known {
			prefix = v.Kind + "/"
		}
		out = append(out, v.Encryption.volume(prefix+v.Name)...)
	}
	slices.SortFunc(out, func(a, b cluster.Encryption) int { return cmp.Compare(a.Volume, b.Volume) })
	return out, nil
}

// volume returns nothing without encryption. One key locked to STATE is enough to
// count as locked: which key opened a volume is unknown.
func (e *encryptionSpec) volume(name string) []cluster.Encryption {
	if e == nil || e.Provider == "" && len(e.Keys) == 0 {
		return nil
	}
	kinds := map[string]bool{}
	v := cluster.Encryption{Volume: name}
	for _, key := range e.Keys {
		for field, value := range key {
			switch {
			case field == "lockToState":
				v.LockToState = v.LockToState || value != nil && value != false
			case field != "slot" && value != nil:
				kinds[field] = true
			}
		}
	}
	v.Keys = slices.Sorted(maps.Keys(kinds))
	return []cluster.Encryption{v}
}
