// Package terraform reads the output of "terraform show -json", of a state or of a plan: the VMs of both Proxmox
// providers, what the Talos provider says about their machines, and what a plan would take away. OpenTofu prints the
// same.
package terraform

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
)

// Document is one output of "terraform show -json".
type Document struct {
	File       string
	Plan       bool
	VMs        []VM      // existing VMs, sorted by address
	Machines   []Machine // known to the Talos provider
	Images     []Image   // downloaded by Proxmox
	Schematics []Schematic
	Endpoints  []string // of the Proxmox API; only those that a plan has as constants
	Clusters   []string // names known to the Talos provider

	changes []*tfjson.ResourceChange
}

// how says how to make a file that recast can read.
const how = "terraform show -json > show.json prints the state; terraform plan -out plan.out && terraform show -json plan.out > plan.json a plan; tofu does the same"

// Read reads a state or a plan. It refuses a document that is incomplete or of an unknown format.
func Read(file string, text []byte) (*Document, error) {
	d, err := read(text)
	if err != nil {
		return nil, fault.WithHint(fault.Configf("%s: %w", file, err), "%s", how)
	}
	d.File = file
	return d, nil
}

func read(text []byte) (*Document, error) {
	var probe struct {
		Format  string          `json:"format_version"`
		Lineage string          `json:"lineage"`
		Level   string          `json:"@level"`
		Errored bool            `json:"errored"`
		Planned json.RawMessage `json:"planned_values"`
		Changes json.RawMessage `json:"resource_changes"`
		Values  json.RawMessage `json:"values"`
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	err := dec.Decode(&probe)
	switch {
	case probe.Level != "":
		return nil, errors.New("it is the log that terraform prints with -json, not the plan")
	case err != nil:
		return nil, errors.New("it is not JSON, or only a part of it") // the decoder's error may quote a secret
	case dec.More():
		return nil, errors.New("there is more than one JSON document in it")
	case probe.Lineage != "":
		return nil, errors.New("it is a state as Terraform stores it, whose format is Terraform's own")
	case probe.Format == "":
		return nil, errors.New("it has no format_version, so it is neither a state nor a plan")
	case probe.Errored:
		return nil, errors.New("it is a plan that failed half-way (errored), so it does not say all that would be done")
	case probe.Planned == nil && probe.Changes == nil && probe.Values == nil:
		return nil, errors.New("it is neither a plan nor a state with resources in it: it has no values, planned_values or resource_changes")
	}
	d := &Document{Plan: probe.Values == nil}
	state := &tfjson.State{}
	if d.Plan {
		var plan tfjson.Plan
		if err := json.Unmarshal(text, &plan); err != nil {
			return nil, unreadable(err)
		}
		if len(plan.DeferredChanges) > 0 {
			return nil, errors.New("it is a plan with deferred changes, so it does not say all that would be done: first " + plan.DeferredChanges[0].Reason)
		}
		d.changes, state = plan.ResourceChanges, cmp.Or(plan.PriorState, state)
		d.endpoints(plan.Config)
	} else if err := json.Unmarshal(text, state); err != nil {
		return nil, unreadable(err)
	}
	if state.Values != nil {
		if err := d.module(state.Values.RootModule); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(d.VMs, func(a, b VM) int { return strings.Compare(a.Address, b.Address) })
	slices.Sort(d.Clusters)
	d.Clusters = slices.Compact(d.Clusters)
	return d, nil
}

// unreadable returns an error of the decoder without the values that the error may quote.
func unreadable(err error) error {
	if e, is := errors.AsType[*json.UnmarshalTypeError](err); is {
		return errors.New("the field " + e.Field + " is of another type than Terraform documents")
	}
	return err
}

func (d *Document) module(m *tfjson.StateModule) error {
	if m == nil {
		return nil
	}
	for _, r := range m.Resources {
		if r.DeposedKey != "" {
			continue
		}
		v := values(r.AttributeValues)
		switch r.Type {
		case "proxmox_virtual_environment_download_file", "proxmox_download_file", "proxmox_storage_iso":
			d.Images = append(d.Images, imageOf(v))
		case "talos_image_factory_schematic":
			d.Schematics = append(d.Schematics, Schematic{Address: r.Address, ID: v.text("id"), YAML: v.text("schematic")})
		case "talos_machine_configuration_apply", "talos_machine", "talos_machine_configuration", "talos_machine_bootstrap", "talos_client_configuration":
			d.talos(r.Address, r.Type, v)
		default:
			if r.Mode == tfjson.ManagedResourceMode && isVM(r.Type) {
				vm, err := vmOf(r.Address, r.Type, v)
				if err != nil {
					return err
				}
				vm.Module, vm.Tainted = m.Address, r.Tainted
				d.VMs = append(d.VMs, vm)
			}
		}
	}
	for _, child := range m.ChildModules {
		if err := d.module(child); err != nil {
			return err
		}
	}
	return nil
}

// endpoints finds the URL of the Proxmox API, if it is a constant in the configuration.
func (d *Document) endpoints(c *tfjson.Config) {
	if c == nil {
		return
	}
	for _, p := range c.ProviderConfigs {
		for _, key := range []string{"endpoint", "pm_api_url"} {
			if e, is := p.Expressions[key]; is && e.ExpressionData != nil && p.Name == "proxmox" {
				if url, is := e.ConstantValue.(string); is {
					d.Endpoints = append(d.Endpoints, strings.TrimSuffix(strings.TrimRight(url, "/"), "/api2/json"))
				}
			}
		}
	}
	slices.Sort(d.Endpoints)
	d.Endpoints = slices.Compact(d.Endpoints)
}

// Machine is what the Talos provider says about one machine.
type Machine struct {
	Address  string // address of the resource
	Node     string // IP address or name; "": the resource is only a configuration
	Role     string // "control plane" or "worker"; "": not known
	Hostname string
	Cluster  string
	Image    string // installer in its configuration
	Omni     bool   // its configuration joins it to Omni
	Resets   bool   // destroying the resource resets the machine
}

// Of says whether the machine runs on the VM: they share an address or the name.
func (m Machine) Of(vm VM) bool {
	return m.Node != "" && (slices.Contains(vm.Addresses, m.Node) || m.Node == vm.Name) || m.Hostname != "" && m.Hostname == vm.Name
}

// Image is a file that Proxmox downloaded from a URL.
type Image struct {
	ID      string // the ID that VMs use: "local:iso/talos.iso"
	URL     string
	Storage string
	ISO     bool // the storage accepted it as content type "iso"
}

// Schematic is a resource that holds a schematic of an Image Factory.
type Schematic struct{ Address, ID, YAML string }

func imageOf(v values) Image {
	storage := v.text("datastore_id") + v.text("storage") // the two providers' names of the attribute
	im := Image{ID: v.text("id"), URL: v.text("url"), Storage: storage, ISO: v.text("content_type") == "iso"}
	if name := v.text("filename"); name != "" { // proxmox_storage_iso
		im.ID, im.ISO = storage+":iso/"+name, true
	}
	return im
}

func (d *Document) talos(address, kind string, v values) {
	m := Machine{Address: address, Node: v.text("node")}
	switch kind {
	case "talos_client_configuration":
		for _, node := range append(v.list("nodes"), v.list("endpoints")...) {
			d.Machines = append(d.Machines, Machine{Address: address, Node: node, Cluster: v.text("cluster_name")})
		}
		if name := v.text("cluster_name"); name != "" {
			d.Clusters = append(d.Clusters, name)
		}
		return
	case "talos_machine_bootstrap":
		m.Role = "control plane" // talosctl bootstrap refuses others
	default:
		m.Role, m.Cluster = roles[v.text("machine_type")], v.text("cluster_name")
		m.Image = v.text("image")
		for _, key := range []string{"machine_configuration_input", "machine_configuration"} { // the second attribute includes the patches
			m.configuration(v.text(key))
		}
		m.Resets = v.block("on_destroy").is("reset")
	}
	if m.Cluster != "" {
		d.Clusters = append(d.Clusters, m.Cluster)
	}
	d.Machines = append(d.Machines, m)
}

var roles = map[string]string{"controlplane": "control plane", "init": "control plane", "worker": "worker"}

// configuration reads facts from a machine configuration. It ignores a configuration that it can't read, and shows no
// error, which may quote a secret.
func (m *Machine) configuration(text string) {
	dec := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	for {
		var doc struct {
			Machine struct {
				Type    string                    `yaml:"type"`
				Install struct{ Image string }    `yaml:"install"`
				Network struct{ Hostname string } `yaml:"network"`
			} `yaml:"machine"`
			Cluster struct {
				Name string `yaml:"clusterName"`
			} `yaml:"cluster"`
			Kind     string `yaml:"kind"`
			Hostname string `yaml:"hostname"`
		}
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) || err != nil {
			return
		}
		set := func(field *string, value string) {
			if value != "" {
				*field = value
			}
		}
		set(&m.Role, roles[doc.Machine.Type])
		set(&m.Image, doc.Machine.Install.Image)
		set(&m.Hostname, doc.Machine.Network.Hostname)
		set(&m.Cluster, doc.Cluster.Name)
		m.Omni = m.Omni || doc.Kind == "SideroLinkConfig"
		if doc.Kind == "HostnameConfig" {
			set(&m.Hostname, doc.Hostname)
		}
	}
}

// Build holds what a URL or an installer of an Image Factory says about an image.
type Build struct {
	Factory, Schematic, Talos, Platform, Arch string // "": not known
	SecureBoot                                bool
}

var (
	factoryURL       = regexp.MustCompile(`^(https?://[^/]+)/image/([0-9a-f]{64})/(v\d+\.\d+\.\d+[^/]*)/([a-z0-9]+)-(amd64|arm64)(-secureboot)?\.`)
	factoryInstaller = regexp.MustCompile(`^([^/]+)/(?:([a-z0-9]+)-)?installer(-secureboot)?/([0-9a-f]{64}):(v\d+\.\d+\.\d+[^@]*)`)
)

// BuildOf reads the URL of an image, or the reference of an installer; false if the text is not of an Image Factory.
func BuildOf(text string) (Build, bool) {
	if m := factoryURL.FindStringSubmatch(text); m != nil {
		return Build{Factory: m[1], Schematic: m[2], Talos: m[3], Platform: m[4], Arch: m[5], SecureBoot: m[6] != ""}, true
	}
	if m := factoryInstaller.FindStringSubmatch(text); m != nil {
		return Build{Factory: "https://" + m[1], Platform: m[2], SecureBoot: m[3] != "", Schematic: m[4], Talos: m[5]}, true
	}
	return Build{}, false
}

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
	s.BIOS, s.Machine = given(v.text("bios")), given(v.text("machine"))
	s.Tags = tags(v.list("tags"))
	if v.has("on_boot") {
		s.OnBoot = new(v.is("on_boot"))
	}
	if agent := v.block("agent"); agent != nil {
		s.Agent = new(agent.is("enabled"))
	}
	for _, n := range v.blocks("network_device") {
		s.NICs = append(s.NICs, config.NIC{Bridge: given(n.text("bridge")), VLAN: given(n.number("vlan_id"))})
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
	s.BIOS, s.Machine = given(v.text("bios")), given(v.text("machine"))
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
		s.NICs = append(s.NICs, config.NIC{Bridge: given(n.text("bridge")), VLAN: given(n.number("tag"))})
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

// given returns nil for a zero value, which is one that Terraform does not say.
func given[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
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
