package ui

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/prune"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/pipeline"
)

// WritePrune prints what would be or was removed, and what is kept and why.
func WritePrune(w io.Writer, format string, rep pipeline.PruneReport) error {
	return write(w, format, rep, func(p *page) {
		for _, v := range rep.Disks {
			drawVerdict(p, v.Removed, v.Keep, keptDisk(v), v.Goes)
		}
		for _, v := range rep.VMs {
			drawVerdict(p, v.Removed, v.Keep, "parking "+v.String()+ofNode(v.Node), v.Goes)
		}
		for _, v := range rep.Scratch {
			drawVerdict(p, v.Removed, v.Keep, "scratch "+v.String(), "it holds no data")
		}
		for _, v := range rep.ISOs {
			drawVerdict(p, v.Removed, v.Keep, fmt.Sprintf("%s (%s)", v, size(v.SizeBytes)), "")
		}
		for _, v := range rep.Cache {
			drawVerdict(p, v.Removed, v.Keep, fmt.Sprintf("%s (%s)", v, size(v.SizeBytes)), v.Goes)
		}
		for _, v := range rep.Mirror {
			drawVerdict(p, v.Removed, v.Keep, mirroredInstaller(v), "")
		}
		for _, u := range rep.Unseen {
			p.line("note: %s", u)
		}
		p.lines(pruned(rep))
	})
}

func drawVerdict(p *page, removed bool, keep []string, what, goes string) {
	state, why := p.paint(green, "stays  "), strings.Join(keep, "; ")
	switch {
	case removed:
		state, why = p.paint(red, "removed"), ""
	case len(keep) == 0:
		state, why = p.paint(yellow, "goes   "), goes
	}
	p.line("%s  %s", state, what)
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

func (t *pruneCount) count(removed bool, keep []string, bytes int64) {
	t.all++
	switch {
	case removed:
		t.removed, t.freed = t.removed+1, t.freed+bytes
	case len(keep) == 0:
		t.goes, t.bytes = t.goes+1, t.bytes+bytes
	}
}

func (t pruneCount) words(what, bytes, freed string) string {
	switch {
	case t.removed > 0 && t.goes > 0:
		return fmt.Sprintf("%d of %d %ss removed%s; %d that could be removed are still there", t.removed, t.all, what, freed, t.goes)
	case t.removed > 0:
		return fmt.Sprintf("%d of %d %ss removed%s", t.removed, t.all, what, freed)
	case t.goes > 0:
		return fmt.Sprintf("%d of %d %ss can go%s", t.goes, t.all, what, bytes)
	}
	return counted(int(t.all), what) + ", none to remove"
}

// pruneCounts are the counts of all kinds.
type pruneCounts struct{ disks, ofRemoved, vms, scratch, isos, diskImages, cache, mirror pruneCount }

func countPrune(rep pipeline.PruneReport) (n pruneCounts) {
	for _, v := range rep.Disks {
		if v.OfRemoved {
			n.ofRemoved.count(v.Removed, v.Keep, int64(v.SizeBytes))
		} else {
			n.disks.count(v.Removed, v.Keep, int64(v.SizeBytes))
		}
	}
	for _, v := range rep.VMs {
		n.vms.count(v.Removed, v.Keep, 0)
	}
	for _, v := range rep.Scratch {
		n.scratch.count(v.Removed, v.Keep, 0)
	}
	for _, v := range rep.ISOs {
		if v.Of() == images.DiskImage {
			n.diskImages.count(v.Removed, v.Keep, v.SizeBytes)
		} else {
			n.isos.count(v.Removed, v.Keep, v.SizeBytes)
		}
	}
	for _, v := range rep.Cache {
		n.cache.count(v.Removed, v.Keep, v.SizeBytes)
	}
	for _, v := range rep.Mirror {
		n.mirror.count(v.Removed, v.Keep, 0)
	}
	return n
}

// removedDisk is any disk of a node that was removed: also one with data.
const removedDisk = "removed node's disk"

// pruned is the summary. It omits empty kinds, except ISOs, and the mirror if requested.
func pruned(rep pipeline.PruneReport) string {
	n := countPrune(rep)
	var lines []string
	if n.disks.all > 0 {
		lines = append(lines, n.disks.words("old system disk", ", "+size(n.disks.bytes), ", "+size(n.disks.freed)))
	}
	if n.ofRemoved.all > 0 {
		lines = append(lines, n.ofRemoved.words(removedDisk, ", "+size(n.ofRemoved.bytes), ", "+size(n.ofRemoved.freed)))
	}
	if n.vms.all > 0 {
		lines = append(lines, n.vms.words("parking VM", "", ""))
	}
	if n.scratch.all > 0 {
		lines = append(lines, n.scratch.words("scratch VM", "", ""))
	}
	if n.isos.all > 0 || n.disks.all+n.ofRemoved.all+n.vms.all+n.scratch.all+n.diskImages.all+n.cache.all == 0 && rep.Mirror == nil {
		lines = append(lines, n.isos.words("ISO", ", "+size(n.isos.bytes), ", "+size(n.isos.freed)))
	}
	if n.diskImages.all > 0 {
		lines = append(lines, n.diskImages.words("disk image", ", "+size(n.diskImages.bytes), ", "+size(n.diskImages.freed)))
	}
	if n.cache.all > 0 {
		lines = append(lines, n.cache.words("cached file", ", "+size(n.cache.bytes), ", "+size(n.cache.freed)))
	}
	if rep.Mirror != nil {
		lines = append(lines, n.mirror.words("mirrored installer", "", ""))
	}
	return strings.Join(lines, "\n")
}

// PruneQuestion is the question whether to remove what a report lists.
func PruneQuestion(rep pipeline.PruneReport) string {
	n := countPrune(rep)
	var parts []string
	add := func(count int64, verb, what, more string) {
		if count == 1 {
			parts = append(parts, fmt.Sprintf("%s 1 %s%s", verb, what, more))
		} else if count > 1 {
			parts = append(parts, fmt.Sprintf("%s %d %ss%s", verb, count, what, more))
		}
	}
	add(n.disks.goes, "free", "old system disk", " ("+size(n.disks.bytes)+") for good")
	add(n.ofRemoved.goes, "free", removedDisk, " ("+size(n.ofRemoved.bytes)+") for good")
	add(n.vms.goes, "delete", "parking VM", "")
	add(n.scratch.goes, "delete", "scratch VM", "")
	add(n.isos.goes, "delete", "ISO", " ("+size(n.isos.bytes)+")")
	add(n.diskImages.goes, "delete", "disk image", " ("+size(n.diskImages.bytes)+")")
	add(n.cache.goes, "delete", "cached file", " ("+size(n.cache.bytes)+")")
	add(n.mirror.goes, "delete", "mirrored installer", " for good")
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
