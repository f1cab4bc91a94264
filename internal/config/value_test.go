package config_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/config"
)

func TestDurationString(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"0s": 0, "2s": 2 * time.Second, "10s": 10 * time.Second, "1m": time.Minute, "10m": 10 * time.Minute,
		"1h": time.Hour, "1h30m": 90 * time.Minute, "1h0m5s": time.Hour + 5*time.Second, "20h": 20 * time.Hour,
		"1m30s": 90 * time.Second, "1.5s": 1500 * time.Millisecond, "-10m": -10 * time.Minute,
	} {
		if got := config.Duration(d).String(); got != want {
			t.Errorf("%v prints as %q, want %q", d, got, want)
		}
	}
}

func TestVMIDRange(t *testing.T) {
	t.Parallel()
	var r config.VMIDRange
	if err := r.UnmarshalText([]byte("9000-9002")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{9000, 9001, 9002}, slices.Collect(r.All())); diff != "" {
		t.Errorf("All: -want +got\n%s", diff)
	}
	first := 0
	for id := range r.All() { // a loop that is left early stops the iteration
		first = id
		break
	}
	if first != 9000 {
		t.Errorf("first = %d", first)
	}
	for id, want := range map[int]bool{8999: false, 9000: true, 9002: true, 9003: false} {
		if got := r.Contains(id); got != want {
			t.Errorf("Contains(%d) = %v", id, got)
		}
	}
	if r.Len() != 3 || r.String() != "9000-9002" {
		t.Errorf("Len = %d, String = %q", r.Len(), r)
	}
}

func TestShareOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		share       string
		nodes, want int
	}{
		{"1", 10, 1},
		{"3", 10, 3},
		{"3", 2, 3}, // a limit, not a demand
		{"20%", 10, 2},
		{"20%", 14, 2},
		{"20%", 4, 1},
		{"1%", 1, 1},
		{"1%", 99, 1},
		{"99%", 100, 99},
		{"100%", 7, 7},
		{"50%", 0, 1},
	} {
		var s config.Share
		if err := s.UnmarshalText([]byte(c.share)); err != nil {
			t.Fatal(err)
		}
		if got := s.Of(c.nodes); got != c.want {
			t.Errorf("%s of %d = %d, want %d", c.share, c.nodes, got, c.want)
		}
		if s.String() != c.share {
			t.Errorf("%s prints as %s", c.share, s)
		}
	}
}

func TestMarshalShare(t *testing.T) {
	t.Parallel()
	c, err := config.Parse("recast.yaml", []byte(withRoll("maxUnavailable: {workers: 20%}")), options(nil))
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := config.Parse("recast.yaml", out, options(nil))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c.Roll, again.Roll); diff != "" {
		t.Errorf("-before +after\n%s\n%s", diff, out)
	}
}
