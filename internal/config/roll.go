package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// Surge is how many surge nodes serve while workers are taken out: a number, or a percentage of all
// workers. The zero value is none.
type Surge Share

// Of returns the number of surge nodes for that many workers. A percentage is rounded up: it promises capacity.
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

// surge checks the surge nodes, and how many of them a roll asks for.
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

// surgeNode refuses settings that a surge node can't have: its VM is made from nothing, and its disks are freed when
// the node is removed.
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

// Canary says whether one node is rolled before any other, and which.
type Canary struct {
	On   bool
	Node string // "": recast chooses
}

// UnmarshalText reads true, false or the name of a node.
func (c *Canary) UnmarshalText(text []byte) error {
	switch s := string(text); s {
	case "true", "false":
		*c = Canary{On: s == "true"}
	default:
		*c = Canary{On: true, Node: s}
	}
	return nil
}

// MarshalYAML writes what UnmarshalText reads.
func (c Canary) MarshalYAML() (any, error) {
	if c.Node != "" {
		return c.Node, nil
	}
	return c.On, nil
}

// Share is a number of nodes, or a percentage of all of them: 2, or 20%.
type Share struct {
	Count   int // 0: use Percent
	Percent int
}

// Of returns the share of that many nodes. A percentage is rounded down, but to at least one node: with a limit of 0,
// a roll would never end.
func (s Share) Of(nodes int) int {
	if s.Percent > 0 {
		return max(nodes*s.Percent/100, 1)
	}
	return s.Count
}

// UnmarshalText reads a number from 1, or a percentage from 1% to 100%.
func (s *Share) UnmarshalText(text []byte) error {
	digits, percent := strings.CutSuffix(string(text), "%")
	n, err := strconv.Atoi(digits)
	switch {
	case err != nil || strconv.Itoa(n) != digits:
		return fmt.Errorf("%s is neither a number nor a percentage: write it like 2 or 20%%", quote(string(text)))
	case n < 1:
		return errors.New("must be at least 1")
	case percent && n > 100:
		return fmt.Errorf("%s is more than all of them: 100%% is the most", quote(string(text)))
	case percent:
		*s = Share{Percent: n}
	default:
		*s = Share{Count: n}
	}
	return nil
}

// MarshalYAML writes a count as a number, so that it needs no quotes.
func (s Share) MarshalYAML() (any, error) {
	if s.Percent > 0 {
		return s.String(), nil
	}
	return s.Count, nil
}

func (s Share) String() string {
	if s.Percent > 0 {
		return strconv.Itoa(s.Percent) + "%"
	}
	return strconv.Itoa(s.Count)
}

// Storage says at which storage systems of the cluster a roll looks.
type Storage struct {
	Longhorn string `yaml:"longhorn" jsonschema:"enum=on,enum=off"`
	Ceph     string `yaml:"ceph" jsonschema:"enum=on,enum=off"`
	LINSTOR  string `yaml:"linstor" jsonschema:"enum=on,enum=off"`
	Mayastor string `yaml:"mayastor" jsonschema:"enum=on,enum=off"`
}

// switches are the values for one system, or for all.
var switches = []string{"on", "off"}

// UnmarshalText reads the short form, which applies to all systems.
func (s *Storage) UnmarshalText(text []byte) error {
	word := string(text)
	if !slices.Contains(switches, word) {
		return fmt.Errorf("%s is not one of %s, or a section such as {linstor: off}%s", quote(word), strings.Join(switches, ", "), words.DidYouMean(word, switches))
	}
	*s = Storage{word, word, word, word}
	return nil
}

// MarshalYAML writes the short form if all systems have the same value.
func (s Storage) MarshalYAML() (any, error) {
	if s == (Storage{s.Longhorn, s.Longhorn, s.Longhorn, s.Longhorn}) {
		return s.Longhorn, nil
	}
	type section Storage
	return section(s), nil
}

// Off lists the keys of the systems at which a roll does not look.
func (s Storage) Off() []string {
	var off []string
	for _, system := range []struct{ key, word string }{{"longhorn", s.Longhorn}, {"ceph", s.Ceph}, {"linstor", s.LINSTOR}, {"mayastor", s.Mayastor}} {
		if system.word == "off" {
			off = append(off, system.key)
		}
	}
	return off
}

func (k checker) rehearse() {
	r := k.c.Roll.Rehearse
	const list, gateway = "roll.rehearse.addresses", "roll.rehearse.gateway"
	var prefixes []netip.Prefix
	for i, a := range r.Addresses {
		path := fmt.Sprintf("%s[%d]", list, i)
		prefix, err := netip.ParsePrefix(a)
		switch {
		case err != nil || !prefix.Addr().Is4():
			k.add(path, "%s is not an IPv4 address with the length of its network's prefix: write it like 192.0.2.250/24", quote(a))
			continue
		case prefix.Bits() > 30 || prefix.Addr() == prefix.Masked().Addr() || !prefix.Contains(prefix.Addr().Next()):
			k.add(path, "%s is not the address of one machine in a network of several", quote(a))
		}
		if first := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Addr() == prefix.Addr() }); first >= 0 {
			k.add(path, "%s is listed already", quote(a))
		}
		if other := k.has(prefix.Addr()); other != "" {
			k.add(path, "%s is the address of %s (line %d): choose an unused one", quote(a), other, k.line(other))
		}
		prefixes = append(prefixes, prefix)
	}
	if !k.given(gateway) {
		return
	}
	addr, err := netip.ParseAddr(r.Gateway)
	switch {
	case err != nil || !addr.Is4():
		k.add(gateway, "%s is not an IPv4 address: write it like 192.0.2.1", quote(r.Gateway))
	case slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Addr() == addr }):
		k.add(gateway, "%s is one of the addresses: scratch VMs would take it from the gateway", quote(r.Gateway))
	case !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }):
		k.add(gateway, "%s is in no network of the addresses", quote(r.Gateway))
	}
}

// has returns the key of the configuration that has this address; "" if there is none. Addresses of nodes and
// endpoints of the talosconfig are checked later, when a scratch VM is planned.
func (k checker) has(addr netip.Addr) string {
	named := map[string]string{
		"images.factory": k.c.Images.Factory, "images.extensions": k.c.Images.Extensions, "images.mirror": k.c.Images.Mirror,
	}
	for i, e := range k.c.Proxmox.Endpoints {
		named[fmt.Sprintf("proxmox.endpoints[%d]", i)] = e
	}
	for _, key := range slices.Sorted(maps.Keys(named)) {
		if is, err := netip.ParseAddr(hostOf(named[key])); err == nil && is == addr {
			return key
		}
	}
	return ""
}

// hostOf returns the host in a URL, or in a reference to an image, which has no scheme.
func hostOf(s string) string {
	if !strings.Contains(s, "://") {
		s = "//" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	return u.Hostname()
}
