package cluster

import (
	"testing"
)

// TestPendingReboot: an entry whose name has another version than the running one is of the
// previous boot.
func TestPendingReboot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		runs, booted, next string
		want               bool
	}{
		"the same":                     {"v1.14.1", "talos-v1.14.1.efi", "talos-v1.14.1.efi", false},
		"unknown":                      {"v1.14.1", "", "talos-v1.14.1.efi", false},
		"another one of the version":   {"v1.14.1", "talos-v1.14.1.efi", "talos-v1.14.1~1.efi", true},
		"a newer one":                  {"v1.13.9", "talos-v1.13.9.efi", "talos-v1.14.1.efi", true},
		"the newer one runs":           {"v1.14.1", "talos-v1.13.9.efi", "talos-v1.14.1.efi", false},
		"the newer one runs, numbered": {"v1.14.1", "talos-v1.13.9~3.efi", "talos-v1.14.1~1.efi", false},
	} {
		if got := (RunningSystem{TalosVersion: c.runs, BootEntry: c.booted, NextBoot: c.next}).PendingReboot(); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
