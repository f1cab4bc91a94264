package pipeline

import (
	"crypto/rand"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/pipeline/past"
)

// RollOptions are the options of a roll.
type RollOptions struct {
	Policy planning.Policy
	// Undo selects what Undo is about, beside the nodes that Policy names; Order and Say are not needed.
	Undo planning.Undone
	// Saved is a saved plan; nil: roll every stale node. Begun: a run of it has begun, whatever the journal says.
	Saved *planning.Plan
	Begun bool
	// Confirm is called with every plan before anything is taken down. Its error, or
	// false, ends the roll.
	Confirm func(planning.Plan) (bool, error)
	// RunID makes the ID of a new run; nil: journal.NewRunID.
	RunID func() (string, error)
	// JournalSync is journal.Options.Sync; nil in production.
	JournalSync func(point string) error
	// Notify is called when the run starts and ends; may be nil.
	Notify cluster.Notifier
	// Began is called with each run whose journal is opened, its own and those that it
	// finishes first, and the journal's directory. May be nil.
	Began func(run, dir string)
	// Holder is this process, for the claim; Dead says whether another one has ended here, nil: never known.
	Holder claim.Holder
	Dead   func(claim.Holder) bool
	// Suspended says whether another process is stopped here (Ctrl-Z); nil: never known.
	Suspended func(claim.Holder) bool
	// MayAsk is the error of a question that nobody could answer; nil, or its result: somebody can be asked.
	MayAsk func() error
	// Pulsed is called from time to time with the state of Kubernetes and etcd; may be nil.
	Pulsed func(planning.Pulse)
	// Origin is for history and reports.
	Origin past.Origin
	// Rehearse tests the boot ISOs before the first node; nil: as in roll.rehearse.enabled.
	Rehearse *bool
	// Rebuild is what the etcd of a broken cluster begins with again; see Policy.Rebuild.
	Rebuild etcd.Source
}

// newRunID creates the ID of a run. With a saved plan, it ends with digits of the plan's ID.
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
