package simtest

import (
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"

	"github.com/recast-sh/recast/schematics"
)

// Configure writes the files of a user who makes a cluster in an empty lab: recast.yaml with
// that text about its classes and nodes, the schematics default and storage, and their lock,
// which it returns.
func (l *Lab) Configure(nodes string) schematics.Lock {
	l.t.Helper()
	l.Write("recast.yaml", []byte(l.Config(nodes)))
	for name, content := range l.Schematics() {
		l.Write(name, content)
	}
	return l.lockSchematics()
}

// Guard makes the test fail if recast shows one of these secrets, as it does for those of the
// lab's own cluster.
func (l *Lab) Guard(secrets *secrets.Bundle) {
	l.canary.mu.Lock()
	defer l.canary.mu.Unlock()
	l.canary.addBundle(secrets)
}
