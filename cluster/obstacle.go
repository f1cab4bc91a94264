package cluster

import "slices"

// Obstacle is one thing that stands against a strategy.
type Obstacle struct {
	Text string `json:"text"` // what it is, and what lifts it, in words
	// Command lifts it, as root on the VM's host, or from anywhere if it is kubectl; "": no single command does.
	Command string `json:"command,omitempty"`
	// Config is what recast.yaml has to say besides, before the next recast lock.
	Config string `json:"config,omitempty"`
}

// inWords are obstacles that no single command lifts.
func inWords(texts []string) []Obstacle {
	var out []Obstacle
	for _, text := range texts {
		out = append(out, Obstacle{Text: text})
	}
	return out
}

// Texts are the obstacles in words.
func Texts(obstacles []Obstacle) []string {
	var out []string
	for _, o := range obstacles {
		out = append(out, o.Text)
	}
	return out
}

// toRecreate is what has to be lifted until a node is recreated, where nobody has asked
// for anything else and it would not be.
func (d Decision) toRecreate(asked Strategy, against []Obstacle) []Obstacle {
	if asked != Auto && asked != Recreate || d.Strategy == Recreate && len(d.Refused) == 0 {
		return nil
	}
	return slices.Clone(against)
}
