// Package terraform reads the output of "terraform show -json", of a state or of a plan: the VMs of both Proxmox
// providers, what the Talos provider says about their machines, and what a plan would take away. OpenTofu prints the
// same.
package terraform

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
	"github.com/recast-sh/recast/internal/fault"
	"go.yaml.in/yaml/v4"
)

// Document is one output of "terraform show -json".
type Document struct {
	File       string
	Plan       bool
	VMs        []VM      // existing VMs, sorted by address
	Machines   []Machine // known to the Talos provider
	Images     []Image   // downloaded by Proxmox
	Schematics []Schematic
	Endpoints  []string // of the Proxmox API; only those that a plan has as constants
	Clusters   []string // names known to the Talos provider

	changes []*tfjson.ResourceChange
}

// how says how to make a file that recast can read.
const how = "terraform show -json > show.json prints the state; terraform plan -out plan.out && terraform show -json plan.out > plan.json a plan; tofu does the same"

// Read reads a state or a plan. It refuses a document that is incomplete or of an unknown format.
func Read(file string, text []byte) (*Document, error) {
	d, err := read(text)
	if err != nil {
		return nil, fault.WithHint(fault.Configf("%s: %w", file, err), "%s", how)
	}
	d.File = file
	return d, nil
}

func read(text []byte) (*Document, error) {
	var probe struct {
		Format  string          `json:"format_version"`
		Lineage string          `json:"lineage"`
		Level   string          `json:"@level"`
		Errored bool            `json:"errored"`
		Planned json.RawMessage `json:"planned_values"`
		Changes json.RawMessage `json:"resource_changes"`
		Values  json.RawMessage `json:"values"`
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	err := dec.Decode(&probe)
	switch {
	case probe.Level != "":
		return nil, errors.New("it is the log that terraform prints with -json, not the plan")
	case err != nil:
		return nil, errors.New("it is not JSON, or only a part of it") // the decoder's error may quote a secret
	case dec.More():
		return nil, errors.New("there is more than one JSON document in it")
	case probe.Lineage != "":
		return nil, errors.New("it is a state as Terraform stores it, whose format is Terraform's own")
	case probe.Format == "":
		return nil, errors.New("it has no format_version, so it is neither a state nor a plan")
	case probe.Errored:
		return nil, errors.New("it is a plan that failed half-way (errored), so it does not say all that would be done")
	case probe.Planned == nil && probe.Changes == nil && probe.Values == nil:
		return nil, errors.New("it is neither a plan nor a state with resources in it: it has no values, planned_values or resource_changes")
	}
	d := &Document{Plan: probe.Values == nil}
	state := &tfjson.State{}
	if d.Plan {
		var plan tfjson.Plan
		if err := json.Unmarshal(text, &plan); err != nil {
			return nil, unreadable(err)
		}
		if len(plan.DeferredChanges) > 0 {
			return nil, errors.New("it is a plan with deferred changes, so it does not say all that would be done: first " + plan.DeferredChanges[0].Reason)
		}
		d.changes, state = plan.ResourceChanges, cmp.Or(plan.PriorState, state)
		d.endpoints(plan.Config)
	} else if err := json.Unmarshal(text, state); err != nil {
		return nil, unreadable(err)
	}
	if state.Values != nil {
		if err := d.module(state.Values.RootModule); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(d.VMs, func(a, b VM) int { return strings.Compare(a.Address, b.Address) })
	slices.Sort(d.Clusters)
	d.Clusters = slices.Compact(d.Clusters)
	return d, nil
}

// unreadable returns an error of the decoder without the values that the error may quote.
func unreadable(err error) error {
	if e, is := errors.AsType[*json.UnmarshalTypeError](err); is {
		return errors.New("the field " + e.Field + " is of another type than Terraform documents")
	}
	return err
}

// module reads a module and the modules within it.
func (d *Document) module(m *tfjson.StateModule) error {
	if m == nil {
		return nil
	}
	for _, r := range m.Resources {
		if r.DeposedKey != "" {
			continue
		}
		v := values(r.AttributeValues)
		switch r.Type {
		case "proxmox_virtual_environment_download_file", "proxmox_download_file", "proxmox_storage_iso":
			d.Images = append(d.Images, imageOf(v))
		case "talos_image_factory_schematic":
			d.Schematics = append(d.Schematics, Schematic{Address: r.Address, ID: v.text("id"), YAML: v.text("schematic")})
		case "talos_machine_configuration_apply", "talos_machine", "talos_machine_configuration", "talos_machine_bootstrap", "talos_client_configuration":
			d.talos(r.Address, r.Type, v)
		default:
			if r.Mode == tfjson.ManagedResourceMode && isVM(r.Type) {
				vm, err := vmOf(r.Address, r.Type, v)
				if err != nil {
					return err
				}
				vm.Module, vm.Tainted = m.Address, r.Tainted
				d.VMs = append(d.VMs, vm)
			}
		}
	}
	for _, child := range m.ChildModules {
		if err := d.module(child); err != nil {
			return err
		}
	}
	return nil
}

// endpoints finds the URL of the Proxmox API, if it is a constant in the configuration.
func (d *Document) endpoints(c *tfjson.Config) {
	if c == nil {
		return
	}
	for _, p := range c.ProviderConfigs {
		for _, key := range []string{"endpoint", "pm_api_url"} {
			if e, is := p.Expressions[key]; is && e.ExpressionData != nil && p.Name == "proxmox" {
				if url, is := e.ConstantValue.(string); is {
					d.Endpoints = append(d.Endpoints, strings.TrimSuffix(strings.TrimRight(url, "/"), "/api2/json"))
				}
			}
		}
	}
	slices.Sort(d.Endpoints)
	d.Endpoints = slices.Compact(d.Endpoints)
}

// Machine is what the Talos provider says about one machine.
type Machine struct {
	Address  string // address of the resource
	Node     string // IP address or name; "": the resource is only a configuration
	Role     string // "control plane" or "worker"; "": not known
	Hostname string
	Cluster  string
	Image    string // installer in its configuration
	Omni     bool   // its configuration joins it to Omni
	Resets   bool   // destroying the resource resets the machine
}

// Of says whether the machine runs on the VM: they share an address or the name.
func (m Machine) Of(vm VM) bool {
	return m.Node != "" && (slices.Contains(vm.Addresses, m.Node) || m.Node == vm.Name) || m.Hostname != "" && m.Hostname == vm.Name
}

// Image is a file that Proxmox downloaded from a URL.
type Image struct {
	ID      string // the ID that VMs use: "local:iso/talos.iso"
	URL     string
	Storage string
	ISO     bool // the storage accepted it as content type "iso"
}

// Schematic is a resource that holds a schematic of an Image Factory.
type Schematic struct{ Address, ID, YAML string }

func imageOf(v values) Image {
	storage := v.text("datastore_id") + v.text("storage") // the two providers' names of the attribute
	im := Image{ID: v.text("id"), URL: v.text("url"), Storage: storage, ISO: v.text("content_type") == "iso"}
	if name := v.text("filename"); name != "" { // proxmox_storage_iso
		im.ID, im.ISO = storage+":iso/"+name, true
	}
	return im
}

// talos reads a resource or data source of the Talos provider.
func (d *Document) talos(address, kind string, v values) {
	m := Machine{Address: address, Node: v.text("node")}
	switch kind {
	case "talos_client_configuration":
		for _, node := range append(v.list("nodes"), v.list("endpoints")...) {
			d.Machines = append(d.Machines, Machine{Address: address, Node: node, Cluster: v.text("cluster_name")})
		}
		if name := v.text("cluster_name"); name != "" {
			d.Clusters = append(d.Clusters, name)
		}
		return
	case "talos_machine_bootstrap":
		m.Role = "control plane" // talosctl bootstrap refuses others
	default:
		m.Role, m.Cluster = roles[v.text("machine_type")], v.text("cluster_name")
		m.Image = v.text("image")
		for _, key := range []string{"machine_configuration_input", "machine_configuration"} { // the second attribute includes the patches
			m.configuration(v.text(key))
		}
		m.Resets = v.block("on_destroy").is("reset")
	}
	if m.Cluster != "" {
		d.Clusters = append(d.Clusters, m.Cluster)
	}
	d.Machines = append(d.Machines, m)
}

var roles = map[string]string{"controlplane": "control plane", "init": "control plane", "worker": "worker"}

// configuration reads facts from a machine configuration. It ignores a configuration that it can't read, and shows no
// error, which may quote a secret.
func (m *Machine) configuration(text string) {
	dec := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	for {
		var doc struct {
			Machine struct {
				Type    string                    `yaml:"type"`
				Install struct{ Image string }    `yaml:"install"`
				Network struct{ Hostname string } `yaml:"network"`
			} `yaml:"machine"`
			Cluster struct {
				Name string `yaml:"clusterName"`
			} `yaml:"cluster"`
			Kind     string `yaml:"kind"`
			Hostname string `yaml:"hostname"`
		}
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) || err != nil {
			return
		}
		set := func(field *string, value string) {
			if value != "" {
				*field = value
			}
		}
		set(&m.Role, roles[doc.Machine.Type])
		set(&m.Image, doc.Machine.Install.Image)
		set(&m.Hostname, doc.Machine.Network.Hostname)
		set(&m.Cluster, doc.Cluster.Name)
		m.Omni = m.Omni || doc.Kind == "SideroLinkConfig"
		if doc.Kind == "HostnameConfig" {
			set(&m.Hostname, doc.Hostname)
		}
	}
}

// Build holds what a URL or an installer of an Image Factory says about an image.
type Build struct {
	Factory, Schematic, Talos, Platform, Arch string // "": not known
	SecureBoot                                bool
}

var (
	factoryURL       = regexp.MustCompile(`^(https?://[^/]+)/image/([0-9a-f]{64})/(v\d+\.\d+\.\d+[^/]*)/([a-z0-9]+)-(amd64|arm64)(-secureboot)?\.`)
	factoryInstaller = regexp.MustCompile(`^([^/]+)/(?:([a-z0-9]+)-)?installer(-secureboot)?/([0-9a-f]{64}):(v\d+\.\d+\.\d+[^@]*)`)
)

// BuildOf reads the URL of an image, or the reference of an installer; false if the text is not of an Image Factory.
func BuildOf(text string) (Build, bool) {
	if m := factoryURL.FindStringSubmatch(text); m != nil {
		return Build{Factory: m[1], Schematic: m[2], Talos: m[3], Platform: m[4], Arch: m[5], SecureBoot: m[6] != ""}, true
	}
	if m := factoryInstaller.FindStringSubmatch(text); m != nil {
		return Build{Factory: "https://" + m[1], Platform: m[2], SecureBoot: m[3] != "", Schematic: m[4], Talos: m[5]}, true
	}
	return Build{}, false
}
