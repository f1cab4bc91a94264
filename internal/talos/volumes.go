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
	"path"
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
	storageres "github.com/siderolabs/talos/pkg/machinery/resources/storage"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

func (*Client) ConfigVolumes(text cluster.Secret, talos string) ([]cluster.ConfigVolume, error) {
	cfg, _, err := loadKnown(text)
	if err != nil {
		return nil, err
	}
	if cfg.RawV1Alpha1() == nil || cfg.Machine() == nil {
		return nil, fault.MachineConfig.Refusedf("the main document, with machine and cluster, is missing")
	}
	all := append(systemVolumes(cfg, talos), userVolumes(cfg)...)
	return cluster.Each(all, func(v configVolume) cluster.ConfigVolume { return v.ConfigVolume }), nil
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

type selector struct {
	cluster.DiskSelector
	expr cel.Expression // none for a device of machine.disks
}

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

// blockView holds a machine's disks and their contents, as the machine's resources report them.
type blockView struct {
	disks    []*blockres.Disk
	volumes  []*blockres.DiscoveredVolume
	statuses []*blockres.VolumeStatus
	physical []*storageres.LVMPhysicalVolumeStatus
}

// imageMeta is the UUID of the partition META in each disk image since Talos 1.13. An installer makes a new UUID for
// each disk, and an upgrade leaves the partitions as they are (createPartitions in
// cmd/installer/pkg/install/install.go, and GUIDFromLabel in pkg/makefs).
const imageMeta = "cf04f137-101e-8ec6-9627-fa3f51cdabb8"

func isImageMeta(v *blockres.VolumeStatus) bool {
	return v.Metadata().ID() == constants.MetaPartitionLabel && strings.EqualFold(v.TypedSpec().PartitionUUID, imageMeta)
}

// readDisks does the same as readBlock without the disks' contents: no disk counts as blank.
func readDisks(ctx context.Context, s session, m *cluster.Machine) error {
	var v blockView
	err := v.read(ctx, s, &m.SystemDisk, false)
	m.FromImage = slices.ContainsFunc(v.statuses, isImageMeta)
	m.Disks, m.VolumeStatuses = v.machineDisks(), v.volumeStatuses()
	return err
}

// read reads everything except physical, and the device of the system disk. It reads the volumes only with contents.
func (v *blockView) read(ctx context.Context, s session, system *string, contents bool) error {
	reads := []func() error{
		listing(ctx, s, blockres.NewDisk(blockres.NamespaceName, "").Metadata(), &v.disks),
		getting(ctx, s, blockres.NewSystemDisk(blockres.NamespaceName, blockres.SystemDiskID).Metadata(), func(d *blockres.SystemDisk) {
			*system = d.TypedSpec().DiskID
		}),
		listing(ctx, s, blockres.NewVolumeStatus(blockres.NamespaceName, "").Metadata(), &v.statuses),
	}
	if contents {
		reads = append(reads, listing(ctx, s, blockres.NewDiscoveredVolume(blockres.NamespaceName, "").Metadata(), &v.volumes))
	}
	return inParallel(reads...)
}

func readBlock(ctx context.Context, s session, m *cluster.Machine) error {
	var v blockView
	err := v.read(ctx, s, &m.SystemDisk, true)
	if err != nil {
		return err
	}
	if v.physical, err = readPhysicalVolumes(ctx, s, v.volumes); err != nil {
		return err
	}
	m.FromImage = slices.ContainsFunc(v.statuses, isImageMeta)
	m.Disks, m.Volumes, m.VolumeStatuses, m.PoolMembers = v.machineDisks(), v.machineVolumes(), v.volumeStatuses(), v.poolMembers()
	if !s.blank {
		return nil
	}
	for _, d := range m.Disks {
		if v.whole(d.Device) == nil {
			m.Unmet = append(m.Unmet, "disks: "+d.Device+" has not been probed yet")
		}
	}
	m.Ready = m.Ready && len(m.Unmet) == 0
	return nil
}

// virtualDisks are the name prefixes of block devices that are not drives of the VM: the kernel makes these devices
// from other devices or from the network.
var virtualDisks = []string{"loop", "ram", "zram", "dm-", "md", "nbd", "rbd", "drbd"}

func isDrive(d *blockres.Disk) bool {
	spec := d.TypedSpec()
	return !spec.CDROM && !spec.Readonly && len(spec.SecondaryDisks) == 0 &&
		!slices.ContainsFunc(virtualDisks, func(prefix string) bool { return strings.HasPrefix(d.Metadata().ID(), prefix) })
}

func (v blockView) machineDisks() []cluster.MachineDisk {
	var out []cluster.MachineDisk
	for _, d := range v.disks {
		if !isDrive(d) {
			continue
		}
		spec, device := d.TypedSpec(), d.Metadata().ID()
		out = append(out, cluster.MachineDisk{
			Device: device, Serial: spec.Serial, WWID: spec.WWID, BusPath: spec.BusPath, SizeBytes: spec.Size, Blank: v.blank(device),
		})
	}
	slices.SortFunc(out, func(a, b cluster.MachineDisk) int { return cmp.Compare(a.Device, b.Device) })
	return out
}

// whole returns what was found on the disk as a whole; nil if the disk was not probed.
func (v blockView) whole(disk string) *blockres.DiscoveredVolumeSpec {
	if found, there := byID(v.volumes, disk); there {
		return found.TypedSpec()
	}
	return nil
}

func (v blockView) blank(disk string) bool {
	whole := v.whole(disk)
	if whole == nil || whole.Name != "" || whole.UUID != "" || whole.Label != "" {
		return false
	}
	return !slices.ContainsFunc(v.volumes, func(found *blockres.DiscoveredVolume) bool { return found.TypedSpec().Parent == disk })
}

// partitionTables are the formats of a partitioned disk as a whole. Such a disk is not itself a volume.
var partitionTables = []string{"", "gpt", "mbr", "dos"}

// machineVolumes returns the drives' partitions, and the drives that consist of one filesystem.
func (v blockView) machineVolumes() []cluster.Volume {
	drives := map[string]bool{}
	for _, d := range v.disks {
		drives[d.Metadata().ID()] = isDrive(d)
	}
	var out []cluster.Volume
	for _, found := range v.volumes {
		spec, device := found.TypedSpec(), found.Metadata().ID()
		disk := cmp.Or(spec.Parent, device)
		if !drives[disk] || disk == device && slices.Contains(partitionTables, spec.Name) {
			continue
		}
		of := v.managed(spec)
		volume := cluster.Volume{
			Device: device, Disk: disk, Label: spec.PartitionLabel,
			PartitionUUID: spec.PartitionUUID, FilesystemUUID: spec.UUID, FilesystemLabel: spec.Label, Format: spec.Name,
		}
		if of != nil {
			volume.ID, volume.Phase = of.Metadata().ID(), of.TypedSpec().Phase.String()
			if of.TypedSpec().Location != "" {
				volume.Mount = mountOf(of.TypedSpec().MountSpec)
			}
		}
		out = append(out, volume)
	}
	slices.SortFunc(out, func(a, b cluster.Volume) int { return cmp.Compare(a.Device, b.Device) })
	return out
}

// managed returns the Talos volume on this device, or the volume that Talos would put on this partition because of
// its label; nil if there is none. A volume that Talos has elsewhere does not count. A volume that is a directory
// does not count either: Talos 1.14 has ETCD, CRI, KUBELET and LOG on EPHEMERAL, whatever partition has that label,
// unless its configuration provisions them (volumeconfig/system_volumes.go, GetPromotableSystemVolumesTransformer).
func (v blockView) managed(found *blockres.DiscoveredVolumeSpec) *blockres.VolumeStatus {
	for _, s := range v.statuses {
		if location := s.TypedSpec().Location; location != "" && location == found.DevPath {
			return s
		}
	}
	for _, s := range v.statuses {
		if spec := s.TypedSpec(); spec.Location == "" && found.PartitionLabel != "" && s.Metadata().ID() == found.PartitionLabel && spec.Type == blockres.VolumeTypePartition {
			return s
		}
	}
	return nil
}

// readPhysicalVolumes reads LVM's physical volumes, if the machine has any. Talos reports physical volumes since 1.14
// (LVMScanController, controllers/storage).
func readPhysicalVolumes(ctx context.Context, s session, volumes []*blockres.DiscoveredVolume) ([]*storageres.LVMPhysicalVolumeStatus, error) {
	if !slices.ContainsFunc(volumes, func(found *blockres.DiscoveredVolume) bool { return found.TypedSpec().Name == cluster.FormatLVM }) {
		return nil, nil
	}
	return list[*storageres.LVMPhysicalVolumeStatus](ctx, s, storageres.NewLVMPhysicalVolumeStatus(storageres.NamespaceName, "").Metadata())
}

// poolMembers returns the devices that carry a part of a volume group or of a ZFS pool. A part on a network device
// (RBD) is not on this machine.
func (v blockView) poolMembers() []cluster.PoolMember {
	var out []cluster.PoolMember
	seen := map[string]bool{}
	for _, found := range v.volumes {
		spec, device := found.TypedSpec(), found.Metadata().ID()
		on := cmp.Or(spec.Parent, device)
		if spec.Name != cluster.FormatLVM && spec.Name != cluster.FormatZFS || strings.HasPrefix(on, "rbd") {
			continue
		}
		member := cluster.PoolMember{Device: device, Disks: v.drivesUnder(on), Format: spec.Name}
		if spec.Name == cluster.FormatLVM {
			// The probe has the UUID of the physical volume as its label (blkid, filesystems/lvm2).
			seen[spec.Label] = true
			member.Group = v.groupOf(spec.Label)
		}
		out = append(out, member)
	}
	for _, pv := range v.physical {
		if spec := pv.TypedSpec(); !seen[spec.UUID] { // missing, or on a device that was not probed
			out = append(out, cluster.PoolMember{Device: strings.TrimPrefix(spec.Device, "/dev/"), Format: cluster.FormatLVM, Group: spec.VGName})
		}
	}
	slices.SortFunc(out, func(a, b cluster.PoolMember) int { return cmp.Compare(a.Device, b.Device) })
	return out
}

func (v blockView) groupOf(uuid string) string {
	for _, pv := range v.physical {
		if uuid != "" && pv.TypedSpec().UUID == uuid {
			return pv.TypedSpec().VGName
		}
	}
	return ""
}

// drivesUnder returns the drives below a device: the device itself, or the drives below an encrypted, mapped or
// mirrored device. It returns none if one of them is not a drive.
func (v blockView) drivesUnder(device string) []string {
	disk, found := byID(v.disks, device)
	switch {
	case !found:
		return nil
	case isDrive(disk):
		return []string{device}
	}
	var out []string
	for _, below := range disk.TypedSpec().SecondaryDisks {
		if below == device {
			return nil
		}
		drives := v.drivesUnder(below)
		if len(drives) == 0 {
			return nil
		}
		out = append(out, drives...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// holding are the types of volumes that hold data. Talos makes volumes of other types anew at each boot, as well as
// the directories that every machine has (volumeconfig/system_volumes.go), whose IDs are paths.
var holding = []blockres.VolumeType{blockres.VolumeTypePartition, blockres.VolumeTypeDisk, blockres.VolumeTypeDirectory, blockres.VolumeTypeExternal}

// volumeStatuses returns the volumes of the machine's configuration that hold data, sorted by ID.
func (v blockView) volumeStatuses() []cluster.VolumeStatus {
	var out []cluster.VolumeStatus
	for _, s := range v.statuses {
		id, spec := s.Metadata().ID(), s.TypedSpec()
		if !slices.Contains(holding, spec.Type) || spec.Type == blockres.VolumeTypeDirectory && path.IsAbs(id) {
			continue
		}
		out = append(out, cluster.VolumeStatus{
			ID: id, Type: cluster.VolumeType(spec.Type.String()), Phase: spec.Phase.String(), Error: spec.ErrorMessage,
			Location: spec.Location, Disk: v.driveAt(spec.Location), Mount: mountOf(spec.MountSpec), Slot: spec.EncryptionSlot,
		})
	}
	slices.SortFunc(out, func(a, b cluster.VolumeStatus) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// driveAt returns the drive that is the device, or that has the device as a partition; "" if there is none.
func (v blockView) driveAt(location string) string {
	device, is := strings.CutPrefix(location, "/dev/")
	if !is {
		return ""
	}
	for _, found := range v.volumes {
		if spec := found.TypedSpec(); spec.DevPath == location {
			device = cmp.Or(spec.Parent, found.Metadata().ID())
		}
	}
	if d, found := byID(v.disks, device); !found || !isDrive(d) {
		return ""
	}
	return device
}

// mountOf returns the path at which Talos mounts a volume. The parent of a mount is a directory, or EPHEMERAL
// (volumeconfig/system_volumes.go).
func mountOf(spec blockres.MountSpec) string {
	switch target, parent := spec.TargetPath, spec.ParentID; {
	case target == "":
	case parent == constants.EphemeralPartitionLabel:
		return path.Join(constants.EphemeralMountPoint, target)
	case path.IsAbs(parent):
		return path.Join(parent, target)
	case parent == "" && path.IsAbs(target):
		return path.Clean(target)
	}
	return ""
}
