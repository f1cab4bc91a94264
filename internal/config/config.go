// Package config reads recast.yaml, in which an engineer describes the wanted cluster, into a [Config]. It is strict,
// and it reports every [Problem] at once, each with its position in the file.
package config

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Version is the format of recast.yaml that this package reads.
const Version = 1

// Config is recast.yaml with its defaults filled in. Editors show the doc comments of
// its fields, which are copied to docs/recast.schema.json.
type Config struct {
	// Version of this file's format.
	Version int `yaml:"version" jsonschema:"required,enum=1"`
	// Cluster is the name of the cluster in plans, reports and on Proxmox. No other
	// cluster on the same Proxmox may have this name.
	Cluster string `yaml:"cluster" jsonschema:"required"`
	// Talos says which Talos Linux the nodes should run and how to reach them.
	Talos Talos `yaml:"talos" jsonschema:"required"`
	// Kubernetes says which Kubernetes the nodes should run. Default: any version.
	Kubernetes Kubernetes `yaml:"kubernetes,omitempty"`
	// Images says how boot images are built and where they are published.
	Images Images `yaml:"images" jsonschema:"required"`
	// Schematics are the customizations of images, by name.
	Schematics map[string]Schematic `yaml:"schematics" jsonschema:"required"`
	// Proxmox says how to reach the Proxmox VE cluster. The API token comes from PROXMOX_VE_API_TOKEN, never from this file.
	Proxmox Proxmox `yaml:"proxmox" jsonschema:"required"`
	// VMClasses are shapes of VMs, by name, for nodes[].class. Default: every VM stays as it is found.
	VMClasses map[string]VM `yaml:"vmClasses,omitempty"`
	// Nodes are the Talos nodes that recast manages.
	Nodes []Node `yaml:"nodes" jsonschema:"required"`
	// Roll says how nodes are rolled.
	Roll Roll `yaml:"roll"`
	// History says who sees the runs of this cluster.
	History History `yaml:"history"`
	// Notify lists webhooks that are called when a run starts, fails and ends.
	Notify []Webhook `yaml:"notify,omitempty"`

	// Dir is the directory of the file; relative paths were resolved against it.
	Dir string `yaml:"-"`
	// CacheDir is where boot ISOs are kept between runs: RECAST_CACHE_DIR. "": .recast/cache.
	CacheDir string `yaml:"-"`

	file   string
	sum    string // SHA-256 of the file
	places map[string]place
}

// History is the section "history".
type History struct {
	// Share copies each run to images.mirror, with its plan, its log and the lock, without secrets, so that recast history and recast ui show it on every machine: auto does so unless anyone on the internet can read the mirror. Runs of other machines are shown unless it is never.
	Share string `yaml:"share" jsonschema:"enum=auto,enum=always,enum=never"`
}

// The values of history.share.
const (
	ShareAuto   = "auto"
	ShareAlways = "always"
	ShareNever  = "never"
)

// Talos is the section "talos".
type Talos struct {
	// Version of Talos Linux that every node should run, such as v1.13.9.
	Version string `yaml:"version" jsonschema:"required"`
	// Config is the talosconfig file. Default: $TALOSCONFIG, else ~/.talos/config.
	Config string `yaml:"config,omitempty"`
	// MachineConfigs says where you keep the machine configurations: the path of a directory with one <node>.yaml per node, or {dir: path, names: pattern}, or {command: [program, its arguments]}. A node with a new system disk gets its file, and the plan shows what differs. Files that SOPS or age encrypted are decrypted by sops and age. Default: each node's configuration is read from the node before it is replaced.
	MachineConfigs MachineConfigs `yaml:"machineConfigs,omitempty"`
}

// Kubernetes is the section "kubernetes".
type Kubernetes struct {
	// Version of Kubernetes that every node should run, such as v1.35.4. A roll never changes it: drift reports nodes with another version, and recast upgrade-k8s upgrades all nodes.
	Version string `yaml:"version" jsonschema:"required"`
}

// Images is the section "images".
type Images struct {
	// Builder of the images: the Image Factory, or the Talos imager on this machine, whose installers go to images.mirror. auto uses the imager if a schematic names your own extensions, otherwise the factory.
	Builder string `yaml:"builder" jsonschema:"enum=auto,enum=factory,enum=imager"`
	// Factory is the URL of the Image Factory.
	Factory string `yaml:"factory"`
	// Extensions is the registry and organization where the official extensions are listed, as extensions:<Talos version>.
	Extensions string `yaml:"extensions"`
	// CAFile is a PEM file with the CAs of the Image Factory's and the registries' certificates, in addition to the system's. Proxmox hosts and nodes have their own settings: see docs/runbooks/tls.md.
	CAFile string `yaml:"caFile,omitempty"`
	// Insecure lists registries that have no TLS, each like 10.0.0.5:5000: logins and images go to them in the clear. recast speaks to no other registry without TLS, except on its own machine.
	Insecure []string `yaml:"insecure,omitempty"`
	// Platform of the images.
	Platform string `yaml:"platform" jsonschema:"enum=nocloud,enum=metal"`
	// Arch is the CPU architecture of the nodes.
	Arch string `yaml:"arch" jsonschema:"enum=amd64,enum=arm64"`
	// SecureBoot uses images that are signed for UEFI Secure Boot by the key of the Image Factory; recast.lock pins that key.
	SecureBoot bool `yaml:"secureBoot"`
	// Signature says what to do if an installer of the Image Factory has no valid signature: require refuses it, warn prints a warning, off does not check. auto requires it if signingKey is set, or if the factory has https and recast.lock has the key of an earlier signature; otherwise it warns. The contents of an image are compared with recast.lock in any case.
	Signature string `yaml:"signature" jsonschema:"enum=auto,enum=require,enum=warn,enum=off"`
	// SigningKey is a PEM file with the public key of the installers' signatures. Default: the key that the Image Factory publishes.
	SigningKey string `yaml:"signingKey,omitempty"`
	// Imager says how to run the Talos imager.
	Imager Imager `yaml:"imager"`
	// Mirror is your own repository, such as ghcr.io/acme/talos, to which publish and roll copy every installer with its signatures. Nodes pull it from there by digest and need no Image Factory; for a private repository their machine configuration needs credentials. recast uses those of docker login. Default: nodes pull from the factory. The imager requires a mirror.
	Mirror string `yaml:"mirror,omitempty"`
	// ISO says where boot ISOs are published.
	ISO ISO `yaml:"iso" jsonschema:"required"`
	// Boot is what a new machine boots: iso boots a boot ISO, which installs Talos; disk boots a system disk that was prepared from a disk image while the node still served, which needs Proxmox VE 8.3 or later; auto prepares a disk where that is possible, and says why where it is not. Boot ISOs are published in any case.
	Boot string `yaml:"boot" jsonschema:"enum=iso,enum=disk,enum=auto"`
	// Disk says where disk images are published, for boot disk or auto.
	Disk DiskImages `yaml:"disk,omitempty"`
}

