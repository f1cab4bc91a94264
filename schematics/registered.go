package schematics

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// CheckRegistered compares a schematic that a factory registered with the locked
// one: id is the factory's ID, text its canonical form. What the factory builds
// under another ID is not what the lock describes: kind Refused.
func (e Locked) CheckRegistered(name, id, text string) error {
	if id == e.SchematicID {
		return nil
	}
	err := fmt.Errorf("the factory gives schematic %s the ID %s, but the lock has %s", name, id, e.SchematicID)
	line, theirs, ours := firstDifference(text, e.Schematic)
	if line == 0 {
		return fault.WithHint(fault.BuildFailed.Refusedf("%w, for the same text", err),
			"an ID is the SHA-256 of the canonical text: the server is not an Image Factory, or changes what it receives")
	}
	err = fault.BuildFailed.Refusedf("%w: line %d of its canonical text is %q, of ours %q", err, line, theirs, ours)
	if unquoted(theirs) == unquoted(ours) {
		return fault.WithHint(err, "both say the same, but the factory's YAML library quotes differently, as some of its versions do "+
			"with strings such as yes, no, on, off: remove such a string from %s, or use a factory of another version", e.File)
	}
	return fault.WithHint(err, "the factory understands the schematic differently than this recast: "+
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

// unquoted is a line of YAML without quotes.
func unquoted(line string) string { return strings.NewReplacer(`"`, "", "'", "").Replace(line) }
