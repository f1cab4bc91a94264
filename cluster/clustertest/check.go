package clustertest

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

// failures are in what ports and waiting say, and in what a step says of where it stands.
var failures = []string{"no answer", "no volume in", "gave up after", "context canceled", "the line is broken", "said "}

// CheckErr checks that want is in err (between two "=") or in its hints, or that there is no error if want is "". It
// must be a refusal unless want says that a port or waiting failed, or is about one of others.
func CheckErr(t *testing.T, err error, want string, others ...string) {
	t.Helper()
	if err == nil || want == "" {
		if err != nil || want != "" {
			t.Errorf("err = %v, want %q", err, want)
		}
		return
	}
	if !strings.Contains("="+err.Error()+"=\n"+strings.Join(fault.Hints(err), "\n"), want) {
		t.Errorf("err = %v, want %q", err, want)
	}
	failed := slices.ContainsFunc(slices.Concat(failures, others), func(text string) bool { return strings.Contains(want, text) })
	if refused := fault.KindOf(err) == fault.Refused; refused == failed {
		t.Errorf("refused: %t: %v", refused, err)
	}
}
