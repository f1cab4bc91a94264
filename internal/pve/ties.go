package pve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
)

func (c *Client) Ties(ctx context.Context, vm cluster.VM) (cluster.Ties, error) {
	of := c.TiesOf(ctx, []cluster.VM{vm})[0]
	return of.Ties, of.Err
}

// TiesOf implements cluster.TieReader. A VM's error says what cannot be read, with every missing privilege; lists that
// Proxmox filters for a token without rights are incomplete without an error.
func (c *Client) TiesOf(ctx context.Context, vms []cluster.VM) []cluster.TiesRead {
	l := &look{Client: c}
	of := make([]cluster.TiesRead, len(vms))
	g := errgroup.Group{}
	g.SetLimit(api.ReadsAtOnce)
	for i, vm := range vms {
		g.Go(func() error {
			of[i].Ties, of[i].Err = l.of(ctx, vm)
			return nil
		})
	}
	_ = g.Wait() // each error is kept with its VM
	return of
}

// look reads many VMs. What Proxmox keeps in one place for all VMs, look reads only once. The look and its answers
// are dropped afterwards, so that later reads are fresh.
type look struct {
	*Client
	reads sync.Map // of *onceRead, by name
}

// once returns the result of read. All callers in the look that use that name share the result, and have the same
// context, with which read ends. They wait for a channel and not for a sync.Once, whose lock would stop the clock of a
// test's bubble.
func once[T any](l *look, name string, read func() (T, error)) (T, error) {
	kept, begun := l.reads.LoadOrStore(name, &onceRead{done: make(chan struct{})})
	r := kept.(*onceRead)
	if !begun {
		r.answer, r.err = read()
		close(r.done)
	}
	<-r.done
	return r.answer.(T), r.err
}

// onceRead is an answer of look; other callers may wait until it is done.
type onceRead struct {
	done   chan struct{} // closed when the rest is known
	answer any
	err    error
}

func (l *look) of(ctx context.Context, vm cluster.VM) (cluster.Ties, error) {
	fw, wrong, errFirewall := l.firewall(ctx, vm)
	acl, errACL := l.aclEntries(ctx, vm.ID)
	jobs, errJobs := l.replicationJobs(ctx, vm.ID)
	snapshots, errSnapshots := l.snapshots(ctx, vm)
	backups, errBackups := l.backups(ctx, vm)
	replications, errReplications := l.replications(ctx, vm, jobs)
	ha, errHA := l.haResource(ctx, vm.ID)
	disarmed, errDisarmed := l.haDisarmed(ctx, ha)
	tags, errTags := l.restrictedTags(ctx, vm)
	snippets, errSnippets := l.snippets(ctx, vm)
	arch, errArch := l.hostArch(ctx, vm)
	vnets, errVNets := l.vnets(ctx, vm)
	err := errors.Join(errFirewall, errACL, errJobs, errSnapshots, errBackups, errReplications, errHA, errDisarmed, errTags, errSnippets, errArch, errVNets)
	if err != nil {
		return cluster.Ties{}, fmt.Errorf("read what belongs to %s: %w", vm, err)
	}
	for _, option := range fw.Unsettable() {
		wrong = append(wrong, fmt.Sprintf("option %s, which only an editor writes", option))
	}
	dropped := cluster.Each(wrong, func(why string) string { return "a firewall that Proxmox would not take again (" + why + ")" })
	return cluster.Ties{Firewall: fw, Dropped: dropped, ACL: acl, Jobs: jobs, Snapshots: snapshots, Busy: slices.Concat(backups, replications, disarmed), HA: ha, Tags: tags, HostArch: arch, VNets: vnets, Snippets: snippets}, nil
}

// aclEntries returns the ACL entries of the VM itself that our token sees.
func (l *look) aclEntries(ctx context.Context, id cluster.VMID) ([]cluster.ACLEntry, error) {
	entries, err := once(l, "acl", func() (map[string][]cluster.ACLEntry, error) {
		var acls []aclEntry
		err := l.conn.Get(ctx, "/access/acl", &acls)
		entries := map[string][]cluster.ACLEntry{}
		for _, a := range acls {
			entries[a.Path] = append(entries[a.Path], cluster.ACLEntry{Path: a.Path, Kind: a.Type, Who: a.UGID, Role: a.RoleID, Propagate: toBool(a.Propagate)})
		}
		return entries, err
	})
	return entries[fmt.Sprintf("/vms/%d", id)], err
}

