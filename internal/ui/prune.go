package ui

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/prune"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
)

// pruneKind is a kind of what recast prune removes.
type pruneKind struct {
	noun, verb     string
	sized, forGood bool
}

var (
	oldDisk     = &pruneKind{"old system disk", "free", true, true}
	removedDisk = &pruneKind{"removed node's disk", "free", true, true} // any disk of a node that was removed: also one with data
	parkingVM   = &pruneKind{"parking VM", "delete", false, false}
	scratchVM   = &pruneKind{"scratch VM", "delete", false, false}
	isoFile     = &pruneKind{"ISO", "delete", true, false}
	diskImage   = &pruneKind{"disk image", "delete", true, false}
	cachedFile  = &pruneKind{"cached file", "delete", true, false}
	installer   = &pruneKind{"mirrored installer", "delete", false, true}

	pruneKinds = []*pruneKind{oldDisk, removedDisk, parkingVM, scratchVM, isoFile, diskImage, cachedFile, installer}
)

// pruneVerdict is about one thing of a kind.
type pruneVerdict struct {
	kind    *pruneKind
	what    string
	bytes   int64
	removed bool
	keep    []string // why it stays; none: it goes
	goes    string   // why it goes
}

// pruneVerdicts are the verdicts of a report, in the order in which they are printed.
func pruneVerdicts(rep pipeline.PruneReport) (out []pruneVerdict) {
	for _, v := range rep.Disks {
		kind := oldDisk
		if v.OfRemoved {
			kind = removedDisk
		}
		out = append(out, pruneVerdict{kind, keptDisk(v), int64(v.SizeBytes), v.Removed, v.Keep, v.Goes})
	}
	for _, v := range rep.VMs {
		out = append(out, pruneVerdict{parkingVM, "parking " + v.String() + ofNode(v.Node), 0, v.Removed, v.Keep, v.Goes})
	}
	for _, v := range rep.Scratch {
		out = append(out, pruneVerdict{scratchVM, "scratch " + v.String(), 0, v.Removed, v.Keep, "it holds no data"})
	}
	for _, v := range rep.ISOs {
		kind := isoFile
		if v.Of() == images.DiskImage {
			kind = diskImage
		}
		out = append(out, pruneVerdict{kind, fmt.Sprintf("%s (%s)", v, size(v.SizeBytes)), v.SizeBytes, v.Removed, v.Keep, ""})
	}
	for _, v := range rep.Cache {
		what := fmt.Sprintf("%s (%s)", v, size(v.SizeBytes))
		out = append(out, pruneVerdict{cachedFile, what, v.SizeBytes, v.Removed, v.Keep, v.Goes})
	}
	for _, v := range rep.Mirror {
		out = append(out, pruneVerdict{installer, mirroredInstaller(v), 0, v.Removed, v.Keep, ""})
	}
	return out
}

// WritePrune prints what would be or was removed, and what is kept and why.
func WritePrune(w io.Writer, format string, rep pipeline.PruneReport) error {
	return write(w, format, rep, func(p *page) {
		verdicts := pruneVerdicts(rep)
		for _, v := range verdicts {
			drawVerdict(p, v)
		}
		for _, u := range rep.Unseen {
			p.line("note: %s", u)
		}
		n := countPrune(verdicts)
		for _, k := range pruneKinds {
			asked := k == installer && rep.Mirror != nil || k == isoFile && len(verdicts) == 0 && rep.Mirror == nil
			if n[k].all > 0 || asked {
				p.line("%s", n[k].words(k))
			}
		}
	})
}

func drawVerdict(p *page, v pruneVerdict) {
	state, why := p.paint(green, "stays  "), strings.Join(v.keep, "; ")
	switch {
	case v.removed:
		state, why = p.paint(red, "removed"), ""
	case len(v.keep) == 0:
		state, why = p.paint(yellow, "goes   "), v.goes
	}
	p.line("%s  %s", state, v.what)
	if why != "" {
		p.wrapped("         ", "         ", why)
	}
}

