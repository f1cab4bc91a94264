package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// checker checks what the values mean, after all values have been read.
type checker struct {
	*report
	c        *Config
	expr     func(string) error // Options.Expr
	template func(string) error // Options.Template
}

func (k checker) all() {
	k.pattern("cluster", k.c.Cluster, `[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`,
		"name of a cluster: letters, digits, '-', '_' and '.'")
	k.talos()
	k.version("kubernetes.version", k.c.Kubernetes.Version, "version of Kubernetes: write it like v1.35.4")
	k.images()
	k.schematics()
	k.proxmox()
	k.nodes()
	k.vms()
	k.roll()
	k.webhooks()
}

// pattern reports a given value that the pattern does not match completely.
func (r *report) pattern(path, value, pattern, what string) {
	if r.given(path) && !matches(value, pattern) {
		r.add(path, "%s is not a %s", quote(value), what)
	}
}

// matches says whether pattern describes the whole value.
func matches(value, pattern string) bool {
	return regexp.MustCompile(`^(` + pattern + `)$`).MatchString(value)
}

const semver = `(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z]+([.-][0-9A-Za-z]+)*)?`

func (k checker) talos() {
	k.version("talos.version", k.c.Talos.Version, "version of Talos: write it like v1.13.9")
	if matches(k.c.Talos.Version, `v(0|1\.[0-9])\..*`) {
		k.add("talos.version", "%s is too old: before v1.10 an installer does not include platform and kernel arguments, "+
			"so a node would not run what recast.lock says; use v1.10.0 or later", bare(k.c.Talos.Version))
	}
	k.notEmpty("talos.config", k.c.Talos.Config)
	k.machineConfigs()
}

func (r *report) version(path, v, what string) {
	if matches(v, semver) {
		r.add(path, "%q lacks its \"v\", did you mean \"v%s\"?", v, v)
	}
	r.pattern(path, v, "v"+semver, what)
}

func (r *report) notEmpty(path, value string) {
	if r.given(path) && value == "" {
		r.add(path, "is empty: give it a value or remove it")
	}
}

// url reports a value that is not the URL of a server. The message never shows the value, which may hold a password.
func (r *report) url(path, value string, schemes ...string) {
	u, err := url.Parse(value)
	switch {
	case err != nil || !slices.Contains(schemes, u.Scheme) || u.Hostname() == "":
		r.add(path, "is not the URL of a server: write it like %s://host", schemes[0])
	case u.User != nil:
		r.add(path, "holds a user or password: secrets never live in this file")
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		r.add(path, "has a query or fragment: give the server alone")
	}
}

func (k checker) proxmox() {
	px := k.c.Proxmox
	const list = "proxmox.endpoints"
	if k.given(list) && len(px.Endpoints) == 0 {
		k.add(list, "is empty: give at least one, like https://pve1.example:8006")
	}
	for i, e := range px.Endpoints {
		path := fmt.Sprintf("%s[%d]", list, i)
		k.url(path, e, "https")
		if u, err := url.Parse(e); err == nil && strings.Trim(u.Path, "/") != "" {
			k.add(path, "has a path: give the server alone, like https://pve1.example:8006")
		}
		same := func(other string) bool { return strings.TrimRight(other, "/") == strings.TrimRight(e, "/") }
		if first := slices.IndexFunc(px.Endpoints, same); first < i {
			k.add(path, "is listed already (line %d)", k.line(fmt.Sprintf("%s[%d]", list, first)))
		}
	}
	k.pattern("proxmox.fingerprint", px.Fingerprint, `[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){31}`,
		"SHA-256 fingerprint: 32 pairs of hex digits with colons between, as pvenode cert info shows it")
	k.notEmpty("proxmox.caFile", px.CAFile)
	if k.given("proxmox.fingerprint") && k.given("proxmox.caFile") {
		k.add("proxmox.caFile", "fingerprint is given too (line %d): keep one of them", k.line("proxmox.fingerprint"))
	}
	if k.given("proxmox.vmids") && px.VMIDs.Len() < 2 {
		k.add("proxmox.vmids", "%s is too small: recast needs one VMID for its claim and one for parked disks", px.VMIDs)
	}
}

