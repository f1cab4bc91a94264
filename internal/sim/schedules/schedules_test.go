package schedules

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/simtest"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

var (
	many    = flag.Int("schedules.n", 0, "play so many schedules")
	runSeed = flag.String("schedules.seed", "1", "of the run; its first schedule has the same")
	first   = flag.Int("schedules.first", 0, "begin with that one of the run, from 0")
	procs   = flag.Int("schedules.procs", runtime.GOMAXPROCS(0), "processes that play")
	replay  = flag.String("schedules.replay", "", "play the case of this text")
	child   = flag.Bool("schedules.child", false, "play in this process, and print each result as a line of JSON")
	shrinks = flag.Int("schedules.shrink", 40, "tries to make a failing case smaller")
	stories = flag.Bool("schedules.story", false, "with -schedules.replay: tell what happened")
)

// resultMark is the prefix of a result's line.
const resultMark = "RESULT "

// perProcess is the maximum number of cases per process; the next process starts with an empty heap.
const perProcess = 40

// batch is the number of cases for the next process: fewer towards the end, so that all processes end together.
func batch(left, processes int) int { return max(1, min(perProcess, left/(2*processes))) }

// playOne plays a case in a bubble. Errors of the lab itself fail the case too.
func playOne(t *testing.T, name string, c Case) (r Result) {
	r.Case = c.String()
	ok := t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r = Play(t, c)
			for _, problem := range r.Problems {
				t.Errorf("%s", problem)
			}
		})
	})
	if !ok && len(r.Problems) == 0 {
		r.Problems = []string{"its test failed"}
	}
	if len(r.Problems) == 0 && !*stories {
		r.Story = nil
	}
	return r
}

