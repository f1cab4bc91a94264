package pve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
)

// Ties implements cluster.TieReader.
func (c *Client) Ties(ctx context.Context, vm cluster.VM) (cluster.Ties, error) {
	of := c.TiesOf(ctx, []cluster.VM{vm})[0]
	return of.Ties, of.Err
}

// TiesOf implements cluster.TieReader. A VM's error says what cannot be read, with
// every missing privilege; lists that Proxmox filters for a token without rights are
// incomplete without an error.
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

func (l *look) of(ctx context.Context, vm cluster.VM) (cluster.Ties, error) {
	fw, wrong, errFirewall := l.firewall(ctx, vm)
	acl, errACL := l.aclEntries(ctx, vm.ID)
	jobs, errJobs := l.replicationJobs(ctx, vm.ID)
	snapshots, errSnapshots := l.snapshots(ctx, vm)
	backups, errBackups := l.backups(ctx, vm)
	replications, errReplications := l.replications(ctx, vm, jobs)
	ha, errHA := l.haResource(ctx, vm.ID)
	tags, errTags := l.restrictedTags(ctx, vm)
	snippets, errSnippets := l.snippets(ctx, vm)
	arch, errArch := l.hostArch(ctx, vm)
	vnets, errVNets := l.vnets(ctx, vm)
	err := errors.Join(errFirewall, errACL, errJobs, errSnapshots, errBackups, errReplications, errHA, errTags, errSnippets, errArch, errVNets)
	if err != nil {
		return cluster.Ties{}, fmt.Errorf("read what belongs to %s: %w", vm, err)
	}
	for _, option := range fw.Unsettable() {
		wrong = append(wrong, fmt.Sprintf("option %s, which only an editor writes", option))
	}
	var dropped []string
	for _, why := range wrong {
		dropped = append(dropped, "a firewall that Proxmox would not take again ("+why+")")
	}
	return cluster.Ties{Firewall: fw, Dropped: dropped, ACL: acl, Jobs: jobs, Snapshots: snapshots, Busy: append(backups, replications...), HA: ha, Tags: tags, HostArch: arch, VNets: vnets, Snippets: snippets}, nil
}

// aclEntries returns the ACL entries of the VM itself that our token sees.
func (l *look) aclEntries(ctx context.Context, id cluster.VMID) ([]cluster.ACLEntry, error) {
	entries, err := once(ctx, l, "acl", func() (map[string][]cluster.ACLEntry, error) {
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

// tagOptions is what the datacentre says of tags.
type tagOptions struct {
	Allowed []string `json:"allowed-tags"`
	Access  struct {
		Allow string   `json:"user-allow"`
		List  []string `json:"user-allow-list"`
	} `json:"user-tag-access"` // only for a token with Sys.Audit on /
}

// restrictedTags returns the VM's tags that Proxmox does not allow us to set on a new VM: registered
// ones, those outside of user-tag-access, and, where that allows the tags that exist, those that no
// other VM has: they exist no more once the VM is deleted (pve-guest-common, GuestHelpers.pm,
// get_allowed_tags).
func (l *look) restrictedTags(ctx context.Context, vm cluster.VM) ([]string, error) {
	mine := splitTags(vm.Config["tags"])
	if len(mine) == 0 {
		return nil, nil
	}
	options, err := once(ctx, l, "tags", func() (options tagOptions, err error) {
		return options, l.conn.Get(ctx, "/cluster/options", &options)
	})
	if err != nil {
		return nil, err
	}
	allowed := options.Allowed
	if options.Access.Allow == "existing" {
		rows, err := once(ctx, l, "guests", func() (rows []resource, err error) { // containers, too
			return rows, l.conn.Get(ctx, "/cluster/resources?type=vm", &rows)
		})
		if err != nil {
			return nil, err
		}
		others := slices.Clone(options.Access.List)
		for _, row := range rows {
			if cluster.VMID(row.VMID) != vm.ID {
				others = append(others, splitTags(row.Tags)...)
			}
		}
		allowed = slices.DeleteFunc(slices.Clone(allowed), func(tag string) bool { return !slices.Contains(others, tag) })
	}
	return slices.DeleteFunc(mine, func(tag string) bool { return slices.Contains(allowed, tag) }), nil
}

func splitTags(tags string) []string {
	return strings.FieldsFunc(tags, func(r rune) bool { return strings.ContainsRune(";, ", r) })
}

// hostArch returns the architecture of the VM's host in a VM's spelling. It is read
// only if the VM sets arch. Proxmox 7 does not report it; later versions not to
// every token.
func (l *look) hostArch(ctx context.Context, vm cluster.VM) (string, error) {
	if vm.Config["arch"] == "" {
		return "", nil
	}
	return once(ctx, l, "arch of "+vm.Host, func() (string, error) {
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

// vnets returns the VM's networks other than the hosts' own bridges. A host lists
// the SDN VNets that the token may see or use (pve-network, PVE/Network/SDN.pm,
// get_local_vnets).
func (l *look) vnets(ctx context.Context, vm cluster.VM) ([]cluster.VNet, error) {
	names := cluster.ForeignBridges(vm)
	if len(names) == 0 {
		return nil, nil
	}
	ipam, err := once(ctx, l, "VNets of "+vm.Host, func() (map[string]bool, error) {
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
	var out []cluster.VNet
	for _, name := range names {
		keeps, shown := ipam[name]
		out = append(out, cluster.VNet{Name: name, IPAM: keeps, Hidden: !shown})
	}
	return out, nil
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
	err := c.conn.Get(ctx, fmt.Sprintf("/nodes/%s/qemu/%d/agent/network-get-interfaces", url.PathEscape(vm.Host), vm.ID), &answer)
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