func (k checker) nodes() {
	if k.given("nodes") && len(k.c.Nodes) == 0 {
		k.add("nodes", "is empty: name at least one node")
	}
	names, vmids := map[string]int{}, map[int]int{}
	for i, n := range k.c.Nodes {
		k.node(fmt.Sprintf("nodes[%d]", i), n)
		if first, ok := names[n.Name]; ok && n.Name != "" {
			k.add(nodePath(i, "name"), "%s is there already (line %d)", quote(n.Name), k.line(nodePath(first, "name")))
		} else {
			names[n.Name] = i
		}
		if first, ok := vmids[n.VMID]; ok && n.VMID != 0 {
			k.add(nodePath(i, "vmid"), "%d is already used by %s (line %d)", n.VMID, quote(k.c.Nodes[first].Name), k.line(nodePath(first, "vmid")))
		} else {
			vmids[n.VMID] = i
		}
	}
}

func nodePath(i int, key string) string { return fmt.Sprintf("nodes[%d].%s", i, key) }

func (k checker) node(path string, n Node) {
	k.pattern(path+".name", n.Name, `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`,
		"name of a node: lower-case letters, digits and '-', at most 63")
	if k.given(path+".vmid") && (n.VMID < minVMID || n.VMID > maxVMID) {
		k.add(path+".vmid", "%d is out of bounds: Proxmox allows %d-%d", n.VMID, minVMID, maxVMID)
	}
	k.holder(path+".holder", n)
	k.names(path+".acceptLoss", "that the plan shows", n.AcceptLoss)
	if _, ok := k.c.Schematics[n.Schematic]; !ok && k.given(path+".schematic") && !k.bad["schematics"] {
		names := slices.Sorted(maps.Keys(k.c.Schematics))
		k.add(path+".schematic", "%s is not in schematics (line %d)%s", quote(n.Schematic), k.line("schematics"), words.DidYouMean(n.Schematic, names))
	}
	disk := path + ".systemDisk"
	k.pattern(disk+".slot", n.SystemDisk.Slot, diskSlot,
		"slot of a disk: write it like scsi0, virtio0 or sata0")
	if k.given(disk+".sizeGiB") && n.SystemDisk.SizeGiB < 1 {
		k.add(disk+".sizeGiB", "must be at least 1")
	}
}

func (k checker) holder(path string, n Node) {
	if !k.given(path) {
		return
	}
	if n.Holder < minVMID || n.Holder > maxVMID {
		k.add(path, "%d is out of bounds: Proxmox allows %d-%d", n.Holder, minVMID, maxVMID)
	}
	for i, other := range k.c.Nodes {
		if other.VMID == n.Holder {
			k.add(path, "%d is the VM of node %s (line %d): a holder must be another VM", n.Holder, quote(other.Name), k.line(nodePath(i, "vmid")))
		}
	}
}

// names checks that a list of names has no empty name and no duplicate.
func (r *report) names(list, of string, names []string) {
	for i, name := range names {
		path := fmt.Sprintf("%s[%d]", list, i)
		if strings.TrimSpace(name) == "" {
			r.add(path, "is empty: give the name %s, or remove it", of)
		}
		if first := slices.Index(names, name); first < i {
			r.add(path, "%s is listed already (line %d)", quote(name), r.line(fmt.Sprintf("%s[%d]", list, first)))
		}
	}
}

func (k checker) roll() {
	r := k.c.Roll
	if r.MaxUnavailable.PerHost < 1 {
		k.add("roll.maxUnavailable.perHost", "must be at least 1")
	}
	if name := r.Canary.Node; name != "" && !slices.ContainsFunc(k.c.Nodes, func(n Node) bool { return n.Name == name }) {
		k.add("roll.canary", "%s is not in nodes (line %d): write true, false or the name of a node", quote(name), k.line("nodes"))
	}
	if r.KeepDisks < 1 {
		k.add("roll.keepDisks", "must be at least 1: it is the way back; recast prune --keep-disks 0 frees it too")
	}
	k.names("roll.ignoreNodes", "of a node", r.IgnoreNodes)
	k.surge()
	k.notEmpty("roll.etcdSnapshot", r.EtcdSnapshot)
	k.gates()
	k.hooks()
	k.rehearse()
	if r.Settle < 0 {
		k.add("roll.settle", "must not be negative")
	}
	for path, d := range map[string]Duration{
		"roll.drain.timeout": r.Drain.Timeout,
		"roll.poll":          r.Poll,
		"roll.timeouts.stop": r.Timeouts.Stop,
		"roll.timeouts.boot": r.Timeouts.Boot,
		"roll.timeouts.join": r.Timeouts.Join,
		"roll.timeouts.try":  r.Timeouts.Try,

		"roll.timeouts.storage": r.Timeouts.Storage,
	} {
		if d <= 0 {
			k.add(path, "must be longer than 0")
		}
	}
}

