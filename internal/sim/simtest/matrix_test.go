package simtest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

var (
	matrixAll   = flag.Bool("matrix.all", false, "every fault at every call of every exchange")
	matrixSeed  = flag.Uint64("matrix.seed", 1, "which slice of the matrix, and which schedules")
	matrixOnly  = flag.String("matrix.fault", "", "only faults with this in their name")
	matrixSlice = flag.Int("matrix.slice", 1, "so many faults in each of some exchanges, unless -matrix.all")
)

// matrixFew is the fraction of exchanges that is played by default, 1 in that many: make test has other things to do.
const matrixFew = 17

// matrixExchange is one way to exchange the system of a VM, or to cancel the exchange.
type matrixExchange struct {
	strategy cluster.Strategy
	givenUp  string // the point at which it is cancelled; "": it isn't
	shape    matrixShape
}

func (x matrixExchange) String() string {
	name := string(x.strategy)
	if x.givenUp != "" {
		name = "put-back-of-" + name + "-" + x.givenUp
	}
	if x.shape.prepared {
		name += "-prepared"
	}
	return name + "/" + string(x.shape.owned)
}

func matrixExchanges() (list []matrixExchange) {
	for _, owned := range ownerships() {
		add := func(strategy cluster.Strategy, prepared bool, givenUp string) {
			list = append(list, matrixExchange{strategy, givenUp, usualShape(owned, strategy).withPrepared(prepared)})
		}
		add(cluster.Rollback, false, "")
		for _, prepared := range []bool{false, true} {
			add(cluster.Recreate, prepared, "")
			add(cluster.Reimage, prepared, "")
			add(cluster.Recreate, prepared, vmDeleted)
			add(cluster.Recreate, prepared, allAttached)
			add(cluster.Reimage, prepared, allAttached)
		}
	}
	return list
}

// The points at which an exchange is cancelled.
const vmDeleted, allAttached = "vm-deleted", "all-attached"

// matrixReference is the calls of an undisturbed exchange to Proxmox, and its possible final worlds.
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
	l := newMatrixLab(t, x.shape)
	x.giveUp(l)
	return l
}

func (x matrixExchange) giveUp(l *matrixLab) {
	if x.givenUp != "" {
		l.killAt(x.strategy, x.givenUp)
		l.recorder.Hooks(nil, nil)
	}
}

func (l *matrixLab) killAt(strategy cluster.Strategy, point string) {
	f := processFaults()[0]
	f.meets = func(call record.Call) bool {
		if point == vmDeleted {
			return taskOf(call) == "qmcreate" && lockedVM(call) == matrixVM
		}
		return call.Params["onboot"] == "1" && taskOf(call) == "" || strings.HasPrefix(call.Params["delete"], "onboot") || strings.HasPrefix(call.Params["delete"], "protection")
	}
	hit, err := l.suffer(strategy, matrixProcess{strikes: []matrixStrike{{f, 1}}})
	mustBe(l.t, err != nil && hit[0].came(), "the exchange was not cut off at %s: %v", point, err)
}

// undisturbed determines the reference of an exchange.
func (x matrixExchange) undisturbed(t *testing.T) (ref matrixReference) {
	run := func(l *matrixLab, back bool) string {
		ctx, life := l.live(l.t.Context())
		ref.calls = nil
		life.watch(&ref.calls)
		err := life.exchange(ctx, x.strategy, back)
		mustBe(l.t, err == nil, "undisturbed: %v", err)
		text := l.dump()
		problems := l.problems()
		mustBe(l.t, len(problems) == 0, "undisturbed: %q", problems)
		return text
	}
	synctest.Test(t, func(t *testing.T) {
		l := newMatrixLab(t, x.shape)
		ref.start = l.dump()
		if x.strategy == cluster.Rollback {
			return
		}
		l.killAt(x.strategy, allAttached)
		ref.putBack = run(l, true)
		requireSame(t, withoutParking(ref.start), withoutParking(ref.putBack), "put back (-before +now)")
	})
	synctest.Test(t, func(t *testing.T) { ref.replaced = run(newMatrixLab(t, x.shape), false) })
	if x.givenUp != "" {
		synctest.Test(t, func(t *testing.T) { run(x.begin(t), true) }) // to record its calls
	}
	return ref
}

// TestMatrix plays every fault at every call of every exchange, continues forward and back, and compares the worlds.
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
			m := &matrixRun{
				matrixExchange: x, ref: x.undisturbed(t), seen: map[string]bool{},
				figures: map[string]int{"states": 0, "resumed": 0, "put-back": 0, "violations": 0},
			}
			points := m.points()
			m.figures["points"] = len(points)
			for _, p := range points {
				if m.strike(t, p); m.figures["violations"] > 5 {
					break
				}
			}
			for key, n := range m.figures {
				t.Attr(key, strconv.Itoa(n))
			}
		})
	}
}

