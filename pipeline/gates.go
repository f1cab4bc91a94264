package pipeline

import (
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/config"
)

// Gates returns the user's gates in the order of the configuration.
func (p Project) Gates() []cluster.UserGate {
	var out []cluster.UserGate
	for _, g := range p.Config.Roll.Gates {
		out = append(out, gate(p.Config, g))
	}
	return out
}

func gate(c *config.Config, g config.Gate) cluster.UserGate {
	out := cluster.UserGate{
		Description: g.Description, BeforeOnly: g.When == "before",
		TimeoutSeconds: max(1, int(time.Duration(g.Timeout).Seconds())),
	}
	if len(g.Command) > 0 {
		out.Command = &cluster.CommandGate{Args: g.Command, Dir: c.Dir, Env: g.Env}
		return out
	}
	out.Objects = &cluster.ObjectGate{
		APIVersion: g.APIVersion, Kind: g.Kind, Namespace: g.Namespace, Name: g.Name,
		Labels: g.LabelSelector.String(), Expr: g.Expr, Optional: g.Optional,
	}
	return out
}
