package cluster

// Pulse is how Kubernetes and etcd stood at one moment of a run.
type Pulse struct {
	Kubernetes bool     // its API has answered; else nothing is known of Nodes
	Nodes      int      // Node objects
	NotReady   []string // of them, sorted
	Etcd       bool     // a control plane has said who the members are; else nothing is known of them
	Members    int
	Unwell     []string // members that do not answer, do not vote or know no leader, by name, sorted
}

// Ready counts the Nodes that are.
func (p Pulse) Ready() int { return p.Nodes - len(p.NotReady) }

// Well counts the members of etcd that answer, vote and know a leader.
func (p Pulse) Well() int { return p.Members - len(p.Unwell) }
