package ui

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/prune"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
)

func WriteStatus(w io.Writer, format string, res pipeline.StatusResult) error {
	return write(w, format, res, func(p *page) { drawStatus(p, res) })
}

func drawStatus(p *page, res pipeline.StatusResult) {
	drawClaim(p, res.Claim)
	drawLastRun(p, res)
	apart(p, res.Open, drawHalf)
	apart(p, res.Marked, drawMarked)
	apart(p, res.Surge, func(p *page, node string) {
		p.line("surge  %s is left over by a roll", node)
		advise(p, []pipeline.Advice{{Command: "recast roll", Does: "goes on with it, or removes it"}, {Command: "recast remove " + node, Does: "removes it"}})
	})
	if len(res.Kept) > 0 {
		p.line("")
	}
	for _, k := range res.Kept {
		drawKept(p, k)
	}
	apart(p, res.Scratch, drawScratch)
	apart(p, res.Held, drawHeld)
	apart(p, res.Unanswered, func(p *page, text string) { p.wrapped(p.paint(yellow, "no answer")+"  ", "    ", text) })
	if res.Kubernetes != "" {
		p.line("")
		p.wrapped(p.paint(yellow, "Kubernetes could not be asked")+" for nodes that a run has cordoned: ", "  ", res.Kubernetes)
	}
	apart(p, res.Problems, func(p *page, text string) { p.wrapped(p.paint(red, "could not be read: "), "  ", text) })
	if len(res.Open) == 0 && len(res.Marked) == 0 && len(res.Unanswered)+len(res.Surge)+len(res.Held) == 0 && res.Claim == nil && len(res.Problems) == 0 && res.Kubernetes == "" {
		p.line("")
		p.line("nothing is unfinished")
	}
}

// apart draws each element of a list below a blank line.
func apart[T any](p *page, list []T, draw func(*page, T)) {
	for _, v := range list {
		p.line("")
		draw(p, v)
	}
}

func drawScratch(p *page, s pipeline.Left) {
	p.line("scratch  VM %d %q on %s: run %s tests, or tested, an image on it", s.VMID, s.Name, s.Host, s.Run)
	advise(p, s.Next)
}

func drawHeld(p *page, h pipeline.HeldBack) {
	p.wrapped(p.paint(yellow, "held back")+"  ", "    ", heldText(h))
	advise(p, h.Next)
}

// heldText says what is held, by which run, and since when.
func heldText(h pipeline.HeldBack) string {
	if h.Run == "" {
		return h.What
	}
	return fmt.Sprintf("%s (run %s, since %s)", h.What, h.Run, clock(h.Since))
}

func drawClaim(p *page, c *pipeline.ClaimHeld) {
	if c == nil {
		p.line("claim     nobody holds it: no run is active")
		return
	}
	p.line("claim     held by run %s since %s", c.Run, clock(c.Since))
	kept := fmt.Sprintf("Proxmox has it as VM %d", c.VMID)
	if c.Lease != "" {
		kept = "Kubernetes has it as Lease " + c.Lease
	}
	p.line("    by %s; %s, heartbeat %d", c.Holder, kept, c.Beat)
	if c.Dead {
		p.line("    That process has ended: it was killed. recast roll takes the claim over at once, and finishes what it began.")
		return
	}
	if c.Suspended {
		p.line("    That process is suspended: %s. A recast roll takes the", c.Holder.GoesOn())
		p.line("    claim over once its heartbeat has stood still for %.0f seconds, and then it ends when it is continued.", claim.Watch.Seconds())
		return
	}
	p.line("    The heartbeat is incremented every %.0f seconds while that run lives: let it finish.", claim.Heartbeat.Seconds())
	p.line("    If it stands still for %.0f seconds, recast roll takes the claim over; on the machine of a dead", claim.Watch.Seconds())
	p.line("    holder it does so at once.")
}

func drawLastRun(p *page, res pipeline.StatusResult) {
	r, c := res.LastRun, res.Claim
	switch {
	case r == nil && res.Shared != "":
		p.line("journal   no run was started on this machine; recast history shows those of others")
	case r == nil:
		p.line("journal   no run was started on this machine")
	case r.Finished.IsZero() && r.State == "suspended":
		p.line("journal   run %s, started here at %s, is suspended", r.ID, clock(r.Started))
	case r.Finished.IsZero() && r.State == "killed" && !r.Elsewhere:
		p.line("journal   run %s, started here at %s, was killed", r.ID, clock(r.Started))
	case r.Finished.IsZero() && r.Elsewhere:
		p.line("journal   run %s, started on another machine at %s, is running or was killed", r.ID, clock(r.Started))
	case r.Finished.IsZero() && (c == nil && res.Kubernetes == "" || c != nil && (c.Dead || c.Run != r.ID)):
		p.line("journal   run %s, started here at %s, was killed", r.ID, clock(r.Started))
	case r.Finished.IsZero():
		p.line("journal   run %s, started here at %s, is running or was killed", r.ID, clock(r.Started))
	default:
		p.wrapped("journal   ", "    ", fmt.Sprintf("last run %s: %s, at %s", r.ID, r.Outcome, clock(r.Finished)))
	}
	if r == nil {
		return
	}
	for _, t := range r.Took {
		seconds := func(n int) string { return (time.Duration(n) * time.Second).String() }
		p.line("    %s was away for %s (%s expected)", t.Node, seconds(t.OutageSeconds), seconds(t.Expected))
	}
}