type tagOptions struct {
	Allowed []string `json:"allowed-tags"`
	Access  struct {
		Allow string   `json:"user-allow"`
		List  []string `json:"user-allow-list"`
	} `json:"user-tag-access"` // only for a token with Sys.Audit on /
}

// restrictedTags returns the VM's tags that Proxmox does not allow us to set on a new VM: registered tags, and tags
// outside of user-tag-access. If user-tag-access allows existing tags, the result also has the tags that no other VM
// has: such a tag no longer exists once the VM is deleted (pve-guest-common, GuestHelpers.pm, get_allowed_tags).
func (l *look) restrictedTags(ctx context.Context, vm cluster.VM) ([]string, error) {
	mine := strings.FieldsFunc(vm.Config["tags"], isListMark)
	if len(mine) == 0 {
		return nil, nil
	}
	options, err := once(l, "tags", func() (tagOptions, error) { return get[tagOptions](ctx, l.conn, "/cluster/options") })
	if err != nil {
		return nil, err
	}
	allowed := options.Allowed
	if options.Access.Allow == "existing" {
		rows, err := once(l, "guests", func() ([]resource, error) { return get[[]resource](ctx, l.conn, guestList) })
		if err != nil {
			return nil, err
		}
		others := slices.Clone(options.Access.List)
		for _, row := range rows {
			if cluster.VMID(row.VMID) != vm.ID {
				others = append(others, strings.FieldsFunc(row.Tags, isListMark)...)
			}
		}
		allowed = slices.DeleteFunc(slices.Clone(allowed), func(tag string) bool { return !slices.Contains(others, tag) })
	}
	return slices.DeleteFunc(mine, func(tag string) bool { return slices.Contains(allowed, tag) }), nil
}

// hostArch returns the architecture of the VM's host in a VM's spelling. recast reads it only if the VM sets arch.
// Proxmox 7 does not report the architecture; later versions do not report it to every token.
func (l *look) hostArch(ctx context.Context, vm cluster.VM) (string, error) {
	if vm.Config["arch"] == "" {
		return "", nil
	}
	return once(l, "arch of "+vm.Host, func() (string, error) {
		var status struct {
			Kernel struct{ Machine string } `json:"current-kernel"` // uname's (API2/Nodes.pm, status)
		}
		err := l.conn.Get(ctx, "/nodes/"+url.PathEscape(vm.Host)+"/status", &status)
		if api.IsForbidden(err) {
			return "", nil
		}
		return status.Kernel.Machine, err
	})
}

// snippets returns the files of the VM's cicustom that exist, as far as our token sees them.
func (l *look) snippets(ctx context.Context, vm cluster.VM) ([]string, error) {
	var there []string
	for part := range strings.SplitSeq(vm.Config["cicustom"], ",") {
		_, volid, named := strings.Cut(part, "=")
		if !named {
			continue
		}
		has, err := l.HasVolume(ctx, vm.Host, volid)
		switch {
		case api.IsForbidden(err):
		case err != nil:
			return nil, err
		case has:
			there = append(there, volid)
		}
	}
	return there, nil
}

// vnets returns the VM's networks other than the hosts' own bridges. A host lists the SDN VNets that the token may see
// or use (pve-network, PVE/Network/SDN.pm, get_local_vnets).
func (l *look) vnets(ctx context.Context, vm cluster.VM) ([]cluster.VNet, error) {
	names := cluster.ForeignBridges(vm)
	if len(names) == 0 {
		return nil, nil
	}
	ipam, err := once(l, "VNets of "+vm.Host, func() (map[string]bool, error) {
		var rows []struct {
			Iface string
			IPAM  json.RawMessage
		}
		if err := l.conn.Get(ctx, "/nodes/"+url.PathEscape(vm.Host)+"/network?type=any_bridge", &rows); err != nil {
			return nil, fmt.Errorf("read the bridges of %s: %w", vm.Host, err)
		}
		ipam := map[string]bool{}
		for _, r := range rows {
			ipam[r.Iface] = len(r.IPAM) > 0 && toBool(r.IPAM)
		}
		return ipam, nil
	})
	if err != nil {
		return nil, err
	}
	return cluster.Each(names, func(name string) cluster.VNet {
		keeps, shown := ipam[name]
		return cluster.VNet{Name: name, IPAM: keeps, Hidden: !shown}
	}), nil
}

