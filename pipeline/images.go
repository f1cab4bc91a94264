package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

type LockOptions struct {
	Update bool // take the digests that the registry has now
	Check  bool // write nothing, only report what would change
	// Rebuild names schematics to build again with the same content, under another ID.
	Rebuild []string
	// Say is called with what is checked next. May be nil.
	Say func(text string)
}

// LockResult is the result of Lock.
type LockResult struct {
	Lock     schematics.Lock      `json:"lock"`
	Differs  bool                 `json:"differs"` // from the previous recast.lock, even if no build differs
	Changes  []LockChange         `json:"changes"`
	Warnings []schematics.Warning `json:"warnings,omitempty"`
	Written  bool                 `json:"written"`
	Newest   bool                 `json:"newest"` // newer digests were looked for
}

// LockChange is a schematic whose image changes, and the nodes that should run it, which become stale.
type LockChange struct {
	schematics.Change
	Nodes []string `json:"nodes"`
}

// Lock resolves the configured schematics to digests and writes recast.lock. The replaced lock is kept in
// .recast/locks, so that drift can name the digests that nodes still run.
func Lock(ctx context.Context, p Project, c Images, o LockOptions) (LockResult, error) {
	req, err := request(p.Config)
	if err != nil {
		return LockResult{}, err
	}
	if err := rebuild(req.Files, o.Rebuild); err != nil {
		return LockResult{}, err
	}
	req.Update, req.Note = o.Update || o.Check, o.Say
	old, err := schematics.ReadLock(p.LockFile())
	switch {
	case err == nil:
		req.Old = &old
	case !errors.Is(err, fs.ErrNotExist):
		return LockResult{}, err
	}
	lock, warnings, err := schematics.Resolve(ctx, req, schematics.Sources{Catalog: c.Catalog, Images: c.Registry, Factory: c.Factory})
	if err != nil {
		return LockResult{}, err
	}
	res := LockResult{Lock: lock, Newest: req.Update, Differs: old.Checksum != lock.Checksum, Changes: changes(p.Config.Nodes, old, lock), Warnings: warnings}
	if o.Check || !res.Differs {
		return res, nil
	}
	if req.Old != nil {
		if err := journal.KeepOutOfGit(p.State()); err != nil {
			return res, err
		}
		if err := schematics.Archive(p.Locks().Dir, old); err != nil {
			return res, err
		}
	}
	if err := schematics.ReplaceLock(p.LockFile(), old, lock); err != nil {
		return res, err
	}
	res.Written = true
	return res, nil
}

// rebuild marks the schematics to build again.
func rebuild(files map[string]schematics.File, names []string) error {
	for _, name := range names {
		f, ok := files[name]
		if !ok {
			return fault.WithHint(fault.Configf("no schematic %q to rebuild", name),
				"the schematics are: %s", strings.Join(slices.Sorted(maps.Keys(files)), ", "))
		}
		f.Rebuild = true
		files[name] = f
	}
	return nil
}

// changes returns the differences between two locks, with the nodes that they concern.
func changes(nodes []config.Node, before, after schematics.Lock) []LockChange {
	list := []LockChange{}
	for _, c := range schematics.Compare(before, after) {
		change := LockChange{Change: c, Nodes: []string{}}
		for _, n := range nodes {
			if n.Schematic == c.Schematic {
				change.Nodes = append(change.Nodes, n.Name)
			}
		}
		list = append(list, change)
	}
	return list
}

// request reads the configured schematic files.
func request(c *config.Config) (schematics.Request, error) {
	req := schematics.Request{
		Talos: c.Talos.Version, TalosPlace: placed(c, "talos.version"), Arch: c.Images.Arch, Platform: c.Images.Platform, SecureBoot: c.Images.SecureBoot,
		Files: map[string]schematics.File{},
	}
	var problems []error
	for name, s := range c.Schematics {
		data, err := os.ReadFile(s.Path)
		if err != nil {
			problems = append(problems, fault.Configf("schematic %s: %w", name, err))
			continue
		}
		req.Files[name] = schematics.File{
			Path: s.File, Data: data, Extensions: explicit(c, name), Imager: c.Images.BuilderOf(s) == config.BuilderImager,
		}
	}
	if err := errors.Join(problems...); err != nil {
		return schematics.Request{}, fmt.Errorf("%s: %w", c.Place("schematics"), err)
	}
	return req, nil
}

