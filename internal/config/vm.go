package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// VM is one entry of "vmClasses", and the section "vm" of a node: the shape of a VM, in Proxmox' own words. What is not set stays as it is found.
type VM struct {
	// Cores per socket.
	Cores *int `yaml:"cores,omitempty" jsonschema:"minimum=1"`
	// Sockets of the VM.
	Sockets *int `yaml:"sockets,omitempty" jsonschema:"minimum=1"`
	// VCPUs that are plugged in at the start. Default: all.
	VCPUs *int `yaml:"vcpus,omitempty" jsonschema:"minimum=1"`
	// CPU is the type of the processor, such as host or x86-64-v2-AES, with options as Proxmox writes them.
	CPU *string `yaml:"cpu,omitempty"`
	// CPUUnits is the VM's weight when processors are scarce.
	CPUUnits *int `yaml:"cpuunits,omitempty" jsonschema:"minimum=1,maximum=262144"`
	// NUMA shows the guest a NUMA topology.
	NUMA *bool `yaml:"numa,omitempty"`
	// Memory in MiB.
	Memory *int `yaml:"memory,omitempty" jsonschema:"minimum=16"`
	// Balloon is the memory in MiB that the VM keeps when its host runs short; 0 switches ballooning off.
	Balloon *int `yaml:"balloon,omitempty" jsonschema:"minimum=0"`
	// Shares is the VM's weight when memory is ballooned.
	Shares *int `yaml:"shares,omitempty" jsonschema:"minimum=0,maximum=50000"`
	// BIOS is the firmware. recast never changes that of a VM that is there.
	BIOS *string `yaml:"bios,omitempty" jsonschema:"enum=seabios,enum=ovmf"`
	// Machine is QEMU's machine type, such as q35.
	Machine *string `yaml:"machine,omitempty"`
	// SCSIHW is the SCSI controller.
	SCSIHW *string `yaml:"scsihw,omitempty" jsonschema:"enum=lsi,enum=lsi53c810,enum=virtio-scsi-pci,enum=virtio-scsi-single,enum=megasas,enum=pvscsi"`
	// OSType of the guest: l26 for Talos.
	OSType *string `yaml:"ostype,omitempty" jsonschema:"enum=other,enum=l24,enum=l26"`
	// Agent says whether the guest runs the QEMU guest agent.
	Agent *bool `yaml:"agent,omitempty"`
	// Tags of the VM, all of them.
	Tags []string `yaml:"tags,omitempty"`
	// Description is shown in Proxmox. recast adds its own mark.
	Description *string `yaml:"description,omitempty"`
	// OnBoot starts the VM when its host boots.
	OnBoot *bool `yaml:"onboot,omitempty"`
	// Startup is the order in which VMs start with their host, and their delays, such as order=2,up=30.
	Startup *string `yaml:"startup,omitempty"`
	// Pool is the resource pool of the VM.
	Pool *string `yaml:"pool,omitempty"`
	// HA is the VM's resource in Proxmox HA.
	HA *HA `yaml:"ha,omitempty"`
	// NICs are the network cards net0, net1 and so on.
	NICs []NIC `yaml:"nics,omitempty"`
	// Disks of the VM, by slot. Disks that are not named stay as they are; recast never shrinks a disk, moves one to another storage, or removes one.
	Disks []VMDisk `yaml:"disks,omitempty"`
	// IPConfig are the addresses that a cloud-init drive gives the cards of a new VM: ipconfig0, ipconfig1 and so on, such as ip=192.0.2.31/24,gw=192.0.2.1.
	IPConfig []string `yaml:"ipconfig,omitempty"`
	// CloudInit is the storage of a new VM's cloud-init drive, which ipconfig needs.
	CloudInit *string `yaml:"cloudinit,omitempty"`
	// HostPCI are the resource mappings of the devices hostpci0, hostpci1 and so on.
	HostPCI []string `yaml:"hostpci,omitempty"`
}

// HA is the section "ha" of a VM.
type HA struct {
	// State that Proxmox HA keeps the VM in.
	State *string `yaml:"state,omitempty" jsonschema:"enum=started,enum=ignored"`
	// Group of hosts (Proxmox VE 8; 9 has rules instead).
	Group *string `yaml:"group,omitempty"`
	// MaxRestart is how often a failed VM is started again on its host.
	MaxRestart *int `yaml:"max_restart,omitempty" jsonschema:"minimum=0"`
	// MaxRelocate is how often it is started on another host after that.
	MaxRelocate *int `yaml:"max_relocate,omitempty" jsonschema:"minimum=0"`
}