// files checks that the files named in the configuration exist. Files that only some commands use may be missing.
func (r *report) files(c *Config, stat func(string) (fs.FileInfo, error)) {
	check := func(path, file, what string) {
		if !r.given(path) || file == "" {
			return
		}
		info, err := stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			r.add(path, "no such %s: %s", what, file)
		case err != nil:
			r.add(path, "%v", err)
		case info.IsDir() != (what == "directory"):
			r.add(path, "%s is not a %s", file, what)
		}
	}
	for name, s := range c.Schematics {
		check(spot{path: "schematics"}.key(name).path, s.Path, "file")
	}
	check("proxmox.caFile", c.Proxmox.CAFile, "file")
	check("images.caFile", c.Images.CAFile, "file")
	check("images.signingKey", c.Images.SigningKey, "file")
	program := func(path string, command []string) {
		if len(command) > 0 && strings.ContainsRune(command[0], filepath.Separator) {
			file := command[0]
			if !filepath.IsAbs(file) {
				file = filepath.Join(c.Dir, file)
			}
			check(path+".command", file, "file")
		}
	}
	for i, g := range c.Roll.Gates {
		program(fmt.Sprintf("roll.gates[%d]", i), g.Command)
	}
	program("talos.machineConfigs", c.Talos.MachineConfigs.Command)
	for _, list := range c.Roll.Hooks.lists() {
		for i, h := range list.hooks {
			program(fmt.Sprintf("%s[%d]", list.path, i), h.Command)
		}
	}
	for i, w := range c.Notify {
		check(fmt.Sprintf("notify[%d].caFile", i), w.CAFile, "file")
	}
	ifThere := func(path, file, what string) {
		if _, err := stat(file); !errors.Is(err, fs.ErrNotExist) {
			check(path, file, what)
		}
	}
	// Credentials are optional: building images needs no access to the cluster.
	ifThere("talos.config", c.Talos.Config, "file")
	ifThere("talos.machineConfigs", c.Talos.MachineConfigs.Path, "directory")
	c.Talos.MachineConfigs.Render.files(func(path string, file *string) { check(path, *file, "file") })
	// The directory is created when the first snapshot is saved.
	ifThere("roll.etcdSnapshot", c.Roll.EtcdSnapshot, "directory")
}

func (k checker) vms() {
	taken := map[string]string{} // address, or MAC address → node
	for _, name := range slices.Sorted(maps.Keys(k.c.VMClasses)) {
		k.vm(spot{path: "vmClasses"}.key(name), k.c.VMClasses[name])
	}
	for i, n := range k.c.Nodes {
		k.vm(spot{path: nodePath(i, "vm")}, n.VM)
		if path := nodePath(i, "class"); k.given(path) {
			if _, ok := k.c.VMClasses[n.Class]; !ok && !k.bad["vmClasses"] {
				k.add(path, "%s is not in vmClasses (line %d)%s", quote(n.Class), k.line("vmClasses"), words.DidYouMean(n.Class, slices.Sorted(maps.Keys(k.c.VMClasses))))
			}
		}
		k.pattern(nodePath(i, "host"), n.Host, hostName, "name of a Proxmox node")
		k.together(i, k.c.ShapeOf(n))
		if _, err := netip.ParseAddr(n.Address); n.Address != "" && err != nil {
			k.add(nodePath(i, "address"), "%s is not an address such as 192.0.2.31", quote(n.Address))
		}
		k.unshared(i, taken)
	}
}

