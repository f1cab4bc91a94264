package parking

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/format"
	"github.com/recast-sh/recast/internal/words"
)

// DescriptionChanged is the error of a parking VM that has lost its record.
func DescriptionChanged(vm cluster.VM, node string) error {
	return fault.WithHint(fault.ParkedHalf.Refusedf("%s was the parking VM of %s, but its description no longer says so", vm, node),
		"someone edited the description of VM %d, whose last line says where disks are: put that line back as it was; recast can't continue without it", vm.ID)
}

// Intent is written before a disk is handed over. Proxmox renames the volume, then writes the source's configuration,
// then the target's: after a crash, the intent identifies the volume that lost its name.
type Intent struct {
	From    cluster.VMID `json:"from"`
	Key     string       `json:"key"`
	Volid   string       `json:"volid"`
	To      cluster.VMID `json:"to"`
	ToKey   string       `json:"toKey"`
	Options string       `json:"options,omitempty"` // on the target
	Unnamed []string     `json:"unnamed,omitempty"` // volumes of either VM that no configuration named before
}

// KeptDisk is an old system disk that stays parked, for a rollback.
type KeptDisk struct {
	Key string `json:"key"` // on the parking VM
	Run string `json:"run"` // the run that replaced it
	// Replaced is when its replacement was finished: runs never overlap, so it tells their order. Zero: the disk
	// was given up, or its node was removed.
	Replaced   time.Time `json:"replaced,omitzero"`
	Nth        int       `json:"nth,omitempty"`     // of the node's replaced system disks, from 1; 0: not counted
	Slot       string    `json:"slot,omitempty"`    // on the node's VM
	Options    string    `json:"options,omitempty"` // there
	Build      string    `json:"build,omitempty"`   // lock hash of the system on it; "" if recast had not locked it
	Talos      string    `json:"talos,omitempty"`
	Entry      string    `json:"entry,omitempty"`      // boot entry that was booted from it; "": none that a boot loader names
	Config     string    `json:"config,omitempty"`     // SHA-256 of its machine configuration
	Kubernetes string    `json:"kubernetes,omitempty"` // version of the kubelet then
	Etcd       string    `json:"etcd,omitempty"`       // version of etcd then; "" on a worker
	EtcdOn     bool      `json:"etcdOn,omitempty"`     // it holds etcd's data
	Left       bool      `json:"left,omitempty"`       // etcd's data on it is empty: the node had left etcd
	Going      bool      `json:"going,omitempty"`      // superseded by a roll that has ended, and about to be freed
	GivenUp    bool      `json:"givenUp,omitempty"`    // that run made it, and was cancelled or made another: not for a rollback
	Removed    bool      `json:"removed,omitempty"`    // of a removed node: only recast remove NODE --free frees it
	UUID       string    `json:"uuid,omitempty"`       // of the VM that had it, if another one followed its removal
}

// What says what the disk was. Of a removed node's disks, only one with a known system is called a system disk.
func (k KeptDisk) What() string {
	switch {
	case k.GivenUp:
		return "system disk of a cancelled replacement"
	case k.Removed && k.Talos == "" && k.Build == "" && k.Config == "":
		return "disk of the node that was removed"
	case k.Removed:
		return "system disk of the node that was removed"
	}
	return "previous system disk"
}

// ParkedOptions returns the options of a kept disk's drive on the parking VM.
func (k KeptDisk) ParkedOptions() []string {
	return ParkedOptions(ParkedDisk{Key: k.Slot, Options: k.Options})
}

// MarkDescription adds the run's mark to a VM's own description, in place of an older mark.
func MarkDescription(description, run, build string) string {
	text := cluster.VM{Config: map[string]string{"description": description}}.OwnDescription()
	if text != "" {
		text += "\n"
	}
	return text + cluster.RunMark + run + " build=" + build
}

// ParkedDisk maps a drive of the node's VM to its place on the parking VM.
type ParkedDisk struct {
	Key     string       `json:"key"`               // on the node's VM
	ParkKey string       `json:"parkKey,omitempty"` // on the parking VM; "" for a holder's disk
	Volid   string       `json:"volid"`             // as it was before the replacement
	Options string       `json:"options,omitempty"`
	System  bool         `json:"system,omitempty"`
	Holder  cluster.VMID `json:"holder,omitempty"` // the VM that owns the disk, which is detached and never handed over
}

// recordVersion rises if a recast that does not know the change would misread a record. An unknown field also makes
// recast refuse a record: see docs/notes/release.md.
const recordVersion = 1

type versioned struct {
	format.Version
	Record
}

// ReadRecord reads the record of a parking VM; ok is false for any other VM, and for one that is not ours. If a newer
// recast wrote the record, the error says so, and rec only tells whose it is.
func ReadRecord(vm cluster.VM) (rec Record, ok bool, err error) {
	if vm.NotOurs != "" {
		return Record{}, false, nil
	}
	for line := range strings.Lines(vm.Config["description"]) {
		b, found := strings.CutPrefix(strings.TrimSpace(line), cluster.RecordMark)
		if !found {
			continue
		}
		var whole json.RawMessage // without what a person has written after it
		if err := json.NewDecoder(strings.NewReader(b)).Decode(&whole); err == nil {
			b = string(whole)
		}
		var v versioned
		err := format.DecodeUpTo(recordVersion, []byte(b), &v)
		if _, newer := errors.AsType[*format.NewerError](err); newer {
			return v.Record, true, fault.WithHint(fault.ParkedHalf.Refusedf("%s: record in its description: %w", vm, err),
				"use the recast that wrote it, or a newer one; leave VM %d's description as it is", vm.ID)
		}
		if err == nil {
			err = v.whole()
		}
		if err != nil {
			return Record{}, true, fault.WithHint(fault.ParkedHalf.Refusedf("%s: record in its description can't be read: %w", vm, err),
				"if a newer recast has worked here, use that one. Else someone edited the last line of VM %d's description, which says where disks are: put that line back as it was. "+
					"If nobody has it any more: recast plan says what becomes of its node; its disks stay where they are", vm.ID)
		}
		return v.Record, true, nil
	}
	return Record{}, false, nil
}

