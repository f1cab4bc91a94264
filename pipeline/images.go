package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/prune"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/trust"
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
	if u, err := url.Parse(p.Config.Images.Factory); err == nil && u.Scheme == "http" && !trust.Loopback(u.Host) {
		warnings = append(warnings, schematics.Warning{
			Kind: schematics.PlainHTTP, Subject: p.Config.Images.Factory,
			Text: placed(p.Config, "images.factory") + ": " + p.Config.Images.Factory + " has no TLS: whoever is on the way can change what it answers, also the key that signs its installers",
			Hint: "give the factory a certificate and write https://; images.caFile names your own CAs",
		})
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

func request(c *config.Config) (schematics.Request, error) {
	req := schematics.Request{
		Talos: c.Talos.Version, TalosPlace: placed(c, "talos.version"), Arch: c.Images.Arch, Platform: c.Images.Platform, SecureBoot: c.Images.SecureBoot,
		Files: map[string]schematics.File{}, Imager: imagerOf(c),
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

// imagerOf returns the repositories of what the imager's builds are made with.
func imagerOf(c *config.Config) schematics.Imager {
	i := schematics.Imager{Image: c.Images.Imager.Image, Base: c.Images.Extensions + "/installer-base"}
	if len(c.Images.Imager.Command) > 0 {
		i.Image = ""
	}
	return i
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

type workshop struct {
	Project
	images Images
	run    *step.Runner
	ledger *images.Ledger
	cache  *images.Cache
}

func newWorkshop(p Project, lock schematics.Lock, c Images, run *step.Runner) workshop {
	all := lock.Clone()
	all.AdoptUploads(p.Locks().Shared())
	return workshop{Project: p, images: c, run: run, ledger: images.NewLedger(all, saver(p.LockFile(), lock)), cache: images.NewCache(p.isoCache())}
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

func (w workshop) signature() images.SignaturePolicy {
	p := images.SignaturePolicy{Mode: images.SignatureMode(w.Config.Images.Signature)}
	if file := w.Config.Images.SigningKey; file != "" {
		p.Key = func() ([]byte, error) { return os.ReadFile(file) }
	}
	if w.Config.Images.Signature != config.SignatureAuto {
		return p
	}
	p.Mode = images.SignatureWarn
	known := strings.HasPrefix(w.Config.Images.Factory, "https:") && len(w.ledger.Lock().KnownSigners()) > 0
	if p.Key != nil || known {
		p.Mode = images.SignatureRequire
	}
	return p
}

func (w workshop) publish(ctx context.Context, store images.Store, hosts map[string][]string) (schematics.Lock, error) {
	isos := images.Publisher{
		Store: store, Factory: w.images.Factory, Cache: w.cache, Ledger: w.ledger, Storages: w.Config.Images.ISO.Storage, Hosts: hosts,
		Delivery: images.Delivery(w.Config.Images.ISO.Delivery), Verify: images.Verify(w.Config.Proxmox.Publish.Verify), ByImager: w.ByImager, Note: w.run.Note,
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
		Base: imagerOf(w.Config).Base, Scratch: filepath.Join(w.cacheDir(), "imager"),
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

// Kinds of things that Prune removes.
const (
	PruneISOs  = "isos"  // and disk images
	PruneDisks = "disks" // also empty parking VMs, and scratch VMs of killed runs
	PruneCache = "cache" // of ISOs, on this machine
	// PruneMirror is pruned only on request: a registry can't tell who else needs its contents.
	PruneMirror = "mirror"
)

type PruneOptions struct {
	Only      string        // one kind; "": all except the mirror
	OlderThan time.Duration // keep ISOs, cached ISOs and mirrored installers that are younger
	KeepDisks *int          // how many old system disks of a node to keep; nil: roll.keepDisks
	Mirror    images.MirrorShelf
	Removed   string // a node that was removed: only its disks are freed
	// Confirm is called with what would be removed and kept. Its error, or false, ends the run.
	Confirm func(PruneReport) (bool, error)
	// These are as in RollOptions.
	Holder    claim.Holder
	Dead      func(claim.Holder) bool
	Suspended func(claim.Holder) bool
	MayAsk    func() error
}

func (o PruneOptions) takes(kind string) bool {
	if o.Removed != "" {
		return kind == PruneDisks
	}
	return o.Only == kind || o.Only == "" && kind != PruneMirror
}

// PruneReport is what was found, and what was done with it.
type PruneReport struct {
	ISOs    []images.Verdict       `json:"isos"`              // recast's own, and its disk images, on the configured storages
	Disks   []prune.KeptVerdict    `json:"disks"`             // old system disks
	VMs     []prune.ParkingVerdict `json:"vms"`               // parking VMs
	Scratch []roll.ScratchVerdict  `json:"scratch,omitempty"` // scratch VMs of killed runs
	Cache   []images.CacheVerdict  `json:"cache"`             // recast's files in the ISO cache
	Mirror  []images.MirrorVerdict `json:"mirror,omitzero"`   // installers with recast's tags; only on request
	Unseen  []string               `json:"unseen,omitempty"`  // what could not be checked, in words
}

func (r PruneReport) GoingISOs() []images.Verdict {
	return slices.DeleteFunc(slices.Clone(r.ISOs), func(v images.Verdict) bool { return len(v.Keep) > 0 })
}

func (r PruneReport) GoingDisks() []prune.KeptVerdict {
	return slices.DeleteFunc(slices.Clone(r.Disks), func(v prune.KeptVerdict) bool { return len(v.Keep) > 0 })
}

// GoingVMs lists the parking VMs to delete: they own nothing after that.
func (r PruneReport) GoingVMs() []prune.ParkingVerdict {
	return slices.DeleteFunc(slices.Clone(r.VMs), func(v prune.ParkingVerdict) bool { return len(v.Keep) > 0 })
}

func (r PruneReport) GoingScratch() []roll.ScratchVerdict {
	return slices.DeleteFunc(slices.Clone(r.Scratch), func(v roll.ScratchVerdict) bool { return len(v.Keep) > 0 })
}

func (r PruneReport) GoingCache() []images.CacheVerdict {
	return slices.DeleteFunc(slices.Clone(r.Cache), func(v images.CacheVerdict) bool { return len(v.Keep) > 0 })
}

func (r PruneReport) GoingMirror() []images.MirrorVerdict {
	return slices.DeleteFunc(slices.Clone(r.Mirror), func(v images.MirrorVerdict) bool { return len(v.Keep) > 0 })
}

// host is where to create the claim if there is none; "" if nothing is removed.
func (r PruneReport) host(online []string) string {
	for _, v := range r.GoingDisks() {
		return v.Host
	}
	for _, v := range r.GoingVMs() {
		return v.Host
	}
	for _, v := range r.GoingScratch() {
		return v.Host
	}
	for _, v := range r.GoingISOs() {
		return v.Host
	}
	if len(r.GoingMirror())+len(r.GoingCache()) > 0 && len(online) > 0 {
		return online[0]
	}
	return ""
}

// Prune removes what is no longer needed: old system disks and empty parking VMs, scratch VMs of killed runs, ISOs on
// the configured storages and in the cache, installers in the mirror: check → claim → check again → confirm → remove,
// each after another check. It refuses unless it provably sees every VM that may use one of them.
func Prune(ctx context.Context, p Project, px cluster.Proxmox, shelf images.Shelf, run *step.Runner, o PruneOptions) (PruneReport, error) {
	pr := &pruning{Project: p, px: px, shelf: shelf, run: run, o: o, rep: PruneReport{
		ISOs: []images.Verdict{}, Disks: []prune.KeptVerdict{}, VMs: []prune.ParkingVerdict{}, Cache: []images.CacheVerdict{},
	}}
	err := pr.prune(ctx)
	return pr.rep, err
}

type pruning struct {
	Project
	px    cluster.Proxmox
	shelf images.Shelf
	run   *step.Runner
	o     PruneOptions
	rep   PruneReport
}

func (p *pruning) prune(ctx context.Context) (err error) {
	if err := p.mayPrune(ctx); err != nil {
		return err
	}
	if err := cluster.RequireQuorum(ctx, p.px); err != nil {
		return err
	}
	if _, err := p.judge(ctx); err != nil {
		return err
	}
	online, _, err := p.shelf.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("list the Proxmox nodes: %w", err)
	}
	host := p.rep.host(online)
	if host == "" {
		// A run that was killed at its very end has left only its claim.
		if host, err = p.claimLeft(ctx); err != nil || host == "" {
			return err
		}
	}
	if err := p.requireAnswer(ctx); err != nil {
		return err
	}
	held, err := p.claim(ctx, host)
	if err != nil {
		return err
	}
	all := ctx
	ctx, done := held.Within(all)
	defer func() {
		done()
		err = held.Judge(err)
		release, cancel := context.WithTimeout(context.WithoutCancel(all), releaseTimeout)
		defer cancel()
		err = errors.Join(err, held.Release(release))
	}()
	vms, _, err := readable(ctx, p.Project, p.px)
	if err != nil {
		return err
	}
	// A killed run may have left tasks, which may still create VMs.
	err = awaitTasks(ctx, p.Project, p.px, vms, func(seen string) { p.say("waiting for tasks of an earlier recast: " + seen) })
	if err != nil {
		return err
	}
	parked, err := p.judge(ctx)
	if err != nil || p.rep.host(online) == "" {
		return err
	}
	if err := confirm(p.o.Confirm, p.rep, "not confirmed; nothing was removed"); err != nil {
		return err
	}
	parked.Proxmox, parked.Say = held.Guard(p.px), p.say
	scratch := p.scratchPruner(held.Guard(p.px))
	scratch.VMs = p.rep.Scratch
	isos := images.Pruner{Shelf: p.shelf, Verdicts: p.rep.ISOs, Write: held.Write}
	cache := images.CachePruner{Cache: images.NewCache(p.isoCache()), Verdicts: p.rep.Cache, Write: held.Write}
	mirror := images.MirrorPruner{Shelf: p.o.Mirror, Verdicts: p.rep.Mirror, Write: held.Write}
	return p.run.Run(ctx, step.Step{
		ID: "prune", Title: "remove what is no longer needed",
		Steps: func(context.Context) ([]step.Step, error) {
			return slices.Concat(scratch.Steps(), parked.Steps(), isos.Steps(), cache.Steps(), mirror.Steps()), nil
		},
	})
}

// mayPrune refuses if the token lacks privileges for removing a kind.
func (p *pruning) mayPrune(ctx context.Context) error {
	if p.o.takes(PruneMirror) {
		if p.Config.Images.Mirror == "" {
			return fault.WithHint(fault.As(fault.Config, errors.New("images.mirror is not set: there is no mirror to prune")),
				"set images.mirror to the repository that installers are mirrored to")
		}
		return survey.NeedsToPrune(nil, nil).Check(ctx, p.px)
	}
	if p.o.Only == PruneCache {
		return survey.NeedsToPrune(nil, nil).Check(ctx, p.px)
	}
	var errs []error
	for _, kind := range []string{PruneISOs, PruneDisks} {
		if !p.o.takes(kind) {
			continue
		}
		needs, other := survey.NeedsToPrune(p.Config.Images.ISO.Storage, p.Config.Images.Disk.Storage), PruneDisks
		if kind == PruneDisks {
			vms, err := p.px.VMs(ctx)
			if err != nil {
				return fmt.Errorf("read Proxmox: %w", err)
			}
			storages, parked := parkedOn(vms, p.Config.Cluster)
			needs, other = survey.NeedsToFree(storages, parked...), PruneISOs
			if scratch := planning.ScratchVMs(vms, p.Config.Cluster); len(scratch) > 0 {
				its := cluster.Each(scratch, func(s planning.Scratch) cluster.VM { return s.VM })
				needs = needs.With(survey.NeedsToClear(its...))
			}
		}
		err := needs.Check(ctx, p.px)
		if err != nil && p.o.Only == "" {
			err = fault.WithHint(err, "or leave those alone: recast prune --only %s", other)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (p *pruning) judge(ctx context.Context) (parked prune.ParkingPruner, err error) {
	uses, err := p.shelf.Uses(ctx)
	if err != nil {
		return parked, err
	}
	vms, err := p.px.VMs(ctx)
	if err != nil {
		return parked, fmt.Errorf("read Proxmox: %w", err)
	}
	if p.o.takes(PruneDisks) {
		if parked, err = p.judgeDisks(ctx, vms, uses); err != nil {
			return parked, err
		}
		scratch := p.scratchPruner(p.px)
		if err := scratch.Judge(ctx, vms); err != nil {
			return parked, err
		}
		p.rep.Disks, p.rep.VMs, p.rep.Scratch = parked.Kept, parked.VMs, scratch.VMs
	}
	if p.o.takes(PruneISOs) || p.o.takes(PruneCache) {
		err = p.judgeISOs(ctx, vms, uses)
	}
	if p.o.takes(PruneMirror) {
		p.rep.Mirror, err = p.judgeMirror(ctx, vms)
	}
	return parked, err
}

// claimLeft is the host of the claim, held or left over; "" if there is none.
func (p *pruning) claimLeft(ctx context.Context) (host string, err error) {
	vms, err := p.px.VMs(ctx)
	if err != nil {
		return "", fmt.Errorf("read Proxmox: %w", err)
	}
	claim, _, err := claim.Peek(vms, p.Config.Cluster, p.ClaimID())
	return claim.VM.Host, err
}

// requireAnswer fails if nobody could answer the question and the claim's run may be alive: watching that claim would
// be in vain.
func (p *pruning) requireAnswer(ctx context.Context) error {
	if p.o.MayAsk == nil {
		return nil
	}
	err := p.o.MayAsk()
	if err == nil {
		return nil
	}
	vms, errRead := p.px.VMs(ctx)
	if errRead != nil {
		return fmt.Errorf("read Proxmox: %w", errRead)
	}
	s, found, errRead := claim.Peek(vms, p.Config.Cluster, p.ClaimID())
	if errRead != nil || !found || p.o.Dead != nil && p.o.Dead(s.Holder) {
		return errRead // the report says first what would be removed
	}
	return err
}

func (p *pruning) claim(ctx context.Context, host string) (*claim.Held, error) {
	id, err := RollOptions{}.newRunID()
	if err != nil {
		return nil, err
	}
	c := &claim.Claim{
		Proxmox: p.px, Cluster: p.Config.Cluster, VMID: p.ClaimID(), VMIDs: p.VMIDs(), Nodes: p.NodeVMs(planning.Plan{}), Parked: true,
		Host: host, Holder: p.o.Holder, Run: id,
		Dead: p.o.Dead, Suspended: p.o.Suspended, Say: p.say,
	}
	return c.Acquire(ctx)
}

func (p *pruning) say(text string) { p.run.Note("prune", text) }

// judgeISOs judges every ISO and disk image of recast, on the storages and in the cache.
func (p *pruning) judgeISOs(ctx context.Context, vms []cluster.VM, uses []images.Use) error {
	open, err := openUses(vms)
	if err != nil {
		return err
	}
	need, err := needed(p.Project, vms, fileNames)
	if err != nil {
		return err
	}
	uses = append(uses, open...)
	if p.o.takes(PruneCache) {
		found, err := images.NewCache(p.isoCache()).Files()
		if err != nil {
			return err
		}
		p.rep.Cache = images.JudgeCache(found, uses, need, p.o.OlderThan, time.Now())
	}
	if p.o.takes(PruneISOs) {
		found, unseen, err := images.ListISOs(ctx, p.shelf, images.BootISO, p.Config.Images.ISO.Storage)
		if err != nil {
			return err
		}
		disks, unseenDisks, err := images.ListISOs(ctx, p.shelf, images.DiskImage, p.Config.Images.Disk.Storage)
		if err != nil {
			return err
		}
		found, unseen = append(found, disks...), slices.Compact(slices.Sorted(slices.Values(append(unseen, unseenDisks...))))
		p.rep.ISOs, p.rep.Unseen = images.JudgeISOs(found, uses, need, p.o.OlderThan, time.Now()), unseen
	}
	return nil
}

// Why a file of a lock stays.
const (
	previousHas = "the previous lock has it: the way back"
	lockHas     = "recast.lock has it"
)

// openUses returns the VMs that unfinished replacements, of any Talos cluster, may have to create again.
func openUses(vms []cluster.VM) ([]images.Use, error) {
	var uses []images.Use
	for _, vm := range vms {
		rec, is, err := parking.SaidRecord(vm) // also of other people's clusters
		if err != nil && vm.NotOurs == "" {
			return nil, err
		}
		if !is || !rec.Open {
			continue
		}
		was, err := rec.Remembered()
		if err != nil {
			return nil, fault.WithHint(fault.ParkedHalf.Refusedf("%s: %w", vm, err), "finish that replacement first: recast roll or recast undo %s", rec.Node)
		}
		use := images.Use{By: fmt.Sprintf("%s as it was before the unfinished replacement of node %s", was, rec.Node)}
		for key, value := range was.Config {
			if key != "description" {
				use.Values = append(use.Values, value)
			}
		}
		uses = append(uses, use)
	}
	return uses, nil
}

// needed returns the builds that unfinished replacements need and that VMs were created from, and the names that of
// gives to what the lock and the previous lock hold.
func needed(p Project, vms []cluster.VM, of func(schematics.Lock, schematics.Locked) []string) (images.Needed, error) {
	need := images.Needed{Names: map[string]string{}, Builds: map[string]string{}}
	lock, err := schematics.ReadLock(p.LockFile())
	if err != nil {
		return need, err
	}
	previous, _, err := schematics.Previous(p.Locks().Dir, lock)
	if err != nil {
		return need, err
	}
	for _, has := range []struct {
		lock   schematics.Lock
		reason string
	}{{previous, previousHas}, {lock, lockHas}} {
		for _, e := range has.lock.Schematics {
			for _, name := range of(has.lock, e) {
				need.Names[name] = has.reason
			}
		}
	}
	delete(need.Names, "") // of builds without a disk image
	for _, vm := range vms {
		if build := vm.MadeFrom(); build != "" {
			need.Builds[build] = vm.String() + " was created from it"
		}
	}
	for _, vm := range vms {
		rec, is, err := parking.SaidRecord(vm)
		if err != nil && vm.NotOurs == "" {
			return need, err
		}
		if is && rec.Open && rec.Build != "" {
			need.Builds[rec.Build] = fmt.Sprintf("the unfinished replacement of node %s needs it", rec.Node)
		}
	}
	return need, nil
}

func (p *pruning) judgeMirror(ctx context.Context, vms []cluster.VM) ([]images.MirrorVerdict, error) {
	need, err := needed(p.Project, vms, installerNames)
	if err != nil {
		return nil, err
	}
	tags, err := images.ListMirror(ctx, p.o.Mirror, p.Config.Images.Mirror)
	if err != nil {
		return nil, err
	}
	return images.JudgeMirror(tags, need, p.o.OlderThan, time.Now()), nil
}

// fileNames are those in the lock, and on storages.
func fileNames(_ schematics.Lock, e schematics.Locked) []string {
	return append(cluster.Each(e.Uploads, func(u schematics.Upload) string { return u.Name }), e.ISO.Name, e.Disk.Name)
}

// installerNames are the tag, and the digest in the lock, whatever its tag is.
func installerNames(lock schematics.Lock, e schematics.Locked) []string {
	_, digest, _ := strings.Cut(e.Installer, "@")
	return []string{images.TagOf(lock, e), digest}
}

// retention says which old system disks to keep; keep is the command-line option, nil: use the configuration.
func retention(p Project, keep *int) prune.Retention {
	r := prune.Retention{Cluster: p.Config.Cluster, Keep: p.Config.Roll.KeepDisks, Except: p.ClaimID(), Nodes: nodeNames(p.Config)}
	if keep != nil {
		r.Keep = *keep
	}
	for _, n := range p.Config.Nodes {
		if n.Holder != 0 {
			r.Holders = append(r.Holders, cluster.VMID(n.Holder))
		}
	}
	return r
}

func (p *pruning) judgeDisks(ctx context.Context, vms []cluster.VM, uses []images.Use) (prune.ParkingPruner, error) {
	pr := prune.ParkingPruner{
		Proxmox: p.px, Cluster: p.Config.Cluster,
		Uses: func(ctx context.Context) ([]cluster.Use, error) {
			uses, err := p.shelf.Uses(ctx)
			return clusterUses(uses), err
		},
		Storages: func(ctx context.Context, host string) ([]string, error) {
			return diskStorages(ctx, p.px, p.shelf, host)
		},
	}
	keep := retention(p.Project, p.o.KeepDisks)
	keep.Removed = p.o.Removed
	pr.Kept, pr.VMs = prune.JudgeParked(vms, clusterUses(uses), keep)
	for i := range pr.Kept {
		if pr.Kept[i].Replaced.IsZero() {
			pr.Kept[i].Replaced = journal.RunBegan(pr.Kept[i].Run)
		}
	}
	if node := p.o.Removed; node != "" && !slices.ContainsFunc(pr.Kept, func(v prune.KeptVerdict) bool { return v.OfRemoved && v.Node == node }) {
		return pr, fault.WithHint(fault.NoWayBack.Refusedf("node %s: no disks of a removed node of that name are parked", node), "recast remove %s removes the node first; recast status lists what is parked", node)
	}
	return pr, pr.KeepUnnamed(ctx, vms)
}

func (p *pruning) scratchPruner(px cluster.Proxmox) roll.ScratchPruner {
	return roll.ScratchPruner{Proxmox: px, Cluster: p.Config.Cluster, Timing: timing(p.Config)}
}

func clusterUses(uses []images.Use) []cluster.Use {
	return cluster.Each(uses, func(u images.Use) cluster.Use { return cluster.Use(u) })
}

// diskStorages lists the storages for disks that a host sees. A storage that does not
// answer is an error, since its content is unknown.
func diskStorages(ctx context.Context, px cluster.Proxmox, shelf images.Shelf, host string) ([]string, error) {
	all, err := px.Storages(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, s := range all {
		info, err := shelf.Storage(ctx, host, s.Name)
		switch {
		case errors.Is(err, images.ErrNoStorage):
			continue
		case err != nil:
			return nil, fmt.Errorf("read storage %q on %s: %w", s.Name, host, err)
		case !slices.Contains(info.Content, "images"):
			continue
		case !info.Active:
			return nil, fmt.Errorf("storage %s is not active on %s", s.Name, host)
		}
		out = append(out, s.Name)
	}
	return out, nil
}

// parkedOn lists the storages that have old system disks of a cluster, sorted.
func parkedOn(vms []cluster.VM, name string) (out []string, parked []cluster.VM) {
	parkings, _ := parking.Parkings(vms, name) // records that can't be read do not count: their disks are not freed
	for _, park := range parkings {
		parked = append(parked, park.VM)
		for _, k := range park.Record.Kept {
			if d, err := cluster.ParseDisk(k.Key, park.VM.Config[k.Key]); err == nil && !slices.Contains(out, d.Storage()) {
				out = append(out, d.Storage())
			}
		}
	}
	slices.Sort(out)
	return out, parked
}
