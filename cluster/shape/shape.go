// Package shape compares a VM with the shape that recast.yaml wants for it, and changes the VM. Proxmox applies some
// changes to a running VM, and the others only to a VM that is off.
package shape

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// When says when a difference can be put right.
type When string

// Live differences are put right while the VM runs, Off ones while it is off, and Never ones by hand only.
const (
	Live  When = "live"
	Off   When = "off"
	Never When = "never"
)

// Difference is one setting of a VM that is not as wanted.
type Difference struct {
	Key    string `json:"key"`   // "memory", "net0 tag", "scsi1 size"
	Found  string `json:"found"` // "": not set
	Wanted string `json:"wanted"`
	When   When   `json:"when"`
	Why    string `json:"why,omitempty"` // of Never, and what to do instead; of Off, where that is not plain

	setting string // Proxmox' key of the setting: "net0"; "" for a setting outside of the VM's configuration
	option  string // of that setting: "tag"; "": the whole setting
	grows   bool   // the size of a disk, which has a request of its own
}

func (d Difference) String() string {
	return fmt.Sprintf("%s: %s → %s", d.Key, cmp.Or(d.Found, "none"), d.Wanted)
}

// InConfig says whether the difference is in the VM's configuration, and not in what Proxmox keeps beside it.
func (d Difference) InConfig() bool { return d.setting != "" }

// Differences are those of one VM.
type Differences []Difference

func (ds Differences) At(w When) Differences {
	return slices.DeleteFunc(slices.Clone(ds), func(d Difference) bool { return d.When != w })
}

// NewDisks says whether disks are added, or grow.
func (ds Differences) NewDisks() bool {
	return slices.ContainsFunc(ds, func(d Difference) bool {
		return d.When != Never && cluster.IsDiskKey(d.setting) && (d.grows || d.Key == d.setting)
	})
}

// Changed lists the settings of the VM's configuration that differ, by Proxmox' key.
func (ds Differences) Changed() (keys []string) {
	for _, d := range ds {
		if d.setting != "" && !slices.Contains(keys, d.setting) {
			keys = append(keys, d.setting)
		}
	}
	return keys
}

func (ds Differences) String() string { return strings.Join(cluster.Each(ds, Difference.String), ", ") }

// Compare lists how a VM differs from its shape. ha is the VM's resource in Proxmox HA; nil: the VM has none.
func Compare(vm cluster.VM, ha *cluster.HAResource, s cluster.Shape) (Differences, error) {
	c := comparison{vm: vm, addr: s.Addr}
	for _, key := range slices.Sorted(maps.Keys(s.Settings)) {
		c.value(key, s.Settings[key])
	}
	for _, key := range slices.SortedFunc(maps.Keys(s.Devices), cluster.CompareKeys) {
		c.device(key, s.Devices[key])
	}
	for _, d := range s.Disks {
		if err := c.disk(d); err != nil {
			return nil, err
		}
	}
	if s.Pool != "" && s.Pool != vm.Pool {
		c.add(Difference{Key: "pool", Found: vm.Pool, Wanted: s.Pool, When: Live})
	}
	c.highAvailability(ha, s.HA)
	c.host(s.Host)
	return c.found, nil
}

type comparison struct {
	vm    cluster.VM
	addr  netip.Addr // that its machine has; invalid: unknown
	found Differences
}

func (c *comparison) add(d Difference) { c.found = append(c.found, d) }

// live are the settings that Proxmox applies to a running VM (qemu-server, PVE/QemuServer.pm,
// vmconfig_hotplug_pending). Changes of the other settings become pending, some of them only where the VM's hotplug
// says so.
var live = []string{"cpuunits", "description", "onboot", "shares", "startup", "tags"}