// unshared refuses an IP or MAC address that another node has too: a class must not give the same address to all of
// its nodes.
func (k checker) unshared(i int, taken map[string]string) {
	n := k.c.Nodes[i]
	v := k.c.ShapeOf(n)
	have := []string{n.Address}
	for _, config := range v.IPConfig {
		for part := range strings.SplitSeq(config, ",") {
			if prefix, err := netip.ParsePrefix(part[strings.Index(part, "=")+1:]); err == nil {
				have = append(have, prefix.Addr().String())
			}
		}
	}
	for _, nic := range v.NICs {
		if nic.MAC != nil {
			have = append(have, strings.ToUpper(*nic.MAC))
		}
	}
	for _, address := range have {
		path := k.ownPath(i)
		if address == n.Address {
			path = nodePath(i, "address")
		}
		if other, ok := taken[address]; ok && other != n.Name {
			k.add(path, "%s is the address of node %s already", address, quote(other))
		}
		if address != "" {
			taken[address] = n.Name
		}
	}
}

// ownPath returns the path at which a node describes its VM: its own settings, else its class.
func (k checker) ownPath(i int) string {
	if path := nodePath(i, "vm"); k.given(path) {
		return path
	}
	return nodePath(i, "class")
}

// The names that Proxmox allows (pve-common, PVE/JSONSchema.pm: pve-node, pve-configid, pve-bridge-id,
// pve-tag, pve-startup-order; pve-access-control, PVE/AccessControl.pm: pve-poolid).
const (
	hostName  = `[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?`
	configID  = `[A-Za-z][-A-Za-z0-9_]+`
	storageID = `[A-Za-z][-A-Za-z0-9_.]*[A-Za-z0-9]`
	diskSlot  = `scsi([0-9]|[12][0-9]|30)|virtio([0-9]|1[0-5])|sata[0-5]|ide[0-3]`
)

func (k checker) vm(at spot, v VM) {
	path := func(key string) string { return at.key(key).path }
	k.ranges(at, reflect.ValueOf(v))
	k.optional(path("cpu"), v.CPU, `[-A-Za-z0-9_.+]+(,[^\s,]+)*`, "type of a processor, such as host")
	k.optional(path("machine"), v.Machine, `(pc|q35|virt)(-[-A-Za-z0-9.+]+)?(,[^\s,]+)*`, "machine type, such as q35")
	k.optional(path("startup"), v.Startup, `(order=)?\d+(,(up|down)=\d+)*|(up|down)=\d+(,(up|down)=\d+)*`, "start order: write it like order=2,up=30")
	k.optional(path("pool"), v.Pool, `[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}`, "name of a pool")
	if v.Description != nil && len([]rune(*v.Description)) > 4096 {
		k.add(path("description"), "is too long: Proxmox allows 8192 characters, and recast needs half of them for what it notes there")
	}
	for i, tag := range v.Tags {
		k.pattern(at.key("tags").item(i).path, tag, `[A-Za-z0-9_][-A-Za-z0-9_.+]*`, "tag: letters, digits, '_', '-', '.' and '+'")
	}
	k.names(path("tags"), "of a tag", v.Tags)
	if v.HA != nil {
		k.ranges(at.key("ha"), reflect.ValueOf(*v.HA))
		k.optional(path("ha")+".group", v.HA.Group, configID, "name of an HA group")
	}
	for i, nic := range v.NICs {
		here := at.key("nics").item(i)
		k.ranges(here, reflect.ValueOf(nic))
		k.optional(here.key("mac").path, nic.MAC, `([0-9A-Fa-f][02468ACEace](:[0-9A-Fa-f]{2}){5})`, "MAC address of a card")
		k.optional(here.key("bridge").path, nic.Bridge, `[-A-Za-z0-9_.:]{1,15}`, "name of a bridge")
	}
	k.optional(path("cloudinit"), v.CloudInit, storageID, "name of a storage")
	for i, config := range v.IPConfig {
		k.pattern(at.key("ipconfig").item(i).path, config, `(ip|ip6|gw|gw6)=[^\s,=]+(,(ip|ip6|gw|gw6)=[^\s,=]+)*`, "address: write it like ip=192.0.2.31/24,gw=192.0.2.1")
	}
	if len(v.NICs) > 32 {
		k.add(path("nics"), "has %d network cards: Proxmox allows 32", len(v.NICs))
	}
	for i, mapping := range v.HostPCI {
		k.pattern(at.key("hostpci").item(i).path, mapping, configID, "name of a resource mapping")
	}
	if len(v.HostPCI) > 16 {
		k.add(path("hostpci"), "has %d devices: Proxmox allows 16", len(v.HostPCI))
	}
	k.disks(at.key("disks"), v.Disks)
}