// explicit returns the extensions that the configuration adds to a schematic's file.
func explicit(c *config.Config, schematic string) []schematics.Explicit {
	var list []schematics.Explicit
	for i, ref := range c.Schematics[schematic].Extensions {
		list = append(list, schematics.Explicit{
			Repository: ref.Repository, Tag: ref.Tag, Digest: ref.Digest, Place: placed(c, fmt.Sprintf("schematics.%s.extensions[%d]", schematic, i)),
		})
	}
	return list
}

// placed is a path in the configuration, prefixed with its position.
func placed(c *config.Config, path string) string { return c.Place(path) + ": " + path }

// Build builds the installer, the boot ISO and, if machines may boot from it, the disk image of every schematic of
// the lock, compares their contents with the lock, and records their digests in it.
func Build(ctx context.Context, p Project, c Images, run *step.Runner) (schematics.Lock, error) {
	lock, err := p.Lock()
	if err != nil {
		return schematics.Lock{}, err
	}
	w := newWorkshop(p, lock, c, run)
	return w.build(ctx, w.hasDisk, nil)
}

// workshop builds and publishes the images of one lock.
type workshop struct {
	Project
	images Images
	run    *step.Runner
	ledger *images.Ledger
	cache  *images.Cache
}

func newWorkshop(p Project, lock schematics.Lock, c Images, run *step.Runner) workshop {
	return workshop{Project: p, images: c, run: run, ledger: images.NewLedger(lock, saver(p.LockFile(), lock)), cache: images.NewCache(p.isoCache())}
}

// saver returns a function that writes the lock to a file after each new record.
func saver(file string, was schematics.Lock) func(schematics.Lock) error {
	return func(l schematics.Lock) error {
		if err := schematics.ReplaceLock(file, was, l); err != nil {
			return err
		}
		was = l
		return nil
	}
}

func (w workshop) build(ctx context.Context, disk func(string) bool, published func(context.Context, images.Artefact, string) (string, error)) (schematics.Lock, error) {
	if err := journal.KeepOutOfGit(w.State()); err != nil {
		return w.ledger.Lock(), err
	}
	for _, name := range w.ledger.Lock().Names() {
		if why := w.Project.build(w.ledger.Lock(), name).NoDisk; why != "" {
			w.run.Note("build/"+name, "no disk image of it is made: "+why)
		}
	}
	verifier := verify.New(w.images.Registry, w.isoCache())
	b := images.Builder{
		Factory: w.images.Factory, Registry: w.images.Registry, Puller: w.images.Registry, Verifier: verifier, Signature: w.signature(),
		Cache: w.cache, Ledger: w.ledger, ByImager: w.imager(), Mirror: w.Config.Images.Mirror, Disk: disk, Published: published, Note: w.run.Note,
	}
	err := w.run.Run(ctx, b.Step())
	return w.ledger.Lock(), errors.Join(err, verifier.Close())
}

// signature is the configured policy for signatures of installers.
func (w workshop) signature() images.SignaturePolicy {
	p := images.SignaturePolicy{Mode: images.SignatureMode(w.Config.Images.Signature)}
	if file := w.Config.Images.SigningKey; file != "" {
		p.Key = func() ([]byte, error) { return os.ReadFile(file) }
	}
	return p
}

