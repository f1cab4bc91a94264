// Every process of these tests does its own handshakes, and a third of their cost would be
// ML-KEM, which is not under test.
//
//go:debug tlsmlkem=0

package simtest

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"math"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
)

var (
	storiesSlice = flag.Uint64("stories.slice", 1, "run only every that-many-th long story")
	storiesEvery = flag.Bool("stories.every", false, "and those that are in every slice")
	storiesSeed  = flag.Uint64("stories.seed", 1, "chooses which of them: so many seeds in a row choose all")
)

// everySlice are stories that are in every slice of make stories: of everything that
// recast does to a cluster one at least.
var everySlice = []string{
	"TestAFileIsShown",
	"TestAFileThatCannotBeApplied",
	"TestAFirewallIsCarriedOver",
	"TestAHoldersDisksAreRefusedUntilItIsNamed",
	"TestAPodsDiskIsKnownByItsPersistentVolume",
	"TestAVMUnderHA",
	"TestBackupIsWaitedOut",
	"TestConfigsAreForgotten",
	"TestDamagedConfigIsNotApplied",
	"TestDoctorForATokenWithNothing",
	"TestEveryRefusal",
	"TestFewPrivilegesSuffice",
	"TestHooks",
	"TestHooksOfAKilledRun",
	"TestInitRefuses",
	"TestItsPodIsEvictedMeanwhile",
	"TestLateDelete",
	"TestLateShutdown",
	"TestLateStart",
	"TestOutsideClients",
	"TestParkingOnEveryHost",
	"TestPublishAndPrune",
	"TestRecover",
	"TestRecreateOnEveryBus",
	"TestRecreatedInItsPool",
	"TestRetention",
	"TestRollOfASavedPlan",
	"TestRollWithLostAnswers",
	"TestRollback",
	"TestSwappedDisksWithoutSerialsGetNoConfiguration",
	"TestTakeOver",
	"TestTelemetryOfARoll",
	"TestTheVMIDIsTaken",
	"TestTwoRollsAtOnce",
	"TestUnfinishedWorkOfAnotherFile",
	"TestUpgradeKubernetesRefuses",
	"TestUserVolumeIsAwaited",
	"TestWhatADeleteWouldDropIsKeptByReimage",
	"TestWhatIsOnTheSystemDiskIsKeptByInPlace",
}

// TestMain lets garbage lie: each test has a lab of its own, which is dropped as
// a whole, and a sixth of the time would go into sweeping up.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	m.Run()
}

// longParts leaves a test to make stories, so that make test stays quick. Which of its
// subtests are in a slice is for each of them to say, by long.
func longParts(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: make stories")
	}
}

// long leaves a test, with all its subtests, to the slices of make stories and make race.
func long(t *testing.T) {
	t.Helper()
	longParts(t)
	if !inSlice(t.Name(), *storiesSlice, *storiesSeed) {
		t.Skip("not in this slice: SLICE=all")
	}
}

// longRow leaves a subtest that has to prepare a world for its parts to the slices, and returns what leaves each of its
// parts to those of them that have the subtest: else every slice would prepare every world.
func longRow(t *testing.T) (part func(t *testing.T)) {
	t.Helper()
	longParts(t)
	rows, parts := rowsAndParts(*storiesSlice)
	in := func(t *testing.T, slice, seed uint64) {
		t.Helper()
		if !chosen(t.Name(), slice, seed) {
			t.Skip("not in this slice: SLICE=all")
		}
	}
	in(t, rows, *storiesSeed)
	return func(t *testing.T) {
		t.Helper()
		in(t, parts, *storiesSeed/rows)
	}
}

// rowsAndParts divides a slice: every rows-th row, and of that every parts-th part.
func rowsAndParts(slice uint64) (rows, parts uint64) {
	rows = uint64(math.Sqrt(float64(slice)))
	return rows, slice / rows
}

// sliced are the tests that are in the slice.
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

// chosen says whether a name is in a slice, by its sum.
func chosen(name string, slice, seed uint64) bool {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(name)) // never fails
	return (sum.Sum64()>>16+seed)%slice == 0
}

// TestSlices holds what is in no slice, or in two, and names in every slice that are no test's.
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
	sources := valueOf(filepath.Glob("*_test.go"))(t)
	var all strings.Builder
	for _, name := range sources {
		text := readFile(t, name)
		all.Write(text)
	}
	for _, name := range everySlice {
		require(t, strings.Contains(all.String(), "\nfunc "+name+"(t *testing.T) {"),
			"every slice has %s, and there is no such test", name)
	}
}

// TestMakeCrash: make crash runs every test of which -crash.all and -crash.slice choose kills, and names
// none that is not there. Else nothing would ever play all of its kills.
func TestMakeCrash(t *testing.T) {
	t.Parallel()
	makefile := readFile(t, "../../../Makefile")
	recipe := regexp.MustCompile(`(?m)^crash:.*\n.*-run '([^']+)'`).FindSubmatch(makefile)
	mustBe(t, recipe != nil, "make crash runs no tests")
	runs := regexp.MustCompile(string(recipe[1]))
	tests, chooses := choosingTests(t)
	for _, name := range chooses {
		require(t, runs.MatchString(name), "make crash does not run %s", name)
	}
	for _, each := range namesIn(string(recipe[1])) {
		re := regexp.MustCompile(each)
		require(t, slices.ContainsFunc(tests, re.MatchString), "make crash names %s, and there is no such test", each)
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
	t.Helper()
	files := valueOf(filepath.Glob("*_test.go"))(t)
	calls := map[string][]string{}
	for _, name := range files {
		file := valueOf(parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution))(t)
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					calls[fn.Name.Name] = append(calls[fn.Name.Name], id.Name)
				}
				return true
			})
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
	for name := range calls {
		switch {
		case !strings.HasPrefix(name, "Test") || name == "TestMain" || name == "TestMakeCrash":
		case chosen[name]:
			chooses = append(chooses, name)
			fallthrough
		default:
			tests = append(tests, name)
		}
	}
	slices.Sort(chooses)
	return tests, chooses
}