// keptDisk describes an old system disk.
func keptDisk(v prune.KeptVerdict) string {
	if v.OfRemoved {
		return fmt.Sprintf("disk of %s (%s), which run %s removed%s: %s, %s of VM %d on %s",
			v.Node, diskSize(v.SizeBytes), v.Run, on(v.Replaced), cmp.Or(v.Volid, "no volume"), v.Key, v.Parking, v.Host)
	}
	return fmt.Sprintf("old system disk of %s (%s, Talos %s), replaced by run %s%s: %s, %s of VM %d on %s",
		v.Node, diskSize(v.SizeBytes), cmp.Or(v.Talos, "unknown"), v.Run, on(v.Replaced), cmp.Or(v.Volid, "no volume"), v.Key, v.Parking, v.Host)
}

// mirroredInstaller describes an installer in the mirror.
func mirroredInstaller(v images.MirrorVerdict) string {
	built := "build date unknown"
	if !v.Built.IsZero() {
		built = "built on " + v.Built.Format(time.DateOnly)
	}
	return fmt.Sprintf("%s (%s, %s)", v, v.Digest, built)
}

// on is the day of an event; "" if it is not known.
func on(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " on " + t.Format(time.DateOnly)
}

func ofNode(node string) string {
	if node == "" {
		return ""
	}
	return " of node " + node
}

// pruneCount counts one kind.
type pruneCount struct{ all, goes, removed, bytes, freed int64 }

// countPrune counts the verdicts of each kind.
func countPrune(verdicts []pruneVerdict) map[*pruneKind]pruneCount {
	n := map[*pruneKind]pruneCount{}
	for _, v := range verdicts {
		t := n[v.kind]
		t.all++
		switch {
		case v.removed:
			t.removed, t.freed = t.removed+1, t.freed+v.bytes
		case len(v.keep) == 0:
			t.goes, t.bytes = t.goes+1, t.bytes+v.bytes
		}
		n[v.kind] = t
	}
	return n
}

func (t pruneCount) words(k *pruneKind) string {
	bytes, freed := "", ""
	if k.sized {
		bytes, freed = ", "+size(t.bytes), ", "+size(t.freed)
	}
	switch {
	case t.removed > 0 && t.goes > 0:
		return fmt.Sprintf("%d of %d %ss removed%s; %d that could be removed are still there", t.removed, t.all, k.noun, freed, t.goes)
	case t.removed > 0:
		return fmt.Sprintf("%d of %d %ss removed%s", t.removed, t.all, k.noun, freed)
	case t.goes > 0:
		return fmt.Sprintf("%d of %d %ss can go%s", t.goes, t.all, k.noun, bytes)
	}
	return words.Counted(int(t.all), k.noun) + ", none to remove"
}

// PruneQuestion is the question whether to remove what a report lists.
func PruneQuestion(rep pipeline.PruneReport) string {
	n := countPrune(pruneVerdicts(rep))
	var parts []string
	for _, k := range pruneKinds {
		t := n[k]
		if t.goes == 0 {
			continue
		}
		part := k.verb + " " + words.Counted(int(t.goes), k.noun)
		if k.sized {
			part += " (" + size(t.bytes) + ")"
		}
		if k.forGood {
			part += " for good"
		}
		parts = append(parts, part)
	}
	question := strings.Join(parts, ", ") + "?"
	return strings.ToUpper(question[:1]) + question[1:]
}

func size(bytes int64) string {
	switch {
	case bytes < 1<<20:
		return fmt.Sprintf("%d KiB", (bytes+1023)>>10)
	case bytes%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", bytes>>30)
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}

// diskSize is the size of a disk, if its configuration has it.
func diskSize(bytes uint64) string {
	if bytes == 0 {
		return "of unknown size"
	}
	return size(int64(bytes))
}
