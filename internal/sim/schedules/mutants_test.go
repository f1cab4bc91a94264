package schedules

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

var (
	mutantsPlay  = flag.Bool("mutants", false, "make the mutants, and run the test that each names or play schedules until one fails")
	mutantsNamed = flag.Bool("mutants.named", false, "only those that name their test")
	mutantsSlice = flag.Int("mutants.slice", 1, "every n-th, from mutants.seed on")
	mutantsOnly  = flag.String("mutants.only", "", "only those with this in their name")
	mutantsBound = flag.Int("mutants.bound", 2000, "give a mutant up after so many node-rolls")
	mutantsSeed  = flag.String("mutants.seed", "1", "of the run of schedules that all of them play")
	mutantsProcs = flag.Int("mutants.procs", runtime.GOMAXPROCS(0), "mutants that play at a time")
)

// caught is how a mutant was detected.
type caught struct {
	by        string // the problem found; "": none
	nodeRolls int    // until then
	schedules int
}

// TestMutants removes recast's guards one by one. The test that a mutant names must fail with it, or a
// schedule if it names none. The unchanged recast passes the same tests and schedules.
func TestMutants(t *testing.T) {
	if !*mutantsPlay {
		t.Skip("left to make mutants")
	}
	named, others := chosenMutants(t)
	passesUnchanged(t, named)
	limit := make(chan struct{}, *mutantsProcs)
	var mu sync.Mutex
	most := 0
	t.Run("mutants", func(t *testing.T) {
		for _, m := range slices.Concat(named, others) {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				limit <- struct{}{}
				defer func() { <-limit }()
				if m.test != (namedTest{}) {
					m.requireMissed(t)
					return
				}
				c := hunt(t, m, *mutantsBound, 0)
				mu.Lock()
				defer mu.Unlock()
				most = max(most, c.schedules)
				c.tell(m)
				if c.by == "" {
					t.Errorf("%s: %d node-rolls have not found it", m.says, c.nodeRolls)
				}
			})
		}
	})
	t.Attr("mutants", strconv.Itoa(len(named)+len(others)))
	if len(others) == 0 {
		return
	}
	if c := hunt(t, mutant{}, 0, max(1, most)); c.by != "" {
		t.Errorf("recast as it is fails after %d node-rolls, too: %s", c.nodeRolls, c.by)
	} else {
		fmt.Printf("%-28s %s after %d node-rolls, %d schedules, seed %s\n", "recast as it is", "nothing is found", c.nodeRolls, c.schedules, *mutantsSeed)
	}
}

// chosenMutants are those of the flags: with a test of their own, and without.
func chosenMutants(t *testing.T) (named, others []mutant) {
	t.Helper()
	all, err := mutants()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := strconv.ParseUint(*mutantsSeed, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		switch {
		case !strings.Contains(m.name, *mutantsOnly):
		case m.test != (namedTest{}):
			named = append(named, m)
		case !*mutantsNamed:
			others = append(others, m)
		}
	}
	named, others = everyNth(named, seed), everyNth(others, seed)
	if len(named)+len(others) == 0 {
		t.Fatal("no mutant is chosen")
	}
	return named, others
}

// everyNth is the part of the list that mutants.slice and a seed choose.
func everyNth(list []mutant, seed uint64) (part []mutant) {
	n := uint64(max(1, *mutantsSlice))
	for i, m := range list {
		if (uint64(i)+seed)%n == 0 {
			part = append(part, m)
		}
	}
	return part
}

