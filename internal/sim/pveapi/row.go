package pveapi

import (
	"bytes"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/sim/world"
)

// row is a VM in the list of all resources, encoded except for its uptime.
type row struct {
	of            rowOf
	before, after []byte
	uptime        int
}

// rowOf is everything that a row depends on.
type rowOf struct {
	digest, host, pool string
	ha                 world.HAStatus
	running, down      bool
	seen               world.Report
}

// rows are the latest rows, by VMID.
type rows struct {
	mu    sync.Mutex
	known map[int]*row
}

var uptimeKey = []byte(`"uptime":`)

// vmRow is vmResource, encoded again only if more than the uptime has changed.
func (r *rows) vmRow(c *call, vm world.VM) any {
	of := rowOf{vm.Digest, vm.Host, vm.Pool, vm.HA, vm.Running, c.HostDown(vm.Host), c.Report(vm.ID)}
	r.mu.Lock()
	known := r.known[vm.ID]
	r.mu.Unlock()
	if known != nil && known.of == of {
		now := *known
		now.uptime = uptimeOf(vm)
		return &now
	}
	o := vmResource(vm, of.seen, of.down)
	if o["uptime"] == nil || of.seen.Running != vm.Running {
		return o
	}
	o["uptime"] = 0
	text, err := appendObject(nil, o)
	at := bytes.LastIndex(text, uptimeKey) // no free text comes after it
	if err != nil || at < 0 {
		return o
	}
	at += len(uptimeKey)
	fresh := &row{of: of, before: text[:at:at], after: text[at+1:], uptime: uptimeOf(vm)}
	r.mu.Lock()
	r.known[vm.ID] = fresh
	r.mu.Unlock()
	return fresh
}

func uptimeOf(vm world.VM) int {
	if !vm.Running {
		return 0
	}
	return int(time.Since(vm.Started) / time.Second)
}