// Imager is the section "images.imager".
type Imager struct {
	// Image is the repository of the Talos imager; its tag is the Talos version.
	Image string `yaml:"image"`
	// Command runs an imager of the wanted Talos version: a program and its arguments, in which {out} is the directory for its output. It gets the imager's profile on standard input. Default: docker or podman, whichever is found first in PATH, runs image.
	Command []string `yaml:"command,omitempty"`
	// Env names variables of recast's environment to pass to command, in addition to those that every program gets and those of docker and podman; PROXMOX_VE_API_TOKEN is not allowed.
	Env []string `yaml:"env,omitempty"`
}

// ISO is the section "images.iso".
type ISO struct {
	// Storage lists the Proxmox storages for boot ISOs, first choice first.
	Storage []string `yaml:"storage" jsonschema:"required"`
	// Delivery says how an ISO gets to its storage. upload sends it from here. download-url makes a Proxmox node download it from the Image Factory, which needs Sys.AccessNetwork on /nodes/<node>. auto downloads if possible, and uploads if not, or if the download fails.
	Delivery string `yaml:"delivery" jsonschema:"enum=auto,enum=download-url,enum=upload"`
}

// DiskImages is the section "images.disk".
type DiskImages struct {
	// Storage lists the Proxmox storages for disk images, with content type import, first choice first. They are delivered as ISOs are.
	Storage []string `yaml:"storage,omitempty"`
}

// Schematic is one entry of "schematics": the path of a file, or {file: path, extensions: [references]}.
type Schematic struct {
	// File in the Image Factory's own schematic format.
	File string `yaml:"file" jsonschema:"required"`
	// Extensions are images of extensions that no Image Factory builds: your own, and
	// official ones at a digest of your choice. They come after those in the file.
	Extensions []ImageRef `yaml:"extensions,omitempty"`
	// Path is File resolved against the directory of recast.yaml; File stays as
	// written, so that it means the same on every machine.
	Path string `yaml:"-"`
}

// UnmarshalText accepts the short form, a bare path.
func (s *Schematic) UnmarshalText(text []byte) error {
	s.File = string(text)
	return nil
}

// Proxmox is the section "proxmox".
type Proxmox struct {
	// Endpoints are API URLs of one or more nodes of one Proxmox VE cluster, such as https://pve1.example:8006.
	Endpoints []string `yaml:"endpoints" jsonschema:"required"`
	// Fingerprint is the SHA-256 fingerprint of the API's certificate. Set this or caFile; with neither, the system's CAs are used.
	Fingerprint string `yaml:"fingerprint,omitempty"`
	// CAFile is a PEM file with the CA of the API's certificate, such as Proxmox' pve-root-ca.pem.
	CAFile string `yaml:"caFile,omitempty"`
	// VMIDs is the range for recast's own VMs: one for the claim, and a parking VM for
	// each node whose system disk it replaces.
	VMIDs VMIDRange `yaml:"vmids" jsonschema:"required"`
	// Publish says what recast boots from Proxmox' storages.
	Publish Publish `yaml:"publish"`
}

// Publish is the section "proxmox.publish".
type Publish struct {
	// Verify says which boot ISOs and disk images recast takes for its own where it can't have Proxmox compare their checksums, for which the token needs Sys.AccessNetwork on /nodes/<node>: own takes what recast has uploaded itself, as recast.lock records it, and uploads everything else again; require refuses without the privilege; warn takes every file of the right name and size, whoever put it there, and each plan says so.
	Verify string `yaml:"verify" jsonschema:"enum=own,enum=require,enum=warn"`
}

// VerifyWarn is the value of proxmox.publish.verify that each plan mentions.
const VerifyWarn = "warn"

