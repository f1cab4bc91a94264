// Package pve implements the domain's interfaces to Proxmox VE with one [Client]. The Client waits for the tasks of
// Proxmox, finds out the outcome of changes whose answer was lost, and translates what Proxmox shows into the
// domain's terms.
package pve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
)

// Client talks to one Proxmox cluster. It is safe for concurrent use.
type Client struct {
	conn  *api.Conn
	tasks *tasks
	slots slots
	seen  lastSeen

	proofs proofs
}

var (
	_ cluster.Proxmox = (*Client)(nil)
	_ images.Store    = (*Client)(nil)
	_ images.Shelf    = (*Client)(nil)

	_ images.Importer = (*Client)(nil)
)

// New returns a client without connecting. The caller closes it.
func New(o api.Options) (*Client, error) {
	to, err := api.Connect(o)
	if err != nil {
		return nil, err
	}
	return &Client{
		conn: to, tasks: &tasks{Conn: to}, seen: lastSeen{hosts: map[cluster.VMID]sighting{}, gone: map[cluster.VMID]bool{}},
		proofs: proofs{made: map[cluster.VMID]bool{}, proven: map[cluster.VMID]string{}, foreign: map[cluster.VMID]judged{}},
	}, nil
}

// Close closes the connections to Proxmox. No request may be in flight.
func (c *Client) Close() { c.conn.Close() }

// String names the client without its secret.
func (c *Client) String() string { return c.conn.String() }

// GoString keeps %#v from showing the secret.
func (c *Client) GoString() string { return c.conn.String() }

// Remember makes the client read the token's privileges, the hosts and the storages' contents only once, for a command
// that changes nothing. VMs and tasks are still read each time. Call it before the client is used.
func (c *Client) Remember()       { c.conn.Remember() }
func (c *Client) TokenID() string { return c.conn.TokenID }

// get reads the resource at a path.
func get[T any](ctx context.Context, c *api.Conn, path string) (out T, err error) {
	err = c.Get(ctx, path, &out)
	return out, err
}

// Permissions implements cluster.Access. It asks for this path only: Proxmox's list of all paths omits those where an
// entry removes every privilege (pve-access-control, RPCEnvironment.pm, get_effective_permissions).
func (c *Client) Permissions(ctx context.Context, path string) (cluster.Privileges, error) {
	return c.permissions(ctx, path, "")
}

func (c *Client) permissions(ctx context.Context, path, of string) (cluster.Privileges, error) {
	var paths map[string]map[string]json.RawMessage
	if err := c.conn.Get(ctx, "/access/permissions?path="+url.QueryEscape(path)+of, &paths); err != nil {
		return nil, err
	}
	held := make(cluster.Privileges, len(paths[path]))
	for privilege, propagates := range paths[path] {
		held[privilege] = toBool(propagates) // a listed privilege is granted, whether it propagates or not
	}
	return held, nil
}

// Standing implements cluster.Access. Reading the user's privileges and the whole access control list requires
// Sys.Audit on /access (pve-access-control, API2/AccessControl.pm, permissions; API2/ACL.pm, read_acl).
func (c *Client) Standing(ctx context.Context, paths []string) (map[string]cluster.Standing, error) {
	onAccess, err := c.Permissions(ctx, "/access")
	if err != nil {
		return nil, err
	}
	_, whole := onAccess["Sys.Audit"]
	var acl []aclEntry
	if whole {
		if err := c.conn.Get(ctx, "/access/acl", &acl); err != nil {
			return nil, err
		}
	}
	user := c.conn.User()
	out := make(map[string]cluster.Standing, len(paths))
	for _, path := range paths {
		at := cluster.Standing{Whole: whole}
		if at.Token, err = c.Permissions(ctx, path); err != nil {
			return nil, err
		}
		if whole {
			if at.User, err = c.permissions(ctx, path, "&userid="+url.QueryEscape(user)); err != nil {
				return nil, err
			}
		}
		for _, e := range acl {
			// An entry that does not propagate leaves the entries above it in force below.
			if e.Path == path && toBool(e.Propagate) {
				at.UserEntry, at.TokenEntry = at.UserEntry || e.UGID == user, at.TokenEntry || e.UGID == c.conn.TokenID
			}
		}
		out[path] = at
	}
	return out, nil
}

