package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// checker checks the meaning of the values, after all have been read.
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

// url reports a value that is not the URL of a server. It never shows the
// value, which may hold a password.
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

// files checks that every file that the configuration names exists, except for those
// that only some commands use.
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
		check(spot{path: "schematics"}.entry(name).path, s.Path, "file")
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
	// Credentials are optional: building images needs none of the cluster.
	ifThere("talos.config", c.Talos.Config, "file")
	ifThere("talos.machineConfigs", c.Talos.MachineConfigs.Path, "directory")
	c.Talos.MachineConfigs.Render.files(func(path string, file *string) { check(path, *file, "file") })
	// Created when the first snapshot is saved.
	ifThere("roll.etcdSnapshot", c.Roll.EtcdSnapshot, "directory")
}
