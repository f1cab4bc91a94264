package cluster

// OnIt says what a strategy does to a node: "recreate it".
func (s Strategy) OnIt() string {
	if s == Rollback {
		return "roll it back"
	}
	return string(s) + " it"
}
