// Package setup is recast init: it looks at a running cluster and drafts recast.yaml and the
// schematics from what it finds. [Init] does all of it; [InitOptions] is what a person may say.
package setup

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/trust"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
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

// mayLook refuses a token that can't see everything: Proxmox silently leaves out of its lists what a token may not see.
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

func (in *initial) names(is func(survey.Discovered) bool) []string {
	return cluster.Each(cluster.Where(in.found.Nodes, is), func(n survey.Discovered) string { return n.Name })
}

// one returns the common value of all nodes. If the values differ, a single recast.yaml can't describe the nodes.
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

// sayable refuses what no recast.yaml can express, before the first question: it renders a recast.yaml from what is
// known so far, with valid values for the rest.
func (in *initial) sayable() error {
	talos := in.Talos
	if talos == "" {
		versions, err := in.found.Versions()
		if err != nil {
			return err
		}
		talos = versions[0]
	}
	d := config.Draft{
		Cluster: in.clusterName(), Talos: talos, Factory: cmp.Or(in.Factory, publicFactory),
		Extensions: cmp.Or(in.Extensions, publicExtensions), Platform: "nocloud", Arch: "amd64", ISOStorage: []string{"local"},
		Endpoints: in.Endpoints, Fingerprint: in.Fingerprint, CAFile: in.CAFile, VMIDs: config.VMIDRange{First: 9000, Last: 9099},
		Schematics: []config.DraftSchematic{{Name: "default", File: "schematics/default.yaml"}},
	}
	for _, n := range in.found.Nodes {
		d.Nodes = append(d.Nodes, config.DraftNode{Name: n.Name, Schematic: "default", VMID: int(n.VM.ID)})
	}
	_, err := d.Render()
	return in.otherwise(err)
}

// otherwise reports the problems of a file that was not written, each with the flag that
// changes the value. Positions in that file would not help.
func (in *initial) otherwise(err error) error {
	found, ok := errors.AsType[config.Problems](err)
	if !ok {
		return err
	}
	var problems []error
	for _, p := range found {
		problem := fault.Configf("the result of the search is not a valid recast.yaml: %s: %s", p.Path, p.Message)
		if in.fresh {
			problem = fault.Configf("the answers do not make a valid recast.yaml: %s: %s", p.Path, p.Message)
		}
		if hint := in.otherFlag(p.Path); hint != "" {
			problem = fault.WithHint(problem, "%s", hint)
		}
		problems = append(problems, problem)
	}
	return errors.Join(problems...)
}

func (in *initial) otherFlag(path string) string {
	var i int
	if _, err := fmt.Sscanf(path, "nodes[%d].name", &i); err == nil && i < len(in.found.Nodes) {
		if in.fresh {
			return "--prefix gives the nodes other names: lower-case letters, digits and '-'"
		}
		return "recast can't manage a node of that name: --exclude " + in.found.Nodes[i].Name + " leaves it out"
	}
	for _, known := range []struct{ path, hint string }{
		{"cluster", "--cluster gives it another name"},
		{"talos.version", "--talos-version gives another one"},
		{"talos.config", "--talosconfig names another one"},
		{"images.factory", "--factory gives another one"},
		{"images.extensions", "--extensions gives another one"},
		{"images.iso", "--iso-storage gives another one"},
		{"proxmox.endpoints", "--endpoint gives another one"},
		{"proxmox.fingerprint", "--fingerprint gives another one"},
		{"proxmox.caFile", "--ca-file gives another one"},
		{"proxmox.vmids", "--vmids gives other ones"},
		{"kubernetes.version", "--kubernetes-version gives another one"},
		{"talos.machineConfigs.render.endpoint", "--kubernetes-endpoint gives another one"},
		{"vmClasses", "--cores, --memory, --bridge, --storage, --system-disk and --data-disk give other VMs"},
	} {
		if strings.HasPrefix(path, known.path) {
			return known.hint
		}
	}
	return ""
}

