package replica

import (
	"fmt"
	"slices"
	"strings"
)

// Placement is how the data of one pool of a Ceph cluster lies on nodes.
type Placement struct {
	Pool   string         // "CephBlockPool replicapool"
	Domain string         // its failure domain, as its owner wrote it
	Copies int            // of each object, or its chunks
	Needs  int            // as many must be there for the object to be used
	On     map[string]int // how many of an object's may be on each node
}

// short says whether objects of the pool may have too few copies left without a node.
func (p Placement) short(node string) bool { return p.Copies-p.On[node] < p.Needs }

// Voter is a monitor of a Ceph cluster.
type Voter struct {
	Name  string
	Node  string // "": it is on none
	Votes bool   // it runs and is in quorum
}

func (m Voter) String() string {
	if m.Node == "" {
		return "monitor " + m.Name
	}
	return "monitor " + m.Name + " on " + m.Node
}

// poolsExposed is Exposed for a system of whole pools.
func (s System) poolsExposed(node string, away func(node string) bool) (out []Exposure) {
	for _, v := range s.Volumes {
		add := func(e Exposure) {
			e.System, e.Volume = s.Name, s.about(v)
			out = append(out, e)
		}
		if slices.ContainsFunc(v.Replicas, func(r Replica) bool { return r.Node == node }) {
			if why, remedy := s.partExposed(v, node, away); why != "" {
				add(Exposure{Why: why, Remedy: remedy})
			}
			for _, e := range s.placed(v, node) {
				add(e)
			}
		}
		if e := s.outvoted(v, node, away); e.Why != "" {
			add(e)
		}
	}
	return out
}

// placed lists the pools whose objects may have too few copies without the node although all other nodes serve. Where
// even one copy less is too few, or no other node has any, its owner wants it so.
func (s System) placed(v Volume, node string) (out []Exposure) {
	if !slices.ContainsFunc(v.Replicas, func(r Replica) bool { return r.Node != node }) {
		return []Exposure{{
			Alone: true, Why: "has all its data on it", Remedy: "add OSDs on other nodes",
			Note: "it is the only node with OSDs of " + s.about(v) + ", which is not there while the node is away",
		}}
	}
	for _, p := range v.Placements {
		switch on := p.On[node]; {
		case on == 0 || !p.short(node):
		case on == 1:
			out = append(out, Exposure{
				Alone: true, Why: fmt.Sprintf("needs %d of %d copies of %s, and may have one on it", p.Needs, p.Copies, p.Pool), Remedy: "raise the pool's size",
				Note: fmt.Sprintf("%s of %s needs %d of its %d copies: data with one on it is not there while the node is away", p.Pool, s.about(v), p.Needs, p.Copies),
			})
		default:
			out = append(out, Exposure{
				Why:    fmt.Sprintf("may have %d of the %d copies of data of %s on it (failureDomain %s), and %d must be there", on, p.Copies, p.Pool, p.Domain, p.Needs),
				Remedy: "give the pool the failureDomain host",
			})
		}
	}
	return out
}

// outvoted says that the monitors that are left without the node can't form a quorum. Where no other number of
// healthy monitors could, its owner wants it so.
func (s System) outvoted(v Volume, node string, away func(node string) bool) Exposure {
	var lost []string
	voters, here, there := len(v.Voters), 0, 0
	known := false
	for _, m := range v.Voters {
		switch {
		case m.Node == node:
			known = true
			if m.Votes {
				here++
			}
		case !m.Votes:
			lost = append(lost, m.String()+" is not in quorum")
		default:
			if down := s.down(m.Node, away); down != "" {
				lost = append(lost, m.Node+" "+down)
				continue
			}
			there++
		}
	}
	const loses = "loses the quorum of its monitors without it: "
	switch {
	case known && v.Doubt != "":
		return Exposure{Why: "may lose the quorum of its monitors without it: " + v.Doubt, Remedy: "wait until it has repaired that"}
	case here == 0 || 2*there > voters:
		return Exposure{}
	case len(lost) > 0:
		return Exposure{Why: loses + strings.Join(lost, ", "), Remedy: "bring that back first"}
	case here == voters || here == 1:
		has := "its only monitor"
		if voters > 1 {
			has = fmt.Sprintf("%d of its %d monitors", here, voters)
		}
		return Exposure{Alone: true, Why: "has " + has + " on it", Remedy: "give it three, on three nodes", Note: s.about(v) + " has " + has + " on it" + meanwhile}
	}
	return Exposure{Why: loses + fmt.Sprintf("%d of %d are on it", here, voters), Remedy: "have Rook move one (spec.mon.allowMultiplePerNode: false)"}
}

// partExposed is exposed for a pool: parts of it may be on the node and one other node only.
func (s System) partExposed(v Volume, node string, away func(node string) bool) (why, remedy string) {
	const only = "may have the only healthy replica of some data on it: "
	for _, r := range v.Replicas {
		switch down := s.down(r.Node, away); {
		case r.Node == node:
		case down != "":
			return only + r.Node + " " + down, "bring that back first"
		case !r.Healthy:
			return only + r.Node + " does not serve all of its own", "bring that back first"
		}
	}
	if !v.Robust {
		return only + v.Why, "wait until it has repaired that"
	}
	return "", ""
}

// unhealedPools is unhealed for pools.
func (s System) unhealedPools(node string) string {
	var parts []string
	for _, v := range s.Volumes {
		switch {
		case slices.ContainsFunc(v.Replicas, func(r Replica) bool { return r.Node == node && !r.Healthy }):
			parts = append(parts, fmt.Sprintf("%s: %s does not serve all of its data yet", s.about(v), node))
		case !v.Robust:
			parts = append(parts, s.about(v)+": "+v.Why)
		}
		for _, m := range v.Voters {
			if m.Node == node && !m.Votes {
				parts = append(parts, fmt.Sprintf("%s: %s is not in quorum yet", s.about(v), m))
			}
		}
	}
	return strings.Join(parts, "; ")
}
