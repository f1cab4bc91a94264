package planning

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/knownissue"
)

// warnOfIssues warns of releases that nobody should run, but that nodes are to get, or continue to run. What only
// some configurations can't have is a refusal of the nodes that are to get it.
func (p worldOf) warnOfIssues() {
	var texts []string
	stay := map[string][]string{} // by what is wrong: the nodes that continue to run the release
	for _, n := range p.Nodes {
		gets := n.Strategy != "" && n.NeedsImage()
		version := n.Wanted.Build.TalosVersion
		if !gets && n.Found.Machine == nil {
			continue
		}
		if !gets {
			version = n.Found.Machine.TalosVersion
		}
		for _, text := range n.issuesOf(version, gets) {
			if !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
			if !gets {
				stay[text] = append(stay[text], n.Node)
			}
		}
	}
	for _, text := range texts {
		if nodes := stay[text]; len(nodes) > 0 {
			text = fmt.Sprintf("%s (on %s now)", text, strings.Join(nodes, ", "))
		}
		p.Warn = append(p.Warn, text)
	}
}

// issuesOf says what is wrong with a release, for a node that gets or runs it.
func (n NodePlan) issuesOf(version string, gets bool) []string {
	var out []string
	issue, known := knownissue.Of(version)
	switch {
	case known && !issue.Scheduler, known && !gets && n.Found.ConfigRefused != nil:
		out = append(out, issue.String()+": "+issue.Hint())
	}
	if b := n.Wanted.Build; b.Broken && b.TalosVersion == version {
		out = append(out, fmt.Sprintf("Talos %s was marked broken by the Image Factory: choose another version; the release notes of Talos say which one fixes it", version))
	}
	return out
}