func (in *newCluster) addressed(ctx context.Context) (err error) {
	need := len(in.found.Nodes)
	err = in.take(ctx, strings.Join(in.Addresses, ","), Question{
		Text: fmt.Sprintf("Which %d unused addresses may the nodes have, such as 10.0.0.11-10.0.0.%d/24? Control planes first:", need, 10+need),
		Flag: "--addresses",
		Check: func(answer string) (err error) {
			if in.prefixes, err = addressesOf(strings.Split(answer, ",")); err != nil {
				return err
			}
			return in.assignable()
		},
	})
	if err != nil {
		return err
	}
	return in.take(ctx, in.Gateway, Question{Text: fmt.Sprintf("What is the gateway of %s?", in.prefixes[0].Masked()), Flag: "--gateway", Check: in.isGateway})
}

// addressesOf reads addresses and ranges of addresses, each with the prefix length of its network.
func addressesOf(list []string) (out []netip.Prefix, err error) {
	for _, text := range list {
		addrs, bits, _ := strings.Cut(strings.TrimSpace(text), "/")
		first, last, isRange := strings.Cut(addrs, "-")
		if !isRange {
			last = first
		}
		from, errFrom := netip.ParsePrefix(first + "/" + bits)
		to, errTo := netip.ParsePrefix(last + "/" + bits)
		switch {
		case errFrom != nil || errTo != nil || !from.Addr().Is4():
			return nil, fault.Configf("%q is not an IPv4 address with its prefix length: write it like 10.0.0.11/24, and several in a row like 10.0.0.11-10.0.0.18/24", text)
		case from.Masked() != to.Masked():
			return nil, fault.Configf("%s: the two addresses are not in one network", text)
		case to.Addr().Less(from.Addr()):
			return nil, fault.Configf("%s runs backwards", text)
		case from.Addr() == from.Masked().Addr() && from.Bits() < 31 || to.Addr() == lastOf(to) && to.Bits() < 31:
			return nil, fault.Configf("%s has the first or the last address of its network, which no machine can have", text)
		}
		for addr := from.Addr(); !to.Addr().Less(addr) && len(out) < 1000; addr = addr.Next() {
			next := netip.PrefixFrom(addr, from.Bits())
			if slices.Contains(out, next) {
				return nil, fault.Configf("%s is there twice", addr)
			}
			out = append(out, next)
		}
	}
	return out, nil
}

// lastOf is the broadcast address of an IPv4 network.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|uint32(1<<(32-p.Bits())-1))
	return netip.AddrFrom4(b)
}

// assignable keeps as many addresses as there are nodes, and refuses an address that a VM has.
func (in *newCluster) assignable() error {
	need := len(in.found.Nodes)
	if len(in.prefixes) < need {
		return fault.WithHint(fault.Configf("there are %d addresses for %d nodes", len(in.prefixes), need), "--addresses: one for each control plane, then one for each worker")
	}
	in.prefixes = in.prefixes[:need]
	for _, p := range in.prefixes {
		if err := in.unused(p.Addr()); err != nil {
			return err
		}
	}
	return nil
}

// unused refuses an address that a VM has from its cloud-init drive. Other addresses can't be seen.
func (in *newCluster) unused(addr netip.Addr) error {
	for _, vm := range in.found.VMs {
		for key, value := range vm.Config {
			if !strings.HasPrefix(key, "ipconfig") {
				continue
			}
			for part := range strings.SplitSeq(value, ",") {
				if p, err := netip.ParsePrefix(strings.TrimPrefix(part, "ip=")); err == nil && p.Addr() == addr {
					return fault.Configf("%s is the address of %s, by its %s", addr, vm, key)
				}
			}
		}
	}
	return nil
}

func (in *newCluster) isGateway(text string) (err error) {
	if in.gateway, err = netip.ParseAddr(text); err != nil {
		return fault.Configf("%q is not the address of a gateway: write it like 10.0.0.1", text)
	}
	for i, p := range in.prefixes {
		switch {
		case !p.Masked().Contains(in.gateway):
			return fault.Configf("the gateway %s is not in %s, the network of %s", in.gateway, p.Masked(), in.found.Nodes[i].Name)
		case p.Addr() == in.gateway:
			return fault.Configf("%s is to be the address of %s and the gateway", in.gateway, in.found.Nodes[i].Name)
		}
	}
	return nil
}