// seesEveryVM refuses unless the token provably sees every VM; otherwise lists are incomplete without an error. The
// token's privileges alone prove nothing: /access/permissions omits paths on which the token has none
// (RPCEnvironment.pm, get_effective_permissions). A gap below /vms therefore shows only in comparison with the access
// control list, which must itself be complete.
func (c *Client) seesEveryVM(ctx context.Context) error {
	var held map[string]map[string]json.RawMessage
	if err := c.conn.Get(ctx, "/access/permissions", &held); err != nil {
		return err
	}
	if !toBool(held["/vms"][seeVM]) {
		return c.refuseUnseen("/vms", seeVM, " that propagates")
	}
	if held["/access"]["Sys.Audit"] == nil {
		return c.refuseUnseen("/access", "Sys.Audit", ", without which gaps in VM.Audit do not show")
	}
	var acl []aclEntry
	if err := c.conn.Get(ctx, "/access/acl", &acl); err != nil {
		return err
	}
	paths := map[string]bool{}
	for path := range held {
		paths[path] = true
	}
	for _, entry := range acl {
		paths[entry.Path] = true
		if c.hidesPool(entry) {
			return c.refuseUnseen(entry.Path, seeVM, ": the role NoAccess is given there")
		}
	}
	for path := range paths {
		if strings.HasPrefix(path, "/vms/") && held[path][seeVM] == nil {
			return c.refuseUnseen(path, seeVM, "")
		}
	}
	return nil
}

// harmless are Proxmox's own roles that let nobody upload (pve-access-control, AccessControl.pm, $special_roles), and the one whose
// holders may change the access control list anyway.
var harmless = []string{"Administrator", "NoAccess", "PVEAuditor", "PVEDatastoreUser", "PVEMappingAdmin", "PVEMappingAudit", "PVEMappingUser", "PVEPoolAdmin", "PVEPoolUser", "PVESDNAdmin", "PVESDNUser", "PVESysAdmin", "PVETemplateUser", "PVEUserAdmin", "PVEVMAdmin", "PVEVMUser"}

