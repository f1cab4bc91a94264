package simtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/record"
)

var (
	matrixAll   = flag.Bool("matrix.all", false, "every fault at every call of every exchange")
	matrixSeed  = flag.Uint64("matrix.seed", 1, "which slice of the matrix, and which schedules")
	matrixOnly  = flag.String("matrix.fault", "", "only faults with this in their name")
	matrixSlice = flag.Int("matrix.slice", 1, "so many faults in each of some exchanges, unless -matrix.all")
)

// matrixFew is the fraction of exchanges that is played by default, 1 in that many: make
// test has other things to do.
const matrixFew = 17

// matrixExchange is one way to exchange the system of a VM, or to cancel the exchange.
type matrixExchange struct {
	strategy cluster.Strategy
	givenUp  string // the point at which it is cancelled; "": it isn't
	owned    ownership
	prepared bool // the new system disk is made from a disk image
}

func (x matrixExchange) String() string {
	name := string(x.strategy)
	if x.givenUp != "" {
		name = "put-back-of-" + name + "-" + x.givenUp
	}
	if x.prepared {
		name += "-prepared"
	}
	return name + "/" + string(x.owned)
}

func (x matrixExchange) shape() matrixShape {
	return usualShape(x.owned, x.strategy).withPrepared(x.prepared)
}

func matrixExchanges() (list []matrixExchange) {
	for _, owned := range ownerships() {
		list = append(list, matrixExchange{cluster.Rollback, "", owned, false})
		for _, prepared := range []bool{false, true} {
			list = append(
				list, matrixExchange{cluster.Recreate, "", owned, prepared}, matrixExchange{cluster.Reimage, "", owned, prepared},
				matrixExchange{cluster.Recreate, vmDeleted, owned, prepared}, matrixExchange{cluster.Recreate, allAttached, owned, prepared}, matrixExchange{cluster.Reimage, allAttached, owned, prepared},
			)
		}
	}
	return list
}

// The points at which an exchange is cancelled.
const (
	vmDeleted   = "vm-deleted"
	allAttached = "all-attached"
)

// killedThere kills a process at such a point.
func killedThere(point string) matrixFault {
	f := processFaults()[0]
	f.meets = func(call record.Call) bool {
		if point == vmDeleted {
			return taskOf(call) == "qmcreate" && lockedVM(call) == matrixVM
		}
		return call.Params["onboot"] == "1" && taskOf(call) == "" || strings.HasPrefix(call.Params["delete"], "onboot") || strings.HasPrefix(call.Params["delete"], "protection")
	}
	return f
}

// matrixReference is the calls of an undisturbed exchange to Proxmox, and its possible
// final worlds.
type matrixReference struct {
	calls                    []matrixCall
	start, replaced, putBack string
}

// matrixCall is a call of an undisturbed exchange.
type matrixCall struct {
	record.Call
	// fresh says that the world has changed since the previous call: if it has not, a kill at
	// either call leaves the same state.
	fresh bool
}

// begin makes a lab in the state in which the faults begin.
func (x matrixExchange) begin(t *testing.T) *matrixLab {
	t.Helper()
	l := newMatrixLab(t, x.shape())
	if x.givenUp != "" {
		l.killAt(x.strategy, x.givenUp)
	}
	return l
}

// killAt runs an exchange up to one of the points.
func (l *matrixLab) killAt(strategy cluster.Strategy, point string) {
	l.t.Helper()
	ctx, life := l.live(l.t.Context())
	hit := life.strike(matrixStrike{killedThere(point), 1})
	err := life.exchange(ctx, strategy, false)
	if err == nil || hit[0].seq == 0 {
		l.t.Fatalf("the exchange was not cut off at %s: %v", point, err)
	}
	l.settle()
}

// undisturbedExchange determines the reference of an exchange of that shape.
func undisturbedExchange(t *testing.T, strategy cluster.Strategy, shape matrixShape, begin func(t *testing.T) *matrixLab, back bool) (ref matrixReference) {
	t.Helper()
	run := func(l *matrixLab, back bool) string {
		ctx, life := l.live(l.t.Context())
		ref.calls = nil
		life.watch(&ref.calls)
		if err := life.exchange(ctx, strategy, back); err != nil {
			l.t.Fatalf("undisturbed: %v", err)
		}
		text := l.dump()
		if problems := l.problems(); len(problems) > 0 {
			l.t.Fatalf("undisturbed: %q", problems)
		}
		return text
	}
	synctest.Test(t, func(t *testing.T) {
		l := newMatrixLab(t, shape)
		ref.start = l.dump()
		if strategy == cluster.Rollback {
			return
		}
		l.killAt(strategy, allAttached)
		ref.putBack = run(l, true)
		if diff := cmp.Diff(withoutParking(ref.start), withoutParking(ref.putBack)); diff != "" {
			t.Fatalf("put back, the VM is not what it was (-before +now):\n%s", diff)
		}
	})
	synctest.Test(t, func(t *testing.T) { ref.replaced = run(newMatrixLab(t, shape), false) })
	if back {
		synctest.Test(t, func(t *testing.T) { run(begin(t), true) }) // to record its calls
	}
	return ref
}

