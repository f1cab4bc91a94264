package lab

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	envName  = "env"      // for sh, bash and zsh
	fishName = "env.fish" // for fish
)

// addEnv adds the files that a shell sources: the variables of the lab's clients, and where recast itself is.
func addEnv(files map[string][]byte, env map[string]string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program's own file: %w", err)
	}
	var sh, fish strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&sh, "export %s=%s\n", name, shQuote(env[name]))
		fmt.Fprintf(&fish, "set -gx %s %s\n", name, fishQuote(env[name]))
	}
	bin := filepath.Dir(self)
	fmt.Fprintf(&sh, "PATH=%s:\"$PATH\"\n", shQuote(bin))
	fmt.Fprintf(&fish, "set -gx PATH %s $PATH\n", fishQuote(bin))
	files[envName], files[fishName] = []byte(sh.String()), []byte(fish.String())
	return nil
}

func shQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// fishQuote quotes for fish, which knows two escapes in single quotes: \\ and \'.
func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}
