package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// ForeignBridges lists the networks of a VM other than the hosts' own bridges.
func ForeignBridges(vm VM) []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		bridge := Disk{Options: strings.Split(vm.Config[key], ",")}.Option("bridge")
		if strings.TrimRight(key, "0123456789") == "net" && bridge != "" && !LocalBridge(bridge) {
			out = append(out, bridge)
		}
	}
	return out
}

// NewToken returns the commands that create a user and its token, before any Grants.Lines.
func NewToken(token string) []string {
	user, name, _ := strings.Cut(token, "!")
	lines := []string{fmt.Sprintf("pveum user add %s", user), fmt.Sprintf("pveum user token add %s %s --privsep 1", user, name)}
	if strings.HasSuffix(user, "@pam") {
		return lines[1:] // a user of the host's system, for example root
	}
	return lines
}

// LocalBridge says whether a bridge is a host's own, and not a VNet of an SDN zone: the VM's
// configuration does not name the zone.
func LocalBridge(bridge string) bool { return strings.HasPrefix(bridge, "vmbr") }

// ACLEntry is one entry of Proxmox' access control list.
type ACLEntry struct {
	Path, Kind, Who, Role string // Kind is "user", "group" or "token"
	Propagate             bool
}

// Words says which role the entry gives to whom.
func (e ACLEntry) Words() string { return fmt.Sprintf("%s of %s %s", e.Role, e.Kind, e.Who) }

// Arguments are the arguments of pveum acl for the entry.
func (e ACLEntry) Arguments() string {
	return fmt.Sprintf("%s --%ss %s --roles %s", e.Path, e.Kind, words.Quote(e.Who), words.Quote(e.Role))
}

// Propagates is the option for pveum acl modify, which propagates by default.
func (e ACLEntry) Propagates() string {
	if e.Propagate {
		return ""
	}
	return " --propagate 0"
}

// Privileges are what a token holds at one path of Proxmox's access tree. The value says whether the privilege also
// holds at the paths below.
type Privileges map[string]bool

// Standing has the privileges of a token and its user at a path of the access tree, from entries there or above.
type Standing struct {
	Token Privileges // no more than User has, if the token's privileges are separated
	User  Privileges
	// TokenEntry and UserEntry say who has an entry at that very path. Another role is added to an existing entry,
	// but a first entry replaces all privileges from above.
	TokenEntry, UserEntry bool
	// Whole says that User and the entries could be read.
	Whole bool
}
