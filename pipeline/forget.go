package pipeline

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/roll"
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

// forgetConfigs deletes machine configurations from the journals of earlier runs, for nodes
// that have a configuration again: a run that was killed, or failed before it took a node
// down, could not delete them.
func (w *work) forgetConfigs() {
	var keys []string
	for _, node := range w.rep.Plan.Configured() {
		keys = append(keys, roll.MachineConfigKey(node))
	}
	if err := journal.Forget(w.Runs().Dir, keys, w.o.JournalSync); err != nil {
		w.run.Note("roll", "machine configurations of earlier runs were not deleted from "+w.Runs().Dir+": "+err.Error())
	}
}

// forgetOfDone deletes from a journal the machine configurations of nodes that this run
// has finished.
func (w *work) forgetOfDone(j *journal.Journal) error {
	var mine []string
	for _, n := range w.rep.Plan.Work() {
		mine = append(mine, n.Node)
	}
	var errs []error
	for _, node := range w.tally.fates(mine).Done {
		errs = append(errs, j.Delete(roll.MachineConfigKey(node)))
	}
	return errors.Join(errs...)
}