// matrixRun is one exchange with all its faults.
type matrixRun struct {
	matrixExchange
	ref     matrixReference
	seen    map[string]bool // states from which it continued, forward and back
	figures map[string]int
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

// strike is strikeAt, earlier and earlier where there was no such call: two exchanges differ by a few looks, and by
// many where the machine is busy.
func (m *matrixRun) strike(t *testing.T, p matrixStrike) {
	err := m.strikeAt(t, p)
	for back := 3; err != nil && p.at > back && back < 100; back *= 4 {
		p.at -= back
		err = m.strikeAt(t, p)
	}
	if err != nil {
		m.fails(t, fmt.Sprintf("%s: %s at %d", m, p.fault.name, p.at), err.Error())
	}
}

// strikeAt plays one fault in the exchange, and continues from each resulting state, or says that it never struck.
func (m *matrixRun) strikeAt(t *testing.T, p matrixStrike) (never error) {
	fresh := false
	disturbed := func(t *testing.T) (l *matrixLab, hit *struck, where string, err error) {
		l = m.begin(t)
		hits, err := l.suffer(m.strategy, matrixProcess{back: m.givenUp != "", strikes: []matrixStrike{p}})
		hit = hits[0]
		where = fmt.Sprintf("%s: %s at %d, %s %s", m, p.fault.name, p.at, hit.call.Method, matrixPath(hit.call))
		return l, hit, where, err
	}
	synctest.Test(t, func(t *testing.T) {
		l, hit, where, err := disturbed(t)
		if !hit.came() {
			never = errors.Join(errors.New("never struck"), err)
			return
		}
		m.figures["fault:"+p.fault.name]++
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
		m.figures["states"]++
		m.goOn(t, l, where, p.fault, m.givenUp != "")
	})
	if fresh && m.givenUp == "" && m.strategy != cluster.Rollback {
		synctest.Test(t, func(t *testing.T) {
			l, _, where, _ := disturbed(t)
			m.goOn(t, l, where, p.fault, true)
		})
	}
	return never
}

func (m *matrixRun) fails(t *testing.T, where string, problems ...string) {
	for _, problem := range problems {
		m.figures["violations"]++
		t.Errorf("%s: %s", where, problem)
	}
}

// goOn completes the exchange, forward or back, as the next process would.
func (m *matrixRun) goOn(t *testing.T, l *matrixLab, where string, f matrixFault, back bool) {
	figure, what := "resumed", ": resumed"
	if back {
		figure, what = "put-back", ": put back"
	}
	m.figures[figure]++
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

// goOn is the next process. Only root can remove the VM of a killed creation: recast says so, and root does.
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
		return fmt.Errorf("there is no VM whose creation was cut off: %w", err)
	}
	return life.exchange(ctx, strategy, back)
}

// problems are the broken promises of the world so far.
func (l *matrixLab) problems() []string {
	l.look(record.Call{Method: "everything"})
	return slices.Concat(l.broken, l.unfreed())
}

// deviations are those from the world of an undisturbed exchange; leaves: Proxmox itself may leave a volume behind.
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

// differs compares the world with the expected final one. An exchange that was complete, or had not begun, can't be
// cancelled. Without quorum a delete frees the cloud-init drive before it fails; Proxmox recreates that at the VM's
// next start (qemu-server, Cloudinit.pm, commit_cloudinit_disk).
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

func (l *matrixLab) dump() string {
	l.settle()
	return withoutAttempts(l.text(world.RenewedByProxmox()...))
}

func (l *matrixLab) state() string {
	l.settle()
	return l.text(world.Renewed{Name: "digest"}, world.Renewed{Name: "vmgenid"}, world.Renewed{Name: "meta"}, world.Renewed{Name: "tasks"})
}

func (l *matrixLab) momentary() string {
	var text strings.Builder
	text.WriteString(l.text())
	for _, t := range l.world.Tasks() {
		if t.Running {
			text.WriteString(t.UPID)
		}
	}
	return text.String()
}

func (l *matrixLab) text(leaveOut ...world.Renewed) string {
	names := map[*world.Media]string{}
	for _, d := range l.disks {
		names[d.media] = d.name
	}
	text := l.world.Dump(func(m *world.Media) string {
		switch name := names[m]; {
		case name != "":
			return "the content of " + name
		case m.Size() == 0:
			return "blank"
		case bytes.Equal(m.Bytes(), matrixDiskImage()):
			return "the image"
		}
		return m.SHA256()
	}, leaveOut...)
	text = spareOptions.ReplaceAllStringFunc(withoutAttempts(text), sortedOptions)
	text = emptyStorage.ReplaceAllString(text, "") // it depends on who has listed it
	return madeUpUUID.ReplaceAllStringFunc(text, func(s string) string {
		if strings.HasSuffix(s, "-000000009011") {
			return s
		}
		return "smbios1: made up by Proxmox"
	})
}

