package pve

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
)

// VMs implements cluster.VMReader. It fails if any VM's configuration cannot be read, because any VM may reference a
// volume. If unreachable hosts are the only cause, the error is a *cluster.HostsAway and all other VMs are returned.
//
// The list is the guest register of the node that answers, with each VM's lock at that time (pve-manager,
// PVE/API2/Cluster.pm, resources). All nodes apply changes in the same order, but a node may lag. If the list shows a
// VM in creation that its host shows as complete, VMs completed before it may be missing: the list is read again.
func (c *Client) VMs(ctx context.Context) ([]cluster.VM, error) {
	for range relists {
		var rows []resource
		var offline *unreachableHosts
		err := wait.All(
			func() (err error) {
				rows, err = c.resources(ctx)
				return err
			},
			func() (err error) {
				offline, err = c.offline(ctx)
				return err
			},
		)
		if err != nil {
			return nil, err
		}
		vms, away, err := c.configsOf(ctx, rows, offline)
		if err != nil {
			return nil, err
		}
		if !behind(rows, vms) {
			return vms, away
		}
	}
	return nil, fmt.Errorf("list the VMs: the list is behind their configurations, %d times in a row", relists)
}

// relists bounds how often the list is read again because VMs were created meanwhile.
const relists = 10

// behind reports whether the list still shows a VM in creation that its host shows as complete.
func behind(rows []resource, vms []cluster.VM) bool {
	return slices.ContainsFunc(vms, func(vm cluster.VM) bool {
		row, _ := listedIn(rows, vm.ID)
		return vm.Lock != createLock && row.Lock == createLock
	})
}

// createLock is the lock of a VM that is being created (qemu-server,
// PVE/API2/Qemu.pm, create_vm; pve-guest-common, AbstractConfig.pm, create_and_lock_config).
const createLock = "create"

