// Package adopt takes a cluster over from Terraform: it writes recast.yaml from what Terraform knows, says how
// Terraform is kept from undoing a roll, and refuses plans of Terraform that would take nodes away.
package adopt

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/terraform"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline/setup"
	"github.com/recast-sh/recast/schematics"
)

// Options are the answers that the user gives beforehand.
type Options struct {
	Dir         string
	Name        string // of the file: "recast.yaml"
	Force       bool
	Cluster     string
	Only        []string // addresses: modules, resources or instances; nil: every Talos VM
	Talos       string   // version
	Platform    string
	Schematic   string // file; "": from the resources of the Talos provider
	Factory     string
	Extensions  string
	Endpoints   []string
	Fingerprint string
	CAFile      string
	ISOStorage  []string
	VMIDs       string
}

// Result is what was found and written.
type Result struct {
	Cluster string   `json:"cluster"`
	Talos   string   `json:"talos"`
	Nodes   []Node   `json:"nodes"`
	Left    []string `json:"left,omitempty"` // VMs that are not in recast.yaml, and why
	// Questions are what the JSON does not say.
	Questions []Question `json:"questions,omitempty"`
	Keep      []Keep     `json:"keep"`
	Files     []File     `json:"-"`
	Written   []string   `json:"files"` // relative to Dir; none if Dir is ""
	Dir       string     `json:"dir,omitempty"`
}

// Node is one node that was found.
type Node struct {
	Name    string       `json:"name"`
	Role    string       `json:"role,omitempty"` // "control plane" or "worker"; "": not told
	VMID    cluster.VMID `json:"vmid"`
	Host    string       `json:"host"`
	Class   string       `json:"class,omitempty"`
	Holder  cluster.VMID `json:"holder,omitempty"`
	Address string       `json:"address"` // of the resource
	Disks   []string     `json:"disks"`

	vm terraform.VM
}

// Question is what the JSON does not say, and the command that does.
type Question struct {
	Text    string `json:"text"`
	Command string `json:"command"`
}

// Keep holds two blocks for one resource of Terraform. Either of them keeps Terraform from undoing a roll.
type Keep struct {
	Resource string   `json:"resource"` // without keys of count and for_each
	Nodes    []string `json:"nodes"`
	Ignore   string   `json:"ignoreChanges,omitempty"`
	Removed  string   `json:"removed"`
	Frees    bool     `json:"frees,omitempty"`  // destroying one frees every volume with its number
	Resets   bool     `json:"resets,omitempty"` // no VM: destroying one resets its machine
}

// File is a file that is written.
type File struct {
	Name    string
	Content []byte
	Mode    fs.FileMode
}

type adoption struct {
	Options
	doc     *terraform.Document
	draft   config.Draft
	res     Result
	missing []error // values that recast.yaml needs and that are not known
}

// Adopt writes recast.yaml and the schematics, all of them or none, and reads nothing but the document. With
// Dir "" it writes nothing.
func Adopt(doc *terraform.Document, o Options) (Result, error) {
	in := &adoption{Options: o, doc: doc}
	in.draft.From = "terraform show -json"
	if err := in.choose(); err != nil {
		return Result{}, err
	}
	in.describe()
	in.images()
	in.proxmox()
	if err := fault.As(fault.Config, errors.Join(in.missing...)); err != nil {
		return Result{}, err
	}
	in.keep()
	for _, q := range in.res.Questions {
		in.draft.Questions = append(in.draft.Questions, config.DraftQuestion(q))
	}
	text, err := in.draft.Render()
	if err != nil {
		return Result{}, fault.WithHint(err, "%s has a value there that recast.yaml does not allow: a flag gives another one (recast adopt --help), and --only leaves a VM out", doc.File)
	}
	in.res.Files = append(in.res.Files, File{in.Name, text, 0o644}) // last: it completes the set
	return in.res, in.write()
}

