package pipeline

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/journal"
)

// keepRuns is how many finished runs are kept, with journal, log and report.
const keepRuns = 100

// pruneRuns removes the oldest finished runs. It keeps a run that a parking VM names: its
// journal describes the disk that is kept there. If Proxmox can't be read, it keeps all.
func (w *work) pruneRuns(ctx context.Context) error {
	return forgetRuns(w.Project, func() (map[string]bool, error) {
		vms, err := w.machines.Proxmox.VMs(ctx)
		if err != nil {
			return nil, err
		}
		parkings, err := parking.Parkings(vms, w.Config.Cluster)
		needed := map[string]bool{}
		for _, p := range parkings {
			needed[p.Record.Run] = true
			for _, k := range p.Record.Kept {
				needed[k.Run] = true
			}
		}
		return needed, err
	})
}

// forgetRuns asks which runs are needed only where there are too many.
func forgetRuns(p Project, needed func() (map[string]bool, error)) error {
	runs, err := journal.Runs(p.Runs().Dir)
	if err != nil {
		return err
	}
	runs = slices.DeleteFunc(runs, journal.RunInfo.Unfinished)
	if len(runs) <= keepRuns {
		return nil
	}
	keep, err := needed()
	if err != nil {
		return err
	}
	for _, r := range runs[keepRuns:] {
		if keep[r.ID] {
			continue
		}
		if err := journal.Remove(p.Runs().Dir, r.ID); err != nil {
			return err
		}
		if err := os.Remove(p.Page(r.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Page is the file of a run's report, which may not exist.
func (p Project) Page(run string) string {
	return filepath.Join(p.State(), "reports", run+".html")
}
