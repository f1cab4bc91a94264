package terraform

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/config"
)

// VM is a VM that Terraform manages.
type VM struct {
	Address, Module, Type string
	VMID                  int
	Host, Name            string
	Template              bool
	Shape                 config.VM // the hardware as Terraform has it, without disks
	Disks                 []Disk
	Firmware              []Disk   // disks of EFI variables and of the TPM
	Media                 []string // images that its disks or drives were made from, and the template of a clone
	Addresses             []string // IP addresses
	Tainted               bool     // the next apply replaces it
	Frees                 bool     // destroying it frees every volume with its number
	// Ignore are the attributes of the resource that a roll changes.
	Ignore []string

	placed    string   // host in the configuration
	unmanaged []string // slots that Terraform does not touch
	deletes   []string // slots that an update deletes
}

type Disk struct {
	Slot, Storage string
	KiB           int64  // 0: not known
	Volume        string // path in the storage; "": not known
	Image         string // image that the disk was made from
}

// GiB returns the size in GiB; 0 if the size is not known, or not a whole number of GiB.
func (d Disk) GiB() int {
	if d.KiB%(1<<20) != 0 {
		return 0
	}
	return int(d.KiB >> 20)
}

func (d Disk) size() string {
	if gib := d.GiB(); gib > 0 {
		return fmt.Sprintf("%dG", gib)
	}
	return fmt.Sprintf("%dM", d.KiB>>10)
}

func (d Disk) String() string {
	out := d.Slot
	if d.KiB > 0 {
		out += " " + d.size()
	}
	if d.Storage != "" {
		out += " on " + d.Storage
	}
	return out
}

// The resources that are VMs. Resources in partial describe only a part of the VM's hardware.
var (
	whole   = []string{"proxmox_virtual_environment_vm", "proxmox_vm_qemu"}
	partial = []string{"proxmox_virtual_environment_vm2", "proxmox_vm", "proxmox_virtual_environment_cloned_vm", "proxmox_cloned_vm"}
)

func isVM(kind string) bool { return slices.Contains(whole, kind) || slices.Contains(partial, kind) }

// Whole says whether the resource describes all of the VM's hardware.
func (v VM) Whole() bool { return slices.Contains(whole, v.Type) }

func vmOf(address, kind string, v values) (VM, error) {
	vm := VM{Address: address, Type: kind, Name: v.text("name"), Frees: v.is("delete_unreferenced_disks_on_destroy"), Template: v.is("template")}
	vm.fill(v)
	vm.Ignore = ignored(kind, v)
	if vm.VMID == 0 {
		return vm, fmt.Errorf("%s has no VMID", address)
	}
	slices.SortFunc(vm.Disks, func(a, b Disk) int { return strings.Compare(a.Slot, b.Slot) })
	vm.Addresses = slices.Compact(slices.Sorted(slices.Values(vm.Addresses)))
	return vm, nil
}

// fill reads the attributes, by the VM's type.
func (vm *VM) fill(v values) {
	switch vm.Type {
	case "proxmox_vm_qemu":
		vm.telmate(v)
	case "proxmox_virtual_environment_vm":
		vm.bpg(v)
	default:
		vm.cloned(v)
	}
}

// ignored returns the attributes of the resource that a roll changes (docs/notes/proxmox.md): volumes get new names,
// the CD drive and the boot order change and change back, the Notes get a line, and meanwhile the VM is off and does
// not start with its host.
func ignored(kind string, v values) []string {
	candidates := []string{"disk", "efi_disk", "tpm_state", "cdrom", "boot_order", "description", "started", "on_boot"}
	if kind == "proxmox_vm_qemu" {
		candidates = []string{"disks", "disk", "efidisk", "tpm_state", "boot", "bootdisk", "description", "desc", "power_state", "vm_state", "start_at_node_boot", "onboot"}
	}
	return slices.DeleteFunc(candidates, func(key string) bool {
		switch key {
		case "disks", "efi_disk", "efidisk", "tpm_state":
			return len(v.blocks(key)) == 0
		case "disk":
			return kind == "proxmox_vm_qemu" && len(v.blocks("disks")) > 0
		}
		return !v.has(key)
	})
}