// TestSchedules plays random schedules, each in its own lab, in several processes.
func TestSchedules(t *testing.T) {
	seed := must.Get(strconv.ParseUint(*runSeed, 0, 64))(t)
	n := *many
	if n == 0 && !testing.Short() {
		n = 4
	}
	if *child {
		for i := *first; i < *first+n; i++ {
			tell(playOne(t, fmt.Sprintf("%#x", Seed(seed, i)), Draw(Seed(seed, i))))
		}
		return
	}
	*procs = max(1, *procs)
	tally, start := NewTally(), time.Now()
	var mu sync.Mutex
	var failed []failure
	next := *first
	var wg sync.WaitGroup
	for range *procs {
		wg.Go(func() {
			for {
				mu.Lock()
				from, left := next, *first+n-next
				count := batch(left, *procs)
				next += count
				mu.Unlock()
				if left <= 0 {
					return
				}
				inProcess(t, seed, from, count, func(i int, r Result) {
					s := Seed(seed, i)
					mu.Lock()
					defer mu.Unlock()
					tally.Add(Draw(s), r)
					if len(r.Problems) > 0 {
						failed = append(failed, failure{s, r})
						fmt.Printf("schedule %d, seed %#x: %s\n  %s\n", i, s, r.Problems[0], r.Case)
					}
				})
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	for _, f := range failed {
		f.tell(t)
	}
	if n == 0 {
		return
	}
	var b strings.Builder
	tally.Distribution(&b)
	fmt.Printf("%s%s\n%.1f node-rolls a second with %d processes\n", b.String(), tally, float64(tally.NodeRolls)/took.Seconds(), *procs)
	figures(t, tally)
}

// figures are those on the last line of make schedules.
func figures(t *testing.T, tally *Tally) {
	for name, figure := range map[string]int{"schedules": tally.Schedules, "node-rolls": tally.NodeRolls, "faults": tally.Faults, "violations": tally.Violations} {
		t.Attr(name, strconv.Itoa(figure))
	}
}

func tell(r Result) {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	fmt.Printf("\n%s%s\n", resultMark, b)
}

// inProcess plays some cases of a run in a separate process. A case that kills its process
// has failed; another process plays the rest.
func inProcess(t *testing.T, seed uint64, from, count int, each func(int, Result)) {
	for at := from; at < from+count; at++ {
		said := spawn(t.Context(), func(r Result) {
			each(at, r)
			at++
		}, "-schedules.seed", fmt.Sprintf("%#x", seed), "-schedules.first", strconv.Itoa(at), "-schedules.n", strconv.Itoa(from+count-at))
		if at < from+count {
			each(at, Result{Case: Draw(Seed(seed, at)).String(), Problems: []string{"its process died: " + said}})
		}
	}
}

// longestCase limits a case, and longestShrink the time to minimize one, in real time.
const (
	longestCase   = 15 * time.Minute
	longestShrink = 30 * time.Minute
)

var errSlow = fmt.Errorf("no result for %s", longestCase)

// spawn runs this test binary again, passes on each result, and returns the output after the last one.
func spawn(ctx context.Context, each func(Result), args ...string) (said string) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slow := time.AfterFunc(longestCase, func() { cancel(errSlow) })
	defer slow.Stop()
	self, err := os.Executable()
	if err != nil {
		return err.Error()
	}
	cmd := exec.CommandContext(ctx, self, append([]string{"-test.run", "^TestSchedules$|^TestReplay$", "-test.timeout", "0", "-schedules.child"}, args...)...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=400", "TMPDIR="+inMemory())
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err.Error()
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err.Error()
	}
	var last []string
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		text, found := strings.CutPrefix(lines.Text(), resultMark)
		var r Result
		if found && json.Unmarshal([]byte(text), &r) == nil {
			each(r)
			last = nil
			slow.Reset(longestCase)
			continue
		}
		last = append(last, lines.Text())
	}
	return strings.Join(last[:min(len(last), 60)], "\n") + fmt.Sprint(" ", errors.Join(lines.Err(), cmd.Wait(), context.Cause(ctx)))
}

// inMemory is an in-memory directory, if there is one with enough space: recast syncs its
// journal, and tests need not wait for disks.
func inMemory() string {
	const shared = "/dev/shm"
	if takes(shared, uint64(*procs)<<24) {
		return shared
	}
	return os.TempDir()
}

// takes says whether that many bytes can be written below a directory.
func takes(dir string, bytes uint64) bool {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || uint64(fs.Bavail)*uint64(fs.Bsize) < bytes {
		return false
	}
	sub, err := os.MkdirTemp(dir, "schedules")
	return err == nil && os.Remove(sub) == nil
}

// failure is a failed case.
type failure struct {
	seed uint64
	r    Result
}

// tell minimizes a failed case, and says how to replay it.
func (f failure) tell(t *testing.T) {
	c := Draw(f.seed)
	small := Shrink(c, *shrinks, time.Now().Add(longestShrink), fails(t.Context()))
	t.Errorf("%s\n%s\nmake schedules N=1 SEED=%#x\nmake schedules REPLAY='%s'", strings.Join(f.r.Problems, "\n"), strings.Join(f.r.Story, "\n"), f.seed, small)
}

// fails plays a case in a separate process.
func fails(ctx context.Context) func(Case) bool {
	return func(c Case) bool {
		failed := true // also if the process dies
		spawn(ctx, func(r Result) { failed = len(r.Problems) > 0 }, "-schedules.replay", c.String())
		return failed
	}
}

// TestReplay plays the case of -schedules.replay.
func TestReplay(t *testing.T) {
	if *replay == "" {
		t.Skip("left to make schedules REPLAY=…")
	}
	c := must.Get(Parse(*replay))(t)
	r := playOne(t, "case", c)
	if *child {
		tell(r)
		return
	}
	t.Logf("%s\n%d runs, %d calls, %v, %v", strings.Join(r.Story, "\n"), r.Runs, r.Calls, r.Struck, r.Persons)
	tally := NewTally()
	tally.Add(c, r)
	figures(t, tally)
}

// TestCorpus plays cases that failed in the past. A short run plays the first of them.
func TestCorpus(t *testing.T) {
	for i, entry := range corpus(t) {
		if testing.Short() && i > 0 {
			break // each takes seconds of make test
		}
		t.Run(entry.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := Play(t, entry.c)
				for _, problem := range r.Problems {
					t.Errorf("%s\n%s", problem, strings.Join(r.Story, "\n"))
				}
			})
		})
	}
}

type corpusEntry struct {
	name string
	c    Case
}

// corpus reads the lines of testdata/corpus without comments.
func corpus(t testing.TB) (list []corpusEntry) {
	t.Helper()
	files, err := filepath.Glob("testdata/corpus/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("there is no corpus", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(b), "\n") {
			if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			c, err := Parse(line)
			if err != nil {
				t.Fatal(errors.Join(fmt.Errorf("%s:%d", file, i+1), err))
			}
			list = append(list, corpusEntry{fmt.Sprintf("%s:%d", strings.TrimSuffix(filepath.Base(file), ".txt"), i+1), c})
		}
	}
	return list
}

