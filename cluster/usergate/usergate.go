// Package usergate asks the gates of a recast.yaml, commands and conditions of Kubernetes
// objects: [Ask] says whether one holds, and what keeps it from holding.
package usergate

import (
	"context"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// Ask looks at gates.
type Ask struct {
	Objects  cluster.ObjectJudge
	Commands cluster.CommandRunner
	Env      []string // for commands
}

// Look asks a gate once. seen says what keeps it from holding. An error of kind fault.Refused can
// be fixed only by the configuration, or by more rights.
func (a Ask) Look(ctx context.Context, g cluster.UserGate) (holds bool, seen string, err error) {
	if g.Command != nil {
		exit, said, err := a.Commands.RunGate(ctx, *g.Command, a.Env)
		if err != nil || exit == 0 {
			return err == nil, "", err
		}
		seen = fmt.Sprintf("%s ended with %d", g.Command.Args[0], exit)
		if said != "" {
			seen += ": " + said
		}
		return false, seen, nil
	}
	judged, err := a.Objects.Judge(ctx, *g.Objects)
	if err != nil {
		return false, "", err
	}
	return verdictOf(judged, *g.Objects)
}

// verdictOf says whether the gate holds. Without any object it does not hold, unless it is
// optional.
func verdictOf(j cluster.Judged, g cluster.ObjectGate) (holds bool, seen string, err error) {
	switch {
	case j.Unserved != "" && !g.Optional:
		return false, "", fault.WithHint(fault.GateClosed.Refusedf("%s", j.Unserved), "correct apiVersion and kind in roll.gates; optional: true lets the gate hold without")
	case j.Unserved != "" || j.Objects == 0 && g.Optional:
		return true, "", nil
	case j.Objects == 0:
		return false, "there is no such object", nil
	case len(j.Failing) == 0:
		return true, "", nil
	}
	var texts []string
	for _, f := range j.Failing[:min(len(j.Failing), shownObjects)] {
		texts = append(texts, f.Name+": "+f.Why)
	}
	seen = strings.Join(texts, "; ")
	if more := len(j.Failing) - shownObjects; more > 0 {
		seen += fmt.Sprintf("; and %d more", more)
	}
	return false, fmt.Sprintf("%d of %d: %s", len(j.Failing), j.Objects, seen), nil
}

// shownObjects is how many objects fit on a line.
const shownObjects = 3