func (c *comparison) value(key, wanted string) {
	have := c.vm.Config[key]
	if key == "description" {
		have = c.vm.OwnDescription()
	}
	if normal(key, have) == normal(key, wanted) {
		return
	}
	d := Difference{Key: key, Found: have, Wanted: wanted, When: Off, setting: key}
	switch {
	case slices.Contains(live, key):
		d.When = Live
	case cloudInit(key) && have == "" && c.addr.IsValid() && givesAddress(wanted, c.addr):
		d.When = Live
	case cloudInit(key):
		d.When, d.Why = Never, fmt.Sprintf("Proxmox takes it at once, and the machine at its next start, whatever that is for: at another address etcd, Kubernetes and the talosconfig would not find it. "+
			"Say in recast.yaml what it has, or nothing; to change it, add a node with that and recast remove this one; or by hand, where its address stays: qm set %d --%s '%s' on %s, and restart it",
			c.vm.ID, key, wanted, c.vm.Host)
	case key == "bios":
		d.When, d.Why = Never, "the system on its disk may not boot with another firmware: change it by hand, with the VM off, and check that it boots"
	case key == "scsihw":
		d.When, d.Why = Never, "its disks would be at other addresses, by which machine configurations may name them: change it by hand, with the VM off, and check that every volume is back"
	}
	c.add(d)
}

// defaults are the values of settings that a VM's configuration leaves out (PVE/QemuServer.pm, $confdesc).
var defaults = map[string]string{
	"balloon": "", "bios": "seabios", "cores": "1", "cpu": "kvm64", "memory": "512", "numa": "0", "onboot": "0", "ostype": "other", "scsihw": "lsi", "shares": "1000", "sockets": "1", "machine": "pc",
}

// defaultKeys are the options whose name may be left out.
var defaultKeys = map[string]string{"agent": "enabled", "cpu": "cputype", "machine": "type", "memory": "current", "startup": "order"}

// normal returns a setting as Proxmox reads it, for comparison.
func normal(key, value string) string {
	value = cmp.Or(strings.TrimSpace(value), defaults[key])
	if cluster.NumberedBus(key) == "ipconfig" {
		return addresses(value)
	}
	switch key {
	case "tags": // a set, in lower case unless the datacentre says otherwise (PVE/DataCenterConfig.pm, tag-style)
		tags := strings.FieldsFunc(strings.ToLower(value), func(r rune) bool { return strings.ContainsRune(",; ", r) })
		slices.Sort(tags)
		return strings.Join(slices.Compact(tags), ";")
	case "onboot", "numa":
		on, _ := cluster.ParseBoolean(value)
		return fmt.Sprint(on)
	case "cpu", "machine", "memory", "startup":
		var options []string
		for i, o := range strings.Split(value, ",") {
			if !strings.Contains(o, "=") && i == 0 && o != "" {
				o = defaultKeys[key] + "=" + o
			}
			options = append(options, o)
		}
		slices.Sort(options)
		return strings.Join(options, ",")
	}
	return value
}

// cardModels are models of network cards. The option with the MAC is named after the model: "virtio=BC:24:…".
var cardModels = []string{"e1000", "e1000-82540em", "e1000-82544gc", "e1000-82545em", "e1000e", "i82551", "i82557b", "i82559er", "ne2k_isa", "ne2k_pci", "pcnet", "rtl8139", "virtio", "vmxnet3"}

func split(key, value string) (of map[string]string, order []string) {
	of = map[string]string{}
	set := func(name, value string) {
		if _, there := of[name]; !there {
			order = append(order, name)
		}
		of[name] = value
	}
	for i, o := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' }) {
		name, v, named := strings.Cut(o, "=")
		switch card := cluster.NumberedBus(key) == "net"; {
		case card && named && slices.Contains(cardModels, name):
			set("model", name)
			set("macaddr", v)
		case card && !named && i == 0:
			set("model", name)
		case !named && i == 0:
			set(cmp.Or(defaultKeys[key], "host"), name)
		default:
			set(name, v)
		}
	}
	return of, order
}

