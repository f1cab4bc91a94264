package cluster

// OnIt says what a strategy does to a node: "recreate it".
func (s Strategy) OnIt() string {
	if s == Rollback {
		return "roll it back"
	}
	return string(s) + " it"
}

// Build finds a build by its ID: the wanted one, or that of a past lock.
func (o Observation) Build(w Wanted, id string) (Build, bool) {
	if id == w.Build.ID {
		return w.Build, true
	}
	b, ok := o.PastBuilds[id]
	return b, ok
}
