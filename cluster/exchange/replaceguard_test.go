package exchange

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/firewall"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

// guardedPair is a Proxmox with the two VMs of an exchange. It notes what was done.
type guardedPair struct {
	cluster.Proxmox
	vms  map[cluster.VMID]cluster.VM
	done []string
}

func (p *guardedPair) VM(_ context.Context, id cluster.VMID) (cluster.VM, error) {
	vm, found := p.vms[id]
	if !found {
		return vm, cluster.ErrNotFound
	}
	vm.Config = maps.Clone(vm.Config)
	return vm, nil
}

func (p *guardedPair) VMState(ctx context.Context, id cluster.VMID) (cluster.VMState, error) {
	vm, err := p.VM(ctx, id)
	return vm.State(), err
}

func (p *guardedPair) VMConfig(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	vm, err := p.VM(ctx, id)
	vm.Running = true
	return vm, err
}

func (p *guardedPair) Firewall(context.Context, cluster.VM) (firewall.Config, error) {
	return firewall.Config{}, nil
}

func (p *guardedPair) Quorate(context.Context) (bool, error) { return true, nil }

func (p *guardedPair) SetConfig(_ context.Context, vm cluster.VM, set map[string]string, del []string) error {
	p.done = append(p.done, fmt.Sprintf("set %d %v delete %v", vm.ID, set, del))
	now := p.vms[vm.ID]
	maps.Copy(now.Config, set)
	p.vms[vm.ID] = now
	return nil
}

func (p *guardedPair) FreeDisk(_ context.Context, vm cluster.VM, key string) error {
	p.done = append(p.done, fmt.Sprintf("free %s of %d", vm.Config[key], vm.ID))
	return nil
}

func (p *guardedPair) DeleteVM(_ context.Context, vm cluster.VM) error {
	p.done = append(p.done, fmt.Sprintf("delete %d", vm.ID))
	return nil
}