// SaidRecord is ReadRecord for who only has to keep away from a VM that may be ours: it need not be proven.
func SaidRecord(vm cluster.VM) (rec Record, ok bool, err error) {
	vm.NotOurs = ""
	return ReadRecord(vm)
}

// whole fails if an open record does not say what was begun, or how far it has come: recast may assume neither.
func (r Record) whole() error {
	switch {
	case r.Open && r.Strategy == "":
		return fmt.Errorf("%w: it lacks its strategy", format.ErrLacks)
	case r.Open && r.Stage == "" && firstStage(r.Strategy) != "":
		return fmt.Errorf("%w: it lacks its stage", format.ErrLacks)
	}
	return nil
}

// Damaged says whether a VM has the name of a parking VM, and a broken record. A record with fields that this
// recast does not know is not broken: a newer recast wrote it.
func Damaged(vm cluster.VM) bool {
	if !strings.HasPrefix(vm.Name, cluster.ParkingName("")) {
		return false
	}
	_, _, err := ReadRecord(vm)
	_, broken := errors.AsType[*json.SyntaxError](err)
	return broken || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, format.ErrLacks)
}

// Record is the durable account of one replacement. It is in the description of the node's parking
// VM, so that anyone who can read Proxmox can see which disk is where; nothing in it is secret.
type Record struct {
	Cluster  string           `json:"cluster"`
	Node     string           `json:"node"`
	Run      string           `json:"run"`
	Parking  cluster.VMID     `json:"parking,omitempty"`  // the parking VM whose description holds the record
	Written  int              `json:"written,omitempty"`  // how often it was rewritten: see exchange.WriteRecord
	VMIDs    string           `json:"vmids,omitempty"`    // proxmox.vmids of its recast.yaml
	Build    string           `json:"build"`              // build ID the node is being brought to
	Strategy cluster.Strategy `json:"strategy,omitempty"` // recreate, reimage or rollback
	VMID     cluster.VMID     `json:"vmid"`
	UUID     string           `json:"uuid"`
	VMName   string           `json:"name"`
	Addr     netip.Addr       `json:"address,omitzero"`
	New      bool             `json:"new,omitempty"`     // an earlier run made the VM: see MadeNew
	Open     bool             `json:"open"`              // the replacement is not finished
	PutBack  bool             `json:"putBack,omitempty"` // cancelled: the old system disk is put back
	Left     bool             `json:"left,omitempty"`    // the node has left etcd: the old system disk has no etcd data
	// ControlPlane says that the node is a control plane; false if unknown.
	ControlPlane bool    `json:"controlPlane,omitempty"`
	Intent       *Intent `json:"intent,omitempty"` // the last hand-over of a disk that was begun
	Stage        Stage   `json:"stage,omitempty"`  // how far the system on the new disk has come
	SpareKey     string  `json:"spare,omitempty"`  // on the parking VM: for the new system disk if the replacement is cancelled
	// Prepared is the disk image from which the new system disk is made, on the parking VM, while the node still
	// serves; "": the VM gets a blank disk, and boots an ISO.
	Prepared string `json:"prepared,omitempty"`
	// Sent are the unanswered requests; see type Sent.
	Sent    Sent         `json:"sent,omitempty"`
	Disks   []ParkedDisk `json:"disks,omitempty"`   // of the open replacement
	Nth     int          `json:"nth,omitempty"`     // replacement of the node's system disk, from 1
	Restore *KeptDisk    `json:"restore,omitempty"` // of a rollback: the kept disk that becomes the system disk
	Kept    []KeptDisk   `json:"kept,omitempty"`    // old system disks, newest last
	Memory  string       `json:"memory,omitempty"`  // what else was remembered, packed; no secret is in it
	// Config is the SHA-256 of the machine configuration in the run's journal, in hex; "" if the node gets none.
	// The sum may be public: a configuration holds private keys, so guessing does not find it.
	Config string `json:"config,omitempty"`
	// Rebuild is the SHA-256 of the etcd snapshot with which recast rebuild begins the cluster again. It outlives
	// the replacement: it says with what the running etcd has begun.
	Rebuild string `json:"rebuild,omitempty"`
}

func (r *Record) AddSpare(entry KeptDisk) {
	r.SpareKey = entry.Key
	r.Kept = slices.DeleteFunc(r.Kept, func(k KeptDisk) bool { return k.GivenUp && k.Run == entry.Run && k.Key == entry.Key })
	r.Kept = append(r.Kept, entry)
}

// Close ends a replacement. Kept disks and unanswered requests stay in the record.
func (r *Record) Close() {
	r.Open, r.PutBack, r.Left, r.Intent, r.Disks, r.Restore, r.Memory, r.Config = false, false, false, nil, nil, nil, "", ""
	r.Stage, r.SpareKey, r.Prepared = "", "", ""
}

