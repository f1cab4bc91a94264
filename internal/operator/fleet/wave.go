package fleet

import (
	"cmp"
	"slices"
	"time"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// wave decides which clusters of a fleet are rolled next. It only computes, and reads no clock.
//
// Stages run strictly one after the other. A stage is over when all of its members are done or failed. The next stage
// begins when the soak time since the last end has passed, the gate is open and the stage is approved. Failed members
// count against the abort threshold. A stage without members does not count.
type wave struct {
	v1alpha1.FleetRollSpec // limits less than 1 count as 1, but a stage's limit of 0 is that of the fleet
	members                []v1alpha1.Member
	// gate returns why the stage after the i-th may not begin yet. gate is called only when all members of the i-th
	// stage have ended and none of the next stage has begun.
	gate func(i int) []string
}

// decision says what to do now.
type decision struct {
	Begin  []string  // members to begin, by name
	Stage  string    // the stage that runs or soaks, or whose gate or approval is missing
	Reason string    // what the fleet waits for, or why it is over
	Closed []string  // the result of the gate, if Reason is ReasonGateClosed
	Again  time.Time // when to decide again even if nothing changes; zero: never
	Over   bool      // nothing runs and nothing will begin
}

// decide decides what to do at the time now.
func (w wave) decide(now time.Time) decision {
	d := w.next(now)
	stopped := []string{v1alpha1.ReasonSucceeded, v1alpha1.ReasonAborted, v1alpha1.ReasonStageFailed}
	d.Over = slices.Contains(stopped, d.Reason) && w.count("", v1alpha1.MemberRunning) == 0
	return d
}

func (w wave) next(now time.Time) decision {
	i := slices.IndexFunc(w.Stages, func(s v1alpha1.Stage) bool {
		return w.count(s.Name, v1alpha1.MemberWaiting, v1alpha1.MemberRunning) > 0
	})
	ended := i < 0
	if ended {
		i = len(w.Stages)
	}
	before := i - 1 // the last stage that has ended; -1: none
	for before >= 0 && w.count(w.Stages[before].Name, v1alpha1.MemberDone, v1alpha1.MemberFailed) == 0 {
		before--
	}
	var stage, last v1alpha1.Stage
	if before >= 0 {
		last = w.Stages[before]
	}
	if stage = last; !ended {
		stage = w.Stages[i]
	}
	switch soaked := w.lastEnd(last.Name).Add(last.Soak.Duration); {
	case !ended && w.State == v1alpha1.FleetAborted:
		return decision{Stage: stage.Name, Reason: v1alpha1.ReasonAborted}
	case w.count("", v1alpha1.MemberFailed) >= threshold(w.FleetRollSpec):
		return decision{Stage: stage.Name, Reason: v1alpha1.ReasonStageFailed}
	case ended:
		return decision{Stage: stage.Name, Reason: v1alpha1.ReasonSucceeded}
	case w.State == v1alpha1.FleetPaused:
		return decision{Stage: stage.Name, Reason: v1alpha1.ReasonPaused}
	case w.begun(stage.Name):
		return decision{Stage: stage.Name, Reason: v1alpha1.ReasonRolling, Begin: w.begin(stage)}
	case before >= 0 && now.Before(soaked):
		return decision{Stage: last.Name, Reason: v1alpha1.ReasonSoaking, Again: soaked}
	}
	if before >= 0 {
		if closed := w.gate(before); len(closed) > 0 {
			return decision{Stage: last.Name, Reason: v1alpha1.ReasonGateClosed, Closed: closed}
		}
	}
	if w.unapproved(stage) {
		return decision{Stage: stage.Name, Reason: v1alpha1.ReasonAwaitingApproval}
	}
	return decision{Stage: stage.Name, Reason: v1alpha1.ReasonRolling, Begin: w.begin(stage)}
}

func (w wave) begun(stage string) bool {
	return w.count(stage, v1alpha1.MemberRunning, v1alpha1.MemberDone, v1alpha1.MemberFailed) > 0
}

func (w wave) unapproved(stage v1alpha1.Stage) bool {
	return stage.Approval == v1alpha1.ApprovalManual && !slices.Contains(w.ApprovedStages, stage.Name)
}

// begin lists the waiting members of a stage that there is room for, in the order of their names. A full site does
// not hold up members of other sites.
func (w wave) begin(stage v1alpha1.Stage) []string {
	room := max(1, int(w.MaxConcurrent)) - w.count("", v1alpha1.MemberRunning)
	if stage.MaxConcurrent > 0 {
		room = min(room, int(stage.MaxConcurrent)-w.count(stage.Name, v1alpha1.MemberRunning))
	}
	sites := map[string]int32{}
	for _, m := range w.members {
		if m.Phase == v1alpha1.MemberRunning {
			sites[m.Site]++
		}
	}
	var names []string
	byName := func(a, b v1alpha1.Member) int { return cmp.Compare(a.Cluster, b.Cluster) }
	for _, m := range slices.SortedFunc(slices.Values(w.members), byName) {
		if len(names) >= room {
			break
		}
		if m.Stage == stage.Name && m.Phase == v1alpha1.MemberWaiting && sites[m.Site] < max(1, w.MaxConcurrentPerSite) {
			sites[m.Site]++
			names = append(names, m.Cluster)
		}
	}
	return names
}

// count returns how many members of a stage are in one of the phases. Stage "" stands for all stages.
func (w wave) count(stage string, phases ...v1alpha1.MemberPhase) (n int) {
	for _, m := range w.members {
		if (stage == "" || m.Stage == stage) && slices.Contains(phases, m.Phase) {
			n++
		}
	}
	return n
}

// lastEnd returns when the last member of a stage ended.
func (w wave) lastEnd(stage string) time.Time {
	var last time.Time
	for _, m := range w.members {
		if m.Stage == stage && m.Ended != nil && m.Ended.After(last) {
			last = m.Ended.Time
		}
	}
	return last
}
