package config

import (
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration that is read and printed as "10m" or "1h30m".
type Duration time.Duration

// UnmarshalText reads a duration with its unit.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%s is not a duration: write it like 30s, 10m or 1h30m", quote(string(text)))
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes what String returns.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String leaves out the zero units that time.Duration prints: "10m", not "10m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// The VMIDs that Proxmox VE allows.
const (
	minVMID = 100
	maxVMID = 999999999
)

// VMIDRange is a range of VMIDs, both ends included, written "9000-9099".
type VMIDRange struct{ First, Last int }

// UnmarshalText reads "first-last" and accepts only VMIDs that Proxmox allows.
func (r *VMIDRange) UnmarshalText(text []byte) error {
	first, last, ok := strings.Cut(string(text), "-")
	lo, errLo := strconv.Atoi(first)
	hi, errHi := strconv.Atoi(last)
	switch {
	case !ok || errLo != nil || errHi != nil:
		return fmt.Errorf("%s is not a range of VMIDs: write it like 9000-9099", quote(string(text)))
	case lo < minVMID || hi > maxVMID:
		return fmt.Errorf("%s is out of bounds: Proxmox allows %d-%d", quote(string(text)), minVMID, maxVMID)
	case lo > hi:
		return fmt.Errorf("%s runs backwards: did you mean %d-%d?", quote(string(text)), hi, lo)
	}
	*r = VMIDRange{lo, hi}
	return nil
}

// MarshalText writes what String returns.
func (r VMIDRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func (r VMIDRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Len is how many VMIDs the range holds.
func (r VMIDRange) Len() int { return r.Last - r.First + 1 }

// Contains says whether id is in the range.
func (r VMIDRange) Contains(id int) bool { return r.First <= id && id <= r.Last }

// All iterates over the VMIDs of the range, lowest first.
func (r VMIDRange) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for id := r.First; id <= r.Last; id++ {
			if !yield(id) {
				return
			}
		}
	}
}
