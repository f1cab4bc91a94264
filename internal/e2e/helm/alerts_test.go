package helm

import (
	"encoding/json"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/deploy"
	"github.com/recast-sh/recast/internal/sim/must"
)

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
	if groups == nil || len(groups.Groups) != 1 {
		t.Fatalf("groups: %+v", groups)
	}
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
		if r.Labels["severity"] == "critical" && !strings.Contains(doc, "`"+r.Alert+"`") {
			t.Errorf("docs/notes/operator-install.md does not name %s, which is critical", r.Alert)
		}
	}
	t.Attr("alerts", strconv.Itoa(len(all)))
}

// requireKnown checks the metrics of an expression, and the labels that it selects.
func requireKnown(t *testing.T, where, text string) {
	t.Helper()
	expr, err := grammar.ParseExpr(text)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	selectors := parser.ExtractSelectors(expr)
	if len(selectors) == 0 {
		t.Errorf("%s reads no series", where)
	}
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
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
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
