package ui

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/adopt"
	"github.com/recast-sh/recast/pipeline/setup"
	"github.com/recast-sh/recast/schematics"
)

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

// drawNewNext prints what the user still has to do until there is a cluster.
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

// drawInitDrift prints what recast drift will report, and what that means if recast did not
// build the images.
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

// drawOutages prints the changes that take machines down and lose no data.
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
		var rows [][]string
		for _, n := range res.Nodes {
			rows = append(rows, []string{n.Name, cmp.Or(n.Role, "role not told"), fmt.Sprintf("VM %d on %s", n.VMID, n.Host), cmp.Or(n.Class, "no class"), strings.Join(n.Disks, ", ")})
		}
		p.pasted("  ", rows)
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

// drawKeep prints both ways of keeping Terraform from undoing a roll.
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
