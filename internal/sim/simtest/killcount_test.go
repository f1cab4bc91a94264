package simtest

import (
	"context"
	"errors"
	"flag"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// killCounts are the kills that have happened so far in tests that expect some, by the test's name.
var killCounts sync.Map

// expectKills has a test fail if fewer kills happen in it and in its subtests. Those that do are its figure.
func expectKills(t *testing.T, want int) {
	t.Helper()
	var n atomic.Int64
	if _, twice := killCounts.LoadOrStore(t.Name(), &n); twice {
		t.Fatal("kills are expected twice")
	}
	t.Cleanup(func() {
		killCounts.Delete(t.Name())
		t.Attr("killed", strconv.FormatInt(n.Load(), 10))
		someSubtests := strings.Contains(flag.Lookup("test.run").Value.String(), "/")
		if !t.Failed() && !someSubtests && int(n.Load()) < want {
			t.Errorf("%d kills have happened, want %d", n.Load(), want)
		}
	})
}

// countKill counts a kill that has happened in a test.
func countKill(t testing.TB) {
	t.Helper()
	for name := t.Name(); name != ""; name = name[:max(0, strings.LastIndex(name, "/"))] {
		if n, ok := killCounts.Load(name); ok {
			n.(*atomic.Int64).Add(1)
			return
		}
	}
}

// requireKilled fails unless a client was killed at a place, and ended as a killed one does.
func requireKilled(t testing.TB, killed bool, err error, where string) {
	t.Helper()
	switch {
	case !killed:
		t.Fatalf("it was not killed at %s: %v", where, err)
	case err == nil:
		t.Fatalf("killed at %s, yet it says that it succeeded", where)
	case !byKill(err):
		t.Fatalf("killed at %s, yet it ended otherwise: %v", where, err)
	}
	countKill(t)
}

// byKill says whether an error is what becomes of a client whose context has ended, and whose connections
// and journal are gone. It gives its claim back in a context that has not ended, but cannot connect.
func byKill(err error) bool {
	release := strings.HasPrefix(message(err), "give the claim of cluster") && errors.Is(err, context.DeadlineExceeded)
	return errors.Is(err, context.Canceled) || errors.Is(err, errKilled) || strings.Contains(message(err), net.ErrClosed.Error()) || release
}

// chosenKills is the part of a test's kills that this run is for, of which each kills kills times: all with
// -crash.all, -crash.slice of them, or the usual ones if there are some. make crash has all tests that use it: TestMakeCrash.
func chosenKills[K any](t *testing.T, all []K, kills int, usual func(K) bool) []K {
	t.Helper()
	var part []K
	switch {
	case *crashAll:
		part = all
	case *crashSlice > 0:
		part = drawn(all, *crashSlice, *crashSeed, t.Name())
	default:
		for _, k := range all {
			if usual != nil && usual(k) {
				part = append(part, k)
			}
		}
	}
	if len(part) == 0 {
		t.Fatalf("none of %d kills is chosen", len(all))
	}
	t.Attr("points", strconv.Itoa(len(all)))
	expectKills(t, kills*len(part))
	return part
}

// chosenPoints are chosenKills of the points of an undisturbed run: one of them without a slice.
func chosenPoints(t *testing.T, points []point) []point {
	t.Helper()
	one := drawn(points, 1, *crashSeed, t.Name())
	return chosenKills(t, points, 1, func(p point) bool { return len(one) > 0 && p == one[0] })
}

func TestKillsAreCounted(t *testing.T) {
	t.Parallel()
	if byKill(errors.New("the disk is full")) || byKill(nil) || !byKill(errors.Join(errors.New("x"), context.Canceled)) {
		t.Error("byKill takes another error for a kill")
	}
	names := []string{"a", "b", "a", beat + "1", beat + "1", beat + "1", "c"}
	want := []point{{"a", 1, 1}, {"b", 1, 2}, {"a", 2, 3}, {beat + "1", 1, 4}, {beat + "1", 2, 5}, {"c", 1, 6}}
	for i, p := range pointsOf(names) {
		if i >= len(want) || p != want[i] {
			t.Errorf("point %d is %+v", i, p)
		}
	}
}
