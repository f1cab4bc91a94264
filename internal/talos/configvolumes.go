package talos

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/siderolabs/talos/pkg/machinery/config"
	configs "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/types/block"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	resources "github.com/siderolabs/talos/pkg/machinery/resources/block"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// ConfigVolumes implements cluster.Maintenance.
func (*Client) ConfigVolumes(text cluster.Secret, talos string) ([]cluster.ConfigVolume, error) {
	cfg, _, err := loadKnown(text)
	if err != nil {
		return nil, err
	}
	if cfg.RawV1Alpha1() == nil || cfg.Machine() == nil {
		return nil, fault.MachineConfig.Refusedf("the main document, with machine and cluster, is missing")
	}
	return append(systemVolumes(cfg, talos), userVolumes(cfg)...), nil
}

// systemVolumes are those that every machine has, as volumeconfig/system_volumes.go reads them.
func systemVolumes(cfg config.Config, talos string) []cluster.ConfigVolume {
	var out []cluster.ConfigVolume
	for _, id := range []string{constants.StatePartitionLabel, constants.EphemeralPartitionLabel} {
		of, _ := cfg.Volumes().ByName(id)
		encryption := of.Encryption()
		if encryption == nil {
			encryption = cfg.Machine().SystemDiskEncryption().Get(id)
		}
		out = append(out, cluster.ConfigVolume{
			ID: id, Document: block.VolumeConfigKind + " " + id, Type: cluster.PartitionVolume,
			Place: selected(of.Provisioning()), Encryption: volumeEncryption(encryption),
		})
	}
	version, err := cluster.ParseVersion(talos)
	since, _ := cluster.ParseVersion(promotableSince)
	for _, id := range configs.PromotableSystemVolumeNames {
		of, _ := cfg.Volumes().ByName(id)
		v := cluster.ConfigVolume{ID: id, Document: block.VolumeConfigKind + " " + id, Type: cluster.DirectoryVolume}
		if block.ProvisioningRequested(of.Provisioning()) && (err != nil || !version.Before(since)) {
			v.Type, v.Place, v.Encryption = cluster.PartitionVolume, selected(of.Provisioning()), volumeEncryption(of.Encryption())
		}
		out = append(out, v)
	}
	return out
}

// promotableSince is the first Talos in which ETCD, CRI, KUBELET and LOG can be partitions.
const promotableSince = "v1.14.0-alpha.0"

// userVolumes are those that documents name (volumeconfig/user_volumes.go), and machine.disks (user_disk_config.go).
func userVolumes(cfg config.Config) []cluster.ConfigVolume {
	var out []cluster.ConfigVolume
	add := func(prefix, kind, name string, v cluster.ConfigVolume) {
		v.ID, v.Document = prefix+name, kind+" "+name
		out = append(out, v)
	}
	partition := func(prefix, kind, name string, p configs.VolumeProvisioningConfig, e configs.EncryptionConfig) {
		add(prefix, kind, name, cluster.ConfigVolume{Type: cluster.PartitionVolume, Place: selected(p), Encryption: volumeEncryption(e)})
	}
	for _, u := range cfg.UserVolumeConfigs() {
		kind := u.Type().ValueOr(resources.VolumeTypePartition)
		v := cluster.ConfigVolume{Type: cluster.VolumeType(kind.String()), Found: kind == resources.VolumeTypeDisk}
		if kind != resources.VolumeTypeDirectory {
			v.Place, v.Encryption, v.Filesystem = selected(u.Provisioning()), volumeEncryption(u.Encryption()), u.Filesystem().Type().String()
		}
		add(constants.UserVolumePrefix, block.UserVolumeConfigKind, u.Name(), v)
	}
	for _, r := range cfg.RawVolumeConfigs() {
		partition(constants.RawVolumePrefix, block.RawVolumeConfigKind, r.Name(), r.Provisioning(), r.Encryption())
	}
	for _, s := range cfg.SwapVolumeConfigs() {
		partition(constants.SwapVolumePrefix, block.SwapVolumeConfigKind, s.Name(), s.Provisioning(), s.Encryption())
	}
	for _, e := range cfg.ExistingVolumeConfigs() {
		selector := e.VolumeDiscovery().VolumeSelector()
		add(constants.ExistingVolumePrefix, block.ExistingVolumeConfigKind, e.Name(), cluster.ConfigVolume{Type: cluster.PartitionVolume, Place: selector.String(), Found: true})
	}
	for _, e := range cfg.ExternalVolumeConfigs() {
		v := cluster.ConfigVolume{Type: cluster.ExternalVolume, Place: e.Type().String(), Found: true}
		if fs, is := e.Mount().Virtiofs().Get(); is {
			v.Place += " " + fs.Source()
		}
		add(constants.ExternalVolumePrefix, block.ExternalVolumeConfigKind, e.Name(), v)
	}
	for _, d := range cfg.Machine().Disks() {
		for i, p := range d.Partitions() {
			out = append(out, cluster.ConfigVolume{
				ID: fmt.Sprintf("%s-%d", d.Device(), i+1), Document: "machine.disks " + d.Device(), Type: cluster.PartitionVolume, Mount: p.MountPoint(), Found: true,
			})
		}
	}
	return out
}

func selected(p configs.VolumeProvisioningConfig) string {
	expr, chosen := p.DiskSelector().Get()
	if !chosen {
		return ""
	}
	return expr.String()
}

// volumeEncryption is an encryption without its secrets. Options that only change how fast it is are left out.
func volumeEncryption(e configs.EncryptionConfig) cluster.VolumeEncryption {
	if e == nil || e.Provider() == resources.EncryptionProviderNone {
		return cluster.VolumeEncryption{}
	}
	out := cluster.VolumeEncryption{
		Format: fmt.Sprint(e.Provider(), " ", cmp.Or(e.Cipher(), "aes-xts-plain64"), " ", e.KeySize(), " ", e.BlockSize()),
		Keys:   map[int]string{},
	}
	for _, k := range e.Keys() {
		out.Keys[k.Slot()] = keyOf(k)
	}
	return out
}

// unguessable keeps what is made of a short passphrase from being compared with guesses.
var unguessable = rand.Text()

func keyOf(k configs.EncryptionKey) string {
	h := hmac.New(sha256.New, []byte(unguessable))
	fmt.Fprint(h, k.LockToSTATE())
	if s := k.Static(); s != nil {
		fmt.Fprintf(h, " static %x", s.Key())
	}
	if k.NodeID() != nil {
		fmt.Fprint(h, " nodeID")
	}
	if s := k.KMS(); s != nil {
		fmt.Fprintf(h, " kms %q", s.Endpoint())
	}
	if s := k.TPM(); s != nil {
		fmt.Fprint(h, " tpm")
	}
	return hex.EncodeToString(h.Sum(nil))
}

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
