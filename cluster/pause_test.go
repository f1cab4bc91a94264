package cluster

import (
	"testing"
)

func TestPauseReads(t *testing.T) {
	t.Parallel()
	for want, annotations := range map[string]map[string]string{
		"": {"recast.dev/roll": "x"}, "why, then": {PauseMark: " why,\n\tthen"}, "no reason given": {PauseMark: ""},
	} {
		if got := Pause(annotations); got != want {
			t.Errorf("%v: %q, want %q", annotations, got, want)
		}
	}
}
