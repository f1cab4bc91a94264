package pve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
)

// Ties implements cluster.Inventory.
func (c *Client) Ties(ctx context.Context, vm cluster.VM) (cluster.Ties, error) {
	of := c.TiesOf(ctx, []cluster.VM{vm})[0]
	return of.Ties, of.Err
}

// TiesOf implements cluster.Inventory. A VM's error is that something cannot be read, with
// every privilege that is missing; lists that Proxmox shortens for a token
// without rights are short without an error.
func (c *Client) TiesOf(ctx context.Context, vms []cluster.VM) []cluster.TiesRead {
	l := &look{Client: c}
	of := make([]cluster.TiesRead, len(vms))
	g := errgroup.Group{}
	g.SetLimit(readsAtOnce)
	for i, vm := range vms {
		g.Go(func() error {
			of[i].Ties, of[i].Err = l.ties(ctx, vm)
			return nil
		})
	}
	_ = g.Wait() // each error is kept with its VM
	return of
}

func (l *look) ties(ctx context.Context, vm cluster.VM) (cluster.Ties, error) {
	fw, wrong, errFirewall := l.firewall(ctx, vm)
	acl, errACL := l.aclEntries(ctx, vm.ID)
	jobs, errJobs := l.replicationJobs(ctx, vm.ID)
	snapshots, errSnapshots := l.snapshots(ctx, vm)
	backups, errBackups := l.backups(ctx, vm)
	replications, errReplications := l.replications(ctx, vm, jobs)
	ha, errHA := l.haResource(ctx, vm.ID)
	tags, errTags := l.restrictedTags(ctx, vm)
	err := errors.Join(errFirewall, errACL, errJobs, errSnapshots, errBackups, errReplications, errHA, errTags)
	if err != nil {
		return cluster.Ties{}, fmt.Errorf("read what belongs to %s: %w", vm, err)
	}
	for _, option := range fw.Unsettable() {
		wrong = append(wrong, fmt.Sprintf("option %s, which only an editor writes", option))
	}
	for _, why := range wrong {
		acl = append(acl, "a firewall that Proxmox would not take again ("+why+")")
	}
	return cluster.Ties{Firewall: fw, Dropped: acl, Jobs: jobs, Snapshots: snapshots, Busy: append(backups, replications...), HA: ha, Tags: tags}, nil
}

// aclEntries names the ACL entries of the VM itself, as far as our token sees them.
func (l *look) aclEntries(ctx context.Context, id cluster.VMID) ([]string, error) {
	paths, err := once(ctx, l, "acl", func() (map[string]bool, error) {
		var acls []struct{ Path string }
		err := l.get(ctx, "/access/acl", &acls)
		paths := map[string]bool{}
		for _, a := range acls {
			paths[a.Path] = true
		}
		return paths, err
	})
	if path := fmt.Sprintf("/vms/%d", id); err == nil && paths[path] {
		return []string{"an ACL entry at " + path}, nil
	}
	return nil, err
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
func (l *look) restrictedTags(ctx context.Context, vm cluster.VM) ([]string, error) {
	mine := strings.FieldsFunc(vm.Config["tags"], func(r rune) bool { return strings.ContainsRune(";, ", r) })
	if len(mine) == 0 {
		return nil, nil
	}
	allowed, err := once(ctx, l, "tags", func() ([]string, error) {
		var options struct {
			Allowed []string `json:"allowed-tags"`
		}
		err := l.get(ctx, "/cluster/options", &options)
		return options.Allowed, err
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(mine, func(tag string) bool { return slices.Contains(allowed, tag) }), nil
}
