package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Share is a number of nodes, or a percentage of all of them: 2, or 20%.
type Share struct {
	Count   int // 0: use Percent
	Percent int
}

// Of returns the share of that many nodes. A percentage is rounded down, but is at least
// one node: with a limit of 0, a roll would never end.
func (s Share) Of(nodes int) int {
	if s.Percent > 0 {
		return max(nodes*s.Percent/100, 1)
	}
	return s.Count
}

// UnmarshalText reads a number from 1, or a percentage from 1% to 100%.
func (s *Share) UnmarshalText(text []byte) error {
	digits, percent := strings.CutSuffix(string(text), "%")
	n, err := strconv.Atoi(digits)
	switch {
	case err != nil || strconv.Itoa(n) != digits:
		return fmt.Errorf("%s is neither a number nor a percentage: write it like 2 or 20%%", quote(string(text)))
	case n < 1:
		return errors.New("must be at least 1")
	case percent && n > 100:
		return fmt.Errorf("%s is more than all of them: 100%% is the most", quote(string(text)))
	case percent:
		*s = Share{Percent: n}
	default:
		*s = Share{Count: n}
	}
	return nil
}

// MarshalYAML writes a count as a number, so that it needs no quotes.
func (s Share) MarshalYAML() (any, error) {
	if s.Percent > 0 {
		return s.String(), nil
	}
	return s.Count, nil
}

func (s Share) String() string {
	if s.Percent > 0 {
		return strconv.Itoa(s.Percent) + "%"
	}
	return strconv.Itoa(s.Count)
}
