package pipeline

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
	"github.com/recast-sh/recast/cluster/discover"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
)

// InitSources is where Init looks.
type InitSources struct {
	Proxmox Hypervisor
	Talos   cluster.Talos
	Addrs   []netip.Addr // of machines that the talosconfig names
	Kube    cluster.Kube // nil: there is no way in
	// Load reads a configuration; Images makes the clients for one.
	Load   func(file string) (Project, error)
	Images func(p Project) (Images, error)
	// Ask puts a question to whoever has started this.
	Ask func(ctx context.Context, q Question) (string, error)
	Say func(text string) // told what is being looked at
}

// Question is what Init can't find out.
type Question struct {
	Text    string
	Choices []string // one of which is to be given; nil: any text
	Default string   // "": nothing is safe to take
	Flag    string   // that gives the answer: "--iso-storage"
	// Check says what is wrong with an answer; nil: nothing can be.
	Check func(answer string) error
}

// InitOptions are what is known beforehand.
type InitOptions struct {
	Dir         string
	Force       bool   // files that are there may be replaced
	Cluster     string // "": as Talos and Proxmox call it
	Context     string // of the talosconfig
	TalosConfig string // as the file is to name it; "": as the environment says
	Talos       string // version; "": that which runs
	Factory     string // "": that from which the nodes were installed
	Extensions  string
	ISOStorage  []string
	Endpoints   []string
	Fingerprint string
	CAFile      string
	VMIDs       string // "": a range that is free
	Exclude     []string
}

// InitResult is what was found and written.
type InitResult struct {
	Cluster    string          `json:"cluster"`
	Talos      string          `json:"talos"`
	Kubernetes string          `json:"kubernetes,omitempty"` // "": not known, or not the same everywhere
	Platform   string          `json:"platform"`
	Arch       string          `json:"arch"`
	Nodes      []InitNode      `json:"nodes"`
	Left       []string        `json:"left,omitempty"`
	Schematics []InitSchematic `json:"schematics"`
	Warnings   []string        `json:"warnings,omitempty"`
	Files      []string        `json:"files"`            // written, relative to Dir
	Secret     []string        `json:"secret,omitempty"` // those of Files that hold secrets: for their owner alone, and not to be committed
	Dir        string          `json:"dir"`
	Drift      []cluster.Drift `json:"drift"` // how the nodes stand to recast.lock
}

// InitNode is one node as it was found.
type InitNode struct {
	Name         string       `json:"name"`
	ControlPlane bool         `json:"controlPlane"`
	VMID         cluster.VMID `json:"vmid"`
	Host         string       `json:"host"`
	Firmware     string       `json:"firmware"` // "UEFI" or "BIOS"
	Schematic    string       `json:"schematic"`
	SystemDisk   string       `json:"systemDisk,omitempty"`      // "scsi0 32G"; "": it can't be proven
	Candidates   []string     `json:"systemDiskOneOf,omitempty"` // where it can't be proven
	Persistent   []string     `json:"persistent,omitempty"`      // "scsi1 100G", "scsi1 100G of VM 9201"; none where it can't be proven
	Holder       cluster.VMID `json:"holder,omitempty"`
}

// InitSchematic is one schematic that nodes run.
type InitSchematic struct {
	Name       string   `json:"name"`
	File       string   `json:"file"`
	Extensions []string `json:"extensions"`
	Nodes      []string `json:"nodes"`
}

// initial is an Init in progress.
type initial struct {
	InitOptions
	src        InitSources
	found      discover.Discovery
	containers []cluster.Container
	draft      config.Draft
	plans      []plannedSchematic
	res        InitResult
}

// Init finds a cluster and writes recast.yaml, its schematics and recast.lock, all of
// them or none. Nothing but these files changes.
func Init(ctx context.Context, src InitSources, o InitOptions) (InitResult, error) {
	in := &initial{InitOptions: o, src: src}
	if err := Vacant(o.Dir, o.Force); err != nil {
		return InitResult{}, err
	}
	if err := in.mayLook(ctx); err != nil {
		return InitResult{}, err
	}
	src.Say("looking for nodes and their VMs")
	kube := cluster.Sources{Proxmox: src.Proxmox, Talos: src.Talos, Kube: src.Kube}
	var err error
	in.found, err = discover.Discover(ctx, kube, discover.Options{Addrs: src.Addrs, Exclude: o.Exclude})
	if err != nil {
		return InitResult{}, err
	}
	for _, addr := range in.found.Silent {
		in.warn("no node answers at %s, which the talosconfig names: if there is one, it is not in recast.yaml", addr)
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

// mayLook refuses to believe a token that is not shown everything: Proxmox leaves out
// of its lists what a token may not see, and says nothing.
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
	return fault.WithHint(fault.Refusedf("the Proxmox token %s is not shown everything: it lacks %s", token, strings.Join(lacks, ", ")),
		"PVEAuditor lets it look, and nothing else; as root on a Proxmox node: pveum acl modify / --users %s --tokens '%s' --roles PVEAuditor", user, token)
}

// Vacant refuses to replace files that are there: recast.yaml and recast.lock, and others.
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
		"--dir writes elsewhere, where the two can be compared; --force replaces what is there")
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

// nodes says of each node what it is.
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
		in.res.Nodes = append(in.res.Nodes, node)
		in.draft.Nodes = append(in.draft.Nodes, config.DraftNode{
			Name: n.Name, Schematic: node.Schematic, VMID: int(n.VM.ID), Holder: int(n.Holder), Note: node.note(),
		})
	}
	in.draft.Left, in.res.Left = in.found.Left, in.found.Left
}

// described says of disks what they are called, how large they are, and whose.
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

// sized is the size of a disk behind a space; "" where Proxmox does not say.
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

// Disks says which disk is replaced and which are kept.
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

// names lists nodes of which something is so.
func (in *initial) names(is func(discover.Discovered) bool) []string {
	var out []string
	for _, n := range in.found.Nodes {
		if is(n) {
			out = append(out, n.Name)
		}
	}
	return out
}

// one is what all nodes have in common. Where they don't, one recast.yaml can't
// describe them.
func (in *initial) one(what string, of func(cluster.Machine) string) (string, error) {
	var values, parts []string
	for _, n := range in.found.Nodes {
		if v := of(n.Machine); !slices.Contains(values, v) {
			values = append(values, v)
			with := in.names(func(o discover.Discovered) bool { return of(o.Machine) == v })
			parts = append(parts, fmt.Sprintf("%s on %s", v, strings.Join(with, ", ")))
		}
	}
	if len(values) != 1 {
		return "", fault.WithHint(fault.Refusedf("the nodes differ in %s, of which a recast.yaml has one: %s", what, strings.Join(parts, "; ")),
			"--exclude leaves the nodes of one kind out; run it again in another directory for those")
	}
	return values[0], nil
}
