// Package schedules plays random clusters through random faults: each [Case] is a lab of its own, which recast rolls
// until it is done, while processes die, answers are lost, tasks fail, hosts and machines go down and other people
// change the VMs. Safety properties are checked after every call, and the final state after the faults.
package schedules

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim"
)

// Case is one cluster, how to roll it, and its faults. The text of a Case is enough to replay it.
type Case struct {
	ControlPlanes, Workers, Hosts int
	Shared                        bool     // the disks are on a storage that all hosts share
	Storage                       string   // type of the disk storage; "": "dir"
	Bus                           []string // of the nodes' disks, assigned round-robin; nil: "scsi"
	Data                          []int    // persistent disks of workers, assigned round-robin; nil: 1
	NoSerials                     []bool   // drives without serial=, assigned round-robin; nil: all drives have a serial
	Firewall                      bool     // the nodes' VMs have their own firewalls
	SCSI                          string   // scsihw; "": "virtio-scsi-single"
	EtcdOnData                    bool
	Holder                        bool // the first persistent disk of each node belongs to a data VM
	Talos                         string
	Strategy                      []cluster.Strategy // of the nodes, assigned round-robin; nil: auto
	WorkersFirst, NoCanary        bool
	Out                           string // roll.maxUnavailable.workers; "": 1
	PerHost, Keep                 int    // 0: 1
	BootFailure, DrainTimeout     string // "": "stop"
	Changes                       []string
	Faults                        []Fault
	Boot                          string // images.boot; "": "iso"
	Surge                         int    // surge nodes
}

// The changes that a round of a case applies.
const (
	changePatch = "patch" // an extension with another digest
	changeTalos = "talos" // the next version of Talos
	changeBack  = "back"  // nothing: a rollback is requested that would lose data
)

// nextTalos is the version of changeTalos.
const nextTalos = "v1.14.1"

// field is one word of a case's text: "cp=3".
type field struct {
	name  string
	print func() string // "" for the default
	parse func(value string) error
}

func (c *Case) fields() []field {
	return []field{
		number("cp", &c.ControlPlanes), number("wk", &c.Workers), number("hosts", &c.Hosts), yes("shared", &c.Shared),
		word("storage", &c.Storage, "dir", "lvmthin", "zfspool"), list("bus", &c.Bus, bus), list("data", &c.Data, strconv.Atoi),
		list("no-serials", &c.NoSerials, strconv.ParseBool), word("scsi", &c.SCSI, "virtio-scsi-pci", "lsi"), yes("firewall", &c.Firewall),
		yes("etcd-on-data", &c.EtcdOnData), yes("holder", &c.Holder), word("talos", &c.Talos), list("strategy", &c.Strategy, strategy),
		yes("workers-first", &c.WorkersFirst), yes("no-canary", &c.NoCanary), word("out", &c.Out), number("per-host", &c.PerHost), number("keep", &c.Keep),
		word("boot-failure", &c.BootFailure, "rollback", "reimage"), word("drain-timeout", &c.DrainTimeout, "delete"), list("change", &c.Changes, change),
		word("boot", &c.Boot, cluster.BootFromDisk, "auto"), number("surge", &c.Surge),
		list("faults", &c.Faults, ParseFault),
	}
}

// String returns the case in one line, for Parse.
func (c Case) String() string {
	var words []string
	for _, f := range c.fields() {
		if value := f.print(); value != "" {
			words = append(words, f.name+"="+value)
		}
	}
	return strings.Join(words, " ")
}

func Parse(line string) (c Case, err error) {
	for word := range strings.FieldsSeq(line) {
		name, value, _ := strings.Cut(word, "=")
		known := false
		for _, f := range c.fields() {
			if f.name != name {
				continue
			}
			known = true
			if err := f.parse(value); err != nil {
				return Case{}, fmt.Errorf("%s: %w", word, err)
			}
		}
		if !known {
			return Case{}, fmt.Errorf("%s: no such word", word)
		}
	}
	return c, c.check()
}

// Upper limits.
const (
	maxControlPlanes = 5
	maxWorkers       = 100
	maxHosts         = 9
	maxData          = 3
	maxRounds        = 3
	maxSurge         = 2
)

// check refuses impossible labs.
func (c Case) check() error {
	within := func(what string, n, least, most int) error {
		if n < least || n > most {
			return fmt.Errorf("%s=%d: from %d to %d", what, n, least, most)
		}
		return nil
	}
	err := cmp.Or(
		within("cp", c.ControlPlanes, 1, maxControlPlanes), within("wk", c.Workers, 0, maxWorkers), within("hosts", c.Hosts, 1, maxHosts),
		within("change", len(c.Changes), 1, maxRounds), within("per-host", c.PerHost, 0, 9), within("keep", c.Keep, 0, 9), within("surge", c.Surge, 0, min(maxSurge, c.Workers)),
	)
	for _, n := range c.Data {
		err = cmp.Or(err, within("data", n, 0, maxData))
	}
	for _, f := range c.Faults {
		if f.Where >= c.nodes() {
			err = cmp.Or(err, fmt.Errorf("%s: there are %d nodes, from 0", f, c.nodes()))
		}
	}
	return err
}