// configsOf reads the configurations of the listed VMs, except on the hosts that are away. lacking is the error for
// the VMs on hosts that do not answer; nil if there are no such VMs.
func (c *Client) configsOf(ctx context.Context, rows []resource, away *unreachableHosts) (found []cluster.VM, lacking, err error) {
	vms := make([]*cluster.VM, len(rows)) // nil: deleted, or unreachable
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(api.ReadsAtOnce)
	for i, row := range rows {
		g.Go(func() error {
			listed := fromResource(row)
			if away.has(listed.Host) {
				away.addVM(listed)
				return nil
			}
			vm := listed
			err := c.readConfig(ctx, &vm)
			if isNoConfig(err) {
				// Deleted or moved since the list was read: look up this VM alone.
				if vm, err = c.VM(ctx, vm.ID); err == nil {
					vm.Pool = listed.Pool
				}
			}
			switch {
			case errors.Is(err, cluster.ErrNotFound):
				return nil
			case away.noteIfUnreachable(listed, err):
				return nil
			}
			vms[i] = &vm
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	found = cluster.Each(cluster.Where(vms, func(vm *cluster.VM) bool { return vm != nil }), func(vm *cluster.VM) cluster.VM { return *vm })
	slices.SortFunc(found, func(a, b cluster.VM) int { return cmp.Compare(a.ID, b.ID) })
	return found, away.err(), nil
}

// Listed lists every VM in the cluster's list, without configurations. The list is about 10 s late.
func (c *Client) Listed(ctx context.Context) ([]cluster.VM, error) {
	rows, err := c.resources(ctx)
	return cluster.Each(rows, fromResource), err
}

func (c *Client) Pool(ctx context.Context, id cluster.VMID) (string, error) {
	rows, err := c.resources(ctx)
	if err != nil {
		return "", err
	}
	return poolOf(rows, id)
}

func poolOf(rows []resource, id cluster.VMID) (string, error) {
	row, found := listedIn(rows, id)
	if !found {
		return "", fmt.Errorf("find the pool of VM %d: %w", id, cluster.ErrNotFound)
	}
	return row.Pool, nil
}

func listedIn(rows []resource, id cluster.VMID) (row resource, found bool) {
	return cluster.Find(rows, func(r resource) bool { return cluster.VMID(r.VMID) == id })
}

const guestList = "/cluster/resources?type=vm" // containers, too

// resource is a row of the cluster's list of VMs, without metrics.
type resource struct {
	Type, Node, Name, Pool, Status, HAState, Lock, Tags string

	VMID     flexInt
	Template json.RawMessage
}

func (c *Client) resources(ctx context.Context) ([]resource, error) {
	var rows []resource
	asked := time.Now()
	if err := c.conn.Get(ctx, guestList, &rows); err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(r resource) bool { return r.Type != "qemu" })
	c.seen.list(rows, asked)
	return rows, nil
}

func fromResource(r resource) cluster.VM {
	return cluster.VM{
		ID: cluster.VMID(r.VMID), Name: r.Name, Host: r.Node, Pool: r.Pool,
		Running: r.Status == "running", Template: toBool(r.Template), HA: r.HAState != "",
	}
}

// readVM fills in the configuration and the current state. It requests both at the same time: read in either order,
// they could be of different moments.
func (c *Client) readVM(ctx context.Context, vm *cluster.VM) error {
	state := *vm
	var g errgroup.Group
	g.Go(func() error { return c.readState(ctx, &state) })
	err, errState := c.readConfig(ctx, vm), g.Wait()
	vm.Name = cmp.Or(vm.Name, state.Name)
	vm.Running, vm.QMP, vm.HA = state.Running, state.QMP, state.HA
	return cmp.Or(err, errState)
}

func (c *Client) readState(ctx context.Context, vm *cluster.VM) error {
	s, err := c.vmStatus(ctx, *vm)
	if err != nil {
		return err
	}
	vm.Name = cmp.Or(vm.Name, s.Name)
	vm.Running, vm.QMP, vm.HA = s.Status == "running", s.QMP, toBool(s.HA.Managed)
	return nil
}

// readConfig fills in the configuration. Digest belongs to the configuration read here: a concurrent change is
// detected when the digest is used.
func (c *Client) readConfig(ctx context.Context, vm *cluster.VM) error {
	var rows []pendingRow
	if err := c.conn.Get(ctx, vmPath(*vm, "pending"), &rows); err != nil {
		return err
	}
	raw := mergePending(rows)
	if len(raw["digest"]) == 0 { // Proxmox's schema does not promise a digest
		raw = nil
		if err := c.conn.Get(ctx, vmPath(*vm, "config"), &raw); err != nil {
			return err
		}
	}
	config, digest, err := raw.normalise()
	if err != nil {
		return fmt.Errorf("configuration of VM %d: %w", vm.ID, err)
	}
	vm.Config, vm.Digest, vm.Pending = config, digest, pendingKeys(rows)
	vm.Lock = config["lock"]
	vm.Template = config["template"] == "1"
	vm.Name = cmp.Or(config["name"], vm.Name)
	if vm.IsParking() && !cluster.Forming(*vm) {
		vm.NotOurs, err = c.notOurs(ctx, *vm)
	}
	return err
}

type vmStatus struct {
	Name, Status string // "running" or "stopped"
	QMP          string `json:"qmpstatus"` // QEMU's own status
	HA           struct{ Managed json.RawMessage }
}

func (c *Client) vmStatus(ctx context.Context, vm cluster.VM) (vmStatus, error) {
	return get[vmStatus](ctx, c.conn, vmPath(vm, "status/current"))
}

// vmPath is the path of a VM's resource below its host; what may be "".
func vmPath(vm cluster.VM, what string) string {
	return strings.TrimSuffix(fmt.Sprintf("/nodes/%s/qemu/%d/%s", url.PathEscape(vm.Host), vm.ID, what), "/")
}

var noConfig = regexp.MustCompile(`Configuration file '[^']*' does not exist`)

// isNoConfig reports whether the host has no such VM; another host may have it.
func isNoConfig(err error) bool { return api.IsInternal(err, noConfig) }

// Containers lists every container that the token may see, sorted by number. VMs and
// containers share one range of numbers.
func (c *Client) Containers(ctx context.Context) ([]cluster.Container, error) {
	rows, err := get[[]resource](ctx, c.conn, guestList)
	out := cluster.Each(cluster.Where(rows, func(r resource) bool { return r.Type == "lxc" }), func(r resource) cluster.Container {
		return cluster.Container{ID: cluster.VMID(r.VMID), Name: r.Name, Host: r.Node}
	})
	slices.SortFunc(out, func(a, b cluster.Container) int { return cmp.Compare(a.ID, b.ID) })
	return out, err
}

// snapshots lists the VM's snapshots by name. Proxmox's list ends with the current state, named "current".
func (c *Client) snapshots(ctx context.Context, vm cluster.VM) ([]string, error) {
	type row struct{ Name string }
	rows, err := get[[]row](ctx, c.conn, vmPath(vm, "snapshot"))
	taken := cluster.Where(rows, func(r row) bool { return r.Name != "current" })
	return cluster.Each(taken, func(r row) string { return r.Name }), err
}

// listLag bounds how far the cluster's list of VMs may lag: Proxmox renews it about every 10 s.
const listLag = 30 * time.Second

// reading fills in one part of a VM whose host is known.
type reading func(ctx context.Context, vm *cluster.VM) error

func (c *Client) VM(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	return c.findVM(ctx, id, c.readVM, isOn)
}

func (c *Client) VMConfig(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	vm, err := c.findVM(ctx, id, c.readConfig, nil)
	vm.Running, vm.QMP, vm.HA = true, "", false
	return vm, err
}

func (c *Client) VMState(ctx context.Context, id cluster.VMID) (cluster.VMState, error) {
	vm, err := c.findVM(ctx, id, c.readState, isOn)
	return vm.State(), err
}

// isOn reports whether a VM runs, which proves that the VM is where it was seen. A VM that is off there may by now
// run elsewhere, unknown to its old host if that host is cut off from the cluster.
func isOn(vm cluster.VM) bool { return vm.Running }

// findVM reads a VM on whichever host it is. A read at the host where the VM was last seen counts only if proves
// accepts the read VM; a nil proves accepts any.
func (c *Client) findVM(ctx context.Context, id cluster.VMID, read reading, proves func(cluster.VM) bool) (cluster.VM, error) {
	vm, found, err := c.whereSeen(ctx, id, read, proves)
	if found {
		return vm, err
	}
	start := time.Now()
	w := wait.For{Name: fmt.Sprintf("find VM %d", id), Every: c.conn.Poll}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		var err error
		vm, err = c.lookupVM(ctx, id, read)
		if isStale(err) && time.Since(start) < listLag {
			return false, "", err
		}
		return err == nil, "", wait.Stop(err)
	})
	if isStale(err) {
		err = fault.WithHint(fault.TokenPrivileges.Of(err), "it may be a container, or the token lacks VM.Audit on /vms/%d", id)
	}
	vm.Pool = "" // whereSeen does not know the pool either
	return vm, err
}