// NIC is one entry of "nics". The MAC address of a VM that is there never changes.
type NIC struct {
	// Bridge or VNet of the card.
	Bridge *string `yaml:"bridge,omitempty"`
	// VLAN tag of the card's packets.
	VLAN *int `yaml:"vlan,omitempty" jsonschema:"minimum=1,maximum=4094"`
	// Model of the card.
	Model *string `yaml:"model,omitempty" jsonschema:"enum=virtio,enum=e1000,enum=e1000e,enum=rtl8139,enum=vmxnet3"`
	// MTU of the card (virtio only); 1: that of the bridge.
	MTU *int `yaml:"mtu,omitempty" jsonschema:"minimum=1,maximum=65520"`
	// Queues of the card (virtio only).
	Queues *int `yaml:"queues,omitempty" jsonschema:"minimum=0,maximum=64"`
	// Firewall puts the card behind Proxmox' firewall.
	Firewall *bool `yaml:"firewall,omitempty"`
	// MAC address of a new card, such as one that DHCP has a reservation for. Default: Proxmox makes one up.
	MAC *string `yaml:"mac,omitempty"`
}

// VMDisk is one entry of "disks".
type VMDisk struct {
	// Slot is the Proxmox key of the disk, such as scsi1.
	Slot string `yaml:"slot" jsonschema:"required"`
	// Storage of the disk.
	Storage *string `yaml:"storage,omitempty"`
	// Size of the disk, such as 100G or 2T. A larger one grows the disk.
	Size *DiskSize `yaml:"size,omitempty"`
	// System marks the disk that Talos is installed on: nodes[].systemDisk for all nodes of the class.
	System *bool `yaml:"system,omitempty"`
	// Serial that the disk shows to the guest.
	Serial *string `yaml:"serial,omitempty"`
	// Cache mode.
	Cache *string `yaml:"cache,omitempty" jsonschema:"enum=none,enum=writethrough,enum=writeback,enum=unsafe,enum=directsync"`
	// AIO is how the host does the disk's I/O.
	AIO *string `yaml:"aio,omitempty" jsonschema:"enum=native,enum=threads,enum=io_uring"`
	// IOThread gives the disk a thread of its own.
	IOThread *bool `yaml:"iothread,omitempty"`
	// SSD shows the disk as one that does not rotate.
	SSD *bool `yaml:"ssd,omitempty"`
	// Discard passes freed blocks on to the storage.
	Discard *bool `yaml:"discard,omitempty"`
	// Backup includes the disk in backups.
	Backup *bool `yaml:"backup,omitempty"`
	// Replicate includes the disk in replication jobs.
	Replicate *bool `yaml:"replicate,omitempty"`
}

// DiskSize is the size of a disk in GiB, written like 100G or 2T.
type DiskSize struct{ GiB int }

func (s *DiskSize) UnmarshalText(text []byte) error {
	digits := strings.TrimRight(string(text), "GT")
	n, err := strconv.Atoi(digits)
	unit := map[string]int{"G": 1, "T": 1 << 10}[string(text[len(digits):])]
	if err != nil || unit == 0 || n < 1 || n > 128<<10 {
		return fmt.Errorf("%s is not a size: write it like 100G or 2T", quote(string(text)))
	}
	s.GiB = n * unit
	return nil
}

func (s DiskSize) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
func (s DiskSize) String() string               { return strconv.Itoa(s.GiB) + "G" }

// ShapeOf returns the shape of a node's VM: the shape of its class, overridden by the node's own settings.
func (c *Config) ShapeOf(n Node) VM {
	shape := c.VMClasses[n.Class]
	over(reflect.ValueOf(&shape).Elem(), reflect.ValueOf(n.VM))
	return shape
}

// over overrides base with the values that top sets: sections key by key, network cards by their number, disks by
// their slot, other lists as a whole.
func over(base, top reflect.Value) {
	for i := range base.NumField() {
		to, from := base.Field(i), top.Field(i)
		switch {
		case from.IsZero():
		case from.Type() == reflect.TypeFor[*HA]() && !to.IsZero():
			merged := reflect.New(to.Type().Elem())
			merged.Elem().Set(to.Elem())
			over(merged.Elem(), from.Elem())
			to.Set(merged)
		case from.Type() == reflect.TypeFor[[]NIC]():
			nics := slices.Clone(to.Interface().([]NIC))
			for i, nic := range from.Interface().([]NIC) {
				if i == len(nics) {
					nics = append(nics, NIC{})
				}
				over(reflect.ValueOf(&nics[i]).Elem(), reflect.ValueOf(nic))
			}
			to.Set(reflect.ValueOf(nics))
		case from.Type() == reflect.TypeFor[[]VMDisk]():
			disks := slices.Clone(to.Interface().([]VMDisk))
			for _, d := range from.Interface().([]VMDisk) {
				at := slices.IndexFunc(disks, func(of VMDisk) bool { return of.Slot == d.Slot })
				if at < 0 {
					at, disks = len(disks), append(disks, VMDisk{})
				}
				over(reflect.ValueOf(&disks[at]).Elem(), reflect.ValueOf(d))
			}
			to.Set(reflect.ValueOf(disks))
		default:
			to.Set(from)
		}
	}
}

