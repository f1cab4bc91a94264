package simtest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster"
)

var matrixSchedules = flag.Int("matrix.schedules", 1, "so many random schedules of faults")

// schedule is a random story of one exchange: processes that continue it one after the
// other, forward or back, each into a fault.
type schedule struct {
	strategy cluster.Strategy
	shape    matrixShape
	lives    []scheduledLife
	back     bool // the last, undisturbed process cancels
}

// scheduledLife is one process of a schedule.
type scheduledLife struct {
	back    bool
	strikes []matrixStrike
	hasty   bool // the next one begins at once, while Proxmox still works for this one
}

func (s schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %+v", s.strategy, s.shape)
	for i, life := range s.lives {
		fmt.Fprintf(&b, "\n  process %d, back %t, hasty %t:", i+1, life.back, life.hasty)
		for _, strike := range life.strikes {
			fmt.Fprintf(&b, " %s at %d", strike.fault.name, strike.at)
		}
	}
	fmt.Fprintf(&b, "\n  the last process, back %t", s.back)
	return b.String()
}

// drawSchedule draws one with about as many calls as an undisturbed exchange.
func drawSchedule(r *rand.Rand, strategy cluster.Strategy, shape matrixShape, ref matrixReference) schedule {
	s := schedule{strategy: strategy, shape: shape}
	gaveUp := func() bool { return strategy != cluster.Rollback && r.IntN(4) == 0 }
	faults := matrixFaults()
	for left := 1 + r.IntN(4); left > 0; {
		life := scheduledLife{back: gaveUp(), hasty: r.IntN(2) == 0}
		for range min(left, 1+r.IntN(2)) {
			f := faults[r.IntN(len(faults))]
			meets := 0
			for _, call := range ref.calls {
				if f.strikesAt(call.Call) {
					meets++
				}
			}
			left--
			life.strikes = append(life.strikes, matrixStrike{f, 1 + r.IntN(max(1, meets))})
		}
		s.lives = append(s.lives, life)
	}
	s.back = gaveUp()
	return s
}

// leaves says whether Proxmox itself may leave a volume behind.
func (s schedule) leaves() bool {
	return slices.ContainsFunc(s.lives, func(life scheduledLife) bool {
		return slices.ContainsFunc(life.strikes, func(strike matrixStrike) bool { return strike.fault.leaves })
	})
}

// TestMatrixSchedules draws exchanges with several faults one after the other; each must
// end in one of the two final worlds.
func TestMatrixSchedules(t *testing.T) {
	for n := range *matrixSchedules {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(*matrixSeed, uint64(n)))
			strategy := []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.Rollback}[r.IntN(3)]
			shape := drawShape(r, strategy)
			ref := undisturbedExchange(t, strategy, shape, nil, false)
			s := drawSchedule(r, strategy, shape, ref)
			defer func() { // a bubble that fails ends its test
				if t.Failed() {
					t.Logf("-matrix.seed=%d -run 'TestMatrixSchedules/%d$':\n%s", *matrixSeed, n, s)
				}
			}()
			struck := 0
			synctest.Test(t, func(t *testing.T) { struck = s.play(t, ref) })
			t.Attr("schedules", "1")
			t.Attr("struck", strconv.Itoa(struck))
		})
	}
}

// play runs a schedule and returns how many of its faults have struck.
func (s schedule) play(t *testing.T, ref matrixReference) (struck int) {
	t.Helper()
	l := newMatrixLab(t, s.shape)
	backwards := false
	for _, life := range s.lives {
		struck += l.suffer(s.strategy, life)
		backwards = backwards || life.back
	}
	if err := l.goOn(t.Context(), s.strategy, s.back); err != nil {
		t.Errorf("the last process: %v\n%s", err, l.state())
	}
	for _, problem := range l.deviations(ref, backwards || s.back, s.leaves()) {
		t.Error(problem)
	}
	return struck
}

// suffer runs one process into its faults. Their effects in Proxmox are repaired before
// the next process, unless that is hasty.
func (l *matrixLab) suffer(strategy cluster.Strategy, scheduled scheduledLife) (struck int) {
	l.removeHalfMade(func(int) bool { return true })
	ctx, life := l.live(l.t.Context())
	hits := life.strike(scheduled.strikes...)
	_ = life.exchange(ctx, strategy, scheduled.back) // only the last process must succeed
	life.cancel()
	for _, hit := range hits {
		if hit.seq > 0 {
			struck++
		}
	}
	if !scheduled.hasty {
		l.settle()
	}
	return struck
}
