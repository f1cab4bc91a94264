package cluster

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

// TestPendingReboot: the name of an entry with another version than the one that
// runs is that of the boot before.
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
		if got := (Machine{TalosVersion: c.runs, BootEntry: c.booted, NextBoot: c.next}).PendingReboot(); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestRunsFromISO: of an installation that broke off nothing else tells.
func TestRunsFromISO(t *testing.T) {
	t.Parallel()
	m := inSync()
	m.FromISO, m.BootEntry = true, ""
	for stage, want := range map[string]bool{"booting": true, "installing": true, "rebooting": true, "running": false} {
		if m.Stage = stage; m.isBeingInstalled() != want {
			t.Errorf("stage %s: being installed is %t", stage, !want)
		}
	}
	reasons := DiffInstalled(wantedBuild(), m)
	if len(reasons) == 0 || reasons[0].Code != "boot-iso" || !rollable(reasons[0].Code) {
		t.Errorf("%+v", reasons)
	}
}

func TestNoAddress(t *testing.T) {
	t.Parallel()
	f := Found{Name: "wk1"}
	ReadMachine(t.Context(), Sources{}, nil, Wanted{Name: "wk1"}, &f)
	if len(f.Errs) != 1 || !strings.Contains(message(f.Errs[0]), "no address known") {
		t.Fatalf("%v", f.Errs)
	}
	if hints := strings.Join(fault.Hints(f.Errs[0]), "\n"); !strings.Contains(hints, "kubectl get node wk1") {
		t.Errorf("hints: %s", hints)
	}
}
