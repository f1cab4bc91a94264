package configs

import (
	"context"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/pipeline"
)

// Roles are those of the nodes whose configuration in talos.machineConfigs could be read and says one.
func Roles(ctx context.Context, p pipeline.Project, read func(context.Context, string) (cluster.Secret, bool, error)) map[string]string {
	roles := map[string]string{}
	if read == nil {
		return roles
	}
	for _, n := range p.Config.Nodes {
		text, found, err := read(ctx, n.Name)
		if err != nil || !found {
			continue
		}
		if docs, err := config.Parse(text); err == nil && docs.SaysRole() {
			roles[n.Name] = docs.Role()
		}
	}
	return roles
}