// joined returns the value of a device in a configuration; for a network card, as Proxmox writes it.
func joined(key string, of map[string]string, order []string) string {
	var out []string
	isCard := cluster.NumberedBus(key) == "net"
	if isCard {
		card := of["model"]
		if of["macaddr"] != "" {
			card += "=" + of["macaddr"]
		}
		out = append(out, card)
	}
	for _, name := range order {
		if !isCard || name != "model" && name != "macaddr" {
			out = append(out, name+"="+of[name])
		}
	}
	return strings.Join(out, ",")
}

func newDevice(key, wanted string) string {
	of, order := split(key, wanted)
	if cluster.NumberedBus(key) == "net" && of["model"] == "" {
		of["model"] = "virtio"
	}
	return joined(key, of, order)
}

// switches are the options of devices that are on or off. A missing option is off.
var switches = []string{"enabled", "firewall", "link_down"}

func (c *comparison) device(key, wanted string) {
	have, there := c.vm.Config[key]
	if !there {
		c.add(Difference{Key: key, Wanted: newDevice(key, wanted), When: Off, setting: key})
		return
	}
	is, _ := split(key, have)
	should, order := split(key, wanted)
	for _, name := range order {
		same := is[name] == should[name]
		if slices.Contains(switches, name) {
			a, _ := cluster.ParseBoolean(is[name])
			b, _ := cluster.ParseBoolean(should[name])
			same = a == b
		}
		diff := Difference{Key: key + " " + name, Found: is[name], Wanted: should[name], When: Off, setting: key, option: name}
		switch {
		case same, name == "macaddr" && strings.EqualFold(is[name], should[name]):
			continue
		case name == "macaddr":
			diff.When, diff.Why = Never, "the node may have its address by it: change it by hand, with the VM off, or write in recast.yaml what it is"
		}
		c.add(diff)
	}
}

// storedAtOnce are a drive's options that concern only Proxmox (PVE/QemuServer.pm, vmconfig_update_disk).
var storedAtOnce = []string{"backup", "replicate"}

// disk compares one disk. A missing one is added.
func (c *comparison) disk(d cluster.ShapeDisk) error {
	value, there := c.vm.Config[d.Key]
	if !there {
		c.add(c.newDisk(d))
		return nil
	}
	have, err := cluster.ParseDisk(d.Key, value)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", c.vm, err)
	case have.CDROM, slices.Contains(c.vm.Pods, have.Volid):
		c.add(Difference{Key: d.Key, Found: have.Volid, Wanted: "a disk", When: Never, Why: "the slot has a CD, or the disk of a pod: give the disk another one"})
		return nil
	}
	if d.Storage != "" && d.Storage != have.Storage() {
		c.add(Difference{
			Key: d.Key + " storage", Found: have.Storage(), Wanted: d.Storage, When: Never,
			Why: fmt.Sprintf("recast moves no disk to another storage: on %s: qm disk move %d %s %s", c.vm.Host, c.vm.ID, d.Key, d.Storage),
		})
	}
	if wanted := uint64(max(d.SizeGiB, 0)) << 30; d.SizeGiB > 0 && wanted != have.SizeBytes() {
		diff := Difference{Key: d.Key + " size", Found: have.Option("size"), Wanted: fmt.Sprintf("%dG", d.SizeGiB), When: Off, setting: d.Key, grows: true}
		switch {
		case wanted < have.SizeBytes():
			diff.When, diff.Why = Never, "recast makes no disk smaller: say what it has, or replace it by hand"
		case have.SizeBytes() == 0:
			diff.When, diff.Why = Never, fmt.Sprintf("how large it is can't be read: qm disk rescan --vmid %d, on %s, has Proxmox write it down", c.vm.ID, c.vm.Host)
		case have.Owner != c.vm.ID:
			diff.When, diff.Why = Never, fmt.Sprintf("the disk belongs to VM %d: grow it there", have.Owner)
		case noticesSize(d.Key):
			diff.When = Live
		}
		c.add(diff)
	}
	for _, o := range d.Options {
		name, wanted, _ := strings.Cut(o, "=")
		if slices.Contains(cluster.DriveOptions(have.Options), cluster.DriveOptions([]string{o})[0]) || have.Option(name) == "" && driveDefaults[name] == wanted {
			continue
		}
		diff := Difference{Key: d.Key + " " + name, Found: have.Option(name), Wanted: wanted, When: Off, setting: d.Key, option: name}
		switch {
		case slices.Contains(storedAtOnce, name):
			diff.When = Live
		case name == "serial":
			diff.When, diff.Why = Never, "a disk is known by it, to recast and maybe to machine configurations: change it by hand, with the VM off, or write in recast.yaml what it is"
		}
		c.add(diff)
	}
	return nil
}

