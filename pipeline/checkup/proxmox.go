package checkup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/words"
)

func (d *checkup) proxmox(ctx context.Context) {
	d.versions()
	for _, err := range errsOf(d.survey.Proxmox) {
		if fault.KindOf(err) == fault.Refused {
			d.warn(GroupProxmox, "inventory", "", "not everything can be read without the privileges below: %s", err)
			continue
		}
		d.fail(GroupProxmox, "inventory", err)
	}
	if d.survey.Proxmox == nil {
		if d.survey.Quorate {
			d.ok(GroupProxmox, "quorum", "the cluster is quorate")
		} else {
			d.refuse(GroupProxmox, "quorum", "bring the other nodes back (pvecm status): without quorum Proxmox deletes disks and then fails", "the cluster has no quorum")
		}
	}
	d.clocks()
	d.claim()
	d.locked()
	d.containers(ctx)
	d.moves(ctx)
	d.scratch()
}

// moves warns of Proxmox HA that may move a node's VM to another host, and of a roll that would move it back.
func (d *checkup) moves(ctx context.Context) {
	managed := 0
	for i, f := range d.survey.Found {
		if f.VM == nil || !f.VM.HA {
			continue
		}
		managed++
		if host := d.wanted[i].Shape.Host; host != "" {
			d.warn(GroupProxmox, "nodes[].host of "+d.wanted[i].Name, "remove it; a node affinity rule of Proxmox HA (before Proxmox VE 9: a group) keeps a VM on its hosts",
				"is %s, and Proxmox HA may move %s to another host: the next recast roll would move it back", host, f.VM)
		}
	}
	if managed == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askWorld)
	defer cancel()
	when, err := d.src.Proxmox.Rebalancing(ctx)
	if err != nil {
		d.fail(GroupProxmox, "rebalancing", err)
	}
	for _, setting := range when {
		d.warn(GroupProxmox, "rebalancing", "switch it off while nodes are rolled (Datacenter, Options, Cluster Resource Scheduling)",
			"Proxmox HA moves VMs to balance load (%s): the VMs of %s may change their host between a plan and the roll", setting, words.Counted(managed, "node"))
	}
}

// Other versions were never tested with recast, which relies on features of 7.1
// (move_disk to another VM) and 8.0 (resize as a task).
const oldestMajor, newestMajor = 8, 9

func (d *checkup) versions() {
	majors := map[int]bool{}
	for _, h := range d.hosts {
		if h.Entry || d.res.Version == "" {
			d.res.Version = h.Version
		}
		major, _ := strconv.Atoi(strings.SplitN(h.Version, ".", 2)[0])
		switch {
		case !h.Online:
			d.warn(GroupProxmox, "node "+h.Name, "bring it back, or leave its nodes out of a roll", "is offline")
			continue
		case h.Version == "":
			d.warn(GroupProxmox, "node "+h.Name, "", "its version could not be read")
		case major < oldestMajor:
			d.refuse(GroupProxmox, "node "+h.Name, "upgrade it to Proxmox VE 8 or 9", "runs Proxmox VE %s", h.Version)
		case major > newestMajor:
			d.warn(GroupProxmox, "node "+h.Name, "check for a newer recast", "runs Proxmox VE %s, which is newer than the versions that recast knows", h.Version)
		default:
			d.ok(GroupProxmox, "node "+h.Name, "Proxmox VE %s", h.Version)
		}
		majors[major] = true
		d.hostErrors(h)
	}
	if len(majors) > 1 {
		d.warn(GroupProxmox, "versions", "finish the upgrade of the Proxmox cluster first", "the nodes run different major versions")
	}
}

// hostErrors reports what could not be read from a host. Missing privileges are reported once, among the privileges.
func (d *checkup) hostErrors(h cluster.Host) {
	forbidden := false
	for _, err := range h.Errs {
		if fault.KindOf(err) == fault.Refused {
			forbidden = true
			continue
		}
		d.fail(GroupProxmox, "node "+h.Name, err)
	}
	if forbidden {
		d.warn(GroupProxmox, "node "+h.Name, "", "its clock, space and thin pools can't be read without Sys.Audit on /nodes/%s", h.Name)
	}
}

