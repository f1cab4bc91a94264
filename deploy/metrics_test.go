package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

// TestMetrics: alerts, dashboard and documentation name what is in the list, and nothing
// in the list is unused. internal/e2e/helm parses the expressions.
func TestMetrics(t *testing.T) {
	t.Parallel()
	in := manifests(t, Options{Monitoring: true})
	rule := must.Get(json.Marshal(in.others["PrometheusRule/recast-operator"]))(t)
	doc := must.Get(os.ReadFile("../docs/notes/operator-install.md"))(t)
	var listed []string
	for _, m := range Metrics {
		listed = append(listed, m.Name)
		row := fmt.Sprintf("| `%s` | %s |", m.Name, strings.Join(quoted(m.Labels), ", "))
		must.Hold(t, m.Help == "" || strings.Contains(string(doc), row+" "+m.Help+" |\n"),
			"docs/notes/operator-install.md lacks the row %s %s |", row, m.Help)
	}
	names := regexp.MustCompile(`\b(?:recast|controller_runtime|workqueue|rest_client|leader_election|process)_[a-z_]+\b`)
	used := map[string]bool{}
	for _, text := range []string{string(rule), in.dashboard.Data["recast.json"]} {
		for _, name := range names.FindAllString(text, -1) {
			used[name] = true
		}
	}
	slices.Sort(listed)
	must.Equal(t, "metrics in use", listed, slices.Sorted(maps.Keys(used)))
}

func quoted(names []string) []string {
	var all []string
	for _, name := range names {
		all = append(all, "`"+name+"`")
	}
	return all
}

// TestDashboard: Grafana can load it, and its panels do not overlap.
func TestDashboard(t *testing.T) {
	t.Parallel()
	in := manifests(t, Options{Monitoring: true})
	must.Equal(t, "label", "1", in.dashboard.Labels["grafana_dashboard"])
	var d struct {
		UID    string
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
		}
	}
	must.Do(t, json.Unmarshal([]byte(in.dashboard.Data["recast.json"]), &d))
	taken := map[[2]int]string{}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		g := p.GridPos
		must.Hold(t, !ids[p.ID] && g.X+g.W <= 24, "%s: %+v", p.Title, p)
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if taken[at] != "" {
					t.Fatalf("%s overlaps %s", p.Title, taken[at])
				}
				taken[at] = p.Title
			}
		}
	}
	must.Hold(t, d.UID == "recast" && len(d.Panels) >= 10, "%q with %d panels", d.UID, len(d.Panels))
}