// GuestAddrs implements cluster.TieReader. Every error of the agent, including a
// missing agent, has status 500 (API2/Qemu/Agent.pm).
func (c *Client) GuestAddrs(ctx context.Context, vm cluster.VM) ([]netip.Addr, error) {
	var answer struct {
		Result []struct {
			Name      string
			Addresses []struct {
				Address string `json:"ip-address"`
			} `json:"ip-addresses"`
		}
	}
	err := c.conn.Get(ctx, vmPath(vm, "agent/network-get-interfaces"), &answer)
	if e, ok := errors.AsType[*api.Error](err); ok && e.Status == http.StatusInternalServerError {
		return nil, fmt.Errorf("%w: %w", cluster.ErrNotYet, err)
	}
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, card := range answer.Result {
		for _, a := range card.Addresses {
			addr, err := netip.ParseAddr(a.Address)
			if err == nil && card.Name != "lo" && !addr.IsLinkLocalUnicast() {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs, nil
}

// backups describes the VM's running and due backups.
func (l *look) backups(ctx context.Context, vm cluster.VM) ([]string, error) {
	tasks, errTasks := once(l, "tasks/"+vm.Host, func() ([]api.UPID, error) { return l.activeTasks(ctx, vm.Host) })
	schedule, errJobs := once(l, "backups", func() (s backupSchedule, err error) {
		s.asOf, err = l.conn.GetDated(ctx, "/cluster/backup", &s.jobs)
		return s, err
	})
	if err := errors.Join(errTasks, errJobs); err != nil {
		return nil, err
	}
	// Proxmox computed NextRun by the clock in the answer's Date header.
	jobs, now := schedule.jobs, schedule.asOf
	if now.IsZero() && len(jobs) > 0 { // a proxy removed the header
		var err error
		if now, err = once(l, "clock/"+vm.Host, func() (time.Time, error) { return l.clock(ctx, vm.Host) }); err != nil {
			return nil, err
		}
	}
	var busy []string
	if vm.Lock == "backup" {
		busy = append(busy, "locked by a backup")
	}
	for _, t := range tasks {
		switch {
		case t.Type != "vzdump":
		case t.ID == strconv.Itoa(int(vm.ID)):
			busy = append(busy, "running task "+t.String())
		case t.ID == "":
			// A backup of several VMs names none of them (API2/VZDump.pm) and locks each only when its turn comes.
			busy = append(busy, "running task "+t.String()+" of several VMs")
		}
	}
	if slices.ContainsFunc(jobs, func(j backupJob) bool { return j.Pool != "" }) {
		rows, err := once(l, "pools", func() ([]resource, error) { return l.resources(ctx) })
		if err == nil {
			vm.Pool, err = poolOf(rows, vm.ID)
		}
		if err != nil {
			return nil, err
		}
	}
	for _, j := range jobs {
		if !j.includes(vm) {
			continue
		}
		if when := due(int64(j.NextRun), now); when != "" {
			busy = append(busy, "backup job "+j.ID+" "+when)
		}
	}
	return busy, nil
}

type backupSchedule struct {
	jobs []backupJob
	asOf time.Time // by the clock of the host that computed it; zero if unknown
}

type backupJob struct {
	ID                        string
	Enabled                   json.RawMessage // absent means on
	Node, Pool, VMID, Exclude string
	All                       json.RawMessage
	NextRun                   flexInt `json:"next-run"` // computed by Proxmox for each request
}

// includes reports whether the job is enabled and covers the VM. As in get_included_guests (VZDump.pm), a pool takes
// precedence over a list, and a list over all.
func (j backupJob) includes(vm cluster.VM) bool {
	if len(j.Enabled) > 0 && !toBool(j.Enabled) || j.Node != "" && j.Node != vm.Host {
		return false
	}
	id := strconv.Itoa(int(vm.ID))
	switch {
	case j.Pool != "":
		return j.Pool == vm.Pool
	case j.VMID != "":
		return slices.Contains(splitList(j.VMID), id)
	}
	// A list of exclusions alone means all others (verify_vzdump_parameters).
	return (toBool(j.All) || j.Exclude != "") && !slices.Contains(splitList(j.Exclude), id)
}

// splitList splits a Proxmox list at commas, semicolons and blanks.
func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(",; \t\n\x00", r) })
}

