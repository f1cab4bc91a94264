// Every process of these tests does its own handshakes, and a third of their cost would be
// ML-KEM, which is not under test.
//
//go:debug tlsmlkem=0

package simtest

import (
	"flag"
	"hash/fnv"
	"runtime/debug"
	"testing"
)

var (
	storiesSlice = flag.Uint("stories.slice", 1, "run only every that-many-th long story")
	storiesSeed  = flag.String("stories.seed", "1", "chooses which of them")
)

// TestMain makes garbage collection rarer: each test's lab is dropped as a
// whole, and collecting would take a sixth of the time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	m.Run()
}

// long leaves a test to make stories, so that make test stays quick. make race runs a
// slice of them again, since the race detector makes each ten times slower.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: make stories")
	}
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(*storiesSeed + " " + t.Name())) // never fails
	if sum.Sum32()%uint32(*storiesSlice) != 0 {
		t.Skip("not in this slice: make race SLICE=all")
	}
}