var (
	// imageSize is the size of a prepared disk in a configuration, and ungrown one that is still the image's.
	imageSize = regexp.MustCompile(`,size=\w+([^\n]* = the image)`)
	ungrown   = regexp.MustCompile(`,size=\d+K[^\n]* = the image`)

	// givenUpVolume is the new system disk of a cancelled exchange. A prepared one that was not grown yet is smaller.
	givenUpVolume = regexp.MustCompile(`(?m)^  (?:99\d\d/)?vm-99\d\d-disk-\S+ \d+G = (?:blank|the image)\n`)
	smallVolume   = regexp.MustCompile(`(?m)^  (?:99\d\d/)?vm-99\d\d-disk-\S+ \d+K = the image\n`)

	// spareOptions are those of the new system disk of a cancelled exchange, as the record has them: with its size, in the order
	// of Proxmox, once the VM had it, and with backup=0 if that was all that the VM had of it. Nothing boots from it again.
	spareOptions = regexp.MustCompile(`"options":"[^"]*","givenUp":true`)

	parkingInPool  = regexp.MustCompile(`(?m)^(pool .*?)(?: 99\d\d)+\]`)
	parkingsWall   = regexp.MustCompile(`(?m)^firewall of VM 99.*\n`)
	volumeCount    = regexp.MustCompile(`(?m)^(storage .*): \d+ volumes$`)
	emptyStorage   = regexp.MustCompile(`(?m)^storage .*: 0 volumes\n`)
	cloudInitDrive = regexp.MustCompile(`(?m)^  \S*vm-\d+-cloudinit\S* 4M = blank\n`)
	cloudInitBlank = regexp.MustCompile(`(?m)(-cloudinit.*) = blank$`)
	madeUpUUID     = regexp.MustCompile(`smbios1: uuid=[0-9a-f-]{36}`)
)

func sortedOptions(entry string) string {
	options := strings.Split(strings.Split(entry, `"`)[3], ",")
	options = slices.DeleteFunc(options, func(o string) bool { return strings.HasPrefix(o, "size=") || o == "backup=0" })
	slices.Sort(options)
	return fmt.Sprint(options)
}

// withoutParking removes from a dump the parking VM of a cancelled exchange, with a closed record.
func withoutParking(dump string) string {
	var kept strings.Builder
	skip := false
	for line := range strings.Lines(dump) {
		if strings.HasPrefix(line, "VM ") || strings.HasPrefix(line, "storage ") {
			skip = strings.HasPrefix(line, "VM 99")
		}
		if !skip {
			kept.WriteString(line)
		}
	}
	text := smallVolume.ReplaceAllString(givenUpVolume.ReplaceAllString(kept.String(), ""), "")
	text = volumeCount.ReplaceAllString(parkingsWall.ReplaceAllString(text, ""), "$1")
	return parkingInPool.ReplaceAllString(text, "$1]")
}

func withoutCloudInit(dump string) string {
	dump = volumeCount.ReplaceAllString(cloudInitDrive.ReplaceAllString(dump, ""), "$1")
	return cloudInitBlank.ReplaceAllString(dump, "$1")
}

var errStruck = errors.New("struck by a fault")

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
	return slices.Concat(processFaults(), lateFaults(), serverFaults())
}

func processFaults() []matrixFault {
	return []matrixFault{
		{name: "kill-before", kills: true, before: func(life *matrixLife, _ record.Call) error { life.kill(); return errStruck }},
		{name: "kill-after", kills: true, after: func(life *matrixLife, _ record.Call) { life.kill() }},
	}
}

