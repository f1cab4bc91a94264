package pipeline

import (
	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
)

// rehearsal says how images are tested before the first node; nil: they are not. asked
// is the command-line option, nil: use the configuration.
func rehearsal(p Project, asked *bool) *planning.Rehearsal {
	on := p.Config.Roll.Rehearse.Enabled
	if asked != nil {
		on = *asked
	}
	if !on {
		return nil
	}
	return new(p.RehearsalOn())
}

// rehearsal is the rehearsal of this run: a saved plan decides unless the option is given.
func (w *work) rehearsal() *planning.Rehearsal {
	asked := w.o.Rehearse
	if asked == nil && w.o.Saved != nil {
		asked = new(len(w.o.Saved.Trials) > 0)
	}
	return rehearsal(w.Project, asked)
}

// needs returns the privileges that the plan's work needs.
func (w *work) needs(inLease bool) survey.Needs {
	return survey.NeedsOf(w.rep.Plan, inLease).With(survey.NeedsToRehearse(w.rep.Plan))
}

// Left is a scratch VM, useless after its run has ended.
type Left struct {
	VMID cluster.VMID `json:"vmid"`
	Name string       `json:"name"`
	Host string       `json:"host"`
	Run  string       `json:"run"`
	Next []Advice     `json:"next"`
}

func scratchLeft(vms []cluster.VM, name string) []Left {
	var out []Left
	for _, s := range planning.ScratchVMs(vms, name) {
		out = append(out, Left{
			VMID: s.VM.ID, Name: s.VM.Name, Host: s.VM.Host, Run: s.Run,
			Next: []Advice{{"recast prune", "deletes it, once that run has ended"}, {"recast roll", "does so first, if it has anything to do"}},
		})
	}
	return out
}
