package helm

import (
	"flag"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/internal/sim/must"
)

// change is what a value does to the objects: those that are gone, those that are new, and
// the lines that are in the YAML of an object afterwards.
type change struct {
	values string
	gone   []string
	added  []string
	in     string
	lines  []string
}

const deployment = "Deployment/" + namespace + "/recast-operator"

// changes has a row for each value of values.yaml.
var changes = map[string]change{
	"image.repository":      {values: "image: {repository: r.example/recast}", in: deployment, lines: []string{"image: r.example/recast:latest", "value: r.example/recast:latest"}},
	"image.tag":             {values: "image: {tag: v1.2.3}", in: deployment, lines: []string{"image: ghcr.io/recast-sh/recast:v1.2.3", "value: ghcr.io/recast-sh/recast:v1.2.3"}},
	"image.digest":          {values: "image: {tag: v1.2.3, digest: 'sha256:" + digest + "'}", in: deployment, lines: []string{"image: ghcr.io/recast-sh/recast@sha256:" + digest}},
	"image.pullPolicy":      {values: "image: {pullPolicy: Always}", in: deployment, lines: []string{"imagePullPolicy: Always"}},
	"imagePullSecrets":      {values: "imagePullSecrets: [{name: pull}]", in: deployment, lines: []string{"imagePullSecrets:", "- name: pull"}},
	"jobImage":              {values: "jobImage: r.example/job:v1", in: deployment, lines: []string{"image: ghcr.io/recast-sh/recast:latest", "value: r.example/job:v1"}},
	"replicas":              {values: "replicas: 1", in: deployment, lines: []string{"replicas: 1"}},
	"resources":             {values: "resources: {limits: {memory: 1Gi}}", in: deployment, lines: []string{"memory: 1Gi"}},
	"podAnnotations":        {values: "podAnnotations: {a/b: c}", in: deployment, lines: []string{"annotations:", "a/b: c"}},
	"podLabels":             {values: "podLabels: {a/b: c, app.kubernetes.io/name: other}", in: deployment, lines: []string{"a/b: c", "app.kubernetes.io/name: recast-operator"}},
	"priorityClassName":     {values: "priorityClassName: high", in: deployment, lines: []string{"priorityClassName: high"}},
	"nodeSelector":          {values: "nodeSelector: {a: b}", in: deployment, lines: []string{"nodeSelector:", "a: b"}},
	"tolerations":           {values: "tolerations: [{operator: Exists}]", in: deployment, lines: []string{"tolerations:", "- operator: Exists"}},
	"affinity":              {values: "affinity: {nodeAffinity: {}}", in: deployment, lines: []string{"nodeAffinity: {}"}},
	"extraArgs":             {values: "extraArgs: [--max-retry=1h]", in: deployment, lines: []string{"- --leader-elect", "- --max-retry=1h"}},
	"userRoles":             {values: "userRoles: false", gone: []string{"ClusterRole//recast-editor", "ClusterRole//recast-viewer"}},
	"networkPolicy":         {values: "networkPolicy: false", gone: []string{"NetworkPolicy/" + namespace + "/recast-operator"}},
	"podDisruptionBudget":   {values: "podDisruptionBudget: false", gone: []string{"PodDisruptionBudget/" + namespace + "/recast-operator"}},
	"monitoring.podMonitor": {values: "monitoring: {podMonitor: {enabled: true, labels: {release: prometheus}}}", added: []string{"PodMonitor/" + namespace + "/recast-operator"}, in: "PodMonitor/" + namespace + "/recast-operator", lines: []string{"release: prometheus", "app.kubernetes.io/name: recast-operator"}},
	"monitoring.alerts":     {values: "monitoring: {alerts: {enabled: true, labels: {role: alert-rules}}}", added: []string{"PrometheusRule/" + namespace + "/recast-operator"}, in: "PrometheusRule/" + namespace + "/recast-operator", lines: []string{"role: alert-rules"}},
	"monitoring.dashboard":  {values: "monitoring: {dashboard: {enabled: true, labels: {grafana_dashboard: yes-it-is}}}", added: []string{"ConfigMap/" + namespace + "/recast-dashboard"}, in: "ConfigMap/" + namespace + "/recast-dashboard", lines: []string{"grafana_dashboard: yes-it-is"}},
	"namespaces": {
		values: "namespaces: [a, " + namespace + "]",
		gone:   []string{"ClusterRoleBinding//recast-operator"},
		added:  []string{"RoleBinding/a/recast-operator-clusters", "RoleBinding/" + namespace + "/recast-operator-clusters"},
		in:     deployment, lines: []string{"- --namespaces=a," + namespace},
	},
}

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// TestValues renders the chart with each value on its own: it does what it says, and
// nothing else changes.
func TestValues(t *testing.T) {
	t.Parallel()
	c := load(t, chartDir)
	before := mustInstall(t, c, namespace, "").objects
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			after := mustInstall(t, load(t, chartDir), namespace, change.values).objects
			want := map[string]bool{}
			for key := range before {
				want[key] = true
			}
			for _, key := range change.gone {
				delete(want, key)
			}
			for _, key := range change.added {
				want[key] = true
			}
			got := map[string]bool{}
			for key, object := range after {
				got[key] = true
				if key != change.in && before[key] != nil {
					if diff := cmp.Diff(before[key], object); diff != "" {
						t.Errorf("%s (-before +after):\n%s", key, diff)
					}
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			requireLines(t, after[change.in], change.lines)
		})
	}
	for name := range valuesOf(c.Values) {
		if _, ok := changes[name]; !ok {
			t.Errorf("no row for the value %s", name)
		}
	}
}

