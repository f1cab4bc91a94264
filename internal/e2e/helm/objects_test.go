package helm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	k8syaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/deploy"
	"github.com/recast-sh/recast/internal/sim/must"
)

const (
	top      = "../../.."
	chartDir = top + "/deploy/chart/recast-operator"
)

// objects are Kubernetes objects by kind, namespace and name: "Role/recast-system/recast-operator".
type objects map[string]map[string]any

// read splits a YAML stream. An object that comes twice is an error.
func (o objects) read(stream string) error {
	d := k8syaml.NewYAMLOrJSONDecoder(strings.NewReader(stream), 4096)
	for {
		var object map[string]any
		switch err := d.Decode(&object); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case len(object) == 0:
			continue
		}
		metadata, _ := object["metadata"].(map[string]any)
		namespace, _ := metadata["namespace"].(string)
		key := fmt.Sprintf("%s/%s/%s", object["kind"], namespace, metadata["name"])
		if o[key] != nil {
			return fmt.Errorf("%s comes twice", key)
		}
		o[key] = object
	}
}

// manifests is what recast operator manifests prints.
func manifests(t *testing.T, options deploy.Options) objects {
	t.Helper()
	text := must.Get(deploy.Manifests(options))(t)
	all := objects{}
	must.Do(t, all.read(text))
	return all
}

// kustomize is what kubectl kustomize prints of a directory.
func kustomize(t *testing.T, dir string) objects {
	t.Helper()
	built := must.Get(krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir))(t)
	text := must.Get(built.AsYaml())(t)
	all := objects{}
	must.Do(t, all.read(string(text)))
	return all
}

// load loads a chart as helm install does; dir may be an archive.
func load(t *testing.T, dir string) *chart.Chart {
	t.Helper()
	return must.Get(loader.Load(dir))(t)
}

// release is what helm install creates, and prints.
type release struct {
	objects
	notes string
}

// install renders a chart for a namespace, with values as a person writes them.
func install(ctx context.Context, c *chart.Chart, namespace, values string) (release, error) {
	var given map[string]any
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		return release{}, err
	}
	top, err := util.ToRenderValues(c, given, common.ReleaseOptions{Name: "a-release", Namespace: namespace, Revision: 1, IsInstall: true}, nil)
	if err != nil {
		return release{}, err
	}
	e := engine.Engine{Strict: true}
	files, err := e.RenderWithContext(ctx, c, top)
	if err != nil {
		return release{}, err
	}
	r := release{objects: objects{}}
	for _, crd := range c.CRDObjects() {
		if err := r.read(string(crd.File.Data)); err != nil {
			return release{}, fmt.Errorf("%s: %w", crd.Name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if filepath.Base(name) == "NOTES.txt" {
			r.notes = files[name]
			continue
		}
		if err := r.read(files[name]); err != nil {
			return release{}, fmt.Errorf("%s: %w\n%s", name, err, files[name])
		}
	}
	return r, nil
}

func mustInstall(t *testing.T, c *chart.Chart, namespace, values string) release {
	t.Helper()
	return must.Get(install(t.Context(), c, namespace, values))(t)
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	return string(must.Get(os.ReadFile(filepath.Join(top, name)))(t))
}
