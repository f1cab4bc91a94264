// Every process of these tests does its own handshakes, and a third of their cost would be
// ML-KEM, which is not under test.
//
//go:debug tlsmlkem=0

package simtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

var (
	storiesSlice = flag.Uint64("stories.slice", 1, "run only every that-many-th long story")
	storiesEvery = flag.Bool("stories.every", false, "and those that are in every slice")
	storiesSeed  = flag.Uint64("stories.seed", 1, "chooses which of them: so many seeds in a row choose all")
)

// everySlice are stories that are in every slice of make stories: of everything that recast does one at least.
var everySlice = []string{
	"TestAFileIsShown", "TestAFileThatCannotBeApplied", "TestAFileWithoutEtcdsVolume", "TestAFirewallIsCarriedOver",
	"TestAHoldersDisksAreRefusedUntilItIsNamed", "TestAKilledFirstBootIsNoProof", "TestAMachineOfOmni",
	"TestAPodsDiskIsKnownByItsPersistentVolume", "TestAResetMachineGetsItsOwnFile", "TestASelectorIsSaid",
	"TestAVMUnderHA", "TestAVolumeInTheSlotsOfTwoVMs", "TestAVolumeThatNoDiskCanBe", "TestAnImageThatBootsByKexecOnly",
	"TestBackup", "TestBackupIsWaitedOut", "TestBootOrderThatNoStrategyMends", "TestCephOfHostsBeforeANode",
	"TestClusterFromNothing", "TestConfigsAreForgotten", "TestDamagedConfigIsNotApplied",
	"TestDoctorForATokenWithNothing", "TestEncryptionOfAFile", "TestEntryOfTheBootBefore", "TestEveryRefusal",
	"TestFewPrivilegesSuffice", "TestFilesThatKeepAVolumeFromWorking", "TestHandOverIsRemembered", "TestHooks",
	"TestHooksOfAKilledRun", "TestInitNewAgain", "TestInitNewHosts", "TestInitRefuses", "TestItsPodIsEvictedMeanwhile",
	"TestKernelArgumentsOfTheConfiguration", "TestKubeSpan", "TestLINSTOREvictsWithoutHold", "TestLateDelete",
	"TestLateShutdown", "TestLateStart", "TestNewerRecastHasBeenHere", "TestNotices", "TestNoticesThatDoNotArrive",
	"TestOutsideClients", "TestParkingOnEveryHost", "TestParkingVMWithADamagedRecord", "TestParkingVMWithOtherNotes",
	"TestPrepared", "TestPreparedByImager", "TestPreparedGone", "TestProvedBeforeTheDelete", "TestPublishAndPrune",
	"TestRecover", "TestRecreateOnEveryBus", "TestRecreatedInItsPool", "TestRehearse",
	"TestRestoreOfTheOnlyControlPlane", "TestRestrictedTags", "TestRetention", "TestRollOfASavedPlan",
	"TestRollWithLostAnswers", "TestRollback", "TestSignedInstallers", "TestStuckVolumesOfEveryStrategy",
	"TestSurgeRefused", "TestSwappedDisksWithoutSerialsGetNoConfiguration", "TestTakeOver", "TestTelemetryOfARoll",
	"TestTheVMIDIsTaken", "TestTwoRollsAtOnce", "TestTypeInit", "TestUndoOfAMachineOfOmni",
	"TestUndoWithTwinParkingVMs", "TestUnfinishedWorkOfAnotherFile", "TestUpgradeKubernetesRefuses",
	"TestUserVolumeIsAwaited", "TestWhatADeleteWouldDropIsKeptByReimage", "TestWhatIsOnTheSystemDiskIsKeptByInPlace",
}

// TestMain lets garbage lie: each lab is dropped as a whole, and a sixth of the time would go into sweeping up.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	m.Run()
}

// longParts leaves a test to make stories, so that make test stays quick. Its subtests say whether a slice has them.
func longParts(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
}

// long leaves a test, with all its subtests, to the slices of make stories and make race.
func long(t *testing.T) {
	longParts(t)
	if !inSlice(t.Name(), *storiesSlice, *storiesSeed) {
		t.Skip("not in this slice: SLICE=all")
	}
}

