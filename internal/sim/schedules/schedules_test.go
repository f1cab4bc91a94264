// As in simtest: no test is about ML-KEM.
//
//go:debug tlsmlkem=0

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
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
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

const resultMark = "RESULT "

// perProcess is the maximum number of cases per process; the next process starts with an empty heap.
const perProcess = 40

// batch is the number of cases for the next process: fewer towards the end, so that all processes end together.
func batch(left, processes int) int { return max(1, min(perProcess, left/(2*processes))) }

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
	seed, n := must.Get(strconv.ParseUint(*runSeed, 0, 64))(t), *many
	if n == 0 {
		t.Skip("left to make schedules")
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

// inProcess plays cases of a run in another process. A case that kills that has failed; the next one plays the rest.
func inProcess(t *testing.T, seed uint64, from, count int, each func(int, Result)) {
	for at := from; at < from+count; at++ {
		said := spawn(t.Context(), os.Args[0], "TestSchedules", func(r Result) {
			each(at, r)
			at++
		}, "-schedules.seed", fmt.Sprintf("%#x", seed), "-schedules.first", strconv.Itoa(at), "-schedules.n", strconv.Itoa(from+count-at))
		if at < from+count {
			each(at, Result{Case: Draw(Seed(seed, at)).String(), Problems: []string{"its process died: " + said}})
		}
	}
}

// longestCase limits a case, and longestShrink the time to minimize one, in real time.
const longestCase, longestShrink = 15 * time.Minute, 30 * time.Minute

var errSlow = fmt.Errorf("no result for %s", longestCase)

// spawn runs a test of a test binary, passes on each result, and returns the output after the last one.
func spawn(ctx context.Context, program, test string, each func(Result), args ...string) (said string) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slow := time.AfterFunc(longestCase, func() { cancel(errSlow) })
	defer slow.Stop()
	cmd := exec.CommandContext(ctx, program, append([]string{"-test.run", "^" + test + "$", "-test.timeout", "0", "-schedules.child"}, args...)...)
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

// inMemory is an in-memory directory with enough space, if there is one: tests need not wait for disks.
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

type failure struct {
	seed uint64
	r    Result
}

// tell minimizes a failed case, and says how to replay it.
func (f failure) tell(t *testing.T) {
	small := Shrink(Draw(f.seed), *shrinks, time.Now().Add(longestShrink), fails(t.Context()))
	t.Errorf("%s\n%s\nmake schedules N=1 SEED=%#x\nmake schedules REPLAY='%s'", strings.Join(f.r.Problems, "\n"), strings.Join(f.r.Story, "\n"), f.seed, small)
}

func fails(ctx context.Context) func(Case) bool {
	return func(c Case) bool {
		failed := true // also if the process dies
		spawn(ctx, os.Args[0], "TestReplay", func(r Result) { failed = len(r.Problems) > 0 }, "-schedules.replay", c.String())
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

// TestCorpus plays cases that failed in the past.
func TestCorpus(t *testing.T) {
	if *many == 0 {
		t.Skip("left to make schedules")
	}
	for _, entry := range corpus(t) {
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
	must.Be(t, err == nil && len(files) != 0, "there is no corpus %v", err)
	for _, file := range files {
		b := must.Get(os.ReadFile(file))(t)
		for i, line := range strings.Split(string(b), "\n") {
			if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			c, err := Parse(line)
			must.Be(t, err == nil, "%s:%d: %v", file, i+1, err)
			list = append(list, corpusEntry{fmt.Sprintf("%s:%d", strings.TrimSuffix(filepath.Base(file), ".txt"), i+1), c})
		}
	}
	return list
}

// TestCaseTextRoundTrip draws cases and parses their text.
func TestCaseTextRoundTrip(t *testing.T) {
	t.Parallel()
	for n := range 500 {
		c := Draw(Seed(1, n))
		must.Be(t, c.check() == nil, "%s: %v", c, c.check())
		got, err := Parse(c.String())
		must.Be(t, err == nil, "%s: %v", c, err)
		diff := cmp.Diff(c, got)
		must.Be(t, diff == "", "%s (-drawn +read):\n%s", c, diff)
	}
}

// TestSentAgain: a change may be sent again after a read of the VM.
func TestSentAgain(t *testing.T) {
	t.Parallel()
	read := func(path string, params map[string]string) record.Call {
		return record.Call{Proto: "proxmox", Method: "GET", Path: "/api2/json" + path, Params: params}
	}
	create := record.Call{Proto: "proxmox", Method: "POST", Path: "/api2/json/nodes/pve1/qemu", Params: map[string]string{"vmid": "9001"}, Mutation: true}
	change := record.Call{Proto: "proxmox", Method: "POST", Path: "/api2/json/nodes/pve1/qemu/9001/config", Params: map[string]string{"memory": "1"}, Mutation: true}
	for name, c := range map[string]struct {
		change  record.Call
		between record.Call
		excused bool
	}{
		"a task":               {create, read("/nodes/pve1/tasks/UPID:x/status", nil), false},
		"a storage":            {create, read("/nodes/pve1/storage/fast/content", nil), false},
		"the list of storages": {create, read("/cluster/resources?type=storage", map[string]string{"type": "storage"}), false},
		"the list of VMs":      {create, read("/cluster/resources?type=vm", map[string]string{"type": "vm"}), true},
		"the list of all":      {create, read("/cluster/resources", nil), true},
		"the VM":               {change, read("/nodes/pve1/qemu/9001/config", nil), true},
		"another VM":           {change, read("/nodes/pve1/qemu/9002/config", nil), false},
		"its number":           {create, read("/nodes/pve1/qemu/9001/config", nil), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &play{problems: map[string]bool{}, others: others{sent: map[string]int{}, looked: map[string]int{}, changed: map[string]int{}}}
			for _, call := range []record.Call{c.change, c.between, c.change} {
				p.lookAtCall(call)
			}
			must.Equal(t, "excused", c.excused, len(p.res.Problems) == 0)
		})
	}
}

// TestAFaultExcusesNothingBefore: if etcd loses its majority before any fault affects it, recast is to blame.
func TestAFaultExcusesNothingBefore(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*play, *struck){
		"at a time": func(p *play, s *struck) { p.begin(s) },
		"at a call": func(p *play, s *struck) {
			s.kind.before = func(*play, *struck) error { return nil }
			_ = p.before(record.Call{Proto: "proxmox", Method: "PUT", Mutation: true}) // no fault drops it
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name == "at a call" {
				t.Skip("long: bringing up another lab")
			}
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t, Case{ControlPlanes: 3, Hosts: 1, Changes: []string{changePatch}})
				for _, n := range p.lab.Nodes[:2] {
					must.Do(t, p.lab.BreakEtcd(n.Name, talosapi.EtcdFault{Down: true}))
				}
				time.Sleep(time.Minute)
				s := &struck{Fault: Fault{Name: "off", Where: 0, Call: 1}, kind: kind{name: "off", etcd: true, after: func(*play, *struck) {}}}
				p.list = []*struck{s}
				begin(p, s)
				must.Hold(t, s.begun && len(p.res.Problems) != 0, "begun %t, problems %q", s.begun, p.res.Problems)
			})
		})
	}
}