func (in *newCluster) reached(ctx context.Context) error {
	controlPlanes := 0
	for _, n := range in.found.Nodes {
		if n.Machine.ControlPlane {
			controlPlanes++
		}
	}
	if in.VIP != "" {
		if err := in.isShared(in.VIP); err != nil {
			return err
		}
	}
	switch {
	case in.Endpoint != "":
		return in.isEndpoint(in.Endpoint)
	case in.VIP != "":
		return nil
	case controlPlanes == 1:
		in.Endpoint = endpoint(in.prefixes[0].Addr())
		return nil
	}
	return in.take(ctx, "", Question{
		Text: fmt.Sprintf("The Kubernetes API needs an address that does not go down with one of the %d control planes. Which unused address of %s may they share, or what is the https:// URL of your load balancer?", controlPlanes, in.prefixes[0].Masked()),
		Flag: "--vip or --kubernetes-endpoint",
		Check: func(answer string) error {
			if strings.Contains(answer, "://") {
				return in.isEndpoint(answer)
			}
			return in.isShared(answer)
		},
	})
}

func endpoint(addr netip.Addr) string { return "https://" + net.JoinHostPort(addr.String(), "6443") }

func (in *newCluster) isShared(text string) error {
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil || !in.prefixes[0].Masked().Contains(addr):
		return fault.Configf("%q is not an address of %s, the network of the control planes", text, in.prefixes[0].Masked())
	case addr == in.gateway || slices.ContainsFunc(in.prefixes, func(p netip.Prefix) bool { return p.Addr() == addr }):
		return fault.Configf("%s is that of the gateway or of a node: the control planes share another one", addr)
	}
	if err := in.unused(addr); err != nil {
		return err
	}
	if in.VIP = text; in.Endpoint == "" {
		in.Endpoint = endpoint(addr)
	}
	return nil
}

func (in *newCluster) isEndpoint(text string) error {
	if u, err := url.Parse(text); err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return fault.Configf("that is not the URL of a Kubernetes API: write it like https://k8s.example:6443")
	}
	in.Endpoint = text
	return nil
}

func (in *initial) images(ctx context.Context) (err error) {
	d := &in.draft
	versions, err := in.found.Versions()
	if err != nil {
		return err
	}
	if d.Talos = in.Talos; d.Talos == "" {
		if d.Talos, err = in.choose(ctx, "Versions of Talos that run here", "Which one should every node run?", "--talos-version", versions, versions[0]); err != nil {
			return err
		}
	}
	others := slices.DeleteFunc(slices.Clone(versions), func(v string) bool { return v == d.Talos })
	d.Others = strings.Join(others, ", ")
	for _, v := range others {
		on := in.names(func(n survey.Discovered) bool { return n.Machine.TalosVersion == v })
		in.warn("%s: Talos %s, not %s: drift reports that as stale, and a roll changes it", strings.Join(on, ", "), v, d.Talos)
	}
	if d.Platform, err = in.one("platform", func(m cluster.Machine) string { return m.Platform }); err != nil {
		return err
	}
	if d.Arch, err = in.one("architecture", func(m cluster.Machine) string { return m.Arch }); err != nil {
		return err
	}
	secure, err := in.one("Secure Boot", func(m cluster.Machine) string {
		return cluster.OnOff(m.SecureBoot != nil && *m.SecureBoot)
	})
	if err != nil {
		return err
	}
	if d.Platform != "nocloud" && d.Platform != "metal" {
		return fault.WithHint(fault.Refusedf("the nodes run images for the platform %q; recast builds only images for nocloud and metal", d.Platform),
			"a node changes its platform when it is recreated from another image: write recast.yaml by hand from examples/recast.yaml, and set images.platform")
	}
	d.SecureBoot = secure == "on"
	d.Kubernetes = in.kubernetes()
	in.cameFrom()
	in.res.Talos, in.res.Kubernetes, in.res.Platform, in.res.Arch = d.Talos, d.Kubernetes, d.Platform, d.Arch
	return nil
}