// A clock this far off is a warning, or breaks certificates and tokens.
const (
	skewWorthAWord = 2 * time.Second
	skewTooMuch    = time.Minute
)

// clocks compares the clock of every host with this machine. Proxmox returns whole seconds.
func (d *checkup) clocks() {
	for _, h := range d.hosts {
		if h.Clock.IsZero() {
			continue
		}
		skew := h.Clock.Sub(h.Asked.Truncate(time.Second))
		seen := fmt.Sprintf("is %s off this machine's clock", skew.Abs())
		const remedy = "see chronyc tracking on both"
		switch {
		case skew.Abs() > skewTooMuch:
			d.refuse(GroupProxmox, "clock of "+h.Name, remedy, "%s", seen)
		case skew.Abs() > skewWorthAWord:
			d.warn(GroupProxmox, "clock of "+h.Name, remedy, "%s", seen)
		}
	}
}

func (d *checkup) claim() {
	state, held, err := claim.Peek(d.survey.VMs, d.Config.Cluster, d.ClaimID())
	switch {
	case err != nil:
		d.fail(GroupProxmox, "claim", err)
	case held:
		d.warn(GroupProxmox, "claim", "recast status shows who holds it; recast roll takes over a claim whose holder is dead", "run %s holds it since %s", state.Run, state.Since.Format(time.RFC3339))
	}
	for _, u := range parking.NotOurs(d.survey.VMs, d.Config.Cluster) {
		d.warn(GroupProxmox, "parking VMs", "a resource pool of the nodes' own proves it: who may put VMs there may take the nodes' disks anyway", "%s", u)
	}
	if err := errors.Join(state.OfOtherRange(d.ClaimID(), d.VMIDs()), claim.Strays(d.survey.VMs, d.Config.Cluster, d.VMIDs(), d.NodeVMs(planning.Plan{}))); err != nil {
		d.fail(GroupProxmox, "proxmox.vmids", err)
	}
	for _, p := range d.survey.Parking {
		if p.Record.Open {
			d.warn(GroupProxmox, "unfinished", "recast status shows where every disk is; recast roll finishes it", "the replacement of %s by run %s", p.Record.Node, p.Record.Run)
		}
		for _, text := range p.Unanswered() {
			d.warn(GroupProxmox, "no answer", "the next recast roll waits for it", "%s", text)
		}
	}
}

// locked warns about VMs with a lock: they can't be changed, and if the task has died the lock stays for ever.
func (d *checkup) locked() {
	concern := map[cluster.VMID]bool{d.ClaimID(): true}
	for _, w := range d.wanted {
		concern[w.Holder] = true
	}
	for _, f := range d.survey.Found {
		if f.VM != nil {
			concern[f.VM.ID] = true
		}
	}
	for _, p := range d.survey.Parking {
		concern[p.VM.ID] = true
	}
	for _, vm := range d.survey.VMs {
		if vm.Lock != "" && concern[vm.ID] {
			d.warn(GroupProxmox, fmt.Sprintf("VM %d", vm.ID),
				vm.Unlock(),
				"%s is locked (%s): it can't be changed meanwhile", vm, vm.Lock)
		}
	}
}

// containers looks for VMIDs of containers that recast would use: a roll would stop there.
func (d *checkup) containers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askWorld)
	defer cancel()
	list, err := d.src.Proxmox.Containers(ctx)
	if err != nil {
		d.fail(GroupProxmox, "containers", err)
		return
	}
	for _, c := range list {
		switch {
		case c.ID == d.ClaimID():
			d.refuse(GroupProxmox, "claim", "let proxmox.vmids start with an unused number", "%s has its number", c)
		case d.Config.Proxmox.VMIDs.Contains(int(c.ID)):
			d.warn(GroupProxmox, "proxmox.vmids", "choose a range that only recast uses", "%s has one of its numbers: a roll that needs that number stops", c)
		}
	}
}

