package checkup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
)

// proxmox checks the hosts and their cluster for what a roll relies on.
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
	d.scratch()
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
		d.ok(GroupProxmox, e.URL, "answers as %s", cmp.Or(entry(a.hosts), "one of "+strings.Join(names, ", ")))
	}
	return reached
}

// readHosts reads the details of each host, and says whether that succeeded.
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

func entry(hosts []cluster.Host) string {
	for _, h := range hosts {
		if h.Entry {
			return h.Name
		}
	}
	return ""
}

// errsOf flattens an error of errors.Join.
func errsOf(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, e := range joined.Unwrap() {
			out = append(out, errsOf(e)...)
		}
		return out
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

// privileges compares the token's privileges with those that a roll needs.
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