// due says when a backup with that start time (Unix seconds) is due; "" if later than cluster.BusyWithin. now is the
// time at the host that computed the start time: our clock may differ. A start time of 0 means that Proxmox does not
// report it.
func due(unix int64, now time.Time) string {
	at := time.Unix(unix, 0)
	switch {
	case unix == 0:
		return "due at a time that Proxmox does not report"
	case at.After(now.Add(cluster.BusyWithin)):
		return ""
	}
	return "due at " + at.UTC().Format("2006-01-02 15:04 MST")
}

// replicationJobs lists the VM's replication jobs, disabled jobs too: each job makes Proxmox refuse to delete the VM
// (Qemu.pm, destroy_vm).
func (l *look) replicationJobs(ctx context.Context, id cluster.VMID) ([]cluster.ReplicationJob, error) {
	byGuest, err := once(l, "replication jobs", func() (map[cluster.VMID][]cluster.ReplicationJob, error) {
		var rows []struct {
			ID, Target, Schedule string
			Guest                flexInt
			Rate, Disable        json.RawMessage
		}
		err := l.conn.Get(ctx, "/cluster/replication", &rows)
		jobs := map[cluster.VMID][]cluster.ReplicationJob{}
		for _, r := range rows {
			id := cluster.VMID(r.Guest)
			jobs[id] = append(jobs[id], cluster.ReplicationJob{ID: r.ID, Target: r.Target, Schedule: r.Schedule, Rate: scalar(r.Rate), Disabled: toBool(r.Disable)})
		}
		return jobs, err
	})
	return byGuest[id], err
}

// replication is a job as its guest's host reports it.
type replication struct {
	ID    string
	Guest flexInt
	PID   flexInt // of the running worker
}

// replications describes the VM's running replication jobs. A job that is only due does not block: most are due every
// few minutes. Only the VM's host knows the state of a job.
func (l *look) replications(ctx context.Context, vm cluster.VM, jobs []cluster.ReplicationJob) ([]string, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	rows, err := once(l, "replications/"+vm.Host, func() ([]replication, error) {
		return get[[]replication](ctx, l.conn, "/nodes/"+url.PathEscape(vm.Host)+"/replication")
	})
	run := cluster.Where(rows, func(r replication) bool { return cluster.VMID(r.Guest) == vm.ID && r.PID != 0 })
	return cluster.Each(run, func(r replication) string { return "replication job " + r.ID + " runs" }), err
}

// derived are the fields that Proxmox adds when it shows a firewall entry.
var derived = []string{"digest", "ipversion", "pos"}

func (c *Client) Firewall(ctx context.Context, vm cluster.VM) (cluster.FirewallConfig, error) {
	f, _, err := c.firewall(ctx, vm)
	return f, err
}

// firewall reads a VM's firewall. wrong lists the rules that Proxmox itself no
// longer accepts, for example because a cluster alias was deleted.
func (c *Client) firewall(ctx context.Context, vm cluster.VM) (f cluster.FirewallConfig, wrong []string, err error) {
	var options map[string]json.RawMessage
	var rules, aliases, sets []map[string]json.RawMessage
	if err := wait.All(
		func() error { return c.conn.Get(ctx, vmPath(vm, "firewall/rules"), &rules) },
		func() error { return c.conn.Get(ctx, vmPath(vm, "firewall/options"), &options) },
		func() error { return c.conn.Get(ctx, vmPath(vm, "firewall/aliases"), &aliases) },
		func() error { return c.conn.Get(ctx, vmPath(vm, "firewall/ipset"), &sets) },
	); err != nil {
		return f, nil, err
	}
	for i, r := range rules {
		if why, has := r["errors"]; has {
			wrong = append(wrong, fmt.Sprintf("rule %d: %s", i, why))
			delete(r, "errors")
		}
	}
	f.Rules, f.Aliases = cluster.Each(rules, firewallEntry), cluster.Each(aliases, firewallEntry)
	if o := firewallEntry(options); len(o) > 0 {
		f.Options = o
	}
	for _, s := range cluster.Each(sets, firewallEntry) {
		var members []map[string]json.RawMessage
		if err := c.conn.Get(ctx, vmPath(vm, "firewall/ipset/"+url.PathEscape(s["name"])), &members); err != nil {
			return f, nil, err
		}
		f.Sets = append(f.Sets, cluster.FirewallSet{Name: s["name"], Comment: s["comment"], Members: cluster.Each(members, firewallEntry)})
	}
	return f, wrong, nil
}

