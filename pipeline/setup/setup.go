// Package setup is recast init: it looks at a running cluster and drafts recast.yaml and the
// schematics from what it finds. [Init] does all of it; [InitOptions] is what a person may say.
package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/pipeline"
)

// InitSources are the clients for Init.
type InitSources struct {
	Proxmox pipeline.Hypervisor
	Talos   cluster.TalosReader
	Addrs   []netip.Addr       // of machines in the talosconfig
	Kube    cluster.KubeReader // nil: not available
	// Load reads a configuration; Images makes the clients for it.
	Load   func(file string) (pipeline.Project, error)
	Images func(p pipeline.Project) (pipeline.Images, error)
	// Ask asks the user a question.
	Ask func(ctx context.Context, q Question) (string, error)
	Say func(text string) // called with what is being done
}

// Question asks for something that Init can't find out.
type Question struct {
	Text    string
	Choices []string // possible answers; nil: any text
	Default string   // "": there is no safe default
	Flag    string   // the flag for the answer: "--iso-storage"
	// Check returns what is wrong with an answer; nil: any answer is valid.
	Check func(answer string) error
}

// InitOptions are the answers that the user gives beforehand.
type InitOptions struct {
	Dir         string
	Force       bool   // replace existing files
	Cluster     string // "": the name in Talos and Proxmox
	Context     string // of the talosconfig
	TalosConfig string // path to write to the file; "": from the environment
	Talos       string // version; "": the running one
	Factory     string // "": the one that the nodes were installed from
	Extensions  string
	ISOStorage  []string
	Endpoints   []string
	Fingerprint string
	CAFile      string
	VMIDs       string // "": a free range
	Exclude     []string
}

// InitResult is what was found or decided, and what was written.
type InitResult struct {
	Cluster    string          `json:"cluster"`
	Talos      string          `json:"talos"`
	Kubernetes string          `json:"kubernetes,omitempty"` // "": not known, or different versions
	Platform   string          `json:"platform"`
	Arch       string          `json:"arch"`
	Nodes      []InitNode      `json:"nodes"`
	Left       []string        `json:"left,omitempty"`
	Schematics []InitSchematic `json:"schematics"`
	Warnings   []string        `json:"warnings,omitempty"`
	Files      []string        `json:"files"`            // written, relative to Dir
	Secret     []string        `json:"secret,omitempty"` // those of Files that hold secrets: readable only for their owner, and not to be committed
	Dir        string          `json:"dir"`
	Drift      []observe.Drift `json:"drift"` // of the nodes from recast.lock

	// Of a cluster that is not there yet.
	New       bool   `json:"new,omitempty"`
	Endpoint  string `json:"endpoint,omitempty"`           // URL of the Kubernetes API
	Encrypted string `json:"secretsEncryptedBy,omitempty"` // "sops" or "age"; "": they are in the clear
}

// InitNode is one node that was found.
type InitNode struct {
	Name         string       `json:"name"`
	ControlPlane bool         `json:"controlPlane"`
	VMID         cluster.VMID `json:"vmid"` // 0: there is no VM yet
	Host         string       `json:"host"`
	Address      string       `json:"address,omitempty"` // of a node that is not there yet
	Firmware     string       `json:"firmware"`          // "UEFI" or "BIOS"
	Schematic    string       `json:"schematic"`
	SystemDisk   string       `json:"systemDisk,omitempty"`      // "scsi0 32G"; "": it can't be proven
	Candidates   []string     `json:"systemDiskOneOf,omitempty"` // if it can't be proven
	Persistent   []string     `json:"persistent,omitempty"`      // "scsi1 100G", "scsi1 100G of VM 9201"; none if it can't be proven
	Holder       cluster.VMID `json:"holder,omitempty"`
}

// InitSchematic is one schematic that nodes run.
type InitSchematic struct {
	Name       string   `json:"name"`
	File       string   `json:"file"`
	Extensions []string `json:"extensions"`
	Nodes      []string `json:"nodes"`
}

// initial is a running Init.
type initial struct {
	InitOptions
	src        InitSources
	found      survey.Discovery
	containers []cluster.Container
	fresh      bool // the nodes are not there yet
	draft      config.Draft
	plans      []plannedSchematic
	extra      []extraFile
	res        InitResult
}

// Init finds a cluster and writes recast.yaml, its schematics and recast.lock, all of them
// or none. It changes nothing else.
func Init(ctx context.Context, src InitSources, o InitOptions) (InitResult, error) {
	in := &initial{InitOptions: o, src: src}
	if err := Vacant(o.Dir, o.Force); err != nil {
		return InitResult{}, err
	}
	if err := in.mayLook(ctx); err != nil {
		return InitResult{}, err
	}
	src.Say("looking for nodes and their VMs")
	kube := observe.Sources{Proxmox: src.Proxmox, Talos: src.Talos, Kube: src.Kube}
	var err error
	in.found, err = survey.Discover(ctx, kube, survey.DiscoverOptions{Addrs: src.Addrs, Exclude: o.Exclude})
	if err != nil {
		return InitResult{}, err
	}
	for _, addr := range in.found.Silent {
		in.warn("no node answers at %s, which is in the talosconfig: if there is one, it is not in recast.yaml", addr)
	}
	if err := in.sayable(); err != nil {
		return InitResult{}, err
	}
	for _, decide := range []func(context.Context) error{in.images, in.proxmox, in.schematics} {
		if err := decide(ctx); err != nil {
			return InitResult{}, err
		}
	}
	in.nodes()
	src.Say("locking what the nodes run, and asking the registry for its digests")
	if err := in.write(ctx); err != nil {
		return InitResult{}, err
	}
	return in.res, nil
}

