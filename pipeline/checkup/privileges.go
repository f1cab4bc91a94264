package checkup

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/survey"
)

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

// agents warns if scratch VMs could be found only by their guest agent, and the token may
// not use it.
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