// serverFaults happen on the way to Proxmox, to the worker of a call or in its place, and to the host.
func serverFaults() []matrixFault {
	noDaemon := func(life *matrixLife, _ record.Call) error { life.world.SetDaemon(matrixHost, false); return nil }
	daemon := func(life *matrixLife) { life.world.SetDaemon(matrixHost, true) }
	killMove := func(after world.MoveStage) func(*matrixLife, record.Call) error {
		return func(life *matrixLife, _ record.Call) error { life.world.StopNextMove(after, false); return nil }
	}
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
		{name: "lost-acted", after: func(life *matrixLife, _ record.Call) { life.dialer.Cut(); life.dialer.Mend() }},
		{name: "lost-not-acted", before: func(*matrixLife, record.Call) error { return errStruck }},
		{name: "595-once", meets: onNode, before: noDaemon, after: func(life *matrixLife, _ record.Call) { daemon(life) }},
		{name: "595-for-40s", meets: onNode, before: func(life *matrixLife, call record.Call) error {
			life.later(40*time.Second, func() { daemon(life) })
			return noDaemon(life, call)
		}},
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

func onNode(call record.Call) bool { return strings.HasPrefix(matrixPath(call), "/nodes/") }

func matrixPath(call record.Call) string {
	path, _, _ := strings.Cut(strings.TrimPrefix(call.Path, "/api2/json"), "?")
	return path
}

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

func moves(call record.Call) bool      { return taskOf(call) == "qmmove" }
func startsTask(call record.Call) bool { return taskOf(call) != "" }

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

func (l *matrixLab) later(d time.Duration, f func()) {
	f = sync.OnceFunc(f)
	timer := time.AfterFunc(d, f)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mends = append(l.mends, func() { timer.Stop(); f() })
}

type matrixStrike struct {
	fault matrixFault
	at    int // from 1
}

type struck struct {
	matrixStrike
	seen int         // calls that count
	call record.Call // that it struck; its zero value: none yet
}

func (s *struck) came() bool { return s.call.Seq > 0 }

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

// schedule is a random story of one exchange: processes that continue it, forward or back, each into a fault.
type schedule struct {
	matrixExchange
	lives []matrixProcess
	back  bool // the last, undisturbed process cancels
}

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

// TestMatrixSchedules draws exchanges with several faults; each must end in one of the two final worlds.
func TestMatrixSchedules(t *testing.T) {
	longParts(t)
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

// suffer runs one process into its faults, whose effects are repaired before the next, unless the process is hasty.
func (l *matrixLab) suffer(strategy cluster.Strategy, p matrixProcess) ([]*struck, error) {
	ctx, life := l.live(l.t.Context())
	hits := life.strike(p.strikes...)
	err := life.exchange(ctx, strategy, p.back)
	life.cancel()
	if !p.hasty {
		l.settle()
	}
	return hits, err
}

// TestMatrixSees violates the invariants by hand: the matrix must detect it.
func TestMatrixSees(t *testing.T) {
	t.Parallel()
	value := func(l *matrixLab, key string) string { return valueOf(l.vm())(l.t).Config[key] }
	park := func(l *matrixLab) error {
		must(l.t, l.world.DefineVM(matrixHost, matrixParking, map[string]string{"memory": "16"}, nil))
		return l.done(l.world.MoveDisk("root@pam", matrixHost, world.MoveRequest{ID: matrixVM, Disk: "scsi2", Target: matrixParking}))
	}
	type story struct {
		do   func(l *matrixLab) error
		want string
	}
	eachInBubble(t, map[string]story{
		"nothing": {func(*matrixLab) error { return nil }, ""},
		"a volume is freed": {func(l *matrixLab) error {
			volid, _, _ := strings.Cut(value(l, "efidisk0"), ",")
			return l.done(l.world.DeleteVolume("root@pam", matrixHost, volid))
		}, "efidisk0 of VM 9011 was freed"},
		"a volume is in two VMs": {func(l *matrixLab) error {
			return l.world.DefineVM(matrixHost, 9012, map[string]string{"scsi0": value(l, "scsi2")}, nil)
		}, "scsi2 of VM 9011 is in several VMs that may run: [9011 9012]"},
		"a volume is in a VM and on the parking VM": {func(l *matrixLab) error {
			return l.world.DefineVM(matrixHost, matrixParking, map[string]string{"scsi0": value(l, "scsi2")}, nil)
		}, "scsi2 of VM 9011 has several names: [9011-scsi2 9900-scsi0]"},
		"a volume loses its name": {func(l *matrixLab) error {
			l.world.StopNextMove(world.AfterSource, false)
			return park(l)
		}, "has no name, and no record says that it is on its way"},
		"a VM runs without a disk": {func(l *matrixLab) error {
			must(l.t, park(l))
			return l.done(l.world.Start("root@pam", matrixHost, matrixVM))
		}, "VM 9011 runs without scsi2 of VM 9011, which is parked"},
	}, func(t *testing.T, s story) {
		shape := usualShape(bothDisks, cluster.Recreate)
		shape.kept, shape.ha = false, false
		l := newMatrixLab(t, shape)
		l.look(record.Call{Method: "before"})
		must(t, s.do(l))
		l.look(record.Call{Method: "after"})
		seen := strings.Join(append(l.broken, l.unfreed()...), "\n")
		require(t, (s.want != "" || seen == "") && strings.Contains(seen, s.want), "seen %q, want %q", seen, s.want)
	})
}