// longRow leaves a subtest that has to prepare a world for its parts to the slices, and returns what leaves each of its
// parts to those of them that have the subtest: else every slice would prepare every world.
func longRow(t *testing.T) (part func(t *testing.T)) {
	longParts(t)
	rows, parts := rowsAndParts(*storiesSlice)
	in := func(t *testing.T, slice, seed uint64) {
		if !chosen(t.Name(), slice, seed) {
			t.Skip("not in this slice: SLICE=all")
		}
	}
	in(t, rows, *storiesSeed)
	return func(t *testing.T) { in(t, parts, *storiesSeed/rows) }
}

// rowsAndParts: a slice has every rows-th row, and of that every parts-th part.
func rowsAndParts(slice uint64) (rows, parts uint64) {
	rows = uint64(math.Sqrt(float64(slice)))
	return rows, slice / rows
}

var sliced sync.Map

// inSlice says whether a slice has a test. The subtests of one that it has are in it, too.
func inSlice(name string, slice, seed uint64) bool {
	top, _, _ := strings.Cut(name, "/")
	if *storiesEvery && slices.Contains(everySlice, top) {
		return true
	}
	for i, c := range name {
		if _, ok := sliced.Load(name[:i]); ok && c == '/' {
			return true
		}
	}
	if !chosen(name, slice, seed) {
		return false
	}
	sliced.Store(name, true)
	return true
}

func chosen(name string, slice, seed uint64) bool {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(name)) // never fails
	return (sum.Sum64()>>16+seed)%slice == 0
}

// TestListsOfTests: every slice has only tests that are there; make crash runs every test of which -crash.all and
// -crash.slice choose kills, or nothing would ever play all of its kills, and names none that is not there.
func TestListsOfTests(t *testing.T) {
	t.Parallel()
	recipe := regexp.MustCompile(`(?m)^crash:.*\n.*-run '([^']+)'`).FindSubmatch(readFile(t, "../../../Makefile"))
	mustBe(t, recipe != nil, "make crash runs no tests")
	runs := regexp.MustCompile(string(recipe[1]))
	tests, chooses := choosingTests(t)
	for _, name := range everySlice {
		require(t, slices.Contains(tests, name), "every slice has %s, and there is no such test", name)
	}
	for _, name := range chooses {
		require(t, runs.MatchString(name), "make crash does not run %s", name)
	}
	for _, each := range namesIn(string(recipe[1])) {
		require(t, slices.ContainsFunc(tests, regexp.MustCompile(each).MatchString), "make crash names %s, and there is no such test", each)
	}
	require(t, len(chooses) >= 15, "only %d tests choose kills: %q", len(chooses), chooses)
}

// namesIn are the alternatives of an expression, in which a group has more of them: "Test(A|B)Killed".
func namesIn(expression string) []string {
	group := regexp.MustCompile(`(\w*)\(([^)]+)\)(\w*)`)
	return strings.Split(group.ReplaceAllStringFunc(expression, func(all string) string {
		m := group.FindStringSubmatch(all)
		return m[1] + strings.ReplaceAll(m[2], "|", m[3]+"|"+m[1]) + m[3]
	}), "|")
}

