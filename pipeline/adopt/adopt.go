// Package adopt takes a cluster over from Terraform: it writes recast.yaml from what Terraform knows, says how
// Terraform is kept from undoing a roll, and refuses plans of Terraform that would take nodes away.
package adopt

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"regexp"
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

func (in *adoption) proxmox() {
	d := &in.draft
	d.Fingerprint, d.CAFile = in.Fingerprint, in.CAFile
	list := func(given, told []string, what, flag, command string) []string {
		if len(given) > 0 {
			return given
		}
		return cluster.Where([]string{in.need("", told, what, flag, command)}, func(text string) bool { return text != "" })
	}
	d.Endpoints = list(in.Endpoints, in.doc.Endpoints, "where the Proxmox API is", "--endpoint https://pve1.example:8006", "grep -rE '(endpoint|pm_api_url) *=' *.tf, or $PROXMOX_VE_ENDPOINT")
	images := cluster.Where(in.doc.Images, func(im terraform.Image) bool { return im.ISO })
	isos := cluster.Each(images, func(im terraform.Image) string { return im.Storage })
	d.ISOStorage = list(in.ISOStorage, isos, "which storage takes the boot ISOs", "--iso-storage STORAGE", "pvesm status --content iso, as root on a Proxmox node")
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
	known := o.VM.VMID != 0
	for _, n := range c.Nodes {
		if known && isOf(n, o.VM) || !known && o.Node != "" && isMachine(c, d, n, o.Node) {
			names = append(names, n.Name)
		}
	}
	switch {
	case known || len(names) > 0:
		return names
	case o.Node != "":
		return []string{"the machine " + o.Node}
	case strings.HasPrefix(o.VM.Type, "talos_"):
		return []string{"the machine of " + o.VM.Address}
	}
	return []string{"the VM of " + o.VM.Address}
}

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

func (in *adoption) choose() error {
	var clusters, modules, omni []string
	for _, vm := range in.doc.VMs {
		at := below(vm.Address, in.Only)
		why := in.reason(vm)
		switch {
		case len(in.Only) > 0 && at == "":
			continue
		case vm.Template:
			in.leave(vm, "a template")
			continue
		case in.holds(vm):
			in.leave(vm, "it owns disks of other VMs, so it is their holder")
			continue
		case why == "" && at != terraform.Block(vm.Address) && at != vm.Address:
			in.leave(vm, "nothing says that it runs Talos; --only takes it all the same")
			continue
		}
		m := in.machine(vm)
		if len(in.Only) == 0 && in.Cluster != "" && m.Cluster != "" && m.Cluster != in.Cluster {
			in.leave(vm, "of the cluster "+m.Cluster)
			continue
		}
		if in.ofOmni(vm, m) {
			omni = append(omni, vm.Name)
		}
		clusters, modules = append(clusters, m.Cluster), append(modules, vm.Module)
		in.add(vm, m)
	}
	if len(omni) > 0 {
		return fault.WithHint(fault.Refusedf("%s: the configuration or the image joins it to Omni, which decides its version and would undo a roll", strings.Join(omni, ", ")),
			"upgrade it in Omni, or take it out of Omni first: docs/howto/beside-others.md; --only takes other VMs")
	}
	if len(in.res.Nodes) == 0 {
		err := fault.Configf("%s: there is no VM of bpg/proxmox or Telmate/proxmox in it that is a Talos node", in.doc.File)
		for _, left := range in.res.Left {
			err = fault.WithHint(err, "%s", left)
		}
		return fault.WithHint(err, "--only ADDRESS takes the VM of that address; a plan shows what is there before it, not what it will create")
	}
	return in.one(clusters, modules)
}

// ofOmni says whether a machine joins Omni, by its configuration or by the kernel arguments of its image.
func (in *adoption) ofOmni(vm terraform.VM, m terraform.Machine) bool {
	if m.Omni {
		return true
	}
	for _, b := range in.builds(vm) {
		for _, s := range in.doc.Schematics {
			if s.ID == b.Schematic && strings.Contains(s.YAML, "siderolink.api=") {
				return true
			}
		}
	}
	return false
}

func (in *adoption) holds(vm terraform.VM) bool {
	return slices.ContainsFunc(in.doc.VMs, func(o terraform.VM) bool {
		return o.VMID != vm.VMID && slices.ContainsFunc(o.Disks, func(d terraform.Disk) bool { return d.Owner() == vm.VMID })
	})
}

