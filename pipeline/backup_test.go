package pipeline

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestBackupFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	saved, own := filepath.Join(dir, "saved"), filepath.Join(dir, "own")
	const name = "etcd-c1-20261121T040507Z.db"
	for _, made := range []string{saved, filepath.Join(own, name)} {
		must.Do(t, os.MkdirAll(made, 0o700))
	}
	file := filepath.Join(dir, "there.db")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	p := Project{Config: &config.Config{Cluster: "c1"}}
	p.Config.Roll.EtcdSnapshot = filepath.Join(dir, "yet", "to be made")
	cases := map[string]struct {
		o    BackupOptions
		file string
		dir  string
		err  string
	}{
		"as configured":               {BackupOptions{Keep: 3}, filepath.Join(dir, "yet", "to be made", name), p.Config.Roll.EtcdSnapshot, ""},
		"a directory":                 {BackupOptions{To: saved, Keep: 3}, filepath.Join(saved, name), saved, ""},
		"a directory yet to be made":  {BackupOptions{To: saved + "/new/"}, filepath.Join(saved, "new", name), saved + "/new/", ""},
		"a file":                      {BackupOptions{To: saved + "/one.db"}, saved + "/one.db", "", ""},
		"a file that is there":        {BackupOptions{To: file}, "", "", "there.db exists already"},
		"a name that is there":        {BackupOptions{To: own}, "", "", name + " exists already"},
		"a file, and others to go":    {BackupOptions{To: saved + "/one.db", Keep: 1}, "", "", "one.db is a file, and --keep needs a directory"},
		"a file where a directory is": {BackupOptions{To: file + "/one.db"}, "", "", "not a directory"},
	}
	for name, c := range cases {
		file, dir, err := backupFile(p.Config, c.o, time.Date(2026, 11, 21, 5, 5, 7, 9, time.FixedZone("", 3600)))
		if file != c.file || dir != c.dir && c.err == "" || (err == nil) != (c.err == "") {
			t.Errorf("%s: %q in %q, %v", name, file, dir, err)
		}
		if err != nil && (fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, want %q", name, err, c.err)
		}
	}
}

func TestRemoveBackups(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	others := []string{
		"etcd-c1-20261101-0421-3f2a.db",          // saved by a roll
		"etcd-c1-20261101T000000Z.db.part",       // not whole
		"etcd-c1-staging-20260101T000000Z.db",    // of another cluster
		"etcd-c10-20260101T000000Z.db",           // of another cluster
		"etcd-c1-20261399T000000Z.db", "mine.db", // whatever
	}
	ours := []string{"etcd-c1-20251231T235959Z.db", "etcd-c1-20260101T000000Z.db", "etcd-c1-20260102T000000Z.db"}
	for _, name := range append(others, ours...) {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "etcd-c1-20200101T000000Z.db"), 0o700))
	p := Project{Config: &config.Config{Cluster: "c1"}}
	for _, c := range []struct {
		taken string
		keep  int
		want  []string
	}{{ours[2], 9, nil}, {ours[2], 3, nil}, {ours[0], 2, ours[1:2]}, {ours[0], 1, ours[2:]}, {ours[0], 1, nil}} {
		removed, err := removeBackups(p.Config, dir, c.taken, c.keep)
		if diff := cmp.Diff(c.want, removed); diff != "" || err != nil {
			t.Errorf("keep %d: %v (-want +got):\n%s", c.keep, err, diff)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != len(others)+2 {
		t.Errorf("left: %v, %v", left, err)
	}
}
