// Package must ends a test at what it can't go on without, and compares values.
package must

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
)

// Do ends the test with an error.
func Do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Get is the value of a call, whose error ends the test: must.Get(os.ReadFile(name))(t).
func Get[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Do(t, err)
		return v
	}
}

// Equal reports how a value differs from the wanted one. The test goes on.
func Equal(t testing.TB, what string, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Pass reports an error. The test goes on.
func Pass(t testing.TB, err error) {
	t.Helper()
	Fail(t, err, "")
}

// Fail reports an error that lacks one of the texts. The text "" stands for no error at all. The test goes on.
func Fail(t testing.TB, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %q", err, text)
		}
	}
}

// FailAs is Fail for an error of that kind.
func FailAs(t testing.TB, err error, kind fault.Kind, texts ...string) {
	t.Helper()
	if Fail(t, err, texts...); fault.KindOf(err) != kind {
		t.Errorf("kind %d of error %v, want %d", fault.KindOf(err), err, kind)
	}
}

// FailIs reports an error that is not the wanted one. The test goes on.
func FailIs(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

// Err is the error of a call.
func Err[T any](_ T, err error) error { return err }

// Text is what an error says, "" for none.
func Text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Take reports what has taken less or more time than it may. The test goes on.
func Take(t testing.TB, since time.Time, least, most time.Duration) {
	t.Helper()
	if took := time.Since(since); took < least || took > most {
		t.Errorf("took %s, want %s to %s", took, least, most)
	}
}

// Each runs a test of its own for each case, all at the same time.
func Each[C any](t *testing.T, cases map[string]C, f func(t *testing.T, c C)) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, c)
		})
	}
}

// Bubble runs a test with a clock of its own, at the same time as others.
func Bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

// Bubbles is Each with a clock of its own for each case.
func Bubbles[C any](t *testing.T, cases map[string]C, f func(t *testing.T, c C)) {
	t.Helper()
	Each(t, cases, func(t *testing.T, c C) { synctest.Test(t, func(t *testing.T) { f(t, c) }) })
}

// Contain reports what a text lacks. The test goes on.
func Contain(t testing.TB, what, text string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", what, want, text)
		}
	}
}

// Hold reports the text where a condition does not hold. The test goes on.
func Hold(t testing.TB, holds bool, text string, args ...any) {
	t.Helper()
	if !holds {
		t.Errorf(text, args...)
	}
}

// Be is Hold for what the rest of the test needs: the test ends.
func Be(t testing.TB, holds bool, text string, args ...any) {
	t.Helper()
	if !holds {
		t.Fatalf(text, args...)
	}
}
