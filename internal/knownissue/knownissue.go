// Package knownissue lists releases of Talos that no Image Factory marks as broken, and that nobody should
// install, or not with every machine configuration.
package knownissue

import "fmt"

// Issue is what is wrong with a release.
type Issue struct {
	Version string // "v1.13.1"
	What    string // after "Talos v1.13.1 "
	Source  string // URL
	Fixed   string // the release that is right
	// Scheduler says that only control planes are concerned whose configuration has an integer in cluster.scheduler.config.
	Scheduler bool
}

var issues = []Issue{
	{"v1.13.1", "was withdrawn by its makers as a broken release", "https://github.com/siderolabs/talos/issues/13312", "v1.13.2", false},
	{"v1.13.3", "starts no static pod of a control plane with an integer in cluster.scheduler.config", "https://github.com/siderolabs/talos/issues/13473", "v1.13.4", true},
}

// Of returns what is known of a release.
func Of(version string) (Issue, bool) {
	for _, i := range issues {
		if i.Version == version {
			return i, true
		}
	}
	return Issue{}, false
}

// String says what is wrong, and where that is known from.
func (i Issue) String() string { return fmt.Sprintf("Talos %s %s (%s)", i.Version, i.What, i.Source) }

// Hint says what to do.
func (i Issue) Hint() string { return fmt.Sprintf("set talos.version to %s or later", i.Fixed) }
