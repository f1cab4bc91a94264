package helm

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	k8syaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/deploy"
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
	images string // in the policy of Jobs, if the value changes them
}

const policy = "ValidatingAdmissionPolicy//recast-operator-jobs"

const deployment = "Deployment/" + namespace + "/recast-operator"

// changes has a row for each value of values.yaml.
var changes = map[string]change{
	"image.repository":      {values: "image: {repository: r.example/recast}", in: deployment, lines: []string{"image: r.example/recast:latest", "value: r.example/recast:latest"}, images: "'r.example/recast:latest'"},
	"image.tag":             {values: "image: {tag: v1.2.3}", in: deployment, lines: []string{"image: ghcr.io/recast-sh/recast:v1.2.3", "value: ghcr.io/recast-sh/recast:v1.2.3"}, images: "'ghcr.io/recast-sh/recast:v1.2.3'"},
	"image.digest":          {values: "image: {tag: v1.2.3, digest: 'sha256:" + digest + "'}", in: deployment, lines: []string{"image: ghcr.io/recast-sh/recast@sha256:" + digest}, images: "'ghcr.io/recast-sh/recast@sha256:" + digest + "'"},
	"image.pullPolicy":      {values: "image: {pullPolicy: Always}", in: deployment, lines: []string{"imagePullPolicy: Always"}},
	"imagePullSecrets":      {values: "imagePullSecrets: [{name: pull}]", in: deployment, lines: []string{"imagePullSecrets:", "- name: pull"}},
	"jobImage":              {values: "jobImage: r.example/job:v1", in: deployment, lines: []string{"image: ghcr.io/recast-sh/recast:latest", "value: r.example/job:v1"}, images: "'r.example/job:v1'"},
	"jobImages":             {values: "jobImages: [r.example/job:v1, r.example/job:v2]", images: "'ghcr.io/recast-sh/recast:latest', 'r.example/job:v1', 'r.example/job:v2'"},
	"replicas":              {values: "replicas: 1", in: deployment, lines: []string{"replicas: 1"}},
	"resources":             {values: "resources: {limits: {memory: 1Gi}}", in: deployment, lines: []string{"memory: 1Gi"}},
	"podAnnotations":        {values: "podAnnotations: {a/b: c}", in: deployment, lines: []string{"annotations:", "a/b: c"}},
	"podLabels":             {values: "podLabels: {a/b: c, app.kubernetes.io/name: other}", in: deployment, lines: []string{"a/b: c", "app.kubernetes.io/name: recast-operator"}},
	"priorityClassName":     {values: "priorityClassName: high", in: deployment, lines: []string{"priorityClassName: high"}},
	"nodeLabel":             {values: "nodeLabel: a/b", in: deployment, lines: []string{"- --job-node-label=a/b", "key: a/b", "- key: a/b"}},
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
	"allNamespaces": {
		values: "allNamespaces: true", added: []string{"ClusterRoleBinding//recast-operator"}, in: deployment, lines: []string{"- --all-namespaces"},
	},
	"namespaces": {
		values: "namespaces: [a, " + namespace + "]",
		added:  []string{"RoleBinding/a/recast-operator-clusters"},
		in:     deployment, lines: []string{"- --namespaces=a," + namespace},
	},
}

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// TestValues renders the chart with each value on its own: it does what it says, and nothing else changes.
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
				if key != change.in && (key != policy || change.images == "") && before[key] != nil {
					if diff := cmp.Diff(before[key], object); diff != "" {
						t.Errorf("%s (-before +after):\n%s", key, diff)
					}
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			requireLines(t, after[change.in], change.lines)
			if change.images != "" {
				requireLines(t, after[policy], []string{"expression: '[" + strings.ReplaceAll(change.images, "'", "''") + "]'"})
			}
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
		must.Hold(t, have[line], "no line %q in:\n%s", line, text)
	}
}