// kubernetes is the version that all nodes run; "" if they differ or it could not be read.
func (in *initial) kubernetes() string {
	read := cluster.Where(in.found.Nodes, func(n survey.Discovered) bool { return n.Node != nil })
	versions := cluster.Each(read, func(n survey.Discovered) string { return n.Node.KubeletVersion })
	slices.Sort(versions)
	versions = slices.Compact(versions)
	if len(versions) != 1 || cluster.CheckKubernetesVersion(versions[0]) != nil {
		return ""
	}
	return versions[0]
}

// factoryInstaller is an installer of an Image Factory: host, [platform-]installer[-secureboot], schematic.
var factoryInstaller = regexp.MustCompile(`^([^/]+)/(?:[a-z0-9]+-)?installer(?:-secureboot)?/[0-9a-f]{64}[:@]`)

// officialInstaller matches the installers that Sidero Labs publishes.
var officialInstaller = regexp.MustCompile(`^ghcr\.io/(siderolabs|talos-systems)/installer(-base)?[:@]`)

// Default sources of images and extensions.
const publicFactory, publicExtensions = "https://factory.talos.dev", "ghcr.io/siderolabs"

func (in *initial) cameFrom() {
	d := &in.draft
	var hosts, mirrors []string
	for _, n := range in.found.Nodes {
		image := n.Machine.InstallImage
		if m := factoryInstaller.FindStringSubmatch(image); m != nil {
			hosts = append(hosts, m[1])
		} else if image != "" && !officialInstaller.MatchString(image) {
			mirrors = append(mirrors, repository(image))
		}
	}
	d.Factory, d.Extensions = publicFactory, cmp.Or(in.Extensions, publicExtensions)
	if most := mostCommon(hosts); most != "" {
		d.Factory = "https://" + most
		if trust.Loopback(most) { // as container tools do, see go-containerregistry's name.Registry
			d.Factory = "http://" + most
		}
	}
	if in.Factory != "" {
		d.Factory = in.Factory
	}
	d.Mirror = mostCommon(mirrors)
}

func repository(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndex(ref, ":"); i > strings.LastIndex(ref, "/") {
		ref = ref[:i]
	}
	return ref
}

// mostCommon is the most frequent value, the first of several; "" for none.
func mostCommon(list []string) string {
	best, most := "", 0
	for _, s := range list {
		n := 0
		for _, o := range list {
			if o == s {
				n++
			}
		}
		if n > most {
			best, most = s, n
		}
	}
	return best
}

func (in *initial) proxmox(ctx context.Context) (err error) {
	d := &in.draft
	d.Endpoints, d.Fingerprint, d.CAFile = in.Endpoints, in.Fingerprint, in.CAFile
	d.TalosConfig = in.TalosConfig
	d.Cluster = in.clusterName()
	in.res.Cluster = d.Cluster
	if len(d.Endpoints) == 1 {
		hosts, err := in.src.Proxmox.Hosts(ctx)
		if err != nil {
			return fmt.Errorf("list the Proxmox nodes: %w", err)
		}
		for _, h := range hosts {
			if !h.Entry {
				d.Hosts = append(d.Hosts, h.Name)
			}
		}
	}
	if d.ISOStorage, err = in.isoStorage(ctx); err != nil {
		return err
	}
	return in.vmids(ctx)
}

func (in *initial) clusterName() string {
	return cmp.Or(in.Cluster, in.found.Cluster, clusterName(in.Context))
}

// clusterName derives the name of a cluster from a talosconfig's context, which talosctl
// gen config names after the cluster, and other tools after the user too.
func clusterName(context string) string {
	name := context[strings.LastIndex(context, "@")+1:]
	name = strings.Trim(regexp.MustCompile(`[^A-Za-z0-9._-]+`).ReplaceAllString(name, "-"), "-._")
	return cmp.Or(name[:min(len(name), 63)], "talos")
}