func (in *adoption) write() error {
	if in.Dir == "" {
		return nil
	}
	in.res.Written = append(in.res.Written, cluster.Each(in.res.Files, func(f File) string { return f.Name })...)
	others := slices.DeleteFunc(slices.Clone(in.res.Written), func(name string) bool { return name == "recast.yaml" })
	if err := setup.Vacant(in.Dir, in.Force, others...); err != nil {
		return err
	}
	in.res.Dir = in.Dir
	return setup.Place(in.Dir, in.res.Written, func(stage string) error {
		for _, f := range in.res.Files {
			if err := setup.WriteSynced(filepath.Join(stage, f.Name), f.Content, f.Mode); err != nil {
				return err
			}
		}
		return nil
	})
}

// ask adds a question that only a person, or a server, can answer.
func (in *adoption) ask(command, format string, args ...any) {
	q := Question{fmt.Sprintf(format, args...), command}
	if !slices.Contains(in.res.Questions, q) {
		in.res.Questions = append(in.res.Questions, q)
	}
}

// need returns a value that recast.yaml needs: the given value, else the only value in the JSON. Without either, it
// notes the value as missing.
func (in *adoption) need(given string, told []string, what, flag, command string) string {
	slices.Sort(told)
	told = slices.Compact(told)
	switch {
	case given != "":
		return given
	case len(told) == 1:
		return told[0]
	case len(told) > 1:
		what += ": the JSON says " + strings.Join(told, " and ")
	default:
		what += ": the JSON does not say"
	}
	in.missing = append(in.missing, fault.WithHint(errors.New(what), "%s says it; to find out: %s", flag, command))
	return ""
}

// proxmox fills in what recast.yaml says about Proxmox: endpoints, storage for boot ISOs, and VMIDs.
func (in *adoption) proxmox() {
	d := &in.draft
	d.Fingerprint, d.CAFile = in.Fingerprint, in.CAFile
	if d.Endpoints = in.Endpoints; len(d.Endpoints) == 0 {
		if url := in.need("", in.doc.Endpoints, "where the Proxmox API is", "--endpoint https://pve1.example:8006", "grep -rE '(endpoint|pm_api_url) *=' *.tf, or $PROXMOX_VE_ENDPOINT"); url != "" {
			d.Endpoints = []string{url}
		}
	}
	var isos []string
	for _, im := range in.doc.Images {
		if im.ISO {
			isos = append(isos, im.Storage)
		}
	}
	if d.ISOStorage = in.ISOStorage; len(d.ISOStorage) == 0 {
		if name := in.need("", isos, "which storage takes the boot ISOs", "--iso-storage STORAGE", "pvesm status --content iso, as root on a Proxmox node"); name != "" {
			d.ISOStorage = []string{name}
		}
	}
	vmids := in.need(in.VMIDs, nil, "which unused VMIDs recast may have for its own VMs", "--vmids 9000-9099", "pvesh get /cluster/resources --type vm, as root on a Proxmox node, lists those in use")
	if vmids == "" {
		return
	}
	if err := d.VMIDs.UnmarshalText([]byte(vmids)); err != nil {
		in.missing = append(in.missing, fault.WithHint(fmt.Errorf("--vmids: %w", err), "--vmids 9000-9099"))
	}
	for _, vm := range in.doc.VMs {
		if vm.VMID >= d.VMIDs.First && vm.VMID <= d.VMIDs.Last {
			in.missing = append(in.missing, fault.WithHint(fmt.Errorf("--vmids %s: %d is the number of %s", vmids, vm.VMID, vm.Address), "choose a range that no VM has"))
		}
	}
}

