package ui

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline/adopt"
)

// WriteVerdict prints what a plan of Terraform would take from the nodes, and what prevents that.
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

// drawOutages prints what takes machines down, and no data away.
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

// WriteAdopt prints what was found and written, and the blocks for Terraform.
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
