package simtest

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

var errStruck = errors.New("struck by a fault")

// matrixFault is one kind of fault of a call to Proxmox.
type matrixFault struct {
	name string
	// kills says that it ends the process; then it also strikes at reads.
	kills bool
	// leaves says that Proxmox itself may leave an unreferenced blank volume: it allocates
	// before it fails to write the configuration.
	leaves bool
	meets  func(record.Call) bool // calls that it applies to; nil: every changing call
	// before runs before Proxmox acts, and drops the request if it returns an error; after
	// runs after Proxmox has acted, before the answer is sent.
	before func(life *matrixLife, call record.Call) error
	after  func(life *matrixLife, call record.Call)
}

func (f matrixFault) strikesAt(call record.Call) bool {
	if f.meets != nil {
		return call.Mutation && f.meets(call)
	}
	return f.kills || call.Mutation
}

func matrixFaults() []matrixFault {
	return slices.Concat(processFaults(), lateFaults(), wayFaults(), workerFaults(), clusterFaults())
}

func processFaults() []matrixFault {
	return []matrixFault{
		{name: "kill-before", kills: true, before: func(life *matrixLife, _ record.Call) error { life.kill(); return errStruck }},
		{name: "kill-after", kills: true, after: func(life *matrixLife, _ record.Call) { life.kill() }},
	}
}

func wayFaults() []matrixFault {
	noDaemon := func(life *matrixLife, _ record.Call) error { life.world.SetDaemon(matrixHost, false); return nil }
	daemon := func(life *matrixLife) { life.world.SetDaemon(matrixHost, true) }
	return []matrixFault{
		{name: "lost-acted", after: func(life *matrixLife, _ record.Call) { life.dialer.Cut(); life.dialer.Mend() }},
		{name: "lost-not-acted", before: func(*matrixLife, record.Call) error { return errStruck }},
		{name: "595-once", meets: onNode, before: noDaemon, after: func(life *matrixLife, _ record.Call) { daemon(life) }},
		{name: "595-for-40s", meets: onNode, before: func(life *matrixLife, call record.Call) error {
			life.later(40*time.Second, func() { daemon(life) })
			return noDaemon(life, call)
		}},
	}
}

// onNode says whether pvedaemon of a node handles a call.
func onNode(call record.Call) bool { return strings.HasPrefix(matrixPath(call), "/nodes/") }

func matrixPath(call record.Call) string {
	path, _, _ := strings.Cut(strings.TrimPrefix(call.Path, "/api2/json"), "?")
	return path
}

// taskOf is the type of the task that a call starts; "" if it starts none.
func taskOf(call record.Call) string {
	path := matrixPath(call)
	switch {
	case call.Method == "DELETE" && strings.Contains(path, "/qemu/"):
		return "qmdestroy"
	case call.Method != "POST":
		return ""
	case strings.HasSuffix(path, "/qemu"):
		return "qmcreate"
	case strings.HasSuffix(path, "/move_disk"):
		return "qmmove"
	case strings.HasSuffix(path, "/config"):
		return "qmconfig"
	}
	return ""
}

func moves(call record.Call) bool { return taskOf(call) == "qmmove" }

func startsTask(call record.Call) bool { return taskOf(call) != "" }

// workerFaults happen to the worker of a call, or in its place.
func workerFaults() []matrixFault {
	killMove := func(after world.MoveStage) func(*matrixLife, record.Call) error {
		return func(life *matrixLife, _ record.Call) error { life.world.StopNextMove(after, false); return nil }
	}
	return []matrixFault{
		{name: "worker-killed", meets: startsTask, after: func(life *matrixLife, _ record.Call) {
			if tasks := life.world.Tasks(); len(tasks) > 0 {
				life.world.KillTask(tasks[0].UPID)
			}
		}},
		{name: "move-killed-after-rename", meets: moves, before: killMove(world.AfterRename)},
		{name: "move-killed-after-source", meets: moves, before: killMove(world.AfterSource)},
		{name: "task-error", meets: startsTask, before: func(life *matrixLife, call record.Call) error {
			life.world.FailNext(taskOf(call), "command '/sbin/lvs' failed: exit code 5")
			return nil
		}},
		{name: "refused", before: func(life *matrixLife, call record.Call) error {
			life.world.FailNext(call.Method+" "+matrixPath(call), "unable to open file '/etc/pve/local/x' - Input/output error")
			return nil
		}},
	}
}

