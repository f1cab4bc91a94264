package simtest

import (
	"flag"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

var (
	crashAll   = flag.Bool("crash.all", false, "kill at every point instead of a slice")
	crashSeed  = flag.Uint64("crash.seed", 1, "which slice")
	crashSlice = flag.Int("crash.slice", 6, "how many points a slice has")
)

// oneWorker is the smallest lab in which something can be rolled.
func oneWorker() sim.Options { return sim.Options{ControlPlanes: 1, Workers: 1} }

// TestCrash kills a roll at every point there is, runs it again, and compares
// the whole world with that of an undisturbed roll.
func TestCrash(t *testing.T) {
	points, want, secrets := undisturbed(t)
	if len(points) < 30 {
		t.Fatalf("an undisturbed roll has only %d points: %q", len(points), points)
	}
	chosen := slice(len(points))
	for _, at := range chosen {
		t.Run(strconv.Itoa(at), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { crashAt(t, at, want, secrets) })
		})
	}
	t.Attr("points", strconv.Itoa(len(points)))
	t.Attr("killed", strconv.Itoa(len(chosen)))
}

// slice chooses points, numbered from 1.
func slice(n int) []int {
	all := rand.New(rand.NewPCG(*crashSeed, 0)).Perm(n)
	for i := range all {
		all[i]++
	}
	if *crashAll {
		return all
	}
	return all[:min(*crashSlice, n)]
}

// undisturbed also returns the secrets of its cluster: with the same ones two worlds can be compared.
func undisturbed(t *testing.T) (points []string, dump string, secrets *talosapi.Cluster) {
	synctest.Test(t, func(t *testing.T) {
		lab := New(t, oneWorker())
		lab.Patch(sim.PatchedExtension)
		var broken []string
		var err error
		points, broken, err = lab.rollKilledAt(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(broken) > 0 {
			t.Fatalf("promises broken: %q", broken)
		}
		dump, secrets = lab.settledDump(), lab.Talos
	})
	return points, dump, secrets
}

func crashAt(t *testing.T, at int, want string, secrets *talosapi.Cluster) {
	o := oneWorker()
	o.Talos = secrets
	lab := New(t, o)
	lab.Patch(sim.PatchedExtension)
	points, broken, err := lab.rollKilledAt(t.Context(), at)
	if err == nil {
		t.Fatalf("killed at %q, yet the roll says that it succeeded", points[at-1])
	}
	_, more, err := lab.rollKilledAt(t.Context(), 0)
	if err != nil {
		t.Fatalf("killed at point %d, %q: the next roll: %v", at, points[at-1], err)
	}
	for _, b := range append(broken, more...) {
		t.Errorf("promise broken: %s", b)
	}
	if diff := cmp.Diff(want, lab.settledDump()); diff != "" {
		t.Errorf("killed at point %d, %q: the world differs from an undisturbed one:\n%s", at, points[at-1], diff)
	}
	res, err := lab.Client().Drift(t.Context())
	if err != nil || !res.InSync {
		t.Errorf("drift after all: %+v, %v", res, err)
	}
}