// driveDefaults has the values of missing options of a drive ($drivedesc_base in PVE/QemuServer/Drive.pm).
var driveDefaults = map[string]string{"backup": "1", "replicate": "1", "iothread": "0", "ssd": "0", "discard": "ignore"}

func (c *comparison) newDisk(d cluster.ShapeDisk) Difference {
	allocates := cluster.Disk{Volid: fmt.Sprintf("%s:%d", d.Storage, d.SizeGiB), Options: d.Options}
	diff := Difference{Key: d.Key, Wanted: allocates.Value(), When: Off, setting: d.Key}
	switch {
	case d.Storage == "" || d.SizeGiB == 0:
		diff.When, diff.Wanted, diff.Why = Never, "a disk", "there is no such disk, and making it needs its storage and its size"
	case noticesSize(d.Key) && plugsDisks(c.vm):
		diff.When = Live
	}
	return diff
}

// noticesSize: a running guest sees a new or grown disk in that slot. Proxmox plugs none into IDE and SATA.
func noticesSize(key string) bool {
	return strings.HasPrefix(key, "scsi") || strings.HasPrefix(key, "virtio")
}

// plugsDisks says whether Proxmox plugs disks into a running VM (PVE/QemuServer.pm, parse_hotplug_features).
func plugsDisks(vm cluster.VM) bool {
	hotplug, set := vm.Config["hotplug"]
	return !set || hotplug == "1" || slices.Contains(strings.FieldsFunc(hotplug, func(r rune) bool { return strings.ContainsRune(",; ", r) }), "disk")
}

func (c *comparison) highAvailability(ha *cluster.HAResource, wanted map[string]string) {
	if _, named := wanted["state"]; !named && len(wanted) > 0 && ha != nil && ha.State == ignored { // it is being put under HA: see Apply
		c.add(Difference{Key: "ha state", Found: ignored, Wanted: "started", When: Live})
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		found := ""
		if ha != nil {
			found = ha.Settings[key]
			if key == "state" {
				found = ha.State
			}
		}
		if found == "enabled" {
			found = "started" // the old word for it (pve-ha-manager, PVE/HA/Config.pm)
		}
		if ha != nil && (key == "max_restart" || key == "max_relocate") {
			found = cmp.Or(found, "1")
		}
		if found != wanted[key] {
			c.add(Difference{Key: "ha " + key, Found: found, Wanted: wanted[key], When: Live})
		}
	}
}

// host compares the VM's host. Settle says later whether the VM can be migrated: Proxmox has to be asked.
func (c *comparison) host(wanted string) {
	if wanted != "" && wanted != c.vm.Host {
		c.add(Difference{Key: hostKey, Found: c.vm.Host, Wanted: wanted, When: Never, Why: byHand(c.vm, wanted)})
	}
}

const hostKey = "host"

func byHand(vm cluster.VM, to string) string {
	return fmt.Sprintf("on %s: %s", vm.Host, cluster.MigrateCommand(vm, to))
}

func (ds Differences) Moves(w When) string {
	d, _ := cluster.Find(ds.At(w), func(d Difference) bool { return d.Key == hostKey })
	return d.Wanted
}