// staleError says that Proxmox's list of VMs and its VMs currently disagree.
type staleError struct{ error }

func (e *staleError) Unwrap() error { return e.error }

func isStale(err error) bool {
	_, ok := errors.AsType[*staleError](err)
	return ok
}

// lookupVM reads a VM where the cluster's list says that it is. If the list and the nodes disagree, only Proxmox's
// register of VMIDs can tell that the VM does not exist.
func (c *Client) lookupVM(ctx context.Context, id cluster.VMID, read reading) (cluster.VM, error) {
	asked := time.Now()
	var rows []resource
	free := func() (bool, error) { return c.isFree(ctx, id) }
	err := wait.All(
		func() (err error) {
			rows, err = c.resources(ctx)
			return err
		},
		func() error {
			if c.seen.isGone(id) { // the list probably shows no such VM
				is, err := c.isFree(ctx, id)
				free = func() (bool, error) { return is, err }
			}
			return nil
		},
	)
	if err != nil {
		return cluster.VM{}, err
	}
	if row, listed := listedIn(rows, id); listed {
		vm := fromResource(row)
		if row.Status == "unknown" { // its host has not reported for minutes
			if err := c.unreachable(ctx, vm, nil); err != nil {
				return cluster.VM{}, err
			}
		}
		err := read(ctx, &vm)
		if err == nil {
			c.seen.add(id, sighting{host: vm.Host, at: asked, off: !vm.Running, stateless: row.Status == "unknown"})
		}
		if api.IsUnanswered(err) {
			return cluster.VM{}, c.unreachable(ctx, vm, err)
		}
		if !isNoConfig(err) {
			return vm, err
		}
	}
	isFree, err := free()
	switch {
	case err != nil:
		return cluster.VM{}, err
	case isFree:
		return cluster.VM{}, cluster.ErrNotFound
	}
	return cluster.VM{}, &staleError{errors.New("its number is taken, but no node shows it")}
}