func (k checker) disks(at spot, disks []VMDisk) {
	slots, system := map[string]int{}, -1
	for i, d := range disks {
		here := at.item(i)
		k.pattern(here.key("slot").path, d.Slot, diskSlot, "slot of a disk: write it like scsi1, virtio1 or sata1")
		k.optional(here.key("storage").path, d.Storage, storageID, "name of a storage")
		k.optional(here.key("serial").path, d.Serial, `[-A-Za-z0-9_.]{1,20}`, "serial number: at most 20 letters, digits, '-', '_' and '.'")
		if first, ok := slots[d.Slot]; ok {
			k.add(here.key("slot").path, "%s is there already (line %d)", quote(d.Slot), k.line(at.item(first).key("slot").path))
		}
		slots[d.Slot] = i
		if !d.IsSystem() {
			continue
		}
		if system >= 0 {
			k.add(here.key("system").path, "there is a system disk already (line %d)", k.line(at.item(system).key("system").path))
		}
		system = i
	}
}

// together checks the combination of a class and a node's own settings, each of which is valid by itself.
func (k checker) together(i int, v VM) {
	path := k.ownPath(i)
	number := func(n *int, otherwise int) int {
		if n == nil {
			return otherwise
		}
		return *n
	}
	if v.Balloon != nil && v.Memory != nil && *v.Balloon > *v.Memory {
		k.add(path, "balloon is %d MiB, more than memory, which is %d MiB", *v.Balloon, *v.Memory)
	}
	if all := number(v.Cores, 1) * number(v.Sockets, 1); v.VCPUs != nil && (v.Cores != nil || v.Sockets != nil) && *v.VCPUs > all {
		k.add(path, "vcpus is %d, and cores times sockets is %d", *v.VCPUs, all)
	}
	n, system := k.c.Nodes[i], slices.IndexFunc(v.Disks, VMDisk.IsSystem)
	if system < 0 {
		return
	}
	d := v.Disks[system]
	if n.SystemDisk.Slot != "" && n.SystemDisk.Slot != d.Slot {
		k.add(nodePath(i, "systemDisk")+".slot", "%s is not the system disk of its vmClass, which is %s", quote(n.SystemDisk.Slot), d.Slot)
	}
	if n.SystemDisk.SizeGiB != 0 && d.Size != nil && n.SystemDisk.SizeGiB != d.Size.GiB {
		k.add(nodePath(i, "systemDisk")+".sizeGiB", "%d is not the size of its vmClass, which is %s: keep one of them", n.SystemDisk.SizeGiB, d.Size)
	}
	if d.Serial != nil {
		k.add(path, "%s has a serial and is the system disk, which recast names itself: remove the serial", d.Slot)
	}
}

// optional is like pattern, for a value that may be missing.
func (r *report) optional(path string, value *string, pattern, what string) {
	if value != nil {
		r.pattern(path, *value, pattern, what)
	}
}

// ranges checks the numbers of a section against the minimum and maximum of their keys.
func (r *report) ranges(at spot, section reflect.Value) {
	for _, f := range fieldsOf(section.Type()) {
		value := section.FieldByIndex(f.index)
		if value.Kind() != reflect.Pointer || value.IsNil() || value.Elem().Kind() != reflect.Int {
			continue
		}
		least, most := f.limit("minimum"), f.limit("maximum")
		switch n := value.Elem().Int(); {
		case least != nil && n < *least && most == nil:
			r.add(at.key(f.key).path, "must be at least %d", *least)
		case least != nil && n < *least, most != nil && n > *most:
			r.add(at.key(f.key).path, "%d is out of bounds: Proxmox allows %d-%d", n, *least, *most)
		}
	}
}

// limit returns the number in a rule such as minimum=1; nil if there is no such rule.
func (f field) limit(name string) *int64 {
	for _, rule := range f.rules {
		if text, is := strings.CutPrefix(rule, name+"="); is {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				panic(fmt.Sprintf("%s: %v", f.key, err)) // a mistake in a tag of this package
			}
			return &n
		}
	}
	return nil
}