// Node is one entry of "nodes".
type Node struct {
	// Name of the Kubernetes node and of its Talos machine.
	Name string `yaml:"name" jsonschema:"required"`
	// Schematic of the image that the node should run: a name from schematics.
	Schematic string `yaml:"schematic" jsonschema:"required"`
	// VMID of the node's VM. It is only a cross-check: VMs are found by their UUID, which Kubernetes knows. publish uses it, so that it needs no kubeconfig.
	VMID int `yaml:"vmid,omitempty"`
	// Strategy for this node. Default: roll.strategy.
	Strategy string `yaml:"strategy" jsonschema:"enum=auto,enum=recreate,enum=reimage,enum=in-place"`
	// Holder is the VMID of your VM that owns persistent disks of this node, so that deleting the node's VM never frees them. recast detaches and attaches those disks; it never moves them to another owner, and never changes the holder.
	Holder int `yaml:"holder,omitempty"`
	// AcceptLoss names what the node may lose, by the names in the plan: data on its system disk, such as pv/pvc-1a2b, volumes that its machine configuration no longer uses, such as u-data, and kernel arguments that its next kernel will not have, such as kernel-arg/net.ifnames=0. Without it, a node whose system disk holds data that only this node has is upgraded in place or refused.
	AcceptLoss []string `yaml:"acceptLoss,omitempty"`
	// SystemDisk says which disk Talos is installed on and how large it should be. Default: it is detected, and keeps its size.
	SystemDisk SystemDisk `yaml:"systemDisk,omitempty"`
	// Class is the shape of the node's VM: a name from vmClasses.
	Class string `yaml:"class,omitempty"`
	// VM has the node's own settings, key by key over those of its class: network cards by their number, disks by their slot.
	VM VM `yaml:"vm,omitempty"`
	// Host is the Proxmox node that the VM should be on; it is migrated there if that copies no disk. Default: where it is.
	Host string `yaml:"host,omitempty"`
	// Address that the machine of a new node will have: that of its ipconfig, or of a reservation for its MAC address.
	Address string `yaml:"address,omitempty"`
	// Surge marks a worker that is there only during a roll: with roll.surge, a roll makes it before the first worker is drained, and removes it with its system disk after the last one is back. It needs a host, and a class with a system disk and no other disk.
	Surge bool `yaml:"surge,omitempty"`
}

// SystemDisk is the section "systemDisk" of a node.
type SystemDisk struct {
	// Slot is the Proxmox key of the disk, such as scsi0.
	Slot string `yaml:"slot,omitempty"`
	// SizeGiB is the size of a new system disk.
	SizeGiB int `yaml:"sizeGiB,omitempty"`
}

// Roll is the section "roll".
type Roll struct {
	// Strategy to renew a node. recreate deletes its VM and creates it again with its persistent disks; reimage keeps the VM and gives it a blank system disk; in-place upgrades the system on its current disk. auto uses the first one that is possible, and the plan shows which and why. If a certain strategy is set and impossible, the roll is refused.
	Strategy string `yaml:"strategy" jsonschema:"enum=auto,enum=recreate,enum=reimage,enum=in-place"`
	// Order of control planes and workers.
	Order string `yaml:"order" jsonschema:"enum=control-planes-first,enum=workers-first"`
	// MaxUnavailable limits how many nodes are down at a time.
	MaxUnavailable MaxUnavailable `yaml:"maxUnavailable"`
	// Surge is how many of the nodes with surge: true serve while workers are taken out: a number such as 1, or a percentage of all workers such as 10%, rounded up. 0: none.
	Surge Surge `yaml:"surge,omitempty"`
	// WorkersBeside rolls control planes and workers at the same time, each within its own limits, instead of one kind after the other; perHost applies to both together.
	WorkersBeside bool `yaml:"workersBeside"`
	// Canary rolls one node before any other, unless a node runs the new build already. true selects a worker if there is one; a node's name selects that node.
	Canary Canary `yaml:"canary"`
	// Reboot says how a node boots its new system after an upgrade in place. kexec starts it from the running kernel where Talos can; powercycle goes through the firmware, as a power failure does, and takes about half a minute longer. canary does that with the first node of each image, before all others: an image that does not boot through the firmware stops the roll there.
	Reboot string `yaml:"reboot" jsonschema:"enum=kexec,enum=powercycle,enum=canary"`
	// Drain says how pods leave a node.
	Drain Drain `yaml:"drain"`
	// Settle is how long a node must stay healthy before the next one.
	Settle Duration `yaml:"settle"`
	// Poll is the interval of waits that cannot watch.
	Poll Duration `yaml:"poll"`
	// Timeouts limit the waits of one node.
	Timeouts Timeouts `yaml:"timeouts"`
	// BootFailure says what to do with a node that is not back from an in-place upgrade within timeouts.boot. stop leaves it as it is. rollback makes the node boot its old system if its API still answers, otherwise leaves it. reimage also tries that, otherwise parks its system disk and installs the previous build on a blank one. The roll stops in any case.
	BootFailure string `yaml:"bootFailure" jsonschema:"enum=stop,enum=rollback,enum=reimage"`
	// KeepDisks is how many old system disks of a node stay parked for recast undo. A successful roll of the node frees older ones, as its plan shows; prune frees the rest.
	KeepDisks int `yaml:"keepDisks" jsonschema:"minimum=1"`
	// IgnoreNodes are nodes that may be not Ready while others are taken down, such as one whose hardware is being repaired. A node that is not in this file, or that someone has cordoned, is ignored too. A control plane that is not Ready still blocks other control planes, and etcd itself is asked whether it can lose a member.
	IgnoreNodes []string `yaml:"ignoreNodes,omitempty"`
	// Storage on looks at the volumes of storage systems in the cluster that keep copies on several nodes (Longhorn, Ceph of Rook, LINSTOR of Piraeus, OpenEBS Mayastor): no node is taken out that has the only healthy copy of one, and one counts as back when its volumes are whole again. Systems that are not installed are not asked. off does without, and a section such as {linstor: off} without one of them.
	Storage Storage `yaml:"storage"`
	// Gates are your own conditions that must hold before a node is taken down and after it is back, such as the health of a storage system, or a program that succeeds.
	Gates []Gate `yaml:"gates,omitempty"`
	// Hooks are your own programs that run before and after the run, each batch of nodes, and each node.
	Hooks Hooks `yaml:"hooks,omitempty"`
	// Rehearse tests what the nodes will boot before the first one.
	Rehearse Rehearse `yaml:"rehearse"`
	// EtcdSnapshot is the directory for the etcd snapshot that is saved before a control plane is taken down. Default: .recast/etcd beside this file.
	EtcdSnapshot string `yaml:"etcdSnapshot,omitempty"`
}