// Settings returns the given settings of Proxmox that hold one value.
func (v VM) Settings() map[string]string {
	out := map[string]string{}
	for key, value := range options(v) {
		if key != "pool" && key != "agent" && key != "cloudinit" {
			out[key] = value
		}
	}
	if v.Tags != nil {
		out["tags"] = strings.Join(slices.Sorted(slices.Values(v.Tags)), ";")
	}
	for i, config := range v.IPConfig {
		out[fmt.Sprintf("ipconfig%d", i)] = config
	}
	return out
}

// Devices returns the given options of settings that hold several values: net0, hostpci0, agent.
func (v VM) Devices() map[string]string {
	out := map[string]string{}
	if v.Agent != nil {
		out["agent"] = "enabled=" + text(reflect.ValueOf(*v.Agent))
	}
	for i, nic := range v.NICs {
		given := options(nic)
		for ours, its := range map[string]string{"vlan": "tag", "mac": "macaddr"} {
			if value, is := given[ours]; is {
				delete(given, ours)
				given[its] = value
			}
		}
		out[fmt.Sprintf("net%d", i)] = strings.Join(pairs(given), ",")
	}
	for i, mapping := range v.HostPCI {
		out[fmt.Sprintf("hostpci%d", i)] = "mapping=" + mapping
	}
	return out
}

// HAOptions returns the settings of the VM's resource in Proxmox HA; nil: leave as found.
func (v VM) HAOptions() map[string]string {
	if v.HA == nil {
		return nil
	}
	return options(*v.HA)
}

// Options returns the given options of a drive, as Proxmox writes them.
func (d VMDisk) Options() []string {
	given := options(d)
	for _, key := range []string{"slot", "storage", "size", "system"} {
		delete(given, key)
	}
	if on, is := given["discard"]; is {
		given["discard"] = map[string]string{"1": "on", "0": "ignore"}[on]
	}
	return pairs(given)
}

// IsSystem says whether Talos is installed on the disk.
func (d VMDisk) IsSystem() bool { return d.System != nil && *d.System }

// options returns the single values that a section sets, by key.
func options(section any) map[string]string {
	out := map[string]string{}
	v := reflect.ValueOf(section)
	for _, f := range fieldsOf(v.Type()) {
		if value := v.FieldByIndex(f.index); value.Kind() == reflect.Pointer && !value.IsNil() && value.Type() != reflect.TypeFor[*HA]() {
			out[f.key] = text(value.Elem())
		}
	}
	return out
}

func text(v reflect.Value) string {
	switch v := v.Interface().(type) {
	case bool:
		return map[bool]string{true: "1", false: "0"}[v]
	default:
		return fmt.Sprint(v)
	}
}

func pairs(given map[string]string) (out []string) {
	for _, key := range slices.Sorted(maps.Keys(given)) {
		out = append(out, key+"="+given[key])
	}
	return out
}

func (c *Config) systemDisks() {
	for i, n := range c.Nodes {
		for _, d := range c.ShapeOf(n).Disks {
			if !d.IsSystem() {
				continue
			}
			disk := &c.Nodes[i].SystemDisk
			disk.Slot = cmp.Or(disk.Slot, d.Slot)
			if d.Size != nil {
				disk.SizeGiB = cmp.Or(disk.SizeGiB, d.Size.GiB)
			}
		}
	}
}

// MachineConfigs is the section "talos.machineConfigs": the path of a directory, or a mapping with dir, command or render.
type MachineConfigs struct {
	// Dir is a directory with one file per node. A node without a file keeps the configuration that it runs.
	Dir string `yaml:"dir,omitempty"`
	// Command is a program that writes the files of all nodes, and its arguments, in which {out} is the directory for its output. It runs in the directory of this file, at most once per recast command; its output is read, and deleted at once. Use it for talhelper, topf, talm or a script of yours.
	Command []string `yaml:"command,omitempty"`
	// Render makes the configurations of all nodes from secrets and patches, as talosctl gen config does.
	Render RenderConfigs `yaml:"render,omitempty"`
	// Env names variables of recast's environment to pass to command, sops and age, in addition to those that they get anyway; PROXMOX_VE_API_TOKEN is not allowed.
	Env []string `yaml:"env,omitempty"`
	// Names is the path of a node's file in that directory, in which {node} is the node's name and {cluster} the cluster's, such as {cluster}-{node}.yaml. Default: {node}.yaml.
	Names string `yaml:"names,omitempty"`
	// Path is Dir resolved against the directory of recast.yaml.
	Path string `yaml:"-"`
}