func (in *adoption) one(clusters, modules []string) error {
	slices.Sort(clusters)
	slices.Sort(modules)
	names, places := slices.Compact(clusters), slices.Compact(modules)
	told := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" })
	switch {
	case len(told) > 1:
		return fault.WithHint(fault.Configf("the VMs are of several clusters: %s", strings.Join(told, ", ")),
			"--cluster NAME takes the nodes of one; each cluster gets its own recast.yaml, in its own directory (--to)")
	case len(in.Only) > 0, len(told) == 1 && len(names) == 1, len(places) == 1:
	default:
		for i, place := range places {
			if place == "" {
				places[i] = "the root module"
			}
		}
		return fault.WithHint(fault.Configf("the VMs are in %d modules (%s), and the JSON does not say whether they are one cluster", len(places), strings.Join(places, ", ")),
			"--only %s takes the VMs there; give it once for each module, resource or instance of the cluster", places[len(places)-1])
	}
	if len(told) == 0 && in.Cluster == "" && len(in.doc.Clusters) == 1 && len(places) == 1 {
		told = in.doc.Clusters
	}
	in.res.Cluster = in.need(in.Cluster, told, "what the cluster is called", "--cluster NAME", "talosctl config info")
	in.draft.Cluster = in.res.Cluster
	return nil
}

func (in *adoption) leave(vm terraform.VM, why string) {
	in.res.Left = append(in.res.Left, fmt.Sprintf("%s (VM %d): %s", vm.Address, vm.VMID, why))
}

// below returns the address in list that equals address or contains it; "" if there is none.
func below(address string, list []string) string {
	for _, at := range list {
		if rest, in := strings.CutPrefix(address, at); in && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return at
		}
	}
	return ""
}

var talos = regexp.MustCompile(`(?i)(^|[^a-z])talos([^a-z]|$)`)

// reason returns what shows that a VM runs Talos; "" if nothing does.
func (in *adoption) reason(vm terraform.VM) string {
	if m := in.machine(vm); m.Address != "" {
		return m.Address
	}
	if builds := in.builds(vm); len(builds) > 0 {
		return "its image"
	}
	for _, text := range slices.Concat(vm.Shape.Tags, vm.Media, []string{vm.Name}) {
		if talos.MatchString(text) {
			return text
		}
	}
	return ""
}

// machine joins what the Talos provider says about a VM's machine, which is known by its address or its name.
func (in *adoption) machine(vm terraform.VM) terraform.Machine {
	var out terraform.Machine
	for _, m := range in.doc.Machines {
		if !m.Of(vm) {
			continue
		}
		for _, f := range []struct{ to, from *string }{{&out.Role, &m.Role}, {&out.Cluster, &m.Cluster}, {&out.Image, &m.Image}, {&out.Hostname, &m.Hostname}, {&out.Address, &m.Address}} {
			if *f.to == "" {
				*f.to = *f.from
			}
		}
		out.Omni = out.Omni || m.Omni
	}
	return out
}

// builds returns the builds of an Image Factory that a VM's disks, its drive or its configuration name.
func (in *adoption) builds(vm terraform.VM) []terraform.Build {
	var out []terraform.Build
	names := []string{in.machine(vm).Image}
	for _, im := range in.doc.Images {
		if slices.Contains(vm.Media, im.ID) {
			names = append(names, im.URL)
		}
	}
	for _, name := range names {
		if b, is := terraform.BuildOf(name); is {
			out = append(out, b)
		}
	}
	return out
}

func (in *adoption) add(vm terraform.VM, m terraform.Machine) {
	n := Node{Name: vm.Name, Role: m.Role, VMID: cluster.VMID(vm.VMID), Host: vm.Host, Address: vm.Address, Disks: []string{}, vm: vm}
	if m.Hostname != "" {
		n.Name = m.Hostname
	}
	if n.Name == "" || vm.Host == "" {
		in.missing = append(in.missing, fault.WithHint(fmt.Errorf("%s has no name, or no host", vm.Address), "terraform apply -refresh-only, then terraform show -json again"))
	}
	if slices.ContainsFunc(in.res.Nodes, func(o Node) bool { return o.Name == n.Name || o.VMID == n.VMID && o.Host == n.Host }) {
		in.missing = append(in.missing, errors.New(vm.Address+": there is another VM with the name "+n.Name+", or with the same VMID: --only leaves one of them out"))
	}
	if vm.Tainted {
		in.ask("terraform untaint '"+vm.Address+"'", "%s is tainted: the next apply would replace it", n.Name)
	}
	in.res.Nodes = append(in.res.Nodes, n)
}