// Rehearse is the section "roll.rehearse". On each Proxmox host, for each kind of firmware, a scratch VM like those of the nodes there boots the new ISO, or a disk made from the disk image if they will, to Talos' maintenance mode, is checked, and is deleted.
type Rehearse struct {
	// Enabled rehearses in every roll; roll --rehearse and --rehearse=false decide for a single one.
	Enabled bool `yaml:"enabled"`
	// Addresses are fixed addresses for scratch VMs with images of platform nocloud, each with its prefix length, such as 192.0.2.250/24: one in each network of nodes, unused and outside of the DHCP range. With several in one network, hosts rehearse at the same time. Without any, the scratch VM needs DHCP, and the image needs the extension qemu-guest-agent, which reports the address.
	Addresses []string `yaml:"addresses,omitempty"`
	// Gateway of a scratch VM with a fixed address, if recast is in another network.
	Gateway string `yaml:"gateway,omitempty"`
}

// MaxUnavailable is the section "roll.maxUnavailable". Control planes are always rolled one at a time.
type MaxUnavailable struct {
	// Workers that may be down at a time: a number such as 2, or a percentage of all workers such as 20%, rounded down, but at least one.
	Workers Share `yaml:"workers"`
	// PerHost is how many VMs of one Proxmox host may be down at a time.
	PerHost int `yaml:"perHost" jsonschema:"minimum=1"`
}

// Drain is the section "roll.drain".
type Drain struct {
	// Timeout for draining one node. Detaching its volumes has the same timeout again.
	Timeout Duration `yaml:"timeout"`
	// OnTimeout says what to do with pods whose eviction a PodDisruptionBudget, an admission webhook or a policy still refuses after timeout. stop leaves them alone, makes the node schedulable again and stops the roll; delete deletes them, each with its own grace period, and waits for timeout again.
	OnTimeout string `yaml:"onTimeout" jsonschema:"enum=stop,enum=delete"`
	// Force also deletes pods that no controller recreates.
	Force bool `yaml:"force"`
}

// Timeouts is the section "roll.timeouts".
type Timeouts struct {
	// Stop is how long a VM may take to shut down.
	Stop Duration `yaml:"stop"`
	// Boot is how long a VM may take from power-on to Talos' maintenance mode.
	Boot Duration `yaml:"boot"`
	// Join is how long a configured node may take to be a healthy member of the cluster.
	Join Duration `yaml:"join"`
	// Try is how long a node may take to be healthy with a machine configuration that needs no reboot. Talos takes one that is not kept back by itself, after twice that and roll.settle.
	Try Duration `yaml:"try"`
	// Storage is how long the volumes of storage systems may take to be whole again once a node is back, and how long the roll waits before a node until they don't depend on it.
	Storage Duration `yaml:"storage"`
}

// Marshal returns the effective configuration, defaults included, as YAML.
func (c *Config) Marshal() ([]byte, error) {
	b, err := yaml.Dump(c, yaml.WithIndent(2))
	if err != nil {
		return nil, fmt.Errorf("write the effective configuration: %w", err)
	}
	return b, nil
}

// Hash is the SHA-256 of the file's content: "sha256-…".
func (c *Config) Hash() string { return c.sum }

// Place is the position of the value of a path such as "nodes[2].vmid", as
// file:line:column. A path that is not in the file has the position of its nearest parent.
func (c *Config) Place(path string) string {
	p := nearest(c.places, path)
	return fmt.Sprintf("%s:%d:%d", c.file, p.line, p.column)
}

// place is a position in the file, both counted from 1.
type place struct{ line, column int }

// nearest returns the place of path or of its closest parent that has one.
func nearest(places map[string]place, path string) place {
	for {
		if p, ok := places[path]; ok {
			return p
		}
		if path == "" {
			return place{1, 1}
		}
		path = parent(path)
	}
}

// parent cuts the last key or index off a path; the parent of a top-level key is "".
func parent(path string) string { return path[:max(strings.LastIndexAny(path, ".["), 0)] }

// maxSize is the largest configuration file; a hundred nodes take less than 20 kB.
const maxSize = 1 << 20

// Options are inputs besides the file.
type Options struct {
	Dir    string              // base of relative paths; Load sets it to the file's directory
	Getenv func(string) string // for TALOSCONFIG and HOME; nil: no environment
	Expr   func(string) error  // checks the expression of a gate; nil: not checked
	// Template checks the template of a webhook; nil: not checked.
	Template func(string) error
	// Alone reads nothing but the file itself: the files that it names need not exist.
	Alone bool
}

// Load reads the file at path and checks that the files that it names exist.
// It reports all problems in one error of kind fault.Config.
func Load(path string, o Options) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, fault.As(fault.Config, err)
	}
	o.Dir = filepath.Dir(path)
	if o.Alone {
		return parse(path, data, o, nil)
	}
	return parse(path, data, o, os.Stat)
}