func (w workshop) publish(ctx context.Context, store images.Store, hosts map[string][]string) (schematics.Lock, error) {
	isos := images.Publisher{
		Store: store, Factory: w.images.Factory, Cache: w.cache, Ledger: w.ledger, Storages: w.Config.Images.ISO.Storage, Hosts: hosts,
		Delivery: images.Delivery(w.Config.Images.ISO.Delivery), ByImager: w.ByImager, Note: w.run.Note,
	}
	disks := isos
	disks.Of = images.DiskImage
	disks.Hosts = maps.Clone(hosts)
	maps.DeleteFunc(disks.Hosts, func(name string, _ []string) bool { return !w.hasDisk(name) })
	usable, why, err := images.DiskHosts(ctx, store, w.Config.Images.Disk.Storage, disks.Hosts, w.Config.Images.Boot == config.BootDisk)
	if err != nil {
		return w.ledger.Lock(), err
	}
	disks.Storages = usable
	for _, reason := range why {
		w.run.Note("publish-disks", fmt.Sprintf("machines boot the ISO there: %v", reason))
	}
	hasDisk := func(schematic string) bool { return len(disks.Hosts[schematic]) > 0 }
	published := func(ctx context.Context, of images.Artefact, schematic string) (string, error) {
		if of == images.DiskImage {
			return disks.Published(ctx, schematic)
		}
		return isos.Published(ctx, schematic)
	}
	if lock, err := w.build(ctx, hasDisk, published); err != nil {
		return lock, err
	}
	if err := w.mirror(ctx); err != nil {
		return w.ledger.Lock(), err
	}
	err = w.run.Run(ctx, isos.Step())
	if err == nil && len(disks.Hosts) > 0 {
		err = w.run.Run(ctx, disks.Step())
	}
	return w.ledger.Lock(), err
}

// hasDisk reports whether new machines of a schematic may boot its disk image.
func (w workshop) hasDisk(schematic string) bool {
	return w.Project.build(w.ledger.Lock(), schematic).DiskName != ""
}

// dropUnusable clears the disk storages of nodes whose hosts see no usable storage for disk images.
func (p Project) dropUnusable(ctx context.Context, store images.Storages, wanted []cluster.Wanted, o observe.Observation) error {
	if p.Config.Images.Boot != config.BootAuto {
		return nil
	}
	var hosts []string
	for _, f := range o.Found {
		if f.VM != nil && !slices.Contains(hosts, f.VM.Host) {
			hosts = append(hosts, f.VM.Host)
		}
	}
	usable, served, _, err := images.Usable(ctx, store, images.DiskImage, p.Config.Images.Disk.Storage, hosts)
	for i, f := range o.Found {
		if wanted[i].DiskStorages = usable; f.VM == nil || !slices.Contains(served, f.VM.Host) {
			wanted[i].DiskStorages = nil
		}
	}
	return err
}

// mirror runs before the ISOs: a boot ISO does not help a node that can't pull its installer.
func (w workshop) mirror(ctx context.Context) error {
	if w.Config.Images.Mirror == "" {
		return nil
	}
	m := images.Mirror{Copier: w.images.Registry, Ledger: w.ledger, Repository: w.Config.Images.Mirror, Note: w.run.Note}
	return w.run.Run(ctx, m.Step())
}

// imager configures builds with the imager. Its directory is below the project's: Docker
// Desktop and similar tools mount only directories in the user's home.
func (w workshop) imager() images.ImagerBuilder {
	return images.ImagerBuilder{
		Builds: w.ByImager, Imager: w.images.Imager, Archives: w.images.Registry, Copier: w.images.Registry,
		Base: w.Config.Images.Extensions + "/installer-base", Scratch: filepath.Join(w.cacheDir(), "imager"),
	}
}

// PublishSources are the clients for Publish: to find the hosts that need an ISO, and to store it.
type PublishSources struct {
	Proxmox interface {
		cluster.Access
		cluster.Inventory
		images.Store
	}
	// Nodes lists the Node objects. It is called only if a node has no VMID.
	Nodes func(ctx context.Context) ([]cluster.KubeNode, error)
}

