package words

import (
	"fmt"
	"strings"
)

// Closest returns the word that was probably meant, or "".
func Closest(got string, words []string) string {
	best, fewest := "", 3
	for _, w := range words {
		// Allow one typo in a short word, two in a longer one.
		if d := edits(strings.ToLower(got), strings.ToLower(w)); d < fewest && d <= max(1, len(w)/4) {
			best, fewest = w, d
		}
	}
	return best
}

// DidYouMean is Closest as the end of a message: `, did you mean "x"?`, or "".
func DidYouMean(got string, words []string) string {
	w := Closest(got, words)
	if w == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", w)
}

// edits counts the letters to insert, delete, change or swap with their neighbour to get
// from a to b. If the lengths differ by more than 2, it returns 3.
func edits(a, b string) int {
	if len(a)-len(b) > 2 || len(b)-len(a) > 2 {
		return 3
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			change := 1
			if a[i] == b[j] {
				change = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+change)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