// Parse is like Load, for the content of the file name. It checks no other files.
func Parse(name string, data []byte, o Options) (*Config, error) { return parse(name, data, o, nil) }

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.WithHint(fmt.Errorf("%s: no such file", path), "recast init finds the cluster and writes one; or give its path with --config")
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if len(data) > maxSize {
		return nil, fmt.Errorf("%s: larger than %d KiB: this is not a recast.yaml", path, maxSize>>10)
	}
	return data, nil
}

// parse implements Load and Parse. If stat is nil, parse does not check other files.
func parse(name string, data []byte, o Options, stat func(string) (fs.FileInfo, error)) (*Config, error) {
	r := &report{file: name, places: map[string]place{}, bad: map[string]bool{}}
	c := defaults()
	if root := r.root(data); root != nil && r.supported(root) {
		r.decodeSection(root, spot{}, reflect.ValueOf(&c).Elem())
		checker{r, &c, o.Expr, o.Template}.all()
		c.complete(o)
		if stat != nil {
			r.files(&c, stat)
		}
	}
	if err := r.err(); err != nil {
		return nil, fault.As(fault.Config, err)
	}
	c.file, c.sum, c.places = name, fmt.Sprintf("sha256-%x", sha256.Sum256(data)), r.places
	return &c, nil
}

// root returns the file's top-level mapping, or nil after reporting why there is none.
func (r *report) root(data []byte) *yaml.Node {
	if i := firstInvalid(data); i >= 0 {
		before := data[:i]
		line := bytes.Count(before, []byte("\n")) + 1
		column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
		r.addAt(place{line, column}, "", "not UTF-8 text")
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		r.addAt(place{1, 1}, "", "not readable as YAML: %v", err)
		return nil
	}
	var doc, next yaml.Node
	switch err := loader.Load(&doc); {
	case errors.Is(err, io.EOF):
		r.addAt(place{1, 1}, "", "the file is empty")
		return nil
	case err != nil:
		r.syntax(err, data)
		return nil
	}
	switch err := loader.Load(&next); {
	case err == nil:
		r.addAt(place{next.Line, next.Column}, "", "a second document starts here: recast.yaml is one document")
		return nil
	case !errors.Is(err, io.EOF):
		r.syntax(err, data)
		return nil
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		r.addAt(place{1, 1}, "", "must be a mapping that starts with \"version: %d\"", Version)
		return nil
	}
	root := doc.Content[0]
	r.places[""] = place{root.Line, root.Column}
	return root
}

// firstInvalid returns the index of the first byte that is not UTF-8 text, or -1.
func firstInvalid(data []byte) int {
	for i := 0; i < len(data); {
		c, size := utf8.DecodeRune(data[i:])
		if c == utf8.RuneError && size == 1 || c < ' ' && c != '\t' && c != '\n' && c != '\r' {
			return i
		}
		i += size
	}
	return -1
}

func (r *report) syntax(err error, data []byte) {
	at, message := place{1, 1}, err.Error()
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		message = e.Message
		if e.Mark.Line > 0 {
			at = place{e.Mark.Line, e.Mark.Column}
		}
		if e.ContextMsg != "" {
			message = e.ContextMsg + ": " + message
		}
	}
	if lines := bytes.Split(data, []byte("\n")); at.line <= len(lines) {
		if l := lines[at.line-1]; bytes.ContainsRune(l[:len(l)-len(bytes.TrimLeft(l, " \t"))], '\t') {
			message = "the line is indented with a tab: use spaces"
		}
	}
	r.addAt(at, "", "not valid YAML: %s", message)
}

// supported says whether recast supports the version of the file. If not, it reports the version, and the file's keys
// are not checked.
func (r *report) supported(root *yaml.Node) bool {
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		var v int
		if key.Value != "version" || value.ShortTag() != "!!int" || value.Load(&v) != nil || v == Version {
			continue
		}
		r.places["version"] = place{key.Line, key.Column}
		if v > Version {
			r.add("version", "%d was made for a newer recast: this one reads version %d", v, Version)
		} else {
			r.add("version", "there is no version %d of this file: use %d", v, Version)
		}
		return false
	}
	return true
}

// Surge is how many surge nodes serve while workers are taken out: a number, or a percentage of all
// workers. The zero value is none.
type Surge Share

// Of returns the number of surge nodes for that many workers. A percentage is rounded up: it promises capacity.
func (s Surge) Of(workers int) int {
	if s.Percent > 0 {
		return max(1, (workers*s.Percent+99)/100)
	}
	return s.Count
}

// UnmarshalText reads a number from 0, or a percentage from 1% to 100%.
func (s *Surge) UnmarshalText(text []byte) error {
	if string(text) == "0" {
		*s = Surge{}
		return nil
	}
	return (*Share)(s).UnmarshalText(text)
}

// MarshalYAML writes a count as a number, so that it needs no quotes.
func (s Surge) MarshalYAML() (any, error) { return Share(s).MarshalYAML() }

func (s Surge) String() string { return Share(s).String() }

// IsSurge says whether a node is there only during a roll.
func (c *Config) IsSurge(node string) bool {
	return slices.ContainsFunc(c.Nodes, func(n Node) bool { return n.Surge && n.Name == node })
}

func (k checker) surge() {
	nodes := 0
	for i, n := range k.c.Nodes {
		if !n.Surge {
			continue
		}
		nodes++
		k.surgeNode(nodePath(i, "surge"), n)
	}
	if r := k.c.Roll.Surge; r.Of(1) > 0 && nodes == 0 || r.Count > nodes {
		k.add("roll.surge", "%s asks for more nodes than have surge: true, which are %d (line %d): add a worker with surge: true, a class and a host, or lower it", r, nodes, k.line("nodes"))
	}
}

