package cluster

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/internal/fault"
)

// ConfigFile is a node's file of talos.machineConfigs beside the machine
// configuration that the node runs. It shows no secret.
type ConfigFile struct {
	// Hash is a SHA-256 of what the file says, whatever its order, comments and style.
	Hash string `json:"sha256"`
	// Runs is the SHA-256 of the configuration that the node runs; "" where there is none to compare with.
	Runs string `json:"runs,omitempty"`
	// Applied says that the node gets what the file says.
	Applied bool `json:"applied"`
	// Uncompared is why the two were not compared; "": they were.
	Uncompared string `json:"uncompared,omitempty"`
	// Changes are what differs, but for what recast sets itself: installer, install disk,
	// hostname, and the versions of Kubernetes, which stay those that the node runs.
	Changes []config.Change `json:"changes,omitempty"`
	// Pending says that the node keeps another configuration for its next boot than it runs: one is
	// on trial, or someone has staged one.
	Pending bool `json:"pending,omitempty"`
	// Reboot are the fields for which the node has to reboot.
	Reboot []string `json:"reboot,omitempty"`
	// Unknown are documents of kinds that are newer than this recast. They stay as they are written.
	Unknown []string `json:"unknown,omitempty"`
}

// Differs says whether the node does not run what the file says.
func (f ConfigFile) Differs() bool { return len(f.Changes) > 0 || f.Pending }

// Configs are a machine's configurations, all documents as they are stored. They differ while one is
// on trial, or waits for a reboot.
type Configs struct {
	Stored Secret // for the next boot
	Active Secret // that it runs
	// Booted says that no configuration was stored since the machine booted: it shows only what it
	// runs, which may be on trial.
	Booted bool
}

// Same says whether both say the same, however they are written.
func (c Configs) Same() bool {
	if bytes.Equal(c.Stored, c.Active) {
		return true
	}
	stored, errStored := Text(c.Stored)
	active, errActive := Text(c.Active)
	return errStored == nil && errActive == nil && stored == active
}

// ConfigPlace says where the machine configuration is that an unfinished replacement gives its
// node.
type ConfigPlace string

// The places. ConfigNowhere: only the old system disk has it.
const (
	ConfigNowhere   ConfigPlace = ""
	ConfigInJournal ConfigPlace = "journal"
	ConfigInFile    ConfigPlace = "file" // of talos.machineConfigs, with the checksum in the record
)

// FoundFile is a node's file as it was found.
type FoundFile struct {
	ConfigFile
	Sum      string   // of its bytes
	Role     string   // that it gives its node: ControlPlane or Worker
	TypeInit bool     // it is of machine.type init: see strategy.AgainstInit
	Identity []string // what would make the node another one, or one of another cluster
	// Beside is the node with whose configuration the file of a machine without one was compared, or
	// Talosconfig; "": with nothing.
	Beside string
	// Names is the other node of recast.yaml whose name it gives its machine; "": it gives none of those.
	Names string
	Omni  bool // it joins the machine to Omni
	// Encryption says how it encrypts volumes, if it differs from what the node runs.
	Encryption []Encryption
	Err        error // why it can't be used, or not compared with what the node runs
	// Volumes are those that it defines; nil where the node has none yet, or the file says what the node runs.
	Volumes []ConfigVolume
	// Selectors are what it selects on the machine, if it differs from what the node runs.
	Selectors []DiskSelector
}

// Talosconfig stands for a node where no node shows a configuration: of a file only the CA of Talos was
// compared, with the one that the talosconfig trusts.
const Talosconfig = "the talosconfig"

// NodeRole is the node's role as part of its identity.
const NodeRole = "the node's role"

// TalosCA is the CA of Talos as part of a node's identity.
const TalosCA = "the CA of Talos"

// NeutralPatch sets what recast sets itself to the same values in every configuration, so that no
// two differ by it.
var NeutralPatch = ConfigPatch{Installer: "recast.invalid/installer@sha256:" + strings.Repeat("0", 64), Disk: MachineDisk{Serial: "recast"}, Hostname: "recast"}

// Text returns the hash of a configuration's content.
func Text(text Secret) (string, error) {
	docs, err := config.Parse(text)
	if err != nil {
		return "", fault.MachineConfig.Refusedf("not a machine configuration: %w", err)
	}
	return docs.Hash(), nil
}

// OfTypeInit says whether a configuration is of machine.type init. One that can't be read is not: Talos
// refuses it.
func OfTypeInit(text Secret) bool {
	docs, err := config.Parse(text)
	return err == nil && docs.TypeInit()
}

// HashOf returns what binds a plan to a node's file; "" if no file is applied.
func (f *ConfigFile) HashOf() (file, runs string) {
	if f == nil || !f.Applied {
		return "", ""
	}
	return f.Hash, f.Runs
}

// ErrConfigDamaged says that the machine configuration in a journal does not match the checksum in
// the record.
var ErrConfigDamaged = errors.New("the machine configuration in the journal is damaged")

// ConfigSum is the SHA-256 of a machine configuration, in hex.
func ConfigSum(config []byte) string {
	sum := sha256.Sum256(config)
	return hex.EncodeToString(sum[:])
}

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
