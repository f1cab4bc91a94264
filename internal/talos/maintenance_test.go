package talos_test

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// Before 1.13 maintenance mode is another service with other behaviour. Both report
// what recast needs from a blank machine.
func TestMaintenanceOfEachRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	for version, want := range map[string]struct {
		arch   string
		bootID bool
	}{"v1.12.6": {"", false}, "v1.13.9": {"amd64", false}, "v1.14.1": {"amd64", true}} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				c := l.client(role.Admin)
				l.running(c, cpAddr)
				l.boots.TalosVersion = version
				l.power("1F", workerUUID, drive("virtio0", "recast-1", 10, nil))
				m := l.maintenance(c, workerAddr)
				got := cluster.RunningSystem{TalosVersion: m.TalosVersion, Arch: m.Arch, Platform: m.Platform, Schematic: m.Schematic, FromISO: m.FromISO}
				if diff := cmp.Diff(cluster.RunningSystem{
					TalosVersion: version, Arch: want.arch, Platform: "nocloud", FromISO: true,
					Schematic: cluster.SchematicEntry{ID: "cafe", YAML: image().SchematicYAML},
				}, got); diff != "" || m.UUID != workerUUID || len(m.Disks) != 1 || !m.Disks[0].Blank || (m.BootID != "") != want.bootID || len(m.Fingerprint) != 44 {
					t.Errorf("%+v (-want +got):\n%s", m, diff)
				}
				config := l.config(talosapi.Machine{Hostname: "wk1.lab.internal", Installer: installer, InstallSerial: "recast-1"})
				if err := c.ApplyConfig(t.Context(), workerAddr, workerUUID, config); err != nil {
					t.Fatal(err)
				}
				if m := l.running(c, workerAddr); m.Hostname != "wk1" || m.Nodename != "wk1" {
					t.Errorf("its name is %s, its node's %s", m.Hostname, m.Nodename)
				}
				if members, err := c.Members(t.Context()); err != nil || len(members) != 2 || members[1].Nodename != "wk1" {
					t.Errorf("members %+v, %v", members, err)
				}
			})
		})
	}
}