// surgeNode refuses settings that a surge node can't have: its VM is made from nothing, and its disks are freed when
// the node is removed.
func (k checker) surgeNode(path string, n Node) {
	var lacks, other []string
	if n.Class == "" {
		lacks = append(lacks, "class")
	}
	if n.Host == "" {
		lacks = append(lacks, "host")
	}
	system := false
	for _, d := range k.c.ShapeOf(n).Disks {
		if !d.IsSystem() && d.Slot != n.SystemDisk.Slot {
			other = append(other, d.Slot)
		} else if d.Storage != nil && (d.Size != nil || n.SystemDisk.SizeGiB > 0) {
			system = true
		}
	}
	if n.Class != "" && !system {
		lacks = append(lacks, "a disk with system: true, storage and size in its class")
	}
	if len(lacks) > 0 {
		k.add(path, "%s is made by a roll, and lacks %s", quote(n.Name), strings.Join(lacks, ", "))
	}
	if len(other) > 0 {
		k.add(path, "%s has more than a system disk (%s): what is on that would be lost when the node is removed: give it a class without", quote(n.Name), strings.Join(other, ", "))
	}
	if n.Holder != 0 {
		k.add(path, "%s has a holder, whose disks are persistent: a surge node has only a system disk", quote(n.Name))
	}
}

// Canary says whether one node is rolled before any other, and which.
type Canary struct {
	On   bool
	Node string // "": recast chooses
}

// UnmarshalText reads true, false or the name of a node.
func (c *Canary) UnmarshalText(text []byte) error {
	switch s := string(text); s {
	case "true", "false":
		*c = Canary{On: s == "true"}
	default:
		*c = Canary{On: true, Node: s}
	}
	return nil
}

// MarshalYAML writes what UnmarshalText reads.
func (c Canary) MarshalYAML() (any, error) {
	if c.Node != "" {
		return c.Node, nil
	}
	return c.On, nil
}

// Share is a number of nodes, or a percentage of all of them: 2, or 20%.
type Share struct {
	Count   int // 0: use Percent
	Percent int
}

// Of returns the share of that many nodes. A percentage is rounded down, but to at least one node: with a limit of 0,
// a roll would never end.
func (s Share) Of(nodes int) int {
	if s.Percent > 0 {
		return max(nodes*s.Percent/100, 1)
	}
	return s.Count
}

// UnmarshalText reads a number from 1, or a percentage from 1% to 100%.
func (s *Share) UnmarshalText(text []byte) error {
	digits, percent := strings.CutSuffix(string(text), "%")
	n, err := strconv.Atoi(digits)
	switch {
	case err != nil || strconv.Itoa(n) != digits:
		return fmt.Errorf("%s is neither a number nor a percentage: write it like 2 or 20%%", quote(string(text)))
	case n < 1:
		return errors.New("must be at least 1")
	case percent && n > 100:
		return fmt.Errorf("%s is more than all of them: 100%% is the most", quote(string(text)))
	case percent:
		*s = Share{Percent: n}
	default:
		*s = Share{Count: n}
	}
	return nil
}

// MarshalYAML writes a count as a number, so that it needs no quotes.
func (s Share) MarshalYAML() (any, error) {
	if s.Percent > 0 {
		return s.String(), nil
	}
	return s.Count, nil
}

func (s Share) String() string {
	if s.Percent > 0 {
		return strconv.Itoa(s.Percent) + "%"
	}
	return strconv.Itoa(s.Count)
}

// Storage says at which storage systems of the cluster a roll looks.
type Storage struct {
	Longhorn string `yaml:"longhorn" jsonschema:"enum=on,enum=off"`
	Ceph     string `yaml:"ceph" jsonschema:"enum=on,enum=off"`
	LINSTOR  string `yaml:"linstor" jsonschema:"enum=on,enum=off"`
	Mayastor string `yaml:"mayastor" jsonschema:"enum=on,enum=off"`
}

// switches are the values for one system, or for all.
var switches = []string{"on", "off"}

// UnmarshalText reads the short form, which applies to all systems.
func (s *Storage) UnmarshalText(text []byte) error {
	word := string(text)
	if !slices.Contains(switches, word) {
		return fmt.Errorf("%s is not one of %s, or a section such as {linstor: off}%s", quote(word), strings.Join(switches, ", "), words.DidYouMean(word, switches))
	}
	*s = Storage{word, word, word, word}
	return nil
}

// MarshalYAML writes the short form if all systems have the same value.
func (s Storage) MarshalYAML() (any, error) {
	if s == (Storage{s.Longhorn, s.Longhorn, s.Longhorn, s.Longhorn}) {
		return s.Longhorn, nil
	}
	type section Storage
	return section(s), nil
}

// Off lists the keys of the systems at which a roll does not look.
func (s Storage) Off() []string {
	var off []string
	for _, system := range []struct{ key, word string }{{"longhorn", s.Longhorn}, {"ceph", s.Ceph}, {"linstor", s.LINSTOR}, {"mayastor", s.Mayastor}} {
		if system.word == "off" {
			off = append(off, system.key)
		}
	}
	return off
}