// choosingTests are the tests of this package, and those that choose kills, themselves or by a function.
func choosingTests(t *testing.T) (tests, chooses []string) {
	calls := map[string][]string{} // words in each function
	for _, file := range valueOf(filepath.Glob("*_test.go"))(t) {
		for _, text := range strings.Split(string(readFile(t, file)), "\nfunc ")[1:] {
			end := "\n}\n"
			if head, _, _ := strings.Cut(text, "\n"); strings.HasSuffix(head, "}") {
				end = "\n"
			}
			text, _, _ = strings.Cut(text, end)
			words := regexp.MustCompile(`\w+`).FindAllString(regexp.MustCompile(`^\([^)]*\) `).ReplaceAllString(text, ""), -1)
			calls[words[0]] = append(calls[words[0]], words[1:]...)
		}
	}
	chosen := map[string]bool{"chosenKills": true, "crashAll": true}
	for grew := true; grew; {
		grew = false
		for name, called := range calls {
			if !chosen[name] && slices.ContainsFunc(called, func(c string) bool { return chosen[c] }) {
				chosen[name], grew = true, true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		if !strings.HasPrefix(name, "Test") || name == "TestMain" || name == "TestListsOfTests" {
			continue
		}
		if tests = append(tests, name); chosen[name] {
			chooses = append(chooses, name)
		}
	}
	return tests, chooses
}

var errKilled = errors.New("this run was killed")

// deed is what a client is told to do.
type deed = func(ctx context.Context, c *Client) error

func rolls(policy planning.Policy) deed {
	return func(ctx context.Context, c *Client) error { return errOf(c.Roll(ctx, policy)) }
}

func rollsAs(run string, policy planning.Policy) deed {
	return func(ctx context.Context, c *Client) error {
		c.Run = run
		return errOf(c.Roll(ctx, policy))
	}
}

// point is a changing request or a journal write at which a run can be killed: the nth of that name.
// Its number among all of a run depends on how often the run said that it still holds its claim.
type point struct {
	name string
	nth  int
	at   int // its number in an undisturbed run, from 1
}

func (p point) String() string { return fmt.Sprintf("point %d, %q", p.at, p.name) }

// beats is how many of a run's writes of its claim are points: how many there are is a matter of time. The
// names of these points begin with beat.
const beats, beat = 2, "claim "

// around is how many points later a run is killed that has not come to its point: of two nodes that are made
// at the same time, now one gets the lower number, now the other.
const around = 5

func nameOf(c record.Call) string {
	name := c.Proto + " " + c.Method + " " + c.Path
	if c.Method == "PUT" && strings.Contains(c.Params["description"], "recast-claim: ") {
		return beat + name
	}
	return name
}

func pointsOf(names []string) (points []point) {
	seen := map[string]int{}
	for _, name := range names {
		seen[name]++
		if seen[name] > beats && strings.HasPrefix(name, beat) {
			continue
		}
		points = append(points, point{name, seen[name], len(points) + 1})
	}
	return points
}

func namedPoint(t testing.TB, points []point, text string) point {
	i := slices.IndexFunc(points, func(p point) bool { return strings.Contains(p.name, text) })
	mustBe(t, i >= 0, "no point is named %q: %q", text, points)
	return points[i]
}

// killer counts the points at which a run can die, and kills it at one of them: right after a server has acted on a
// changing request and before the answer is sent, or around a journal write.
type killer struct {
	client *Client
	cancel context.CancelFunc
	die    point // there; its zero value: never

	mu     sync.Mutex
	names  []string // of the points that were passed
	seen   map[string]int
	passed int // points, as pointsOf counts them
	dead   bool
	broken []string // promises found broken after some call
}

// watch makes every changing request and journal write of the client a point.
func (l *Lab) watch(c *Client, die point, cancel context.CancelFunc) *killer {
	k := &killer{client: c, die: die, cancel: cancel, seen: map[string]int{}}
	l.Recorder.Hooks(nil, func(call record.Call) {
		if call.Mutation {
			_ = k.pass(nameOf(call)) // the client is cut: there is no answer
		}
		if broken := l.World.Violations(); len(broken) > 0 {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.broken = append(k.broken, fmt.Sprintf("after %s %s: %s", call.Method, call.Path, strings.Join(broken, "; ")))
		}
	})
	c.JournalSync = func(at string) error { return k.pass("journal " + at) }
	return k
}

func (k *killer) pass(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		return errKilled
	}
	k.names = append(k.names, name)
	k.seen[name]++
	if k.seen[name] <= beats || !strings.HasPrefix(name, beat) {
		k.passed++
	}
	there := name == k.die.name && k.seen[name] == k.die.nth
	if !there && (k.die == point{} || k.passed < k.die.at+around) {
		return nil
	}
	k.dead = true
	k.client.Kill()
	k.cancel()
	return errKilled
}

// carryOut has a client do something while it is watched.
func (l *Lab) carryOut(ctx context.Context, die point, do deed) (*killer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := l.Client()
	k := l.watch(c, die, cancel)
	err := do(ctx, c)
	l.Recorder.Hooks(nil, nil)
	k.mu.Lock()
	defer k.mu.Unlock()
	return k, err
}

// finish has a client do something undisturbed, without a broken promise, and returns its points.
func (l *Lab) finish(t *testing.T, do deed) (points []point, broken int) {
	k, err := l.carryOut(t.Context(), point{}, do)
	mustBe(t, err == nil, "%sthe command failed: %s", l.died, message(err))
	return pointsOf(k.names), l.tellBroken(t, k)
}

// diesAt has a client do something, and kills it at a point. It returns the number of broken promises.
func (l *Lab) diesAt(t *testing.T, at point, do deed) (broken int) {
	k, err := l.carryOut(t.Context(), at, do)
	if !k.dead {
		t.Logf("%q came %d times, not %d: %q", at.name, k.seen[at.name], at.nth, k.names)
	}
	requireKilled(t, k.dead, err, at.String())
	l.died = fmt.Sprintf("killed at %s: ", at)
	return l.tellBroken(t, k)
}

func (l *Lab) tellBroken(t *testing.T, k *killer) int {
	requireNone(t, k.broken, l.died+"promises broken")
	return len(k.broken)
}

// itself is the lab of a world: a *Lab, or what embeds one.
func (l *Lab) itself() *Lab { return l }

// killGrid is a command that is killed at points of every kind, in worlds of their own, and what comes of it.
type killGrid[W interface{ itself() *Lab }] struct {
	begin func(t *testing.T) W // the world before the command
	do    deed                 // the command

	// goOn is what follows the kill, or else then; neither: the same command again. It says whether the end is another one.
	goOn func(t *testing.T, w W, at point) (elsewhere bool)
	then deed

	// end fails the test unless the world is as it has to be; its dump is the same after a kill as undisturbed.
	end func(t *testing.T, w W) (dump string)

	choose  func(t *testing.T, points []point) []point // such as chosenPoints, named here for TestListsOfTests
	journal bool                                       // it is never lost; else every second kill loses it
	broken  *atomic.Int64                              // the number of broken promises is added to it; may be nil
}

func (g killGrid[W]) killEverywhere(t *testing.T) {
	if g.then == nil {
		g.then = g.do
	}
	var points []point
	var undisturbed string
	synctest.Test(t, func(t *testing.T) {
		w := g.begin(t)
		points, _ = w.itself().finish(t, g.do)
		undisturbed = g.end(t, w)
	})
	for _, at := range g.choose(t, points) {
		t.Run(strconv.Itoa(at.at), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { g.kill(t, at, undisturbed) })
		})
	}
}

