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
	"strconv"
	"strings"
	"sync"
	"testing"
)

var (
	mutantsPlay  = flag.Bool("mutants", false, "make the mutants and play schedules with each until one fails")
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

// TestMutants removes recast's guards one by one, and the schedules must detect each. The
// unchanged recast passes the same schedules.
func TestMutants(t *testing.T) {
	if !*mutantsPlay {
		t.Skip("with -mutants: make mutants")
	}
	all, err := mutants()
	if err != nil {
		t.Fatal(err)
	}
	limit := make(chan struct{}, *mutantsProcs)
	var mu sync.Mutex
	most := 0
	t.Run("mutants", func(t *testing.T) {
		for _, m := range all {
			if !strings.Contains(m.name, *mutantsOnly) {
				continue
			}
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				limit <- struct{}{}
				defer func() { <-limit }()
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
	if c := hunt(t, mutant{}, 0, max(1, most)); c.by != "" {
		t.Errorf("recast as it is fails after %d node-rolls, too: %s", c.nodeRolls, c.by)
	} else {
		fmt.Printf("%-28s %s after %d node-rolls, %d schedules, seed %s\n", "recast as it is", "nothing is found", c.nodeRolls, c.schedules, *mutantsSeed)
	}
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
		copied := filepath.Join(dir, strconv.Itoa(len(overlay.Replace))+".go")
		if err := os.WriteFile(copied, content, 0o600); err != nil {
			return "", err
		}
		overlay.Replace[path] = copied
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600); err != nil {
		return "", err
	}
	program := filepath.Join(dir, "mutant.test")
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("mutant %s does not compile: %w\n%s", m.name, err, out)
	}
	return program, nil
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