// Uploaders names the other users, tokens and groups that may upload to a storage, as far as our token sees the access
// control list, sorted. Who may change that list anyway is left out. Of groups only the role is known, by its name.
func (c *Client) Uploaders(ctx context.Context, storage string) (names []string, err error) {
	acl, err := get[[]aclEntry](ctx, c.conn, "/access/acl")
	if err != nil {
		return nil, err
	}
	at := "/storage/" + storage
	for _, e := range acl {
		name := e.Type + " " + e.UGID
		switch {
		case e.Path != at && (e.Path != "/storage" && e.Path != "/" || !toBool(e.Propagate)), slices.Contains(names, name):
		case e.UGID == c.conn.User(), strings.HasPrefix(e.UGID, c.conn.User()+"!"):
		case e.Type == "group" && !slices.Contains(harmless, e.RoleID):
			names = append(names, fmt.Sprintf("%s (%s)", name, e.RoleID))
		case e.Type != "group":
			held, err := c.permissions(ctx, at, "&userid="+url.QueryEscape(e.UGID))
			if err != nil {
				return nil, err
			}
			_, uploads := held["Datastore.AllocateTemplate"]
			if _, rules := held["Permissions.Modify"]; uploads && !rules {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

type aclEntry struct {
	Path, UGID, RoleID, Type string
	Propagate                json.RawMessage
}

// hidesPool reports whether an ACL entry takes away our privileges on the VMs of a pool: NoAccess there is the only
// role that overrides entries elsewhere (RPCEnvironment.pm, compile_acl_path). The members of a group are unknown, so
// an entry for any group counts.
func (c *Client) hidesPool(e aclEntry) bool {
	switch {
	case e.RoleID != "NoAccess":
		return false
	case e.UGID == c.conn.TokenID, e.UGID == c.conn.User():
		return e.Path == "/" || e.Path == "/pool" || strings.HasPrefix(e.Path, "/pool/")
	}
	return e.Type == "group" && (e.Path == "/pool" || strings.HasPrefix(e.Path, "/pool/"))
}

// refuseUnseen returns a refusal, because recast would take what an unseen VM uses for unused.
func (c *Client) refuseUnseen(path, privilege, note string) error {
	err := fault.TokenPrivileges.Refusedf("the token %s does not provably see every VM of the Proxmox cluster: it has no %s on %s%s", c.conn.TokenID, privilege, path, note)
	return fault.WithHint(err, "recast would take what an unseen VM uses for unused. The token needs VM.Audit on /vms and Sys.Audit on /, "+
		"both propagated, and no entry below that removes them: pveum acl list; recast doctor says what else is missing")
}

const seeVM = "VM.Audit"

// Hosts lists the nodes of the Proxmox cluster with their readable details. A token without Sys.Audit on / sees fewer.
func (c *Client) Hosts(ctx context.Context) ([]cluster.Host, error) {
	hosts, err := c.HostList(ctx)
	if err != nil {
		return nil, err
	}
	g := errgroup.Group{}
	g.SetLimit(api.ReadsAtOnce)
	for i := range hosts {
		if hosts[i].Online {
			g.Go(func() error { c.readHost(ctx, &hosts[i]); return nil })
		}
	}
	return hosts, g.Wait()
}

// HostList is Hosts without the details of each node.
func (c *Client) HostList(ctx context.Context) ([]cluster.Host, error) {
	var hosts []cluster.Host
	var status []struct {
		Type, Name    string
		Online, Local json.RawMessage
	}
	err := c.conn.Get(ctx, "/cluster/status", &status)
	for _, s := range status {
		if s.Type == "node" {
			hosts = append(hosts, cluster.Host{Name: s.Name, Online: toBool(s.Online), Entry: toBool(s.Local)})
		}
	}
	if !api.IsForbidden(err) {
		return hosts, err
	}
	var nodes []hostRow // every user may see these
	err = c.conn.Get(ctx, "/nodes", &nodes)
	return append(hosts, cluster.Each(nodes, func(n hostRow) cluster.Host { return cluster.Host{Name: n.Node, Online: n.Status != "offline"} })...), err
}

type hostRow struct{ Node, Status string }

func (c *Client) readHost(ctx context.Context, h *cluster.Host) {
	at := "/nodes/" + url.PathEscape(h.Name)
	read := func(what string, out any) {
		if err := c.conn.Get(ctx, at+what, out); err != nil {
			h.Errs = append(h.Errs, err)
		}
	}
	var version struct{ Version string }
	read("/version", &version)
	h.Version = version.Version

	asked := time.Now()
	clock, err := c.clock(ctx, h.Name)
	if err != nil {
		h.Errs = append(h.Errs, err)
	} else {
		h.Clock, h.Asked = clock, asked.Add(time.Since(asked)/2)
	}

	var status struct{ RootFS struct{ Avail json.Number } }
	read("/status", &status)
	h.SpoolFree, _ = status.RootFS.Avail.Int64() // 0 if it could not be read; h.Errs then says why

	h.ThinPools, h.ErrPools = thinPools(ctx, c.conn, at)
}

// thinPool is a row of API2/Disks/LVMThin.pm.
type thinPool struct {
	LV, VG   string
	Size     json.Number `json:"lv_size"`
	Used     json.Number `json:"used"`
	MetaSize json.Number `json:"metadata_size"`
	MetaUsed json.Number `json:"metadata_used"`
}

func thinPools(ctx context.Context, c *api.Conn, at string) ([]cluster.ThinPool, error) {
	var rows []thinPool
	if err := c.Get(ctx, at+"/disks/lvmthin", &rows); err != nil {
		return nil, err
	}
	var pools []cluster.ThinPool
	for _, p := range rows {
		pool := cluster.ThinPool{VG: p.VG, Name: p.LV}
		for _, n := range []struct {
			to   *int64
			from json.Number
		}{{&pool.Size, p.Size}, {&pool.Used, p.Used}, {&pool.MetaSize, p.MetaSize}, {&pool.MetaUsed, p.MetaUsed}} {
			value, err := n.from.Int64()
			if err != nil {
				return nil, fmt.Errorf("thin pool %s/%s: %w", p.VG, p.LV, err)
			}
			*n.to = value
		}
		pools = append(pools, pool)
	}
	return pools, nil
}

func (c *Client) Nodes(ctx context.Context) (online, offline []string, err error) {
	var rows []struct{ Node, Status string }
	if err := c.conn.Get(ctx, "/nodes", &rows); err != nil {
		return nil, nil, fmt.Errorf("list hosts: %w", err)
	}
	for _, r := range rows {
		if r.Status == "offline" {
			offline = append(offline, r.Node)
		} else {
			online = append(online, r.Node)
		}
	}
	slices.Sort(online)
	slices.Sort(offline)
	return online, offline, nil
}

// Quorate implements cluster.HostReader. A node outside a cluster is quorate.
func (c *Client) Quorate(ctx context.Context) (bool, error) {
	var rows []struct {
		Type    string          `json:"type"`
		Quorate json.RawMessage `json:"quorate"`
	}
	if err := c.conn.Get(ctx, "/cluster/status", &rows); err != nil {
		return false, err
	}
	nodes := 0
	for _, row := range rows {
		switch row.Type {
		case "cluster":
			return toBool(row.Quorate), nil
		case "node":
			nodes++
		}
	}
	if nodes != 1 {
		return false, fmt.Errorf("the status of the Proxmox cluster shows neither a cluster nor a single node (%d nodes)", nodes)
	}
	return true, nil
}

// FreeMemory implements cluster.HostReader. "used" excludes what Linux can reclaim;
// before Proxmox 9 there is no "available" (API2/Nodes.pm, status).
func (c *Client) FreeMemory(ctx context.Context, host string) (int64, error) {
	var status struct {
		Memory struct{ Total, Used, Available json.Number }
	}
	if err := c.conn.Get(ctx, "/nodes/"+url.PathEscape(host)+"/status", &status); err != nil {
		return 0, err
	}
	m := status.Memory
	if m.Available != "" {
		return bytesOf(m.Available), nil
	}
	return bytesOf(m.Total) - bytesOf(m.Used), nil
}

// readUptime reads how long a host has been up, which requires Sys.Audit on it.
func readUptime(ctx context.Context, c *api.Conn, host string) (uptime, error) {
	var answer struct {
		Uptime  json.Number
		CPUInfo struct {
			HZ json.Number `json:"user_hz"`
		}
	}
	if err := c.Get(ctx, "/nodes/"+url.PathEscape(host)+"/status", &answer); err != nil {
		return uptime{}, err
	}
	seconds, err := answer.Uptime.Float64()
	if err != nil || seconds <= 0 {
		return uptime{}, fmt.Errorf("%s does not report its uptime", host)
	}
	hz, err := answer.CPUInfo.HZ.Float64()
	if err != nil || hz <= 0 {
		hz = userHz
	}
	return uptime{seconds, hz}, nil
}

// clock reads a host's clock, which requires Sys.Audit on it.
func (c *Client) clock(ctx context.Context, host string) (time.Time, error) {
	var answer struct{ Time flexInt }
	if err := c.conn.Get(ctx, "/nodes/"+url.PathEscape(host)+"/time", &answer); err != nil {
		return time.Time{}, err
	}
	if answer.Time <= 0 {
		return time.Time{}, fmt.Errorf("%s does not report its time", host)
	}
	return time.Unix(int64(answer.Time), 0), nil
}

// uptime is how long a host has been up, from a file in its /proc.
type uptime struct {
	seconds float64
	hz      float64 // ticks per second
}

// ago returns the start, in ticks, of a process that began d ago; 0 if the host was not up then.
func (u uptime) ago(d time.Duration) uint64 { return uint64(max(0, u.seconds-d.Seconds()) * u.hz) }

// userHz is the tick rate of a host that does not report it; every Linux for PCs uses it.
const userHz = 100

type unreachableHosts struct {
	mu  sync.Mutex
	why map[string]string // by host
	vms []cluster.VM
}

// offline returns the hosts that the cluster reports as offline. recast does not query them: each request would take
// 30 s to fail. Proxmox reports offline hosts to every user, from its current membership (pve-manager, API2Tools.pm,
// extract_node_stats); the state of a VM on an offline host stays unchanged for minutes.
func (c *Client) offline(ctx context.Context) (*unreachableHosts, error) {
	_, offline, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	away := &unreachableHosts{why: map[string]string{}}
	for _, host := range offline {
		away.why[host] = cluster.IsOffline
	}
	return away, nil
}

func (a *unreachableHosts) has(host string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.why[host] != ""
}

// noteIfUnreachable reports whether err means that the VM's host does not answer. If so, it records the host and the
// VM, so that the host's other VMs need not be queried.
func (a *unreachableHosts) noteIfUnreachable(vm cluster.VM, err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if moved, ok := errors.AsType[*cluster.HostsAway](err); ok {
		for _, h := range moved.Hosts {
			a.why[h.Name] = h.Why
		}
		a.vms = append(a.vms, moved.VMs...)
		return true
	}
	if !api.IsUnanswered(err) {
		return false
	}
	e, _ := errors.AsType[*api.Error](err)
	a.why[vm.Host] = fmt.Sprintf("does not answer (%d %s)", e.Status, e.Said())
	a.vms = append(a.vms, vm)
	return true
}

func (a *unreachableHosts) addVM(vm cluster.VM) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.vms = append(a.vms, vm)
}

// err returns nil while no VM is missing, even if hosts are unreachable. No other method of a may be called after it.
func (a *unreachableHosts) err() error {
	if len(a.vms) == 0 {
		return nil
	}
	e := &cluster.HostsAway{VMs: slices.Clone(a.vms)}
	slices.SortFunc(e.VMs, func(a, b cluster.VM) int { return cmp.Compare(a.ID, b.ID) })
	for _, vm := range e.VMs {
		if !slices.ContainsFunc(e.Hosts, func(h cluster.AwayHost) bool { return h.Name == vm.Host }) {
			e.Hosts = append(e.Hosts, cluster.AwayHost{Name: vm.Host, Why: a.why[vm.Host]})
		}
	}
	slices.SortFunc(e.Hosts, func(a, b cluster.AwayHost) int { return cmp.Compare(a.Name, b.Name) })
	return e.Hinted()
}

// unreachable returns the error for a VM whose host is offline, or failed to answer with cause.
func (c *Client) unreachable(ctx context.Context, vm cluster.VM, cause error) error {
	hosts, err := c.offline(ctx)
	switch {
	case err != nil:
		return errors.Join(cause, err)
	case hosts.has(vm.Host):
		hosts.addVM(vm)
	default:
		hosts.noteIfUnreachable(vm, cause)
	}
	return hosts.err()
}
