package past

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/journal"
)

// A run has one journal on each machine that worked on it: on the one that started it, and on those that
// finished what it had begun (About.Elsewhere). Copies of the former are in Elsewhere/first, those of another
// machine in a directory of its own.
const firstPart = "first"

// partOf names the part that a journal is of its run.
func partOf(a *About) string {
	if a == nil || !a.Elsewhere {
		return firstPart
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %s", a.By.Host, a.By.Boot, a.By.PID, a.By.Start))
	return hex.EncodeToString(sum[:6])
}

// dirs are the directories with journals: the one of this machine first.
func (r Runs) dirs() ([]string, error) {
	dirs := []string{r.Dir}
	if r.Elsewhere == "" {
		return dirs, nil
	}
	parts, err := os.ReadDir(r.Elsewhere)
	if errors.Is(err, fs.ErrNotExist) {
		return dirs, nil
	}
	if err != nil {
		return dirs, fmt.Errorf("read the runs of other machines: %w", err)
	}
	for _, p := range parts {
		if p.IsDir() {
			dirs = append(dirs, filepath.Join(r.Elsewhere, p.Name()))
		}
	}
	return dirs, nil
}

// partHere is the part of a run whose journal this machine has; "" if it has none.
func (r Runs) partHere(id string) string {
	j, err := journal.Open(r.Dir, journal.Options{Run: id, ReadOnly: true})
	if err != nil {
		return ""
	}
	defer j.Close()
	about, _ := Fact[About](j, AboutKey) // one that can't be read is of this machine
	return partOf(about)
}

// join adds what another machine did to finish the run.
func (r *Run) join(p Run) {
	info := joined(journal.RunInfo{Started: r.Started, Finished: r.Finished}, journal.RunInfo{Started: p.Started, Finished: p.Finished, Outcome: "later"})
	if info.Outcome != "" {
		r.Finished, r.Result, r.Error = p.Finished, p.Result, p.Error
	}
	switch {
	case p.About == nil:
	case r.About == nil:
		r.About = p.About
	default:
		about := *r.About
		about.GoneOn = slices.Concat(about.GoneOn, append(slices.Clone(p.About.GoneOn), p.About.By))
		r.About = &about
	}
	if r.Upgrade == nil {
		r.Upgrade = p.Upgrade
	}
	r.Fates = joinedFates(r.fates(p.Fates), p.Fates)
	if r.Plan == nil {
		r.Plan = p.Plan
	}
	r.Took = slices.Concat(r.Took, p.Took)
	r.Hooks = slices.Concat(r.Hooks, p.Hooks)
	r.Problems = slices.Concat(r.Problems, p.Problems)
	r.Dirs = slices.Concat(r.Dirs, p.Dirs)
	r.Restored = r.Restored || p.Restored
}

// fates are the results before later ones, of a run that was killed by which nodes have a recorded duration.
func (r *Run) fates(later *cluster.Fates) *cluster.Fates {
	if r.Fates != nil || later == nil || r.Plan == nil {
		return r.Fates
	}
	f := &cluster.Fates{}
	for _, n := range r.Plan.Work() {
		if slices.ContainsFunc(r.Took, func(t cluster.Took) bool { return t.Node == n.Node }) {
			f.Done = append(f.Done, n.Node)
		} else {
			f.Left = append(f.Left, n.Node)
		}
	}
	return f
}

// joinedFates are the results of both, of a node with two those of later.
func joinedFates(earlier, later *cluster.Fates) *cluster.Fates {
	if earlier == nil || later == nil {
		if earlier == nil {
			return later
		}
		return earlier
	}
	again := slices.Concat(later.Done, later.Failed, later.Left)
	join := func(earlier, later []string) []string {
		earlier = slices.DeleteFunc(slices.Clone(earlier), func(node string) bool { return slices.Contains(again, node) })
		all := slices.Concat([]string{}, earlier, later)
		slices.Sort(all)
		return all
	}
	return &cluster.Fates{Done: join(earlier.Done, later.Done), Failed: join(earlier.Failed, later.Failed), Left: join(earlier.Left, later.Left)}
}