// TestNamespacesAreBound: with a list of namespaces, the operator has access to these alone.
func TestNamespacesAreBound(t *testing.T) {
	t.Parallel()
	r := mustInstall(t, load(t, chartDir), "platform", "namespaces: [a, b]\njobImages: [r.example/job:v1]")
	want := manifests(t, deploy.Options{Namespace: "platform", Image: "ghcr.io/recast-sh/recast:latest", JobImages: []string{"r.example/job:v1"}, Namespaces: []string{"a", "b"}})
	delete(want, "Namespace//platform")
	if diff := cmp.Diff(want, r.objects); diff != "" {
		t.Errorf("recast operator manifests, helm (-want +got):\n%s", diff)
	}
	requireLines(t, r.objects["RoleBinding/a/recast-operator-clusters"], []string{
		"kind: ClusterRole", "name: recast-operator", "kind: ServiceAccount", "namespace: platform",
	})
	must.Hold(t, strings.Contains(r.notes, "in platform. It looks at the namespaces a, b."), "notes:\n%s", r.notes)
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
		"{namespaces: [a], allNamespaces: true}":     "'not' failed",
		"nodeLabel: a=b":                             "nodeLabel",
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
	delete(all, "allNamespaces") // not beside namespaces
	for name, values := range map[string]map[string]any{"default": {}, "all": all} {
		for _, m := range lint.RunAll(chartDir, values, namespace).Messages {
			must.Hold(t, strings.Contains(m.Error(), "icon is recommended"), "%s: %v", name, m)
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
	diff := cmp.Diff(want, mustInstall(t, c, namespace, ""), cmp.AllowUnexported(release{}))
	must.Hold(t, diff == "", "directory, archive (-want +got):\n%s", diff)
	if c.Metadata.Version != "1.2.3" || len(c.CRDObjects()) != 3 {
		t.Errorf("version %s with %d CRDs", c.Metadata.Version, len(c.CRDObjects()))
	}
	for _, f := range c.Raw {
		must.Hold(t, !strings.Contains(strings.ToLower(f.Name), "kustomization"), "%s is in the archive", f.Name)
	}
}

// TestMain silences Helm: it logs each link of the chart, and each value that is refused.
func TestMain(m *testing.M) {
	log.SetOutput(io.Discard)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

var grammar = parser.NewParser(parser.Options{})

// rules are the alerts, as Prometheus reads them from a file of its own.
func rules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	rule := manifests(t, deploy.Options{Monitoring: true})["PrometheusRule/"+namespace+"/recast-operator"]
	text := must.Get(yaml.Marshal(rule["spec"]))(t)
	groups, errs := rulefmt.Parse(text, false, model.UTF8Validation, grammar, slog.New(slog.NewTextHandler(io.Discard, nil)))
	for _, err := range errs {
		t.Error(err)
	}
	must.Be(t, groups != nil && len(groups.Groups) == 1, "groups: %+v", groups)
	return groups.Groups[0].Rules
}

// TestAlerts: Prometheus accepts them with their templates, each has what a person needs,
// and they read only series that exist.
func TestAlerts(t *testing.T) {
	t.Parallel()
	all := rules(t)
	for _, r := range all {
		requireKnown(t, r.Alert, r.Expr)
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || !slices.Contains([]string{"info", "warning", "critical"}, r.Labels["severity"]) {
			t.Errorf("%s: %v %v", r.Alert, r.Labels, r.Annotations)
		}
		doc := readFile(t, "docs/notes/operator-install.md")
		must.Hold(t, r.Labels["severity"] != "critical" || strings.Contains(doc, "`"+r.Alert+"`"),
			"docs/notes/operator-install.md does not name %s, which is critical", r.Alert)
	}
	t.Attr("alerts", strconv.Itoa(len(all)))
}

func requireKnown(t *testing.T, where, text string) {
	t.Helper()
	expr, err := grammar.ParseExpr(text)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	selectors := parser.ExtractSelectors(expr)
	must.Hold(t, len(selectors) != 0, "%s reads no series", where)
	for _, matchers := range selectors {
		i := slices.IndexFunc(matchers, func(m *labels.Matcher) bool { return m.Name == model.MetricNameLabel })
		known := slices.IndexFunc(deploy.Metrics, func(m deploy.Metric) bool { return i >= 0 && m.Name == matchers[i].Value })
		if known < 0 {
			t.Errorf("%s: %v is not in deploy.Metrics", where, matchers)
			continue
		}
		for _, m := range matchers {
			if m.Name != model.MetricNameLabel && m.Name != "job" && !slices.Contains(deploy.Metrics[known].Labels, m.Name) {
				t.Errorf("%s: %s has no label %s", where, deploy.Metrics[known].Name, m.Name)
			}
		}
	}
}

// TestDashboard parses what each panel and variable asks of Prometheus.
func TestDashboard(t *testing.T) {
	t.Parallel()
	object := manifests(t, deploy.Options{Monitoring: true})["ConfigMap/"+namespace+"/recast-dashboard"]
	var dashboard struct {
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Panels []struct {
			Title, Type string
			Targets     []struct{ Expr string }
		}
	}
	must.Do(t, json.Unmarshal([]byte(object["data"].(map[string]any)["recast.json"].(string)), &dashboard))
	defined := map[string]bool{}
	for _, v := range dashboard.Templating.List {
		defined[v.Name] = true
		if query := regexp.MustCompile(`^label_values\((.*), \w+\)$`).FindStringSubmatch(v.Definition); query != nil {
			requireKnown(t, v.Name, query[1])
		}
	}
	for _, p := range dashboard.Panels {
		must.Hold(t, p.Type == "row" || len(p.Targets) != 0, "%s shows nothing", p.Title)
		for _, target := range p.Targets {
			requireKnown(t, p.Title, target.Expr)
			for _, name := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if !defined[name[1]] {
					t.Errorf("%s: there is no variable %s", p.Title, name[1])
				}
			}
		}
	}
}

const (
	scrape = 30 * time.Second
	week   = 7 * 24 * time.Hour
)

var begin = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

// A line is a series: name and labels, as Prometheus writes them, and its value at a time
// after begin. Where that is NaN, there is none.
type line struct {
	series string
	at     func(after time.Duration) float64
}

func always(v float64) func(time.Duration) float64 { return func(time.Duration) float64 { return v } }

// during is v from one time to another, and missing before and after.
func during(from, to time.Duration, v float64) func(time.Duration) float64 {
	return func(after time.Duration) float64 {
		if after < from || after >= to {
			return math.NaN()
		}
		return v
	}
}

// except is f with gaps: a replica takes over, or is rolled.
func except(f func(time.Duration) float64, every, gap time.Duration) func(time.Duration) float64 {
	return func(after time.Duration) float64 {
		if after%every >= every-gap {
			return math.NaN()
		}
		return f(after)
	}
}

// TestFiring evaluates each alert over a week with Prometheus' own engine: when it fires
// first after begin, and for what.
func TestFiring(t *testing.T) {
	t.Parallel()
	const (
		stalled  = `recast_cluster_condition{namespace="a",cluster="c",type="Stalled",status="True",pod="p1"}`
		drifted  = `recast_cluster_condition{namespace="a",cluster="c",type="Drifted",status="True",pod="p1"}`
		drifted2 = `recast_cluster_condition{namespace="a",cluster="c",type="Drifted",status="True",pod="p2"}`
		due      = `recast_cluster_check_due_timestamp_seconds{namespace="a",cluster="c",pod="p1"}`
		leader   = `leader_election_master_status{job="recast-operator",name="recast-operator",pod="p1"}`
		backup   = `leader_election_master_status{job="recast-operator",name="recast-operator",pod="p2"}`
		other    = `leader_election_master_status{job="another-operator",name="recast-operator",pod="p3"}`
		approval = `recast_imageroll_phase{namespace="a",roll="r",cluster="c",phase="AwaitingApproval",pod="p1"}`
		failed   = `recast_imageroll_phase{namespace="a",roll="r",cluster="c",phase="Failed",pod="p1"}`
		member   = `recast_fleetroll_members{namespace="a",fleet="f",pod="p1",phase=`
	)
	at := func(d time.Duration) float64 { return float64(begin.Add(d).Unix()) }
	hourly := func(after time.Duration) float64 { return at(after.Truncate(time.Hour) + time.Hour) }
	cases := map[string]struct {
		alert string
		lines []line
		want  time.Duration // 0: never
		of    string
	}{
		"stalled":                       {"RecastClusterStalled", []line{{stalled, always(1)}}, 5 * time.Minute, `{cluster="c", namespace="a"}`},
		"not stalled, as a zero":        {"RecastClusterStalled", []line{{stalled, always(0)}}, 0, ""},
		"drifted":                       {"RecastClusterDrifted", []line{{drifted, always(1)}}, 24 * time.Hour, `{cluster="c", namespace="a"}`},
		"drifted every day until noon":  {"RecastClusterDrifted", []line{{drifted, except(always(1), 24*time.Hour, 12*time.Hour)}}, 0, ""},
		"drifted, the operator rolled":  {"RecastClusterDrifted", []line{{drifted, except(always(1), 6*time.Hour, 9*time.Minute)}}, 24 * time.Hour, `{cluster="c", namespace="a"}`},
		"drifted, another pod leads":    {"RecastClusterDrifted", []line{{drifted, during(0, 12*time.Hour, 1)}, {drifted2, during(12*time.Hour, week, 1)}}, 24 * time.Hour, `{cluster="c", namespace="a"}`},
		"checked every hour":            {"RecastClusterNotChecked", []line{{due, hourly}}, 0, ""},
		"checked once":                  {"RecastClusterNotChecked", []line{{due, always(at(time.Hour))}}, 13*time.Hour + 10*time.Minute, `{cluster="c", namespace="a"}`},
		"suspended, or without a check": {"RecastClusterNotChecked", []line{{due, during(0, 12*time.Hour, at(time.Hour))}}, 0, ""},
		"awaits approval":               {"RecastRollAwaitsApproval", []line{{approval, always(1)}}, 24 * time.Hour, `{cluster="c", namespace="a", roll="r"}`},
		"approved after a night":        {"RecastRollAwaitsApproval", []line{{approval, during(0, 23*time.Hour, 1)}}, 0, ""},
		"failed":                        {"RecastRollFailed", []line{{failed, during(3*time.Hour, week, 1)}}, 3*time.Hour + time.Minute, `{cluster="c", namespace="a", roll="r"}`},
		"a fleet that was stopped":      {"RecastFleetStalled", []line{{member + `"Failed"}`, always(2)}, {member + `"Waiting"}`, always(5)}, {member + `"Running"}`, during(0, 3*time.Hour, 1)}}, 4*time.Hour + 9*time.Minute, `{fleet="f", namespace="a"}`},
		"a fleet that goes on":          {"RecastFleetStalled", []line{{member + `"Failed"}`, always(1)}, {member + `"Waiting"}`, always(5)}, {member + `"Running"}`, except(always(1), 2*time.Hour, 30*time.Minute)}}, 0, ""},
		"a fleet that is done":          {"RecastFleetStalled", []line{{member + `"Failed"}`, always(1)}, {member + `"Waiting"}`, always(0)}, {member + `"Running"}`, always(0)}}, 0, ""},
		"a fleet that waits":            {"RecastFleetStalled", []line{{member + `"Failed"}`, always(0)}, {member + `"Waiting"}`, always(5)}, {member + `"Running"}`, always(0)}}, 0, ""},
		"a leader":                      {"RecastOperatorDown", []line{{leader, always(1)}, {backup, always(0)}}, 0, ""},
		"a leader now and then":         {"RecastOperatorDown", []line{{leader, except(always(1), time.Hour, 9*time.Minute)}}, 0, ""},
		"no leader":                     {"RecastOperatorDown", []line{{leader, always(0)}, {backup, always(0)}}, 10 * time.Minute, `{}`},
		"no operator":                   {"RecastOperatorDown", nil, 10 * time.Minute, `{}`},
		"a leader of another operator":  {"RecastOperatorDown", []line{{other, always(1)}}, 10 * time.Minute, `{}`},
		"no leader once, until it dies": {"RecastOperatorDown", []line{{leader, during(0, 48*time.Hour, 1)}}, 48*time.Hour + 10*time.Minute, `{}`},
	}
	all := rules(t)
	tried := map[string]bool{}
	for name, c := range cases {
		tried[c.alert] = true
		i := slices.IndexFunc(all, func(r rulefmt.Rule) bool { return r.Alert == c.alert })
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			when, of := firstFiring(t, all[i], c.lines)
			// Series are scraped, and rules evaluated, once in a while; absence is noticed when a sample is five minutes old.
			if late := when - c.want; (c.want == 0) != (when == 0) || late < 0 || late > 6*time.Minute || of != c.of {
				t.Errorf("fires after %v for %s, want %v for %s", when, of, c.want, c.of)
			}
		})
	}
	for _, r := range all {
		must.Hold(t, tried[r.Alert], "no case of %s", r.Alert)
	}
}