func (g killGrid[W]) kill(t *testing.T, at point, undisturbed string) {
	w := g.begin(t)
	lab := w.itself()
	broken := lab.diesAt(t, at, g.do)
	t.Logf("killed at %s", at)
	if !g.journal && at.at%2 == 0 {
		lab.loseJournal()
	}
	if g.goOn == nil {
		_, more := lab.finish(t, g.then)
		broken += more
	} else if g.goOn(t, w, at) {
		return
	}
	if g.broken != nil {
		g.broken.Add(int64(broken))
	}
	requireSame(t, undisturbed, g.end(t, w), "killed at %s: the world differs from an undisturbed one", at)
}

func everyPoint(t *testing.T, points []point) []point {
	expectKills(t, len(points))
	return points
}

// killCounts are the kills that have happened so far in tests that expect some, by the test's name.
var killCounts sync.Map

// expectKills has a test fail if fewer kills happen in it and in its subtests. Those that do are its figure.
func expectKills(t *testing.T, want int) {
	var n atomic.Int64
	_, twice := killCounts.LoadOrStore(t.Name(), &n)
	mustBe(t, !twice, "kills are expected twice")
	t.Cleanup(func() {
		killCounts.Delete(t.Name())
		t.Attr("killed", strconv.FormatInt(n.Load(), 10))
		someSubtests := strings.Contains(flag.Lookup("test.run").Value.String(), "/")
		require(t, t.Failed() || someSubtests || int(n.Load()) >= want, "%d kills have happened, want %d", n.Load(), want)
	})
}

// requireKilled fails unless a client was killed at a place, and ended as a killed one does.
func requireKilled(t testing.TB, killed bool, err error, where string) {
	mustBe(t, killed, "it was not killed at %s: %v", where, err)
	mustBe(t, err != nil, "killed at %s, yet it says that it succeeded", where)
	mustBe(t, byKill(err), "killed at %s, yet it ended otherwise: %v", where, err)
	for name := t.Name(); name != ""; name = name[:max(0, strings.LastIndex(name, "/"))] {
		if n, ok := killCounts.Load(name); ok {
			n.(*atomic.Int64).Add(1)
			return
		}
	}
}

// byKill says whether an error is what becomes of a client whose context has ended, and whose connections
// and journal are gone. It gives its claim back in a context that has not ended, but cannot connect.
func byKill(err error) bool {
	release := strings.HasPrefix(message(err), "give the claim of cluster") && errors.Is(err, context.DeadlineExceeded)
	return errors.Is(err, context.Canceled) || errors.Is(err, errKilled) || strings.Contains(message(err), net.ErrClosed.Error()) || release
}