// TestReplaceGuards: what is destroyed, or taken for a disk that comes back, is
// looked at right before.
func TestReplaceGuards(t *testing.T) {
	t.Parallel()
	var (
		system = parking.ParkedDisk{Key: "scsi0", ParkKey: "scsi30", Volid: "fast:vm-101-disk-0", System: true}
		data   = parking.ParkedDisk{Key: "scsi1", ParkKey: "scsi1", Volid: "fast:vm-101-disk-1", Options: "serial=data"}
		held   = parking.ParkedDisk{Key: "scsi2", Volid: "fast:vm-200-disk-0", Holder: 200}
		spare  = func(r *Replace, ctx context.Context) error { _, _, err := r.Spare.newToPark(ctx); return err }
		remove = func(r *Replace, ctx context.Context) error { return r.Deletion.deleteSame(ctx) }
		attach = func(r *Replace, ctx context.Context) error { return r.moves.attach(ctx, data) }
		park   = func(r *Replace, ctx context.Context) error { return r.moves.park(ctx, data) }
		detach = func(r *Replace, ctx context.Context) error { return r.moves.detach(ctx, held) }
	)
	for name, c := range map[string]struct {
		do     func(*Replace, context.Context) error
		config map[string]string // of VM 101, beside its UUID
		was    map[string]string // remembered of it, too
		on     map[string]string // of the parking VM
		change func(vm *cluster.VM)
		done   []string
		err    string
	}{
		"park the new disk":                          {do: spare, config: map[string]string{"scsi0": "fast:vm-101-disk-5,serial=blank"}},
		"park what somebody has put there":           {do: spare, config: map[string]string{"scsi0": "fast:vm-101-disk-6,serial=theirs"}, err: "not the disk blank that run r1 made"},
		"park the new disk of one that is started":   {do: spare, config: map[string]string{"scsi0": "fast:vm-101-disk-5,serial=blank"}, change: func(vm *cluster.VM) { vm.Running = true }, err: "runs, or is not of run r1"},
		"park the new disk of another run's VM":      {do: spare, config: map[string]string{"scsi0": "fast:vm-101-disk-5,serial=blank", "description": "recast: run=r2 build=b"}, err: "runs, or is not of run r1"},
		"park the new disk without the old one":      {do: spare, config: map[string]string{"scsi0": "fast:vm-101-disk-5,serial=blank"}, on: map[string]string{}, err: "is not on parking VM 9900"},
		"delete":                                     {do: remove, done: []string{"delete 101"}},
		"delete with a snapshot":                     {do: remove, config: map[string]string{"parent": "theirs"}, err: "a snapshot or pending changes (theirs)"},
		"delete with a saved state":                  {do: remove, config: map[string]string{"vmstate": "fast:vm-101-state-x"}, err: "(fast:vm-101-state-x)"},
		"delete with a change that waits":            {do: remove, change: func(vm *cluster.VM) { vm.Pending = []string{"scsi5"} }, err: "(scsi5)"},
		"delete what only root can make again":       {do: remove, config: map[string]string{"hookscript": "local:snippets/x.pl"}, was: map[string]string{"hookscript": "local:snippets/x.pl"}, err: "has hookscript, which only root@pam may set"},
		"delete with a disk called cloudinit":        {do: remove, config: map[string]string{"scsi5": "fast:vm-101-data-cloudinit"}, err: "still owns scsi5"},
		"delete with a cloud-init drive":             {do: remove, config: map[string]string{"ide0": "fast:101/vm-101-cloudinit.qcow2,media=cdrom"}, done: []string{"delete 101"}},
		"attach what is there and on the other":      {do: attach, config: map[string]string{"scsi1": "fast:vm-101-disk-7"}, err: "only one of them is the disk"},
		"attach what has its old options to get":     {do: attach, config: map[string]string{"scsi1": "fast:vm-101-disk-7,backup=0"}, on: map[string]string{"scsi30": "fast:vm-9900-disk-0"}, done: []string{"set 101 map[scsi1:fast:vm-101-disk-7,serial=data] delete []"}},
		"park what is parked and on the VM":          {do: park, config: map[string]string{"scsi1": "fast:vm-101-disk-1,serial=data"}, err: "only one of them is the disk"},
		"detach a holder's disk":                     {do: detach, config: map[string]string{"scsi2": "fast:vm-200-disk-0"}, done: []string{"set 101 map[] delete [scsi2]"}},
		"detach a holder's disk from a VM that runs": {do: detach, config: map[string]string{"scsi2": "fast:vm-200-disk-0"}, change: func(vm *cluster.VM) { vm.Running = true }, err: "was started by somebody else"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Config: map[string]string{"smbios1": "uuid=u", "description": "recast: run=r1 build=b"}}
			was := vm
			was.Config = maps.Clone(vm.Config)
			maps.Copy(was.Config, c.was)
			maps.Copy(vm.Config, c.config)
			if c.change != nil {
				c.change(&vm)
			}
			if c.on == nil {
				c.on = map[string]string{"scsi30": "fast:vm-9900-disk-0,backup=0", "scsi1": "fast:vm-9900-disk-1,serial=data,backup=0"}
			}
			px := &guardedPair{vms: map[cluster.VMID]cluster.VM{101: vm, 9900: {ID: 9900, Host: "pve1", Config: maps.Clone(c.on)}}}
			r := WiredReplace(&Replace{Proxmox: px, Strategy: cluster.Recreate, Run: "r1", VM: was, Parking: 9900, Disks: []parking.ParkedDisk{system, data}, Serial: "blank"})
			err := c.do(r, t.Context())
			if got := strings.Join(px.done, "\n"); got != strings.Join(c.done, "\n") {
				t.Errorf("done:\n%s\nwant:\n%s", got, strings.Join(c.done, "\n"))
			}
			if (err == nil) != (c.err == "") || err != nil && (!strings.Contains(err.Error(), c.err) || fault.KindOf(err) != fault.Refused) {
				t.Errorf("err = %v, want %q", err, c.err)
			}
		})
	}
}