// isFree asks Proxmox's register of VMIDs, which includes VMs that our token may not see.
func (c *Client) isFree(ctx context.Context, id cluster.VMID) (bool, error) {
	var next json.RawMessage
	err := c.conn.Get(ctx, fmt.Sprintf("/cluster/nextid?vmid=%d", id), &next)
	if e, ok := errors.AsType[*api.Error](err); ok && e.Status == http.StatusBadRequest && strings.Contains(e.Params["vmid"], "already exists") {
		return false, nil
	}
	return err == nil, err
}

// seenFor is how long recast first looks for a VM where it was seen, before it reads the cluster's list. A host that
// still shows a VM that has moved is cut off from the cluster: the host cannot change anything, and its report that a
// VM is off is not trusted (see isOn).
const seenFor = 15 * time.Second

// lastSeen records on which hosts VMs were recently seen.
type lastSeen struct {
	mu    sync.Mutex
	hosts map[cluster.VMID]sighting
	gone  map[cluster.VMID]bool // VMs that we deleted and have not seen again
}

type sighting struct {
	host string
	at   time.Time
	off  bool // the VM was off when it was last read, or listed

	// stateless says that the list has no state of the VM. The VM was created a moment ago, or its host may be
	// unreachable.
	stateless bool
}

// list records the cluster's list, requested at that time. A VM without a state is recorded only if it was seen on
// that host before; otherwise the host may be unreachable.
func (l *lastSeen) list(rows []resource, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.hosts
	l.hosts = make(map[cluster.VMID]sighting, len(rows))
	for _, row := range rows {
		id := cluster.VMID(row.VMID)
		s, was := before[id]
		was = was && s.host == row.Node
		switch {
		case row.Status != "unknown":
			l.hosts[id] = sighting{host: row.Node, at: at, off: was && s.off || row.Status == "stopped"}
		case was:
			s.stateless = true
			l.hosts[id] = s
		}
	}
}

// add records that Proxmox put a VM on that host, or that recast read the VM there after it had requested the list at
// the sighting's time.
func (l *lastSeen) add(id cluster.VMID, s sighting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts[id] = s
	delete(l.gone, id)
}

func (l *lastSeen) of(id cluster.VMID) (s sighting, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, found = l.hosts[id]
	return s, found && wait.Elapsed(s.at) < seenFor
}

// isOff records whether the VM was off when it was read.
func (l *lastSeen) isOff(id cluster.VMID, off bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, found := l.hosts[id]; found {
		s.off = off
		l.hosts[id] = s
	}
}

// deleted records that we asked Proxmox to delete a VM.
func (l *lastSeen) deleted(id cluster.VMID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hosts, id)
	l.gone[id] = true
}

func (l *lastSeen) isGone(id cluster.VMID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone[id]
}

func (l *lastSeen) forget(id cluster.VMID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hosts, id)
}

// whereSeen reads a VM where it was last seen. found is false if the caller must look the VM up: the host no longer
// shows the VM, or no longer to this token (rights from a pool end with the VM), or the read proves nothing. If the
// host does not answer, the cluster's list decides whether the VM is still there; the host is not asked again.
func (c *Client) whereSeen(ctx context.Context, id cluster.VMID, read reading, proves func(cluster.VM) bool) (vm cluster.VM, found bool, err error) {
	s, known := c.seen.of(id)
	if !known {
		return vm, false, nil
	}
	vm = cluster.VM{ID: id, Host: s.host}
	var listed func() bool
	if s.stateless || s.off && proves != nil {
		listed = c.listedBeside(ctx, id, s)
	}
	err = read(ctx, &vm)
	agrees := listed != nil && listed()
	_, answered := errors.AsType[*api.Error](err)
	switch {
	case err == nil && proves == nil:
		return vm, !s.stateless || agrees, nil
	case err == nil:
		c.seen.isOff(id, !vm.Running)
		return vm, agrees || !s.stateless && proves(vm), nil
	case api.IsUnanswered(err):
		defer c.seen.forget(id)
		rows, errList := c.resources(ctx)
		if row, _ := listedIn(rows, id); errList != nil || row.Node == s.host {
			return cluster.VM{}, true, errors.Join(c.unreachable(ctx, vm, err), errList)
		}
		return cluster.VM{}, false, nil
	}
	c.seen.forget(id)
	return cluster.VM{}, !answered, err
}

