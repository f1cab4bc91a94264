package helm

import (
	"encoding/json"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/deploy"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestTypes decodes what is no part of Kubernetes itself, without unknown fields. Package
// deploy does that with the rest.
func TestTypes(t *testing.T) {
	t.Parallel()
	kinds := map[string]int{}
	for key, object := range manifests(t, deploy.Options{Monitoring: true}) {
		kind, _, _ := strings.Cut(key, "/")
		kinds[kind]++
		var into any
		switch kind {
		case "CustomResourceDefinition":
			into = &apiextensions.CustomResourceDefinition{}
		case "PodMonitor":
			into = &monitoring.PodMonitor{}
		case "PrometheusRule":
			into = &monitoring.PrometheusRule{}
		default:
			continue
		}
		text := must.Get(json.Marshal(object))(t)
		if err := yaml.UnmarshalStrict(text, into); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		if crd, ok := into.(*apiextensions.CustomResourceDefinition); ok && crd.Name != crd.Spec.Names.Plural+".recast.dev" {
			t.Errorf("%s defines %s of %s", crd.Name, crd.Spec.Names.Plural, crd.Spec.Group)
		}
	}
	if kinds["CustomResourceDefinition"] != 3 || kinds["PodMonitor"] != 1 || kinds["PrometheusRule"] != 1 {
		t.Errorf("%v", kinds)
	}
}