func (vm *VM) bpg(v values) {
	vm.VMID, vm.Host = cmp.Or(v.number("vm_id"), v.number("id")), v.text("node_name")
	s := &vm.Shape
	cpu := v.block("cpu")
	s.Cores, s.Memory = given(cpu.number("cores")), given(v.block("memory").number("dedicated"))
	if n := cpu.number("sockets"); n > 1 {
		s.Sockets = &n
	}
	s.BIOS, s.Machine = said(v.text("bios")), said(v.text("machine"))
	s.Tags = tags(v.list("tags"))
	if v.has("on_boot") {
		s.OnBoot = new(v.is("on_boot"))
	}
	if agent := v.block("agent"); agent != nil {
		s.Agent = new(agent.is("enabled"))
	}
	for _, n := range v.blocks("network_device") {
		s.NICs = append(s.NICs, config.NIC{Bridge: said(n.text("bridge")), VLAN: given(n.number("vlan_id"))})
	}
	for _, d := range v.blocks("disk") {
		vm.add(Disk{
			Slot: d.text("interface"), Storage: d.text("datastore_id"), KiB: int64(d.number("size")) << 20, Volume: d.text("path_in_datastore"),
			Image: cmp.Or(d.text("file_id"), d.text("import_from")),
		})
	}
	vm.firmware("efidisk0", v.block("efi_disk").text("datastore_id"))
	vm.firmware("tpmstate0", v.block("tpm_state").text("datastore_id"))
	vm.placed = vm.Host
	vm.media(v.block("cdrom").text("file_id"))
	if id := v.block("clone").number("vm_id"); id > 0 {
		vm.media(fmt.Sprintf("VM %d", id))
	}
	for _, ip := range v.block("initialization").blocks("ip_config") {
		vm.address(ip.block("ipv4").text("address"))
		vm.address(ip.block("ipv6").text("address"))
	}
	for _, key := range []string{"ipv4_addresses", "ipv6_addresses"} {
		cards, _ := v[key].([]any)
		for _, card := range cards {
			for _, addr := range (values{"": card}).list("") {
				vm.address(addr)
			}
		}
	}
}

// cloned reads a VM of proxmox_cloned_vm or proxmox_vm. These resources leave alone whatever they do not name.
func (vm *VM) cloned(v values) {
	vm.VMID, vm.Host, vm.placed = v.number("id"), v.text("node_name"), v.text("node_name")
	disks, _ := v["disk"].(map[string]any)
	for slot, disk := range disks {
		if d, is := disk.(map[string]any); is && values(d).text("media") != "cdrom" {
			d := values(d)
			vm.add(Disk{Slot: slot, Storage: d.text("datastore_id"), KiB: int64(d.number("size_gb")) << 20, Volume: d.text("file"), Image: d.text("import_from")})
		}
	}
	vm.deletes = v.block("delete").list("disk")
}

var telmateID = regexp.MustCompile(`^([^/]+)/qemu/(\d+)$`)

func (vm *VM) telmate(v values) {
	vm.VMID, vm.Host = v.number("vmid"), cmp.Or(v.text("current_node"), v.text("target_node"))
	if m := telmateID.FindStringSubmatch(v.text("id")); m != nil {
		id, _ := strconv.Atoi(m[2]) // digits; too many of them are no VMID either
		vm.VMID, vm.Host = cmp.Or(vm.VMID, id), cmp.Or(vm.Host, m[1])
	}
	s := &vm.Shape
	cpu := v.block("cpu")
	s.Cores, s.Memory = given(cmp.Or(cpu.number("cores"), v.number("cores"))), given(v.number("memory"))
	if n := cmp.Or(cpu.number("sockets"), v.number("sockets")); n > 1 {
		s.Sockets = &n
	}
	s.BIOS, s.Machine = said(v.text("bios")), said(v.text("machine"))
	s.Tags = tags(strings.FieldsFunc(v.text("tags"), func(r rune) bool { return r == ',' || r == ';' || r == ' ' }))
	for _, key := range []string{"start_at_node_boot", "onboot"} {
		if v.has(key) && v[key] != nil {
			s.OnBoot = new(v.is(key))
			break
		}
	}
	if v.has("agent") {
		s.Agent = new(v.number("agent") == 1)
	}
	for i, n := range v.blocks("network") {
		if n.has("id") && n.number("id") != i {
			s.NICs = nil // the cards have gaps in their numbers, which a shape's NICs can't express
			break
		}
		s.NICs = append(s.NICs, config.NIC{Bridge: said(n.text("bridge")), VLAN: given(n.number("tag"))})
	}
	for _, d := range v.blocks("disk") {
		vm.telmateDisk(d)
	}
	for _, bus := range []string{"ide", "sata", "scsi", "virtio"} {
		vm.telmateBus(v.block("disks").block(bus))
	}
	vm.firmware("efidisk0", v.block("efidisk").text("storage"))
	vm.firmware("tpmstate0", v.block("tpm_state").text("storage"))
	vm.placed = v.text("target_node")
	vm.media(v.text("iso"))
	vm.media(v.text("clone"))
	for i := range 16 {
		for part := range strings.SplitSeq(v.text(fmt.Sprintf("ipconfig%d", i)), ",") {
			if ip, is := strings.CutPrefix(part, "ip="); is {
				vm.address(ip)
			}
		}
	}
	vm.address(v.text("default_ipv4_address"))
	vm.address(v.text("default_ipv6_address"))
}