// valuesOf are the names of values: those of image and monitoring one level down.
func valuesOf(values map[string]any) map[string]bool {
	names := map[string]bool{}
	for name, v := range values {
		if section, ok := v.(map[string]any); ok && (name == "image" || name == "monitoring") {
			for inner := range section {
				names[name+"."+inner] = true
			}
			continue
		}
		names[name] = true
	}
	return names
}

func requireLines(t *testing.T, object map[string]any, lines []string) {
	t.Helper()
	text := must.Get(yaml.Marshal(object))(t)
	have := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		have[strings.TrimSpace(line)] = true
		have[strings.TrimPrefix(strings.TrimSpace(line), "- ")] = true
	}
	for _, line := range lines {
		if !have[line] {
			t.Errorf("no line %q in:\n%s", line, text)
		}
	}
}

// TestNamespacesAreBound: with a list of namespaces, the operator has access to these alone.
func TestNamespacesAreBound(t *testing.T) {
	t.Parallel()
	r := mustInstall(t, load(t, chartDir), "platform", "namespaces: [a]")
	requireLines(t, r.objects["RoleBinding/a/recast-operator-clusters"], []string{
		"kind: ClusterRole", "name: recast-operator", "kind: ServiceAccount", "namespace: platform",
	})
	if !strings.Contains(r.notes, "in platform. It looks at the namespaces a.") {
		t.Errorf("notes:\n%s", r.notes)
	}
}

// TestSchemaRefuses: a value that does nothing is a mistake, and so is one of another type.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"replica: 3":                                 "replica",
		"replicas: 0":                                "replicas",
		"replicas: '3'":                              "replicas",
		"image: {tags: v1}":                          "tags",
		"image: {digest: v1}":                        "digest",
		"image: {pullPolicy: Sometimes}":             "pullPolicy",
		"namespaces: a":                              "namespaces",
		"monitoring: {enabled: true}":                "enabled",
		"monitoring: {alerts: true}":                 "alerts",
		"networkPolicy: {enabled: true}":             "networkPolicy",
		"nodeSelector: {a: true}":                    "nodeSelector",
		"imagePullSecrets: [pull]":                   "imagePullSecrets",
		"monitoring: {dashboard: {labels: {a: 1}}}":  "dashboard",
		"tolerations: {key: a}":                      "tolerations",
		"podDisruptionBudget: {maxUnavailable: 50%}": "podDisruptionBudget",
	} {
		if _, err := install(t.Context(), load(t, chartDir), namespace, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error about %s", values, err, want)
		}
	}
}

// TestLint runs helm lint --strict, once with the chart's values and once with all of them.
func TestLint(t *testing.T) {
	t.Parallel()
	all := map[string]any{}
	for _, change := range changes {
		var values map[string]any
		must.Do(t, yaml.Unmarshal([]byte(change.values), &values))
		all = merged(all, values)
	}
	for name, values := range map[string]map[string]any{"default": {}, "all": all} {
		for _, m := range lint.RunAll(chartDir, values, namespace).Messages {
			if !strings.Contains(m.Error(), "icon is recommended") {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

func merged(a, b map[string]any) map[string]any {
	for k, v := range b {
		if below, ok := v.(map[string]any); ok {
			if above, ok := a[k].(map[string]any); ok {
				v = merged(above, below)
			}
		}
		a[k] = v
	}
	return a
}

var archive = flag.String("archive", "", "the chart as a release has it, of v1.2.3")

// TestArchive: what internal/tools/cmd/chart has packaged installs what the directory does, of the
// released version, and has nothing that only the repository needs.
func TestArchive(t *testing.T) {
	t.Parallel()
	if *archive == "" {
		t.Skip("no -archive: make e2e-helm makes one")
	}
	c := load(t, *archive)
	want := mustInstall(t, load(t, chartDir), namespace, "image: {tag: v1.2.3}")
	want.notes = strings.Replace(want.notes, "latest", "v1.2.3", 1)
	if diff := cmp.Diff(want, mustInstall(t, c, namespace, ""), cmp.AllowUnexported(release{})); diff != "" {
		t.Errorf("directory, archive (-want +got):\n%s", diff)
	}
	if c.Metadata.Version != "1.2.3" || len(c.CRDObjects()) != 3 {
		t.Errorf("version %s with %d CRDs", c.Metadata.Version, len(c.CRDObjects()))
	}
	for _, f := range c.Raw {
		if strings.Contains(strings.ToLower(f.Name), "kustomization") {
			t.Errorf("%s is in the archive", f.Name)
		}
	}
}
