package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
)

// EtcdSource reads backups of etcd.
type EtcdSource interface {
	cluster.EtcdReader
	Endpointer
}

// Endpointer knows the talosconfig's endpoints.
type Endpointer interface {
	// Endpoints returns their addresses, in the talosconfig's order.
	Endpoints(ctx context.Context) ([]netip.Addr, error)
}

// BackupOptions say where a backup goes.
type BackupOptions struct {
	To   string // a directory, or a file that does not exist; "": roll.etcdSnapshot
	Keep int    // how many backups of this cluster to keep in the directory; 0: all
}

// BackupResult is a backup that was taken.
type BackupResult struct {
	etcd.Backup
	Removed []string `json:"removed,omitempty"` // older backups
}

// Backup saves a snapshot of etcd. It changes nothing in the cluster, and needs only a
// talosconfig with the role os:etcd:backup.
func Backup(ctx context.Context, p Project, src EtcdSource, o BackupOptions, say func(string)) (BackupResult, error) {
	file, dir, err := backupFile(p.Config, o, time.Now())
	if err != nil {
		return BackupResult{}, err
	}
	ask, err := src.Endpoints(ctx)
	if err != nil {
		return BackupResult{}, err
	}
	if below, err := filepath.Rel(p.State(), file); err == nil && filepath.IsLocal(below) {
		if err := journal.KeepOutOfGit(p.State()); err != nil {
			return BackupResult{}, err
		}
	}
	b, err := etcd.BackUp(ctx, src, ask, file, say)
	if err != nil {
		return BackupResult{}, err
	}
	res := BackupResult{Backup: b}
	if o.Keep > 0 {
		res.Removed, err = removeBackups(p.Config, dir, filepath.Base(file), o.Keep)
	}
	return res, err
}

// backupTime is the format of the time in the name of a backup, in UTC.
const backupTime = "20060102T150405Z"

// backupFile returns the file of a backup, and its directory if recast chooses the name.
func backupFile(c *config.Config, o BackupOptions, now time.Time) (file, dir string, err error) {
	to := cmp.Or(o.To, c.Roll.EtcdSnapshot)
	info, err := os.Stat(to)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", "", fault.As(fault.Config, err)
	case err == nil && info.IsDir(), err != nil && (o.To == "" || strings.HasSuffix(o.To, string(filepath.Separator))):
		file = filepath.Join(to, "etcd-"+c.Cluster+"-"+now.UTC().Format(backupTime)+".db")
		if _, err := os.Lstat(file); err != nil {
			return file, to, nil
		}
	case o.Keep > 0:
		return "", "", fault.WithHint(fault.Configf("%s is a file, and --keep needs a directory", to), "--to DIR/ with --keep")
	case err != nil:
		return to, "", nil
	default:
		file = to
	}
	return "", "", fault.WithHint(fault.Configf("%s exists already, and a backup is never overwritten", file), "name another file with --to, or a directory")
}

// removeBackups removes all but the newest keep of this cluster's backups. The one just
// taken always counts as newest: the name of another may have a later time.
func removeBackups(c *config.Config, dir, taken string, keep int) (removed []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if isBackup(c, e) && e.Name() != taken {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	var problems []error
	for _, name := range names[:max(0, len(names)-(keep-1))] {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			problems = append(problems, fmt.Errorf("remove an older backup: %w", err))
			continue
		}
		removed = append(removed, name)
	}
	return removed, errors.Join(problems...)
}

// isBackup says whether a file is a backup of this cluster; snapshots of rolls are not.
func isBackup(c *config.Config, e fs.DirEntry) bool {
	rest, ours := strings.CutPrefix(e.Name(), "etcd-"+c.Cluster+"-")
	taken, ours2 := strings.CutSuffix(rest, ".db")
	_, err := time.Parse(backupTime, taken)
	return ours && ours2 && err == nil && e.Type().IsRegular()
}