// Description renders the record for people and, on its last line, for recast. An open record also
// tells people how to undo the replacement without recast.
func (r Record) Description() (string, error) {
	b, err := json.Marshal(versioned{format.Version{Version: recordVersion}, r})
	if err != nil {
		return "", fmt.Errorf("record of %s: %w", r.Node, err)
	}
	state := r.Keeps()
	switch {
	case r.Open && r.Strategy.ParksNothing():
		state = "notes, while the VM is being changed, what was begun of"
	case r.Open:
		state = "holds, during a roll, the disks of"
	}
	head := fmt.Sprintf("Parking VM of recast: %s Talos node %s (VM %d) of cluster %s. Never start it; delete it only with recast prune.\n\n",
		state, r.Node, r.VMID, r.Cluster)
	// Proxmox before 9 decodes %41 in a description as a letter (pve-common, Tools.pm, encode_text).
	last := cluster.RecordMark + strings.ReplaceAll(string(b), "%", `\u0025`)
	text := head + r.wayBack(cluster.MaxDescription-len(head)-len(last)) + last
	if len(text) > cluster.MaxDescription {
		return "", fault.ParkedHalf.Refusedf("record of %s: %d characters do not fit into a VM description (%d)", r.Node, len(text), cluster.MaxDescription)
	}
	return text, nil
}

// MadeNew says whether a run of recast created the VM of that UUID from nothing.
func (r Record) MadeNew(uuid string) bool {
	return r.UUID == uuid && (r.New || r.Strategy.From() == cluster.Nowhere)
}

// Keeps says in words what a parking VM keeps once no replacement is open, up to the name of its node.
func (r Record) Keeps() string {
	switch {
	case len(r.Kept) == 0:
		return "holds nothing any more of"
	case slices.ContainsFunc(r.Kept, func(k KeptDisk) bool { return k.Removed }):
		return "keeps disks, with their data, of the removed"
	case len(r.Kept) == 1:
		return "keeps the previous system disk of"
	}
	return "keeps previous system disks of"
}

// SpareDrive returns the key for the new system disk on the parking VM: the reserved key, or the key of an
// interrupted hand-over, else another one.
func (r Record) SpareDrive(park cluster.VM, key, run string) (string, error) {
	taken := map[string]bool{}
	for key := range park.Config {
		taken[key] = true
	}
	for _, k := range r.Kept {
		if there := taken[k.Key]; !there && k.GivenUp && k.Run == run {
			return k.Key, nil
		}
		taken[k.Key] = true
	}
	if r.SpareKey != "" && !taken[r.SpareKey] {
		return r.SpareKey, nil
	}
	if !r.PutBack {
		for _, d := range r.Disks { // a later cancellation still needs these keys
			taken[d.ParkKey] = true
		}
	}
	return parkingKey(key, true, taken)
}

// SpareEntry returns the record's entry for the new system disk of a run.
func (r Record) SpareEntry(run, key string) (KeptDisk, bool) {
	return cluster.Find(r.Kept, func(k KeptDisk) bool { return k.GivenUp && k.Run == run && k.Key == key })
}

// IsOver reports whether a hand-over between two VMs, in either direction, is complete.
func (in Intent) IsOver(from, to cluster.VM) bool {
	if from.ID != in.From {
		from, to = to, from
	}
	_, arrived := to.Config[in.ToKey]
	return arrived && len(cluster.UsersOf(in.Volid, from)) == 0
}

// Same reports whether both are the same hand-over.
func (in Intent) Same(as Intent) bool {
	return in.From == as.From && in.Key == as.Key && in.To == as.To && in.ToKey == as.ToKey
}

// Remembered returns the node's VM as it was before the replacement that the record describes. The media in its
// drives are needed to put them back.
func (r Record) Remembered() (cluster.VM, error) {
	m, err := UnpackMemory(r.Memory)
	what := fmt.Sprintf("record of node %s: what it remembers of VM %d can't be read", r.Node, r.VMID)
	return m.VM, fault.Prefix(what, err)
}

// CheckConfig compares a machine configuration from the journal with the sum in the record. A node without a new
// installation gets no configuration, and its record has no sum.
func (r Record) CheckConfig(config []byte) error {
	if !(r.Open && r.Strategy.Installs()) && r.Config == "" || cluster.ConfigSum(config) == r.Config {
		return nil
	}
	return fmt.Errorf("%w: its SHA-256 is %s, and the record of run %s says %s", cluster.ErrConfigDamaged, words.Short(cluster.ConfigSum(config)), r.Run, words.OrNone(words.Short(r.Config)))
}

