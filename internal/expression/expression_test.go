package expression

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/util/json"

	"github.com/recast-sh/recast/internal/sim/must"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ expr, err string }{
		"true of a status":     {"status.ceph.health == 'HEALTH_OK'", ""},
		"of a tuppr check":     {"status.conditions.filter(c, c.type == \"Synchronizing\").all(c, c.status == \"False\")", ""},
		"all of the object":    {"has(object.metadata.labels) && object.spec.replicas == status.readyReplicas", ""},
		"may be true or false": {"status.ready", ""},
		"optional fields":      {"status.?robustness.orValue('unknown') != 'degraded'", ""},
		"functions of strings": {"metadata.name.lowerAscii().startsWith('pvc-')", ""},
		"misspelt":             {"statu.ready", "not a valid expression: 1:1: undeclared reference to 'statu'"},
		"second line":          {"status.ready &&\n  spec.", "not a valid expression: 2:8: Syntax error: no viable alternative at input '.'"},
		"no truth":             {"'yes'", "its value is of type string, must be true or false"},
		"a number":             {"1 + 2", "its value is of type int, must be true or false"},
		"types that differ":    {"1 == 'a'", "not a valid expression: 1:3: found no matching overload for '_==_' applied to '(int, string)'"},
	}
	must.Each(t, cases, func(t *testing.T, tc struct{ expr, err string }) {
		must.Equal(t, "error", cmp.Or(tc.err, "<nil>"), fmt.Sprint(Check(tc.expr)))
	})
}

const degraded = `{
	"metadata": {"name": "pvc-1", "namespace": "longhorn-system", "labels": {"tier": "gold"}},
	"spec": {"replicas": 3},
	"status": {"state": "attached", "robustness": "degraded", "ready": 2, "text": "yes", "conditions": [
		{"type": "Ready", "status": "False"}, {"type": "Scheduled", "status": "True"}], "escape": "a\u001b[2J\nb"}}`

func TestJudge(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ expr, why string }{
		"holds":                   {"status.ready < spec.replicas && status.state == 'attached'", ""},
		"a field":                 {"status.robustness == 'healthy'", "status.robustness=degraded"},
		"two, and whole numbers":  {"status.ready == spec.replicas", "status.ready=2, spec.replicas=3"},
		"by the object":           {"object.status.robustness == 'healthy'", "status.robustness=degraded"},
		"by its key":              {"metadata.labels['tier'] == 'iron'", "metadata.labels.tier=gold"},
		"optional, and not there": {"status.?phase.orValue('') == 'ok'", "status.phase=(none)"},
		"conditions":              {"status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')", "status.conditions=[Ready=False Scheduled=True]"},
		"missing":                 {"status.phase == 'ok'", "status.phase=(none): no such key: phase"},
		"missing section":         {"status.ceph.health == 'ok'", "status.ceph.health=(none): no such key: ceph"},
		"asked for first":         {"has(status.phase) && status.phase == 'ok'", "status.phase=(none)"},
		"no truth after all":      {"status.text", "status.text=yes: its value is of type string, not true or false"},
		"nothing that moves":      {"status.escape == ''", "status.escape=a b"},
		"many":                    {"status.a == status.b || status.c == status.d || status.e == 1", "status.a=(none), status.b=(none), status.c=(none), status.d=(none), and 1 more fields: no such key: a"},
	}
	var object map[string]any
	must.Do(t, json.Unmarshal([]byte(degraded), &object))
	must.Each(t, cases, func(t *testing.T, tc struct{ expr, why string }) {
		expr := must.Get(Compile(tc.expr))(t)
		if holds, why := expr.Judge(t.Context(), object); why != tc.why || holds != (tc.why == "") {
			t.Errorf("%v, %q, want %q", holds, why, tc.why)
		}
	})
}

// An endless expression ends by its cost limit, and by its deadline.
func TestEnds(t *testing.T) {
	t.Parallel()
	items := make([]any, 3000)
	for i := range items {
		items[i] = int64(i)
	}
	object := map[string]any{"status": map[string]any{"items": items, "text": strings.Repeat("a", 20*exprCost)}}
	costly := must.Get(Compile(`status.text.contains("b")`))(t) // a tenth of the text's length
	must.Fail(t, must.Err(costly.holds(t.Context(), object)), "cost limit exceeded")
	expr := must.Get(Compile("status.items.all(a, a >= 0)"))(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		time.Sleep(time.Second)
		must.Fail(t, must.Err(expr.holds(ctx, object)), "interrupted")
	})
}
