package simtest

import (
	"fmt"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// layoutPage is testdata/layouts/README.md.
func layoutPage(all []verdict) string {
	var rows strings.Builder
	now, after := 0, 0
	for _, v := range all {
		switch {
		case v.recreated():
			now++
		case v.liftedToRecreate():
			after++
		}
		rows.WriteString(v.row())
	}
	n := len(all)
	return fmt.Sprintf(`# Clusters as people have them

Each file here is a world of the lab, made from the public sources that it names. A test plans a roll of one node, does what the last column
says, plans again, rolls, kills the roll in its middle, resumes it and compares. This page is what it saw: %s writes it afresh.

**%d of %d are recreated as they are, %d after what the last column says: %d %%.** The plan itself prints these commands, word for word.

| layout | strategy | why | what lifts it to recreate |
|---|---|---|---|
%s`, "`go test ./internal/sim/simtest -run TestLayouts -layouts.update`", now, n, after, (now+after)*100/n, rows.String())
}

func (v verdict) recreated() bool {
	return v.plan.Strategy == cluster.Recreate && len(v.plan.Refused) == 0
}

func (v verdict) liftedToRecreate() bool {
	return v.lifted != nil && v.lifted.Strategy == cluster.Recreate && len(v.lifted.Refused) == 0
}

func (v verdict) row() string {
	strategy, why := string(v.plan.Strategy), v.plan.Why
	if len(v.plan.Refused) > 0 {
		strategy, why = "refused", strings.Join(v.plan.Refused, "; ")
	}
	_, reason, _ := strings.Cut(why, ": ")
	command := "–"
	switch {
	case v.recreated():
		command = ""
	case v.liftedToRecreate():
		command = "`" + strings.Join(v.Lift.Commands, "`, `") + "`"
		if v.Lift.Config != "" {
			command += ", `" + v.Lift.Config + "` in recast.yaml and `recast lock`"
		}
		if v.Lift.Recast != "" {
			command += ", `" + v.Lift.Recast + "` on its line in recast.yaml"
		}
		command = strings.TrimPrefix(command, "``, ")
	case v.lifted != nil:
		command = "– (not even with its remedy)"
	}
	return fmt.Sprintf("| [%s](%s.yaml) | %s | %s | %s |\n", v.Name, v.Name, strategy, cell(masked(reason)), cell(command))
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
