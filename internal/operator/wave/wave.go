// Package wave decides which clusters of a fleet are rolled next. It only computes: it knows neither Kubernetes nor
// the clock.
//
// Stages run strictly one after the other. A stage is over when all of its members are done or failed. The next stage
// begins when the soak time since the last end has passed, the gate is open and the stage is approved. Failed members
// count against the abort threshold.
package wave

import (
	"cmp"
	"slices"
	"time"
)

// Phase is how far a member is.
type Phase int

const (
	Waiting Phase = iota
	Running
	Done
	Failed
)

type Member struct {
	Name, Stage, Site string
	Phase             Phase
	Ended             time.Time // set if Phase is Done or Failed
}

type Stage struct {
	Name             string
	MaxConcurrent    int // 0: the limit of the fleet
	Soak             time.Duration
	Manual, Approved bool
	// Gate returns why the next stage may not begin yet. Gate is called only when all members of the stage have ended
	// and none of the next stage has begun. nil: no gate.
	Gate func() []string
}

// State is what a person wants of the fleet.
type State int

const (
	Run State = iota
	Pause
	Abort
)

// Fleet is the input of a decision, besides the time. Stages has the stage of every member; a stage without members
// does not count.
type Fleet struct {
	Stages               []Stage
	Members              []Member
	MaxConcurrent        int // less than 1 counts as 1, here and below
	MaxConcurrentPerSite int
	AbortThreshold       int // this many failed members stop the fleet
	State                State
}

// Reason says what a fleet waits for, or why it is over.
type Reason int

const (
	Rolling    Reason = iota // members run or begin
	Soaking                  // the stage's soak time has not passed
	Gated                    // the stage's gate is closed
	Unapproved               // the stage is Manual and not approved
	Paused                   // State is Pause
	Aborted                  // State is Abort
	Threshold                // AbortThreshold is reached
	Succeeded                // all members have ended, below the threshold
)

// Decision says what to do now.
type Decision struct {
	Begin  []string // members to begin, by name
	Stage  string   // the stage that runs or soaks, or whose gate or approval is missing
	Reason Reason
	Closed []string  // the result of the gate, if Reason is Gated
	Again  time.Time // when to decide again even if nothing changes; zero: never
	Over   bool      // nothing runs and nothing will begin
}

// Decide decides what to do at the time now.
func Decide(f Fleet, now time.Time) Decision {
	f.Stages = slices.DeleteFunc(slices.Clone(f.Stages), func(s Stage) bool { return f.count(s.Name, Waiting, Running, Done, Failed) == 0 })
	d := decide(f, now)
	stopped := d.Reason == Succeeded || d.Reason == Aborted || d.Reason == Threshold
	d.Over = stopped && f.count("", Running) == 0
	return d
}

func decide(f Fleet, now time.Time) Decision {
	var stage, before Stage
	i := slices.IndexFunc(f.Stages, func(s Stage) bool { return f.count(s.Name, Waiting, Running) > 0 })
	ended := i < 0
	switch {
	case !ended:
		stage = f.Stages[i]
	case len(f.Stages) > 0:
		stage = f.Stages[len(f.Stages)-1]
	}
	if i > 0 {
		before = f.Stages[i-1]
	}
	switch soaked := f.lastEnd(before.Name).Add(before.Soak); {
	case !ended && f.State == Abort:
		return Decision{Stage: stage.Name, Reason: Aborted}
	case f.count("", Failed) >= max(1, f.AbortThreshold):
		return Decision{Stage: stage.Name, Reason: Threshold}
	case ended:
		return Decision{Stage: stage.Name, Reason: Succeeded}
	case f.State == Pause:
		return Decision{Stage: stage.Name, Reason: Paused}
	case f.count(stage.Name, Running, Done, Failed) > 0:
		return Decision{Stage: stage.Name, Reason: Rolling, Begin: f.begin(stage)}
	case i > 0 && now.Before(soaked):
		return Decision{Stage: before.Name, Reason: Soaking, Again: soaked}
	}
	if before.Gate != nil {
		if closed := before.Gate(); len(closed) > 0 {
			return Decision{Stage: before.Name, Reason: Gated, Closed: closed}
		}
	}
	if stage.Manual && !stage.Approved {
		return Decision{Stage: stage.Name, Reason: Unapproved}
	}
	return Decision{Stage: stage.Name, Reason: Rolling, Begin: f.begin(stage)}
}

// begin lists the waiting members of a stage that there is room for, in the order of their names. A full site does
// not hold up members of other sites.
func (f Fleet) begin(stage Stage) []string {
	room := max(1, f.MaxConcurrent) - f.count("", Running)
	if stage.MaxConcurrent > 0 {
		room = min(room, stage.MaxConcurrent-f.count(stage.Name, Running))
	}
	sites := map[string]int{}
	for _, m := range f.Members {
		if m.Phase == Running {
			sites[m.Site]++
		}
	}
	var names []string
	for _, m := range slices.SortedFunc(slices.Values(f.Members), func(a, b Member) int { return cmp.Compare(a.Name, b.Name) }) {
		if len(names) >= room {
			break
		}
		if m.Stage == stage.Name && m.Phase == Waiting && sites[m.Site] < max(1, f.MaxConcurrentPerSite) {
			sites[m.Site]++
			names = append(names, m.Name)
		}
	}
	return names
}

// count returns how many members of a stage are in one of the phases. Stage "" stands for all stages.
func (f Fleet) count(stage string, phases ...Phase) (n int) {
	for _, m := range f.Members {
		if (stage == "" || m.Stage == stage) && slices.Contains(phases, m.Phase) {
			n++
		}
	}
	return n
}

// lastEnd returns when the last member of a stage ended.
func (f Fleet) lastEnd(stage string) time.Time {
	var last time.Time
	for _, m := range f.Members {
		if m.Stage == stage && m.Ended.After(last) {
			last = m.Ended
		}
	}
	return last
}