// matrixTally counts the results of one exchange of the matrix.
type matrixTally struct {
	struck                         map[string]int // by fault
	states, resumes, back, violate int
}

// TestMatrix plays every fault at every call of every exchange, each in its own world,
// continues from the resulting state, forward and back, and compares the world with that
// of the undisturbed exchange.
func TestMatrix(t *testing.T) {
	few := uint64(matrixFew)
	if testing.Short() {
		few *= 2
	}
	for i, x := range matrixExchanges() {
		if !*matrixAll && uint64(i)%few != *matrixSeed%few {
			continue
		}
		t.Run(x.String(), func(t *testing.T) {
			t.Parallel()
			ref := undisturbedExchange(t, x.strategy, x.shape(), x.begin, x.givenUp != "")
			m := &matrixRun{matrixExchange: x, ref: ref, seen: map[string]bool{}, tally: matrixTally{struck: map[string]int{}}}
			points := m.points()
			for _, p := range points {
				if m.strike(t, p); m.tally.violate > 5 {
					break
				}
			}
			m.tell(t, len(points))
		})
	}
}

// matrixRun is one exchange with all its faults.
type matrixRun struct {
	matrixExchange
	ref   matrixReference
	seen  map[string]bool // states from which it continued, forward and back
	tally matrixTally
}

// points lists the faults and their calls.
func (m *matrixRun) points() (points []matrixStrike) {
	for _, f := range matrixFaults() {
		if !strings.Contains(f.name, *matrixOnly) {
			continue
		}
		n := 0
		for _, call := range m.ref.calls {
			if !f.strikesAt(call.Call) {
				continue
			}
			if n++; !f.kills || f.meets != nil || f.before != nil && call.fresh || f.after != nil && call.Mutation {
				points = append(points, matrixStrike{f, n})
			}
		}
	}
	if *matrixAll {
		return points
	}
	return drawn(points, *matrixSlice, *matrixSeed, m.String())
}

// strike is strikeAt, a little earlier where there was no such call: two exchanges may differ by a look or two.
func (m *matrixRun) strike(t *testing.T, p matrixStrike) {
	t.Helper()
	err := m.strikeAt(t, p)
	if p.at -= 3; err != nil && p.at > 0 {
		err = m.strikeAt(t, p)
	}
	if err != nil {
		m.fails(t, fmt.Sprintf("%s: %s at %d", m, p.fault.name, p.at), err.Error())
	}
}

// strikeAt plays one fault in the exchange, and continues from each resulting state, or says that it never struck.
func (m *matrixRun) strikeAt(t *testing.T, p matrixStrike) (never error) {
	t.Helper()
	fresh := false
	synctest.Test(t, func(t *testing.T) {
		l, s, err := m.disturb(t, p)
		where := m.where(p, s)
		if s.seq == 0 {
			never = errors.Join(errors.New("never struck"), err)
			return
		}
		m.tally.struck[p.fault.name]++
		if err == nil && !p.fault.kills {
			m.fails(t, where+": coped with", l.deviations(m.ref, m.givenUp != "", p.fault.leaves)...)
			return
		}
		state := l.state() + l.pending()
		if fresh = !m.seen[state]; !fresh {
			m.fails(t, where, l.problems()...)
			return
		}
		m.seen[state] = true
		m.tally.states++
		m.goOn(t, l, where, p.fault, m.givenUp != "")
	})
	if fresh && m.givenUp == "" && m.strategy != cluster.Rollback {
		synctest.Test(t, func(t *testing.T) {
			l, s, _ := m.disturb(t, p)
			m.goOn(t, l, m.where(p, s), p.fault, true)
		})
	}
	return never
}

// disturb runs the exchange into a fault.
func (m *matrixRun) disturb(t *testing.T, p matrixStrike) (*matrixLab, *struck, error) {
	t.Helper()
	l := m.begin(t)
	ctx, life := l.live(t.Context())
	hit := life.strike(p)
	err := life.exchange(ctx, m.strategy, m.givenUp != "")
	life.cancel()
	l.settle()
	return l, hit[0], err
}

func (m *matrixRun) where(p matrixStrike, s *struck) string {
	return fmt.Sprintf("%s: %s at %d, %s %s", m, p.fault.name, p.at, s.call.Method, matrixPath(s.call))
}

