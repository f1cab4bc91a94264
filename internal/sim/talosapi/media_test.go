package talosapi

import (
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

// TestCompareVersions: the examples of systemd's own tests and Talos' names.
func TestCompareVersions(t *testing.T) {
	t.Parallel()
	ascending := [][]string{
		{"v1.12.4", "v1.13.0-alpha.1", "v1.13.9", "v1.13.10", "v2"},
		{"talos-v1.13.9~1.efi", "talos-v1.13.9~2.efi", "talos-v1.13.9~10.efi", "talos-v1.13.9.efi"},
		{"~1", "", "1", "10"},
		{"122.1", "123~rc1-1", "123", "123-a", "123-a.1", "123-1", "123-3", "123^patch1", "123.45"},
	}
	for _, list := range ascending {
		for i, a := range list {
			for j, b := range list {
				want := 0
				if i < j {
					want = -1
				} else if i > j {
					want = 1
				}
				must.Equal(t, a+" and "+b, want, compareVersions(a, b))
			}
		}
	}
}