// keep makes a Keep for each resource.
func (in *adoption) keep() {
	of := func(address string) *Keep {
		block := terraform.Block(address)
		at := slices.IndexFunc(in.res.Keep, func(k Keep) bool { return k.Resource == block })
		if at < 0 {
			in.res.Keep = append(in.res.Keep, Keep{Resource: block, Removed: terraform.Removed(address)})
			at = len(in.res.Keep) - 1
		}
		return &in.res.Keep[at]
	}
	for _, n := range in.res.Nodes {
		k := of(n.Address)
		k.Nodes, k.Frees, k.Ignore = append(k.Nodes, n.Name), k.Frees || n.vm.Frees, n.vm.Lifecycle()
	}
	for _, n := range in.res.Nodes {
		for _, m := range in.doc.Machines {
			if m.Resets && m.Of(n.vm) {
				k := of(m.Address)
				k.Nodes, k.Resets = append(k.Nodes, n.Name), true
			}
		}
	}
}

// schematic adds the file of a schematic. If the schematic holds secrets, only its owner may read the file, and a
// question says so.
func (in *adoption) schematic(s terraform.Schematic, name string) error {
	parsed, err := schematics.Unlocked(s.Address, []byte(cmp.Or(s.YAML, "{}\n")))
	if err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if len(parsed.Secrets()) > 0 {
		mode = 0o600
		in.ask("recast lock", "schematics/%s.yaml holds secrets (%s): remove them before you commit it or recast.lock", name, strings.Join(parsed.Secrets(), ", "))
	}
	text := "# Image Factory format: anyone can post it to a factory. recast adopt wrote it from\n# " + s.Address + ".\n" + parsed.Canonical()
	in.res.Files = append(in.res.Files, File{"schematics/" + name + ".yaml", []byte(text), mode})
	return nil
}

// Verdict is what a plan of Terraform would do to the nodes of recast.yaml.
type Verdict struct {
	Cluster string   `json:"cluster"`
	File    string   `json:"file"`
	Nodes   int      `json:"nodes"`   // of recast.yaml
	Managed []string `json:"managed"` // those whose VMs Terraform manages
	Threats []Threat `json:"threats"`
	// Outages are changes that take machines down and no data away; TooMany says why those together are refused.
	Outages []Outage `json:"outages"`
	TooMany string   `json:"tooMany,omitempty"`
}

// Threat is a change that would destroy or replace the VM of a node, or a disk of it.
type Threat struct {
	Node     string       `json:"node"`
	VMID     cluster.VMID `json:"vmid,omitempty"`
	Host     string       `json:"host,omitempty"`
	Address  string       `json:"address"` // of the resource
	What     string       `json:"what"`    // "destroys", "replaces", "changes disks of", "resets", "stops"
	Loses    []string     `json:"loses"`
	Because  string       `json:"because,omitempty"` // Terraform's reason
	Prevents string       `json:"prevents"`          // the block or command that does
}

// Check finds what a plan would destroy. It needs no server: it knows VMs by their VMIDs, and roles from the nodes'
// files, if there are any.
func Check(c *config.Config, d *terraform.Document, roles map[string]string) (Verdict, error) {
	res := Verdict{Cluster: c.Cluster, File: d.File, Nodes: len(c.Nodes), Managed: []string{}, Threats: []Threat{}, Outages: []Outage{}}
	if !d.Plan {
		return res, fault.WithHint(fault.Configf("%s is a state, not a plan", d.File), "terraform plan -out plan.out && terraform show -json plan.out > plan.json")
	}
	var nameless []string
	for _, n := range c.Nodes {
		if n.VMID == 0 {
			nameless = append(nameless, n.Name)
		}
		if slices.ContainsFunc(d.VMs, func(vm terraform.VM) bool { return isOf(n, vm) }) {
			res.Managed = append(res.Managed, n.Name)
		}
	}
	if len(nameless) > 0 {
		return res, fault.WithHint(fault.Configf("nodes without vmid: %s: a plan can't be held against them", strings.Join(nameless, ", ")),
			"recast doctor shows the VM of each; write it as nodes[].vmid")
	}
	threats, err := d.Threats()
	if err != nil {
		return res, fault.As(fault.Config, err)
	}
	for _, t := range threats {
		res.Threats = append(res.Threats, against(c.Nodes, t, d.VMs)...)
	}
	outages, err := d.Outages()
	if err != nil {
		return res, fault.As(fault.Config, err)
	}
	for _, o := range outages {
		res.outage(c, d, o)
	}
	res.TooMany = tooMany(c, d, roles, res.Outages)
	return res, nil
}

