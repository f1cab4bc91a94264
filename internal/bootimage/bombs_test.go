package bootimage_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/bootimage"
)

// TestInitrdBombs: a few KiB that would take hundreds of MiB of memory, or hours.
func TestInitrdBombs(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: makes archives of 100 MB")
	}
	base := packed(t, cpio(entry{name: "init", content: "init"}))
	many := func(n int, make func(i int) entry) []byte {
		list := []entry{}
		for i := range n {
			list = append(list, make(i))
		}
		return packed(t, cpio(list...))
	}
	long := strings.Repeat("long/", 800)
	for name, tt := range map[string]struct {
		added []byte
		want  string
	}{
		"long names":     {many(9000, func(i int) entry { return entry{name: fmt.Sprint(long, i)} }), "names and links of more than"},
		"long links":     {many(9000, func(i int) entry { return entry{name: fmt.Sprint(i), mode: 0o120777, content: long} }), "names and links of more than"},
		"no files":       {many(100_001, func(int) entry { return entry{name: "d", mode: 0o40755} }), "too many files"},
		"too many files": {many(100_001, func(i int) entry { return entry{name: fmt.Sprint(i)} }), "too many files"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(t, base, tt.added)
			if !errors.Is(err, bootimage.ErrFormat) || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("err = %.300v, want %q", err, tt.want)
			}
		})
	}
}
