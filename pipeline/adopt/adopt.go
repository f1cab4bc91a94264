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

// Keep are the blocks for one resource of Terraform: one or the other keeps it from undoing a roll.
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

// adoption is a running Adopt.
type adoption struct {
	Options
	doc     *terraform.Document
	draft   config.Draft
	res     Result
	missing []error // what recast.yaml needs and nobody has said
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
	for _, f := range in.res.Files {
		in.res.Written = append(in.res.Written, f.Name)
	}
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

// ask notes what only a person, or a server, can say.
func (in *adoption) ask(command, format string, args ...any) {
	q := Question{fmt.Sprintf(format, args...), command}
	if !slices.Contains(in.res.Questions, q) {
		in.res.Questions = append(in.res.Questions, q)
	}
}

// need is what recast.yaml can't be without: what was given, else the only one that the JSON says.
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

// proxmox says how Proxmox is reached.
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

// keep makes the blocks, one for each resource.
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

// schematic is the file of a schematic, and the secrets that it holds.
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
