package past

import (
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/journal"
)

// skew is by how much the clocks of two machines may differ.
const skew = 10 * time.Minute

// dated is a run whose start is known, as well as it is.
type dated struct {
	planning.Replacing
	info    journal.RunInfo
	by      string // the machine whose clock says when; "": unknown
	guessed bool   // by its ID: its journal is not here, and Proxmox has no time of it
}

// Order sorts runs that replaced system disks, the newest first: by their journals where those are here, else by what
// Proxmox has recorded, else by their IDs. sure is false if the last of them may be another one.
func (r Runs) Order(runs []planning.Replacing) (ordered []planning.Replacing, sure bool) {
	infos, _ := r.List() // a run that can't be read is as one of another machine
	var all []dated
	for _, run := range runs {
		all = append(all, r.date(run, infos))
	}
	slices.SortFunc(all, func(a, b dated) int { return journal.Newer(a.info, b.info) })
	sure = true
	for i, d := range all {
		ordered = append(ordered, d.Replacing)
		sure = sure && (i == 0 || all[0].follows(d))
	}
	return ordered, sure
}

func (r Runs) date(run planning.Replacing, infos []journal.RunInfo) dated {
	d := dated{Replacing: run, info: journal.RunInfo{ID: run.Run, Started: run.At}}
	if d.At.IsZero() {
		d.info.Started, d.guessed = journal.RunBegan(run.Run), true
	}
	i := slices.IndexFunc(infos, func(info journal.RunInfo) bool { return info.ID == run.Run })
	if i < 0 {
		return d
	}
	known := r.Read(run.Run, Options{})
	d.info, d.guessed, d.At, d.What = infos[i], false, infos[i].Started, known.Command()
	if what := known.What(); what != "" {
		d.What += ", " + what
	}
	if known.About != nil {
		d.by = known.About.By.Host
	}
	return d
}

// follows says whether d certainly started after an earlier run: one claim at a time, so two runs never overlap.
func (d dated) follows(earlier dated) bool {
	if d.guessed || earlier.guessed {
		return false
	}
	apart := time.Duration(0)
	if d.by == "" || d.by != earlier.by {
		apart = skew
	}
	return d.info.Started.Sub(earlier.info.Started) > apart
}
