package pipeline

import (
	"errors"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/journal"
)

// forgetConfigs deletes the machine configurations that earlier runs have left in
// their journals of nodes that have one again: a run that was killed, or failed
// before it took a node down, could not.
func (w *work) forgetConfigs() {
	var keys []string
	for _, node := range w.rep.Plan.Configured() {
		keys = append(keys, cluster.MachineConfigKey(node))
	}
	if err := journal.Forget(w.runs(), keys, w.o.JournalSync); err != nil {
		w.run.Note("roll", "machine configurations of earlier runs stay in "+w.runs()+": "+err.Error())
	}
}

// forgetOfDone deletes from a journal the machine configurations of the nodes that
// this run has done.
func (w *work) forgetOfDone(j *journal.Journal) error {
	var mine []string
	for _, n := range w.rep.Plan.Work() {
		mine = append(mine, n.Node)
	}
	var errs []error
	for _, node := range w.tally.fates(mine).Done {
		errs = append(errs, j.Delete(cluster.MachineConfigKey(node)))
	}
	return errors.Join(errs...)
}
