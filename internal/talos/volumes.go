package talos

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	blockpb "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/block"
	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	"github.com/siderolabs/talos/pkg/machinery/config"
	configs "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/types/block"
	"github.com/siderolabs/talos/pkg/machinery/config/types/block/blockhelpers"
	"github.com/siderolabs/talos/pkg/machinery/config/types/storage"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/proto"
	blockres "github.com/siderolabs/talos/pkg/machinery/resources/block"

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
	var out []cluster.ConfigVolume
	for _, v := range append(systemVolumes(cfg, talos), userVolumes(cfg)...) {
		out = append(out, v.ConfigVolume)
	}
	return out, nil
}

// configVolume is a volume of a configuration, with the selector of the volume's disk, or of the volume itself.
type configVolume struct {
	cluster.ConfigVolume
	expr *cel.Expression // nil: none
	kind cluster.SelectorKind
}

// partitionVolume returns a volume that Talos makes on a disk. The caller adds the names.
func partitionVolume(p configs.VolumeProvisioningConfig, e configs.EncryptionConfig) configVolume {
	v := configVolume{kind: cluster.ForPartition}
	v.Type, v.Encryption = cluster.PartitionVolume, volumeEncryption(e)
	if expr, chosen := p.DiskSelector().Get(); chosen {
		v.Place, v.expr = expr.String(), &expr
	}
	return v
}

// systemVolumes returns the volumes that every machine has, as volumeconfig/system_volumes.go reads them.
func systemVolumes(cfg config.Config, talos string) []configVolume {
	var out []configVolume
	add := func(id string, v configVolume) {
		v.ID, v.Document = id, block.VolumeConfigKind+" "+id
		out = append(out, v)
	}
	for _, id := range []string{constants.StatePartitionLabel, constants.EphemeralPartitionLabel} {
		of, _ := cfg.Volumes().ByName(id)
		encryption := of.Encryption()
		if encryption == nil {
			encryption = cfg.Machine().SystemDiskEncryption().Get(id)
		}
		add(id, partitionVolume(of.Provisioning(), encryption))
	}
	version, err := cluster.ParseVersion(talos)
	since, _ := cluster.ParseVersion(promotableSince)
	for _, id := range configs.PromotableSystemVolumeNames {
		of, _ := cfg.Volumes().ByName(id)
		v := configVolume{ConfigVolume: cluster.ConfigVolume{Type: cluster.DirectoryVolume}}
		if block.ProvisioningRequested(of.Provisioning()) && (err != nil || !version.Before(since)) {
			v = partitionVolume(of.Provisioning(), of.Encryption())
		}
		add(id, v)
	}
	return out
}

// promotableSince is the first Talos in which ETCD, CRI, KUBELET and LOG can be partitions.
const promotableSince = "v1.14.0-alpha.0"

// userVolumes returns the volumes that documents name (volumeconfig/user_volumes.go), and the volumes of
// machine.disks (user_disk_config.go).
func userVolumes(cfg config.Config) []configVolume {
	var out []configVolume
	add := func(prefix, kind, name string, v configVolume) {
		v.ID, v.Document = prefix+name, kind+" "+name
		out = append(out, v)
	}
	for _, u := range cfg.UserVolumeConfigs() {
		kind := u.Type().ValueOr(blockres.VolumeTypePartition)
		var v configVolume
		if kind != blockres.VolumeTypeDirectory {
			v = partitionVolume(u.Provisioning(), u.Encryption())
			v.Filesystem = u.Filesystem().Type().String()
		}
		if v.Type, v.Found = cluster.VolumeType(kind.String()), kind == blockres.VolumeTypeDisk; v.Found {
			v.kind = cluster.ForWholeDisk
		}
		add(constants.UserVolumePrefix, block.UserVolumeConfigKind, u.Name(), v)
	}
	for _, r := range cfg.RawVolumeConfigs() {
		add(constants.RawVolumePrefix, block.RawVolumeConfigKind, r.Name(), partitionVolume(r.Provisioning(), r.Encryption()))
	}
	for _, s := range cfg.SwapVolumeConfigs() {
		v := partitionVolume(s.Provisioning(), s.Encryption())
		add(constants.SwapVolumePrefix, block.SwapVolumeConfigKind, s.Name(), v)
	}
	for _, e := range cfg.ExistingVolumeConfigs() {
		selector := e.VolumeDiscovery().VolumeSelector()
		add(constants.ExistingVolumePrefix, block.ExistingVolumeConfigKind, e.Name(), configVolume{
			ConfigVolume: cluster.ConfigVolume{Type: cluster.PartitionVolume, Place: selector.String(), Found: true},
			kind:         cluster.ForExisting, expr: &selector,
		})
	}
	for _, e := range cfg.ExternalVolumeConfigs() {
		v := cluster.ConfigVolume{Type: cluster.ExternalVolume, Place: e.Type().String(), Found: true}
		if fs, is := e.Mount().Virtiofs().Get(); is {
			v.Place += " " + fs.Source()
		}
		add(constants.ExternalVolumePrefix, block.ExternalVolumeConfigKind, e.Name(), configVolume{ConfigVolume: v})
	}
	for _, d := range cfg.Machine().Disks() {
		for i, p := range d.Partitions() {
			out = append(out, configVolume{ConfigVolume: cluster.ConfigVolume{
				ID: fmt.Sprintf("%s-%d", d.Device(), i+1), Document: "machine.disks " + d.Device(), Type: cluster.PartitionVolume, Mount: p.MountPoint(), Found: true,
			}})
		}
	}
	return out
}