func (k checker) rehearse() {
	r := k.c.Roll.Rehearse
	const list, gateway = "roll.rehearse.addresses", "roll.rehearse.gateway"
	var prefixes []netip.Prefix
	for i, a := range r.Addresses {
		path := fmt.Sprintf("%s[%d]", list, i)
		prefix, err := netip.ParsePrefix(a)
		switch {
		case err != nil || !prefix.Addr().Is4():
			k.add(path, "%s is not an IPv4 address with the length of its network's prefix: write it like 192.0.2.250/24", quote(a))
			continue
		case prefix.Bits() > 30 || prefix.Addr() == prefix.Masked().Addr() || !prefix.Contains(prefix.Addr().Next()):
			k.add(path, "%s is not the address of one machine in a network of several", quote(a))
		}
		if first := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Addr() == prefix.Addr() }); first >= 0 {
			k.add(path, "%s is listed already", quote(a))
		}
		if other := k.has(prefix.Addr()); other != "" {
			k.add(path, "%s is the address of %s (line %d): choose an unused one", quote(a), other, k.line(other))
		}
		prefixes = append(prefixes, prefix)
	}
	if !k.given(gateway) {
		return
	}
	addr, err := netip.ParseAddr(r.Gateway)
	switch {
	case err != nil || !addr.Is4():
		k.add(gateway, "%s is not an IPv4 address: write it like 192.0.2.1", quote(r.Gateway))
	case slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Addr() == addr }):
		k.add(gateway, "%s is one of the addresses: scratch VMs would take it from the gateway", quote(r.Gateway))
	case !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }):
		k.add(gateway, "%s is in no network of the addresses", quote(r.Gateway))
	}
}

// has returns the key of the configuration that has this address; "" if there is none. Addresses of nodes and
// endpoints of the talosconfig are checked later, when a scratch VM is planned.
func (k checker) has(addr netip.Addr) string {
	named := map[string]string{
		"images.factory": k.c.Images.Factory, "images.extensions": k.c.Images.Extensions, "images.mirror": k.c.Images.Mirror,
	}
	for i, e := range k.c.Proxmox.Endpoints {
		named[fmt.Sprintf("proxmox.endpoints[%d]", i)] = e
	}
	for _, key := range slices.Sorted(maps.Keys(named)) {
		if is, err := netip.ParseAddr(hostOf(named[key])); err == nil && is == addr {
			return key
		}
	}
	return ""
}

