package pipeline

import (
	"errors"

	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/internal/journal"
)

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