// endpoints asks every configured address separately: a roll that fails over to an address must find the same cluster
// there. reached says whether any address answers.
func (d *checkup) endpoints(ctx context.Context) (reached bool) {
	if d.src.ErrProxmox != nil {
		d.fail(GroupProxmox, "API", d.src.ErrProxmox)
		return false
	}
	type answer struct {
		hosts []cluster.Host
		err   error
	}
	answers := make([]answer, len(d.src.Endpoints))
	var asking sync.WaitGroup
	for i, e := range d.src.Endpoints {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, askEndpoint)
			defer cancel()
			answers[i].hosts, answers[i].err = e.Hosts(ctx)
		})
	}
	asking.Wait()
	var first []string
	for i, e := range d.src.Endpoints {
		a := answers[i]
		names := hostNames(a.hosts)
		switch {
		case a.err != nil:
			d.fail(GroupProxmox, e.URL, a.err)
			continue
		case first == nil:
			first = names
		case !slices.Equal(first, names):
			d.add(Check{
				Group: GroupProxmox, What: e.URL, State: Problem, kind: fault.Config,
				Seen:   fmt.Sprintf("belongs to another cluster: it knows %s, the first one %s", strings.Join(names, ", "), strings.Join(first, ", ")),
				Remedy: []string{"proxmox.endpoints are nodes of one Proxmox cluster"},
			})
			continue
		}
		reached = true
		entry, _ := cluster.Find(a.hosts, func(h cluster.Host) bool { return h.Entry })
		d.ok(GroupProxmox, e.URL, "answers as %s", cmp.Or(entry.Name, "one of "+strings.Join(names, ", ")))
	}
	return reached
}

func (d *checkup) readHosts(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askWorld)
	defer cancel()
	var err error
	if d.hosts, err = d.src.Proxmox.Hosts(ctx); err != nil {
		d.fail(GroupProxmox, "nodes", err)
	}
	return err == nil
}

func hostNames(hosts []cluster.Host) []string {
	names := cluster.Each(hosts, func(h cluster.Host) string { return h.Name })
	slices.Sort(names)
	return names
}

func errsOf(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.Concat(cluster.Each(joined.Unwrap(), errsOf)...)
	}
	return []error{err}
}

// scratch warns about scratch VMs: those of a killed run may run for ever.
func (d *checkup) scratch() {
	for _, s := range planning.ScratchVMs(d.survey.VMs, d.Config.Cluster) {
		d.warn(GroupProxmox, fmt.Sprintf("VM %d", s.VM.ID), "recast prune deletes it, once that run has ended",
			"%q on %s: run %s tests, or tested, an image on it", s.VM.Name, s.VM.Host, s.Run)
	}
}

func (d *checkup) needsToRehearse() survey.Needs {
	return d.survey.NeedsToRehearse(d.wanted, d.res.Nodes, d.RehearsalOn())
}

// rehearsing is the option roll --rehearse, if it needs more privileges than a roll.
func (d *checkup) rehearsing(ctx context.Context, needs survey.Needs) []survey.Option {
	more := d.needsToRehearse()
	missing, err := needs.With(more).Missing(ctx, d.src.Proxmox)
	if err != nil || len(missing.Of(more).Lacks) == len(missing.Of(needs).Of(more).Lacks) {
		return nil // reported already
	}
	return []survey.Option{{Name: "rehearse", Without: "recast roll --rehearse is refused", Needs: more}}
}

// agents warns if scratch VMs could be found only by their guest agent, and the token may not use it.
func (d *checkup) agents(ctx context.Context) {
	if len(d.Config.Roll.Rehearse.Addresses) > 0 {
		return
	}
	missing, err := survey.MayAskAgents(ctx, d.src.Proxmox)
	if err != nil || missing == "" {
		return // what can't be read here can't be read below either
	}
	d.warn(GroupPrivileges, "guest agents", "grant "+missing+", or set roll.rehearse.addresses",
		"the token may not use them: what scratch VMs boot could not be checked")
}

