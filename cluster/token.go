package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// ForeignBridges lists what a VM is connected to beside the hosts' own bridges.
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

// NewToken are the commands that make a user and its token, before any Lines.
func NewToken(token string) []string {
	user, name, _ := strings.Cut(token, "!")
	lines := []string{fmt.Sprintf("pveum user add %s", user), fmt.Sprintf("pveum user token add %s %s --privsep 1", user, name)}
	if strings.HasSuffix(user, "@pam") {
		return lines[1:] // a user of the system, root perhaps
	}
	return lines
}

// LocalBridge tells the hosts' own bridges from the VNets of SDN zones, whose
// zone the VM's configuration does not name.
func LocalBridge(bridge string) bool { return strings.HasPrefix(bridge, "vmbr") }

// ACLEntry is one of Proxmox' access control list.
type ACLEntry struct {
	Path, Kind, Who, Role string // Kind is "user", "group" or "token"
	Propagate             bool
}

func (e ACLEntry) Words() string { return fmt.Sprintf("%s of %s %s", e.Role, e.Kind, e.Who) }

// Arguments are those by which pveum acl knows the entry.
func (e ACLEntry) Arguments() string {
	return fmt.Sprintf("%s --%ss %s --roles %s", e.Path, e.Kind, words.Quote(e.Who), words.Quote(e.Role))
}

// Propagates is the option that pveum acl modify has to be given; it propagates otherwise.
func (e ACLEntry) Propagates() string {
	if e.Propagate {
		return ""
	}
	return " --propagate 0"
}

// Privileges are what a token holds at one path of Proxmox's access tree, each
// with whether it holds at the paths below as well.
type Privileges map[string]bool

// Standing is what a token and its user have at a path of the access tree, from
// entries there or above.
type Standing struct {
	Token Privileges // no more than User has, if the token's privileges are separated
	User  Privileges
	// TokenEntry and UserEntry say who has an entry at that very path: another
	// role joins it, where a first one takes the place of all that comes from above.
	TokenEntry, UserEntry bool
	// Whole says that User and the entries could be read.
	Whole bool
}
