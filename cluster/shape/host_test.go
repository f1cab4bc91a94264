package shape

import (
	"errors"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/internal/fault"
)

// TestSettle: when a VM is migrated, and why not.
func TestSettle(t *testing.T) {
	t.Parallel()
	can := cluster.Migration{Allowed: true}
	off := Difference{Key: "memory", Wanted: "8192", When: Off}
	for name, c := range map[string]struct {
		change func(*cluster.VM)
		said   cluster.Migration
		other  Differences
		when   When
		why    string // its beginning
	}{
		"it runs":          {nil, can, nil, Live, ""},
		"and is off later": {nil, can, Differences{off}, Live, ""},
		"a local disk":     {func(vm *cluster.VM) { vm.Config["scsi1"] = "data:vm-101-disk-1" }, can, nil, Never, "data:vm-101-disk-1 is on a storage of pve1 only, and a migration would replace it by a copy: on pve1: qm migrate 101 pve2 --online"},
		"an unused one":    {func(vm *cluster.VM) { vm.Config["unused0"] = "data:vm-101-disk-1" }, can, nil, Never, "data:vm-101-disk-1 is on a storage of pve1 only"},
		"said to be local": {nil, cluster.Migration{Allowed: true, LocalDisks: []string{"fast:vm-101-state-before"}}, nil, Never, "fast:vm-101-state-before is on a storage of pve1 only"},
		"a device file":    {func(vm *cluster.VM) { vm.Config["scsi1"] = "/dev/sdb" }, can, nil, Never, "/dev/sdb is on"},
		"an empty drive":   {func(vm *cluster.VM) { vm.Config["ide2"] = "none,media=cdrom" }, can, nil, Live, ""},
		"a local medium":   {func(vm *cluster.VM) { vm.Config["ide2"] = "local:iso/x.iso,media=cdrom" }, can, nil, Never, "local:iso/x.iso is on"},
		"not there":        {nil, cluster.Migration{Lacks: []string{"storage fast"}}, nil, Never, "Proxmox does not let it go to pve2: storage fast"},
		"an unknown host":  {nil, cluster.Migration{}, nil, Never, "Proxmox does not know pve2"},
		"a device":         {nil, cluster.Migration{Allowed: true, Resources: []string{"hostpci0"}, WhileOff: []string{"hostpci0"}}, Differences{off}, Never, "hostpci0 is a device of pve1"},
		"others with it":   {nil, cluster.Migration{Allowed: true, Along: []string{"vm:102"}}, nil, Never, "Proxmox HA would move vm:102 with it"},
		"a mapped device":  {nil, cluster.Migration{Allowed: true, Resources: []string{"hostpci0"}}, Differences{off}, Off, "hostpci0 keeps it from being migrated while it runs"},
		"nothing else off": {nil, cluster.Migration{Allowed: true, Resources: []string{"hostpci0"}}, nil, Never, "hostpci0 keeps it from being migrated while it runs, and nothing else needs it off: with the VM off, on pve1: qm migrate 101 pve2"},
		"HA":               {func(vm *cluster.VM) { vm.HA = true }, can, nil, Never, "Proxmox HA manages it, and would migrate it when it sees fit, and nothing else needs it off: ha-manager migrate vm:101 pve2"},
		"HA, off":          {func(vm *cluster.VM) { vm.HA = true }, can, Differences{off}, Off, "Proxmox HA manages it"},
		"it is off":        {func(vm *cluster.VM) { vm.Running = false }, can, Differences{off}, Off, "it does not run"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := cluster.VM{ID: 101, Host: "pve1", Running: true, Config: map[string]string{"scsi0": "fast:vm-101-disk-0,size=10G", "efidisk0": "fast:vm-101-disk-1"}}
			if c.change != nil {
				c.change(&vm)
			}
			ds, err := Compare(vm, nil, cluster.Shape{Host: "pve2"})
			if err != nil {
				t.Fatal(err)
			}
			ds = append(ds, c.other...)
			ds.Settle(vm, c.said, []cluster.Storage{{Name: "fast", Shared: true}, {Name: "data"}})
			if d := ds[0]; d.When != c.when || !strings.HasPrefix(d.Why, c.why) || (d.Why == "") != (c.why == "") {
				t.Errorf("%s: %q, want %s: %q", d.When, d.Why, c.when, c.why)
			}
			to := map[When]string{c.when: "pve2"}
			if ds.Moves(Live) != to[Live] || ds.Moves(Off) != to[Off] {
				t.Errorf("moves to %q while it runs, to %q while it is off", ds.Moves(Live), ds.Moves(Off))
			}
		})
	}
}

// TestSettleAgain: what was planned is asked again right before it is done.
func TestSettleAgain(t *testing.T) {
	t.Parallel()
	vm := cluster.VM{ID: 101, Host: "pve1", Running: true, Config: map[string]string{"scsi0": "fast:vm-101-disk-0"}}
	px := clustertest.NewProxmox(vm)
	px.SharedDisks = true
	ask := func(w When) error { return RequireMigratable(t.Context(), px, vm, "pve2", w) }
	if err := ask(Live); err != nil {
		t.Error(err)
	}
	if err := ask(Off); fault.KindOf(err) != fault.Refused {
		t.Errorf("planned for a VM that is off: %v", err)
	}
	for call := range 2 {
		px.FailAt = len(px.Made) + call + 1
		if err := ask(Live); !errors.Is(err, clustertest.ErrBroken) {
			t.Errorf("call %d failed: %v", call+1, err)
		}
	}
}
