package simtest

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

// requireTrouble wants an error with that code that says of disks what is safe.
func requireTrouble(t *testing.T, err error, code fault.Code, safe string) {
	t.Helper()
	if got := fault.CodeOf(err); got != code {
		t.Errorf("code %q, want %q, of: %v", got, code, err)
	}
	if got := strings.Join(fault.Safe(err), "\n"); !strings.Contains(got, safe) {
		t.Errorf("it says that safe is %q, not %q", got, safe)
	}
}
