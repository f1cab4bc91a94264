package sim

import (
	"strings"

	"github.com/recast-sh/recast/internal/sim/manifests"
)

// manifests are the objects that Talos has applied to the lab's own cluster.
func (l *Lab) manifests() ([]map[string]any, error) {
	c := manifests.Of(l.Talos.KubernetesVersion)
	c.TokenID, c.TokenSecret, _ = strings.Cut(l.Talos.Secrets.Secrets.BootstrapToken, ".")
	all, err := manifests.Render(c)
	if err != nil {
		return nil, err
	}
	return manifests.Objects(all, !strings.HasPrefix(l.o.TalosVersion, "v1.12.")), nil
}