func (in *adoption) describe() {
	for i := range in.res.Nodes {
		n := &in.res.Nodes[i]
		in.holder(n)
		if n.vm.Whole() {
			n.Class = in.class(n)
		} else {
			in.ask("recast init --dir elsewhere", "the shape of %s: %s does not describe all of it", n.Name, n.vm.Type)
		}
		at := "NODE"
		if len(n.vm.Addresses) > 0 {
			at = n.vm.Addresses[0]
		}
		if n.Role == "" {
			in.ask("talosctl -n "+at+" get machinetype", "is %s a control plane or a worker?", n.Name)
		}
		if in.machine(n.vm).Hostname == "" {
			in.ask("kubectl get nodes -o wide", "do the nodes have the names of their VMs?")
		}
		role := n.Role
		role = cmp.Or(role, "role not told")
		in.draft.Nodes = append(in.draft.Nodes, config.DraftNode{
			Name: n.Name, VMID: int(n.VMID), Class: n.Class, Host: n.Host, Holder: int(n.Holder), Note: role + ", " + n.Address,
		})
	}
}

func (in *adoption) holder(n *Node) {
	var owners []int
	for _, d := range n.vm.Disks {
		n.Disks = append(n.Disks, d.String())
		if owner := d.Owner(); owner != 0 && owner != n.vm.VMID && !slices.Contains(owners, owner) {
			owners = append(owners, owner)
		}
	}
	switch len(owners) {
	case 0:
	case 1:
		n.Holder = cluster.VMID(owners[0])
	default:
		in.ask(fmt.Sprintf("qm config %d, as root on %s", n.VMID, n.Host), "which one of the VMs %v is the holder of %s? They all own disks of it", owners, n.Name)
	}
}

// class returns the name of the class with the shape of a node's VM, and adds the class if it is new.
func (in *adoption) class(n *Node) string {
	shape := n.vm.Shape
	system := in.system(n)
	for _, d := range n.vm.Disks {
		if system == "" || !n.owns(d) || d.GiB() == 0 || d.Slot == "" {
			continue // a disk that a class does not name stays as it is; a roll must not recreate this disk
		}
		disk := config.VMDisk{Slot: d.Slot, Storage: &d.Storage, Size: &config.DiskSize{GiB: d.GiB()}}
		if d.Slot == system {
			disk.System = new(true)
		}
		shape.Disks = append(shape.Disks, disk)
	}
	base := map[string]string{"control plane": "control-plane", "worker": "worker", "": "node"}[n.Role]
	same := 0
	for _, s := range in.draft.Shapes {
		if s.Name == base || strings.HasPrefix(s.Name, base+"-") {
			same++
			if reflect.DeepEqual(s.VM, shape) {
				return s.Name
			}
		}
	}
	name := base
	if same > 0 {
		name = fmt.Sprintf("%s-%d", base, same+1)
	}
	in.draft.Shapes = append(in.draft.Shapes, config.DraftShape{Name: name, VM: shape})
	return name
}

// owns says whether a disk is a volume of the node's own VM: not another VM's, and not a device of the host.
func (n *Node) owns(d terraform.Disk) bool {
	owner := d.Owner()
	return d.Storage != "" && (owner == 0 || owner == n.vm.VMID)
}

// system returns the slot of the disk that Talos is on: the only disk, or the only disk that is made from an image of
// Talos. recast proves again that it is the system disk before it replaces a disk.
func (in *adoption) system(n *Node) string {
	var own, imaged []terraform.Disk
	for _, d := range n.vm.Disks {
		if !n.owns(d) {
			continue
		}
		own = append(own, d)
		if d.Image != "" && in.ofTalos(d.Image) {
			imaged = append(imaged, d)
		}
	}
	switch {
	case len(imaged) == 1:
		return imaged[0].Slot
	case len(own) == 1 && len(n.vm.Disks) == 1:
		return own[0].Slot
	}
	slots := cluster.Each(own, func(d terraform.Disk) string { return d.Slot })
	in.ask("recast doctor", "on which disk of %s is Talos: %s? recast proves it from the running machine; system: true in its class says which it must be", n.Name, strings.Join(slots, ", "))
	return ""
}

func (in *adoption) ofTalos(id string) bool {
	if talos.MatchString(id) {
		return true
	}
	return slices.ContainsFunc(in.doc.Images, func(im terraform.Image) bool {
		_, is := terraform.BuildOf(im.URL)
		return im.ID == id && (is || talos.MatchString(im.URL))
	})
}