// UnmarshalText accepts the short form, the path of a directory.
func (m *MachineConfigs) UnmarshalText(text []byte) error {
	m.Dir = string(text)
	return nil
}

// Given says whether machine configurations are kept outside the nodes.
func (m MachineConfigs) Given() bool { return m.Dir != "" || len(m.Command) > 0 || m.Render.Given() }

// Given says whether recast renders configurations itself.
func (r RenderConfigs) Given() bool { return r.Secrets != "" }

// RenderConfigs is the section "talos.machineConfigs.render".
type RenderConfigs struct {
	// Secrets is the file with the cluster's secrets, as talosctl gen secrets writes it. SOPS or age may have encrypted it.
	Secrets string `yaml:"secrets"`
	// Endpoint is the URL of the Kubernetes API, as all nodes reach it: https://10.0.0.1:6443.
	Endpoint string `yaml:"endpoint" jsonschema:"format=uri"`
	// Talos is the release of Talos whose defaults and documents the configurations have, such as v1.14, whatever version the nodes run. Move it on purpose only: recast config diff shows what that changes.
	Talos string `yaml:"talos"`
	// Kubernetes is the version in the configurations, such as v1.35.4. Nodes keep the version that they run. Default: kubernetes.version.
	Kubernetes string `yaml:"kubernetes,omitempty"`
	// ControlPlanes are the names of the nodes that are control planes. All others are workers.
	ControlPlanes []string `yaml:"controlPlanes"`
	// CertSANs are further names and addresses in the certificate of the Kubernetes API.
	CertSANs []string `yaml:"certSANs,omitempty"`
	// DNSDomain is the DNS domain of the cluster. Default: cluster.local.
	DNSDomain string `yaml:"dnsDomain,omitempty"`
	// Patches are files with parts of a configuration (strategic merge patches) or lists of JSON patch operations, which are applied in this order: those of all nodes, of the node's role, of the node. SOPS or age may have encrypted them.
	Patches RenderPatches `yaml:"patches,omitempty"`
}

// RenderPatches is the section "talos.machineConfigs.render.patches".
type RenderPatches struct {
	// All are patches of every node.
	All []string `yaml:"all,omitempty"`
	// ControlPlanes are patches of all control planes.
	ControlPlanes []string `yaml:"controlPlanes,omitempty"`
	// Workers are patches of all workers.
	Workers []string `yaml:"workers,omitempty"`
	// Nodes are patches of single nodes, by their names.
	Nodes map[string][]string `yaml:"nodes,omitempty"`
}

// File returns the path of a node's file within the directory.
func (m MachineConfigs) File(cluster, node string) string {
	return strings.NewReplacer("{node}", node, "{cluster}", cluster).Replace(m.Names)
}

func (k checker) machineConfigs() {
	const path = "talos.machineConfigs"
	m := k.c.Talos.MachineConfigs
	if !k.given(path) || k.bad[path] {
		return
	}
	dir, command := k.given(path+".dir"), k.given(path+".command")
	switch {
	case k.given(path + ".render"):
		for _, other := range []string{"dir", "command", "names"} {
			if k.given(path + "." + other) {
				k.add(path+".render", "%s is given too (line %d): keep one of them", other, k.line(path+"."+other))
			}
		}
		k.renderConfigs(path+".render", m.Render)
	case dir && command:
		k.add(path+".command", "dir is given too (line %d): keep one of them", k.line(path+".dir"))
	case dir:
		k.notEmpty(path+".dir", m.Dir)
	case command && len(m.Command) == 0:
		k.add(path+".command", "is empty: name a program or remove it")
	case command && !strings.Contains(strings.Join(m.Command[1:], " "), "{out}"):
		k.add(path+".command", "does not say where its output goes: give it {out} as an argument, which recast replaces by the path of an empty directory")
	case !command && m.Dir == "":
		k.add(path, "is empty: name a directory, or a command, or render, or remove it")
	}
	for i, arg := range m.Command {
		if arg == "" {
			k.add(spot{path: path + ".command"}.item(i).path, "is empty: give it a value or remove it")
		}
	}
	k.env(path, m.Env)
	if !k.given(path + ".names") {
		return
	}
	switch {
	case !strings.Contains(m.Names, "{node}"):
		k.add(path+".names", "%s has no {node}: every node would get the same file", quote(m.Names))
	case !filepath.IsLocal(m.File("cluster", "node")):
		k.add(path+".names", "%s leads out of the directory", quote(m.Names))
	case strings.ContainsAny(m.File("cluster", "node"), "{}"):
		k.add(path+".names", "%s has a placeholder other than {node} and {cluster}", quote(m.Names))
	}
}