func clusterFaults() []matrixFault {
	hold := func(d time.Duration) func(*matrixLife, record.Call) error {
		return func(life *matrixLife, call record.Call) error {
			release, err := life.world.HoldLock(lockedVM(call))
			if err != nil {
				return err
			}
			life.later(d, sync.OnceFunc(release))
			return nil
		}
	}
	noQuorum := func(d time.Duration) func(*matrixLife, record.Call) error {
		return func(life *matrixLife, _ record.Call) error {
			life.world.SetQuorum(false)
			life.later(d, func() { life.world.SetQuorum(true) })
			return nil
		}
	}
	// The host crashes and boots again a minute later.
	crashed := func(life *matrixLife) { life.later(time.Minute, func() { life.world.BootHost(matrixHost) }) }
	locks := func(call record.Call) bool { return lockedVM(call) != 0 }
	const untilMended = 24 * time.Hour
	return []matrixFault{
		{name: "host-crash", after: func(life *matrixLife, _ record.Call) {
			life.world.CrashHost(matrixHost)
			crashed(life)
		}},
		{name: "host-crash-after-rename", meets: moves, before: func(life *matrixLife, _ record.Call) error {
			life.world.StopNextMove(world.AfterRename, true)
			crashed(life)
			return nil
		}},
		{name: "locked-30s", meets: locks, before: hold(30 * time.Second)},
		{name: "locked-5m", meets: locks, before: hold(5 * time.Minute)},
		{name: "no-quorum-60s", leaves: true, before: noQuorum(time.Minute)},
		{name: "no-quorum", leaves: true, before: noQuorum(untilMended)},
	}
}

// lockedVM is the VM whose lock file a call takes first; 0 if it takes none.
func lockedVM(call record.Call) int {
	if !onNode(call) {
		return 0
	}
	id := call.Params["vmid"]
	if taskOf(call) != "qmcreate" {
		_, rest, _ := strings.Cut(matrixPath(call), "/qemu/")
		id, _, _ = strings.Cut(rest, "/")
	}
	n, _ := strconv.Atoi(id)
	return n
}

// later runs f after d, or when the lab settles, whichever is first.
func (l *matrixLab) later(d time.Duration, f func()) {
	f = sync.OnceFunc(f)
	timer := time.AfterFunc(d, f)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mends = append(l.mends, func() { timer.Stop(); f() })
}

// matrixStrike is a fault at one call of a process: the n-th of those that it applies to.
type matrixStrike struct {
	fault matrixFault
	at    int // from 1
}

// struck is a strike and its state.
type struck struct {
	matrixStrike
	seen int         // calls that count
	call record.Call // that it struck; its zero value: none yet
}

func (s *struck) came() bool { return s.call.Seq > 0 }

// watch records the calls of an undisturbed process.
func (life *matrixLife) watch(calls *[]matrixCall) {
	var mu sync.Mutex
	last := ""
	life.recorder.Hooks(func(call record.Call) error {
		mu.Lock()
		defer mu.Unlock()
		now := life.momentary()
		*calls = append(*calls, matrixCall{call, now != last})
		last = now
		return nil
	}, life.lookAfter)
}

// strike applies faults to a process, and checks the promises after every call.
func (life *matrixLife) strike(strikes ...matrixStrike) []*struck {
	var list []*struck
	for _, s := range strikes {
		list = append(list, &struck{matrixStrike: s})
	}
	var mu sync.Mutex
	which := func(hit func(*struck) bool) []*struck {
		mu.Lock()
		defer mu.Unlock()
		return slices.DeleteFunc(slices.Clone(list), func(s *struck) bool { return !hit(s) })
	}
	life.recorder.Hooks(func(call record.Call) error {
		if call.Late { // it can't be prevented any more
			return nil
		}
		life.deliverBefore(call)
		for _, s := range which(func(s *struck) bool { return s.comesTo(call) && s.fault.before != nil }) {
			if err := s.fault.before(life, call); err != nil {
				return err
			}
		}
		return nil
	}, func(call record.Call) {
		for _, s := range which(func(s *struck) bool { return s.call.Seq == call.Seq && s.fault.after != nil }) {
			s.fault.after(life, call)
		}
		life.lookAfter(call)
	})
	return list
}

// comesTo counts a call, and says whether it is the one to strike.
func (s *struck) comesTo(call record.Call) bool {
	if !s.fault.strikesAt(call) {
		return false
	}
	if s.seen++; s.seen == s.at {
		s.call = call
	}
	return s.seen == s.at
}

// matrixLate is a request of a dead process, which Proxmox processes during the next one: right before the n-th of
// its changes. If that makes fewer changes, the request is dropped.
type matrixLate struct {
	call record.Call
	held *record.Held
	of   *matrixLife
	left int
}

