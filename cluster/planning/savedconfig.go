package planning

// Configured are the nodes that answer with their own configuration, have no replacement in progress,
// and do not wait to be healthy with a new one: no journal needs to keep it for them.
func (p Plan) Configured() []string {
	var nodes []string
	for _, n := range p.Nodes {
		if f := n.Found; f.VM != nil && f.Machine != nil && f.Blank == nil && !f.Open() && (f.Node == nil || f.Node.Mark == nil || !f.Node.Mark.Strategy.KeepsImage()) {
			nodes = append(nodes, n.Node)
		}
	}
	return nodes
}