func (k checker) renderConfigs(path string, r RenderConfigs) {
	k.notEmpty(path+".secrets", r.Secrets)
	k.notEmpty(path+".endpoint", r.Endpoint)
	if u, err := url.Parse(r.Endpoint); r.Endpoint != "" && (err != nil || u.Scheme != "https" || u.Host == "") {
		k.add(path+".endpoint", "%s is not a URL such as https://10.0.0.1:6443", quote(r.Endpoint))
	}
	if !release.MatchString(r.Talos) {
		k.add(path+".talos", "%s is not a release such as v1.14", quote(r.Talos))
	}
	if r.Kubernetes == "" && k.c.Kubernetes.Version == "" {
		k.add(path+".kubernetes", "is missing, and so is kubernetes.version: which version do the configurations name?")
	}
	known := func(path, name string) {
		if !slices.ContainsFunc(k.c.Nodes, func(n Node) bool { return n.Name == name }) {
			k.add(path, "there is no node %s", quote(name))
		}
	}
	if len(r.ControlPlanes) == 0 {
		k.add(path+".controlPlanes", "is missing: which nodes are control planes?")
	}
	for i, name := range r.ControlPlanes {
		known(spot{path: path + ".controlPlanes"}.item(i).path, name)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Patches.Nodes)) {
		known(path+".patches.nodes", name)
	}
}

// release matches a release of Talos, with or without its patch number.
var release = regexp.MustCompile(`^v1\.\d+(\.\d+)?$`)

// files calls each for every file from which configurations are rendered, with the path at which recast.yaml names
// the file.
func (r *RenderConfigs) files(each func(path string, file *string)) {
	if !r.Given() {
		return
	}
	const path = "talos.machineConfigs.render"
	each(path+".secrets", &r.Secrets)
	lists := map[string][]string{"all": r.Patches.All, "controlPlanes": r.Patches.ControlPlanes, "workers": r.Patches.Workers}
	for node, list := range r.Patches.Nodes {
		lists["nodes."+node] = list
	}
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		for i := range lists[name] {
			each(fmt.Sprintf("%s.patches.%s[%d]", path, name, i), &lists[name][i])
		}
	}
}

// Gate is one entry of "roll.gates": Kubernetes objects and an expression, or a program.
type Gate struct {
	// Description is the name of the gate in plans and reports. Default: the objects or the command.
	Description string `yaml:"description,omitempty"`
	// When to check the gate. both: before a node is taken down and after it is back, before the next one; before: only before.
	When string `yaml:"when" jsonschema:"enum=both,enum=before"`
	// Timeout is how long to wait for the gate to hold, each time it is checked. Default: 10m.
	Timeout Duration `yaml:"timeout"`
	// APIVersion of the objects to check, such as ceph.rook.io/v1.
	APIVersion string `yaml:"apiVersion,omitempty"`
	// Kind of the objects, such as CephCluster.
	Kind string `yaml:"kind,omitempty"`
	// Namespace of the objects. Default: all namespaces.
	Namespace string `yaml:"namespace,omitempty"`
	// Name of one object. Default: all objects of the kind must satisfy the expression.
	Name string `yaml:"name,omitempty"`
	// LabelSelector selects objects by their labels.
	LabelSelector LabelSelector `yaml:"labelSelector,omitempty"`
	// Expr is an expression of the Common Expression Language (CEL) that must be true for each object. status, spec and metadata are those of the object, or {} if it has none; object is the whole object, now is the current time on this machine.
	Expr string `yaml:"expr,omitempty"`
	// Optional makes the gate hold if there is no such object or kind.
	Optional bool `yaml:"optional,omitempty"`
	// Command is a program and its arguments, instead of objects; the gate holds if it exits 0. It runs in the directory of this file, with RECAST_NODE, RECAST_STRATEGY, RECAST_RUN, RECAST_CLUSTER and RECAST_WHEN (before or after) in its environment. Of recast's own environment it gets only PATH, HOME, other variables without secrets, and what env names.
	Command []string `yaml:"command,omitempty"`
	// Env names variables of recast's environment to pass to the command, such as LINSTOR_TOKEN; PROXMOX_VE_API_TOKEN is not allowed. docs/notes/hooks.md lists those that every command gets.
	Env []string `yaml:"env,omitempty"`
}

