package pipeline

import (
	"crypto/rand"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/journal"
)

// RollOptions choose what a roll does and whom it asks.
type RollOptions struct {
	Policy cluster.Policy
	// Saved is a plan that was made before; nil: whatever is found stale is rolled.
	Saved *cluster.Plan
	// Confirm is shown every plan before anything is taken down. Its error, or
	// false, ends the roll.
	Confirm func(cluster.Plan) (bool, error)
	// RunID makes the ID of a new run; nil: journal.NewRunID.
	RunID func() (string, error)
	// JournalSync is journal.Options.Sync; nil in production.
	JournalSync func(point string) error
	// Notify is told when the run begins and ends; nil: nobody is.
	Notify cluster.Notifier
	// Began is told each run whose journal is opened, its own and those that it
	// finishes first, with the journal's directory. May be nil.
	Began func(run, dir string)
	// Holder is this process, for the claim; Dead says whether another holder was
	// a process of this machine and has ended, nil: never known.
	Holder cluster.Holder
	Dead   func(cluster.Holder) bool
	// Pulsed is told from time to time how Kubernetes and etcd stand; nil: nobody looks.
	Pulsed func(cluster.Pulse)
	// Version of recast, for whoever looks back at the run.
	Version string
	// Rehearse tries the boot ISOs out before the first node goes; nil: as roll.rehearse.enabled says.
	Rehearse *bool
}

// newRunID makes the ID of a run, which ends as the saved plan has it if there is one.
func (o RollOptions) newRunID() (string, error) {
	newID := o.RunID
	if newID == nil {
		newID = func() (string, error) { return journal.NewRunID(time.Now(), rand.Reader) }
	}
	id, err := newID()
	if err == nil && o.Saved != nil {
		id += o.Saved.RunSuffix()
	}
	return id, err
}

func (o RollOptions) began(j *journal.Journal) {
	if o.Began != nil {
		o.Began(j.Run(), j.Dir())
	}
}
