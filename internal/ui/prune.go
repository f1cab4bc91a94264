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
			p.line("%s  %s (%s)", state, v, size(v.SizeBytes))
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
		return fmt.Sprintf("%d of %d ISOs removed, %s; %d that could go are still there", removed, len(isos), size(freed), goes)
	case removed > 0:
		return fmt.Sprintf("%d of %d ISOs removed, %s", removed, len(isos), size(freed))
	case goes > 0:
		return fmt.Sprintf("%d of %d ISOs can go, %s", goes, len(isos), size(bytes))
	}
	return fmt.Sprintf("%d ISOs, none to remove", len(isos))
}

func size(bytes int64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%d KiB", (bytes+1023)>>10)
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}
