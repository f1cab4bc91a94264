package pve

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
)

// Migration implements cluster.TieReader (qemu-server, API2/Qemu.pm, migrate_vm_precondition).
func (c *Client) Migration(ctx context.Context, vm cluster.VM, to string) (cluster.Migration, error) {
	var answer struct {
		Allowed   []string                 `json:"allowed_nodes"`
		NotOn     json.RawMessage          `json:"not_allowed_nodes"` // an empty list where there are none, in older versions
		Disks     []struct{ Volid string } `json:"local_disks"`
		Resources []string                 `json:"local_resources"`
		Mapped    []string                 `json:"mapped-resources"`
		Dependent []string                 `json:"dependent-ha-resources"`
	}
	if err := c.conn.Get(ctx, vmPath(vm, "migrate")+"?target="+url.QueryEscape(to), &answer); err != nil {
		return cluster.Migration{}, err
	}
	m := cluster.Migration{Allowed: slices.Contains(answer.Allowed, to), Resources: answer.Resources, Along: answer.Dependent}
	for _, d := range answer.Disks {
		m.LocalDisks = append(m.LocalDisks, d.Volid)
	}
	m.WhileOff = slices.DeleteFunc(slices.Clone(answer.Resources), func(r string) bool { return slices.Contains(answer.Mapped, r) })
	if !m.Allowed {
		m.Lacks = lacks(answer.NotOn, to)
	}
	slices.Sort(m.LocalDisks)
	return m, nil
}

// lacks says in words what a host does not have for a VM.
func lacks(raw json.RawMessage, host string) []string {
	var hosts map[string]map[string][]json.RawMessage
	if err := json.Unmarshal(raw, &hosts); err != nil {
		return nil // the host is not among the allowed ones: that is enough
	}
	var out []string
	for _, what := range slices.Sorted(maps.Keys(hosts[host])) {
		for _, one := range hosts[host][what] {
			text := scalar(one)
			switch what {
			case "unavailable_storages":
				text = "storage " + text
			case "unavailable-resources":
				text = "what is mapped for " + text
			default:
				text = fmt.Sprintf("%s (%s)", what, one)
			}
			out = append(out, text)
		}
	}
	return out
}

// Migrate implements cluster.Power. Once the VM is there, a second request finds no such VM on the old
// host.
func (c *Client) Migrate(ctx context.Context, vm cluster.VM, to string) error {
	if vm.HA { // such a request has no task that ends with it
		return fault.Refusedf("Proxmox HA manages %s, and decides itself where it runs", vm)
	}
	params := map[string]string{"target": to}
	if vm.Running {
		params["online"] = "1"
	}
	err := c.changes.carryOut(ctx, mutation{
		method: http.MethodPost, path: vmPath(vm, "migrate"), params: params,
		worker: vmWorker(vm, "qmigrate"), repeatable: true, look: c.seeMigrated(vm, to),
	})
	if err != nil {
		return err
	}
	w := wait.For{Name: fmt.Sprintf("VM %d on %s", vm.ID, to), First: firstPoll, Every: c.conn.Poll, Timeout: settleTime}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		seen, err := c.seeMigrated(vm, to)(ctx)
		return seen.state == reached, seen.what, api.StopOnAnswer(err)
	})
	if err == nil {
		c.seen.add(vm.ID, sighting{host: to, at: time.Now(), off: !vm.Running})
	}
	return err
}

// seeMigrated checks on which of the two hosts a VM is, and whether a task has locked it.
func (c *Client) seeMigrated(vm cluster.VM, to string) func(context.Context) (sight, error) {
	return func(ctx context.Context) (sight, error) {
		for _, host := range []string{to, vm.Host} {
			now := cluster.VM{ID: vm.ID, Host: host, Name: vm.Name}
			err := c.readConfig(ctx, &now)
			seen := sight{state: untouched, what: fmt.Sprintf("VM %d is on %s", vm.ID, host)}
			switch {
			case isNoConfig(err):
				continue
			case err != nil:
				return sight{}, err
			case now.Lock == "migrate":
				seen.state, seen.what = partial, seen.what+", and is being migrated"
			case host == to:
				seen.state = reached
			}
			return seen, nil
		}
		return sight{state: partial, what: fmt.Sprintf("VM %d is neither on %s nor on %s", vm.ID, vm.Host, to)}, nil
	}
}
