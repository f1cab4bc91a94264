package cluster

// Selector chooses nodes by the labels of their Node objects.
type Selector struct {
	Text    string // as it was asked for; "": every node
	Matches func(labels map[string]string) bool
}
