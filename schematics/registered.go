package schematics

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// CheckRegistered compares what a factory made of a schematic that was handed to
// it with what is locked: id is the ID that it gave, text its canonical form. What
// it builds under another ID is not what the lock describes: kind Refused.
func (e Locked) CheckRegistered(name, id, text string) error {
	if id == e.SchematicID {
		return nil
	}
	err := fmt.Errorf("the factory gives schematic %s the ID %s, but the lock has %s", name, id, e.SchematicID)
	line, theirs, ours := firstDifference(text, e.Schematic)
	if line == 0 {
		return fault.WithHint(fault.BuildFailed.Refusedf("%w, for the same text", err),
			"an ID is the SHA-256 of the canonical text: whatever answers there is no Image Factory, or changes what it is sent")
	}
	err = fault.BuildFailed.Refusedf("%w: line %d of its canonical text is %q, of ours %q", err, line, theirs, ours)
	if unquoted(theirs) == unquoted(ours) {
		return fault.WithHint(err, "both say the same, but the factory's YAML library quotes in another way, as versions of it do "+
			"with strings such as yes, no, on, off: take such a string out of %s, or use a factory of another version", e.File)
	}
	return fault.WithHint(err, "the factory understands the schematic in another way than this recast: "+
		"one of them is too old for what line %d says", line)
}

// firstDifference is the first line, counted from 1, that differs; 0 if none does.
func firstDifference(a, b string) (line int, inA, inB string) {
	linesA, linesB := slices.Collect(strings.Lines(a)), slices.Collect(strings.Lines(b))
	at := func(lines []string, i int) string {
		if i < len(lines) {
			return strings.TrimSuffix(lines[i], "\n")
		}
		return ""
	}
	for i := range max(len(linesA), len(linesB)) {
		if inA, inB = at(linesA, i), at(linesB, i); inA != inB || i >= len(linesA) || i >= len(linesB) {
			return i + 1, inA, inB
		}
	}
	return 0, "", ""
}

// unquoted is a line of YAML without what quotes its strings.
func unquoted(line string) string { return strings.NewReplacer(`"`, "", "'", "").Replace(line) }