// Settle sets when the difference of the host is put right, if there is one.
func (ds Differences) Settle(vm cluster.VM, m cluster.Migration, storages []cluster.Storage) {
	for i := range ds {
		d := &ds[i]
		if d.Key != hostKey {
			continue
		}
		off := len(slices.DeleteFunc(ds.At(Off), func(o Difference) bool { return o.Key == hostKey })) > 0
		d.When, d.Why = Migratable(vm, d.Wanted, m, storages)
		if d.When == Off && !off {
			d.When, d.Why = Never, d.Why+", and nothing else needs it off"
			if vm.HA {
				d.Why += fmt.Sprintf(": ha-manager migrate vm:%d %s", vm.ID, d.Wanted)
			} else {
				d.Why += ": with the VM off, " + byHand(cluster.VM{ID: vm.ID, Host: vm.Host}, d.Wanted)
			}
		}
	}
}

// Migratable says when a VM can be migrated to another host. Proxmox copies disks that only the old host has and
// deletes them there. recast leaves that to a person: a copy of a disk is not the disk that it protects.
func Migratable(vm cluster.VM, to string, m cluster.Migration, storages []cluster.Storage) (w When, why string) {
	var against []string
	if local := localVolumes(vm, m, storages); len(local) > 0 {
		against = append(against, fmt.Sprintf("%s is on a storage of %s only, and a migration would replace it by a copy", strings.Join(local, ", "), vm.Host))
	}
	switch {
	case m.Allowed:
	case len(m.Lacks) == 0:
		against = append(against, "Proxmox does not know "+to+" as a host for it")
	default:
		against = append(against, fmt.Sprintf("Proxmox does not let it go to %s: %s", to, strings.Join(m.Lacks, ", ")))
	}
	if len(m.WhileOff) > 0 {
		against = append(against, fmt.Sprintf("%s is a device of %s", strings.Join(m.WhileOff, ", "), vm.Host))
	}
	if len(m.Along) > 0 {
		against = append(against, "Proxmox HA would move "+strings.Join(m.Along, ", ")+" with it")
	}
	switch {
	case len(against) > 0:
		return Never, strings.Join(against, "; ") + ": " + byHand(vm, to)
	case vm.HA: // the request to Proxmox HA has no task that ends with the migration, and may be carried out at any later time
		return Off, "Proxmox HA manages it, and would migrate it when it sees fit"
	case len(m.Resources) > 0:
		return Off, strings.Join(m.Resources, ", ") + " keeps it from being migrated while it runs"
	case !vm.Running:
		return Off, "it does not run"
	}
	return Live, ""
}

type mover interface {
	cluster.TieReader
	cluster.StorageReader
}

// RequireMigratable refuses a migration that is not possible at that time, or is no longer possible.
func RequireMigratable(ctx context.Context, px mover, vm cluster.VM, to string, w When) error {
	said, err := px.Migration(ctx, vm, to)
	if err != nil {
		return fmt.Errorf("ask Proxmox whether %s can be migrated to %s: %w", vm, to, err)
	}
	storages, err := px.Storages(ctx)
	if err != nil {
		return fmt.Errorf("list the storages: %w", err)
	}
	if now, why := Migratable(vm, to, said, storages); now != w {
		return fault.WithHint(fault.PlanMoved.Refusedf("%s can no longer be migrated to %s as planned: %s", vm, to, why), "run recast plan and look again")
	}
	return nil
}

// localVolumes lists the volumes that only the VM's host has, unused disks and media of drives included.
func localVolumes(vm cluster.VM, m cluster.Migration, storages []cluster.Storage) []string {
	local := slices.Clone(m.LocalDisks)
	for _, key := range slices.SortedFunc(maps.Keys(vm.Config), cluster.CompareKeys) {
		if !cluster.IsDiskKey(key) {
			continue
		}
		volid, _, _ := strings.Cut(vm.Config[key], ",")
		volid = strings.TrimPrefix(volid, "file=")
		storage, _, named := strings.Cut(volid, ":")
		shared := named && slices.ContainsFunc(storages, func(s cluster.Storage) bool { return s.Name == storage && s.Shared })
		if volid != "none" && !shared && !slices.Contains(local, volid) {
			local = append(local, volid)
		}
	}
	return local
}

