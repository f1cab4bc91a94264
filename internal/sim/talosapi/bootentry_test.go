package talosapi_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// After a kexec of a kernel that can't write EFI variables Talos reports the previous
// entry; the schematic shows what really runs.
func TestEntryAfterAKexecWithoutEFIVariables(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.fw.Trouble(9001, talosapi.Trouble{NoOneShot: true})
		b, c := l.node(image("old"))
		before := facts(t, c)
		mustInstall(t, c, newRef)
		if err := c.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		now := facts(t, l.client(cpAddr, role.Admin))
		if now.entry != before.entry || now.schematic != "schematic-new" {
			t.Errorf("before %+v, now %+v", before, now)
		}
		b.guest.Kill()
		b.on()
		l.running(cpAddr)
		if now := facts(t, l.client(cpAddr, role.Admin)); now.entry == before.entry {
			t.Errorf("the firmware has run, and it still says %s", now.entry)
		}
	})
}

// Calls to an etcd that does not run hang until the caller gives up.
func TestEtcdCallsHangWithoutEtcd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 1)
		q.fw.BreakEtcd(9001, talosapi.EtcdFault{Down: true})
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		start := time.Now()
		_, err := q.admin(1).EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{QueryLocal: true})
		if took := time.Since(start); took != 40*time.Second || err == nil || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("%s, %s: %v", took, client.StatusCode(err), err)
		}
	})
}