// Memory is what can no longer be read once the VM is deleted. It is in the journal before anything
// is taken down and, without Metadata, in the record.
type Memory struct {
	VM         cluster.VM // as it was; its Config is what a new VM gets
	SystemKey  string
	BootID     string                   // of the boot before the exchange
	Volumes    []cluster.Volume         // partitions and filesystems on persistent disks
	Persistent []PersistentDisk         `json:",omitempty"` // the drives of those disks
	Pools      []cluster.PoolMember     `json:",omitzero"`  // of LVM and ZFS; on the system disk if on no other
	Extensions []cluster.ExtensionEntry `json:",omitempty"` // of the system before
	Stuck      []cluster.VolumeStatus   `json:",omitempty"` // volumes of its configuration that Talos could not use
	DiskSerial string                   // of the new system disk to come
	HA         *cluster.HAResource      // nil: not managed
	Firewall   string                   `json:",omitempty"` // see Replace.Firewall

	// Metadata of the Kubernetes Node, in case someone deletes the Node meanwhile. It is too large for the record:
	// without the journal, recast reads the Node itself.
	Metadata cluster.NodeMetadata
	NodeUID  string // of that Node

	ControlPlane bool
	EtcdKept     bool   // its data is on a persistent disk: the member must not leave
	EtcdID       uint64 // of the member; 0 if there was none
	EtcdMembers  int    // including this one
	Bootstraps   bool   `json:",omitempty"` // etcd begins on this node

	// Kubernetes is what the node ran. The restored node runs the same, whatever a configuration from a file names:
	// a roll never changes it.
	Kubernetes cluster.KubernetesImages `json:",omitzero"`

	Old KeptDisk // entry of the old system disk, without its place

	// Blank is the setting of the VM that differs until the node is healthy, so that its blank
	// machine has the node's address; nil: none.
	Blank *cluster.BlankSetting `json:",omitempty"`

	HostArch string `json:",omitempty"` // see Ties.HostArch

	ConfigSum string `json:",omitempty"` // see Record.Config
}

// ChangedSettings lists the settings of a VM, as it was, that have other values until the end of its exchange.
// Finish, put-back and the lines for a person's hand restore them.
func ChangedSettings(vm cluster.VM, blank *cluster.BlankSetting) []string {
	keys := []string{"onboot", "protection"}
	if blank != nil {
		keys = append(keys, blank.Key)
	}
	if vm.Config["tags"] != "" {
		keys = append(keys, "tags") // a run sets the tags of a VM that it created only once its node serves
	}
	return keys
}

// Pack makes a memory small enough for a VM's description.
func (m Memory) Pack() (string, error) {
	m.Metadata, m.ConfigSum = cluster.NodeMetadata{}, "" // the sum is beside it in the record
	b, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("pack what is remembered of %s: %w", m.VM, err)
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return "", err
	}
	_, err = w.Write(b)
	if err := errors.Join(err, w.Close()); err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(packed.Bytes()), nil
}

func UnpackMemory(packed string) (m Memory, err error) {
	b, err := base64.RawURLEncoding.DecodeString(packed)
	if err != nil {
		return m, err
	}
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return m, err
	}
	if b, err = io.ReadAll(io.LimitReader(r, 1<<20)); err != nil { // anyone may have edited the description
		return m, err
	}
	return m, format.Decode(b, &m)
}

func (r Record) ReadMemory(park cluster.VM) (Memory, error) {
	m, err := UnpackMemory(r.Memory)
	if err != nil {
		return m, fault.WithHint(fault.ParkedHalf.Refusedf("node %s: what %s remembers of VM %d can't be read: %w", r.Node, park, r.VMID, err),
			"its description was edited; recast can continue where the journal of run %s is", r.Run)
	}
	return m, nil
}

// Disks returns the VM's drives as remembered, without CD and cloud-init drives.
func (m Memory) Disks() ([]cluster.Disk, error) {
	all, err := m.VM.Disks()
	return slices.DeleteFunc(all, func(d cluster.Disk) bool { return d.CDROM }), err
}

// VMWith returns the VM with those options for its system disk.
func (m Memory) VMWith(options []string) cluster.VM {
	vm := m.VM
	vm.Config = maps.Clone(vm.Config)
	d, err := cluster.ParseDisk(m.SystemKey, vm.Config[m.SystemKey])
	if err == nil {
		d.Options = options
		vm.Config[m.SystemKey] = d.Value()
	}
	return vm
}

// BlankVM returns the VM with the new system disk, identified only by its names and address.
func (m Memory) BlankVM() cluster.VM {
	return m.VMWith(cluster.Disk{Key: m.SystemKey}.Named(m.DiskSerial))
}

// LostMetadata reports whether a Node is not the remembered one.
func (m Memory) LostMetadata(now cluster.KubeNode) bool { return m.NodeUID != now.UID }

// BlankDisks returns the machine's disks that match the new system disk: normally one.
func (mem Memory) BlankDisks(m cluster.Machine) []cluster.MachineDisk {
	vm := mem.BlankVM()
	drives, err := vm.Bootable()
	if err != nil {
		return nil
	}
	return m.MachineDisks(vm, drives, mem.SystemKey)
}

// WrongBlank says which of a machine's disks are not as they must be before its configuration is applied: one disk
// is the new system disk, and every persistent volume is in its place. configured says that the machine may already
// have received a configuration; prepared, that the disk was made from a disk image, and is not blank.
func (mem Memory) WrongBlank(m cluster.Machine, configured, prepared bool) []error {
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fault.Refusedf(format, args...)) }
	switch ours := mem.BlankDisks(m); {
	case len(ours) != 1:
		refuse("%d disks of the machine are the %s system disk %s with serial %s, expected one", len(ours), map[bool]string{true: "prepared", false: "blank"}[prepared], mem.SystemKey, mem.DiskSerial)
	case prepared:
		if strange := strangeOn(m, ours[0].Device, configured); strange != "" {
			refuse("the new system disk %s %s", ours[0].Device, strange)
		}
	case !ours[0].Blank:
		refuse("the new system disk %s is not blank", ours[0].Device)
	}
	for _, want := range mem.Volumes {
		if _, there := m.Find(want); !there && m.Shows(want.Format) {
			refuse("the persistent volume %s is missing", want)
		}
	}
	problems = append(problems, mem.Displaced(m, configured)...)
	seen := map[string]string{}
	for _, v := range m.Volumes {
		if !slices.Contains(cluster.TalosLabels, v.Label) {
			continue
		}
		if other, twice := seen[v.Label]; twice {
			refuse("the label %s is on %s and on %s", v.Label, other, v.Device)
		}
		seen[v.Label] = v.Device
	}
	return problems
}

