package shape

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// Settings returns what to set in the VM's configuration to put these differences right. Growing a
// disk is no setting.
func Settings(vm cluster.VM, s cluster.Shape, ds Differences) (map[string]string, error) {
	set := map[string]string{}
	now := func(key string) string {
		if value, changed := set[key]; changed {
			return value
		}
		return vm.Config[key]
	}
	for _, d := range ds {
		switch key := d.setting; {
		case key == "" || d.grows:
		case key == "description":
			set[key] = vm.Redescribed(s.Settings[key])
		case d.option == "":
			set[key] = d.Wanted
		case cluster.IsDiskKey(key):
			drive, err := cluster.ParseDisk(key, now(key))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", vm, err)
			}
			drive.Options = drive.With(d.option, d.Wanted)
			set[key] = drive.Value()
		default:
			of, order := split(key, now(key))
			if _, there := of[d.option]; !there {
				order = append(order, d.option)
			}
			of[d.option] = d.Wanted
			set[key] = joined(key, of, order)
		}
	}
	return set, nil
}

// Grow grows the disks whose size is one of the differences.
func Grow(ctx context.Context, px interface {
	cluster.Editor
	cluster.VMReader
}, id cluster.VMID, ds Differences, say func(string),
) error {
	for _, d := range ds {
		if !d.grows {
			continue
		}
		vm, err := px.VM(ctx, id)
		if err != nil {
			return fmt.Errorf("look up VM %d: %w", id, err)
		}
		say("growing " + d.setting + " from " + d.Found + " to " + d.Wanted)
		if err := px.GrowDisk(ctx, vm, d.setting, d.Wanted); err != nil {
			return fmt.Errorf("grow %s of %s to %s: %w", d.setting, vm, d.Wanted, err)
		}
	}
	return nil
}

// ignored is the state of a resource that Proxmox HA leaves alone.
const ignored = "ignored"

// applyAround puts right what Proxmox keeps outside of the VM's configuration.
func applyAround(ctx context.Context, px changer, vm cluster.VM, s cluster.Shape, ds Differences, say func(string)) error {
	has := func(prefix string) bool {
		return slices.ContainsFunc(ds, func(d Difference) bool {
			return d.setting == "" && len(d.Key) >= len(prefix) && d.Key[:len(prefix)] == prefix
		})
	}
	if has("pool") {
		say("putting the VM into pool " + s.Pool)
		if err := px.SetPool(ctx, vm.ID, s.Pool); err != nil {
			return fmt.Errorf("put %s into pool %s: %w", vm, s.Pool, err)
		}
	}
	if !has("ha ") {
		return nil
	}
	say("setting what Proxmox HA has of the VM")
	ha, err := px.HAResource(ctx, vm.ID)
	if err != nil {
		return fmt.Errorf("read what Proxmox HA has of %s: %w", vm, err)
	}
	want := cluster.HAResource{VMID: vm.ID, State: "started", Settings: map[string]string{}}
	if ha != nil {
		if ha.State != ignored {
			want.State = ha.State
		}
		maps.Copy(want.Settings, ha.Settings)
	}
	for key, value := range s.HA {
		if key == "state" {
			want.State = value
			continue
		}
		want.Settings[key] = value
	}
	if ha == nil { // such a request may be carried out late, when the VM is meant to be off, and must not start it then
		first := want
		first.State = ignored
		if err := px.AddHA(ctx, first); err != nil {
			return fmt.Errorf("put %s under Proxmox HA: %w", vm, err)
		}
	}
	return fault.Prefix("change what Proxmox HA has of "+vm.String(), px.SetHA(ctx, want))
}
