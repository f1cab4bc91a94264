package talosapi_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
		b, c := l.upgradable()
		defer func() { b.guest.Kill() }()
		l.fw.BreakEtcd(9001, talosapi.EtcdFault{Down: true})
		time.Sleep(time.Minute)
		if _, err := legacy(t.Context(), c, newRef); err == nil || !strings.Contains(err.Error(), "error validating etcd for upgrade: ") {
			t.Errorf("with a sick etcd: %v", err)
		}
		l.fw.BreakEtcd(9001, talosapi.EtcdFault{})
		l.running(cpAddr)
		if _, err := legacy(t.Context(), c, "registry.example/none:v1"); err == nil || !strings.Contains(err.Error(), "error validating installer image") {
			t.Errorf("an image that is not there: %v", err)
		}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.installers[newRef] = image("new")
		var peers []talosapi.EtcdPeer
		for i := range 3 {
			peers = append(peers, talosapi.EtcdPeer{Name: fmt.Sprintf("cp%d", i+1), Addr: netip.MustParseAddr(fmt.Sprintf("127.42.7.%d", 11+i))})
		}
		var boxes []*box
		for i, member := range l.fw.FormEtcd(l.cluster, peers...) {
			conf := l.config(talosapi.Machine{Hostname: peers[i].Name, ControlPlane: true, Installer: oldRef})
			system, err := talosapi.WithEtcd(l.installed(conf, image("old")), member)
			if err != nil {
				t.Fatal(err)
			}
			b := l.box(9001+i, fmt.Sprintf("02:00:00:00:00:%02X", 11+i), disk("virtio0", "system", 10, system))
			b.on()
			boxes = append(boxes, b)
		}
		defer func() {
			for _, b := range boxes {
				b.guest.Kill()
			}
		}()
		for _, p := range peers {
			l.running(p.Addr.String())
		}
		c := l.client(cpAddr, role.Admin)
		boxes[2].guest.Kill()
		if _, err := legacy(t.Context(), c, newRef); err == nil || !strings.Contains(err.Error(), "is not healthy; all members must be healthy to perform an upgrade") {
			t.Errorf("with two members of three: %v", err)
		}
		mustInstall(t, c, newRef) // it does not check etcd
		boxes[2].on()
		l.running(peers[2].Addr.String())
		if now := l.reboot(c, func() error { _, err := legacy(t.Context(), c, newRef); return err }); now.schematic != "schematic-new" {
			t.Errorf("after the upgrade: %+v", now)
		}
	})
}

func TestStagedUpgradeHappensAtTheNextBoot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, b, c := upgradeLab(t)
		defer func() { b.guest.Kill() }()
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
	t.Parallel()
	for version, refused := range map[string]bool{"v1.12.6": true, "v1.13.9": false} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				old := image("old")
				old.TalosVersion = version
				l.installers[newRef] = image("new")
				peers := []talosapi.EtcdPeer{{Name: "cp1", Addr: netip.MustParseAddr("127.42.7.11")}, {Name: "cp2", Addr: netip.MustParseAddr("127.42.7.12")}}
				for i, member := range l.fw.FormEtcd(l.cluster, peers...) {
					conf := l.config(talosapi.Machine{Hostname: peers[i].Name, ControlPlane: true, Installer: oldRef})
					system, err := talosapi.WithEtcd(l.installed(conf, old), member)
					if err != nil {
						t.Fatal(err)
					}
					b := l.box(9001+i, fmt.Sprintf("02:00:00:00:00:%02X", 11+i), disk("virtio0", "system", 10, system))
					b.on()
					defer func() { b.guest.Kill() }()
				}
				for _, p := range peers {
					l.running(p.Addr.String())
				}
				//lint:ignore SA1019 the only call of Talos 1.12
				_, err := l.client(cpAddr, role.Admin).UpgradeWithOptions(t.Context(), client.WithUpgradeImage(newRef), client.WithUpgradePreserve(true))
				if (err != nil) != refused || refused && !strings.Contains(err.Error(), "etcd member count(2) is insufficient to maintain quorum if upgrade commences") {
					t.Errorf("err = %v", err)
				}
			})
		})
	}
}

func TestTalos112HasNoLifecycleService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		old := image("old")
		old.TalosVersion = "v1.12.4"
		l.installers[newRef] = image("new")
		conf := l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: oldRef})
		b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, l.installedControlPlane(conf, old)))
		b.on()
		defer func() { b.guest.Kill() }()
		l.running(cpAddr)
		c := l.client(cpAddr, role.Admin)
		if err := pull(t.Context(), c, newRef); status.Code(err) != codes.Unimplemented {
			t.Errorf("pull: %v", err)
		}
		if _, err := install(t.Context(), c, newRef); status.Code(err) != codes.Unimplemented {
			t.Errorf("install: %v", err)
		}
		now := l.reboot(c, func() error { _, err := legacy(t.Context(), c, newRef); return err })
		if now.version != "v1.13.9" || efi(b) != "EFI boots Talos-v1.13.9.efi of Talos-v1.12.4.efi Talos-v1.13.9.efi META" {
			t.Errorf("after the upgrade: %+v, disk %s", now, efi(b))
		}
	})
}
