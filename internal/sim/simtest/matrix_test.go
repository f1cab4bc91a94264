package simtest

import (
	"bytes"
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
const (
	vmDeleted   = "vm-deleted"
	allAttached = "all-attached"
)

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
	t.Helper()
	l := newMatrixLab(t, x.shape)
	if x.givenUp != "" {
		l.killAt(x.strategy, x.givenUp)
	}
	return l
}

func (l *matrixLab) killAt(strategy cluster.Strategy, point string) {
	l.t.Helper()
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
	t.Helper()
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
		requireSame(t, withoutParking(ref.start), withoutParking(ref.putBack),
			"put back, the VM is not what it was (-before +now)")
	})
	synctest.Test(t, func(t *testing.T) { ref.replaced = run(newMatrixLab(t, x.shape), false) })
	if x.givenUp != "" {
		synctest.Test(t, func(t *testing.T) { run(x.begin(t), true) }) // to record its calls
	}
	return ref
}

// TestMatrix plays every fault at every call of every exchange, each in its own world, continues from the resulting
// state, forward and back, and compares the world with that of the undisturbed exchange.
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
	t.Helper()
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
	t.Helper()
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
	t.Helper()
	for _, problem := range problems {
		m.figures["violations"]++
		t.Errorf("%s: %s", where, problem)
	}
}

// goOn completes the exchange, forward or back, as the next process would.
func (m *matrixRun) goOn(t *testing.T, l *matrixLab, where string, f matrixFault, back bool) {
	t.Helper()
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

// dump is the world as text, without what Proxmox regenerates.
func (l *matrixLab) dump() string {
	l.settle()
	return withoutAttempts(l.text(world.RenewedByProxmox()...))
}

// state is the part of the world that the next process can observe, as text.
func (l *matrixLab) state() string {
	l.settle()
	return l.text(world.Renewed{Name: "digest"}, world.Renewed{Name: "vmgenid"}, world.Renewed{Name: "meta"}, world.Renewed{Name: "tasks"})
}

// momentary is the present world, including work in progress.
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

// withoutParking removes from a dump the parking VM that a cancelled exchange leaves, with
// a closed record and no more disks than before.
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