// LabelSelector is the section "labelSelector" of a gate; all parts must match.
type LabelSelector struct {
	// MatchLabels are labels that an object must have, with their values.
	MatchLabels map[string]string `yaml:"matchLabels,omitempty"`
	// MatchExpressions are further conditions on labels.
	MatchExpressions []LabelExpression `yaml:"matchExpressions,omitempty"`
}

// LabelExpression is one entry of "matchExpressions".
type LabelExpression struct {
	// Key of the label.
	Key string `yaml:"key" jsonschema:"required"`
	// Operator relates the label to values.
	Operator string `yaml:"operator" jsonschema:"required,enum=In,enum=NotIn,enum=Exists,enum=DoesNotExist"`
	// Values for In and NotIn.
	Values []string `yaml:"values,omitempty"`
}

// String returns the selector in the syntax of the Kubernetes API; "" selects everything.
func (s LabelSelector) String() string {
	terms := pairs(s.MatchLabels)
	for _, e := range s.MatchExpressions {
		values := " (" + strings.Join(e.Values, ",") + ")"
		switch e.Operator {
		case "In":
			terms = append(terms, e.Key+" in"+values)
		case "NotIn":
			terms = append(terms, e.Key+" notin"+values)
		case "Exists":
			terms = append(terms, e.Key)
		case "DoesNotExist":
			terms = append(terms, "!"+e.Key)
		}
	}
	return strings.Join(terms, ",")
}

const (
	labelKey   = `([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`
	labelValue = `([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?`
	dnsName    = `[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?`
)

var objectKeys = []string{"apiVersion", "kind", "namespace", "name", "labelSelector", "expr", "optional"}

func (k checker) gates() {
	for i, g := range k.c.Roll.Gates {
		path := fmt.Sprintf("roll.gates[%d]", i)
		k.described(path, g.Description, g.Timeout)
		if k.given(path + ".command") {
			k.commandGate(path, g)
			continue
		}
		k.objectGate(path, g)
	}
}

// described checks what gates and hooks have in common.
func (r *report) described(path, description string, timeout Duration) {
	if r.given(path+".timeout") && timeout <= 0 {
		r.add(path+".timeout", "must be longer than 0")
	}
	r.notEmpty(path+".description", description)
	if strings.ContainsAny(description, "\r\n") {
		r.add(path+".description", "has more than one line")
	}
}

func (k checker) commandGate(path string, g Gate) {
	if len(g.Command) == 0 || strings.TrimSpace(g.Command[0]) == "" {
		k.add(path+".command", "names no program: write it like [./check.sh, argument]")
	}
	k.env(path, g.Env)
	for _, key := range objectKeys {
		if k.given(path + "." + key) {
			k.add(path+"."+key, "the gate runs a command (line %d): write two gates", k.line(path+".command"))
		}
	}
}

func (k checker) objectGate(path string, g Gate) {
	for _, key := range objectKeys[:2] {
		if !k.given(path + "." + key) {
			k.add(path+"."+key, "required, unless the gate runs a command")
		}
	}
	k.pattern(path+".apiVersion", g.APIVersion, `([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?v[0-9]+((alpha|beta)[0-9]+)?`,
		"group and version of the Kubernetes API: write it like ceph.rook.io/v1")
	k.pattern(path+".kind", g.Kind, `[A-Z][A-Za-z0-9]{0,62}`, "kind of Kubernetes object: write it like CephCluster")
	k.pattern(path+".namespace", g.Namespace, `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`, "name of a namespace")
	k.pattern(path+".name", g.Name, dnsName, "name of a Kubernetes object")
	if g.Kind == "Secret" && g.APIVersion == "v1" {
		k.add(path+".kind", "Secrets are not allowed: the values that an expression reads are shown")
	}
	if k.given(path + ".env") {
		k.add(path+".env", "is for gates that run a command")
	}
	k.labels(path+".labelSelector", g)
	switch {
	case strings.TrimSpace(g.Expr) == "":
		k.add(path+".expr", "required, unless the gate runs a command")
	case k.expr != nil:
		if err := k.expr(g.Expr); err != nil {
			k.add(path+".expr", "%v", err)
		}
	}
}

