package talosapi

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	documents "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// keysOf are an encryption's keys by slot, as far as a configuration says them.
func keysOf(e documents.EncryptionConfig) map[int]string {
	if e == nil || e.Provider() == block.EncryptionProviderNone {
		return nil
	}
	keys := map[int]string{}
	for _, k := range e.Keys() {
		text := ""
		switch {
		case k.Static() != nil:
			text = "static " + digest(k.Static().Key())
		case k.NodeID() != nil:
			text = nodeIDKey
		case k.KMS() != nil:
			text = "kms " + k.KMS().Endpoint()
		case k.TPM() != nil:
			text = "tpm"
		}
		if k.LockToSTATE() {
			text += lockedToState
		}
		keys[k.Slot()] = text
	}
	return keys
}

const (
	nodeIDKey     = "nodeID"
	lockedToState = " with STATE"
)

// slots are the keys that a machine makes of those in its configuration: that of a node ID depends on the VM's UUID, and
// one locked to STATE on a salt there.
func (m *machine) slots(keys map[int]string) map[int]string {
	if keys == nil {
		return nil
	}
	out := map[int]string{}
	for slot, key := range keys {
		of, locked := strings.CutSuffix(key, lockedToState)
		if of == nodeIDKey {
			of += " " + m.hw.UUID
		}
		if state, there := locate(m.devices(), labelState); there && locked {
			of += " " + state.part.UUID
		}
		out[slot] = of
	}
	return out
}

// open opens the volume with the keys of its configuration, and brings its key slots in line with them. Its errors are
// Talos' (controllers/block/internal/volumes, encrypt.go and format.go; internal/pkg/encryption, encryption.go).
func (m *machine) open(v volume) error {
	p, there := v.locate(m.devices())
	if !there || v.fixed { // the lab's installer leaves STATE as it is
		return nil
	}
	is, wants := p.part.Keys, m.slots(v.keys)
	switch {
	case is == nil && wants == nil && p.part.Filesystem != "" && v.filesystem != "" && p.part.Filesystem != v.filesystem:
		return fmt.Errorf("filesystem type mismatch: %s != %s", p.part.Filesystem, v.filesystem)
	case is == nil && wants == nil:
		return nil
	case wants == nil && v.filesystem == "":
		if v.target == "" && v.existing == nil {
			return nil // a raw volume is used as it is
		}
		return errors.New("volume is encrypted, but no encryption config provided")
	case wants == nil:
		return fmt.Errorf("filesystem type mismatch: luks != %s", v.filesystem)
	case is == nil && p.part.Filesystem != "":
		return fmt.Errorf("block dev type mismatch: %s != luks", p.part.Filesystem)
	case is != nil && !slices.ContainsFunc(slices.Collect(maps.Keys(wants)), func(slot int) bool { return is[slot] == wants[slot] }):
		return errors.New("error opening encrypted volume: encryption key rejected")
	case maps.Equal(is, wants):
		return nil
	}
	return m.rewrite(p.dev.Key, func(d artefact.Disk) artefact.Disk {
		d.Partitions = slices.Clone(d.Partitions)
		at := &d.Partitions[p.index-1]
		if at.Keys == nil {
			at.Data = nil // what Talos does not recognize it formats
		}
		at.Keys = wants
		return d
	})
}

// Encrypted encrypts a partition in a disk's content with the node ID of a machine, and with a partition STATE if there
// is one; or takes that off again. What is inside stays.
func Encrypted(content []byte, label, uuid, state string, on bool) ([]byte, error) {
	disk, err := artefact.ReadDisk(content)
	if err != nil {
		return nil, err
	}
	for i := range disk.Partitions {
		if p := &disk.Partitions[i]; p.Label == label {
			p.Keys = nil
			if on {
				p.Keys = map[int]string{0: strings.TrimSpace(nodeIDKey + " " + uuid + " " + state)}
			}
		}
	}
	return artefact.WriteDisk(disk), nil
}

// StateUUID is that of the partition STATE in a disk's content.
func StateUUID(content []byte) string {
	disk, _ := artefact.ReadDisk(content)
	p, _ := partition(disk, labelState)
	return p.UUID
}
