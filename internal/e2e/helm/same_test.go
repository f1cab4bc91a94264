package helm

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/deploy"
	"github.com/recast-sh/recast/internal/sim/must"
)

const namespace = "recast-system"

// TestThreeWaysInstallTheSame compares the Kustomize base, recast operator manifests and the
// chart with its own values, object by object.
func TestThreeWaysInstallTheSame(t *testing.T) {
	t.Parallel()
	base := kustomize(t, top+"/deploy/base")
	if diff := cmp.Diff(base, manifests(t, deploy.Options{})); diff != "" {
		t.Errorf("kustomize, recast operator manifests (-want +got):\n%s", diff)
	}
	installed := mustInstall(t, load(t, chartDir), namespace, "")
	want := maps.Clone(base)
	delete(want, "Namespace//"+namespace) // helm install --create-namespace
	if diff := cmp.Diff(want, installed.objects); diff != "" {
		t.Errorf("kustomize, helm (-want +got):\n%s", diff)
	}
	t.Attr("objects", strconv.Itoa(len(base)))
}

// TestThreeWaysTakeTheSameSettings compares them in another namespace, with another image,
// another number of replicas, and with monitoring.
func TestThreeWaysTakeTheSameSettings(t *testing.T) {
	t.Parallel()
	options := deploy.Options{Namespace: "platform", Image: "registry.example/recast:v9.9.9", Replicas: 3, Monitoring: true}
	want := manifests(t, options)
	if diff := cmp.Diff(want, kustomize(t, overlay(t))); diff != "" {
		t.Errorf("recast operator manifests, kustomize (-want +got):\n%s", diff)
	}
	installed := mustInstall(t, load(t, chartDir), options.Namespace, `
image: {repository: registry.example/recast, tag: v9.9.9}
replicas: 3
monitoring: {podMonitor: {enabled: true}, alerts: {enabled: true}, dashboard: {enabled: true}}
`)
	delete(want, "Namespace//"+options.Namespace)
	if diff := cmp.Diff(want, installed.objects); diff != "" {
		t.Errorf("recast operator manifests, helm (-want +got):\n%s", diff)
	}
}

// overlay writes the kustomization of the documentation to a directory, with this
// repository in place of the one on GitHub.
func overlay(t *testing.T) string {
	t.Helper()
	const name = "docs/notes/operator-install.md"
	block := regexp.MustCompile("(?s)```yaml kubernetes\n(# kustomization.yaml\n.*?)```").FindStringSubmatch(readFile(t, name))
	if block == nil {
		t.Fatalf("%s shows no kustomization.yaml", name)
	}
	dir := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	here := must.Get(filepath.Abs(top))(t)
	relative := must.Get(filepath.Rel(dir, here))(t)
	text := regexp.MustCompile(`https://github.com/recast-sh/recast//(\S+)\?ref=v[0-9.]+`).ReplaceAllString(block[1], relative+"/$1")
	if strings.Contains(text, "https:") {
		t.Fatalf("%s loads from elsewhere:\n%s", name, text)
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600))
	return dir
}