// chosenKills is the part of a test's kills that this run is for, of which each kills kills times: all with
// -crash.all, -crash.slice of them, or the usual ones if there are some. make crash has all tests that use it: TestListsOfTests.
func chosenKills[K any](t *testing.T, all []K, kills int, usual func(K) bool) []K {
	part := all
	switch {
	case *crashAll:
	case *crashSlice > 0:
		part = drawn(all, *crashSlice, *crashSeed, t.Name())
	default:
		part = slices.DeleteFunc(slices.Clone(all), func(k K) bool { return usual == nil || !usual(k) })
	}
	mustBe(t, len(part) != 0, "none of %d kills is chosen", len(all))
	t.Attr("points", strconv.Itoa(len(all)))
	expectKills(t, kills*len(part))
	return part
}

// chosenPoints are chosenKills of the points of an undisturbed run: one of them without a slice.
func chosenPoints(t *testing.T, points []point) []point {
	one := drawn(points, 1, *crashSeed, t.Name())
	return chosenKills(t, points, 1, func(p point) bool { return len(one) > 0 && p == one[0] })
}

// whenStarted calls f once, when a step whose path ends in suffix starts.
func whenStarted(suffix string, f func()) func(step.Event) {
	var once sync.Once
	return func(e step.Event) {
		if e.Status == step.Started && strings.HasSuffix("/"+e.Path, "/"+suffix) {
			once.Do(f)
		}
	}
}

func allOf(hear ...func(step.Event)) func(step.Event) {
	return func(e step.Event) {
		for _, h := range hear {
			h(e)
		}
	}
}

// moment is when a process is killed: before or after a step, around a request, or before a change of its journal.
type moment struct {
	step    string // suffix of its path
	after   bool   // after the step
	server  string // suffix of "path method", or of a method: right after a server has acted on it
	with    string // "parameter=how it begins" of the request
	unsent  bool   // the server does not act on it
	journal string // the change
}

func before(step string) moment   { return moment{step: step} }
func after(step string) moment    { return moment{step: step, after: true} }
func onServer(call string) moment { return moment{server: call} }

func (m moment) String() string {
	switch {
	case m.server != "":
		return "on " + m.server[strings.LastIndex(m.server, "/")+1:]
	case m.after:
		return "after " + m.step
	}
	return "before " + m.step + m.journal
}

func (m moment) is(e step.Event) bool {
	status := map[bool]step.Status{false: step.Started, true: step.Done}[m.after]
	return m.step != "" && e.Status == status && strings.HasSuffix("/"+e.Path, "/"+m.step)
}

func (m moment) isCall(c record.Call) bool {
	path, _, _ := strings.Cut(c.Path, "?")
	if name, begins, with := strings.Cut(m.with, "="); with && !strings.HasPrefix(c.Params[name], begins) {
		return false
	}
	return strings.HasSuffix(path+" "+c.Method, m.server) || strings.HasSuffix(c.Method, m.server)
}

// killedAt runs do as a process that is killed at that moment: it sends and writes nothing more.
func (c *Client) killedAt(t testing.TB, m moment, do func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var dead atomic.Bool
	die := func() {
		if dead.CompareAndSwap(false, true) {
			c.Kill()
			cancel()
		}
	}
	c.Emit = func(e step.Event) {
		if m.is(e) {
			die()
		}
	}
	c.JournalSync = func(point string) error {
		if point == m.journal {
			die()
		}
		if dead.Load() {
			return errKilled
		}
		return nil
	}
	if m.server != "" {
		c.lab.Recorder.Hooks(func(call record.Call) error {
			if !m.unsent || !m.isCall(call) {
				return nil
			}
			die()
			return errKilled
		}, func(call record.Call) {
			if !m.unsent && m.isCall(call) {
				die()
			}
		})
		defer c.lab.Recorder.Hooks(nil, nil)
	}
	err := do(ctx)
	requireKilled(t, dead.Load(), err, m.String())
}

func (c *Client) rollKilled(m moment, policy planning.Policy) { c.killedAt(c.lab.t, m, c.roll(policy)) }

func (l *Lab) rollKilledWhen(at string) { l.Client().rollKilled(before(at), planning.Policy{}) }

func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, f)
}

func eachInBubble[S any](t *testing.T, stories map[string]S, play func(t *testing.T, story S)) {
	for name, s := range stories {
		t.Run(name, func(t *testing.T) { inBubble(t, func(t *testing.T) { play(t, s) }) })
	}
}

func (c *Client) roll(policy planning.Policy) func(context.Context) error {
	return func(ctx context.Context) error { return errOf(c.Roll(ctx, policy)) }
}

