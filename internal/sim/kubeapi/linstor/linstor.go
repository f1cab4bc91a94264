// Package linstor is LINSTOR of a lab: a [Controller] with its REST API, a satellite on each of its nodes, and DRBD
// between them.
package linstor

import (
	"slices"
	"sync"
	"time"
)

const (
	// lostAfter is how long controller and DRBD need to notice that a node is gone (DRBD's ping-int and
	// ping-timeout, drbdsetup.xml in linstor-common).
	lostAfter = 10 * time.Second
	// connectsAfter is from a node's start until its satellite has sent everything to the controller.
	connectsAfter = 10 * time.Second
	// syncsFor is how long a copy takes to be filled with what it missed.
	syncsFor = 30 * time.Second
)

// Copy is a resource with a disk of its own.
type Copy struct {
	Node string
	Disk string // state of DRBD's disk, while it is connected: "UpToDate", "Inconsistent"
	Cut  bool   // it has lost the connections to its peers
	sync bool   // is being filled
}

// Volume is a resource definition with its resources.
type Volume struct {
	Name, Claim string // of the claim, "default/data"; "" for none
	Wanted      int    // place_count of its resource group
	Copies      []*Copy
	Diskless    []string // nodes of tiebreakers
	User        string   // node that has it open
	Quorum      bool     // DrbdOptions/Resource/quorum is majority
}

// Controller is LINSTOR's controller. Its methods are safe for concurrent use.
type Controller struct {
	changed func()

	mu      sync.Mutex
	props   map[string]string
	nodes   []string
	ofNode  map[string]map[string]string // properties
	evicted map[string]bool
	online  map[string]bool
	up      map[string]bool
	volumes []*Volume
	tls     bool
}

// New calls changed after each change from outside.
func New(changed func()) *Controller {
	// Properties of a new controller, and Piraeus' own (pkg/vars/defaults.go in piraeus-operator).
	props := map[string]string{"DrbdOptions/auto-quorum": "io-error", "DrbdOptions/auto-add-quorum-tiebreaker": "True", "DrbdOptions/AutoEvictAllowEviction": "false"}
	return &Controller{changed: changed, props: props, online: map[string]bool{}, up: map[string]bool{}, ofNode: map[string]map[string]string{}, evicted: map[string]bool{}}
}

// AddNode registers the satellite of a node.
func (c *Controller) AddNode(name string) {
	c.change(func() {
		c.nodes, c.online[name], c.up[name] = append(c.nodes, name), true, true
		c.ofNode[name] = map[string]string{"CurStltConnName": "default-ipv4", "NodeUname": name}
	})
}

// SetNodeProperty sets a property of a node; "" removes it.
func (c *Controller) SetNodeProperty(node, key, value string) {
	c.change(func() {
		if c.ofNode[node][key] = value; value == "" {
			delete(c.ofNode[node], key)
		}
	})
}

// NodeProperty reads a property of a node; "" if it has none.
func (c *Controller) NodeProperty(node, key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ofNode[node][key]
}

// Evicted says whether LINSTOR has given a node up.
func (c *Controller) Evicted(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.evicted[node]
}

// AddVolume adds a volume.
func (c *Controller) AddVolume(v Volume) { c.change(func() { c.volumes = append(c.volumes, &v) }) }

// SetProperty sets a property of the controller.
func (c *Controller) SetProperty(key, value string) { c.change(func() { c.props[key] = value }) }

// Property reads a property of the controller.
func (c *Controller) Property(key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.props[key]
}

// EnableTLS is spec.apiTLS of the LinstorCluster: port 3370 then only redirects.
func (c *Controller) EnableTLS() { c.change(func() { c.tls = true }) }

// SetCopy changes a copy of a volume.
func (c *Controller) SetCopy(volume, node string, set func(*Copy)) {
	c.change(func() {
		for _, v := range c.volumes {
			for _, k := range v.Copies {
				if v.Name == volume && k.Node == node {
					set(k)
				}
			}
		}
	})
}

// Whole says whether all copies of a volume are UpToDate and connected.
func (c *Controller) Whole(volume string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.volumes {
		if v.Name == volume && slices.ContainsFunc(v.Copies, func(k *Copy) bool { return !c.online[k.Node] || k.Cut || k.Disk != "UpToDate" }) {
			return false
		}
	}
	return true
}

func (c *Controller) change(f func()) {
	c.mu.Lock()
	f()
	c.mu.Unlock()
	c.changed()
}

// Step brings the copies up to date with the nodes that run; due says whether a duration has passed since it was
// first asked for.
func (c *Controller) Step(runs func(node string) bool, due func(key string, d time.Duration) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		switch up := runs(n); {
		case up && !c.online[n] && !c.evicted[n] && due("linstor/"+n+"/connects", connectsAfter):
			c.online[n], c.up[n] = true, true
		case !up && c.up[n] && due("linstor/"+n+"/lost", lostAfter):
			c.online[n], c.up[n] = false, false
		}
	}
	c.evict(due)
	for _, v := range c.volumes {
		c.stepVolume(v, due)
	}
}

// stepVolume lets copies on nodes that are away fall behind, if others are written to meanwhile, and fills them again
// from those.
func (c *Controller) stepVolume(v *Volume, due func(key string, d time.Duration) bool) {
	source := slices.ContainsFunc(v.Copies, func(k *Copy) bool { return c.online[k.Node] && !k.Cut && k.Disk == "UpToDate" })
	for _, k := range v.Copies {
		switch {
		case !c.up[k.Node]:
			if source {
				k.Disk, k.sync = "Outdated", false
			}
		case !c.online[k.Node] || k.Cut || !source || k.Disk != "Outdated" && k.Disk != "Inconsistent":
			k.sync = false
		default:
			k.Disk, k.sync = "Inconsistent", true
			if due("linstor/"+v.Name+"/"+k.Node+"/syncs", syncsFor) {
				k.Disk, k.sync = "UpToDate", false
			}
		}
	}
}
