package images

import (
	"testing"

	"github.com/recast-sh/recast/internal/words"
)

func TestReadProgress(t *testing.T) {
	t.Parallel()
	for note, want := range map[string]struct {
		done, total int64
		rest        string
		ok          bool
	}{
		words.Size(300<<20) + " of " + words.Size(1300<<20):           {300 << 20, 1300 << 20, "300 MiB of 1300 MiB", true},
		words.Size(5<<10) + " of " + words.Size(2<<20) + ", 40 MiB/s": {5 << 10, 2 << 20, "5 KiB of 2 MiB, 40 MiB/s", true},
		"64 MiB, 12 MiB/s":                        {},
		"2 of 3 members":                          {},
		"pods of default, kube-system of 3 nodes": {},
		"beginning again":                         {},
		"0 KiB of 0 KiB":                          {},
		"":                                        {},
		"99999999999999999999 MiB of 99999999999999999999 MiB": {},
	} {
		done, total, rest, ok := ReadProgress(note)
		if done != want.done || total != want.total || rest != want.rest || ok != want.ok {
			t.Errorf("%q: %d of %d, %q, %t", note, done, total, rest, ok)
		}
	}
}
