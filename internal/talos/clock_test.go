package talos_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// TestClocks: a certificate is not valid at the time of one side.
func TestClocks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		off        time.Duration // of the machine's clock
		text, hint string
	}{
		"the machine is ahead":  {5 * time.Hour, "its certificate is not valid at this time, so its clock or ours is wrong: ", "compare the machine's clock"},
		"the machine is behind": {-5 * time.Hour, "our certificate is expired or not yet valid by its clock: ", "the machine's clock is wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				l.fw.Trouble(9000, talosapi.Trouble{Clock: c.off})
				client := l.client(role.Admin)
				time.Sleep(time.Minute)
				_, err := client.Machine(t.Context(), cpAddr)
				if err == nil || !strings.Contains(err.Error(), c.text) {
					t.Errorf("err = %v", err)
				}
				if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, c.hint) {
					t.Errorf("hints: %s", hints)
				}
			})
		})
	}
}
