package schematics

import (
	"path"
	"strings"
)

// suggest returns the name most similar to the unknown one, or "" if none is similar.
func suggest(unknown string, names []string) string {
	best, bestDistance := "", 1+len(unknown)/3
	for _, name := range names {
		d := distance(strings.ToLower(unknown), strings.ToLower(name))
		if path.Base(name) == path.Base(unknown) {
			d = 0
		}
		if d < bestDistance {
			best, bestDistance = name, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete or replace to get from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