// strangeOn says how a prepared system disk differs from the disk image; "": it does not. The machine has to run
// from the disk, and a disk with META and without STATE was never used.
func strangeOn(m cluster.Machine, device string, configured bool) string {
	if m.FromISO || m.SystemDisk != device {
		return fmt.Sprintf("is not the one that the machine booted, which is %s", words.OrNone(m.SystemDisk))
	}
	allowed := []string{"EFI", "BIOS", "BOOT", "META"} // of the disk image
	if configured {
		allowed = append(allowed, "STATE", "EPHEMERAL") // its first boot with a configuration adds these
	}
	has := map[string]bool{}
	for _, v := range m.Volumes {
		switch {
		case v.Disk != device:
		case !slices.Contains(allowed, v.Label):
			return fmt.Sprintf("has %s, which is not of the disk image: it was used before", v)
		default:
			has[v.Label] = true
		}
	}
	if !has["EFI"] || !has["META"] {
		return "lacks partitions of the disk image: it was not imported whole"
	}
	return ""
}

// LacksVolume names the first persistent volume that a machine lacks; "" if it has all of them. A volume that
// acceptLoss names may be no volume of Talos any more.
func (mem Memory) LacksVolume(m cluster.Machine, acceptLoss []string) string {
	for _, want := range mem.Volumes {
		have, there := m.Find(want)
		switch {
		case !there && !m.Shows(want.Format):
		case !there:
			return fmt.Sprintf("persistent volume %s (partition UUID %s) is missing", words.OrNone(want.Label), want.PartitionUUID)
		case want.Phase != "ready" || have.Phase == "" && slices.ContainsFunc(want.LossNames(), func(name string) bool { return slices.Contains(acceptLoss, name) }):
		case have.Phase != "ready":
			return fmt.Sprintf("persistent volume %s is %s", want.LossNames()[0], words.OrNone(have.Phase))
		case want.ID != "" && have.ID != want.ID:
			return fmt.Sprintf("persistent volume %s is %s now", want.ID, words.OrNone(have.ID))
		}
	}
	return ""
}

// LacksPlace says which persistent volume is on another disk than before. It skips a disk that can't be identified
// because pods have disks of the same size: checkBlank has already found a moved disk in its place, and a disk that
// was not moved is still in its place.
func (mem Memory) LacksPlace(m cluster.Machine, vm cluster.VM) string {
	drives, err := vm.Bootable()
	if err != nil {
		return err.Error()
	}
	for _, was := range mem.Persistent {
		if on := m.MachineDisks(vm, drives, was.Key); len(on) == 1 {
			if elsewhere := mem.Elsewhere(m, was, on[0]); elsewhere != "" {
				return elsewhere
			}
		}
	}
	return ""
}

// undo renders the commands that restore a node's VM without recast, for a root shell on the host of the VM and its
// parking VM. Each line checks with qm config whether there is anything to do, so all lines can be run from every
// state in which an exchange may be interrupted, and run again. recast itself never reads the lines.
// docs/notes/proxmox.md explains them.
type undo struct {
	rec Record
	mem Memory
	undoForm
	out  []string
	used map[string]bool // the functions that the lines call
	read []string        // the settings that new reads
}

// undoForm is how much the lines spell out. They read the rest from the packed memory, which has everything.
type undoForm struct {
	long   int  // longer values are read from the memory
	tight  bool // so are the options of drives; repeated commands become functions
	leaves bool // the new system disk stays with the VM, as an unusedN
}

var undoForms = []undoForm{{long: cluster.MaxDescription}, {long: 60}, {long: 16, tight: true}, {long: 16, tight: true, leaves: true}}

// shellFunctions are the functions that the lines call, in the order of their definition. lost lists the volumes of
// one storage that no configuration names, without writing anything (qm.pm, rescan); its last argument lists, one
// per line, the volumes that already had no name. old unpacks the record. The functions need bash or dash and what
// every Proxmox host has.
var shellFunctions = []struct{ name, body string }{
	{"has", `has() { qm config $1 2>/dev/null | grep -q "^$2"; }`},
	{"lacks", `lacks() { ! has "$@"; }`},
	{"vol", `vol() { qm config $1 | sed -n "s/^$2: \([^,]*\).*/\1/p"; }`},
	{"lost", `lost() { qm disk rescan --vmid $1 --dryrun 1 | sed -n "s/.*add unref[^']*'\($2:[^']*\).*/\1/p" | grep -vxF "$3"; }`},
	{"gone", `gone() { pvesm list ${1%%:*} | awk '$1==v{f=1}END{exit f||!NR}' v="$1"; }`},
	{"key", `key() { qm config $1 | sed -n "s|^\(unused[0-9]*\): $2\$|\1|p"; }`},
	{"ha", `ha() { ha-manager config | grep -qx "vm:$1"; }`},
	{"old", `old() { qm config PARKING | perl -MJSON -MMIME::Base64=decode_base64url -MCompress::Zlib=memGunzip -ne 'BEGIN{$k=pop}/^desc/||next;s/%(..)/chr hex $1/ge;/.*"memory":"([^"]+)/s;$_=decode_json(memGunzip decode_base64url $1)->{VM}{Config}{$k};utf8::encode $_;print' $1; }`},
	{"new", `new() { for k in SETTINGS; do set -- "$@" --$k "$(old $k)"; done; qm create VMID "$@"; }`},
	{"back", `back() { lacks PARKING $1: || qm disk move PARKING $1 --target-vmid VMID --target-disk ${2-$1}; }`},
	{"same", `same() { for k; do set -- "$@" --$k "$(vol VMID $k),$(old $k | cut -d, -f2-)"; shift; done; qm set VMID "$@"; }`},
}

