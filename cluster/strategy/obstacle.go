package strategy

import (
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// toRecreate lists what prevents recreating a node, if the user did not ask for another strategy
// and it would not be recreated.
func (d Decision) toRecreate(asked cluster.Strategy, against []cluster.Obstacle) []cluster.Obstacle {
	if asked != cluster.Auto && asked != cluster.Recreate || d.Strategy == cluster.Recreate && len(d.Refused) == 0 {
		return nil
	}
	return slices.Clone(against)
}

// inWords are obstacles that no single command lifts.
func inWords(texts []string) []cluster.Obstacle {
	var out []cluster.Obstacle
	for _, text := range texts {
		out = append(out, cluster.Obstacle{Text: text})
	}
	return out
}
