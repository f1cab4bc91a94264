package schematics

import (
	"path"
	"slices"

	"github.com/recast-sh/recast/internal/words"
)

// suggest returns the name that was probably meant: with another owner, or misspelt; "" if none is close.
func suggest(unknown string, names []string) string {
	i := slices.IndexFunc(names, func(name string) bool { return path.Base(name) == path.Base(unknown) })
	if i >= 0 {
		return names[i]
	}
	return words.Closest(unknown, names)
}