// listedBeside makes the requests with which lookupVM begins, while the caller reads the VM where it was seen. The
// returned func waits for the answers, and reports whether the cluster's list shows the VM on that host, which
// belongs to the cluster.
func (c *Client) listedBeside(ctx context.Context, id cluster.VMID, s sighting) func() bool {
	asked, agrees := time.Now(), false
	var g errgroup.Group
	var away *unreachableHosts
	if s.stateless {
		g.Go(func() (err error) {
			away, err = c.offline(ctx)
			return err
		})
	}
	now := sighting{host: s.host, at: asked, off: s.off}
	g.Go(func() error {
		rows, err := c.resources(ctx)
		row, _ := listedIn(rows, id)
		now.stateless = row.Node == s.host && row.Status == "unknown"
		agrees = row.Node == s.host && (s.stateless || !now.stateless)
		return err
	})
	return func() bool {
		if err := g.Wait(); err != nil || !agrees || away != nil && away.has(s.host) {
			return false // lookupVM says why
		}
		c.seen.add(id, now)
		return true
	}
}

// rawConfig is a VM's configuration as the API returns it. Values are strings,
// numbers or booleans, depending on the version.
type rawConfig map[string]json.RawMessage

// normalise turns every value into the string that Proxmox would accept back, and splits off the digest.
func (r rawConfig) normalise() (config map[string]string, digest string, err error) {
	config = make(map[string]string, len(r))
	for key, raw := range r {
		switch {
		case len(raw) == 0 || bytes.Equal(raw, []byte("null")):
		case raw[0] == '{' && (key == "cloudinit" || key == "special-sections"):
			// The section [special:cloudinit] holds what the cloud-init drive was made from; the section fleecing
			// holds the images of a backup. parse_vm_config of QemuServer.pm keeps them beside the settings, and
			// load_current_config (pve-guest-common, AbstractConfig.pm) returns them.
		case raw[0] == '{' || raw[0] == '[':
			return nil, "", foreign.Error(fmt.Errorf("%s is neither a text nor a number: %s", key, raw))
		case key == "digest":
			digest = scalar(raw)
		default:
			config[key] = scalar(raw)
		}
	}
	return config, digest, nil
}

// scalar is a JSON string's content, 1 or 0 for a boolean, and a number's digits as written.
func scalar(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	switch text := strings.TrimSpace(string(raw)); text {
	case "true":
		return "1"
	case "false", "null":
		return "0"
	default:
		return text
	}
}

// toBool reads the API's booleans: 1, "1", true.
func toBool(raw json.RawMessage) bool {
	if len(raw) == 0 {
		return false
	}
	s := scalar(raw)
	return s != "" && s != "0"
}

// flexInt is an integer that Proxmox writes as a number or a string; null is 0.
type flexInt int64

func (n *flexInt) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*n = 0
		return nil
	}
	v, err := strconv.ParseInt(scalar(b), 10, 64)
	*n = flexInt(v)
	return err
}

type pendingRow struct {
	Key     string          `json:"key"`
	Value   json.RawMessage `json:"value"`
	Pending json.RawMessage `json:"pending"`
	Delete  json.RawMessage `json:"delete"`
}

// pendingKeys returns the keys whose change waits for the VM's next start, sorted.
func pendingKeys(rows []pendingRow) []string {
	waits := cluster.Where(rows, func(r pendingRow) bool { return len(r.Pending) > 0 || toBool(r.Delete) })
	keys := cluster.Each(waits, func(r pendingRow) string { return r.Key })
	slices.Sort(keys)
	return keys
}