func (c Case) nodes() int { return c.ControlPlanes + c.Workers }

// strategy returns the strategy of a node.
func (c Case) strategy(node int) cluster.Strategy {
	if len(c.Strategy) == 0 {
		return cluster.Auto
	}
	return c.Strategy[node%len(c.Strategy)]
}

// options returns the lab's options.
func (c Case) options() sim.Options {
	o := sim.Options{
		ControlPlanes: c.ControlPlanes, Workers: c.Workers, Hosts: c.Hosts, SharedDisks: c.Shared, DiskType: c.Storage,
		EtcdOnData: c.EtcdOnData, Holder: c.Holder, TalosVersion: c.Talos, NextTalos: nextTalos,
		DiskCapacity: 16 << 40, // room for every node's disks, and for parked old disks
	}
	if c.Workers == 0 {
		o.Workers = sim.None
	}
	for i := range max(len(c.Bus), 1) * max(len(c.Data), 1) * max(len(c.NoSerials), 1) {
		l := sim.Layout{Data: 1, SCSI: c.SCSI}
		if len(c.NoSerials) > 0 {
			l.NoSerials = c.NoSerials[i%len(c.NoSerials)]
		}
		if len(c.Bus) > 0 {
			l.Bus = c.Bus[i%len(c.Bus)]
		}
		if len(c.Data) > 0 {
			l.Data = c.Data[i%len(c.Data)]
		}
		o.Layouts = append(o.Layouts, l)
	}
	return o
}

// roll returns additional keys of the section roll in recast.yaml.
func (c Case) roll() []string {
	order := "control-planes-first"
	if c.WorkersFirst {
		order = "workers-first"
	}
	return []string{
		"order: " + order,
		fmt.Sprintf("canary: %t", !c.NoCanary),
		fmt.Sprintf("maxUnavailable: {workers: %s, perHost: %d}", cmp.Or(c.Out, "1"), max(c.PerHost, 1)),
		fmt.Sprintf("keepDisks: %d", max(c.Keep, 1)),
		"bootFailure: " + cmp.Or(c.BootFailure, "stop"),
		"drain: {timeout: 2m, onTimeout: " + cmp.Or(c.DrainTimeout, "stop") + "}",
	}
}

// Seed returns the seed of case n of a run, from 0; case 0 has the run's own seed.
func Seed(run uint64, n int) uint64 {
	if n == 0 {
		return run
	}
	return rand.New(rand.NewPCG(run, uint64(n))).Uint64()
}

// drawer draws values from one seed.
type drawer struct{ *rand.Rand }

// oneOf returns true with probability 1/n.
func (d drawer) oneOf(n int) bool       { return d.IntN(n) == 0 }
func pick[T any](d drawer, from ...T) T { return from[d.IntN(len(from))] }

// some returns a short random list.
func some[T any](d drawer, from ...T) []T {
	out := make([]T, pick(d, 1, 1, 1, 2, 3))
	for i := range out {
		out[i] = pick(d, from...)
	}
	return out
}

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
	c.serials(d)
	c.boots(d)
	return c
}

// workers draws a number of workers, usually a small one.
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

// mostHeld is the maximum number of nodes with a disk on one host's data VM: SCSI has 31 slots.
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

// serials draws serials, SCSI controllers and firewalls. It draws last, so that the rest of a seed's case stays the
// same.
func (c *Case) serials(d drawer) {
	c.NoSerials = some(d, true, true, false)
	c.SCSI = pick(d, "", "", "", "virtio-scsi-pci", "lsi")
	tidy(&c.NoSerials, false)
	c.Firewall = d.oneOf(3)
}

// mostPerHost is the maximum number of nodes on a host with surge nodes, which need memory on the host too.
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

// strategies avoids what is impossible for control planes: with one or two control planes, a control plane with
// etcd's data on its system disk can't be recreated, and before Talos 1.13 one of two refuses an upgrade in place.
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
	// timeOfNode is the approximate duration of a node's roll.
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

// fault draws when, where and for how long a fault of that kind strikes.
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

// talosOf returns the machines' first version.
func (c Case) talosOf() string {
	if c.Talos == "" {
		return sim.TalosVersion
	}
	return c.Talos
}