// fails reports problems.
func (m *matrixRun) fails(t *testing.T, where string, problems ...string) {
	t.Helper()
	for _, problem := range problems {
		m.tally.violate++
		t.Errorf("%s: %s", where, problem)
	}
}

// goOn completes the exchange, forward or back, as the next process would.
func (m *matrixRun) goOn(t *testing.T, l *matrixLab, where string, f matrixFault, back bool) {
	t.Helper()
	what := ": resumed"
	if back {
		what = ": put back"
		m.tally.back++
	} else {
		m.tally.resumes++
	}
	err := l.goOn(t.Context(), m.strategy, back)
	if err != nil && l.cameLate() { // a change by a late request is a valid reason to stop
		err = l.goOn(t.Context(), m.strategy, back)
	}
	if err != nil {
		m.fails(t, where+what, append(l.problems(), fmt.Sprintf("%v\n%s", err, l.state()))...)
		return
	}
	m.fails(t, where+what, l.deviations(m.ref, back, f.leaves)...)
}

// goOn is the next process. Only root can remove the VM of a killed creation: recast says
// so, and root does.
func (l *matrixLab) goOn(ctx context.Context, strategy cluster.Strategy, back bool) error {
	l.settle()
	l.removeHalfMade(func(id int) bool { return id != matrixVM })
	ctx, life := l.live(ctx)
	defer life.cancel()
	life.strike()
	err := life.exchange(ctx, strategy, back)
	if err != nil && strings.Contains(err.Error(), "checksum mismatch") {
		// A late request of a killed process changed the VM between the read and the write, which
		// Proxmox refused: the same command again continues.
		err = life.exchange(ctx, strategy, back)
	}
	if err == nil || !strings.Contains(err.Error(), "is locked by its creation (create)") {
		return err
	}
	if !l.removeHalfMade(func(id int) bool { return id == matrixVM }) {
		return errors.Join(errors.New("there is no VM whose creation was cut off"), err)
	}
	return life.exchange(ctx, strategy, back)
}

// problems are the broken promises of the world so far.
func (l *matrixLab) problems() []string {
	l.look(record.Call{Method: "everything"})
	return slices.Concat(l.broken, l.unfreed())
}

// deviations says how the world deviates from that of an undisturbed exchange. leaves says
// that Proxmox itself may have left a volume behind.
func (l *matrixLab) deviations(ref matrixReference, back, leaves bool) []string {
	list := l.problems()
	if left := l.sweep(); len(left) > 0 && !leaves {
		list = append(list, fmt.Sprintf("unreferenced volumes are left: %v", left))
	}
	if diff := l.differs(ref, back, leaves); diff != "" {
		list = append(list, "the world differs from an undisturbed one (-undisturbed +here):\n"+diff)
	}
	return list
}

// imageSize is the size of a prepared disk in a configuration, and ungrown one that is still the image's.
var (
	imageSize = regexp.MustCompile(`,size=\w+([^\n]* = the image)`)
	ungrown   = regexp.MustCompile(`,size=\d+K[^\n]* = the image`)
)

// differs compares the world with the expected final one. An exchange that was complete,
// or had not begun, can't be cancelled. Without quorum a delete frees the cloud-init drive
// before it fails; Proxmox recreates that at the VM's next start (qemu-server,
// Cloudinit.pm, commit_cloudinit_disk).
func (l *matrixLab) differs(ref matrixReference, back, renews bool) string {
	as := func(dump string) string { return dump }
	if renews {
		as = withoutCloudInit
	}
	got := as(l.dump())
	if back && (got == as(ref.start) || got == as(ref.replaced)) {
		return ""
	}
	want := as(ref.replaced)
	if back {
		want = as(ref.putBack)
		if ungrown.MatchString(got) { // it was given up before it had its size, or before the configuration had
			got, want = imageSize.ReplaceAllString(got, "$1"), imageSize.ReplaceAllString(want, "$1")
		}
		if !givenUpVolume.MatchString(got) && withoutParking(got) == withoutParking(want) {
			return "" // there was no new system disk yet
		}
	}
	return cmp.Diff(want, got)
}

// tell prints the figures of the exchange.
func (m *matrixRun) tell(t *testing.T, points int) {
	t.Helper()
	figures := map[string]int{
		"points": points, "states": m.tally.states, "resumed": m.tally.resumes, "put-back": m.tally.back, "violations": m.tally.violate,
	}
	for name, n := range m.tally.struck {
		figures["fault:"+name] = n
	}
	for key, n := range figures {
		t.Attr(key, strconv.Itoa(n))
	}
}
