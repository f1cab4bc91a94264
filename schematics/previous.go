package schematics

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/recast-sh/recast/internal/fault"
)

// Previous is the most recently archived lock of other builds than l's in a
// directory of past locks, the one to go back to; found is false if there is none.
func Previous(dir string, l Lock) (previous Lock, found bool, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.lock"))
	if err != nil {
		return Lock{}, false, fault.Configf("list past locks: %w", err)
	}
	changed := map[string]time.Time{}
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return Lock{}, false, fault.Configf("read a past lock: %w", err)
		}
		changed[file] = info.ModTime()
	}
	slices.SortFunc(files, func(a, b string) int { return changed[b].Compare(changed[a]) })
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return Lock{}, false, fault.Configf("read a past lock: %w", err)
		}
		past, err := ParseLock(file, data)
		if err != nil {
			return Lock{}, false, fmt.Errorf("find the lock before this one: %w", err)
		}
		if past.Key() != l.Key() {
			return past, true, nil
		}
	}
	return Lock{}, false, nil
}