// Smaller lists slightly smaller cases, the largest reductions first.
func (c Case) Smaller() (list []Case) {
	add := func(change func(c *Case)) {
		s := c.clone()
		change(&s)
		s.Faults = slices.DeleteFunc(s.Faults, func(f Fault) bool { return f.Where >= s.nodes() })
		if s.String() != c.String() && s.check() == nil {
			list = append(list, s)
		}
	}
	if n := len(c.Faults); n > 2 {
		add(func(c *Case) { c.Faults = c.Faults[:n/2] })
		add(func(c *Case) { c.Faults = c.Faults[n/2:] })
	}
	for i := range c.Faults {
		add(func(c *Case) { c.Faults = slices.Delete(c.Faults, i, i+1) })
	}
	if len(c.Changes) > 1 {
		add(func(c *Case) { c.Changes = c.Changes[:1] })
	}
	add(func(c *Case) { c.Workers /= 2 })
	add(func(c *Case) { c.Workers-- })
	add(func(c *Case) { c.ControlPlanes = 1 })
	add(func(c *Case) { c.ControlPlanes = min(3, c.ControlPlanes) })
	add(func(c *Case) { c.Hosts = 1 })
	add(func(c *Case) { c.Hosts = max(1, c.Hosts-1) })
	for _, change := range []func(c *Case){
		func(c *Case) { c.Bus = nil }, func(c *Case) { c.Data = nil }, func(c *Case) { c.Holder = false }, func(c *Case) { c.Storage, c.Shared = "", false },
		func(c *Case) { c.EtcdOnData = false }, func(c *Case) { c.Strategy = c.Strategy[:min(1, len(c.Strategy))] }, func(c *Case) { c.Strategy = nil },
		func(c *Case) { c.Talos = "" }, func(c *Case) { c.Out, c.PerHost = "", 0 }, func(c *Case) { c.Keep = 0 },
		func(c *Case) { c.BootFailure, c.DrainTimeout = "", "" }, func(c *Case) { c.WorkersFirst, c.NoCanary = false, false },
		func(c *Case) { c.Changes[0] = changePatch }, func(c *Case) { c.Boot = "" }, func(c *Case) { c.Surge = 0 }, func(c *Case) { c.Surge = min(1, c.Surge) },
	} {
		add(change)
	}
	return list
}

func (c Case) clone() Case {
	c.Bus, c.Data, c.Strategy = slices.Clone(c.Bus), slices.Clone(c.Data), slices.Clone(c.Strategy)
	c.Changes, c.Faults = slices.Clone(c.Changes), slices.Clone(c.Faults)
	return c
}

// Shrink looks for the smallest case that still fails, with at most that number of tries and until that time.
func Shrink(c Case, tries int, until time.Time, fails func(Case) bool) Case {
	for again := true; again; {
		again = false
		list := c.Smaller()
		for i := 0; i < len(list); i++ {
			if tries--; tries < 0 || time.Now().After(until) {
				return c
			}
			if !fails(list[i]) {
				continue
			}
			c, again = list[i], true
			list = c.Smaller() // the same position: the reductions before it did not fail
			i--
		}
	}
	return c
}

// one returns a field with one value, which its zero value leaves out.
func one[T comparable](name string, to *T, parse func(string) (T, error), text func(T) string) field {
	return field{name, func() string {
		if *to == *new(T) {
			return ""
		}
		return text(*to)
	}, func(value string) (err error) {
		*to, err = parse(value)
		return err
	}}
}

func number(name string, to *int) field { return one(name, to, strconv.Atoi, strconv.Itoa) }

func yes(name string, to *bool) field {
	return one(name, to, func(value string) (bool, error) {
		if value != "yes" {
			return false, errors.New("yes, or leave it out")
		}
		return true, nil
	}, func(bool) string { return "yes" })
}

// word returns a field with one of some values; any value if none are given.
func word(name string, to *string, oneOf ...string) field {
	return one(name, to, func(value string) (string, error) {
		if len(oneOf) > 0 && !slices.Contains(oneOf, value) || value == "" {
			return "", fmt.Errorf("one of %s", strings.Join(oneOf, ", "))
		}
		return value, nil
	}, func(value string) string { return value })
}

// list returns a comma-separated field.
func list[T any](name string, to *[]T, parse func(string) (T, error)) field {
	return field{name, func() string {
		var words []string
		for _, v := range *to {
			words = append(words, fmt.Sprint(v))
		}
		return strings.Join(words, ",")
	}, func(value string) error {
		*to = nil
		for w := range strings.SplitSeq(value, ",") {
			v, err := parse(w)
			if err != nil {
				return err
			}
			*to = append(*to, v)
		}
		return nil
	}}
}

func bus(s string) (string, error) {
	if !slices.Contains([]string{"scsi", "virtio", "sata", "ide"}, s) {
		return "", fmt.Errorf("%q is no bus", s)
	}
	return s, nil
}

func change(s string) (string, error) {
	if s != changePatch && s != changeTalos && s != changeBack {
		return "", fmt.Errorf("%q is none of %s, %s and %s", s, changePatch, changeTalos, changeBack)
	}
	return s, nil
}

func strategy(s string) (cluster.Strategy, error) {
	all := []cluster.Strategy{cluster.Auto, cluster.Recreate, cluster.Reimage, cluster.InPlace}
	if !slices.Contains(all, cluster.Strategy(s)) {
		return "", fmt.Errorf("%q is no strategy: %v", s, all)
	}
	return cluster.Strategy(s), nil
}
