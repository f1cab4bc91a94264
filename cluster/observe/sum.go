package observe

import (
	"fmt"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// summary states the result of the chain in a few sentences, the worst first.
func (j judged) summary(p Provenance) []string {
	var out []string
	if p.Contradicted() {
		out = append(out, "contradicted: "+strings.Join(names(p.Links, Contradicted), ", ")+": what the node shows does not fit together, so that nothing which it says of its image can be relied on")
	}
	switch {
	case j.known != nil && j.Wanted != nil && j.known.Build.ID == j.Wanted.Build.ID:
		out = append(out, "it claims the build that recast.lock wants")
	case j.known != nil:
		out = append(out, fmt.Sprintf("it claims build %s of %s, not what recast.lock wants", words.Short(j.known.Build.ID), j.known.Lock))
	case j.origin == FromOtherLock:
		out = append(out, "it claims a lock that is not at hand: another machine's .recast, another branch or another project has it")
	case j.origin == FromSchematic:
		out = append(out, "it claims someone's schematic, which recast did not lock")
	case j.origin == FromImager:
		out = append(out, "it was built by hand with the Talos imager: what from is unknown")
	case j.origin == FromRelease:
		out = append(out, "it looks like an image of a Talos release, which nothing in it confirms")
	}
	if j.Files != nil && j.known != nil && j.Files.Same() {
		out = append(out, "proven: the bytes of its extensions' files. Not proven, only claimed: Talos itself, its kernel and its arguments")
	} else if !p.Contradicted() {
		out = append(out, "proven about the node: nothing, all of it is what the image says of itself")
	}
	return out
}

func names(links []ProvenanceLink, s Certainty) []string {
	var out []string
	for _, l := range links {
		if l.Certainty == s {
			out = append(out, l.Name)
		}
	}
	return out
}