func (d *checkup) privileges(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askWorld)
	defer cancel()
	needs := d.survey.Needs(d.wanted, d.res.Nodes)
	if d.Config.Roll.Rehearse.Enabled {
		needs = needs.With(d.needsToRehearse())
		d.agents(ctx)
	}
	missing, err := needs.Missing(ctx, d.src.Proxmox)
	if err != nil {
		d.fail(GroupPrivileges, "token", err)
		return
	}
	d.missing = missing
	for _, n := range needs {
		_, lacks := missing.Lack(n)
		d.res.Needs = append(d.res.Needs, NeedStatus{n, !lacks})
	}
	for _, path := range needs.Paths() {
		if held := missing.Held(path); len(held) > 0 {
			d.ok(GroupPrivileges, path, "%s", strings.Join(held, ", "))
		}
	}
	for _, l := range missing.Lacks {
		d.refuse(GroupPrivileges, l.Privilege+" on "+l.At, l.Remedy(), "missing; needed to %s", strings.Join(l.Why, "; to "))
	}
	if len(missing.Lacks) > 0 {
		d.res.Grants, d.res.Caution = missing.Grants().Lines(missing.Token), missing.Caution()
	}
	d.options(ctx, needs)
	d.foreignBridges()
}

// options reports optional privileges, never as a problem.
func (d *checkup) options(ctx context.Context, needs survey.Needs) {
	for _, o := range append(survey.OptionalPrivileges(d.Config.Images.ISO.Storage, d.Config.Images.Disk.Storage, hostNames(d.hosts)), d.rehearsing(ctx, needs)...) {
		missing, err := needs.With(o.Needs).Missing(ctx, d.src.Proxmox)
		if err != nil {
			d.fail(GroupPrivileges, o.Name, err)
			continue
		}
		if missing = missing.Of(o.Needs); len(missing.Lacks) == 0 || o.Name == survey.DownloadURL && d.mayDownload(ctx) {
			d.ok(GroupPrivileges, o.Name+" (optional)", "it is granted")
			continue
		}
		d.add(Check{
			Group: GroupPrivileges, What: o.Name + " (optional)", State: OK,
			Seen:   fmt.Sprintf("not granted (%s): %s", missing, o.Without),
			Remedy: missing.Grants().Lines(missing.Token),
		})
	}
}

// mayDownload says whether every host may download to every storage for ISOs and disk images.
func (d *checkup) mayDownload(ctx context.Context) bool {
	for _, host := range hostNames(d.hosts) {
		for _, storage := range slices.Concat(d.Config.Images.ISO.Storage, d.Config.Images.Disk.Storage) {
			if why, err := d.src.Proxmox.MayDownload(ctx, host, storage); why != "" || err != nil {
				return false
			}
		}
	}
	return true
}

// foreignBridges reports VNets, whose zone the VM's configuration does not name.
func (d *checkup) foreignBridges() {
	for i, f := range d.survey.Found {
		if f.VM == nil {
			continue
		}
		for _, bridge := range cluster.ForeignBridges(*f.VM) {
			d.warn(GroupPrivileges, "SDN.Use for "+bridge, "make sure that the token has SDN.Use on /sdn/zones/<its zone>/"+bridge,
				"%s is connected to a VNet, whose zone is not known: recreating it needs SDN.Use there", d.wanted[i].Name)
		}
	}
}

// neighbours warns of other VMs on the nodes' networks whose packets Proxmox' firewall does not see: such a VM can answer at a node's address,
// and relay what is sent there. See Proof in package cluster.
func (d *checkup) neighbours() {
	own, networks := map[cluster.VMID]bool{}, map[string]bool{}
	for _, f := range d.survey.Found {
		if f.VM != nil {
			own[f.VM.ID] = true
			for _, n := range f.VM.NICs() {
				networks[n.Network()] = true
			}
		}
	}
	others := map[string][]cluster.VM{}
	for _, vm := range d.survey.VMs {
		for _, n := range vm.NICs() {
			if at := n.Network(); networks[at] && !n.Filtered && !own[vm.ID] && !slices.ContainsFunc(others[at], func(o cluster.VM) bool { return o.ID == vm.ID }) {
				others[at] = append(others[at], vm)
			}
		}
	}
	for _, at := range slices.Sorted(maps.Keys(others)) {
		d.warn(GroupNodes, at, "give the nodes a bridge or VLAN of their own, or those VMs Proxmox' firewall with macfilter and ipfilter (firewall=1 in netN)",
			"other VMs on the nodes' network, without Proxmox' firewall, could relay what a node in maintenance mode is sent: %s",
			words.First(cluster.Each(others[at], func(vm cluster.VM) string { return fmt.Sprintf("VM %d", vm.ID) })))
	}
}

