package pve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// Ties implements cluster.Inventory. It fails if anything cannot be read, with
// every privilege that is missing; lists that Proxmox shortens for a token
// without rights are short without an error.
func (c *Client) Ties(ctx context.Context, vm cluster.VM) (cluster.Ties, error) {
	firewall, errFirewall := c.firewall(ctx, vm)
	acl, errACL := c.aclEntries(ctx, vm.ID)
	jobs, errJobs := c.replicationJobs(ctx, vm.ID)
	snapshots, errSnapshots := c.snapshots(ctx, vm)
	backups, errBackups := c.backups(ctx, vm)
	replications, errReplications := c.replications(ctx, vm, jobs)
	ha, errHA := c.HAResource(ctx, vm.ID)
	tags, errTags := c.restrictedTags(ctx, vm)
	err := errors.Join(errFirewall, errACL, errJobs, errSnapshots, errBackups, errReplications, errHA, errTags)
	if err != nil {
		return cluster.Ties{}, fmt.Errorf("read what belongs to %s: %w", vm, err)
	}
	t := cluster.Ties{Dropped: append(firewall, acl...), Snapshots: snapshots, Busy: append(backups, replications...), HA: ha, Tags: tags}
	for _, id := range jobs {
		t.Dropped = append(t.Dropped, "replication job "+id)
	}
	return t, nil
}

// firewall names what /etc/pve/firewall/<vmid>.fw holds. Proxmox removes the
// file with the VM (Qemu.pm, destroy_vm).
func (c *Client) firewall(ctx context.Context, vm cluster.VM) ([]string, error) {
	var options map[string]json.RawMessage
	var rules, aliases, ipsets []json.RawMessage
	if err := errors.Join(
		c.get(ctx, vmPath(vm, "firewall/rules"), &rules),
		c.get(ctx, vmPath(vm, "firewall/options"), &options),
		c.get(ctx, vmPath(vm, "firewall/aliases"), &aliases),
		c.get(ctx, vmPath(vm, "firewall/ipset"), &ipsets),
	); err != nil {
		return nil, err
	}
	delete(options, "digest")
	var found []string
	for _, part := range []struct {
		n    int
		what string
	}{{len(rules), "rules"}, {len(options), "options"}, {len(aliases), "aliases"}, {len(ipsets), "IP sets"}} {
		if part.n > 0 {
			found = append(found, fmt.Sprintf("%d firewall %s", part.n, part.what))
		}
	}
	return found, nil
}

// aclEntries names the ACL entries of the VM itself, as far as our token sees them.
func (c *Client) aclEntries(ctx context.Context, id cluster.VMID) ([]string, error) {
	var acls []struct{ Path string }
	if err := c.getShared(ctx, "/access/acl", &acls); err != nil {
		return nil, err
	}
	path := fmt.Sprintf("/vms/%d", id)
	for _, a := range acls {
		if a.Path == path {
			return []string{"an ACL entry at " + path}, nil
		}
	}
	return nil, nil
}

// snapshots lists the VM's snapshots by name. Proxmox's list ends with the
// present state, under the name "current".
func (c *Client) snapshots(ctx context.Context, vm cluster.VM) ([]string, error) {
	var rows []struct{ Name string }
	if err := c.get(ctx, vmPath(vm, "snapshot"), &rows); err != nil {
		return nil, err
	}
	var names []string
	for _, r := range rows {
		if r.Name != "current" {
			names = append(names, r.Name)
		}
	}
	return names, nil
}

// restrictedTags are those of the VM's tags that Proxmox lists as allowed to
// others only: registered ones, and those beyond the cluster's user-tag-access
// (pve-guest-common, GuestHelpers.pm, get_allowed_tags).
func (c *Client) restrictedTags(ctx context.Context, vm cluster.VM) ([]string, error) {
	mine := strings.FieldsFunc(vm.Config["tags"], func(r rune) bool { return strings.ContainsRune(";, ", r) })
	if len(mine) == 0 {
		return nil, nil
	}
	var options struct {
		Allowed []string `json:"allowed-tags"`
	}
	if err := c.getShared(ctx, "/cluster/options", &options); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(mine, func(tag string) bool { return slices.Contains(options.Allowed, tag) }), nil
}
