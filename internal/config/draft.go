package config

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"go.yaml.in/yaml/v4"
)

// Draft is what init has found for a first recast.yaml. An empty field becomes a comment in the file, or is left out
// as a default.
type Draft struct {
	Cluster     string
	Talos       string // version
	Others      string // other versions of Talos that nodes run, in words
	TalosConfig string // "": from the environment
	Kubernetes  string // version; "": nodes run different versions
	Factory     string
	Extensions  string
	Platform    string
	Arch        string
	SecureBoot  bool
	Mirror      string // where the nodes' installer came from, if not from a factory
	ISOStorage  []string
	Schematics  []DraftSchematic
	Endpoints   []string
	Hosts       []string // nodes of the Proxmox cluster without a known endpoint
	Fingerprint string
	CAFile      string
	VMIDs       VMIDRange
	Nodes       []DraftNode
	Left        []string // nodes that were left out

	New *DraftNew // set for a cluster that does not exist yet

	// For a cluster whose VMs Terraform manages.
	From      string // where the draft comes from: "terraform show -json"; "": recast init
	Shapes    []DraftShape
	Questions []DraftQuestion
}

// DraftShape is one entry of "vmClasses", made from existing VMs.
type DraftShape struct {
	Name string
	VM   VM
	Note string // for people
}

// DraftQuestion is a fact that was not found, and the command that finds it.
type DraftQuestion struct{ Text, Command string }

// Lines returns the shape in YAML.
func (s DraftShape) Lines() ([]string, error) {
	b, err := yaml.Dump(s.VM, yaml.WithIndent(2))
	return strings.Split(strings.TrimSpace(string(b)), "\n"), err
}

// DraftSchematic is one entry of "schematics".
type DraftSchematic struct {
	Name, File string
	Nodes      []string
	// Unknown lists extensions that the nodes have but the file does not.
	Unknown []string
}

// DraftNode is one entry of "nodes".
type DraftNode struct {
	Name      string
	Schematic string
	VMID      int
	Holder    int
	Note      string // facts about the node, for people

	Class, Host string
	IPConfig    string // set for a node that does not exist yet
}

// Render returns the file. It checks that Parse accepts the file.
func (d Draft) Render() ([]byte, error) {
	var b bytes.Buffer
	if err := draftFile.Execute(&b, d); err != nil {
		return nil, fmt.Errorf("write recast.yaml: %w", err)
	}
	if _, err := Parse("recast.yaml", b.Bytes(), Options{}); err != nil {
		return nil, fmt.Errorf("the result of the search is not a valid recast.yaml: %w", err)
	}
	return b.Bytes(), nil
}

// Lines returns the entries of "nodes", with aligned comments.
func (d Draft) Lines() []string {
	width := 0
	lines := make([]string, len(d.Nodes))
	for i, n := range d.Nodes {
		lines[i] = fmt.Sprintf("- {name: %s, schematic: %s", scalar(n.Name), scalar(n.Schematic))
		if n.VMID != 0 {
			lines[i] += fmt.Sprintf(", vmid: %d", n.VMID)
		}
		if n.Class != "" {
			lines[i] += ", class: " + scalar(n.Class)
		}
		if n.Host != "" {
			lines[i] += ", host: " + scalar(n.Host)
		}
		if n.IPConfig != "" {
			lines[i] += fmt.Sprintf(", vm: {ipconfig: [%q]}", n.IPConfig)
		}
		if n.Holder != 0 {
			lines[i] += fmt.Sprintf(", holder: %d", n.Holder)
		}
		lines[i] += "}"
		width = max(width, len(lines[i]))
	}
	for i, n := range d.Nodes {
		if n.Note == "" {
			continue
		}
		lines[i] += strings.Repeat(" ", width-len(lines[i])) + "  # " + oneLine(n.Note)
	}
	return lines
}

// scalar returns a string in YAML, quoted if needed.
func scalar(s string) string {
	b, err := yaml.Dump(s)
	if err != nil {
		return fmt.Sprintf("%q", s)
	}
	return strings.TrimSpace(string(b))
}