func (d *checkup) storages(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askWorld)
	defer cancel()
	hosts := d.hostsOfNodes()
	if len(hosts) == 0 {
		hosts = hostNames(d.hosts)
	}
	for _, storage := range d.Config.Images.ISO.Storage {
		d.imageStorage(ctx, images.BootISO, storage, hosts)
	}
	for _, storage := range d.Config.Images.Disk.Storage {
		d.imageStorage(ctx, images.DiskImage, storage, hosts)
	}
	d.uploaders(ctx)
	d.spool()
	for _, use := range d.diskUses() {
		d.diskStorage(ctx, use)
	}
	d.systemSpace(ctx)
	d.thinPools()
}

// uploaders warns of others who may write to the storages that machines boot from.
func (d *checkup) uploaders(ctx context.Context) {
	all := slices.Concat(d.Config.Images.ISO.Storage, d.Config.Images.Disk.Storage)
	for _, storage := range slices.Compact(slices.Sorted(slices.Values(all))) {
		others, err := d.src.Proxmox.Uploaders(ctx, storage)
		switch {
		case err != nil:
			d.fail(GroupStorage, "access to "+storage, err)
		case len(others) > 0:
			d.warn(GroupStorage, "access to "+storage, "give recast a storage of its own, or see proxmox.publish.verify",
				"others may upload to it, and overwrite what machines boot: %s", strings.Join(others, ", "))
		}
	}
}

// unseen warns that the token can't see a storage; the privileges report what is missing.
func (d *checkup) unseen(storage string) bool {
	return slices.ContainsFunc(d.missing.Lacks, func(l survey.Lack) bool {
		return l.Privilege == "Datastore.Audit" && (l.At == "/storage" || l.At == "/storage/"+storage)
	})
}

// imageStorage checks a storage for boot ISOs or disk images. A storage that can't take disk images is a problem
// unless the machines boot the ISO instead.
func (d *checkup) imageStorage(ctx context.Context, of images.Artefact, storage string, hosts []string) {
	what := label(of) + " storage " + storage
	if d.unseen(storage) {
		d.warn(GroupStorage, what, "", "can't be seen without Datastore.Audit on /storage/%s", storage)
		return
	}
	largest := d.largest(of)
	for _, host := range hosts {
		info, err := d.src.Proxmox.Storage(ctx, host, storage)
		at := what + " on " + host
		switch {
		case err != nil:
			d.fail(GroupStorage, at, err)
		case !slices.Contains(info.Content, of.Content()):
			remedy := fmt.Sprintf("pvesm set %s --content %s", storage, strings.Join(append(slices.Clone(info.Content), of.Content()), ","))
			seen := fmt.Sprintf("does not take %s: its content is %s", of.Plural(), strings.Join(info.Content, ", "))
			switch {
			case of == images.BootISO:
				d.refuse(GroupStorage, at, remedy, "%s", seen)
			case d.Config.Images.Boot == config.BootAuto:
				d.warn(GroupStorage, at, remedy, "%s, so machines boot the ISO; content import needs Proxmox VE 8.3 and a storage of files", seen)
			default:
				d.refuse(GroupStorage, at, remedy, "%s; content import needs Proxmox VE 8.3 and a storage of files", seen)
			}
		case !info.Active:
			d.refuse(GroupStorage, at, "see pvesm status on "+host, "is not active there")
		case info.FreeBytes < largest:
			d.refuse(GroupStorage, at, "free space, or name another storage in "+of.Setting(), "%s free, but a %s needs %s", cluster.Size(info.FreeBytes), of, cluster.Size(largest))
		default:
			d.ok(GroupStorage, at, "%s free", cluster.Size(info.FreeBytes))
			d.imagesOn(ctx, of, storage, host)
		}
		if err == nil && info.Shared {
			return // every host sees the same
		}
	}
}