var benched = flag.Int("schedules.bench", 24, "cases that the benchmark plays, from seed 1")

// BenchmarkSchedules measures the processor time of a node-roll in random schedules, all of it.
func BenchmarkSchedules(b *testing.B) {
	const most = 780_000 // allocations for each node-roll
	allocated := heap.Count()
	rolls, begin := 0, processorTime(b)
	for b.Loop() {
		for i := range *benched {
			inBubble(b, func(t *testing.T) { rolls += Play(t, Draw(Seed(1, i))).NodeRolls })
		}
	}
	spent := processorTime(b) - begin
	each := float64(allocated()) / float64(rolls)
	must.Hold(b, each <= most, "%.0f allocations for each node-roll, more than %d", each, most)
	b.ReportMetric(float64(allocated())/float64(rolls), "allocs/node-roll")
	b.ReportMetric(float64(spent.Microseconds())/1000/float64(rolls), "cpu-ms/node-roll")
	b.ReportMetric(float64(rolls)/spent.Seconds(), "node-rolls/cpu-s")
}

// inBubble is synctest.Test for a benchmark.
func inBubble(b *testing.B, f func(t *testing.T)) {
	b.Helper()
	all := func(pattern, name string) (bool, error) {
		_, err := regexp.Compile(pattern)
		return true, err
	}
	if !testing.RunTests(all, []testing.InternalTest{{Name: b.Name(), F: func(t *testing.T) { synctest.Test(t, f) }}}) {
		b.FailNow()
	}
}

func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	must.Do(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestWhatIsHeld: only calls that identify a VM by its number alone have a worst moment.
func TestWhatIsHeld(t *testing.T) {
	t.Parallel()
	call := func(method, path string) record.Call {
		return record.Call{Proto: "proxmox", Method: method, Path: "/api2/json" + path, Mutation: true}
	}
	for _, c := range []struct {
		call         record.Call
		timed, worst bool
	}{
		{call("DELETE", "/nodes/pve1/qemu/9011"), true, true},
		{call("POST", "/nodes/pve1/qemu/9011/status/shutdown"), true, true},
		{call("POST", "/nodes/pve1/qemu"), true, true},
		{call("PUT", "/nodes/pve1/qemu/9011/config"), true, false},
		{call("POST", "/nodes/pve1/storage/isos/upload"), false, false},
		{record.Call{Proto: "talos", Method: "/machine.MachineService/Reboot", Mutation: true}, false, false},
	} {
		timed, worst := &struck{Fault: Fault{Name: "late", For: time.Second}}, &struck{Fault: Fault{Name: "late"}}
		if timed.mayHold(c.call) != c.timed || worst.mayHold(c.call) != c.worst {
			t.Errorf("%s %s: timed %t, at the worst moment %t", c.call.Method, c.call.Path, timed.mayHold(c.call), worst.mayHold(c.call))
		}
	}
}
