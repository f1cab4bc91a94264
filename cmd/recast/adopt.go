package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline/adopt"
)

// adoptFlags are the flags of recast adopt.
type adoptFlags struct {
	adopt.Options
	file, to string
	out      string
}

func newAdoptCmd(s *streams) *cobra.Command {
	var f adoptFlags
	c := &cobra.Command{
		Use: "adopt", Short: "Write recast.yaml from what Terraform knows",
		Long: `Read what terraform show -json prints, find the VMs that are Talos nodes, and write
recast.yaml with their VMIDs, hosts and shapes (vmClasses), and the schematics of the
Talos provider. Also print the blocks that keep Terraform from undoing a roll, and what
each way costs. The state and a plan file are both read, of Terraform and of OpenTofu.
No server is asked, and Terraform's files are not touched.

Resources: proxmox_virtual_environment_vm of bpg/proxmox and proxmox_vm_qemu of
Telmate/proxmox, in modules too; roles, versions and the cluster's name are from
resources of siderolabs/talos. A VM is a Talos node if such a resource, its image, its
tags or its name say so; --only takes others.

What the JSON does not say is a question in a comment, with the command that answers
it. What recast.yaml can't be without has a flag, and all that is missing is reported
at once. recast init finds more than this, from the running cluster.`,
		Example: `  terraform show -json | recast adopt --terraform - --endpoint https://pve1.example:8006 \
    --iso-storage local --vmids 9000-9099
  recast adopt --terraform show.json --only module.prod --to prod
  recast adopt --terraform show.json --to - > recast.yaml`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return f.run(s) },
	}
	f.register(c)
	return c
}

func (f *adoptFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.file, "terraform", "", "`file` with what terraform show -json prints; -: standard input")
	c.Flags().StringVar(&f.to, "to", ".", "`directory` or .yaml file to write; -: recast.yaml to standard output")
	c.Flags().BoolVar(&f.Force, "force", false, "replace existing files")
	c.Flags().StringArrayVar(&f.Only, "only", nil, "take the VMs at or below this `address`, such as module.prod; may be given several times")
	c.Flags().StringVar(&f.Cluster, "cluster", "", "`name` of the cluster: with several in the JSON, the one to take")
	c.Flags().StringVar(&f.Talos, "talos-version", "", "Talos `version` that every node should run (default: that of the images)")
	c.Flags().StringVar(&f.Platform, "platform", "", "`platform` of the images: nocloud or metal (default: that of the images)")
	c.Flags().StringVar(&f.Schematic, "schematic", "", "schematic `file` for all nodes (default: those of talos_image_factory_schematic)")
	c.Flags().StringVar(&f.Factory, "factory", "", "`URL` of the Image Factory (default: that of the images, or https://factory.talos.dev)")
	c.Flags().StringVar(&f.Extensions, "extensions", "", "`registry` that lists the official extensions (default: ghcr.io/siderolabs)")
	c.Flags().StringSliceVar(&f.Endpoints, "endpoint", nil, "`URLs` of the Proxmox API (default: a constant in a plan's configuration)")
	c.Flags().StringVar(&f.Fingerprint, "fingerprint", "", "SHA-256 `fingerprint` of the API's certificate")
	c.Flags().StringVar(&f.CAFile, "ca-file", "", "PEM `file` with the CA of the API's certificate, relative to --to")
	c.Flags().StringSliceVar(&f.ISOStorage, "iso-storage", nil, "Proxmox `storages` for boot ISOs (default: the one that ISOs were downloaded to)")
	c.Flags().StringVar(&f.VMIDs, "vmids", "", "`range` of unused VMIDs for recast's own VMs, such as 9000-9099")
	outputFlag(c, &f.out, "text", "json")
}

func (f *adoptFlags) run(s *streams) error {
	if f.file == "" {
		return errUsage{errors.New("--terraform is missing: the file with what terraform show -json prints, or - for standard input")}
	}
	if f.to == "-" && f.out == "json" {
		return errUsage{errors.New("--to - prints recast.yaml: it goes without -o json")}
	}
	doc, err := readTerraform(s, f.file)
	if err != nil {
		return err
	}
	f.Dir, f.Name = filepath.Clean(f.to), "recast.yaml" // "": here
	switch ext := filepath.Ext(f.to); {
	case f.to == "-":
		f.Dir = ""
	case ext == ".yaml" || ext == ".yml":
		f.Dir, f.Name = filepath.Split(f.to)
		f.Dir = filepath.Clean(f.Dir)
	}
	for i, e := range f.Endpoints {
		if !strings.Contains(e, "://") {
			f.Endpoints[i] = "https://" + e
		}
	}
	f.Fingerprint = withColons(f.Fingerprint)
	res, err := adopt.Adopt(doc, f.Options)
	if err != nil {
		return err
	}
	if f.to != "-" {
		return ui.WriteAdopt(s.out, f.out, res)
	}
	for _, file := range res.Files[:len(res.Files)-1] {
		fmt.Fprintf(s.err, "not written: %s; --to DIR writes it\n", file.Name)
	}
	_, err = s.out.Write(res.Files[len(res.Files)-1].Content)
	return err
}
