package step

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// checkSteps reports every problem of the steps of one branch, before any of them runs.
// held are the slots that the branch and its ancestors hold.
func checkSteps(steps []Step, held []string) error {
	var problems []error
	seen := map[string]bool{}
	for i, s := range steps {
		switch {
		case s.ID == "":
			problems = append(problems, fmt.Errorf("step %d (%q) has no ID", i+1, s.Title))
		case strings.Contains(s.ID, "/"):
			problems = append(problems, fmt.Errorf("step %q: an ID is one part of a path and has no slash", s.ID))
		case seen[s.ID]:
			problems = append(problems, fmt.Errorf("two steps have the ID %q", s.ID))
		}
		seen[s.ID] = true
		if s.Do != nil && s.Steps != nil {
			problems = append(problems, fmt.Errorf("step %q has both Do and Steps", s.ID))
		}
		if s.Closes && (!s.Alone || len(s.Ahead) > 0) {
			problems = append(problems, fmt.Errorf("step %q closes its branch: it must be Alone, without Ahead steps", s.ID))
		}
		if err := checkOrder(s, held); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// checkOrder makes a tree take slots in one order. Otherwise two branches that each hold
// the slot that the other one needs next would deadlock.
func checkOrder(s Step, held []string) error {
	taken := without(s.Uses, held)
	if len(taken) == 0 || len(held) == 0 {
		return nil
	}
	if last := slices.Max(held); taken[0] < last {
		return fmt.Errorf("step %q takes slot %q while an ancestor holds %q: slots are taken in name order, so take it in the ancestor", s.ID, taken[0], last)
	}
	return nil
}
