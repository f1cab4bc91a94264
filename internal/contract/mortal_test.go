package contract

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// errKilled is the result of every action of a killed process.
var errKilled = errors.New("killed")

// dying is a Proxmox for a process that will be killed: from some change on it makes no
// more. It embeds only the reading methods.
type dying struct {
	cluster.Access
	cluster.Inventory
	cluster.Tasks
	px    cluster.Proxmox
	lives func(changes int, c mutation) bool
	then  func(changes int) // called after each change; may be nil
	done  int               // changes made
	dead  bool
}

var _ cluster.Proxmox = (*dying)(nil)

// mutation is a change that recast is about to make.
type mutation struct {
	what string // the method
	set  map[string]string
	del  []string
}

var newVolume = regexp.MustCompile(`^[^:,]+:\d+(?:\.\d+)?(?:,|$)`)

// needsQuorum says whether Proxmox does part of it before it notices that it can't write
// the configuration: it frees, renames or makes volumes, and then fails.
func (m mutation) needsQuorum() bool {
	for key, value := range m.set {
		if cluster.IsDiskKey(key) && newVolume.MatchString(value) {
			return true
		}
	}
	return m.what == "delete" || m.what == "free" || m.what == "move" || slices.ContainsFunc(m.del, cluster.IsDiskKey)
}

// mortal is a Proxmox that makes changes while lives allows it.
func mortal(px cluster.Proxmox, lives func(changes int, c mutation) bool) *dying {
	return &dying{Access: px, Inventory: px, Tasks: px, px: px, lives: lives}
}

// immortal only counts.
func immortal(int, mutation) bool { return true }

// after allows n changes.
func after(n int) func(int, mutation) bool {
	return func(changes int, _ mutation) bool { return changes < n }
}

// untilClosed allows everything except closing the record, which is the last change.
func untilClosed(_ int, c mutation) bool {
	return !strings.Contains(c.set["description"], `"open":false`)
}

func (d *dying) do(c mutation, carryOut func() error) error {
	if d.dead = d.dead || !d.lives(d.done, c); d.dead {
		return errKilled
	}
	if err := carryOut(); err != nil {
		return err
	}
	d.done++
	if d.then != nil {
		d.then(d.done)
	}
	return nil
}

func (d *dying) CreateVM(ctx context.Context, host string, id cluster.VMID, config map[string]string) error {
	return d.do(mutation{what: "create", set: config}, func() error { return d.px.CreateVM(ctx, host, id, config) })
}

func (d *dying) SetConfig(ctx context.Context, vm cluster.VM, set map[string]string, del []string) error {
	return d.do(mutation{what: "set", set: set, del: del}, func() error { return d.px.SetConfig(ctx, vm, set, del) })
}

func (d *dying) FreeDisk(ctx context.Context, vm cluster.VM, key string) error {
	return d.do(mutation{what: "free"}, func() error { return d.px.FreeDisk(ctx, vm, key) })
}

func (d *dying) DeleteVM(ctx context.Context, vm cluster.VM) error {
	return d.do(mutation{what: "delete"}, func() error { return d.px.DeleteVM(ctx, vm) })
}

func (d *dying) MoveDisk(ctx context.Context, vm cluster.VM, key string, to cluster.VMID, toKey string) error {
	return d.do(mutation{what: "move"}, func() error { return d.px.MoveDisk(ctx, vm, key, to, toKey) })
}

func (d *dying) GrowDisk(ctx context.Context, vm cluster.VM, key, size string) error {
	return d.do(mutation{what: "grow"}, func() error { return d.px.GrowDisk(ctx, vm, key, size) })
}

func (d *dying) Migrate(ctx context.Context, vm cluster.VM, to string) error {
	return d.do(mutation{what: "migrate"}, func() error { return d.px.Migrate(ctx, vm, to) })
}

func (d *dying) SetPool(ctx context.Context, id cluster.VMID, pool string) error {
	return d.do(mutation{what: "set pool"}, func() error { return d.px.SetPool(ctx, id, pool) })
}

func (d *dying) SetFirewall(ctx context.Context, vm cluster.VM, want cluster.FirewallConfig) error {
	return d.do(mutation{what: "set firewall"}, func() error { return d.px.SetFirewall(ctx, vm, want) })
}

func (d *dying) RemoveHA(ctx context.Context, id cluster.VMID) error {
	return d.do(mutation{what: "remove HA"}, func() error { return d.px.RemoveHA(ctx, id) })
}

func (d *dying) AddHA(ctx context.Context, r cluster.HAResource) error {
	return d.do(mutation{what: "add HA"}, func() error { return d.px.AddHA(ctx, r) })
}

func (d *dying) SetHA(ctx context.Context, r cluster.HAResource) error {
	return d.do(mutation{what: "set HA"}, func() error { return d.px.SetHA(ctx, r) })
}

func (d *dying) Start(ctx context.Context, vm cluster.VM) error {
	return d.do(mutation{what: "start"}, func() error { return d.px.Start(ctx, vm) })
}

func (d *dying) Shutdown(ctx context.Context, vm cluster.VM, grace time.Duration) error {
	return d.do(mutation{what: "shutdown"}, func() error { return d.px.Shutdown(ctx, vm, grace) })
}

func (d *dying) Stop(ctx context.Context, vm cluster.VM) error {
	return d.do(mutation{what: "stop"}, func() error { return d.px.Stop(ctx, vm) })
}