func (r *report) labels(path string, g Gate) {
	if !r.given(path) {
		return
	}
	if r.given(strings.TrimSuffix(path, "labelSelector") + "name") {
		r.add(path, "name is given too (line %d): keep one of them", r.line(strings.TrimSuffix(path, "labelSelector")+"name"))
	}
	if len(g.LabelSelector.MatchLabels)+len(g.LabelSelector.MatchExpressions) == 0 {
		r.add(path, "selects every object: give it matchLabels or matchExpressions, or remove it")
	}
	for _, key := range slices.Sorted(maps.Keys(g.LabelSelector.MatchLabels)) {
		at := spot{path: path + ".matchLabels"}.key(key).path
		r.labelKey(at, key)
		r.labelValue(at, g.LabelSelector.MatchLabels[key])
	}
	for i, e := range g.LabelSelector.MatchExpressions {
		at := fmt.Sprintf("%s.matchExpressions[%d]", path, i)
		r.labelKey(at+".key", e.Key)
		for j, v := range e.Values {
			r.labelValue(fmt.Sprintf("%s.values[%d]", at, j), v)
		}
		switch wants := e.Operator == "In" || e.Operator == "NotIn"; {
		case wants && len(e.Values) == 0:
			r.add(at+".values", "required by %s", e.Operator)
		case !wants && len(e.Values) > 0:
			r.add(at+".values", "%s takes none: remove them", e.Operator)
		}
	}
}

func (r *report) labelKey(path, key string) {
	if r.given(path) && !matches(key, labelKey) {
		r.add(path, "%s is not the key of a label", quote(key))
	}
}

func (r *report) labelValue(path, value string) {
	if r.given(path) && !matches(value, labelValue) {
		r.add(path, "%s is not the value of a label", quote(value))
	}
}

// Hooks is the section "roll.hooks": programs that run at points of a run, each list from first to last.
type Hooks struct {
	// BeforeRun runs after a plan is confirmed, before any node is touched.
	BeforeRun []Hook `yaml:"beforeRun,omitempty"`
	// AfterRun runs at the end of every run for which beforeRun was started, even if that has failed or was interrupted; RECAST_OUTCOME says which.
	AfterRun []Hook `yaml:"afterRun,omitempty"`
	// BeforeBatch runs before the first node of each part of the plan: unfinished, reset, canary, control-planes, workers.
	BeforeBatch []Hook `yaml:"beforeBatch,omitempty"`
	// AfterBatch runs when all nodes of such a part are finished.
	AfterBatch []Hook `yaml:"afterBatch,omitempty"`
	// BeforeNode runs before a node is taken down, after the gates.
	BeforeNode []Hook `yaml:"beforeNode,omitempty"`
	// AfterNode runs when a node is back, healthy and schedulable, before the gates are checked again.
	AfterNode []Hook `yaml:"afterNode,omitempty"`
}

// Hook is one program of "roll.hooks". If it does not exit 0, the roll stops.
type Hook struct {
	// Description is the name of the hook in plans and reports. Default: its command.
	Description string `yaml:"description,omitempty"`
	// Command is a program and its arguments. It runs in the directory of this file, with RECAST_HOOK, RECAST_NODE and more in its environment (docs/notes/hooks.md lists them). Of recast's own environment it gets only PATH, HOME, other variables without secrets, and what env names.
	Command []string `yaml:"command" jsonschema:"required"`
	// Env names variables of recast's environment to pass to the command, such as SLACK_TOKEN; PROXMOX_VE_API_TOKEN is not allowed.
	Env []string `yaml:"env,omitempty"`
	// Timeout is how long it may run; then it is killed with all processes that it started. Default: 1m.
	Timeout Duration `yaml:"timeout"`
}

type hookList struct {
	path  string
	hooks []Hook
}

func (h *Hooks) lists() []hookList {
	return []hookList{
		{"roll.hooks.beforeRun", h.BeforeRun},
		{"roll.hooks.afterRun", h.AfterRun},
		{"roll.hooks.beforeBatch", h.BeforeBatch},
		{"roll.hooks.afterBatch", h.AfterBatch},
		{"roll.hooks.beforeNode", h.BeforeNode},
		{"roll.hooks.afterNode", h.AfterNode},
	}
}

func (k checker) hooks() {
	for _, list := range k.c.Roll.Hooks.lists() {
		for i, h := range list.hooks {
			path := fmt.Sprintf("%s[%d]", list.path, i)
			k.described(path, h.Description, h.Timeout)
			if k.given(path+".command") && (len(h.Command) == 0 || strings.TrimSpace(h.Command[0]) == "") {
				k.add(path+".command", "names no program: write it like [./drain-lb.sh, argument]")
			}
			k.env(path, h.Env)
		}
	}
}

func (r *report) env(path string, names []string) {
	for i, name := range names {
		at := fmt.Sprintf("%s.env[%d]", path, i)
		switch {
		case name == "PROXMOX_VE_API_TOKEN":
			r.add(at, "recast passes its Proxmox token to no program: give this one its own token")
		case !matches(name, variable):
			r.add(at, "%s is not the name of an environment variable: list only names, not values", quote(name))
		}
	}
}