// requireMissed fails unless the test that the mutant names fails with it.
func (m mutant) requireMissed(t *testing.T) {
	t.Helper()
	overlay, err := m.overlay(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if said, err := m.miss(t.Context(), root, overlay); err != nil {
		t.Fatalf("%s: %v\n%s", m.says, err, said)
	}
	fmt.Printf("%-28s %s of %s fails\n", m.name, m.test.name, m.test.pkg)
}

func (c caught) tell(m mutant) {
	fmt.Printf("%-28s %s after %d node-rolls, schedule %d, seed %s\n", m.name, cmp.Or(c.by, "not found"), c.nodeRolls, c.schedules, *mutantsSeed)
}

// hunt builds a mutant and plays cases until one fails: first the corpus for missing
// guards, then schedules in order, up to that many node-rolls or schedules; 0 is no limit.
func hunt(t *testing.T, m mutant, nodeRolls, schedules int) (c caught) {
	t.Helper()
	program, err := m.build(t)
	if err != nil {
		t.Fatal(err)
	}
	// found says whether one of count cases has failed.
	found := func(count int, results []Result, said string) bool {
		for _, r := range results {
			c.schedules++
			c.nodeRolls += r.NodeRolls
			if len(r.Problems) > 0 {
				if failed, err := Parse(r.Case); err == nil { // it was in progress
					c.nodeRolls += failed.nodes()
				}
				c.by = plain(r.Problems[0])
				t.Logf("%s\n%s\n%s", m.says, r.Case, strings.Join(r.Problems, "\n"))
				return true
			}
		}
		if len(results) < count {
			c.schedules++
			c.by = "its process died"
			t.Logf("%s\n%s", m.says, said)
			return true
		}
		return false
	}
	for _, entry := range corpus(t) {
		if !strings.HasPrefix(entry.name, "guarded:") {
			continue
		}
		if results, said := playIn(t, program, "TestReplay", "-schedules.replay", entry.c.String()); found(1, results, said) {
			return c
		}
	}
	for from := 0; (nodeRolls == 0 || c.nodeRolls < nodeRolls) && (schedules == 0 || c.schedules < schedules); {
		count := min(1+from, 10)
		if schedules > 0 {
			count = min(count, schedules-c.schedules)
		}
		results, said := playIn(t, program, "TestSchedules", "-schedules.seed", *mutantsSeed, "-schedules.first", strconv.Itoa(from), "-schedules.n", strconv.Itoa(count))
		if found(count, results, said) {
			return c
		}
		from += count
	}
	return c
}

// numbers are the parts in which reports of the same problem differ.
var numbers = regexp.MustCompile(`[0-9a-f]{8,}|[0-9]+`)

// plain is the beginning of a problem without its numbers.
func plain(problem string) string {
	line, _, _ := strings.Cut(problem, "\n")
	line = numbers.ReplaceAllString(line, "#")
	const longest = 140
	return line[:min(len(line), longest)]
}

// build builds the mutant's test program and returns its path.
func (m mutant) build(t *testing.T) (string, error) {
	t.Helper()
	dir := t.TempDir()
	overlay, err := m.overlay(dir)
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "mutant.test")
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", program, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("mutant %s does not compile: %w\n%s", m.name, err, out)
	}
	return program, nil
}

// overlay writes the mutant's files to dir, and returns the path of the file for go test -overlay.
func (m mutant) overlay(dir string) (string, error) {
	files, err := m.sources()
	if err != nil {
		return "", err
	}
	var overlay struct{ Replace map[string]string }
	overlay.Replace = map[string]string{}
	for name, content := range files {
		path, err := filepath.Abs(filepath.Join(root, name))
		if err != nil {
			return "", err
		}
		copied := filepath.Join(dir, strconv.Itoa(len(overlay.Replace))+filepath.Ext(name))
		if err := os.WriteFile(copied, content, 0o600); err != nil {
			return "", err
		}
		overlay.Replace[path] = copied
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}

// playIn plays some schedules with a program; said is the beginning of its other output.
func playIn(t *testing.T, program, test string, args ...string) (results []Result, said string) {
	t.Helper()
	args = append([]string{"-test.run", "^" + test + "$", "-test.timeout", "0", "-schedules.child"}, args...)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=400")
	out, err := cmd.CombinedOutput()
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var r Result
		if text, found := strings.CutPrefix(lines.Text(), resultMark); found && json.Unmarshal([]byte(text), &r) == nil {
			results = append(results, r)
			continue
		}
		said += lines.Text() + "\n"
	}
	const longest = 4 << 10
	return results, fmt.Sprintf("%s\n%v", said[:min(len(said), longest)], err)
}