// lateFaults are requests that Proxmox processes after their sender has stopped waiting.
func lateFaults() []matrixFault {
	killed := func(n int) matrixFault {
		return matrixFault{
			name: fmt.Sprintf("late-killed-%d", n), kills: true, meets: func(call record.Call) bool { return onNode(call) && !keepsOff(call) },
			before: func(life *matrixLife, call record.Call) error {
				life.kill()
				l := &matrixLate{call: call, held: record.Hold(record.NoAnswer), of: life, left: n}
				life.mu.Lock()
				defer life.mu.Unlock()
				life.late = append(life.late, l)
				return l.held
			},
		}
	}
	fault := func(name string, a record.Answer, late time.Duration) matrixFault {
		return matrixFault{name: name, meets: onNode, before: func(life *matrixLife, _ record.Call) error {
			held := record.Hold(a)
			life.later(late, held.Deliver)
			return held
		}}
	}
	return []matrixFault{
		killed(2), killed(7),
		fault("late-lost", record.NoAnswer, 3*time.Second),
		fault("late-504", record.GatewayTimeout, record.GatewayTimeout.After+3*time.Second),
	}
}

// keepsOff says whether a call removes a VM's onboot. If the exchange was cancelled meanwhile, a late one finds
// exactly the configuration that it expects: docs/notes/proxmox.md, requests that come late.
func keepsOff(call record.Call) bool {
	return lockedVM(call) == matrixVM && len(call.Params) == 2 && call.Params["onboot"] == "0"
}

// deliverBefore processes the requests that are due right before this change of the process.
func (life *matrixLife) deliverBefore(call record.Call) {
	if !call.Mutation {
		return
	}
	var due []*matrixLate
	life.mu.Lock()
	for _, l := range life.late {
		if l.of == life {
			continue
		}
		if l.left--; l.left == 0 {
			due = append(due, l)
		}
	}
	life.mu.Unlock()
	for _, l := range due {
		deliver(life.world, l.held)
	}
}

// cameLate says whether every held request was processed.
func (l *matrixLab) cameLate() bool { return len(l.late) > 0 && l.pending() == "" }

func (l *matrixLab) pending() (text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, late := range l.late {
		if late.left > 0 {
			text += fmt.Sprintf("\nlate, in %d changes: %s %s %v", late.left, late.call.Method, late.call.Path, late.call.Params)
		}
	}
	return text
}

var matrixSchedules = flag.Int("matrix.schedules", 1, "so many random schedules of faults")

// schedule is a random story of one exchange: processes that continue it one after the
// other, forward or back, each into a fault.
type schedule struct {
	matrixExchange
	lives []matrixProcess
	back  bool // the last, undisturbed process cancels
}

// matrixProcess is one process of recast that meets faults.
type matrixProcess struct {
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
func drawSchedule(r *rand.Rand, x matrixExchange, ref matrixReference) schedule {
	s := schedule{matrixExchange: x}
	gaveUp := func() bool { return x.strategy != cluster.Rollback && r.IntN(4) == 0 }
	faults := matrixFaults()
	for left := 1 + r.IntN(4); left > 0; {
		life := matrixProcess{back: gaveUp(), hasty: r.IntN(2) == 0}
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

// TestMatrixSchedules draws exchanges with several faults one after the other; each must
// end in one of the two final worlds.
func TestMatrixSchedules(t *testing.T) {
	for n := range *matrixSchedules {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(*matrixSeed, uint64(n)))
			strategy := []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.Rollback}[r.IntN(3)]
			x := matrixExchange{strategy: strategy, shape: drawShape(r, strategy)}
			ref := x.undisturbed(t)
			s := drawSchedule(r, x, ref)
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
	l := s.begin(t)
	back, leaves := s.back, false // leaves: Proxmox itself may leave a volume behind
	for _, life := range s.lives {
		l.removeHalfMade(func(int) bool { return true })
		hits, _ := l.suffer(s.strategy, life) // only the last process must succeed
		for _, hit := range hits {
			if hit.came() {
				struck++
			}
			leaves = leaves || hit.fault.leaves
		}
		back = back || life.back
	}
	err := l.goOn(t.Context(), s.strategy, s.back)
	require(t, err == nil, "the last process: %v\n%s", err, l.state())
	requireNone(t, l.deviations(ref, back, leaves), "deviations")
	return struck
}

// suffer runs one process into its faults. Their effects in Proxmox are repaired before
// the next process, unless that is hasty.
func (l *matrixLab) suffer(strategy cluster.Strategy, p matrixProcess) ([]*struck, error) {
	l.t.Helper()
	ctx, life := l.live(l.t.Context())
	hits := life.strike(p.strikes...)
	err := life.exchange(ctx, strategy, p.back)
	life.cancel()
	if !p.hasty {
		l.settle()
	}
	return hits, err
}
