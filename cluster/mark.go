package cluster

// Begun says whether a mark is of the same upgrade within the same boot.
func (m Mark) Begun(now Mark) bool {
	return m.Strategy == now.Strategy && m.Build == now.Build && m.BootID == now.BootID
}