// Webhook is one entry of "notify": a URL that gets a POST when a run starts and ends.
type Webhook struct {
	// URL to call, such as https://ntfy.example/recast. If the URL itself is a secret, use urlEnv.
	URL string `yaml:"url,omitempty"`
	// URLEnv names the environment variable that holds the URL, instead of url.
	URLEnv string `yaml:"urlEnv,omitempty"`
	// On lists the events: start, when a confirmed plan starts; end, with any result; failure, if the run fails. Default: all of them; a run that ends sends only one event.
	On []string `yaml:"on" jsonschema:"enum=start,enum=failure,enum=end"`
	// Headers to send, by name; the values come from the environment.
	Headers map[string]Header `yaml:"headers,omitempty"`
	// ContentType of the request. Default: application/json.
	ContentType string `yaml:"contentType"`
	// Template of the request body, in the language of Go's text/template: docs/notes/notify.md lists its fields and has templates for chats. Default: all fields as JSON.
	Template string `yaml:"template,omitempty"`
	// CAFile is a PEM file with a CA of the server's certificate, in addition to the system's.
	CAFile string `yaml:"caFile,omitempty"`
}

// Header says where the value of a header comes from.
type Header struct {
	// Env names the environment variable that holds the value.
	Env string `yaml:"env" jsonschema:"required"`
}

const (
	variable   = `[A-Za-z_][A-Za-z0-9_]*`
	headerName = "[-A-Za-z0-9!#$%&'*+.^_`|~]+"
)

var noticeEvents = []string{"start", "failure", "end"}

func (k checker) webhooks() {
	for i, w := range k.c.Notify {
		path := fmt.Sprintf("notify[%d]", i)
		k.webhookURL(path, w)
		k.webhookEvents(path+".on", w)
		k.webhookHeaders(path+".headers", w)
		k.pattern(path+".contentType", w.ContentType, `[a-z]+/[-a-z0-9.+]+(; ?[-a-z]+=[-A-Za-z0-9]+)*`, "media type: write it like application/json")
		k.notEmpty(path+".caFile", w.CAFile)
		k.notEmpty(path+".template", w.Template)
		if k.given(path+".template") && w.Template != "" && k.template != nil {
			if err := k.template(w.Template); err != nil {
				k.add(path+".template", "%v", err)
			}
		}
	}
}

// webhookURL checks the URL of a webhook. The message never shows the URL: its path may be the secret of a chat.
func (k checker) webhookURL(path string, w Webhook) {
	here, env := path+".url", path+".urlEnv"
	switch {
	case !k.given(here) && !k.given(env):
		k.add(path, "has neither url nor urlEnv: say where to send it")
	case k.given(here) && k.given(env):
		k.add(env, "url is given too (line %d): keep one of them", k.line(here))
	}
	k.pattern(env, w.URLEnv, variable, "name of an environment variable")
	if !k.given(here) {
		return
	}
	u, err := url.Parse(w.URL)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		k.add(here, "is not a URL: write it like https://host/path")
	case u.User != nil:
		k.add(here, "holds a user or password: secrets never live in this file, urlEnv names a variable")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		k.add(here, "has a query or fragment, which often is a secret: urlEnv names an environment variable for the URL")
	case u.Scheme == "http" && len(w.Headers) > 0:
		k.add(here, "is not https, and what headers takes from the environment would go in the clear")
	}
}

func (k checker) webhookEvents(path string, w Webhook) {
	if k.given(path) && len(w.On) == 0 {
		k.add(path, "is empty: list some of %s", strings.Join(noticeEvents, ", "))
	}
	for i, event := range w.On {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case !slices.Contains(noticeEvents, event):
			k.add(at, "%s is not one of %s%s", quote(event), strings.Join(noticeEvents, ", "), words.DidYouMean(event, noticeEvents))
		case slices.Index(w.On, event) < i:
			k.add(at, "is listed already")
		}
	}
}

func (k checker) webhookHeaders(path string, w Webhook) {
	for _, name := range slices.Sorted(maps.Keys(w.Headers)) {
		at := spot{path: path}.key(name)
		switch {
		case !matches(name, headerName):
			k.add(at.path, "%s is not the name of a header", quote(name))
		case strings.EqualFold(name, "Content-Type"):
			k.add(at.path, "is set by contentType")
		case slices.ContainsFunc([]string{"Host", "Content-Length", "Transfer-Encoding", "Connection"}, func(s string) bool { return strings.EqualFold(s, name) }):
			k.add(at.path, "is set by the HTTP client: remove it")
		}
		k.pattern(at.key("env").path, w.Headers[name].Env, variable, "name of an environment variable")
	}
}