// firstFiring says when an alert fires first: its expression has had the same labels at each
// minute for as long as it asks. 0: never.
func firstFiring(t *testing.T, r rulefmt.Rule, lines []line) (when time.Duration, of string) {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 50_000_000, Timeout: time.Minute, Parser: grammar})
	t.Cleanup(func() { _ = engine.Close() })
	q := must.Get(engine.NewRangeQuery(t.Context(), stored(t, lines), nil, r.Expr, begin, begin.Add(week-time.Hour), time.Minute))(t)
	defer q.Close()
	matrix := must.Get(q.Exec(t.Context()).Matrix())(t)
	for _, series := range matrix {
		since := int64(-1)
		last := int64(-1)
		for _, p := range series.Floats {
			if last < 0 || p.T-last > time.Minute.Milliseconds() {
				since = p.T
			}
			last = p.T
			if held := time.Duration(p.T-since) * time.Millisecond; held >= time.Duration(r.For) {
				after := time.UnixMilli(p.T).Sub(begin)
				if when == 0 || after < when {
					when, of = after, series.Metric.String()
				}
				break
			}
		}
	}
	return when, of
}

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
		if kind, _ := object["kind"].(string); strings.HasPrefix(kind, "ValidatingAdmissionPolicy") {
			delete(metadata, "namespace") // Kustomize does not know that they have none; the API server drops it
		}
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
	options := deploy.Options{Namespace: "platform", Image: "registry.example/recast:v9.9.9", Replicas: 3, AllNamespaces: true, Monitoring: true}
	want := manifests(t, options)
	if diff := cmp.Diff(want, kustomize(t, overlay(t))); diff != "" {
		t.Errorf("recast operator manifests, kustomize (-want +got):\n%s", diff)
	}
	installed := mustInstall(t, load(t, chartDir), options.Namespace, `
image: {repository: registry.example/recast, tag: v9.9.9}
replicas: 3
allNamespaces: true
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
	must.Be(t, block != nil, "%s shows no kustomization.yaml", name)
	dir := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	here := must.Get(filepath.Abs(top))(t)
	relative := must.Get(filepath.Rel(dir, here))(t)
	text := regexp.MustCompile(`https://github.com/recast-sh/recast//(\S+)\?ref=v[0-9.]+`).ReplaceAllString(block[1], relative+"/$1")
	text = strings.Replace(text, "components: [", `components: ["`+relative+`/deploy/all-namespaces", `, 1)
	must.Be(t, !strings.Contains(text, "https:"), "%s loads from elsewhere:\n%s", name, text)
	must.Do(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600))
	return dir
}

