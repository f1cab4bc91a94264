package observe

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
)

// compareShapes compares the VMs of the nodes with the shapes that recast.yaml has for them.
func (o Observation) compareShapes(ctx context.Context, px cluster.Inventory, wanted []cluster.Wanted) error {
	found := o.Found
	g := errgroup.Group{}
	g.SetLimit(ObserveLimit)
	for i, w := range wanted {
		f := &found[i]
		if w.Shape.IsEmpty() || f.VM == nil {
			continue
		}
		g.Go(func() (err error) {
			var ha *cluster.HAResource
			if w.Shape.HA != nil {
				if ha, err = px.HAResource(ctx, f.VM.ID); err != nil {
					return fmt.Errorf("node %s: read what Proxmox HA has of %s: %w", w.Name, f.VM, err)
				}
			}
			w.Shape.Addr = f.Addr
			wanted[i].Shape.Addr = f.Addr
			if f.Shape, err = shape.Compare(*f.VM, ha, w.Shape); err == nil && w.Shape.Host != f.VM.Host && w.Shape.Host != "" {
				err = o.settleHost(ctx, px, f, w.Shape.Host)
			}
			return fault.Prefix("node "+w.Name, err)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return refuseMemory(ctx, px, wanted, found)
}

// settleHost asks Proxmox whether a VM can be migrated. If the token may not ask, what the storages say counts: the
// migration is planned, and the privilege is among those that the token lacks.
func (o Observation) settleHost(ctx context.Context, px cluster.TieReader, f *Found, to string) error {
	m := cluster.Migration{Allowed: true}
	if f.VM.Lock == "" { // under a lock Proxmox does not say, and nothing is planned
		said, err := px.Migration(ctx, *f.VM, to)
		switch {
		case err == nil:
			m = said
		case fault.KindOf(err) != fault.Refused:
			return fmt.Errorf("ask Proxmox whether %s can be migrated to %s: %w", f.VM, to, err)
		}
	}
	f.Shape.Settle(*f.VM, m, o.Storages)
	return nil
}

// refuseMemory refuses more memory than a host has left after the VMs before it: such a VM would not start.
func refuseMemory(ctx context.Context, px cluster.HostReader, wanted []cluster.Wanted, found []Found) error {
	left := map[string]int64{}
	short := func(host string, more int64) (string, error) {
		free, known := left[host]
		if !known {
			var err error
			if free, err = px.FreeMemory(ctx, host); err != nil {
				return "", fmt.Errorf("read the free memory of %s: %w", host, err)
			}
		}
		if left[host] = free; more > free {
			return fmt.Sprintf("and %s has %s left: the VM would not start", host, cluster.Size(free)), nil
		}
		left[host] = free - more
		return "", nil
	}
	var order []int // surge nodes last: if none is made, they take nothing
	for _, surge := range []bool{false, true} {
		for i := range found {
			if wanted[i].Surge == surge {
				order = append(order, i)
			}
		}
	}
	for _, i := range order {
		f := &found[i]
		if f.Absent != nil {
			more := mebibytes(wanted[i].Shape.Settings["memory"])
			why, err := short(f.Absent.Host, more)
			switch {
			case err != nil:
				f.Absent.Against = append(f.Absent.Against, fmt.Sprintf("%s: is nodes[].host, %s, a Proxmox node?", err, f.Absent.Host))
			case why != "":
				f.Absent.Against = append(f.Absent.Against, fmt.Sprintf("its VM takes %s of memory, %s", cluster.Size(more), why))
			}
		}
		for j := range f.Shape {
			d := &f.Shape[j]
			more, host := moreMemory(*d, *f, wanted[i].Shape)
			if more <= 0 {
				continue
			}
			why, err := short(host, more)
			switch {
			case err != nil && host != f.VM.Host:
				d.When, d.Why = shape.Never, err.Error()
			case err != nil:
				return err
			case why != "":
				d.When, d.Why = shape.Never, fmt.Sprintf("it takes %s more than it has, %s", cluster.Size(more), why)
			}
		}
	}
	return nil
}

// mebibytes returns, in bytes, a VM's memory as Proxmox writes it.
func mebibytes(memory string) int64 {
	n, err := strconv.ParseInt(strings.TrimPrefix(memory, "current="), 10, 64)
	if err != nil {
		n = 512 // Proxmox' default
	}
	return n << 20
}

// moreMemory returns how many more bytes a VM takes from a host. A migrated VM takes all of its memory from the new
// host.
func moreMemory(d shape.Difference, f Found, wanted cluster.Shape) (more int64, host string) {
	moves := cmp.Or(f.Shape.Moves(shape.Live), f.Shape.Moves(shape.Off))
	switch {
	case moves != "" && d.Key == "host":
		return mebibytes(cmp.Or(wanted.Settings["memory"], f.VM.Config["memory"])), moves
	case moves != "" || d.Key != "memory":
		return 0, ""
	}
	more = mebibytes(d.Wanted)
	if f.VM.Running {
		more -= mebibytes(d.Found)
	}
	return more, f.VM.Host
}
