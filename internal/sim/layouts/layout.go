// Package layouts reads real users' clusters, each a [Layout] from a file with its public
// sources, and builds labs of them.
package layouts

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/world"
)

// Layout is one cluster.
type Layout struct {
	Name    string   `yaml:"-"` // of its file
	What    string   // one sentence
	Sources []string // URLs of what it was taken from
	Lacks   string   // what the lab lacks of it; "": nothing
	Node    string   // the one to roll; "": wk1

	Hosts, Workers int      // 0: one
	ControlPlanes  int      `yaml:"controlPlanes"` // the same
	Talos          string   // version; "": the lab's
	Platform       string   // of the images; "": nocloud
	KernelArgs     []string `yaml:"kernelArgs"` // of the images
	Network        Network
	Storages       []world.Storage
	ControlPlane   *Machine `yaml:"controlPlane"` // nil: the lab's own kind, like the next
	Worker         *Machine
	Others         map[int]*Machine // further VMs, by VMID: data VMs and the like
	Proxmox        Proxmox
	Kubernetes     string // objects, as YAML documents
	Recast         string // further settings of the node in recast.yaml: "holder: 9201"
	Lift           Lift
}

// Network is how the machines get their addresses.
type Network struct {
	// NoDHCP leaves out the DHCP server.
	NoDHCP bool `yaml:"noDHCP"`
}

// Machine is a VM with what is on it.
type Machine struct {
	Config    map[string]string // as qm create takes it, without generated values
	Documents string            // additional machine configuration documents
	Disks     map[string]Disk   // content of disks that Talos does not make, by key
}

// Disk is what is on a disk.
type Disk struct {
	Raw        string // content that is no partition table
	Partitions []artefact.Partition
}

// Proxmox is what Proxmox has in addition to VMs.
type Proxmox struct {
	Firewall    map[int]world.Firewall
	HA          []world.HAResource
	HARules     []world.HARule `yaml:"haRules"`
	Replication []world.ReplicationJob
	Backups     []struct {
		world.BackupJob `yaml:",inline"`
		In              time.Duration // time until its next run
	}
	ACL      []world.ACL
	Mappings []struct {
		Kind, ID string
		Hosts    []string
	}
	Devices   map[string]int64 // of the first host, in GiB
	ISOs      []string
	Snippets  []string
	Volumes   map[string]int64 // that belong to no existing VM, in GiB
	Snapshots map[int]string
}

// Lift is what a person does to make the node eligible for recreate.
type Lift struct {
	Commands []string // in the shell of a Proxmox host
	Config   string   // new setting in recast.yaml, followed by recast lock: "images.platform: nocloud"
	Recast   string   // new setting of the node in recast.yaml: "acceptLoss: [x]"
}

// Helps says whether there is anything to do.
func (l Lift) Helps() bool { return len(l.Commands) > 0 || l.Config != "" || l.Recast != "" }

// Load reads all layouts of a directory, by name.
func Load(dir string) ([]Layout, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("list layouts: %w", err)
	}
	var all []Layout
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read layout: %w", err)
		}
		l := Layout{Name: strings.TrimSuffix(filepath.Base(file), ".yaml"), Node: "wk1"}
		dec := yaml.NewDecoder(bytes.NewReader(b))
		dec.KnownFields(true)
		if err := dec.Decode(&l); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if l.What == "" || len(l.Sources) == 0 {
			return nil, fmt.Errorf("%s: what and sources are required", file)
		}
		all = append(all, l)
	}
	return all, nil
}

// Options are the lab's options for the layout.
func (l Layout) Options() sim.Options {
	o := sim.Options{
		Hosts: l.Hosts, ControlPlanes: cmp.Or(l.ControlPlanes, 1), Workers: cmp.Or(l.Workers, 1),
		TalosVersion: l.Talos, Platform: l.Platform, NoDHCP: l.Network.NoDHCP, KernelArgs: l.KernelArgs, VMs: map[string]sim.VM{}, Before: l.before,
	}
	for prefix, m := range map[string]*Machine{"cp": l.ControlPlane, "wk": l.Worker} {
		n := o.ControlPlanes
		if prefix == "wk" {
			n = max(o.Workers, 0)
		}
		for i := range n {
			if m != nil {
				o.VMs[fmt.Sprintf("%s%d", prefix, i+1)] = m.vm()
			}
		}
	}
	return o
}

func (m *Machine) vm() sim.VM {
	v := sim.VM{Config: m.Config, Content: map[string][]byte{}}
	for d := range strings.SplitSeq("\n"+m.Documents, "\n---\n") {
		if strings.TrimSpace(d) != "" {
			v.Documents = append(v.Documents, strings.TrimPrefix(d, "\n"))
		}
	}
	for key, d := range m.Disks {
		if v.Content[key] = []byte(d.Raw); d.Raw == "" {
			v.Content[key] = artefact.WriteDisk(artefact.Disk{Partitions: slices.Clone(d.Partitions)})
		}
	}
	return v
}

