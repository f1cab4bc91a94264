package replica

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Node is a node as the system knows it.
type Node struct {
	Name  string
	Down  string // why its copies can't be used now; "": they can
	Lacks string // what else of it is not as it should be
	// Patience is how long the system waits for this node; 0: as for others, Forever: it does nothing.
	Patience time.Duration
	Fixed    bool // and recast can't have it wait longer: something else would set that back
}

// Forever is longer than any node is away.
const Forever = time.Duration(math.MaxInt64)

func (s System) node(name string) (n Node, known bool) {
	i := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Name == name })
	if i < 0 {
		return n, false
	}
	return s.Nodes[i], true
}

// PatienceFor is how long the system waits for that node; 0: unknown.
func (s System) PatienceFor(node string) time.Duration {
	n, known := s.node(node)
	if s.Evicts && !known {
		return Forever
	}
	return cmp.Or(n.Patience, s.Patience)
}

// trouble says what a node lacks to serve its copies; "" if nothing, or if the system does not know
// the node.
func (s System) trouble(node string) string {
	n, _ := s.node(node)
	if n.Down != "" {
		return node + " " + n.Down
	}
	return n.Lacks
}