// mergePending returns a VM's configuration with its pending changes applied, as load_current_config does
// (pve-guest-common, AbstractConfig.pm). As there, a key to be deleted stays if its value is "0". The digest is a row
// like any other (GuestHelpers.pm, config_with_pending_array).
func mergePending(rows []pendingRow) rawConfig {
	config := make(rawConfig, len(rows))
	for _, r := range rows {
		value := r.Value
		if len(r.Pending) > 0 {
			value = r.Pending
		}
		if len(value) > 0 && !(toBool(r.Delete) && toBool(value)) {
			config[r.Key] = value
		}
	}
	return config
}

var diskKey = regexp.MustCompile(`^(?:scsi|virtio|sata|ide|efidisk|tpmstate|unused)\d+$`)

// touchesDisk reports whether a change affects a drive. Allocating, detaching and
// freeing may exceed the 30 s timeout of a synchronous request.
func touchesDisk(set map[string]string, del []string) bool {
	return slices.ContainsFunc(slices.AppendSeq(slices.Clone(del), maps.Keys(set)), diskKey.MatchString)
}

// allocation matches a drive's value that makes Proxmox allocate a volume: "fast:10", in GiB.
var allocation = regexp.MustCompile(`^[^:,=]+:\d+(?:\.\d+)?$`)

func volid(value string) string {
	first, _, _ := strings.Cut(value, ",")
	return strings.TrimPrefix(first, "file=")
}

func allocates(key, value string) bool {
	return cluster.IsDiskKey(key) && allocation.MatchString(volid(value))
}

// sameValue reports whether a key holds the requested value in Proxmox's spelling: it reorders the options of drives
// and network cards, adds sizes and MAC addresses, and sorts tags.
func sameValue(key, want, now string) bool {
	switch {
	case want == now:
		return true
	case now == "":
		return false
	case key == "cipassword": // shown as asterisks
		return true
	case key == "tags":
		return slices.Equal(sortedParts(want, isListMark), sortedParts(now, isListMark))
	case key == "description":
		return strings.TrimRight(want, " \t\r\n") == strings.TrimRight(now, " \t\r\n")
	case allocates(key, want):
		storage, _, _ := strings.Cut(volid(want), ":")
		return strings.HasPrefix(volid(now), storage+":") && hasDriveOptions(want, now)
	case cluster.IsDiskKey(key) && strings.HasSuffix(volid(want), ":cloudinit"):
		d, err := cluster.ParseDisk(key, now)
		return err == nil && d.CloudInit() && d.Storage()+":cloudinit" == volid(want) && hasDriveOptions(want, now)
	case cluster.IsDiskKey(key):
		return volid(want) == volid(now) && hasDriveOptions(want, now)
	case strings.HasPrefix(key, "net"):
		wantModel, nowModel := volid(want), volid(now)
		return (strings.EqualFold(wantModel, nowModel) || strings.HasPrefix(nowModel, wantModel+"=")) && hasOptions(want, now)
	}
	return slices.Equal(sortedParts(want, isComma), sortedParts(now, isComma))
}

func hasOptions(want, now string) bool { return containsAll(optionsOf(want), optionsOf(now)) }

// hasDriveOptions is hasOptions for drives. It ignores options that only control the allocation.
func hasDriveOptions(want, now string) bool {
	asked := slices.DeleteFunc(cluster.DriveOptions(optionsOf(want)), func(o string) bool {
		name, _, _ := strings.Cut(o, "=")
		return name == "format" || name == "import-from"
	})
	return containsAll(asked, cluster.DriveOptions(optionsOf(now)))
}

func optionsOf(value string) []string {
	_, rest, _ := strings.Cut(value, ",")
	return strings.FieldsFunc(rest, isComma)
}

func containsAll(want, have []string) bool {
	return !slices.ContainsFunc(want, func(o string) bool { return !slices.Contains(have, o) })
}

func isComma(r rune) bool    { return r == ',' }
func isListMark(r rune) bool { return strings.ContainsRune(",; ", r) }

func sortedParts(s string, mark func(rune) bool) []string {
	parts := strings.FieldsFunc(s, mark)
	slices.Sort(parts)
	return slices.Compact(parts)
}
