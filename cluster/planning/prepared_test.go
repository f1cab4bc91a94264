package planning

import (
	"testing"
)

// TestNeedsEntry: the correction is in v1.11.6 and v1.12.0.
func TestNeedsEntry(t *testing.T) {
	t.Parallel()
	for talos, want := range map[string]bool{
		"v1.10.9": true, "v1.11.5": true, "v1.11.6": false, "v1.12.0-beta.1": true, "v1.12.0": false, "v1.13.0-alpha.1": false, "v1.14.1": false, "latest": true,
	} {
		if got := needsEntry(talos); got != want {
			t.Errorf("%s: %t", talos, got)
		}
	}
}
