package talosapi_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

func TestUpgradeByMachineService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l *lab
		l = newLab(t, func(o *talosapi.Options) {
			o.Drain = func(_ context.Context, node string) error {
				time.Sleep(7 * time.Second)
				l.note("drained " + node)
				return nil
			}
			o.Uncordon = func(_ context.Context, node string) error { l.note("uncordoned " + node); return nil }
		})
		_, c := l.node(image("old"))
		l.fw.BreakEtcd(9001, talosapi.EtcdFault{Down: true})
		time.Sleep(time.Minute)
		_, err := legacy(t.Context(), c, newRef)
		requireError(t, "with a sick etcd", err, codes.Unavailable, "error validating etcd for upgrade: ")
		l.fw.BreakEtcd(9001, talosapi.EtcdFault{})
		l.running(cpAddr)
		_, err = legacy(t.Context(), c, "registry.example/none:v1")
		requireError(t, "an image that is not there", err, codes.Unknown, "error validating installer image")
		now := l.reboot(c, func() error { _, err := legacy(t.Context(), c, newRef); return err })
		if now.schematic != "schematic-new" || now.entry != "Talos-v1.13.9~1.efi" {
			t.Errorf("after the upgrade: %+v", now)
		}
		synctest.Wait() // for the rest of the boot
		want := []string{"up cp1 v1.35.4 cp=true", "uncordoned cp1", "drained cp1", "down cp1", "up cp1 v1.35.4 cp=true", "uncordoned cp1"}
		if diff := cmp.Diff(want, l.lines(&l.kubelets)); diff != "" {
			t.Errorf("node (-want +got):\n%s", diff)
		}
	})
}

func TestUpgradeOfAControlPlaneNeedsAllOfEtcd(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		c := q.admin(1)
		q.kill("cp3")
		_, err := legacy(t.Context(), c, newRef)
		requireError(t, "with two members of three", err, codes.DeadlineExceeded, "is not healthy; all members must be healthy to perform an upgrade")
		mustInstall(t, c, newRef) // it does not check etcd
		q.boxes["cp3"].on()
		q.running(address(3))
		if now := q.reboot(c, func() error { _, err := legacy(t.Context(), c, newRef); return err }); now.schematic != "schematic-new" {
			t.Errorf("after the upgrade: %+v", now)
		}
	})
}

func TestStagedUpgradeHappensAtTheNextBoot(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		b, c := l.node(image("old"))
		now := l.reboot(c, func() error {
			//lint:ignore SA1019 only the old call can stage
			_, err := c.UpgradeWithOptions(t.Context(), client.WithUpgradeImage(newRef), client.WithUpgradeStage(true))
			return err
		})
		if now.schematic != "schematic-new" || efi(b) != "EFI boots Talos-v1.13.9~1.efi of Talos-v1.13.9.efi Talos-v1.13.9~1.efi META" {
			t.Errorf("after the upgrade: %+v, disk %s", now, efi(b))
		}
	})
}

// Before 1.13 etcd is checked even with preserve, and one of two members can't be upgraded.
func TestOldUpgradeLooksAtEtcd(t *testing.T) {
	each(t, map[string]codes.Code{"v1.12.6": codes.Unknown, "v1.13.9": codes.OK}, func(t *testing.T, talos string, code codes.Code) {
		q := newQuorumOf(t, 2, version("old", talos))
		//lint:ignore SA1019 the only call of Talos 1.12
		_, err := q.admin(1).UpgradeWithOptions(t.Context(), client.WithUpgradeImage(newRef), client.WithUpgradePreserve(true))
		requireError(t, "upgrade", err, code, "etcd member count(2) is insufficient to maintain quorum if upgrade commences")
	})
}

func TestTalos112HasNoLifecycleService(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		b, c := l.node(version("old", "v1.12.4"))
		requireError(t, "pull", pull(t.Context(), c, newRef), codes.Unimplemented, "")
		_, err := install(t.Context(), c, newRef)
		requireError(t, "install", err, codes.Unimplemented, "")
		now := l.reboot(c, func() error { _, err := legacy(t.Context(), c, newRef); return err })
		want(t, "version", now.version, "v1.13.9")
		want(t, "disk", efi(b), "EFI boots Talos-v1.13.9.efi of Talos-v1.12.4.efi Talos-v1.13.9.efi META")
	})
}