// against returns a change as a threat to each node that it affects, through the node's VM or through the VM that
// owns disks of the node. A machine that is reset is known by its address; if no VM has that address, the machine may
// be any node's.
func against(nodes []config.Node, t terraform.Threat, vms []terraform.VM) []Threat {
	threat := Threat{VMID: cluster.VMID(t.VM.VMID), Host: t.VM.Host, Address: t.VM.Address, What: t.What, Loses: t.Loses, Because: t.Because, Prevents: t.Prevents()}
	vm := t.VM
	if t.What == "resets" {
		at := slices.IndexFunc(vms, terraform.Machine{Node: t.Node}.Of)
		if at < 0 {
			threat.Node = "the machine " + t.Node
			return []Threat{threat}
		}
		vm = vms[at]
	}
	var out []Threat
	for _, n := range nodes {
		switch threat.Node = n.Name; {
		case isOf(n, vm):
			out = append(out, threat)
		case n.Holder != 0 && n.Holder == vm.VMID:
			threat.Node += " (its holder)"
			out = append(out, threat)
		}
	}
	return out
}

// isOf says whether a VM is a node's. A VM with the node's VMID on another host was migrated, unless its name
// differs, too: then it is a VM of another Proxmox cluster.
func isOf(n config.Node, vm terraform.VM) bool {
	return n.VMID != 0 && n.VMID == vm.VMID && (n.Host == "" || vm.Host == "" || n.Host == vm.Host || n.Name == vm.Name)
}

// Err is nil if the plan leaves the nodes alone.
func (v Verdict) Err() error {
	switch {
	case len(v.Threats) == 0 && v.TooMany == "":
		return nil
	case len(v.Threats) == 0:
		return fault.WithHint(fault.DoctorFound.Of(fault.As(fault.Refused, fmt.Errorf("%s: %s", v.File, v.TooMany))),
			"apply it for one node after the other (-target), each once the one before is healthy; or leave it to recast: it changes images, configurations and VMs of one node at a time")
	}
	n := len(v.Threats)
	return fault.DoctorFound.Of(fault.As(fault.Refused, fmt.Errorf("%s: %s of it would take nodes of %s, or disks of them, away, or stop them", v.File, words.Counted(n, "change"), v.Cluster)))
}

// Outage is a change that takes the machine of a node down for a while.
type Outage struct {
	Node    string       `json:"node"`
	VMID    cluster.VMID `json:"vmid,omitempty"`
	Address string       `json:"address"` // of the resource
	What    string       `json:"what"`    // "reboots", "upgrades", "may reboot"
	Why     []string     `json:"why"`     // the attributes, as they change
}

// outage adds a change for each node that it affects. A machine that matches no node may be any node's, as in
// against. A stopped VM is a threat: nobody starts it again.
func (v *Verdict) outage(c *config.Config, d *terraform.Document, o terraform.Outage) {
	for _, name := range nodesOf(c, d, o) {
		if o.New && !slices.ContainsFunc(c.Nodes, func(n config.Node) bool { return n.Name == name && !d.Makes(n.VMID, n.Name) }) {
			continue // nothing runs there yet
		}
		if o.How == terraform.Stops {
			v.Threats = append(v.Threats, Threat{
				Node: name, VMID: cluster.VMID(o.VM.VMID), Host: o.VM.Host, Address: o.VM.Address, What: string(o.How), Prevents: o.Prevents(),
				Loses: []string{"no data; the machine is off until somebody starts it"}, Because: strings.Join(o.Why, ", "),
			})
			continue
		}
		v.Outages = append(v.Outages, Outage{Node: name, VMID: cluster.VMID(o.VM.VMID), Address: o.VM.Address, What: string(o.How), Why: o.Why})
	}
}

