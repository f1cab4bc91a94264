// Package schedules plays random clusters through random faults: each [Case] is a lab of
// its own, which recast rolls until it is done, while processes die, answers are lost,
// tasks fail, hosts and machines go down and other people change the VMs. Safety
// properties are checked after every call, and the final state after the faults.
package schedules

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim"
)

// Case is one cluster, how to roll it, and its faults. Its text is enough to replay it.
type Case struct {
	ControlPlanes, Workers, Hosts int
	Shared                        bool     // the disks are on a storage that all hosts share
	Storage                       string   // type of the disk storage; "": "dir"
	Bus                           []string // of the nodes' disks, assigned round-robin; nil: "scsi"
	Data                          []int    // persistent disks of workers, likewise; nil: 1
	NoSerials                     []bool   // drives without serial=, likewise; nil: all have one
	Firewall                      bool     // the nodes' VMs have their own firewalls
	SCSI                          string   // scsihw; "": "virtio-scsi-single"
	EtcdOnData                    bool
	Holder                        bool // the first persistent disk of each node belongs to a data VM
	Talos                         string
	Strategy                      []cluster.Strategy // of the nodes, likewise; nil: auto
	WorkersFirst, NoCanary        bool
	Out                           string // roll.maxUnavailable.workers; "": 1
	PerHost, Keep                 int    // 0: 1
	BootFailure, DrainTimeout     string // "": "stop"
	Changes                       []string
	Faults                        []Fault
	Boot                          string // images.boot; "": "iso"
	Surge                         int    // surge nodes
	Direct                        bool   // recast calls the servers' handlers; false: over connections, as usual
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
	print func(c *Case) string // "" for the default
	parse func(c *Case, value string) error
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
		list("faults", &c.Faults, ParseFault), yes("direct", &c.Direct),
	}
}

// String is the case in one line, for Parse.
func (c Case) String() string {
	var words []string
	for _, f := range c.fields() {
		if value := f.print(&c); value != "" {
			words = append(words, f.name+"="+value)
		}
	}
	return strings.Join(words, " ")
}

// Parse parses the text of a case.
func Parse(line string) (c Case, err error) {
	for word := range strings.FieldsSeq(line) {
		name, value, _ := strings.Cut(word, "=")
		known := false
		for _, f := range c.fields() {
			if f.name != name {
				continue
			}
			known = true
			if err := f.parse(&c, value); err != nil {
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

// strategy is that of a node.
func (c Case) strategy(node int) cluster.Strategy {
	if len(c.Strategy) == 0 {
		return cluster.Auto
	}
	return c.Strategy[node%len(c.Strategy)]
}

// options are the lab's.
func (c Case) options() sim.Options {
	o := sim.Options{
		ControlPlanes: c.ControlPlanes, Workers: c.Workers, Hosts: c.Hosts, SharedDisks: c.Shared, DiskType: c.Storage,
		EtcdOnData: c.EtcdOnData, Holder: c.Holder, TalosVersion: c.Talos, NextTalos: nextTalos,
		DiskCapacity: 16 << 40, // room for every node's disks, and for parked old ones
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

// roll are additional keys of the section roll in recast.yaml.
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