func (l *Lab) loseJournal()                     { must(l.t, os.RemoveAll(filepath.Join(l.Dir, ".recast"))) }
func policyFor(nodes ...string) planning.Policy { return planning.Policy{Only: nodes} }

func storiesOf[S any](all ...S) map[string]S {
	stories := map[string]S{}
	for _, s := range all {
		stories[fmt.Sprint(s)] = s
	}
	return stories
}

// requireUpgraded fails unless the node is in sync and serves, and every other one is as stale as before.
func (l *Lab) requireUpgraded(t *testing.T, node string) {
	requireInSync(t, l, l.others(node)...)
	l.requireServing(node)
}

func (l *Lab) planOf(c *Client, node string, policy planning.Policy) planning.NodePlan {
	plan := valueOf(c.Plan(l.t.Context(), policy))(l.t)
	i := slices.IndexFunc(plan.Nodes, func(n planning.NodePlan) bool { return n.Node == node })
	mustBe(l.t, i >= 0, "the plan leaves %s out: %+v", node, plan.Nodes)
	return plan.Nodes[i]
}

func (l *Lab) others(but string) []string {
	names := ofEach(l.Nodes, func(n sim.Node) string { return n.Name })
	return slices.DeleteFunc(names, func(n string) bool { return n == but })
}

const firstRun, secondRun, thirdRun = "20000101-0000-0001", "20000101-0000-0002", "20000101-0000-0003"

func (l *Lab) as(run string) *Client {
	c := l.Client()
	c.Run = run
	return c
}

// requireKept fails unless so many old system disks are parked, and no volume is stray. Cancelled ones do not count.
func (l *Lab) requireKept(want int) {
	res := l.status()
	kept := slices.DeleteFunc(slices.Clone(res.Kept), func(k pipeline.Kept) bool { return k.GivenUp })
	require(l.t, len(res.Open) == 0 && len(res.Marked) == 0 && len(kept) == want && res.Claim == nil,
		"status %+v; want %d kept disks and nothing open", res, want)
	requireNone(l.t, l.strays(), "volumes that no configuration names")
}

// strays are the volumes on the disk storage that no VM's configuration names.
func (l *Lab) strays() []string {
	shared := slices.ContainsFunc(l.World.Storages("pve1"), func(s world.StorageStatus) bool { return s.ID == sim.DiskStorage && s.Shared })
	on := func(host, volid string) string {
		if shared {
			return volid
		}
		return host + " " + volid
	}
	named := map[string]bool{}
	for _, vm := range l.World.VMs() {
		for _, value := range vm.Config {
			volid, _, _ := strings.Cut(value, ",")
			named[on(vm.Host, volid)] = true
		}
	}
	var out []string
	for _, host := range l.World.Hosts() {
		for _, v := range valueOf(l.World.Volumes(sim.DiskStorage, host))(l.t) {
			if !named[on(host, v.Volid)] {
				out = append(out, v.Volid)
			}
		}
	}
	return out
}

func TestKillsAreCounted(t *testing.T) {
	t.Parallel()
	require(t, !byKill(errors.New("the disk is full")) && !byKill(nil) && byKill(errors.Join(errors.New("x"), context.Canceled)),
		"byKill takes another error for a kill")
	names := []string{"a", "b", "a", beat + "1", beat + "1", beat + "1", "c"}
	want := []point{{"a", 1, 1}, {"b", 1, 2}, {"a", 2, 3}, {beat + "1", 1, 4}, {beat + "1", 2, 5}, {"c", 1, 6}}
	got := pointsOf(names)
	require(t, slices.Equal(got, want), "points %+v, want %+v", got, want)
}

// TestSlices: a story is in one slice of so many.
func TestSlices(t *testing.T) {
	t.Parallel()
	const slice = 7
	for i := range 500 {
		name, in := fmt.Sprintf("TestSlices%d", i), 0
		for seed := range uint64(slice) {
			if inSlice(name, slice, seed) {
				in++
			}
			parted := inSlice(name+"/part", slice, seed)
			_, whole := sliced.LoadAndDelete(name)
			require(t, !whole || parted, "slice %d has %s without its part", seed, name)
			sliced.Delete(name + "/part")
		}
		require(t, in == 1, "%s is in %d of %d slices", name, in, slice)
		rows, parts := rowsAndParts(slice)
		in = 0
		for seed := range rows * parts {
			if chosen(name, rows, seed) && chosen(name+"/part", parts, seed/rows) {
				in++
			}
		}
		require(t, in == 1, "a part of %s is in %d slices of %d", name, in, rows*parts)
	}
}