// wayBack returns the commands in an open record's description with which an administrator undoes it; "" if there
// are none. It returns at most room bytes.
func (r Record) wayBack(room int) string {
	if !r.Open || r.Parking == 0 || r.Memory == "" || r.Strategy.ParksNothing() {
		return ""
	}
	mem, err := UnpackMemory(r.Memory)
	if err != nil {
		return "" // someone edited the memory; the code that needs it says so
	}
	for _, form := range undoForms {
		u := undo{rec: r, mem: mem, undoForm: form, used: map[string]bool{}}
		if text := u.text(); len(text) <= room {
			return text
		}
	}
	if len(noRoom) > room {
		return ""
	}
	return noRoom
}

// JournalKey is the journal's key, below the node's, of the record with which its replacement was opened.
const JournalKey = "record"

// ByHand returns the commands with which an administrator undoes the replacement that the record opened, as its parking
// VM's Notes have them; "" if there are none. Of a hand-over that was cut off since, only the Notes know.
func (r Record) ByHand() string { return r.wayBack(cluster.MaxDescription) }

const noRoom = "The lines that undo this without recast have no room here: see docs/notes/proxmox.md, Undo by hand.\n\n"

func (u *undo) text() string {
	u.switchOff()
	u.make()
	u.moveBack()
	u.restoreSystem()
	u.setUp()
	var b strings.Builder
	fmt.Fprintf(&b, "Without recast, as root on the host of both VMs (see docs/notes/proxmox.md, Undo by hand), these lines, in this order, give VM %d its old self back:\n\n", u.vm())
	if !u.tight {
		fmt.Fprintf(&b, "(They name no VM but %d and %d, and no file but the firewall's. Others were put here by somebody: compare recast status --by-hand %s.)\n\n", u.vm(), u.rec.Parking, u.rec.Node)
	}
	b.WriteString("```sh\n")
	ids := strings.NewReplacer("PARKING", fmt.Sprint(u.rec.Parking), "VMID", fmt.Sprint(u.vm()), "SETTINGS", strings.Join(u.read, " "))
	for _, f := range shellFunctions {
		if u.used[f.name] {
			b.WriteString(ids.Replace(f.body) + "\n")
		}
	}
	b.WriteString(strings.Join(u.out, "\n") + "\n```\n\n")
	return b.String()
}

func (u *undo) vm() cluster.VMID { return u.mem.VM.ID }

// line adds a command after conditions such as "has 9011 scsi1:". The caller quotes what is in
// conditions and arguments.
func (u *undo) line(parts ...string) {
	for _, p := range parts {
		name, _, _ := strings.Cut(p, " ")
		u.use(name)
	}
	u.out = append(u.out, strings.Join(parts, " && "))
}

func (u *undo) use(name string) {
	u.used[name] = true
	switch name {
	case "lacks":
		u.use("has")
	case "back":
		u.use("lacks")
	case "new":
		u.use("old")
	case "same":
		u.use("vol")
		u.use("old")
	}
}

// flags renders options as flags of qm or ha-manager, in order. A setting of the remembered VM may be read from there.
func (u *undo) flags(settings map[string]string) string {
	var b strings.Builder
	for _, key := range slices.SortedFunc(maps.Keys(settings), cluster.CompareKeys) {
		value := words.Quote(settings[key])
		if _, remembered := u.mem.VM.Config[key]; remembered && !cluster.IsDiskKey(key) {
			value = u.value(key)
		}
		b.WriteString(" --" + key + " " + value)
	}
	return b.String()
}

// value renders a setting of the remembered VM: literally or, if that is too long, as a command that reads the
// setting from the record.
func (u *undo) value(key string) string {
	quoted := words.Quote(strings.TrimRight(u.mem.VM.Config[key], "\n"))
	if len(quoted) <= u.long {
		return quoted
	}
	u.use("old")
	return `"$(old ` + key + `)"`
}

// switchOff makes sure that nothing starts the VM. It removes a VM whose creation was interrupted: such a VM is
// locked and names no volume yet. A command that must not fail comes last in its line: sh -e continues after a
// failure of any other.
func (u *undo) switchOff() {
	id := u.vm()
	if !u.rec.Strategy.SwapsInVM() {
		u.line(fmt.Sprintf("has %d 'lock: create'", id), fmt.Sprintf("lacks %d '.*vm-'", id), fmt.Sprintf("qm unlock %d", id), fmt.Sprintf("qm destroy %d", id))
	}
	if uuid := (cluster.Disk{Options: strings.Split(u.mem.VM.Config["smbios1"], ",")}).Option("uuid"); uuid != "" { // another VM may have taken the VMID
		u.line(fmt.Sprintf("has %d", id), fmt.Sprintf("lacks %d %s", id, words.Quote("smbios1:.*"+uuid)), "exit 1")
	}
	if u.mem.HA != nil { // the HA manager would start the VM again until its next round
		u.line(fmt.Sprintf("ha %d", id), fmt.Sprintf("ha-manager remove vm:%d --purge 0", id))
		u.line("sleep 30")
	}
	u.line(fmt.Sprintf("has %d", id), fmt.Sprintf("qm shutdown %d --timeout 120 --forceStop 1", id))
	u.line(fmt.Sprintf("has %d", id), fmt.Sprintf("qm set %d --onboot 0 --protection 0", id))
}

