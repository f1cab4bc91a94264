package main

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	killTimes = flag.Int("kill.times", 1, "how often TestKill kills a roll")
	killSeed  = flag.Uint64("kill.seed", 0, "at which moments TestKill kills; 0: others each time")
)

// TestKill kills rolls of real processes at random moments and runs the same command
// again: then every node is in sync, every persistent disk is unchanged, and etcd has
// its members. Each strategy has a lab of its own. For every second run the local files are lost with
// the process, as on a CI runner: of three, one or two.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64N(1e6)
	}
	t.Logf("go test ./cmd/recast -run TestKill -kill.times %d -kill.seed %d", *killTimes, seed)
	if *killTimes == 1 { // the main suite has no minute for it
		newKillings(openLab(t, "--workers", "1"), "auto", 5*time.Second, seed, 0).rounds(1)
		return
	}
	for i, by := range []struct {
		strategy string
		usual    time.Duration
	}{{"recreate", 12 * time.Second}, {"reimage", 10 * time.Second}, {"in-place", 8 * time.Second}} {
		t.Run(by.strategy, func(t *testing.T) {
			t.Parallel()
			lab := openLab(t, "--workers", "2", "--control-planes", "3")
			newKillings(lab, by.strategy, by.usual, seed, i).rounds((*killTimes + 2 - i) / 3)
		})
	}
}

type killings struct {
	*terminal
	random   *rand.Rand
	strategy string        // in recast.yaml
	usual    time.Duration // how long a roll takes
	lost     bool          // the next kill takes the local files
}

func newKillings(lab *terminal, strategy string, usual time.Duration, seed uint64, nth int) *killings {
	lab.replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+strategy+"\n")
	return &killings{terminal: lab, random: rand.New(rand.NewPCG(seed+uint64(nth), 0)), strategy: strategy, usual: usual, lost: (seed+uint64(nth))%2 == 1}
}

// rounds kills rolls, one after the other, and finishes each.
func (k *killings) rounds(times int) {
	k.t.Helper()
	for n := range times {
		k.round(n)
	}
	k.t.Attr("kills-resumed", strconv.Itoa(times))
	k.t.Attr("promises-broken", "0") // lab check has failed the test otherwise
}

// round kills one roll and finishes it.
func (k *killings) round(n int) {
	k.t.Helper()
	lost := k.lost
	k.lost = !lost
	var after time.Duration
	for killed := false; !killed; {
		k.patch()
		after, killed = k.roll()
	}
	said, _ := k.typed(exitDone, "status")
	if lost {
		k.t.Attr("journals-lost", "1")
		if err := os.RemoveAll(filepath.Join(k.dir, ".recast")); err != nil {
			k.t.Fatal(err)
		}
	}
	began := time.Now()
	report, _ := k.typed(exitDone, "roll", "--yes")
	k.typed(exitDone, "drift")
	kept, _ := k.typed(exitDone, "lab", "check", "--dir", ".")
	k.t.Logf("%d: %s killed after %s, journal lost: %t, was unfinished: %t; finished in %s: %s%s", n+1, k.strategy, after.Round(time.Millisecond),
		lost, strings.Contains(said, "\nunfinished ") || strings.Contains(said, "\nmarked "), time.Since(began).Round(time.Millisecond), kept, report)
}

// roll kills a roll at a random moment, unless it has ended before.
func (k *killings) roll() (after time.Duration, killed bool) {
	k.t.Helper()
	after = time.Duration(k.random.Int64N(int64(k.usual)))
	began := time.Now()
	c := k.background("roll.err", "roll", "--yes")
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case err := <-ended:
		if code := exitCode(err); code != exitDone {
			k.t.Fatalf("a roll that nobody killed: exit code %d\n%s", code, k.read("roll.err"))
		}
		k.usual = time.Since(began)
		return 0, false
	case <-time.After(after):
	}
	if err := c.Process.Kill(); err != nil {
		k.t.Fatal(err)
	}
	return after, exitCode(<-ended) == -1
}
