package pve

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/recast-sh/recast/cluster"
)

// Bound names what Proxmox keeps for a VM outside of its configuration and
// would drop with it, or for whose sake it would refuse the delete: firewall
// rules, ACL entries as far as our token sees them, replication jobs.
func (c *Client) Bound(ctx context.Context, vm cluster.VM) ([]string, error) {
	var rules []struct{}
	var acls []struct{ Path string }
	var jobs []struct {
		ID    string
		Guest flexInt
	}
	id := strconv.Itoa(int(vm.ID))
	if err := errors.Join(
		c.get(ctx, "/nodes/"+url.PathEscape(vm.Host)+"/qemu/"+id+"/firewall/rules", &rules),
		c.get(ctx, "/access/acl", &acls),
		c.get(ctx, "/cluster/replication", &jobs),
	); err != nil {
		return nil, fmt.Errorf("read what belongs to %s: %w", vm, err)
	}
	var out []string
	if len(rules) > 0 {
		out = append(out, fmt.Sprintf("%d firewall rules", len(rules)))
	}
	for _, a := range acls {
		if a.Path == "/vms/"+id {
			out = append(out, "an ACL entry at "+a.Path)
			break
		}
	}
	for _, j := range jobs {
		if int(j.Guest) == int(vm.ID) {
			out = append(out, "replication job "+j.ID)
		}
	}
	return out, nil
}

// flexInt is a number that Proxmox writes as one or as a string.
type flexInt int

// UnmarshalJSON reads both forms.
func (n *flexInt) UnmarshalJSON(b []byte) error {
	s := string(b)
	if unquoted, err := strconv.Unquote(s); err == nil {
		s = unquoted
	}
	v, err := strconv.Atoi(s)
	*n = flexInt(v)
	return err
}
