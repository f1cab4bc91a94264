package observe

import (
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
func compareShapes(ctx context.Context, px cluster.Inventory, wanted []cluster.Wanted, found []Found) error {
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
			f.Shape, err = shape.Compare(*f.VM, ha, w.Shape)
			return fault.Prefix("node "+w.Name, err)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return refuseMemory(ctx, px, found)
}

// refuseMemory refuses more memory than a host has left, with what the VMs before it get.
func refuseMemory(ctx context.Context, px cluster.HostReader, found []Found) error {
	left := map[string]int64{}
	for i := range found {
		f := &found[i]
		for j := range f.Shape {
			d := &f.Shape[j]
			more := moreMemory(*d, *f.VM)
			if more <= 0 {
				continue
			}
			free, known := left[f.VM.Host]
			if !known {
				var err error
				if free, err = px.FreeMemory(ctx, f.VM.Host); err != nil {
					return fmt.Errorf("read the free memory of %s: %w", f.VM.Host, err)
				}
			}
			if left[f.VM.Host] = free; more > free {
				d.When = shape.Never
				d.Why = fmt.Sprintf("it takes %s more than it has, and %s has %s left: the VM would not start", cluster.Size(more), f.VM.Host, cluster.Size(free))
				continue
			}
			left[f.VM.Host] = free - more
		}
	}
	return nil
}

// moreMemory is how many bytes more a VM takes from its host.
func moreMemory(d shape.Difference, vm cluster.VM) int64 {
	if d.Key != "memory" {
		return 0
	}
	mebibytes := func(value string) int64 {
		n, err := strconv.ParseInt(strings.TrimPrefix(value, "current="), 10, 64)
		if err != nil {
			return 512 // Proxmox' default
		}
		return n
	}
	more := mebibytes(d.Wanted)
	if vm.Running {
		more -= mebibytes(d.Found)
	}
	return more << 20
}
