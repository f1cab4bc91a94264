package imager

import (
	"errors"
	"regexp"
	"strings"

	"github.com/recast-sh/recast/internal/command"
)

// siderolabs/talos pkg/imager/imager.go prints "profile ready:", then the profile.
var yamlLine = regexp.MustCompile(`^(\s|- |[A-Za-z]+:( |$))`)

// newLines reads the imager's output, without its profile, which adds nothing, and
// the headings that it repeats above each indented line.
func newLines(note func(string)) *command.Lines {
	dump, heading := false, ""
	return &command.Lines{Note: note, Drop: func(line string) bool {
		if dump && yamlLine.MatchString(line) {
			return true
		}
		dump = line == "profile ready:"
		if dump || line == heading {
			return true
		}
		if !strings.HasPrefix(line, " ") {
			heading = line
		}
		return false
	}}
}

// last is the last line that was printed; nil if there was none.
func last(said *command.Lines) error {
	if said.Last() == "" {
		return nil
	}
	return errors.New("it said last: " + said.Last())
}
