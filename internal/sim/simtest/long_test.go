// Every process of these tests shakes hands anew, and a third of that would be
// ML-KEM, which is not what they are about.
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

// TestMain lets garbage lie: each test has a lab of its own, which is dropped as
// a whole, and a sixth of the time would go into sweeping up.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	m.Run()
}

// long leaves a test to make stories, so that make test stays quick. make race
// runs a slice of them again: the race detector makes each ten times slower.
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