// firewallEntry returns the fields except the derived ones. Proxmox shows numbers as numbers or as text.
func firewallEntry(fields map[string]json.RawMessage) cluster.FirewallEntry {
	out := cluster.FirewallEntry{}
	for name, raw := range fields {
		if text := scalar(raw); text != "" && string(raw) != "null" && !slices.Contains(derived, name) {
			out[name] = text
		}
	}
	return out
}

// SetFirewall implements cluster.Editor. None of its changes runs in a worker.
func (c *Client) SetFirewall(ctx context.Context, vm cluster.VM, want cluster.FirewallConfig) error {
	now, err := c.Firewall(ctx, vm)
	if err != nil {
		return err
	}
	for _, m := range firewallChanges(vm, now, want) {
		if err := c.conn.Change(ctx, m.method, m.path, m.params, nil); err != nil {
			return fmt.Errorf("set up the firewall of %s: %w", vm, err)
		}
	}
	now, err = c.Firewall(ctx, vm)
	if err == nil && now.Sum() != want.Sum() {
		err = fmt.Errorf("the firewall of %s differs from what was written: Proxmox shows %s: %w", vm, cmp.Or(now.String(), "none"), cluster.ErrChanged)
	}
	return err
}

// firewallChanges turns one firewall into another: a part that differs is rewritten. Aliases come before the sets that
// name them, and both before the rules. A new rule always goes to the top, whatever position is requested
// (pve-firewall, PVE/API2/Firewall/Rules.pm, create_rule).
func firewallChanges(vm cluster.VM, now, want cluster.FirewallConfig) (list []mutation) {
	change := func(method, path string, params map[string]string) {
		list = append(list, mutation{method: method, path: vmPath(vm, "firewall/"+path), params: params})
	}
	aliases, sets, rules := !reflect.DeepEqual(now.Aliases, want.Aliases), !reflect.DeepEqual(now.Sets, want.Sets), !reflect.DeepEqual(now.Rules, want.Rules)
	if rules {
		for range now.Rules {
			change(http.MethodDelete, "rules/0", nil)
		}
	}
	if sets {
		for _, s := range now.Sets {
			change(http.MethodDelete, "ipset/"+url.PathEscape(s.Name)+"?force=1", nil)
		}
	}
	if aliases {
		for _, a := range now.Aliases {
			change(http.MethodDelete, "aliases/"+url.PathEscape(a["name"]), nil)
		}
		for _, a := range want.Aliases {
			change(http.MethodPost, "aliases", a)
		}
	}
	if sets {
		for _, s := range want.Sets {
			params := map[string]string{"name": s.Name}
			if s.Comment != "" {
				params["comment"] = s.Comment
			}
			change(http.MethodPost, "ipset", params)
			for _, member := range s.Members {
				change(http.MethodPost, "ipset/"+url.PathEscape(s.Name), member)
			}
		}
	}
	if rules {
		for _, r := range slices.Backward(want.Rules) {
			change(http.MethodPost, "rules", r)
		}
	}
	if !maps.Equal(now.Options, want.Options) {
		params := map[string]string{}
		maps.Copy(params, want.Options)
		gone := slices.DeleteFunc(slices.Sorted(maps.Keys(now.Options)), func(name string) bool { return want.Options[name] != "" })
		if len(gone) > 0 {
			params["delete"] = strings.Join(gone, ",")
		}
		change(http.MethodPut, "options", params)
	}
	return list
}
