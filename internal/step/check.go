package step

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// checkSteps reports everything wrong with the steps of one branch, before any of
// them runs. held are the slots that the branch and those around it hold.
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
			problems = append(problems, fmt.Errorf("step %q has both work of its own and steps", s.ID))
		}
		if s.Closes && (!s.Alone || len(s.Ahead) > 0) {
			problems = append(problems, fmt.Errorf("step %q closes its branch: it runs alone, with nothing ahead of it", s.ID))
		}
		if err := checkOrder(s, held); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// checkOrder keeps all of a tree to one order of taking slots. Two branches that
// each hold what the other one takes next would wait for each other for ever.
func checkOrder(s Step, held []string) error {
	taken := without(s.Uses, held)
	if len(taken) == 0 || len(held) == 0 {
		return nil
	}
	if last := slices.Max(held); taken[0] < last {
		return fmt.Errorf("step %q takes slot %q while a step around it holds %q: slots are taken in name order, so take it there", s.ID, taken[0], last)
	}
	return nil
}