// telmateDisk reads a block "disk". In older versions of the provider its slot was a number.
func (vm *VM) telmateDisk(d values) {
	slot := d.text("slot")
	if _, err := strconv.Atoi(slot); err == nil || slot == "" {
		slot = d.text("type") + cmp.Or(slot, "0")
	}
	switch d.text("type") {
	case "cdrom":
		vm.media(d.text("iso"))
	case "ignore":
		vm.unmanaged = append(vm.unmanaged, slot)
	case "cloudinit":
	default:
		vm.add(Disk{Slot: slot, Storage: d.text("storage"), KiB: sizeOf(d.text("size")), Volume: cmp.Or(d.text("disk_file"), d.text("file"))})
	}
}

// telmateBus reads the disks of a bus in the block "disks".
func (vm *VM) telmateBus(bus values) {
	for slot := range bus {
		b := bus.block(slot)
		disk, through := b.block("disk"), b.block("passthrough")
		vm.media(b.block("cdrom").text("iso"))
		switch {
		case b.is("ignore"):
			vm.unmanaged = append(vm.unmanaged, slot)
		case disk != nil:
			vm.add(Disk{Slot: slot, Storage: disk.text("storage"), KiB: sizeOf(disk.text("size"))})
		case through != nil:
			vm.add(Disk{Slot: slot, Volume: through.text("file"), KiB: sizeOf(through.text("size"))})
		}
	}
}

// sizeOf parses a size in the notation of Telmate's provider, and returns KiB. A bare number is in GiB. Other texts
// are 0.
func sizeOf(text string) int64 {
	digits := strings.TrimRight(text, "KMGT")
	n, err := strconv.ParseInt(digits, 10, 64)
	shift, known := map[string]int{"K": 0, "M": 10, "G": 20, "": 20, "T": 30}[text[len(digits):]]
	if err != nil || !known || n < 1 || n > 1<<32 {
		return 0
	}
	return n << shift
}

func (vm *VM) add(d Disk) {
	vm.Disks = append(vm.Disks, d)
	vm.media(d.Image)
}

func (vm *VM) firmware(slot, storage string) {
	if storage != "" {
		vm.Firmware = append(vm.Firmware, Disk{Slot: slot, Storage: storage})
	}
}

func (vm *VM) media(name string) {
	if name != "" && name != "none" && !slices.Contains(vm.Media, name) {
		vm.Media = append(vm.Media, name)
	}
}

// address adds an address, unless it is loopback or link-local, which does not lead to the machine.
func (vm *VM) address(text string) {
	text, _, _ = strings.Cut(text, "/")
	if addr, err := netip.ParseAddr(text); err == nil && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
		vm.Addresses = append(vm.Addresses, addr.String())
	}
}

func tags(list []string) []string {
	list = slices.DeleteFunc(list, func(tag string) bool { return strings.TrimSpace(tag) == "" })
	slices.Sort(list)
	return slices.Compact(list)
}

func given(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}

func said(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

var volume = regexp.MustCompile(`(?:^|/)vm-(\d+)-[^/]*$`)

// Owner returns the VM that a disk belongs to according to the name of its volume; 0 if the name does not say.
func (d Disk) Owner() int {
	if m := volume.FindStringSubmatch(d.Volume[strings.Index(d.Volume, ":")+1:]); m != nil {
		id, _ := strconv.Atoi(m[1]) // digits; too many of them are no VMID either
		return id
	}
	return 0
}

// values are the attributes of a resource, or of a block in a resource. A value that is missing, null or of another
// type reads as empty.
type values map[string]any

func (v values) text(key string) string {
	switch x := v[key].(type) {
	case string:
		return x
	case float64:
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return ""
}

// number returns a number; 0 if the value is no number.
func (v values) number(key string) int {
	switch x := v[key].(type) {
	case float64:
		return int(x)
	case string:
		n, err := strconv.Atoi(x)
		if err == nil {
			return n
		}
	}
	return 0
}

func (v values) is(key string) bool { b, _ := v[key].(bool); return b }

// blocks returns the blocks of a type, which are a list or a single object.
func (v values) blocks(key string) []values {
	switch x := v[key].(type) {
	case map[string]any:
		return []values{x}
	case []any:
		var out []values
		for _, item := range x {
			if block, is := item.(map[string]any); is {
				out = append(out, block)
			}
		}
		return out
	}
	return nil
}

// block returns the only block of a type; empty if there is none.
func (v values) block(key string) values {
	if all := v.blocks(key); len(all) > 0 {
		return all[0]
	}
	return nil
}

func (v values) list(key string) []string {
	var out []string
	items, _ := v[key].([]any)
	for _, item := range items {
		if s, is := item.(string); is {
			out = append(out, s)
		}
	}
	return out
}

// has says whether the resource's schema has the attribute: Terraform prints all attributes of the schema.
func (v values) has(key string) bool { _, there := v[key]; return there }

// anywhere says whether a tree of booleans, such as after_unknown, contains true.
func anywhere(x any) bool {
	switch x := x.(type) {
	case bool:
		return x
	case []any:
		return slices.ContainsFunc(x, anywhere)
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(x)), anywhere)
	}
	return false
}