func label(of images.Artefact) string {
	if of == images.BootISO {
		return "ISO"
	}
	return of.String()
}

// unbuilt is the assumed size of an ISO, or a disk image, that was not built yet.
const unbuilt = 512 << 20

func (d *checkup) largest(of images.Artefact) int64 {
	var largest int64
	for _, e := range d.lock.Schematics {
		largest = max(largest, of.File(d.lock, e).SizeBytes)
	}
	return cmp.Or(largest, unbuilt)
}

// imagesOn reports which files of the lock exist already. Publish, or the roll itself, copies the others.
func (d *checkup) imagesOn(ctx context.Context, of images.Artefact, storage, host string) {
	for _, name := range d.lock.Names() {
		e := d.lock.Schematics[name]
		what := fmt.Sprintf("%s of %s on %s", label(of), name, storage)
		if why := d.lock.NoDisk(e, d.ByImager(name)); of == images.DiskImage && why != "" {
			d.noDisk(what, why)
			continue
		}
		file := of.File(d.lock, e)
		upload, recorded := e.UploadOf(file.Name, storage, host)
		stored, found, err := of.Stored(ctx, d.src.Proxmox, host, storage, cmp.Or(upload.Name, file.Name))
		switch {
		case err != nil:
			d.fail(GroupStorage, what, err)
		case !found:
			d.ok(GroupStorage, what, "%s is not there yet: a roll delivers it, %s", file.Name, d.delivery(ctx, of, name, storage, host))
		case recorded && !stored.Changed.Equal(upload.Changed):
			d.warn(GroupStorage, what, "find out who; a roll uploads it again, under another name", "someone has changed %s since recast uploaded it", upload.Name)
		case file.SizeBytes > 0 && stored.SizeBytes != file.SizeBytes:
			d.warn(GroupStorage, what, "a roll replaces it unless a VM uses it: then eject it first",
				"%s has %d bytes, the lock has %d: an upload was interrupted", file.Name, stored.SizeBytes, file.SizeBytes)
		default:
			d.ok(GroupStorage, what, "%s exists", file.Name)
		}
	}
}

func (d *checkup) noDisk(what, why string) {
	if d.Config.Images.Boot == config.BootAuto {
		d.warn(GroupStorage, what, "", "none is made, so its machines boot the ISO: %s", why)
		return
	}
	d.refuse(GroupStorage, what, "with images.boot: auto its machines boot the ISO", "none is made: %s", why)
}

// delivery says how the file of a schematic would get to a storage. The host asks the
// factory only for files that it has built already.
func (d *checkup) delivery(ctx context.Context, of images.Artefact, name, storage, host string) string {
	asked := d.Config.Images.ISO.Delivery
	if asked == string(images.ByUpload) {
		return "by upload"
	}
	e := d.lock.Schematics[name]
	file := of.File(d.lock, e)
	known := file.SizeBytes > 0 && d.src.ErrImages == nil
	var why string
	var err error
	switch {
	case d.ByImager(name):
		why = images.BuiltByImager
	case known:
		why, err = images.NoDownload(ctx, d.src.Proxmox, host, storage, d.src.Images.Factory.ImageURL(of, images.RequestOf(d.lock, e)), file)
	default:
		why, err = d.src.Proxmox.MayDownload(ctx, host, storage)
	}
	switch {
	case err != nil:
		return fmt.Sprintf("by upload: %v", err)
	case why == "" && known:
		return host + " downloads it from " + d.Config.Images.Factory
	case why == "":
		return fmt.Sprintf("by download on %s if the factory can be reached from there", host)
	case asked == string(images.DownloadURL):
		return "but not by download-url, as is configured: " + why
	}
	return "by upload: " + why
}