// mayLook refuses a token that can't see everything: Proxmox silently omits from its lists
// what a token may not see.
func (in *initial) mayLook(ctx context.Context) error {
	var lacks []string
	for _, need := range []struct{ privilege, path string }{{"Sys.Audit", "/"}, {"VM.Audit", "/vms"}} {
		held, err := in.src.Proxmox.Permissions(ctx, need.path)
		if err != nil {
			return fmt.Errorf("read what the token may do: %w", err)
		}
		if _, ok := held[need.privilege]; !ok {
			lacks = append(lacks, need.privilege+" on "+need.path)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	token := in.src.Proxmox.TokenID()
	user, _, _ := strings.Cut(token, "!")
	return fault.WithHint(fault.Refusedf("the Proxmox token %s can't see everything: it lacks %s", token, strings.Join(lacks, ", ")),
		"the read-only role PVEAuditor is enough; as root on a Proxmox node: pveum acl modify / --users %s --tokens '%s' --roles PVEAuditor", user, token)
}

// Vacant refuses to replace existing files: recast.yaml, recast.lock and others.
func Vacant(dir string, force bool, others ...string) error {
	if force {
		return nil
	}
	var there []string
	for _, name := range append([]string{"recast.yaml", "recast.lock"}, others...) {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			there = append(there, name)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fault.Configf("look at %s: %w", dir, err)
		}
	}
	if len(there) == 0 {
		return nil
	}
	return fault.WithHint(fault.Configf("%s: %s there already; nothing was changed", dir, isAre(there)),
		"--dir (of adopt: --to) writes elsewhere, so you can compare the two; --force replaces existing files")
}

func isAre(list []string) string {
	if len(list) == 1 {
		return list[0] + " is"
	}
	return strings.Join(list, ", ") + " are"
}

func (in *initial) warn(format string, args ...any) {
	in.res.Warnings = append(in.res.Warnings, fmt.Sprintf(format, args...))
}

// nodes describes each node.
func (in *initial) nodes() {
	for _, n := range in.found.Nodes {
		node := InitNode{
			Name: n.Name, ControlPlane: n.Machine.ControlPlane, VMID: n.VM.ID, Host: n.VM.Host, Firmware: "BIOS",
			Schematic: in.schematicOf(n.Name), Holder: n.Holder,
		}
		if n.VM.Config["bios"] == "ovmf" {
			node.Firmware = "UEFI"
		}
		node.Persistent, node.Candidates = described(n.Persistent, n.Holder), described(n.Candidates, n.Holder)
		if n.Unproven == nil {
			node.SystemDisk = n.System.Key + sized(n.System)
		} else {
			in.warn("%v; %s", n.Unproven, strings.Join(fault.Hints(n.Unproven), "; "))
		}
		if len(n.Machine.Omni()) > 0 {
			in.warn("%s is of Omni (siderolink.api): recast drift compares it, and a roll refuses it: upgrade it in Omni, or take it out of Omni first", n.Name)
		}
		in.res.Nodes = append(in.res.Nodes, node)
		in.draft.Nodes = append(in.draft.Nodes, config.DraftNode{
			Name: n.Name, Schematic: node.Schematic, VMID: int(n.VM.ID), Holder: int(n.Holder), Note: node.note(),
		})
	}
	in.draft.Left, in.res.Left = in.found.Left, in.found.Left
}

// described returns slot, size and owner of each disk.
func described(disks []cluster.Disk, holder cluster.VMID) []string {
	var out []string
	for _, d := range disks {
		text := d.Key + sized(d)
		if d.Owner != 0 && d.Owner == holder {
			text += fmt.Sprintf(" of VM %d", d.Owner)
		}
		out = append(out, text)
	}
	return out
}

// sized is the size of a disk after a space; "" if Proxmox does not show it.
func sized(d cluster.Disk) string {
	if size := d.Option("size"); size != "" {
		return " " + size
	}
	return ""
}

// Role is what the node does in the cluster.
func (n InitNode) Role() string {
	if n.ControlPlane {
		return "control plane"
	}
	return "worker"
}

// Disks describes which disk is replaced and which ones are kept.
func (n InitNode) Disks() string {
	text := "system disk " + n.SystemDisk
	switch {
	case n.SystemDisk == "" && len(n.Candidates) > 0:
		text = "system disk not proven: it is one of " + strings.Join(n.Candidates, ", ")
	case n.SystemDisk == "":
		text = "system disk not proven"
	}
	if len(n.Persistent) > 0 {
		text += ", persistent " + strings.Join(n.Persistent, ", ")
	}
	return text
}

func (n InitNode) note() string {
	return fmt.Sprintf("%s on %s, %s, %s", n.Role(), n.Host, n.Firmware, n.Disks())
}

// names lists the nodes for which a condition holds.
func (in *initial) names(is func(survey.Discovered) bool) []string {
	var out []string
	for _, n := range in.found.Nodes {
		if is(n) {
			out = append(out, n.Name)
		}
	}
	return out
}

// one returns the common value of all nodes. If they differ, one recast.yaml can't
// describe them.
func (in *initial) one(what string, of func(cluster.Machine) string) (string, error) {
	var values, parts []string
	for _, n := range in.found.Nodes {
		if v := of(n.Machine); !slices.Contains(values, v) {
			values = append(values, v)
			with := in.names(func(o survey.Discovered) bool { return of(o.Machine) == v })
			parts = append(parts, fmt.Sprintf("%s on %s", v, strings.Join(with, ", ")))
		}
	}
	if len(values) != 1 {
		return "", fault.WithHint(fault.Refusedf("the nodes differ in %s, but a recast.yaml has only one: %s", what, strings.Join(parts, "; ")),
			"use --exclude to leave out the nodes of one kind; run init again in another directory for those")
	}
	return values[0], nil
}
