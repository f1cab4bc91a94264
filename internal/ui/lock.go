package ui

import (
	"io"
	"strings"

	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

// WriteLock prints the result of recast lock.
func WriteLock(w io.Writer, format string, res pipeline.LockResult) error {
	return write(w, format, res, func(p *page) {
		for _, c := range res.Changes {
			p.line("schematic %s: build %s → %s", c.Schematic, words.OrNone(words.Short(c.OldBuild)), words.OrNone(words.Short(c.NewBuild)))
			for _, r := range c.Reasons {
				p.line("  %s", r)
			}
			if len(c.Nodes) > 0 && c.OldBuild != "" && c.NewBuild != "" {
				p.line("  makes stale: %s", strings.Join(c.Nodes, ", "))
			}
		}
		switch {
		case !res.Differs && !res.Newest:
			p.line("recast.lock is unchanged; recast lock --check looks for newer digests")
		case !res.Differs:
			p.line("recast.lock is up to date")
		case res.Written && len(res.Changes) == 0:
			p.line("recast.lock written: every build is the same as before")
		case res.Written:
			p.line("recast.lock written; next: recast plan")
		default:
			p.line("recast.lock would change: recast lock --update")
		}
	})
}

// WriteImages prints where the images of a lock are.
func WriteImages(w io.Writer, format string, lock schematics.Lock) error {
	return write(w, format, lock, func(p *page) {
		for _, name := range lock.Names() {
			e := lock.Schematics[name]
			p.line("schematic %s: build %s", name, words.Short(e.BuildID))
			p.line("  installer %s", words.OrNone(e.Installer))
			p.line("  boot ISO  %s sha256:%s", e.ISO.Name, words.OrNone(e.ISO.SHA256))
			if e.Disk.Name != "" {
				p.line("  disk      %s sha256:%s", e.Disk.Name, e.Disk.SHA256)
			}
		}
	})
}