type changer interface {
	cluster.Editor
	cluster.HA
	cluster.TieReader
	cluster.VMReader
}

// Running is the VM of a node that stays up during the change.
type Running struct {
	Proxmox changer
	VMID    cluster.VMID
	Shape   cluster.Shape
	Machine func(ctx context.Context) (cluster.Machine, error) // reads the node's machine
}

func (r Running) Now(ctx context.Context) (vm cluster.VM, ds Differences, err error) {
	if vm, err = r.Proxmox.VM(ctx, r.VMID); err != nil {
		return vm, nil, fmt.Errorf("look up VM %d: %w", r.VMID, err)
	}
	if r.Shape.Pool != "" {
		if vm.Pool, err = r.Proxmox.Pool(ctx, r.VMID); err != nil {
			return vm, nil, err
		}
	}
	ds, err = Read(ctx, r.Proxmox, vm, r.Shape)
	return vm, ds, err
}

// Read is Compare with what Proxmox HA has of the VM, if its shape says something about that.
func Read(ctx context.Context, px cluster.TieReader, vm cluster.VM, s cluster.Shape) (ds Differences, err error) {
	var ha *cluster.HAResource
	if s.HA != nil {
		if ha, err = px.HAResource(ctx, vm.ID); err != nil {
			return nil, fmt.Errorf("read what Proxmox HA has of %s: %w", vm, err)
		}
	}
	return Compare(vm, ha, s)
}

// Lacks names the live differences that are left, or else a disk of the shape that the machine does not see, or sees
// smaller than Proxmox has it; "" if there is none. It skips a disk that can't be told apart.
func (r Running) Lacks(ctx context.Context) (string, error) {
	vm, ds, err := r.Now(ctx)
	if live := ds.At(Live); err != nil || len(live) > 0 {
		return "not as wanted: " + live.String(), err
	}
	m, err := r.Machine(ctx)
	if err != nil {
		return "", fmt.Errorf("read the machine of %s: %w", vm, err)
	}
	drives, err := vm.Bootable()
	if err != nil {
		return "", err
	}
	for _, d := range r.Shape.Disks {
		drive, there := cluster.FindDrive(drives, d.Key)
		if !there || d.SizeGiB == 0 {
			continue
		}
		switch on := m.MachineDisks(vm, drives, d.Key); {
		case len(on) == 0 && len(m.Disks) < len(drives):
			return "it does not see " + d.Key, nil
		case len(on) == 1 && on[0].SizeBytes < drive.SizeBytes():
			return fmt.Sprintf("it sees %s with %s", d.Key, cluster.Size(int64(on[0].SizeBytes))), nil
		}
	}
	return "", nil
}

// Apply puts the live differences right. say receives each action.
func (r Running) Apply(ctx context.Context, say func(string)) error {
	vm, ds, err := r.Now(ctx)
	if err != nil {
		return err
	}
	ds = ds.At(Live)
	set, err := Settings(vm, r.Shape, ds)
	if err != nil {
		return err
	}
	if len(set) > 0 {
		say("setting " + ds.String())
		if err := r.Proxmox.SetConfig(ctx, vm, set, nil); err != nil {
			return fmt.Errorf("set %v of %s: %w", slices.Sorted(maps.Keys(set)), vm, err)
		}
	}
	if err := Grow(ctx, r.Proxmox, r.VMID, ds, say); err != nil {
		return err
	}
	return applyAround(ctx, r.Proxmox, vm, r.Shape, ds, say)
}

