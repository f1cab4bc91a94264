package cluster

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/internal/words"
)

// ACLEntry is one of Proxmox' access control list.
type ACLEntry struct {
	Path, Kind, Who, Role string // Kind is "user", "group" or "token"
	Propagate             bool
}

func (e ACLEntry) words() string { return fmt.Sprintf("%s of %s %s", e.Role, e.Kind, e.Who) }

// arguments are those by which pveum acl knows the entry.
func (e ACLEntry) arguments() string {
	return fmt.Sprintf("%s --%ss %s --roles %s", e.Path, e.Kind, words.Quote(e.Who), words.Quote(e.Role))
}

// propagates is the option that pveum acl modify has to be given; it propagates otherwise.
func (e ACLEntry) propagates() string {
	if e.Propagate {
		return ""
	}
	return " --propagate 0"
}

// Privileges are what a token holds at one path of Proxmox's access tree, each
// with whether it holds at the paths below as well.
type Privileges map[string]bool

// Disks are what of the node is parked or attached again; of an unfinished
// replacement by the names that they had on the node's VM, which say whose they are.
func (n NodePlan) Disks() []DiskPlan {
	var out []DiskPlan
	if n.Found.Open() {
		for _, d := range n.Found.Parking.Record.Disks {
			out = append(out, DiskPlan{Key: d.Key, Volid: d.Volid})
		}
		return out
	}
	if n.Strategy != Reimage && n.Strategy != Rollback {
		out = slices.Clone(n.Carried)
	}
	if n.System != nil {
		out = append(out, *n.System)
	}
	return out
}
