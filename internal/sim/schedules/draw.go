package schedules

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim"
)

// Seed is the seed of case n of a run, from 0; case 0 has the run's own.
func Seed(run uint64, n int) uint64 {
	if n == 0 {
		return run
	}
	return rand.New(rand.NewPCG(run, uint64(n))).Uint64()
}

// drawer draws values from one seed.
type drawer struct{ *rand.Rand }

// oneOf is true with probability 1/n.
func (d drawer) oneOf(n int) bool { return d.IntN(n) == 0 }

func pick[T any](d drawer, from ...T) T { return from[d.IntN(len(from))] }

// some is a short random list.
func some[T any](d drawer, from ...T) []T {
	n := pick(d, 1, 1, 1, 2, 3)
	out := make([]T, n)
	for i := range out {
		out[i] = pick(d, from...)
	}
	return out
}

// Draw makes the case of a seed.
func Draw(seed uint64) Case {
	d := drawer{rand.New(rand.NewPCG(seed, 0))}
	c := Case{
		ControlPlanes: pick(d, 1, 1, 1, 2, 3, 3, 3, 3, 4, 5), Workers: d.workers(), Hosts: pick(d, 1, 1, 2, 2, 3, 3, 4, 5),
		Shared: d.oneOf(4), EtcdOnData: d.oneOf(2), WorkersFirst: d.oneOf(3), NoCanary: d.oneOf(3),
		Out: pick(d, "", "", "2", "3", "25%", "50%"), PerHost: pick(d, 0, 0, 2, 3), Keep: pick(d, 0, 0, 2),
		BootFailure: pick(d, "", "rollback", "reimage"), DrainTimeout: pick(d, "", "", "delete"),
		Talos: pick(d, "", "", "", "v1.12.6"), Changes: []string{pick(d, changePatch, changePatch, changeTalos)},
	}
	if !c.Shared {
		c.Storage = pick(d, "", "", "lvmthin", "zfspool")
	}
	if d.oneOf(3) {
		c.Changes = append(c.Changes, changePatch)
	}
	if d.oneOf(6) {
		c.Changes = append(c.Changes, changeBack)
	}
	c.disks(d)
	c.strategies(d)
	c.faults(d)
	c.Direct = !d.oneOf(8)
	c.serials(d)
	c.boots(d)
	return c
}

// workers is usually a small number.
func (d drawer) workers() int {
	switch n := d.IntN(100); {
	case n < 5:
		return 0
	case n < 85:
		return pick(d, 1, 1, 1, 2, 2, 3, 4, 5)
	case n < 98:
		return 6 + d.IntN(10)
	}
	return 30 + d.IntN(21)
}

// mostHeld is the maximum number of nodes with a disk on one host's data VM: SCSI has 31
// slots.
const mostHeld = 25

func (c *Case) disks(d drawer) {
	c.Bus = some(d, "scsi", "scsi", "virtio", "sata")
	c.Data = some(d, 0, 1, 1, 1, 2, 3)
	c.Holder = d.oneOf(4) && c.nodes() <= mostHeld
	if d.oneOf(12) {
		c.Bus, c.Data = []string{"ide"}, []int{1} // one of its four slots is the CD-ROM's
	}
	tidy(&c.Bus, "scsi")
	tidy(&c.Data, 1)
}

// serials are drawn last, so that the rest of a seed's case stays the same.
func (c *Case) serials(d drawer) {
	c.NoSerials = some(d, true, true, false)
	c.SCSI = pick(d, "", "", "", "virtio-scsi-pci", "lsi")
	tidy(&c.NoSerials, false)
	c.Firewall = d.oneOf(3)
}

// mostPerHost is the maximum number of nodes on a host beside surge nodes, which need memory there, too.
const mostPerHost = 12

// boots draws how machines boot, surge nodes, and what other people do to their disks and VMs. No disk is
// prepared for another version of Talos where EFI variables name the old one.
func (c *Case) boots(d drawer) {
	c.Boot = pick(d, "", "", "auto", cluster.BootFromDisk)
	if c.Boot == cluster.BootFromDisk && slices.Contains(c.Changes, changeTalos) {
		c.Boot = "auto"
	}
	c.Surge = min(pick(d, 0, 0, 0, 0, 1, 1, 2), c.Workers)
	if c.nodes() > mostPerHost*c.Hosts {
		c.Surge = 0
	}
	add := func(is bool, kinds []kind) {
		if is && len(c.Faults) < mostFaults && d.oneOf(3) {
			c.Faults = append(c.Faults, c.fault(d, pick(d, kinds...)))
		}
	}
	add(c.Boot != "", preparedKinds())
	add(c.Surge > 0, surgeKinds())
}

// tidy removes a list that contains only the default.
func tidy[T comparable](list *[]T, usual T) {
	for _, v := range *list {
		if v != usual {
			return
		}
	}
	*list = nil
}

// strategies avoids the impossible for control planes: with one or two of them, those with
// etcd's data on the system disk can't be recreated, and before Talos 1.13 one of two
// refuses an upgrade in place.
func (c *Case) strategies(d drawer) {
	c.Strategy = some(d, cluster.Auto, cluster.Auto, cluster.Recreate, cluster.Reimage, cluster.InPlace)
	switch {
	case c.ControlPlanes == 2 && c.Talos != "":
		c.EtcdOnData = true
		c.Strategy = some(d, cluster.Auto, cluster.Recreate, cluster.Reimage)
	case c.ControlPlanes < 3 && !c.EtcdOnData:
		c.Strategy = []cluster.Strategy{pick(d, cluster.Auto, cluster.InPlace)}
	}
	tidy(&c.Strategy, cluster.Auto)
}

const (
	mostFaults = 6
	// callsOfNode is the approximate number of changing calls to roll a node.
	callsOfNode = 20
	// timeOfNode is the approximate duration of that.
	timeOfNode = 90 * time.Second
)

func (c *Case) faults(d drawer) {
	var bag []kind
	for _, k := range kinds() {
		for range k.weight {
			bag = append(bag, k)
		}
	}
	for range d.IntN(mostFaults + 1) {
		c.Faults = append(c.Faults, c.fault(d, pick(d, bag...)))
	}
}

// fault draws when, where and for how long.
func (c *Case) fault(d drawer, k kind) Fault {
	f := Fault{Name: k.name, Where: -1}
	if k.onNode {
		f.Where = d.IntN(c.nodes())
	}
	work := c.nodes() * len(c.Changes)
	if k.atCall || d.IntN(3) > 0 {
		f.Call = 1 + d.IntN(callsOfNode*work)
	} else {
		f.After = time.Duration(1+d.IntN(work*int(timeOfNode/time.Second))) * time.Second
	}
	if k.lasts || k.mayLast && d.oneOf(2) {
		f.For = time.Duration(pick(d, 5, 20, 60, 120, 300)) * time.Second
		if k.holds != nil {
			f.For = min(f.For, longestLate)
		}
	}
	return f
}

// talosOf is the machines' first version.
func (c Case) talosOf() string {
	if c.Talos == "" {
		return sim.TalosVersion
	}
	return c.Talos
}