// Settings returns what to set in the VM's configuration, without the growth of disks, which is no setting.
func Settings(vm cluster.VM, s cluster.Shape, ds Differences) (map[string]string, error) {
	set := map[string]string{}
	now := func(key string) string {
		if value, changed := set[key]; changed {
			return value
		}
		return vm.Config[key]
	}
	for _, d := range ds {
		switch key := d.setting; {
		case key == "" || d.grows:
		case key == "description":
			set[key] = vm.Redescribed(s.Settings[key])
		case d.option == "":
			set[key] = d.Wanted
		case cluster.IsDiskKey(key):
			drive, err := cluster.ParseDisk(key, now(key))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", vm, err)
			}
			drive.Options = drive.With(d.option, d.Wanted)
			set[key] = drive.Value()
		default:
			of, order := split(key, now(key))
			if _, there := of[d.option]; !there {
				order = append(order, d.option)
			}
			of[d.option] = d.Wanted
			set[key] = joined(key, of, order)
		}
	}
	return set, nil
}

func Grow(ctx context.Context, px interface {
	cluster.Editor
	cluster.VMReader
}, id cluster.VMID, ds Differences, say func(string),
) error {
	for _, d := range ds {
		if !d.grows {
			continue
		}
		vm, err := px.VM(ctx, id)
		if err != nil {
			return fmt.Errorf("look up VM %d: %w", id, err)
		}
		say("growing " + d.setting + " from " + d.Found + " to " + d.Wanted)
		if err := px.GrowDisk(ctx, vm, d.setting, d.Wanted); err != nil {
			return fmt.Errorf("grow %s of %s to %s: %w", d.setting, vm, d.Wanted, err)
		}
	}
	return nil
}

// ignored is the state of a resource that Proxmox HA does not touch.
const ignored = "ignored"

// applyAround puts right what Proxmox keeps outside of the VM's configuration.
func applyAround(ctx context.Context, px changer, vm cluster.VM, s cluster.Shape, ds Differences, say func(string)) error {
	has := func(prefix string) bool {
		return slices.ContainsFunc(ds, func(d Difference) bool {
			return d.setting == "" && strings.HasPrefix(d.Key, prefix)
		})
	}
	if has("pool") {
		say("putting the VM into pool " + s.Pool)
		if err := px.SetPool(ctx, vm.ID, s.Pool); err != nil {
			return fmt.Errorf("put %s into pool %s: %w", vm, s.Pool, err)
		}
	}
	if !has("ha ") {
		return nil
	}
	say("setting what Proxmox HA has of the VM")
	ha, err := px.HAResource(ctx, vm.ID)
	if err != nil {
		return fmt.Errorf("read what Proxmox HA has of %s: %w", vm, err)
	}
	want := cluster.HAResource{VMID: vm.ID, State: "started", Settings: map[string]string{}}
	if ha != nil {
		if ha.State != ignored {
			want.State = ha.State
		}
		maps.Copy(want.Settings, ha.Settings)
	}
	for key, value := range s.HA {
		if key == "state" {
			want.State = value
			continue
		}
		want.Settings[key] = value
	}
	if ha == nil { // the request may be carried out late, when the VM must be off; it must not start the VM then
		first := want
		first.State = ignored
		if err := px.AddHA(ctx, first); err != nil {
			return fmt.Errorf("put %s under Proxmox HA: %w", vm, err)
		}
	}
	return fault.Prefix("change what Proxmox HA has of "+vm.String(), px.SetHA(ctx, want))
}

// cloudInit says whether a cloud-init drive gives the setting to the machine (PVE/QemuServer.pm, $confdesc_cloudinit).
// They don't wait for the VM to be off (fast-plug in vmconfig_hotplug_pending): each start makes the drive again.
func cloudInit(key string) bool {
	return cluster.NumberedBus(key) == "ipconfig" ||
		slices.Contains([]string{"cicustom", "cipassword", "citype", "ciupgrade", "ciuser", "nameserver", "searchdomain", "sshkeys"}, key)
}

