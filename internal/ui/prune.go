package ui

import (
	"fmt"
	"io"
	"strings"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/pipeline"
)

// WritePrune prints what goes or went, what stays and why.
func WritePrune(w io.Writer, format string, rep pipeline.PruneReport) error {
	return write(w, format, rep, func(p *page) {
		for _, v := range rep.ISOs {
			state := p.paint(green, "stays  ")
			switch {
			case v.Removed:
				state = p.paint(red, "removed")
			case len(v.Keep) == 0:
				state = p.paint(yellow, "goes   ")
			}
			p.line("%s  %s (%d MiB)", state, v, v.SizeBytes>>20)
			if len(v.Keep) > 0 {
				p.wrapped("         ", "         ", strings.Join(v.Keep, "; "))
			}
		}
		for _, u := range rep.Unseen {
			p.line("note: %s", u)
		}
		p.line("%s", pruned(rep.ISOs))
	})
}

func pruned(isos []images.Verdict) string {
	var goes, removed, bytes, freed int64
	for _, v := range isos {
		switch {
		case v.Removed:
			removed, freed = removed+1, freed+v.SizeBytes
		case len(v.Keep) == 0:
			goes, bytes = goes+1, bytes+v.SizeBytes
		}
	}
	switch {
	case removed > 0 && goes > 0:
		return fmt.Sprintf("%d of %d ISOs removed, %d MiB; %d that could go are still there", removed, len(isos), freed>>20, goes)
	case removed > 0:
		return fmt.Sprintf("%d of %d ISOs removed, %d MiB", removed, len(isos), freed>>20)
	case goes > 0:
		return fmt.Sprintf("%d of %d ISOs can go, %d MiB", goes, len(isos), bytes>>20)
	}
	return fmt.Sprintf("%d ISOs, none to remove", len(isos))
}