func (in *initial) isoStorage(ctx context.Context) ([]string, error) {
	for _, storage := range in.ISOStorage {
		takes, err := in.takes(ctx, storage, "iso")
		switch {
		case err != nil:
			return nil, err
		case !takes:
			return nil, fault.WithHint(fault.Refusedf("storage %s does not take ISOs on every Proxmox node with nodes of the cluster (%s)", storage, strings.Join(in.hosts(), ", ")),
				"see pvesm status there: it must be active and have the content type iso; the token needs Datastore.Audit on /storage/%s to see it", storage)
		}
	}
	if len(in.ISOStorage) > 0 {
		return in.ISOStorage, nil
	}
	names, shared, err := in.taking(ctx, "iso")
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fault.WithHint(fault.Refusedf("no storage takes ISOs on every Proxmox node with nodes of the cluster (%s)", strings.Join(in.hosts(), ", ")),
			"add the content type iso to one: pvesm set STORAGE --content iso,…; the token needs Datastore.Audit on /storage to see it")
	}
	fallback := "" // a shared storage needs each ISO only once
	if len(shared) == 1 {
		fallback = shared[0]
	}
	name, err := in.choose(ctx, "Storages that accept ISOs", "Where should recast store the boot ISOs?", "--iso-storage", names, fallback)
	return []string{name}, err
}

// taking lists the storages that accept a type of content on every host with nodes, and those of them that are shared.
func (in *initial) taking(ctx context.Context, content string) (names, shared []string, err error) {
	storages, err := in.src.Proxmox.Storages(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list the storages: %w", err)
	}
	for _, s := range storages {
		takes, err := in.takes(ctx, s.Name, content)
		if err != nil {
			return nil, nil, err
		}
		if takes && s.Shared {
			shared = append(shared, s.Name)
		}
		if takes {
			names = append(names, s.Name)
		}
	}
	return names, shared, nil
}

func (in *initial) takes(ctx context.Context, storage, content string) (bool, error) {
	for _, host := range in.hosts() {
		info, err := in.src.Proxmox.Storage(ctx, host, storage)
		switch {
		case errors.Is(err, images.ErrNoStorage):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("read storage %s on %s: %w", storage, host, err)
		case !info.Active || !slices.Contains(info.Content, content):
			return false, nil
		}
	}
	return true, nil
}

func (in *initial) hosts() []string {
	out := cluster.Each(in.found.Nodes, func(n survey.Discovered) string { return n.VM.Host })
	slices.Sort(out)
	return slices.Compact(out)
}

func (in *initial) choose(ctx context.Context, what, text, flag string, choices []string, fallback string) (string, error) {
	if len(choices) == 1 {
		return choices[0], nil
	}
	return in.src.Ask(ctx, Question{Text: what + ": " + strings.Join(choices, ", ") + ". " + text, Choices: choices, Default: fallback, Flag: flag})
}

type plannedSchematic struct {
	schematics.Schematic
	name    string
	nodes   []survey.Discovered
	guessed bool // from the extensions, since no node shows it
	fresh   bool // of nodes that are not there yet
}

func (in *initial) schematics(ctx context.Context) error {
	for _, n := range in.found.Nodes {
		s, guessed, err := in.schematicRun(ctx, n)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(in.plans, func(p plannedSchematic) bool { return p.Canonical() == s.Canonical() })
		if i < 0 {
			in.plans, i = append(in.plans, plannedSchematic{Schematic: s}), len(in.plans)
		}
		p := &in.plans[i]
		p.nodes, p.guessed = append(p.nodes, n), p.guessed || guessed
	}
	nameSchematics(in.plans)
	for _, p := range in.plans {
		res := InitSchematic{Name: p.name, File: p.file(), Extensions: shortNames(p.Extensions()), Nodes: p.nodeNames()}
		in.res.Schematics = append(in.res.Schematics, res)
		in.draft.Schematics = append(in.draft.Schematics, config.DraftSchematic{Name: p.name, File: p.file(), Nodes: res.Nodes})
		if p.guessed {
			in.warn("%s: the image of %s contains no schematic, so the file was written from the listed extensions: add the kernel arguments that it was built with, if any",
				p.file(), strings.Join(res.Nodes, ", "))
		}
		if secrets := p.Secrets(); len(secrets) > 0 {
			in.warn("%s and recast.lock hold secrets, as the image of %s does (%s): commit neither; first remove the secrets from the schematic, then run recast lock",
				p.file(), strings.Join(res.Nodes, ", "), strings.Join(secrets, ", "))
			in.res.Secret = append(in.res.Secret, p.file())
		}
	}
	if len(in.res.Secret) > 0 {
		in.res.Secret = append([]string{"recast.lock"}, in.res.Secret...)
	}
	return nil
}

