package ui

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/cluster/prune"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/adopt"
	"github.com/recast-sh/recast/pipeline/setup"
	"github.com/recast-sh/recast/schematics"
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
		advise(p, []pipeline.Advice{{Command: "recast roll", Does: "continues with it, or removes it"}, {Command: "recast remove " + node, Does: "removes it"}})
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

type pruneVerdict struct {
	kind    *pruneKind
	what    string
	bytes   int64
	removed bool
	keep    []string // why it stays; none: it goes
	goes    string   // why it goes
}

func pruneVerdicts(rep pipeline.PruneReport) (out []pruneVerdict) {
	for _, v := range rep.Disks {
		kind := oldDisk
		if v.OfRemoved {
			kind = removedDisk
		}
		out = append(out, pruneVerdict{kind, keptDisk(v), int64(v.SizeBytes), v.Removed, v.Keep, v.Goes})
	}
	for _, v := range rep.VMs {
		out = append(out, pruneVerdict{parkingVM, "parking " + v.String() + strings.TrimSuffix(" of node "+v.Node, " of node "), 0, v.Removed, v.Keep, v.Goes})
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

// Pruned says whether anything was removed.
func Pruned(rep pipeline.PruneReport) bool {
	return slices.ContainsFunc(pruneVerdicts(rep), func(v pruneVerdict) bool { return v.removed })
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

func WriteInit(w io.Writer, format string, res setup.InitResult) error {
	return write(w, format, res, func(p *page) {
		kubernetes := ""
		if res.Kubernetes != "" {
			kubernetes = ", Kubernetes " + res.Kubernetes
		}
		if res.New {
			kubernetes += " at " + res.Endpoint
		}
		p.line("cluster %s: %s, Talos %s (%s, %s)%s", res.Cluster, words.Counted(len(res.Nodes), "node"), res.Talos, res.Platform, res.Arch, kubernetes)
		drawInitNodes(p, res.Nodes)
		for _, name := range res.Left {
			p.line("  %s was left out: recast leaves it alone", name)
		}
		p.line("")
		for _, s := range res.Schematics {
			extensions := cmp.Or(strings.Join(s.Extensions, ", "), "no extensions")
			p.wrapped("", "  ", fmt.Sprintf("schematic %s (%s): %s", s.Name, strings.Join(s.Nodes, ", "), extensions))
		}
		p.wrapped(p.paint(yellow, "note: "), "      ", res.Warnings...)
		p.line("")
		p.line("written to %s: %s", filepath.Clean(res.Dir), strings.Join(res.Files, ", "))
		if res.New {
			drawNewNext(p, res)
			return
		}
		drawInitDrift(p, res)
		p.line("")
		p.line("next: %s shows what a roll still needs: privileges, space, versions", thereRun(res, "recast doctor"))
		if len(res.Secret) > 0 {
			p.line("      read recast.yaml; commit nothing while there are secrets in %s", strings.Join(res.Secret, ", "))
		} else {
			p.line("      read recast.yaml, then commit it with recast.lock and schematics/")
		}
	})
}

func drawNewNext(p *page, res setup.InitResult) {
	p.line("")
	p.line("next: read recast.yaml and change what you like: there is no VM yet")
	if res.Encrypted != "" {
		p.line("      commit all of these files: secrets.yaml is encrypted by %s. Without its key no node can be made again: keep a copy", res.Encrypted)
	} else {
		p.line("      commit all of these files but secrets.yaml. Without it no node can be made again: keep a copy in a safe place")
	}
	p.line("      %s makes the VMs and the cluster", thereRun(res, "recast bootstrap "+res.Nodes[0].Name)) // control planes are first
}

// thereRun returns a command that runs in the directory of the files.
func thereRun(res setup.InitResult, command string) string {
	if dir := filepath.Clean(res.Dir); dir != "." {
		return "cd " + dir + " && " + command
	}
	return command
}

func drawInitNodes(p *page, nodes []setup.InitNode) {
	var rows [][]string
	for _, n := range nodes {
		vm := fmt.Sprintf("VM %d on %s", n.VMID, n.Host)
		if n.VMID == 0 {
			vm = fmt.Sprintf("%s on %s", n.Address, n.Host)
		}
		rows = append(rows, []string{n.Name, n.Role(), vm, n.Firmware, n.Schematic, n.Disks()})
	}
	p.pasted("  ", rows)
}

// drawInitDrift prints what recast drift will report, and what that means if recast did not build the images.
func drawInitDrift(p *page, res setup.InitResult) {
	p.line("")
	in, unknown := 0, false
	var stale group
	for _, d := range res.Drift {
		if !d.Stale {
			in++
			continue
		}
		var reasons []string
		for _, r := range d.Reasons {
			reasons = append(reasons, foreign.Line(r.Text))
			unknown = unknown || r.Code == "unknown-build"
		}
		stale.add(strings.Join(reasons, "\n"), d.Node)
	}
	for _, text := range stale.texts {
		p.wrapped(p.paint(yellow, "stale")+"  ", "       ", strings.Join(stale.names[text], ", "))
		p.wrapped("    ", "      ", strings.Split(text, "\n")...)
	}
	if in > 0 || len(stale.texts) == 0 {
		p.line("%d of %s run exactly what recast.lock says", in, words.Counted(len(res.Drift), "node"))
	}
	if unknown {
		p.wrapped("", "", "This is normal at first: a node shows its extensions by name and version, and only an image that was built from a recast.lock also shows their digests. "+
			"recast drift reports this until recast roll has renewed those nodes, with the same Talos and the same schematics; until then nothing happens to them.")
	}
}

// WriteVerdict prints what a plan of Terraform would take from the nodes, and what prevents the loss.
func WriteVerdict(w io.Writer, format string, v adopt.Verdict) error {
	return write(w, format, v, func(p *page) {
		for _, t := range v.Threats {
			vm := ""
			if t.VMID != 0 {
				vm = fmt.Sprintf(": VM %d on %s", t.VMID, t.Host)
			}
			p.line("%s %s%s", p.paint(red, "problem"), p.paint(bold, t.Node), vm)
			because := ""
			if t.Because != "" {
				because = " (" + t.Because + ")"
			}
			p.wrapped("  ", "    ", fmt.Sprintf("the plan %s %s%s", t.What, t.Address, because))
			p.wrapped("  lost: ", "    ", strings.Join(t.Loses, "; "))
			p.line("  what prevents it:")
			drawBlock(p, t.Prevents)
			p.line("")
		}
		drawOutages(p, v)
		managed := fmt.Sprintf("it manages the VMs of %d of the %d %s", len(v.Managed), v.Nodes, words.Plural(v.Nodes, "node"))
		if len(v.Managed) == 0 {
			managed = "it manages the VM of none of the nodes, so look whether it is the right plan"
		}
		if len(v.Threats) == 0 {
			p.wrapped("", "  ", fmt.Sprintf("%s destroys and replaces no VM and no disk of %s; %s", v.File, v.Cluster, managed))
		} else {
			p.wrapped("", "  ", managed)
		}
	})
}

func drawOutages(p *page, v adopt.Verdict) {
	mark := p.paint(yellow, "warning")
	if v.TooMany != "" {
		mark = p.paint(red, "problem")
	}
	for _, o := range v.Outages {
		p.line("%s %s", mark, p.paint(bold, o.Node))
		p.wrapped("  ", "    ", fmt.Sprintf("the plan %s it: %s (%s)", o.What, o.Address, strings.Join(o.Why, ", ")))
	}
	if v.TooMany != "" {
		p.wrapped("  ", "    ", v.TooMany)
	}
	if len(v.Outages) > 0 {
		p.line("")
	}
}

// drawBlock prints lines for pasting: never wrapped.
func drawBlock(p *page, block string) {
	for line := range strings.Lines(block) {
		p.line("    %s", strings.TrimRight(line, "\n"))
	}
}

func WriteAdopt(w io.Writer, format string, res adopt.Result) error {
	return write(w, format, res, func(p *page) {
		p.line("cluster %s: %s, Talos %s, from Terraform", res.Cluster, words.Counted(len(res.Nodes), "node"), res.Talos)
		p.pasted("  ", each(res.Nodes, func(n adopt.Node) []string {
			return []string{n.Name, cmp.Or(n.Role, "role not told"), fmt.Sprintf("VM %d on %s", n.VMID, n.Host), cmp.Or(n.Class, "no class"), strings.Join(n.Disks, ", ")}
		}))
		p.wrapped("  left out: ", "    ", res.Left...)
		if len(res.Questions) > 0 {
			p.line("")
			p.line("%s (recast.yaml has them as comments):", p.paint(bold, "What the JSON does not say, and what does"))
			for _, q := range res.Questions {
				p.wrapped("  ", "    ", q.Text)
				p.line("      %s", q.Command)
			}
		}
		drawKeep(p, res.Keep)
		if len(res.Written) > 0 {
			p.line("")
			p.line("written to %s: %s", filepath.Clean(res.Dir), strings.Join(res.Written, ", "))
			p.line("next: read it, then recast doctor, recast lock, recast plan")
		}
	})
}

func drawKeep(p *page, keep []adopt.Keep) {
	p.line("")
	p.line("%s, either with this in each resource:", p.paint(bold, "Keep Terraform from undoing a roll"))
	for _, k := range keep {
		if k.Ignore == "" {
			continue
		}
		p.line("")
		p.wrapped("    # ", "    # ", strings.Join(k.Nodes, ", "))
		drawBlock(p, k.Ignore)
	}
	p.line("")
	p.line("or with this instead of each resource (Terraform 1.7 or later):")
	for _, k := range keep {
		p.line("")
		drawBlock(p, k.Removed)
	}
	p.line("")
	p.pasted("  ", [][]string{
		{"", "ignore_changes", "removed"},
		{"Terraform still manages", "cores, memory, network, tags", "nothing of the VM"},
		{"disks, image, new nodes", "in recast.yaml", "in recast.yaml"},
		{"costs", "an edit of the module's source", "all instances at once; nothing may refer to the resource"},
		{"can go wrong", "a change that forces a replacement: prevent_destroy stops it", "the resource is put back: the next apply makes second VMs"},
		{"back again", "delete the block", "terraform import"},
	})
	for _, k := range keep {
		if k.Resets {
			p.wrapped("note: ", "      ", k.Resource+": on_destroy.reset is true, so destroying one of them wipes its machine: forget it as above, or set reset to false and apply, before you take a node out of the configuration")
		}
		if k.Frees {
			p.wrapped("note: ", "      ", k.Resource+": delete_unreferenced_disks_on_destroy is true, so destroying one of its VMs frees every volume with the VM's number, on every storage: set it to false")
		}
	}
	p.wrapped("", "", "In CI, recast doctor --terraform plan.json refuses a plan that would take a node or a disk away.")
}

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

func WriteKubernetesPlan(w io.Writer, format string, plan kubeupgrade.Plan) error {
	return write(w, format, plan, func(p *page) { drawKubernetesPlan(p, plan) })
}

func drawKubernetesPlan(p *page, plan kubeupgrade.Plan) {
	if !plan.Work() && len(plan.Refused) == 0 {
		p.line("cluster %s: Kubernetes is %s on all of %s", plan.Cluster, plan.To, words.Counted(len(plan.Nodes), "node"))
		return
	}
	if plan.From == plan.To {
		p.line("cluster %s: Kubernetes is %s, not everywhere yet", plan.Cluster, plan.To)
	} else {
		p.line("cluster %s: Kubernetes %s → %s", plan.Cluster, plan.From, plan.To)
	}
	for _, c := range cluster.Components {
		drawComponent(p, plan, c)
	}
	for _, n := range plan.Nodes {
		p.wrapped("  waits for "+n.Node+": ", "    ", n.Lacks...)
	}
	p.wrapped("  "+p.paint(red, "refused: "), "    ", plan.Refused...)
	drawWarnings(p, plan.Warn)
	if plan.LeftOver != "" && len(plan.Refused) == 0 {
		p.wrapped("  afterwards: ", "    ", plan.LeftOver)
	}
}

func drawComponent(p *page, plan kubeupgrade.Plan, c cluster.Component) {
	var nodes []string
	images := map[string]bool{}
	for _, n := range plan.Nodes {
		for _, change := range n.Changes {
			if change.Component == c {
				nodes = append(nodes, n.Node)
				images[change.To] = true
			}
		}
	}
	if c == cluster.KubeProxy && plan.Proxy != nil {
		nodes = append(nodes, "its DaemonSet")
		images[plan.Proxy.To] = true
	}
	if len(nodes) > 0 {
		p.wrapped(fmt.Sprintf("  %-24s", c), strings.Repeat(" ", 6), fmt.Sprintf("%s: %s", strings.Join(nodes, ", "), strings.Join(slices.Sorted(maps.Keys(images)), ", ")))
	}
}

func WriteKubernetesReport(w io.Writer, format string, rep pipeline.UpgradeKubernetesReport) error {
	return write(w, format, rep, func(p *page) {
		outcome, _, _ := strings.Cut(rep.Outcome, ":") // the error is printed separately
		switch took := rep.Ended.Sub(rep.Started).Round(time.Second); {
		case rep.DryRun:
			drawKubernetesPlan(p, rep.Plan)
		case rep.Run == "" && rep.Outcome == "nothing to do":
			p.line("nothing to do: Kubernetes is %s on all of %s", rep.Plan.To, words.Counted(len(rep.Plan.Nodes), "node"))
		case rep.Outcome == "done":
			p.line("run %s: Kubernetes is %s on all of %s, after %s", rep.Run, rep.Plan.To, words.Counted(len(rep.Plan.Nodes), "node"), took)
			p.wrapped("next: ", "  ", rep.Plan.LeftOver)
		default:
			p.line("run %s: %s after %s", rep.Run, outcome, took)
			p.line("next: run the same command again: it continues where this one stopped")
		}
	})
}

func WriteBackup(w io.Writer, format string, res pipeline.BackupResult) error {
	return write(w, format, res, func(p *page) {
		p.line("%s", res.File)
		drawSnapshot(p, res.Snapshot)
		p.line("  from      %s (%s)", res.Member, res.Address)
		if len(res.Removed) > 0 {
			p.wrapped("  removed   ", "            ", strings.Join(res.Removed, ", "))
		}
		drawWarnings(p, res.Warnings)
	})
}

func drawWarnings(p *page, texts []string) {
	p.wrapped("  "+p.paint(yellow, "warning")+"   ", "            ", texts...)
}

func WriteRestore(w io.Writer, format string, rep pipeline.RestoreReport) error {
	return write(w, format, rep, func(p *page) {
		switch {
		case rep.Outcome == "":
			p.line("restore %s, %s at %s, from %s", rep.Node, rep.VM, rep.Addr, rep.File)
			drawSnapshot(p, rep.Snapshot)
			switch {
			case !rep.Bootstrapped.IsZero():
				p.line("  continues a restore whose data etcd has since %s: it only waits for the rest", rep.Bootstrapped.Format(time.DateTime))
			case rep.Resumes:
				p.line("  continues an earlier restore")
			}
			drawWarnings(p, rep.Warnings)
			return
		case rep.Outcome != "done":
			outcome, _, _ := strings.Cut(rep.Outcome, ":") // the error is printed separately
			p.line("run %s: %s; run the same command again to continue", rep.Run, outcome)
			return
		}
		if !rep.Bootstrapped.IsZero() {
			p.line("run %s: %s runs etcd from %s, which was restored at %s; nothing was done now", rep.Run, rep.Node, rep.File, rep.Bootstrapped.Format(time.DateTime))
			drawAfterwards(p, rep.Afterwards)
			p.line("next: recast drift; to restore it again, recast backup saves what it runs now, then wipe etcd: %s", etcd.WipeByReset)
			return
		}
		p.line("run %s: %s runs etcd from %s, after %s", rep.Run, rep.Node, rep.File, rep.Ended.Sub(rep.Started).Round(time.Second))
		drawAfterwards(p, rep.Afterwards)
		p.line("next: recast drift")
	})
}

func drawAfterwards(p *page, texts []string) { p.wrapped("afterwards: ", "  ", texts...) }

func drawSnapshot(p *page, s etcd.Snapshot) {
	p.line("  size      %d bytes", s.SizeBytes)
	p.line("  revision  %d", s.Revision)
	p.line("  sha256    %s", s.SHA256)
	p.line("  members   %s", cmp.Or(strings.Join(s.Members, ", "), "none"))
}
