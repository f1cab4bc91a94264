// Package terraform reads what "terraform show -json" prints, of a state or of a plan: the VMs of both Proxmox
// providers, what the Talos provider says about their machines, and what a plan would take away. OpenTofu
// prints the same.
package terraform

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/recast-sh/recast/internal/fault"
)

// Document is one output of "terraform show -json".
type Document struct {
	File       string
	Plan       bool
	VMs        []VM      // that are there now, sorted by address
	Machines   []Machine // that the Talos provider knows
	Images     []Image   // files that Proxmox downloaded
	Schematics []Schematic
	Endpoints  []string // of the Proxmox API, as far as a plan has them as constants
	Clusters   []string // names that the Talos provider knows

	changes []*tfjson.ResourceChange
}

// how says how to make a file that can be read.
const how = "terraform show -json > show.json prints the state; terraform plan -out plan.out && terraform show -json plan.out > plan.json a plan; tofu does the same"

// Read reads a state or a plan. What is incomplete or unknown is refused.
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

// unreadable is an error of the decoder without the values that it may quote.
func unreadable(err error) error {
	if e, is := errors.AsType[*json.UnmarshalTypeError](err); is {
		return errors.New("the field " + e.Field + " is of another type than Terraform documents")
	}
	return err
}

// module reads a module and those in it.
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

// endpoints finds the URL of the Proxmox API where the configuration has it as a constant.
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