// make creates the VM if it no longer exists, on the host of the parking VM. A VM that a run created again already
// has all of this.
func (u *undo) make() {
	if u.rec.Strategy.SwapsInVM() {
		return
	}
	config := cluster.OldSettings(u.mem.VM)
	for _, key := range []string{"boot", "description", "onboot", "protection", "tags", "sshkeys", "cipassword"} {
		delete(config, key) // set afterwards, or unknown
	}
	id := u.vm()
	create := fmt.Sprintf("qm create %d", id)
	if u.tight {
		create = "new"
		for _, key := range slices.SortedFunc(maps.Keys(config), cluster.CompareKeys) {
			if _, remembered := u.mem.VM.Config[key]; remembered && !cluster.IsDiskKey(key) {
				u.read = append(u.read, key)
				delete(config, key)
			}
		}
	}
	u.line(fmt.Sprintf("has %d", u.rec.Parking), fmt.Sprintf("lacks %d", id), create+u.flags(config))
	if u.mem.Firewall != "" {
		give := fmt.Sprintf("cp /etc/pve/firewall/%d.fw /etc/pve/firewall/%d.fw", u.rec.Parking, id)
		u.line(fmt.Sprintf("test ! -e /etc/pve/firewall/%d.fw", id), give)
		u.line(fmt.Sprintf("has %d description:.*%s", id, u.rec.Run), give) // an interrupted run may have copied only a part
	}
	if _, ok := u.mem.VM.Config["sshkeys"]; ok {
		// qm takes a file name for these keys and encodes the file's content (qm.pm, param_mapping).
		u.line(fmt.Sprintf("lacks %d sshkeys:", id), fmt.Sprintf("pvesh set /nodes/localhost/qemu/%d/config --sshkeys %s", id, u.value("sshkeys")))
	}
}

// moveBack returns every disk but the system disk. Detached volumes go first: removing a drive from
// the VM makes an unusedN of it.
func (u *undo) moveBack() {
	in := u.rec.Intent
	detached := in != nil && strings.HasPrefix(in.Key, "unused")
	if detached {
		u.finishMove(*in)
	}
	for _, d := range u.rec.Disks {
		if strings.HasPrefix(d.Key, "unused") {
			u.move(d)
		}
	}
	if in != nil && !detached {
		u.finishMove(*in)
	}
	for _, d := range u.rec.Disks {
		switch {
		case d.System, strings.HasPrefix(d.Key, "unused"):
		case d.Holder != 0:
			u.line(fmt.Sprintf("lacks %d %s:", u.vm(), d.Key), fmt.Sprintf("qm set %d --%s %s", u.vm(), d.Key, words.Quote(cluster.JoinOptions(d.Volid, d.Options))))
		default:
			u.move(d)
		}
	}
}

func (u *undo) move(d ParkedDisk) {
	if u.tight {
		u.line(strings.TrimSuffix(fmt.Sprintf("back %s %s", d.ParkKey, d.Key), " "+d.ParkKey))
		return
	}
	u.line(fmt.Sprintf("has %d %s:", u.rec.Parking, d.ParkKey),
		fmt.Sprintf("qm disk move %d %s --target-vmid %d --target-disk %s", u.rec.Parking, d.ParkKey, u.vm(), d.Key))
}

// finishMove finishes the last hand-over if Proxmox has renamed the volume but not written both configurations: it
// drops the old name from the source and attaches the volume to the target.
func (u *undo) finishMove(in Intent) {
	drop := func(key, line string) {
		parts := []string{fmt.Sprintf("has %d %s", in.From, words.Quote(key+": "+in.Volid+`\b`)), "gone " + words.Quote(in.Volid)}
		if in.From == u.rec.Parking {
			parts = append(parts, fmt.Sprintf("qm set %d --protection 0", in.From))
		}
		u.line(append(parts, fmt.Sprintf("qm set %d --delete %s", in.From, line))...)
	}
	drop(in.Key, in.Key)
	storage, _, _ := strings.Cut(in.Volid, ":")
	lost := fmt.Sprintf("lost %d %s", in.To, storage)
	if len(in.Unnamed) > 0 {
		lost += " " + words.Quote(strings.Join(in.Unnamed, "\n"))
	}
	cut := []string{fmt.Sprintf("lacks %d %s:", in.From, in.Key), fmt.Sprintf("lacks %d %s:", in.To, in.ToKey), lost}
	if strings.HasPrefix(in.ToKey, "unused") {
		u.line(append(cut, fmt.Sprintf("qm disk rescan --vmid %d", in.To))...)
		return
	}
	drop("unused[0-9]*", fmt.Sprintf(`"$(key %d %s)"`, in.From, words.Quote(in.Volid)))
	u.use("key")
	options := optionSuffix(in.Options)
	if key := cmp.Or(map[cluster.VMID]string{u.vm(): in.ToKey}[in.To], in.Key); u.tight && in.ToKey != u.rec.SpareKey && in.Key != u.rec.SpareKey && u.mem.VM.Config[key] != "" && u.rec.Strategy.System() != cluster.SystemKept {
		u.use("old")
		options = `,"$(old ` + key + ` | cut -d, -f2-)"` // without backup=0, even if it was on its way to be parked
	}
	u.line(append(cut, fmt.Sprintf(`qm set %d --%s "$(%s)"%s`, in.To, in.ToKey, lost, options))...)
}