// volumeEncryption returns an encryption without its secrets. It leaves out options that only change the speed.
func volumeEncryption(e configs.EncryptionConfig) cluster.VolumeEncryption {
	if e == nil || e.Provider() == blockres.EncryptionProviderNone {
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

// unguessable keys the hashes of encryption keys, so that nobody can compare the hash of a short passphrase with
// guesses.
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

// volumePrefix is the prefix that Talos puts before the name in a document of that kind to name the volume.
var volumePrefix = map[string]string{
	"VolumeConfig": "", "UserVolumeConfig": constants.UserVolumePrefix,
	"RawVolumeConfig": constants.RawVolumePrefix, "SwapVolumeConfig": constants.SwapVolumePrefix,
}

// encryptionSpec is how a volume is encrypted. The keys stay undecoded, so that recast sees what a newer Talos adds.
type encryptionSpec struct {
	Provider string           `yaml:"provider"`
	Keys     []map[string]any `yaml:"keys"`
}

// volumeDocument is the part that recast reads of the main document and of volume documents.
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

// encryption lists the volumes that a configuration encrypts, by name. Its errors do not quote the configuration.
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

// volume returns the encryption of a volume, or nothing without encryption. One key locked to STATE is enough to
// count as locked: recast does not know which key opened a volume.
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

// selector is a selector of disks or volumes in a configuration.
type selector struct {
	cluster.DiskSelector
	expr cel.Expression // none for a device of machine.disks
}

// Selectors implements cluster.Maintenance.
func (c *Client) Selectors(ctx context.Context, addr netip.Addr, blank bool, text cluster.Secret, talos string) ([]cluster.DiskSelector, error) {
	cfg, _, err := loadKnown(text)
	if err != nil {
		return nil, err
	}
	if cfg.Machine() == nil {
		return nil, nil // ConfigVolumes refuses such a configuration
	}
	all := selectorsOf(cfg, talos)
	if len(all) == 0 {
		return nil, nil
	}
	out := make([]cluster.DiskSelector, 0, len(all))
	on, unknown := c.selectable(ctx, addr, blank)
	on.cfg = cfg
	for _, s := range all {
		if s.Unknown = unknown; unknown == "" {
			s.evaluate(on)
		}
		out = append(out, s.DiskSelector)
	}
	return out, nil
}

// selectable is the view of a machine on which selectors are evaluated.
type selectable struct {
	blockView
	system string // device of the system disk: "sda"; "": there is none yet
	cfg    config.Provider
}

// selectable reads a machine; unknown says why the read failed.
func (c *Client) selectable(ctx context.Context, addr netip.Addr, blank bool) (on selectable, unknown string) {
	if !addr.IsValid() {
		return on, "its disks are not known before its machine runs"
	}
	call := func(do func(context.Context, session) error) error { return c.call(ctx, addr.String(), do) }
	if blank {
		call = func(do func(context.Context, session) error) error { return c.callBlank(ctx, addr, do) }
	}
	err := call(func(ctx context.Context, s session) error { return on.read(ctx, s, &on.system, true) })
	if err != nil {
		return on, "its disks could not be read: " + err.Error()
	}
	slices.SortFunc(on.disks, func(a, b *blockres.Disk) int { return cmp.Compare(a.Metadata().ID(), b.Metadata().ID()) }) // as Talos lists them
	return on, ""
}

// selectorsOf returns the selectors of all documents that select a disk, or something on a disk.
func selectorsOf(cfg config.Provider, talos string) (out []selector) {
	add := func(kind cluster.SelectorKind, id, document string, expr cel.Expression) {
		out = append(out, selector{cluster.DiskSelector{ID: id, Document: document, Match: expr.String(), Kind: kind}, expr})
	}
	volumes := systemVolumes(cfg, talos)
	if cache := cfg.ImageCacheConfig(); cache != nil && cache.LocalEnabled() {
		of, _ := cfg.Volumes().ByName(constants.ImageCachePartitionLabel)
		v := partitionVolume(of.Provisioning(), nil)
		v.ID, v.Document = constants.ImageCachePartitionLabel, block.VolumeConfigKind+" "+constants.ImageCachePartitionLabel
		volumes = append(volumes, v)
	}
	for _, v := range append(volumes, userVolumes(cfg)...) {
		if v.expr != nil {
			add(v.kind, v.ID, v.Document, *v.expr)
		}
	}
	for _, r := range cfg.RAIDArrayConfigs() {
		add(cluster.ForMembers, "", storage.RAIDArrayConfigKind+" "+r.Name(), r.Provisioning().VolumeSelector())
	}
	for _, g := range cfg.LVMVolumeGroupConfigs() {
		add(cluster.ForMembers, "", storage.LVMVolumeGroupConfigKind+" "+g.Name(), g.PhysicalVolumeSelector())
	}
	if u := cfg.UnattendedInstallConfig(); u != nil { // it replaces the section install of the main document
		add(cluster.ForInstall, "", installKind, u.VolumeSelector())
	}
	if expr, err := cfg.Machine().Install().DiskMatchExpression(); err == nil && expr != nil {
		add(cluster.ForInstall, "", "machine.install.diskSelector", *expr)
	}
	for _, d := range cfg.Machine().Disks() {
		id := fmt.Sprintf("%s-%d", d.Device(), 1)
		out = append(out, selector{DiskSelector: cluster.DiskSelector{ID: id, Document: "machine.disks " + d.Device(), Match: d.Device(), Kind: cluster.ForDevice}})
	}
	return out
}

// selecting says how Talos looks for the matches of each kind of selector.
var selecting = map[cluster.SelectorKind]func(selectable, selector) ([]string, error){
	cluster.ForPartition: func(on selectable, s selector) ([]string, error) {
		return on.disksWith(s.expr, provisionable, func(id string) map[string]any {
			if on.system == "" {
				return nil
			}
			return map[string]any{"system_disk": id == on.system}
		})
	},
	// as locateDiskByDiskMatch, which has no system_disk, and takes every kind of disk
	cluster.ForWholeDisk: func(on selectable, s selector) ([]string, error) {
		return on.disksWith(s.expr, anyDisk, func(string) map[string]any { return nil })
	},
	// as MatchDisks in blockhelpers
	cluster.ForInstall: func(on selectable, s selector) ([]string, error) {
		return on.disksWith(s.expr, anyDisk, func(string) map[string]any { return map[string]any{"system_disk": false} })
	},
	cluster.ForDevice:   selectable.deviceOf,
	cluster.ForExisting: selectable.existing,
	cluster.ForMembers:  selectable.members,
}

// evaluate sets the matches of the selector on a machine.
func (s *selector) evaluate(on selectable) {
	found, err := selecting[s.Kind](on, *s)
	switch {
	case err == nil:
	case on.system == "" && s.Kind == cluster.ForPartition && strings.Contains(err.Error(), "system_disk"):
		s.Unknown = "which one is the system disk is not known before Talos is installed"
	default:
		s.Broken = err.Error()
	}
	if makes := len(on.cfg.RAIDArrayConfigs()) + len(on.cfg.LVMLogicalVolumeConfigs()); len(found) == 0 && err == nil && makes > 0 && s.Kind != cluster.ForInstall && s.Kind != cluster.ForMembers {
		s.Unknown = "the arrays and logical volumes of its configuration may not be there yet"
	}
	s.Found = found
	onSystem := func(device string) bool {
		if part := on.whole(device); part != nil {
			device = cmp.Or(part.Parent, device)
		}
		return device == on.system
	}
	if i := slices.IndexFunc(found, onSystem); i >= 0 && on.system != "" {
		s.System = found[i]
	}
}

func anyDisk(*blockres.DiskSpec) bool { return true }

// provisionable reports whether Talos makes partitions on the disk (findCandidateDisks; a CD has another format, or
// none).
func provisionable(d *blockres.DiskSpec) bool { return !d.Readonly && !d.CDROM }

// disksWith returns the disks that an expression matches; vars are the variables of the expression besides disk.
func (on selectable) disksWith(expr cel.Expression, kept func(*blockres.DiskSpec) bool, vars func(id string) map[string]any) (found []string, err error) {
	for _, d := range on.disks {
		if !kept(d.TypedSpec()) {
			continue
		}
		spec := &blockpb.DiskSpec{}
		if err := proto.ResourceSpecToProto(d, spec); err != nil {
			return nil, fmt.Errorf("read disk %s: %w", d.Metadata().ID(), err)
		}
		with := map[string]any{"disk": spec}
		maps.Copy(with, vars(d.Metadata().ID()))
		matches, err := expr.EvalBool(celenv.DiskLocator(), with)
		if err != nil {
			return nil, err
		}
		if matches {
			found = append(found, d.Metadata().ID())
		}
	}
	return found, nil
}

// deviceOf returns the disk at a path of machine.disks.
func (on selectable) deviceOf(s selector) ([]string, error) {
	for _, d := range on.disks {
		if spec := d.TypedSpec(); spec.DevPath == s.Match || slices.Contains(spec.Symlinks, s.Match) {
			return []string{d.Metadata().ID()}, nil
		}
	}
	return nil, nil
}

// existing returns the matching volumes among those that already exist. Talos takes the first match
// (locateVolumeByMatch) and ignores an error after it.
func (on selectable) existing(s selector) (found []string, err error) {
	disks := map[string]*blockpb.DiskSpec{}
	for _, d := range on.disks {
		spec := &blockpb.DiskSpec{}
		if err := proto.ResourceSpecToProto(d, spec); err != nil {
			return nil, fmt.Errorf("read disk %s: %w", d.Metadata().ID(), err)
		}
		disks[spec.DevPath] = spec
	}
	volumes := slices.SortedFunc(slices.Values(on.volumes), func(a, b *blockres.DiscoveredVolume) int { return cmp.Compare(a.Metadata().ID(), b.Metadata().ID()) })
	for _, v := range volumes {
		spec := &blockpb.DiscoveredVolumeSpec{}
		if err := proto.ResourceSpecToProto(v, spec); err != nil {
			return nil, fmt.Errorf("read volume %s: %w", v.Metadata().ID(), err)
		}
		with := map[string]any{"volume": spec}
		if disk := disks[cmp.Or(spec.ParentDevPath, spec.DevPath)]; disk != nil {
			with["disk"] = disk
		}
		matches, err := s.expr.EvalBool(celenv.VolumeLocator(), with)
		if err != nil && len(found) == 0 {
			return nil, err
		}
		if matches && err == nil {
			found = append(found, v.Metadata().ID())
		}
	}
	return found, nil
}

// members returns the devices from which Talos can make a volume group or an array (matchingMemberDevices in
// controllers/storage/md_array_reconcile.go).
func (on selectable) members(s selector) (found []string, err error) {
	system := ""
	if on.system != "" {
		system = "/dev/" + on.system
	}
	contexts, err := blockhelpers.BuildMatchContexts(on.disks, on.volumes, on.statuses, on.cfg, system)
	if err != nil {
		return nil, err
	}
	for _, c := range contexts {
		if c.Partitioned || c.SystemDisk && strings.HasPrefix(s.Document, storage.RAIDArrayConfigKind) {
			continue
		}
		matches, err := s.expr.EvalBool(celenv.MemberVolumeLocator(), c.CELContext)
		if err != nil {
			return nil, err
		}
		if matches {
			found = append(found, strings.TrimPrefix(c.DevPath, "/dev/"))
		}
	}
	return found, nil
}
