package simtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/pipeline"
)

// TestBackup needs only the role os:etcd:backup and changes nothing, whatever is wrong with
// etcd.
func TestBackup(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		var endpoints []string
		for _, name := range controlPlanes {
			endpoints = append(endpoints, lab.node(name).Addr.String())
		}
		config, err := lab.Talos.Talosconfig(role.EtcdBackup, endpoints...)
		must(t, err)
		lab.Write("talosconfig", config)
		changes := lab.Recorder.Mutations()
		var files []string
		for range 3 {
			res, err := lab.Client().Backup(t.Context(), pipeline.BackupOptions{Keep: 2})
			must(t, err)
			if len(res.Warnings) > 0 || res.Revision == 0 || len(res.Members) != 3 {
				t.Errorf("%+v", res)
			}
			if files = append(files, filepath.Base(res.File)); len(files) > 2 && !cmp.Equal(res.Removed, files[:1]) {
				t.Errorf("removed %q, want %q", res.Removed, files[:1])
			}
			time.Sleep(time.Second)
		}
		if diff := cmp.Diff(files[1:], lab.snapshotFiles()); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}

		back := func(to string) (pipeline.BackupResult, error) {
			return lab.Client().Backup(t.Context(), pipeline.BackupOptions{To: filepath.Join(lab.Dir, to)})
		}
		lab.breakEtcd(talosapi.EtcdFault{NoSpace: true}, "cp3")
		lab.breakEtcd(talosapi.EtcdFault{Hung: true}, "cp2")
		time.Sleep(10 * time.Second)
		res, err := back("one.db")
		if err != nil || len(lab.Read("one.db")) != int(res.SizeBytes) {
			t.Fatalf("%+v, %v", res, err)
		}
		for _, text := range []string{"cp2 does not answer: 127.42.7.12: gave up after 15s: read etcd's status", "alarm NOSPACE on member cp3"} {
			if !strings.Contains(strings.Join(res.Warnings, "\n"), text) {
				t.Errorf("no warning %q in %q", text, res.Warnings)
			}
		}
		if _, err := back("one.db"); fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), "one.db exists already") {
			t.Errorf("overwritten: %v", err)
		}

		lab.breakEtcd(talosapi.EtcdFault{Corrupt: true}, "cp3")
		time.Sleep(10 * time.Second)
		requireRefused(t, errOf(back("corrupt.db")), "etcd's members do not hold the same data, so no snapshot of it can be trusted: [alarm CORRUPT on member cp3]")
		lab.breakEtcd(talosapi.EtcdFault{Down: true}, "cp2", "cp3")
		time.Sleep(10 * time.Second)
		requireRefused(t, errOf(back("alone.db")), "no member of etcd that answers follows a leader")
		for _, name := range []string{"corrupt.db", "alone.db"} {
			if _, err := os.Stat(filepath.Join(lab.Dir, name)); !os.IsNotExist(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if now := lab.Recorder.Mutations(); now != changes {
			t.Errorf("%d calls that change something, before: %d", now, changes)
		}
	})
}
