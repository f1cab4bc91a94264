package config

import (
	"slices"
	"strings"
)

// Surge is how many surge nodes serve while workers are taken out: a number, or a percentage of all
// workers. The zero value is none.
type Surge Share

// Of returns the number for that many workers. A percentage is rounded up: it promises capacity.
func (s Surge) Of(workers int) int {
	if s.Percent > 0 {
		return max(1, (workers*s.Percent+99)/100)
	}
	return s.Count
}

// UnmarshalText reads a number from 0, or a percentage from 1% to 100%.
func (s *Surge) UnmarshalText(text []byte) error {
	if string(text) == "0" {
		*s = Surge{}
		return nil
	}
	return (*Share)(s).UnmarshalText(text)
}

// MarshalYAML writes a count as a number, so that it needs no quotes.
func (s Surge) MarshalYAML() (any, error) { return Share(s).MarshalYAML() }

func (s Surge) String() string { return Share(s).String() }

// IsSurge says whether a node is there only during a roll.
func (c *Config) IsSurge(node string) bool {
	return slices.ContainsFunc(c.Nodes, func(n Node) bool { return n.Surge && n.Name == node })
}

// surge checks the nodes that are there only during a roll, and how many of them a roll asks for.
func (k checker) surge() {
	nodes := 0
	for i, n := range k.c.Nodes {
		if !n.Surge {
			continue
		}
		nodes++
		k.surgeNode(nodePath(i, "surge"), n)
	}
	if r := k.c.Roll.Surge; r.Of(1) > 0 && nodes == 0 || r.Count > nodes {
		k.add("roll.surge", "%s asks for more nodes than have surge: true, which are %d (line %d): add a worker with surge: true, a class and a host, or lower it", r, nodes, k.line("nodes"))
	}
}

// surgeNode refuses what a node that comes and goes can't have: it is made from nothing, and its disks
// are freed when it is removed.
func (k checker) surgeNode(path string, n Node) {
	var lacks, other []string
	if n.Class == "" {
		lacks = append(lacks, "class")
	}
	if n.Host == "" {
		lacks = append(lacks, "host")
	}
	system := false
	for _, d := range k.c.ShapeOf(n).Disks {
		if !d.IsSystem() && d.Slot != n.SystemDisk.Slot {
			other = append(other, d.Slot)
		} else if d.Storage != nil && (d.Size != nil || n.SystemDisk.SizeGiB > 0) {
			system = true
		}
	}
	if n.Class != "" && !system {
		lacks = append(lacks, "a disk with system: true, storage and size in its class")
	}
	if len(lacks) > 0 {
		k.add(path, "%s is made by a roll, and lacks %s", quote(n.Name), strings.Join(lacks, ", "))
	}
	if len(other) > 0 {
		k.add(path, "%s has more than a system disk (%s): what is on that would be lost when the node is removed: give it a class without", quote(n.Name), strings.Join(other, ", "))
	}
	if n.Holder != 0 {
		k.add(path, "%s has a holder, whose disks are persistent: a surge node has only a system disk", quote(n.Name))
	}
}
