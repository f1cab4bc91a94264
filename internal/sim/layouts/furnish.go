package layouts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/world"
)

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
		if err := o.add(ctx, lab); err != nil {
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

type object struct{ *unstructured.Unstructured }

func (l Layout) objects() ([]object, error) {
	var all []object
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
		all = append(all, object{u})
	}
}

// together are kinds that a group has wherever it has any.
var together = map[string][]string{"longhorn.io": {"Node", "Volume", "Replica", "Setting"}, "piraeus.io": {"LinstorCluster", "LinstorSatellite"}}

// add creates the object in the lab's Kubernetes, after its definition if it is a custom
// resource.
func (o object) add(ctx context.Context, lab *sim.Lab) error {
	gvk := o.GroupVersionKind()
	known := slices.IndexFunc(store.Resources(), func(r store.Resource) bool { return r.GVK() == gvk })
	if known < 0 {
		resource := func(kind string) store.Resource {
			return store.Resource{
				GroupVersionResource: gvk.GroupVersion().WithResource(strings.ToLower(kind) + "s"),
				Kind:                 kind, Namespaced: o.GetNamespace() != "", Status: true,
			}
		}
		for _, kind := range together[gvk.Group] {
			lab.Kube.Define(resource(kind))
		}
		r := resource(gvk.Kind)
		lab.Kube.Define(r)
		return create(ctx, lab, r.GroupVersionResource, o.Unstructured)
	}
	scheme, err := store.NewScheme()
	if err != nil {
		return err
	}
	typed, err := scheme.New(gvk)
	if err != nil {
		return err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, typed); err != nil {
		return err
	}
	return create(ctx, lab, store.Resources()[known].GroupVersionResource, typed.(store.Object))
}

func create(ctx context.Context, lab *sim.Lab, r schema.GroupVersionResource, o store.Object) error {
	_, err := lab.Kube.Store().Create(ctx, r, o)
	return err
}