// spool checks the space where the contacted host stores an upload until it is complete:
// /var/tmp (pve-http-server, APIServer/AnyEvent.pm).
func (d *checkup) spool() {
	for _, h := range d.hosts {
		switch {
		case !h.Entry || len(h.Errs) > 0 && h.SpoolFree == 0:
		case h.SpoolFree < d.largest(images.BootISO):
			d.refuse(GroupStorage, "upload spool", "free space below /var/tmp there", "%s has %s free on its root filesystem, but a boot ISO needs %s", h.Name, cluster.Size(h.SpoolFree), cluster.Size(d.largest(images.BootISO)))
		default:
			d.ok(GroupStorage, "upload spool", "%s has %s free on its root filesystem", h.Name, cluster.Size(h.SpoolFree))
		}
	}
}

// diskUse is a storage as nodes on one host use it.
type diskUse struct{ storage, host string }

func (d *checkup) diskUses() []diskUse {
	var uses []diskUse
	for _, a := range d.res.Nodes {
		for _, storage := range a.Storages() {
			if u := (diskUse{storage, a.Host}); !slices.Contains(uses, u) {
				uses = append(uses, u)
			}
		}
	}
	slices.SortFunc(uses, func(a, b diskUse) int {
		return cmp.Or(strings.Compare(a.storage, b.storage), strings.Compare(a.host, b.host))
	})
	return uses
}

func (d *checkup) diskStorage(ctx context.Context, u diskUse) {
	what := fmt.Sprintf("disk storage %s on %s", u.storage, u.host)
	if d.unseen(u.storage) {
		d.warn(GroupStorage, what, "", "can't be seen without Datastore.Audit on /storage/%s", u.storage)
		return
	}
	info, err := d.src.Proxmox.Storage(ctx, u.host, u.storage)
	i := slices.IndexFunc(d.survey.Storages, func(s cluster.Storage) bool { return s.Name == u.storage })
	switch {
	case err != nil:
		d.fail(GroupStorage, what, err)
	case !slices.Contains(info.Content, "images"):
		d.refuse(GroupStorage, what, fmt.Sprintf("pvesm set %s --content %s", u.storage, strings.Join(append(slices.Clone(info.Content), "images"), ",")),
			"does not take disks: its content is %s", strings.Join(info.Content, ", "))
	case !info.Active:
		d.refuse(GroupStorage, what, "see pvesm status on "+u.host, "is not active there")
	case i >= 0 && !d.survey.Storages[i].CanReassign():
		d.warn(GroupStorage, what, "move the nodes' disks to another storage", "its type %s can't hand a disk to another VM: nodes on it are upgraded in place", d.survey.Storages[i].Type)
	default:
		d.ok(GroupStorage, what, "%s free", cluster.Size(info.FreeBytes))
	}
}

// systemSpace checks the space for new system disks of all nodes, in addition to the old ones, which stay parked.
func (d *checkup) systemSpace(ctx context.Context) {
	rooms := map[string]cluster.Room{}
	for _, host := range d.hostsOfNodes() {
		room, err := d.src.Proxmox.Room(ctx, host)
		room.Err = err
		rooms[host] = room
	}
	for _, use := range observe.SpaceUses(d.survey.NewDisks(d.wanted, d.res.Nodes), rooms) {
		what := fmt.Sprintf("room for system disks on %s of %s", use.Storage, use.Host)
		lacks := use.Lacks(1)
		first := slices.IndexFunc(lacks, func(lack string) bool { return lack != "" })
		switch {
		case first == 0:
			d.refuse(GroupStorage, what, "", "%s", lacks[0])
		case first > 0:
			d.warn(GroupStorage, what, "", "not enough for all %d nodes in one roll: %s: %s", len(lacks), use.Disks[first].Node, lacks[first])
		default:
			d.ok(GroupStorage, what, "%s free, %d nodes need %s", cluster.Size(use.Room.Free), len(lacks), cluster.Size(use.Takes()))
		}
		for _, text := range use.Warn() {
			d.warn(GroupStorage, what, "", "%s", text)
		}
	}
}