func optionSuffix(options string) string {
	if options == "" {
		return ""
	}
	return words.Quote("," + options)
}

// restoreSystem removes the system disk of the exchange without freeing it, and returns the old system disk.
func (u *undo) restoreSystem() {
	id := u.vm()
	for _, d := range u.rec.Disks {
		if !d.System {
			continue
		}
		if k := u.rec.Restore; u.rec.Strategy.System() == cluster.SystemKept && k != nil {
			u.line(fmt.Sprintf("lacks %d %s:", u.rec.Parking, k.Key), fmt.Sprintf("has %d %s:", id, d.Key),
				fmt.Sprintf("qm disk move %d %s --target-vmid %d --target-disk %s", id, d.Key, u.rec.Parking, k.Key),
				fmt.Sprintf(`qm set %d --%s "$(vol %d %s)"%s`, u.rec.Parking, k.Key, u.rec.Parking, k.Key,
					optionSuffix(strings.Join(ParkedOptions(ParkedDisk{Key: d.Key, Options: k.Options}), ","))))
			u.use("vol")
		} else {
			u.parkNew(d.Key)
		}
		u.move(d)
	}
}

// parkNew moves the new system disk of the exchange to the reserved key of the parking VM. If that key is taken, or the
// Notes have no room for that command, the disk becomes an unusedN of the VM. Nothing frees it.
func (u *undo) parkNew(key string) {
	ours := fmt.Sprintf("has %d %s", u.vm(), words.Quote(key+":.*serial="+u.mem.DiskSerial))
	move := fmt.Sprintf("qm disk move %d %s --target-vmid %d --target-disk %s", u.vm(), key, u.rec.Parking, u.rec.SpareKey)
	switch {
	case u.rec.SpareKey == "" || u.leaves:
	case u.tight:
		u.line(ours, move)
		return
	default:
		u.line(ours, fmt.Sprintf("lacks %d %s:", u.rec.Parking, u.rec.SpareKey), move)
	}
	u.line(ours, fmt.Sprintf("qm set %d --delete %s", u.vm(), key))
}

// setUp restores the drives' options that parking changed, then the settings that an exchange changes. Drives come
// before the boot order: Proxmox appends a CD drive that the order lacks (Qemu.pm, update_vm_api).
func (u *undo) setUp() {
	id := u.vm()
	u.setOptions()
	u.setCDs()
	settings, del := map[string]string{}, []string{}
	for _, key := range append([]string{"boot", "description"}, ChangedSettings(u.mem.VM, u.mem.Blank)...) {
		if value := strings.TrimRight(u.mem.VM.Config[key], "\n"); value != "" {
			settings[key] = value
		} else {
			del = append(del, key)
		}
	}
	set := fmt.Sprintf("qm set %d%s", id, u.flags(settings))
	if len(del) > 0 {
		set += " --delete " + strings.Join(del, ",")
	}
	u.line(set)
	u.line(fmt.Sprintf("qm start %d", id))
	if ha := u.mem.HA; ha != nil {
		options := map[string]string{"state": cmp.Or(ha.State, "started")}
		maps.Copy(options, ha.Settings)
		u.line(fmt.Sprintf("ha-manager add vm:%d%s", id, u.flags(options)))
	}
	isUnused := func(key string) bool { return cluster.IsDiskKey(key) && strings.HasPrefix(key, "unused") }
	unused := cluster.Where(slices.SortedFunc(maps.Keys(u.mem.VM.Config), cluster.CompareKeys), isUnused)
	u.out = append(u.out, "# unusedN before: "+words.OrNone(strings.Join(unused, ", ")))
}

func (u *undo) setOptions() {
	spelled, keys := "", ""
	for _, d := range u.rec.Disks {
		if d.Holder == 0 && !cluster.SameOptions(cluster.SplitOptions(d.Options), ParkedOptions(d)) {
			spelled += fmt.Sprintf(` --%s "$(vol %d %s)"%s`, d.Key, u.vm(), d.Key, optionSuffix(d.Options))
			keys += " " + d.Key
		}
	}
	switch {
	case spelled == "":
	case u.tight:
		u.line("same" + keys)
	default:
		u.use("vol")
		u.line(fmt.Sprintf("qm set %d%s", u.vm(), spelled))
	}
}

func (u *undo) setCDs() {
	disks, err := u.mem.VM.Disks()
	if err != nil {
		return // such a VM was refused when it was recorded
	}
	id := u.vm()
	cds := map[string]string{}
	for _, d := range disks {
		if d.CDROM && !d.CloudInit() {
			cds[d.Key] = cluster.WithoutOption(d, "size").Value()
		}
	}
	if len(cds) > 0 {
		u.line(fmt.Sprintf("qm set %d%s", id, u.flags(cds)))
	}
	if key := cluster.CDKey(u.mem.VM.Config, disks); u.rec.Strategy.System() != cluster.SystemKept && cds[key] == "" {
		u.line(fmt.Sprintf("has %d %s:", id, key), fmt.Sprintf("qm set %d --delete %s", id, key))
	}
}