func drawHalf(p *page, h pipeline.Half) {
	p.line("%s  %s: %s to %s, started by run %s", p.paint(yellow, "unfinished"), h.Node, h.Strategy, image(h.Strategy, h.Talos, h.Build), h.Run)
	if h.GivenUp {
		p.line("    It was cancelled: its old system disk is being put back.")
	}
	vm := h.VM
	if h.VMState != pipeline.VMDeleted && h.VMState != pipeline.VMAway && h.VMState != pipeline.VMStranger {
		vm += map[bool]string{true: ", running", false: ", stopped"}[h.Running]
	}
	if h.VMState == pipeline.VMStranger {
		vm = p.paint(red, vm)
	}
	p.line("    VM %d: %s", h.VMID, vm)
	for _, d := range h.Disks {
		drawWhere(p, d)
	}
	if h.LeftEtcd {
		p.line("    etcd: it has left, and joins again when it is back")
	}
	advise(p, h.Next)
}

func drawWhere(p *page, d pipeline.DiskStatus) {
	where := d.Where
	if d.Place == pipeline.Unnamed || d.Place == pipeline.Lost {
		where = p.paint(red, where)
	}
	what := d.Disk
	switch {
	case d.Kept:
		what += ", kept system disk, comes back"
	case d.System:
		what += ", old system disk"
	}
	p.line("    %s: %s", what, where)
	if d.Volid != "" {
		p.line("        %s", d.Volid)
	}
}

func drawMarked(p *page, m pipeline.Marked) {
	p.line("%s  %s: run %s started to bring it to build %s (%s)", p.paint(yellow, "marked"), m.Node, m.Run, words.OrNone(words.Short(m.Build)), m.Strategy)
	var state []string
	if m.Installed {
		state = append(state, "the new system is installed")
	}
	state = append(state, map[bool]string{true: "the node is Ready", false: "the node is not Ready"}[m.Ready])
	if m.Foreign {
		state = append(state, "someone else had cordoned it before")
	} else {
		state = append(state, "it takes no pods until that is finished")
	}
	p.line("    %s", strings.Join(state, "; "))
	advise(p, m.Next)
}

func drawKept(p *page, k pipeline.Kept) {
	what, by := "previous system disk", "replaced by run"
	if k.GivenUp {
		what, by = "system disk of a cancelled replacement,", "created by run"
	}
	if k.Removed {
		what, by = "disk", "removed by run"
	}
	p.line("kept  %s of %s: %s, %s of VM %d", what, k.Node, k.Volid, k.Key, k.Parking)
	system := fmt.Sprintf("Talos %s, lock %s, ", cmp.Or(k.Talos, "of unknown version"), words.OrNone(words.Short(k.Lock)))
	if k.Removed && k.Talos == "" {
		system = "" // any disk of the node
	}
	p.line("    %s, %s%s %s%s", diskSize(k.SizeBytes), system, by, k.Run, on(k.Replaced))
	advise(p, k.Next)
}

func advise(p *page, next []pipeline.Advice) {
	for _, a := range next {
		p.wrapped("    "+p.paint(green, a.Command)+"  ", "        ", a.Does)
	}
}

// image is a short name of the target build.
func image(s cluster.Strategy, talos, build string) string {
	what := "build "
	if s.System() == cluster.SystemKept {
		what = "lock "
	}
	if talos != "" {
		what = "Talos " + talos + " " + what
	}
	return what + words.OrNone(words.Short(build))
}

func clock(t time.Time) string { return t.Format(time.RFC3339) }

type StatusWords struct {
	Text   string
	Active bool // somebody holds the claim
}

func StatusInWords(res pipeline.StatusResult, hide func(string) string) StatusWords {
	return StatusWords{hide(textOf(func(p *page) { drawStatus(p, res) })), res.Claim != nil}
}

// pruneKind is a kind of thing that recast prune removes.
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

// pruneVerdict is the verdict about one thing of a kind.
type pruneVerdict struct {
	kind    *pruneKind
	what    string
	bytes   int64
	removed bool
	keep    []string // why it stays; none: it goes
	goes    string   // why it goes
}

// pruneVerdicts returns the verdicts of a report, in the order in which they are printed.
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

func keptDisk(v prune.KeptVerdict) string {
	if v.OfRemoved {
		return fmt.Sprintf("disk of %s (%s), which run %s removed%s: %s, %s of VM %d on %s",
			v.Node, diskSize(v.SizeBytes), v.Run, on(v.Replaced), cmp.Or(v.Volid, "no volume"), v.Key, v.Parking, v.Host)
	}
	return fmt.Sprintf("old system disk of %s (%s, Talos %s), replaced by run %s%s: %s, %s of VM %d on %s",
		v.Node, diskSize(v.SizeBytes), cmp.Or(v.Talos, "unknown"), v.Run, on(v.Replaced), cmp.Or(v.Volid, "no volume"), v.Key, v.Parking, v.Host)
}

func mirroredInstaller(v images.MirrorVerdict) string {
	built := "build date unknown"
	if !v.Built.IsZero() {
		built = "built on " + v.Built.Format(time.DateOnly)
	}
	return fmt.Sprintf("%s (%s, %s)", v, v.Digest, built)
}

// on returns the day of an event; "" if the time is not known.
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

type pruneCount struct{ all, goes, removed, bytes, freed int64 }

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
