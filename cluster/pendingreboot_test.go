package cluster

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

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
		if got := (Machine{TalosVersion: c.runs, BootEntry: c.booted, NextBoot: c.next}).pendingReboot(); got != c.want {
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
	reasons := diffInstalled(wantedBuild(), m)
	if len(reasons) == 0 || reasons[0].Code != "boot-iso" || !rollable(reasons[0].Code) {
		t.Errorf("%+v", reasons)
	}
}

// isoTalos is a machine that runs from its ISO.
type isoTalos struct{ Talos }

func (isoTalos) Machine(context.Context, netip.Addr) (Machine, error) {
	return Machine{UUID: "u", Stage: "running", FromISO: true}, nil
}

// keptMemory is a journal that remembers a node.
type keptMemory struct{ Journal }

func (keptMemory) Get(_ string, v any) (bool, error) {
	*v.(*memory) = memory{}
	return true, nil
}

// TestISOIsNoBootEntry: a system that runs from an ISO has not booted the old disk, whatever it calls its entry.
func TestISOIsNoBootEntry(t *testing.T) {
	t.Parallel()
	n := &nodeRoll{Roller: &Roller{Talos: isoTalos{}, Journal: keptMemory{}, Timing: Timing{Poll: time.Second}}, plan: NodePlan{Node: "wk1", UUID: "u"}}
	reason, err := n.bootEntryStep(func(memory) string { return "talos-v1.14.1.efi" }).Skip(t.Context())
	if reason != "" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
}

func TestNoAddress(t *testing.T) {
	t.Parallel()
	f := Found{Name: "wk1"}
	readMachine(t.Context(), Sources{}, nil, Wanted{Name: "wk1"}, &f)
	if len(f.Errs) != 1 || !strings.Contains(message(f.Errs[0]), "no address known") {
		t.Fatalf("%v", f.Errs)
	}
	if hints := strings.Join(fault.Hints(f.Errs[0]), "\n"); !strings.Contains(hints, "kubectl get node wk1") {
		t.Errorf("hints: %s", hints)
	}
}