func flow(list []string) string {
	var out []string
	for _, s := range list {
		out = append(out, scalar(s))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// oneLine joins the lines of a text, so that the text stays inside a comment.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

var draftFile = template.Must(template.New("recast.yaml").Funcs(template.FuncMap{
	"scalar": scalar, "flow": flow, "words": func(list []string) string { return oneLine(strings.Join(list, ", ")) }, "line": oneLine,
}).Parse(`{{if .New}}# What you want from the cluster, which recast bootstrap makes. From now
{{- else if .From}}# What you want from the cluster. recast adopt wrote what {{.From}} says; from now
{{- else}}# What you want from the cluster. recast init wrote what it found; from now
{{- end}}
# on this file is yours, and recast never changes it. It is strict: an unknown key or
# a wrong value stops every command. Commented-out settings show the default, unless a
# comment says otherwise.
{{- with .Questions}}
#
# What {{$.From}} does not say, and the commands that do:
{{- range .}}
# - {{line .Text}}
#     {{line .Command}}
{{- end}}
{{- end}}
version: 1
cluster: {{scalar .Cluster}}

talos:
  # renovate: datasource=github-releases depName=siderolabs/talos
  version: {{.Talos}}{{with .Others}}                   # there are nodes with {{line .}}{{end}}
{{- if .TalosConfig}}
  config: {{scalar .TalosConfig}}
{{- else}}
  # config: ./talosconfig            # default: $TALOSCONFIG, else ~/.talos/config
{{- end}}
{{- with .New}}
  # Every node's configuration is made of this, as talosctl gen config makes it.
  machineConfigs:
    render:
      secrets: {{scalar .Secrets}}{{"  "}}# all keys of the cluster: never lose them, never commit them in the clear
      endpoint: {{scalar .Endpoint}}{{"  "}}# of Kubernetes, as all nodes reach it
      talos: {{.Release}}{{"  "}}# its defaults, whatever version the nodes run: move it on purpose only
      controlPlanes: {{flow .ControlPlanes}}
{{- if .Patches}}
      patches:
        controlPlanes: {{flow .Patches}}
        # all: [patches/all.yaml]      # also workers: […], and nodes: {wk1: […]}
{{- else}}
      # patches: {all: [patches/all.yaml]}   # also controlPlanes: […], workers: […], nodes: {wk1: […]}
{{- end}}
{{- else}}
  # machineConfigs: ./machine        # configurations in git, for drift and roll; to begin: recast config render --to machine --running --encrypt
{{- end}}
{{if .Kubernetes}}
# The version that every node should run; drift reports others. A roll never changes it:
# recast upgrade-k8s does.
kubernetes:
  # renovate: datasource=github-releases depName=kubernetes/kubernetes
  version: {{.Kubernetes}}
{{else}}
# kubernetes: {version: v1.35.4}     # the version that every node should run; drift reports others; a roll never changes it
{{end}}
images:
  factory: {{scalar .Factory}}
  extensions: {{scalar .Extensions}}     # the registry that lists the official extensions, with digests
  platform: {{.Platform}}
  arch: {{.Arch}}
  secureBoot: {{.SecureBoot}}
  # Your own registry: every installer is copied there, and nodes pull it from there.
{{- if .Mirror}}
  # Nodes were installed from here, so it may be your registry:
  # mirror: {{line .Mirror}}
{{- else}}
  # mirror: ghcr.io/acme/talos       # default: nodes pull from the factory
{{- end}}
  iso:
    storage: {{flow .ISOStorage}}{{"  "}}# Proxmox storages for the boot ISOs

# Plain Image Factory files, so anyone can post them to a factory. They describe what
# {{if .New}}the images contain{{else}}the nodes run today{{end}}.
schematics:
{{- range .Schematics}}
  {{scalar .Name}}: {{scalar .File}}{{"  "}}# {{words .Nodes}}
{{- range .Unknown}}
  # On the nodes, {{line .}}. To keep it, name its image:
  #   {file: …, extensions: ["registry/image:tag"]}
{{- end}}
{{- end}}

proxmox:
  # Name several nodes of the Proxmox cluster, so that one may be down. The API token
  # comes from PROXMOX_VE_API_TOKEN, never from this file.
  endpoints:
{{- range .Endpoints}}
    - {{scalar .}}
{{- end}}
{{- with .Hosts}}
  # There are more: {{words .}}
{{- end}}
{{- if .Fingerprint}}
  fingerprint: {{printf "%q" .Fingerprint}}
{{- else if .CAFile}}
  caFile: {{scalar .CAFile}}
{{- else}}
  # caFile: ./pve-root-ca.pem        # or fingerprint; with neither, the system's CAs are used
{{- end}}
  vmids: {{.VMIDs}}{{"  "}}# for recast's own VMs (the claim, parked disks): keep other VMs out

{{with .New -}}
# What the VMs are made of, in Proxmox' own words. A node's own vm is over its class, key
# by key.
vmClasses:
{{- range .Classes}}
  {{scalar .Name}}:
    cores: {{.Cores}}
    memory: {{.MemoryMiB}}{{"  "}}# MiB
    bios: ovmf
    machine: q35
    agent: true  # needs the extension qemu-guest-agent
    onboot: true
    cloudinit: {{scalar .Storage}}  # storage of the drive from which a new node has its address
    nics: [{bridge: {{scalar .Bridge}}}]
    disks:
      - {slot: scsi0, storage: {{scalar .Storage}}, size: {{.System}}, system: true}
{{- if .Data}}
      - {slot: scsi1, storage: {{scalar .Storage}}, size: {{.Data}}, serial: data}
{{- end}}
{{- end}}

{{end -}}
{{with .Shapes -}}
# What the VMs are made of, in Proxmox' own words; what is not here stays as it is found.
# As long as Terraform manages the same, change both, or delete here what it keeps.
vmClasses:
{{- range .}}
  {{scalar .Name}}:{{with .Note}}  # {{line .}}{{end}}
{{- range .Lines}}
    {{.}}
{{- end}}
{{- end}}

{{end -}}
{{if .New}}nodes:{{else}}nodes:  # VMs are found by their UUID; vmid is a cross-check{{end}}
{{- range .Lines}}
  {{.}}
{{- end}}
{{- range .Left}}
  # {{line .}} was left out: recast leaves it alone
{{- end}}

# How nodes are rolled, and the defaults.
# roll:
#   strategy: auto                   # the first possible one of: recreate, reimage, in-place; or one of them
#   order: control-planes-first      # or workers-first
#   maxUnavailable: {workers: 1, perHost: 1}
#   canary: true                     # one node before all others
#   drain: {timeout: 10m, onTimeout: stop, force: false}
#   settle: 30s                      # how long a node must stay healthy before the next one
#   keepDisks: 1                     # old system disks of a node that stay parked, for rollback
`))

// DraftNew is the part of a first recast.yaml for a cluster that does not exist yet.
type DraftNew struct {
	Secrets       string // path of the file with the cluster's secrets
	Endpoint      string // URL of the Kubernetes API
	Release       string // release of Talos whose defaults the configurations have: "v1.14"
	ControlPlanes []string
	Patches       []string // patches of the control planes
	Classes       []DraftClass
}

// DraftClass is one entry of "vmClasses".
type DraftClass struct {
	Name      string
	Cores     int
	MemoryMiB int
	Storage   string // storage of its disks and its cloud-init drive
	Bridge    string
	System    DiskSize
	Data      *DiskSize // nil: no data disk
}

func defaults() Config {
	return Config{
		Images: Images{
			Builder:    "auto",
			Factory:    "https://factory.talos.dev",
			Extensions: "ghcr.io/siderolabs",
			Platform:   "nocloud",
			Arch:       "amd64",
			Signature:  SignatureAuto,
			Imager:     Imager{Image: "ghcr.io/siderolabs/imager"},
			ISO:        ISO{Delivery: "auto"},
			Boot:       BootISO,
		},
		Roll: Roll{
			Strategy:       "auto",
			Order:          "control-planes-first",
			MaxUnavailable: MaxUnavailable{Workers: Share{Count: 1}, PerHost: 1},
			Canary:         Canary{On: true},
			Reboot:         "canary",
			Drain:          Drain{Timeout: Duration(10 * time.Minute), OnTimeout: "stop"},
			Settle:         Duration(30 * time.Second),
			Poll:           Duration(2 * time.Second),
			Timeouts: Timeouts{
				Stop: Duration(5 * time.Minute),
				Boot: Duration(10 * time.Minute),
				Join: Duration(10 * time.Minute),
				Try:  Duration(2 * time.Minute),

				Storage: Duration(time.Hour),
			},
			Storage:     Storage{"on", "on", "on", "on"},
			BootFailure: "rollback",
			KeepDisks:   1,
		},
		History: History{Share: ShareAuto},
		Proxmox: Proxmox{Publish: Publish{Verify: "own"}},
	}
}

// complete fills in the defaults that depend on the rest of the file, its directory or the environment.
func (c *Config) complete(o Options) {
	c.Dir = o.Dir
	for i, n := range c.Nodes {
		if n.Strategy == "" {
			c.Nodes[i].Strategy = c.Roll.Strategy
		}
	}
	c.systemDisks()
	for i, g := range c.Roll.Gates {
		c.Roll.Gates[i].When = cmp.Or(g.When, "both")
		c.Roll.Gates[i].Timeout = cmp.Or(g.Timeout, Duration(10*time.Minute))
	}
	for _, list := range c.Roll.Hooks.lists() {
		for i, h := range list.hooks {
			list.hooks[i].Timeout = cmp.Or(h.Timeout, Duration(time.Minute))
		}
	}
	for i, e := range c.Proxmox.Endpoints {
		c.Proxmox.Endpoints[i] = strings.TrimRight(e, "/")
	}
	for i, w := range c.Notify {
		if w.On == nil {
			c.Notify[i].On = []string{"start", "failure", "end"}
		}
		c.Notify[i].ContentType = cmp.Or(w.ContentType, "application/json")
		c.Notify[i].CAFile = o.resolve(w.CAFile)
	}
	c.CacheDir = o.resolve(o.env("RECAST_CACHE_DIR"))
	c.Images.Factory = strings.TrimRight(c.Images.Factory, "/")
	c.Proxmox.Fingerprint = strings.ToUpper(c.Proxmox.Fingerprint)
	c.Proxmox.CAFile = o.resolve(c.Proxmox.CAFile)
	c.Images.CAFile = o.resolve(c.Images.CAFile)
	c.Images.SigningKey = o.resolve(c.Images.SigningKey)
	c.Talos.Config = o.resolve(c.Talos.Config)
	if m := &c.Talos.MachineConfigs; m.Given() {
		m.Path, m.Names = o.resolve(m.Dir), cmp.Or(m.Names, "{node}.yaml")
		m.Render.files(func(_ string, file *string) { *file = o.resolve(*file) })
	}
	c.Roll.EtcdSnapshot = o.resolve(cmp.Or(c.Roll.EtcdSnapshot, filepath.Join(".recast", "etcd")))
	for name, s := range c.Schematics {
		s.Path = o.resolve(s.File)
		c.Schematics[name] = s
	}
	c.Talos.Config = cmp.Or(c.Talos.Config, o.env("TALOSCONFIG"))
	if home := o.env("HOME"); c.Talos.Config == "" && home != "" {
		c.Talos.Config = filepath.Join(home, ".talos", "config")
	}
}

// resolve makes a path relative to the file's directory; "" stays "".
func (o Options) resolve(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok && o.env("HOME") != "" {
		return filepath.Join(o.env("HOME"), rest)
	}
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(o.Dir, path)
}

func (o Options) env(name string) string {
	if o.Getenv == nil {
		return ""
	}
	return o.Getenv(name)
}
