package cluster

import (
	"fmt"

	"github.com/recast-sh/recast/internal/words"
)

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