// schematicRun is the schematic that a node runs, without recast's own kernel argument.
func (in *initial) schematicRun(ctx context.Context, n survey.Discovered) (s schematics.Schematic, guessed bool, err error) {
	if text := n.Machine.Schematic.YAML; text != "" {
		s, err = schematics.Unlocked("the schematic of "+n.Name, []byte(text))
		return s, false, fault.WithHint(err, "it may come from an Image Factory that is too new for this recast: check for a newer recast, or leave the node out: --exclude %s", n.Name)
	}
	im, err := in.src.Images(pipeline.Project{Config: &config.Config{Cluster: in.draft.Cluster, Images: config.Images{Factory: in.draft.Factory, Extensions: in.draft.Extensions}}})
	if err != nil {
		return s, false, err
	}
	official, err := im.Catalog.Official(ctx, in.draft.Talos)
	if err != nil {
		return s, false, fmt.Errorf("list the official extensions for Talos %s: %w", in.draft.Talos, err)
	}
	listed := cluster.Each(n.Machine.Extensions, func(x cluster.ExtensionEntry) string { return x.Name })
	s, _, err = schematics.Guess("the schematic of "+n.Name, listed, official)
	return s, true, err
}

func (in *initial) schematicOf(node string) string {
	for _, p := range in.plans {
		if slices.Contains(p.nodeNames(), node) {
			return p.name
		}
	}
	return ""
}

func (p plannedSchematic) file() string { return "schematics/" + p.name + ".yaml" }

func (p plannedSchematic) nodeNames() []string {
	return cluster.Each(p.nodes, func(n survey.Discovered) string { return n.Name })
}

// content is the file: what a factory would store, with a comment about its origin.
func (p plannedSchematic) content() string {
	if p.fresh {
		return "# Image Factory format: anyone can post it to a factory. After a change: recast lock.\n" + p.Canonical()
	}
	return "# Image Factory format: anyone can post it to a factory. recast init wrote it from what\n# these nodes run: " +
		strings.Join(p.nodeNames(), ", ") + "\n" + p.Canonical()
}

// nameSchematics names each schematic after the nodes that run it, or, if that name is not unique, after an extension
// that only this schematic has.
func nameSchematics(plans []plannedSchematic) {
	if len(plans) == 1 {
		plans[0].name = "default"
		return
	}
	taken := map[string]int{}
	for i := range plans {
		plans[i].name = plans[i].kind()
		taken[plans[i].name]++
	}
	used := map[string]bool{}
	for i := range plans {
		p := &plans[i]
		if taken[p.name] > 1 {
			if own := p.ownExtension(plans); own != "" {
				p.name += "-" + own
			}
		}
		base := p.name
		for n := 2; used[p.name]; n++ {
			p.name = fmt.Sprintf("%s-%d", base, n)
		}
		used[p.name] = true
	}
}

// kind is the role of its nodes: "control-plane", "worker", or "default" for both.
func (p plannedSchematic) kind() string {
	workers := 0
	for _, n := range p.nodes {
		if !n.Machine.ControlPlane {
			workers++
		}
	}
	switch workers {
	case 0:
		return "control-plane"
	case len(p.nodes):
		return "worker"
	}
	return "default"
}

// ownExtension is the first extension that no other schematic has; "" if there is none.
func (p plannedSchematic) ownExtension(all []plannedSchematic) string {
	for _, x := range p.Extensions() {
		if !slices.ContainsFunc(all, func(o plannedSchematic) bool {
			return o.Canonical() != p.Canonical() && slices.Contains(o.Extensions(), x)
		}) {
			return path.Base(x)
		}
	}
	return ""
}

func shortNames(extensions []string) []string {
	return append([]string{}, cluster.Each(extensions, path.Base)...)
}
