package page

import (
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/page/pagetest"
)

const hostile = `"><script>alert(1)</script><img src=x onerror=alert(1)>';$(reboot) ` + "\x1b[31m\u202e " + secret

// fill puts hostile text into every string of a value, and one element into each list and pointer.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostile)
	case reflect.Int32, reflect.Int64:
		v.SetInt(3)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Struct:
		for _, field := range v.Fields() {
			if field.CanSet() && v.Type() != reflect.TypeFor[metav1.Time]() {
				fill(field)
			}
		}
	}
}

// filled puts three hostile objects, whose names alone are as Kubernetes wants them, into a store. conditions
// are those of v1alpha1 that have hostile reasons and messages.
func filled(t *testing.T, phase v1alpha1.RollPhase, ready string) pagetest.Store {
	t.Helper()
	conditions := []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: ready, Message: hostile + "\n" + hostile}}
	c, r, f := &v1alpha1.TalosCluster{}, &v1alpha1.ImageRoll{}, &v1alpha1.FleetRoll{}
	for _, part := range []any{&c.Spec, &c.Status, &r.Spec, &r.Status, &f.Spec, &f.Status} {
		fill(reflect.ValueOf(part).Elem())
	}
	c.Spec.Windows, c.Spec.Drift.Schedule, c.Spec.Drift.TimeZone = nil, "17 * * * *", ""
	c.Name, c.Status.Conditions = "a", conditions
	r.Name, r.Status.Conditions, r.Spec.ClusterName, r.Status.Phase = "a-1", conditions, "a", phase
	f.Name, f.Status.Conditions = "f", conditions
	r.Labels = map[string]string{v1alpha1.LabelFleet: "f", v1alpha1.LabelCluster: hostile}
	f.Spec.Stages[0].Name, f.Status.Stage, f.Status.Members[0].Stage, f.Status.Members[0].Roll = "all", "all", "all", "a-1"
	store := stored(t, nil)
	c.Namespace, r.Namespace, f.Namespace = "ns", "ns", "ns"
	for _, err := range []error{store.Create(t.Context(), c), store.Create(t.Context(), r), store.Create(t.Context(), f)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return store
}

var all = []string{"/", "/clusters/ns/a", "/rolls/ns/a-1", "/fleets", "/fleets/ns/f"}

// Text of objects adds no markup, no control character and no secret to a page, and nothing to a command that
// a person copies.
func TestForeignText(t *testing.T) {
	t.Parallel()
	for _, phase := range []v1alpha1.RollPhase{v1alpha1.PhaseAwaitingApproval, v1alpha1.PhaseRolling, v1alpha1.PhaseFailed, hostile} {
		for _, reason := range []string{v1alpha1.ReasonAwaitingApproval, v1alpha1.ReasonStageFailed, v1alpha1.ReasonPaused, hostile} {
			v := browse(t, filled(t, phase, reason))
			for _, path := range all {
				page := v.page(path)
				for _, wrong := range []string{"<script>", "<img", "\x1b", "\u202e", "5ec0ffee"} {
					if strings.Contains(page, wrong) {
						t.Errorf("%s has %q:\n%s", path, wrong, page)
					}
				}
				if path != "/fleets" && !strings.Contains(page, "&lt;script&gt;") {
					t.Errorf("%s lacks the text", path)
				}
				for _, command := range strings.Split(page, "<pre>kubectl ")[1:] {
					if line, _, _ := strings.Cut(command, "</pre>"); strings.Contains(line, "reboot") {
						t.Errorf("%s has the command kubectl %s", path, line)
					}
				}
			}
		}
	}
}

// Objects that the operator has not looked at yet have pages, too.
func TestNew(t *testing.T) {
	t.Parallel()
	v := browse(t, stored(t, []byte(`
apiVersion: recast.dev/v1alpha1
kind: TalosCluster
metadata: {namespace: ns, name: a}
---
apiVersion: recast.dev/v1alpha1
kind: ImageRoll
metadata: {namespace: ns, name: a-1}
spec: {clusterName: a}
---
apiVersion: recast.dev/v1alpha1
kind: FleetRoll
metadata: {namespace: ns, name: f}
spec: {stages: [{name: all, selector: {}}]}
`)))
	for path, want := range map[string]string{
		"/": "a ns not begun", "/clusters/ns/a": "no check has ended yet", "/rolls/ns/a-1": "not begun", "/fleets": "f ns not looked at yet 0 of 0 done", "/fleets/ns/f": "Stage all not begun 0 of 0 clusters done",
	} {
		if got := v.words(path); !strings.Contains(got, want) {
			t.Errorf("%s without %q:\n%s", path, want, got)
		}
	}
	none := browse(t, stored(t, nil))
	for path, want := range map[string]string{"/": "there is no TalosCluster", "/fleets": "there is no FleetRoll"} {
		if got := none.words(path); !strings.Contains(got, want) {
			t.Errorf("%s without %q:\n%s", path, want, got)
		}
	}
}