func (d *checkup) thinPools() {
	for _, h := range d.hosts {
		if h.ErrPools != nil && fault.KindOf(h.ErrPools) != fault.Refused {
			d.warn(GroupStorage, "thin pools on "+h.Name, "", "can't be read: %s", h.ErrPools)
		}
		for _, p := range h.ThinPools {
			what := fmt.Sprintf("thin pool %s/%s on %s", p.VG, p.Name, h.Name)
			data, meta := share(p.Used, p.Size), share(p.MetaUsed, p.MetaSize)
			if data > cluster.FullPool || meta > cluster.FullPool {
				d.warn(GroupStorage, what, "extend it (lvextend, lvextend --poolmetadatasize): a full pool breaks every disk in it", "data %.0f%% full, metadata %.0f%%", 100*data, 100*meta)
				continue
			}
			d.ok(GroupStorage, what, "data %.0f%% full, metadata %.0f%%", 100*data, 100*meta)
		}
	}
}

func share(used, size int64) float64 {
	if size <= 0 {
		return 0
	}
	return float64(used) / float64(size)
}

// replication reports on the storage systems that keep volumes on several nodes: whether they wait as long as nodes
// are away, and whether recast may make them wait longer, or has left that setting changed. Systems that could not be
// read were reported with their nodes.
func (d *checkup) replication(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askWorld)
	defer cancel()
	for _, s := range d.survey.Storage {
		if s.Away != "" {
			d.refuse(GroupStorage, s.Name, "bring its controllers back: without them no node with its volumes is taken out", "%s", s.Away)
		}
		d.patience(ctx, s)
		for _, held := range s.Held {
			d.add(Check{
				Group: GroupStorage, What: s.Name, State: Warning, Seen: strings.TrimPrefix(held.String(), s.Name+": "),
				Remedy: []string{"recast roll and recast undo give it back once they are no longer out", "by hand: " + held.Undo},
			})
		}
	}
}

// patience compares how long a storage system waits with how long its nodes are away.
func (d *checkup) patience(ctx context.Context, s replica.System) {
	node, away := "", time.Duration(0)
	past, _ := story.Durations(d.Runs().Dir) // without them, outages are assumed
	for _, a := range d.res.Nodes {
		n := planning.NodePlan{Node: a.Node, Role: a.Role, Strategy: cmp.Or(a.Strategy, cluster.Recreate)}
		n.Estimate(past)
		if counts := s.On(a.Node) > 0 || s.Evicts; counts && s.PatienceFor(a.Node) < replica.Forever && planning.Outage(n) > away {
			node, away = a.Node, planning.Outage(n)
		}
	}
	seen := words.Counted(len(s.Volumes), "volume")
	if s.Pools {
		seen = words.Counted(len(s.Volumes), "cluster")
	}
	holding := s.Holding(node, away)
	switch known := s.Patience > 0 || s.Holds && !s.Evicts; {
	case known && s.Evicts:
		seen += fmt.Sprintf("; evicts a node that is away for %s (%s)", s.Patience, s.Waits)
	case known:
		seen += fmt.Sprintf("; waits %s for a node that is away (%s)", s.Patience, s.Waits)
	}
	if away <= s.PatienceFor(node) && holding == 0 || s.PatienceFor(node) == 0 && !s.Holds {
		d.ok(GroupStorage, s.Name, "%s", seen)
		return
	}
	seen += fmt.Sprintf(", and %s is expected to be away for %s", node, away)
	if holding == 0 {
		d.warn(GroupStorage, s.Name, strings.ReplaceAll(s.Remedy, "NODE", node), "%s: after that it makes other replicas", seen)
		return
	}
	if err := d.src.Kube.MayHold(ctx, s.Name); err != nil {
		d.fail(GroupStorage, s.Name, err)
		return
	}
	d.ok(GroupStorage, s.Name, "%s: a roll has it wait %s", seen, holding)
}