func stored(t *testing.T, lines []line) storage.Queryable {
	t.Helper()
	var all []storage.Series
	for _, l := range lines {
		name := must.Get(grammar.ParseMetric(l.series))(t)
		var samples []chunks.Sample
		there := false
		for after := time.Duration(0); after < week; after += scrape {
			v := l.at(after)
			missing := math.IsNaN(v)
			if missing && there {
				v = math.Float64frombits(value.StaleNaN) // Prometheus marks the end of a series
			}
			if !missing || there {
				samples = append(samples, sample{begin.Add(after).UnixMilli(), v})
			}
			there = !missing
		}
		all = append(all, storage.NewListSeries(name, samples))
	}
	return storage.QueryableFunc(func(int64, int64) (storage.Querier, error) {
		return &storage.MockQuerier{SelectMockFunction: selecting(all)}, nil
	})
}

func selecting(all []storage.Series) func(bool, *storage.SelectHints, ...*labels.Matcher) storage.SeriesSet {
	return func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		found := slices.DeleteFunc(slices.Clone(all), func(s storage.Series) bool {
			return slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Labels().Get(m.Name)) })
		})
		return &set{found: found, i: -1}
	}
}

type set struct {
	found []storage.Series
	i     int
}

func (s *set) Next() bool                      { s.i++; return s.i < len(s.found) }
func (s *set) At() storage.Series              { return s.found[s.i] }
func (*set) Err() error                        { return nil }
func (*set) Warnings() annotations.Annotations { return nil }

// sample is a chunks.Sample of a gauge.
type sample struct {
	t int64
	v float64
}

func (s sample) T() int64                    { return s.t }
func (sample) ST() int64                     { return 0 }
func (s sample) F() float64                  { return s.v }
func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }

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
		err := yaml.UnmarshalStrict(text, into)
		must.Hold(t, err == nil, "%s: %v", key, err)
		if crd, ok := into.(*apiextensions.CustomResourceDefinition); ok && crd.Name != crd.Spec.Names.Plural+".recast.dev" {
			t.Errorf("%s defines %s of %s", crd.Name, crd.Spec.Names.Plural, crd.Spec.Group)
		}
	}
	must.Hold(t, kinds["CustomResourceDefinition"] == 3 && kinds["PodMonitor"] == 1 && kinds["PrometheusRule"] == 1,
		"%v", kinds)
}