// TestAMachineAsksWhileItIsMuted: a machine's callback takes p.mu, which must be free
// while Silence waits for the machine.
func TestAMachineAsksWhileItIsMuted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &play{lab: simtest.New(t, sim.Options{ControlPlanes: 1, Workers: sim.None}), muted: map[int]bool{}}
		node := p.lab.Nodes[0]
		asks, answer := make(chan bool, 1), make(chan bool)
		p.lab.Silence(func(talosapi.Request) bool {
			select {
			case asks <- true:
				<-answer
			default:
			}
			return false
		})
		go func() { _, _ = p.lab.Lab.Client().DialContext(t.Context(), "tcp", node.Addr.String()+":50000") }() // it asks whether to answer
		<-asks
		go p.mute(node.VMID, true)
		muted := func() bool {
			if !p.mu.TryLock() {
				return false
			}
			defer p.mu.Unlock()
			return p.muted[node.VMID]
		}
		for tries := 0; !muted(); tries++ {
			if runtime.Gosched(); tries > 100_000 {
				t.Error("the play is locked while it waits for the machine")
				break
			}
		}
		close(answer)
		synctest.Wait()
	})
}

// TestCaseTextRoundTrip draws cases and parses their text.
func TestCaseTextRoundTrip(t *testing.T) {
	t.Parallel()
	for n := range 500 {
		c := Draw(Seed(1, n))
		if err := c.check(); err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		got, err := Parse(c.String())
		if err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Fatalf("%s (-drawn +read):\n%s", c, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                                 "cp=0: from 1 to 5",
		"cp=3 hosts=1":                                     "change=0: from 1 to 3",
		"cp=3 hosts=1 change=patch colour=red":             "colour=red: no such word",
		"cp=9 hosts=1 change=patch":                        "cp=9: from 1 to 5",
		"cp=1 wk=1 hosts=1 change=patch surge=2":           "surge=2: from 0 to 1",
		"cp=1 hosts=1 change=patch boot=floppy":            "boot=floppy: one of disk, auto",
		"cp=1 hosts=1 change=patch faults=off@3":           "faults=off@3: off@3: on which node?",
		"cp=1 hosts=1 change=patch faults=off:4@3+1m":      "off:4@3+1m0s: there are 1 nodes, from 0",
		"cp=1 hosts=1 change=patch faults=kill":            "faults=kill: kill: no @",
		"cp=1 hosts=1 change=patch faults=kill@0":          "faults=kill@0: kill@0: calls are counted from 1",
		"cp=1 hosts=1 change=patch faults=quorum@3":        "faults=quorum@3: quorum@3: when, and how long?",
		"cp=1 hosts=1 change=patch faults=earthquake@3+1s": "faults=earthquake@3+1s: earthquake@3+1s: no such fault",
	} {
		if _, err := Parse(text); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestShrink minimizes a failing case.
func TestShrink(t *testing.T) {
	t.Parallel()
	c := must.Get(Parse("cp=3 wk=5 hosts=3 bus=virtio out=50% change=patch,patch boot=auto surge=2 faults=lost@3,kill@57,quorum@60+1m0s"))(t)
	tries := 0
	small := Shrink(c, 100, farAway, func(c Case) bool {
		tries++
		return c.Workers >= 2 && len(c.Faults) > 0 && c.Faults[len(c.Faults)-1].Name == "quorum"
	})
	if got, want := small.String(), "cp=1 wk=2 hosts=1 change=patch faults=quorum@60+1m0s"; got != want || tries > 40 {
		t.Errorf("%s after %d tries, want %s", got, tries, want)
	}
}

func FuzzParse(f *testing.F) {
	for n := range 20 {
		f.Add(Draw(Seed(7, n)).String())
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(c.String())
		if err != nil || again.String() != c.String() {
			t.Errorf("%q is %q, and that %q, %v", text, c, again, err)
		}
	})
}

var farAway = time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)

func TestTakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if !takes(dir, 1) || takes(dir, 1<<62) || takes(dir+"/none", 1) {
		t.Errorf("a byte %t, all there is %t, a byte where nothing is %t", takes(dir, 1), takes(dir, 1<<62), takes(dir+"/none", 1))
	}
}
