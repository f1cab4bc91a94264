package schedules

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

// renewed are keys that Proxmox regenerates when a VM is recreated.
var renewed = []string{"digest", "vmgenid", "meta"}

// endedVMs compares the nodes' VMs with their initial state.
func (p *play) endedVMs() (problems []string) {
	for i, n := range p.lab.Nodes {
		was := p.first[i]
		vm, err := p.vmOf(i)
		if err != nil {
			problems = append(problems, fmt.Sprintf("VM %d of %s is gone", n.VMID, n.Name))
			continue
		}
		if !vm.Running {
			problems = append(problems, fmt.Sprintf("VM %d of %s is off", n.VMID, n.Name))
		}
		for _, key := range slices.Sorted(maps.Keys(union(was.Config, vm.Config))) {
			before, now := p.comparable(n, key, was.Config[key]), p.comparable(n, key, vm.Config[key])
			if before != now && !p.edited(i, key) {
				problems = append(problems, fmt.Sprintf("VM %d of %s: %s was %q and is %q", n.VMID, n.Name, key, before, now))
			}
		}
		if now, want := fmt.Sprint(p.lab.World.FirewallOf(n.VMID)), fmt.Sprint(p.firewall()); now != want {
			problems = append(problems, fmt.Sprintf("VM %d of %s: its firewall was %s and is %s", n.VMID, n.Name, want, now))
		}
	}
	return append(append(problems, p.endedSurge()...), p.strays()...)
}

// firewall is that of every node's VM.
func (p *play) firewall() world.Firewall {
	if p.c.Firewall {
		return walled
	}
	return world.Firewall{}
}

func union(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// comparable is a value without what a replacement changes: names of volumes, and the
// serial of a new system disk.
func (p *play) comparable(n sim.Node, key, value string) string {
	switch {
	case slices.Contains(renewed, key):
		return ""
	case key == n.SystemDrive():
		return fmt.Sprint(value != "")
	case key == "description":
		said, _, _ := strings.Cut(value, "\nrecast: run=") // the creator of the VM
		return said
	case cluster.IsDiskKey(key) && value != "":
		volid, options, _ := strings.Cut(value, ",")
		storage, _, _ := strings.Cut(volid, ":")
		list := strings.Split(options, ",")
		slices.Sort(list)
		return storage + " " + strings.Join(list, ",")
	}
	return value
}

// edited says whether a person has changed that key of a node's VM, or migrated the VM.
func (p *play) edited(node int, key string) bool {
	return slices.ContainsFunc(p.c.Faults, func(f Fault) bool {
		return f.Where == node && (f.Name == key || f.Name == "migrate" || f.Name == "snapshot" && key == "parent")
	})
}

// strays are volumes without a configuration, unless a fault may leave some behind.
func (p *play) strays() (problems []string) {
	for _, f := range p.c.Faults {
		if k, _ := kindOf(f.Name); k.litters {
			return nil
		}
	}
	named := map[*world.Media]bool{}
	for _, vm := range p.lab.World.VMs() {
		for _, value := range vm.Config {
			volid, _, _ := strings.Cut(value, ",")
			if m := p.lab.World.Media(volid, vm.Host); m != nil {
				named[m] = true
			}
		}
	}
	for _, host := range p.lab.World.Hosts() {
		volumes, err := p.lab.World.Volumes(sim.DiskStorage, host)
		if err != nil {
			continue // its host is down
		}
		for _, v := range volumes {
			if !named[p.lab.World.Media(v.Volid, host)] {
				problems = append(problems, fmt.Sprintf("no configuration names volume %s on %s", v.Volid, host))
			}
		}
	}
	return problems
}