// hostOf returns the host in a URL, or in a reference to an image, which has no scheme.
func hostOf(s string) string {
	if !strings.Contains(s, "://") {
		s = "//" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// ImageRef names an image on a registry: "ghcr.io/acme/frr:1.7.15@sha256:…". It has a tag, a digest or both.
type ImageRef struct {
	Repository string // "ghcr.io/acme/frr"
	Tag        string // "1.7.15"
	Digest     string // "sha256:…"
}

const (
	imageTag    = `[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}`
	imageDigest = `sha256:[0-9a-f]{64}`

	// maxRepository is the limit of registries: see reference.RepositoryNameTotalLengthMax.
	maxRepository = 255
)

// UnmarshalText reads a reference. Its errors never show the text: people put credentials in front of a registry's
// name.
func (r *ImageRef) UnmarshalText(text []byte) error {
	named, digest, digested := strings.Cut(string(text), "@")
	repository, tag, tagged := named, "", false
	if colon := strings.LastIndexByte(named, ':'); colon > strings.LastIndexByte(named, '/') {
		repository, tag, tagged = named[:colon], named[colon+1:], true
	}
	switch {
	case !matches(repository, registryHost+repositoryPath) || len(repository) > maxRepository:
		return errors.New("is not an image reference: write it like ghcr.io/acme/frr:1.7.15@sha256:…, with the registry's name, in lower case, without scheme and user")
	case tagged && !matches(tag, imageTag):
		return errors.New("its tag is invalid: use letters, digits, '-', '_' and '.', at most 128")
	case digested && !matches(digest, imageDigest):
		return errors.New("its digest is invalid: use sha256: and 64 hex digits, as `docker buildx imagetools inspect` or `crane digest` shows it")
	case !tagged && !digested:
		return errors.New("has no tag and no digest: add a tag, such as :1.7.15, a digest, @sha256:…, or both")
	}
	*r = ImageRef{Repository: repository, Tag: tag, Digest: digest}
	return nil
}

// MarshalYAML writes the reference in the form that UnmarshalText reads.
func (r ImageRef) MarshalYAML() (any, error) { return r.String(), nil }

func (r ImageRef) String() string {
	s := r.Repository
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

const (
	BuilderAuto    = "auto"
	BuilderFactory = "factory"
	BuilderImager  = "imager"
)

// SignatureAuto requires signatures by a key that is known.
const SignatureAuto = "auto"

const (
	BootISO  = "iso"
	BootDisk = "disk"
	BootAuto = "auto"
)

// BuilderOf returns the builder of a schematic's images: BuilderFactory or BuilderImager.
func (im Images) BuilderOf(s Schematic) string {
	if im.Builder == BuilderImager || im.Builder == BuilderAuto && len(s.Extensions) > 0 {
		return BuilderImager
	}
	return BuilderFactory
}

// An image repository is a path on a registry. Docker and the nodes take a first part without dot and port as a path
// on docker.io: see reference.ParseNormalizedNamed.
const (
	repositoryPath = `(/[a-z0-9]+([-._]+[a-z0-9]+)*)+`
	hostLabel      = `[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?`
	registryHost   = `(localhost|` + hostLabel + `(\.` + hostLabel + `)+|` + hostLabel + `(\.` + hostLabel + `)*:[0-9]+)`
)

func (k checker) images() {
	im := k.c.Images
	if k.given("images.factory") {
		k.url("images.factory", im.Factory, "https", "http")
	}
	// The message does not show the value: people put credentials in front of a registry's name.
	if !matches(im.Extensions, `[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?`+repositoryPath) {
		k.add("images.extensions", "is not a registry and organization: write it like ghcr.io/siderolabs, without scheme and tag")
	}
	if k.given("images.mirror") && !matches(im.Mirror, registryHost+repositoryPath) {
		k.add("images.mirror", "is not a repository: write it like ghcr.io/acme/talos, in lower case, without scheme, user, tag and digest")
	}
	if k.c.History.Share == ShareAlways && im.Mirror == "" {
		k.add("history.share", "always needs images.mirror, where runs are kept: set it")
	}
	k.imager()
	k.notEmpty("images.caFile", im.CAFile)
	k.names("images.insecure", "of a registry", im.Insecure)
	for i, host := range im.Insecure {
		k.pattern(fmt.Sprintf("images.insecure[%d]", i), host, registryHost, "registry: write it like 10.0.0.5:5000, without scheme and path")
	}
	k.notEmpty("images.signingKey", im.SigningKey)
	if k.given("images.signingKey") && im.Signature == "off" {
		k.add("images.signingKey", "is not used while images.signature is off (line %d): remove one of them", k.line("images.signature"))
	}
	k.storages("images.iso.storage", im.ISO.Storage, "iso")
	k.disk()
}

// disk checks that images.disk is given exactly if something boots disk images.
func (k checker) disk() {
	const section, list = "images.disk", "images.disk.storage"
	im := k.c.Images
	switch {
	case im.Boot == BootISO && k.given(section):
		k.add(section, "is not used while images.boot is iso: set images.boot to disk or auto, or remove it")
	case im.Boot != BootISO && !k.given(list) && !k.bad[section] && !k.bad["images.boot"]:
		k.add("images.boot", "%s needs images.disk.storage: name a Proxmox storage with content type import", im.Boot)
	}
	k.storages(list, im.Disk.Storage, "import")
}

// storages checks a list of Proxmox storages; content is the content type that they need.
func (k checker) storages(list string, names []string, content string) {
	if k.given(list) && len(names) == 0 {
		k.add(list, "is empty: name a Proxmox storage with content type %s", content)
	}
	for i, s := range names {
		path := fmt.Sprintf("%s[%d]", list, i)
		k.pattern(path, s, `[A-Za-z]([-A-Za-z0-9_.]*[A-Za-z0-9])?`, "name of a Proxmox storage")
	}
	k.names(list, "of a Proxmox storage", names)
}

func (k checker) imager() {
	im := k.c.Images
	if !matches(im.Imager.Image, registryHost+repositoryPath) {
		k.add("images.imager.image", "is not a repository: write it like ghcr.io/siderolabs/imager, without scheme, tag and digest")
	}
	const command = "images.imager.command"
	if k.given(command) && len(im.Imager.Command) == 0 {
		k.add(command, "is empty: name a program or remove it")
	}
	if k.given("images.imager.env") && !k.given(command) {
		k.add("images.imager.env", "is for images.imager.command, which is not set")
	}
	k.env("images.imager", im.Imager.Env)
	if k.given(command) && k.given("images.imager.image") {
		k.add(command, "image is given too (line %d): keep one of them", k.line("images.imager.image"))
	}
	for i, arg := range im.Imager.Command {
		if arg == "" {
			k.add(fmt.Sprintf("%s[%d]", command, i), "is empty: give it a value or remove it")
		}
	}
	if im.Builder == BuilderImager {
		k.builtHere("images.builder", "imager")
	}
}

// builtHere checks settings that the imager needs. path and what name the setting that selects the imager.
func (k checker) builtHere(path, what string) {
	if !k.given("images.mirror") {
		k.add(path, "%s needs images.mirror: what the imager builds is not on an Image Factory, so nodes pull its installer from your repository, such as ghcr.io/acme/talos", what)
	}
	if k.c.Images.SecureBoot {
		k.add(path, "%s is not possible with images.secureBoot (line %d): the imager has no key to sign with, only the Image Factory has", what, k.line("images.secureBoot"))
	}
}

func (k checker) schematics() {
	if k.given("schematics") && len(k.c.Schematics) == 0 {
		k.add("schematics", "is empty: name at least one schematic")
	}
	for name, s := range k.c.Schematics {
		path := spot{path: "schematics"}.key(name).path
		k.pattern(path, name, `[A-Za-z0-9]([-A-Za-z0-9_]{0,61}[A-Za-z0-9])?`, "name of a schematic: letters, digits, '-' and '_'")
		if file := path + ".file"; s.File == "" && !k.bad[file] {
			k.add(path, "is empty: name its file")
		}
		k.extensions(path+".extensions", s)
	}
}

func (k checker) extensions(path string, s Schematic) {
	if !k.given(path) || k.bad[path] {
		return
	}
	if len(s.Extensions) == 0 {
		k.add(path, "is empty: name an image or remove it")
		return
	}
	for i, e := range s.Extensions {
		same := func(other ImageRef) bool { return other.Repository == e.Repository }
		if first := slices.IndexFunc(s.Extensions, same); first < i && e.Repository != "" {
			k.add(fmt.Sprintf("%s[%d]", path, i), "%s is listed already (line %d)", quote(e.Repository), k.line(fmt.Sprintf("%s[%d]", path, first)))
		}
	}
	if k.c.Images.Builder == BuilderFactory {
		k.add(path, "an Image Factory builds official extensions only, and images.builder is factory (line %d): use auto or imager", k.line("images.builder"))
		return
	}
	k.builtHere(path, "your own extension")
}
