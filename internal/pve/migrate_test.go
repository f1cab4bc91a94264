package pve

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/sim/world"
)

func TestMigration(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config  map[string]string
		running bool
		want    cluster.Migration
	}{
		"shared":      {map[string]string{"scsi0": "pool:1", "ide2": "none,media=cdrom"}, true, cluster.Migration{Allowed: true}},
		"local disks": {map[string]string{"scsi0": "pool:1", "scsi1": "fast:1", "unused0": "fast:9031/vm-9031-disk-0.raw"}, false, cluster.Migration{Allowed: true, LocalDisks: []string{"fast:9031/vm-9031-disk-0.raw"}}},
		"an ISO":      {map[string]string{"ide2": "isolated:iso/a.iso,media=cdrom"}, false, cluster.Migration{Allowed: true, LocalDisks: []string{"isolated:iso/a.iso"}}},
		"storage":     {map[string]string{"scsi0": "here:1"}, false, cluster.Migration{Lacks: []string{"storage here"}}},
		"device":      {map[string]string{"hostpci0": "0000:01:00.0"}, false, cluster.Migration{Allowed: true, Resources: []string{"hostpci0"}, WhileOff: []string{"hostpci0"}}},
		"mapped":      {map[string]string{"hostpci0": "mapping=gpu"}, true, cluster.Migration{Allowed: true, Resources: []string{"hostpci0"}}},
		"not there":   {map[string]string{"hostpci0": "mapping=nic"}, false, cluster.Migration{Lacks: []string{"what is mapped for hostpci0"}}},
	} {
		runInBubble(t, name, func(t *testing.T) {
			l := newLab(t)
			l.may("VM.Migrate")
			l.world.AddStorage(world.Storage{ID: "pool", Type: "rbd", Shared: true, Content: []string{"images"}})
			l.world.AddStorage(world.Storage{ID: "isolated", Type: "dir", Content: []string{"iso"}})
			must(t, l.world.AddISO("isolated", "pve1", "a.iso", []byte("iso")))
			l.world.AddStorage(world.Storage{ID: "here", Type: "rbd", Shared: true, Content: []string{"images"}, Hosts: []string{"pve1"}})
			l.world.AddMapping("pci", "gpu", "pve1", "pve2")
			l.world.AddMapping("pci", "nic", "pve1")
			must(t, l.world.DefineVM("pve1", 9031, tc.config, nil))
			if tc.running {
				must(t, l.world.PowerOn(9031))
			}
			got, err := l.Migration(t.Context(), l.read(t, 9031), "pve2")
			must(t, err)
			if diff := cmp.Diff(tc.want, got, cmp.Transformer("empty", func(s []string) []string { return append([]string{}, s...) })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		vm := l.read(t, 9011)
		if err := l.Migrate(t.Context(), vm, "pve2"); !api.IsForbidden(err) {
			t.Errorf("without VM.Migrate: %v", err)
		}
		if _, err := l.Migration(t.Context(), vm, "pve2"); fault.KindOf(err) != fault.Refused {
			t.Errorf("asked without VM.Migrate: %v", err)
		}
		l.may("VM.Migrate")
		l.world.AddStorage(world.Storage{ID: "pool", Type: "rbd", Shared: true, Content: []string{"images"}})
		must(t, l.world.DefineVM("pve1", 9031, map[string]string{"scsi0": "pool:1"}, nil))
		must(t, l.world.PowerOn(9031))
		for _, to := range []string{"pve2", "pve1"} {
			must(t, l.Migrate(t.Context(), l.read(t, 9031), to))
			if now := l.read(t, 9031); now.Host != to || !now.Running || now.Lock != "" {
				t.Errorf("to %s: %+v", to, now)
			}
		}
		must(t, l.AddHA(t.Context(), cluster.HAResource{VMID: 9031, State: "started"}))
		if err := l.Migrate(t.Context(), l.read(t, 9031), "pve2"); fault.KindOf(err) != fault.Refused {
			t.Errorf("a VM under HA: %v", err)
		}
		must(t, l.world.PowerOn(9011))
		if err := l.Migrate(t.Context(), l.read(t, 9011), "pve2"); err == nil {
			t.Error("a running VM with local disks was migrated")
		}
		if now := l.read(t, 9011); now.Host != "pve1" || !now.Running || now.Lock != "" {
			t.Errorf("after a refused migration: %+v", now)
		}
	})
}