func (in *adoption) images() {
	all := slices.Concat(cluster.Each(in.res.Nodes, func(n Node) []terraform.Build { return in.builds(n.vm) })...)
	of := func(field func(terraform.Build) string) []string {
		return cluster.Where(cluster.Each(all, field), func(text string) bool { return text != "" })
	}
	d := &in.draft
	at := "talosctl -n NODE "
	d.Talos = in.need(in.Talos, of(func(b terraform.Build) string { return b.Talos }), "which Talos every node should run", "--talos-version v1.13.9", at+"version")
	in.res.Talos = d.Talos
	d.Platform = in.need(in.Platform, of(func(b terraform.Build) string { return b.Platform }), "for which platform the images are", "--platform nocloud", at+"get platformmetadata")
	factories := of(func(b terraform.Build) string { return b.Factory })
	if len(factories) == 0 {
		factories = []string{"https://factory.talos.dev"} // the default of recast.yaml
	}
	d.Factory = in.need(in.Factory, factories, "which Image Factory builds the images", "--factory URL", at+"get machineconfig -o yaml | grep image:")
	d.Extensions = cmp.Or(in.Extensions, "ghcr.io/siderolabs")
	if d.Arch = "amd64"; len(of(func(b terraform.Build) string { return b.Arch })) > 0 {
		d.Arch = in.need("", of(func(b terraform.Build) string { return b.Arch }), "for which architecture the images are", "nodes of two architectures need two recast.yaml: --only", at+"version")
	} else {
		in.ask(at+"version", "the architecture of the nodes: images.arch is amd64 unless you change it")
	}
	secure := of(func(b terraform.Build) string { return fmt.Sprint(b.SecureBoot) })
	if len(secure) == 0 {
		in.ask(at+"get securitystate", "do the nodes use Secure Boot? images.secureBoot is false unless you change it")
	} else {
		d.SecureBoot = in.need("", secure, "whether the nodes use Secure Boot", "nodes with and without it need two recast.yaml: --only", at+"get securitystate") == "true"
	}
	in.ask("kubectl get nodes", "which Kubernetes should the nodes run? kubernetes.version may say it")
	in.schematics()
}

func (in *adoption) schematics() {
	if in.Schematic != "" {
		in.given()
		return
	}
	wanted := map[string][]int{} // ID → nodes
	var order []string
	var without []string
	for i, n := range in.res.Nodes {
		id := ""
		if builds := in.builds(n.vm); len(builds) > 0 {
			id = builds[0].Schematic // the configuration's installer is first; an image is only what the node began with
		}
		if id == "" {
			without = append(without, n.Name)
			continue
		}
		if wanted[id] == nil {
			order = append(order, id)
		}
		wanted[id] = append(wanted[id], i)
	}
	if len(without) > 0 {
		in.need("", nil, "what the images of "+strings.Join(without, ", ")+" contain", "--schematic FILE", "talosctl -n NODE get extensions; recast init reads it from running nodes")
	}
	for _, id := range order {
		name := "default"
		if len(order) > 1 {
			name = "schematic-" + id[:8]
		}
		at := slices.IndexFunc(in.doc.Schematics, func(s terraform.Schematic) bool { return s.ID == id })
		if at < 0 {
			in.need("", nil, "what the schematic "+id+" contains", "--schematic FILE", fmt.Sprintf("curl -sf %s/schematics/%s, from factories that show it; recast init reads it from running nodes", in.draft.Factory, id))
			continue
		}
		if err := in.schematic(in.doc.Schematics[at], name); err != nil {
			in.missing = append(in.missing, fault.WithHint(err, "--schematic FILE names another one"))
			continue
		}
		s := config.DraftSchematic{Name: name, File: "schematics/" + name + ".yaml"}
		for _, i := range wanted[id] {
			in.draft.Nodes[i].Schematic = name
			s.Nodes = append(s.Nodes, in.res.Nodes[i].Name)
		}
		in.draft.Schematics = append(in.draft.Schematics, s)
	}
}

func (in *adoption) given() {
	file, errFile := filepath.Abs(in.Schematic)
	dir, errDir := filepath.Abs(in.Dir)
	rel, err := filepath.Rel(dir, file)
	if errFile != nil || errDir != nil || err != nil {
		in.missing = append(in.missing, fmt.Errorf("--schematic %s: there is no path to it from %s", in.Schematic, in.Dir))
		return
	}
	s := config.DraftSchematic{Name: "default", File: filepath.ToSlash(rel)}
	for i, n := range in.res.Nodes {
		in.draft.Nodes[i].Schematic = s.Name
		s.Nodes = append(s.Nodes, n.Name)
	}
	in.draft.Schematics = []config.DraftSchematic{s}
}
