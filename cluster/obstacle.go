package cluster

// Obstacle is one thing that stands against a strategy.
type Obstacle struct {
	Text string `json:"text"` // what it is, and what lifts it, in words
	// Command lifts it, as root on the VM's host, or from anywhere if it is kubectl; "": no single command does.
	Command string `json:"command,omitempty"`
	// Config is what recast.yaml has to say besides, before the next recast lock.
	Config string `json:"config,omitempty"`
}

// Texts are the obstacles in words.
func Texts(obstacles []Obstacle) []string {
	var out []string
	for _, o := range obstacles {
		out = append(out, o.Text)
	}
	return out
}
