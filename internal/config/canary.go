package config

// Canary says whether one node is rolled before any other, and which.
type Canary struct {
	On   bool
	Node string // "": recast chooses
}

// UnmarshalText reads true, false or the name of a node.
func (c *Canary) UnmarshalText(text []byte) error {
	switch s := string(text); s {
	case "true", "false":
		*c = Canary{On: s == "true"}
	default:
		*c = Canary{On: true, Node: s}
	}
	return nil
}

// MarshalYAML writes what UnmarshalText reads.
func (c Canary) MarshalYAML() (any, error) {
	if c.Node != "" {
		return c.Node, nil
	}
	return c.On, nil
}