func nodesOf(c *config.Config, d *terraform.Document, o terraform.Outage) (names []string) {
	if o.VM.VMID != 0 {
		for _, n := range c.Nodes {
			if isOf(n, o.VM) {
				names = append(names, n.Name)
			}
		}
		return names
	}
	for _, n := range c.Nodes {
		if o.Node != "" && isMachine(c, d, n, o.Node) {
			names = append(names, n.Name)
		}
	}
	switch {
	case len(names) > 0:
		return names
	case o.Node != "":
		return []string{"the machine " + o.Node}
	case strings.HasPrefix(o.VM.Type, "talos_"):
		return []string{"the machine of " + o.VM.Address}
	}
	return []string{"the VM of " + o.VM.Address}
}

// isMachine says whether an address or a name is that of a node's machine.
func isMachine(c *config.Config, d *terraform.Document, n config.Node, at string) bool {
	if n.Name == at || n.Address == at || strings.HasPrefix(strings.Join(c.ShapeOf(n).IPConfig, ","), "ip="+at+"/") {
		return true
	}
	return slices.ContainsFunc(d.VMs, func(vm terraform.VM) bool { return isOf(n, vm) && terraform.Machine{Node: at}.Of(vm) }) ||
		slices.ContainsFunc(d.Machines, func(m terraform.Machine) bool { return m.Node == at && m.Hostname == n.Name })
}

// worker says whether a node is known to be a worker, by its configuration or by Terraform. Any other node counts as
// a control plane.
func worker(c *config.Config, d *terraform.Document, by map[string]string, name string) bool {
	i := slices.IndexFunc(c.Nodes, func(n config.Node) bool { return n.Name == name })
	if i < 0 {
		return false
	}
	n := c.Nodes[i]
	if r := c.Talos.MachineConfigs.Render; r.Given() {
		return !slices.Contains(r.ControlPlanes, name)
	}
	if n.Surge {
		return true
	}
	if role := by[name]; role != "" {
		return role == cluster.Worker
	}
	roles := map[string]bool{}
	for _, m := range d.Machines {
		if m.Role != "" && (m.Hostname == name || m.Node != "" && isMachine(c, d, n, m.Node)) {
			roles[m.Role] = true
		}
	}
	return roles["worker"] && len(roles) == 1
}

// tooMany says why a plan takes down too much at a time; "" if it does not. A node that reboots only if Talos finds
// it necessary does not count.
func tooMany(c *config.Config, d *terraform.Document, by map[string]string, outages []Outage) string {
	var down, controls []string
	for _, o := range outages {
		if o.What == string(terraform.MayReboot) || slices.Contains(down, o.Node) {
			continue
		}
		down = append(down, o.Node)
		if !worker(c, d, by, o.Node) {
			controls = append(controls, o.Node)
		}
	}
	workers := 0
	for _, n := range c.Nodes {
		if worker(c, d, by, n.Name) {
			workers++
		}
	}
	most := max(c.Roll.MaxUnavailable.Workers.Of(max(workers, len(c.Nodes)-3, 1)), 1)
	switch {
	case len(controls) > 1 && len(controls) == len(down) && workers == 0:
		return fmt.Sprintf("it would take %d nodes down in one apply (%s), and which of them are control planes is not told: etcd loses its quorum with two", len(down), strings.Join(down, ", "))
	case len(controls) > 1:
		return fmt.Sprintf("it would take %d control planes down in one apply (%s): etcd loses its quorum", len(controls), strings.Join(controls, ", "))
	case len(down) > most:
		return fmt.Sprintf("it would take %d nodes down in one apply (%s); roll.maxUnavailable.workers allows %d at a time", len(down), strings.Join(down, ", "), most)
	}
	return ""
}
