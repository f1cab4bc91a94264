package simtest

import (
	"testing"

	"github.com/recast-sh/recast/internal/sim"
)

// inLongLab is inLab for a long test.
func inLongLab(t *testing.T, o sim.Options, f func(t *testing.T, lab *Lab)) {
	t.Helper()
	long(t)
	inLab(t, o, f)
}

// require fails unless that holds; the text says what is so instead.
func require(t testing.TB, holds bool, text string, args ...any) {
	t.Helper()
	if !holds {
		t.Errorf(text, args...)
	}
}

// mustBe is require for what the rest of a test needs: it ends it.
func mustBe(t testing.TB, holds bool, text string, args ...any) {
	t.Helper()
	if !holds {
		t.Fatalf(text, args...)
	}
}
