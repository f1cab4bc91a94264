package planning

// Configured are the nodes that answer with their own configuration and have no replacement in
// progress: no journal needs to keep it for them.
func (p Plan) Configured() []string {
	var nodes []string
	for _, n := range p.Nodes {
		if f := n.Found; f.VM != nil && f.Machine != nil && f.Blank == nil && !f.Open() {
			nodes = append(nodes, n.Node)
		}
	}
	return nodes
}