func givesAddress(value string, addr netip.Addr) bool {
	for o := range strings.SplitSeq(value, ",") {
		_, of, _ := strings.Cut(o, "=")
		if prefix, err := netip.ParsePrefix(of); err == nil && prefix.Addr() == addr {
			return true
		}
	}
	return false
}

// addresses returns a value of ipconfigN with sorted options, and with its addresses as they are usually written.
func addresses(value string) string {
	var options []string
	for o := range strings.SplitSeq(value, ",") {
		name, of, _ := strings.Cut(strings.TrimSpace(o), "=")
		if prefix, err := netip.ParsePrefix(of); err == nil {
			of = prefix.String()
		} else if addr, err := netip.ParseAddr(of); err == nil {
			of = addr.String()
		}
		options = append(options, name+"="+of)
	}
	slices.Sort(options)
	return strings.Join(options, ",")
}

// Lacks lists what else a node's shape has to say before a VM can be made from it.
func Lacks(w cluster.Wanted) (out []string) {
	lacks := func(what string, is bool) {
		if is {
			out = append(out, what)
		}
	}
	_, hasSystem := system(w)
	lacks("nodes[].host", w.Shape.Host == "")
	lacks("memory", w.Shape.Settings["memory"] == "")
	lacks("nics with a bridge", !strings.Contains(w.Shape.Devices["net0"], "bridge="))
	lacks("a disk with system: true, storage and size", !hasSystem || w.SystemGiB == 0)
	lacks("nodes[].address, or ipconfig", !w.Addr.IsValid())
	lacks("cloudinit, which ipconfig needs", w.Shape.Settings["ipconfig0"] != "" && w.Shape.CloudInit == "")
	for _, d := range w.Shape.Disks {
		lacks(fmt.Sprintf("storage and size of disk %s", d.Key), d.Key != w.SystemDisk && (d.Storage == "" || d.SizeGiB == 0))
	}
	return out
}

func system(w cluster.Wanted) (cluster.ShapeDisk, bool) {
	return cluster.Find(w.Shape.Disks, func(d cluster.ShapeDisk) bool {
		return d.Key == w.SystemDisk && d.Storage != ""
	})
}

// Defaults of a new VM, as Talos needs them.
var newVM = map[string]string{"ostype": "l26", "scsihw": "virtio-scsi-single", "cpu": "host", "cores": "2"}

// New returns a node's VM as made, for a w that lacks nothing. Disks besides the system's are added before its start.
func New(w cluster.Wanted, id cluster.VMID, uuid string) cluster.VM {
	vm := cluster.VM{ID: id, Name: w.Name, Host: w.Shape.Host, Pool: w.Shape.Pool, Config: maps.Clone(newVM)}
	maps.Copy(vm.Config, w.Shape.Settings)
	vm.Config["name"], vm.Config["smbios1"] = w.Name, "uuid="+uuid
	for key, wanted := range w.Shape.Devices {
		vm.Config[key] = newDevice(key, wanted)
	}
	if w.Shape.CloudInit != "" {
		vm.Config["ide0"] = w.Shape.CloudInit + ":cloudinit,media=cdrom"
	}
	if disk, found := system(w); found {
		options := append(slices.Clone(disk.Options), fmt.Sprintf("size=%dG", w.SystemGiB))
		vm.Config[disk.Key] = cluster.Disk{Volid: fmt.Sprintf("%s:vm-%d-disk-0", disk.Storage, id), Options: options}.Value()
	}
	return vm
}

// Firmware returns the disk for the UEFI variables of a new VM; none if the VM has a BIOS.
func Firmware(vm cluster.VM, storage string) map[string]string {
	if vm.Config["bios"] != "ovmf" {
		return nil
	}
	return map[string]string{"efidisk0": storage + ":1,efitype=4m,pre-enrolled-keys=0"}
}

// UUID returns the UUID of a new VM (RFC 9562, version 8). It is the same each time that a run asks for it.
func UUID(run, node string) string {
	b := sha256.Sum256([]byte("uuid/" + run + "/" + node))
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