// Persistent are the keys of the node's disks that must outlive its system disk.
func Persistent(config map[string]string, system string) []string {
	var keys []string
	for key, value := range config {
		bus := strings.TrimRight(key, "0123456789")
		disk := bus != key && slices.Contains([]string{"scsi", "virtio", "sata", "ide", "tpmstate", "unused"}, bus)
		if disk && bus != "scsihw" && key != system && !strings.Contains(value, "media=cdrom") && !strings.Contains(value, "cloudinit") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

const firstHost = "pve1"

// Furnish adds the layout's Proxmox and Kubernetes objects to a running lab.
func (l Layout) Furnish(ctx context.Context, lab *sim.Lab) error {
	w, p := lab.World, l.Proxmox
	for id, f := range p.Firewall {
		w.SetFirewall(id, f)
	}
	for _, r := range p.HA {
		w.AddHA(r)
	}
	for _, r := range p.HARules {
		w.AddHARule(r)
	}
	for _, r := range p.Replication {
		w.AddReplication(r)
	}
	for _, b := range p.Backups {
		b.NextRun = time.Now().Add(b.In)
		w.AddBackupJob(b.BackupJob)
	}
	for _, a := range p.ACL {
		if !w.HasRole(a.Role) {
			w.AddRole(a.Role, "VM.Audit", "VM.Console", "VM.PowerMgmt")
		}
		w.Grant(a)
	}
	for id, name := range p.Snapshots {
		if err := w.AddSnapshot(id, world.Snapshot{Name: name}); err != nil {
			return err
		}
	}
	objects, err := l.objects()
	if err != nil {
		return fmt.Errorf("layout %s: %w", l.Name, err)
	}
	for _, o := range objects {
		if err := add(ctx, lab, o); err != nil {
			return fmt.Errorf("layout %s: add %s %s: %w", l.Name, o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// before adds what must exist before the nodes' VMs.
func (l Layout) before(w *world.World) error {
	for _, s := range l.Storages {
		w.AddStorage(s)
	}
	for _, m := range l.Proxmox.Mappings {
		w.AddMapping(m.Kind, m.ID, m.Hosts...)
	}
	for path, size := range l.Proxmox.Devices {
		w.AddDevice(firstHost, path, size<<30, world.NewMedia([]byte("what is on "+path)))
	}
	for _, volid := range l.Proxmox.ISOs {
		storage, name, _ := strings.Cut(volid, ":iso/")
		if err := w.AddISO(storage, firstHost, name, []byte("what is on "+volid)); err != nil {
			return err
		}
	}
	for _, volid := range l.Proxmox.Snippets {
		storage, name, _ := strings.Cut(volid, ":snippets/")
		if err := w.AddSnippet(storage, firstHost, name, []byte("what is in "+volid)); err != nil {
			return err
		}
	}
	for volid, size := range l.Proxmox.Volumes {
		storage, name, _ := strings.Cut(volid, ":")
		if err := w.AddLUN(storage, firstHost, name, size<<30, world.NewMedia([]byte("what is on "+volid))); err != nil {
			return err
		}
	}
	for id, m := range l.Others {
		vm, content := m.vm(), map[string]*world.Media{}
		for key, bytes := range vm.Content {
			content[key] = world.NewMedia(bytes)
		}
		if err := w.DefineVM(firstHost, id, vm.Config, content); err != nil {
			return err
		}
	}
	return nil
}

func (l Layout) objects() ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for dec := yaml.NewDecoder(bytes.NewReader([]byte(l.Kubernetes))); ; {
		var content map[string]any
		switch err := dec.Decode(&content); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("read its objects: %w", err)
		case content == nil:
			continue
		}
		b, err := json.Marshal(content)
		if err != nil {
			return nil, fmt.Errorf("read its objects: %w", err)
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(b); err != nil { // with an API's number types
			return nil, fmt.Errorf("read its objects: %w", err)
		}
		all = append(all, u)
	}
}

// together are kinds that a group has wherever it has any.
var together = map[string][]string{"longhorn.io": {"Node", "Volume", "Replica", "Setting"}, "piraeus.io": {"LinstorCluster", "LinstorSatellite"}}

// add creates the object in the lab's Kubernetes, after its definition if it is a custom resource.
func add(ctx context.Context, lab *sim.Lab, o *unstructured.Unstructured) error {
	gvk := o.GroupVersionKind()
	define := func(kind string) {
		lab.Kube.Define(store.Resource{
			GroupVersionResource: gvk.GroupVersion().WithResource(strings.ToLower(kind) + "s"),
			Kind:                 kind, Namespaced: o.GetNamespace() != "", Status: true,
		})
	}
	if !slices.ContainsFunc(store.Resources(), func(r store.Resource) bool { return r.GVK() == gvk }) {
		for _, kind := range append(slices.Clone(together[gvk.Group]), gvk.Kind) {
			define(kind)
		}
	}
	return lab.Kube.Plant(ctx, o)
}