// Publish mirrors the installers, if a mirror is configured, and copies the boot ISOs to
// every storage that the nodes' hosts need. It first builds what is not built yet.
func Publish(ctx context.Context, p Project, c Images, src PublishSources, run *step.Runner) (schematics.Lock, error) {
	lock, err := p.Lock()
	if err != nil {
		return schematics.Lock{}, err
	}
	// Proxmox receives a whole upload before it reports that the upload is not allowed.
	if err := survey.NeedsToPublish(p.Config.Images.ISO.Storage, p.Config.Images.Disk.Storage).Check(ctx, src.Proxmox); err != nil {
		return schematics.Lock{}, err
	}
	hosts, err := isoHosts(ctx, p, src)
	if err != nil {
		return schematics.Lock{}, err
	}
	return newWorkshop(p, lock, c, run).publish(ctx, src.Proxmox, hosts)
}

// isoHosts returns for each schematic the Proxmox nodes that have VMs with it. A VM that
// can't be read because its host is down gets no ISO.
func isoHosts(ctx context.Context, p Project, src PublishSources) (map[string][]string, error) {
	uuids, err := nodeUUIDs(ctx, p, src)
	if err != nil {
		return nil, err
	}
	vms, err := src.Proxmox.VMs(ctx)
	_, away := errors.AsType[*cluster.HostsAway](err)
	if err != nil && !away {
		return nil, fmt.Errorf("read Proxmox: %w", err)
	}
	parked, err := parking.Parkings(vms, p.Config.Cluster)
	if err != nil {
		return nil, err
	}
	hosts := map[string][]string{}
	var problems []error
	for _, n := range p.Config.Nodes {
		vm := slices.IndexFunc(vms, func(vm cluster.VM) bool {
			return n.VMID != 0 && vm.ID == cluster.VMID(n.VMID) || n.VMID == 0 && uuids[n.Name] != "" && vm.UUID() == uuids[n.Name]
		})
		// An unfinished replacement may have deleted the VM. It will be created on the same host again.
		open := slices.IndexFunc(parked, func(k parking.Parking) bool { return k.Record.Open && k.Record.Node == n.Name })
		switch {
		case open >= 0:
			hosts[n.Schematic] = append(hosts[n.Schematic], parked[open].VM.Host)
		case vm >= 0:
			hosts[n.Schematic] = append(hosts[n.Schematic], vms[vm].Host)
		case n.Host != "": // the VM will be created there
			hosts[n.Schematic] = append(hosts[n.Schematic], n.Host)
		case !away:
			problems = append(problems, noVM(n, uuids[n.Name]))
		}
	}
	return hosts, errors.Join(problems...)
}

// nodeUUIDs returns the UUIDs of the nodes' VMs from Kubernetes; none if every node has a VMID or a host.
func nodeUUIDs(ctx context.Context, p Project, src PublishSources) (map[string]string, error) {
	if !slices.ContainsFunc(p.Config.Nodes, func(n config.Node) bool { return n.VMID == 0 && n.Host == "" }) {
		return nil, nil
	}
	nodes, err := src.Nodes(ctx)
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("find the VMs of nodes without a VMID: %w", err), "or set the vmid of every node in recast.yaml: then Kubernetes is not needed")
	}
	uuids := map[string]string{}
	for _, n := range nodes {
		uuids[n.Name] = n.UUID
	}
	return uuids, nil
}

func noVM(n config.Node, uuid string) error {
	what := fmt.Sprintf("Proxmox shows no VM %d", n.VMID)
	switch {
	case n.VMID == 0 && uuid == "":
		what = "Kubernetes has no node of that name"
	case n.VMID == 0:
		what = "Proxmox shows no VM with its SMBIOS UUID " + uuid
	}
	return fault.WithHint(fault.Configf("node %s: %s", n.Name, what),
		"nodes[].name is the Kubernetes node name, nodes[].vmid the number of its VM; the token needs VM.Audit to see VMs")
}
