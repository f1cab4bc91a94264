package kube_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
)

const (
	waitSetting = "replica-replenishment-wait-interval"
	holdMemo    = "recast.dev/hold"
)

var settingsOfLonghorn = schema.GroupVersionResource{Group: "longhorn.io", Version: "v1beta2", Resource: "settings"}

// withSetting is a lab with Longhorn's setting as longhorn-manager writes it.
func withSetting(t *testing.T) (*lab, *kube.Client) {
	t.Helper()
	l := newLab(t)
	l.install(t, "longhorn.io", "v1beta2", "settings", "Setting", true)("longhorn-system", waitSetting, map[string]any{
		"metadata": map[string]any{"name": waitSetting, "annotations": map[string]any{"longhorn.io/configmap-resource-version": "7"}},
		"value":    "600", "status": map[string]any{"applied": true},
	})
	return l, l.client(t, "system:masters")
}

// setting is the value, and the annotations besides Longhorn's own.
func (l *lab) setting(t *testing.T) (value, memo string) {
	t.Helper()
	o := must.Get(l.Store().Get(t.Context(), settingsOfLonghorn, "longhorn-system", waitSetting))(t)
	u := o.(*unstructured.Unstructured)
	must.Equal(t, "annotation of Longhorn", "7", u.GetAnnotations()["longhorn.io/configmap-resource-version"])
	value, _, _ = unstructured.NestedString(u.Object, "value")
	return value, sameRun(t, u.GetAnnotations()[holdMemo])
}

// sameRun removes the run from a memo, and when it was, after a look at them.
func sameRun(t *testing.T, memo string) string {
	t.Helper()
	run := fmt.Sprintf(`,"run":"run-1","since":"%s`, time.Now().UTC().Format("2006-01-02T"))
	before, since, found := strings.Cut(memo, run)
	if _, after, ends := strings.Cut(since, `Z"`); found && ends {
		return before + after
	}
	return memo
}

// set changes the setting as a person does, besides recast.
func (l *lab) set(t *testing.T, value, memo string) {
	t.Helper()
	o := must.Get(l.Store().Get(t.Context(), settingsOfLonghorn, "longhorn-system", waitSetting))(t)
	u := o.(*unstructured.Unstructured).DeepCopy()
	u.Object["value"] = value
	if memo != "" {
		a := u.GetAnnotations()
		a[holdMemo] = memo
		u.SetAnnotations(a)
	}
	must.Get(l.Store().Update(t.Context(), settingsOfLonghorn, u, store.Main))(t)
}

func (l *lab) requireSetting(t *testing.T, value, memo string) {
	t.Helper()
	v, m := l.setting(t)
	must.Equal(t, "value, memo", []string{value, memo}, []string{v, m})
}

// TestHoldAndGiveBack: the value and what was before are written at once, and come back exactly.
func TestHoldAndGiveBack(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l, c := withSetting(t)
		require := func(want string) func(said string, err error) {
			return func(said string, err error) {
				t.Helper()
				must.Equal(t, "said, error", []any{want, nil}, []any{said, err})
			}
		}
		require(waitSetting + " of Longhorn is 900 instead of 600")(c.HoldRebuild(t.Context(), "Longhorn", "wk1", "run-1", 15*time.Minute))
		l.requireSetting(t, "900", `{"was":"600","set":"900","nodes":{"wk1":900}}`)
		require("")(c.HoldRebuild(t.Context(), "Longhorn", "wk2", "run-1", 11*time.Minute))
		holds, err := c.Holds(t.Context())
		want := []replica.Hold{{
			System: "Longhorn", Setting: waitSetting, Now: "900", Memo: replica.Memo{Was: "600", Set: "900", Nodes: map[string]int{"wk1": 900, "wk2": 660}, Run: "run-1", Since: time.Now().UTC().Truncate(time.Second)},
			Undo: `kubectl --namespace longhorn-system patch settings.longhorn.io ` + waitSetting + ` --type merge --patch '{"value":"600","metadata":{"annotations":{"recast.dev/hold":null}}}'`,
		}}
		must.Do(t, err)
		must.Equal(t, "holds", want, holds)
		must.Equal(t, "got", "Longhorn: "+waitSetting+" was 600 before recast set it to 900, while wk1, wk2 are away", holds[0].String())
		require(waitSetting + " of Longhorn is 660, for wk2")(c.GiveBack(t.Context(), "Longhorn", "wk1"))
		require(waitSetting + " of Longhorn is 600 again")(c.GiveBack(t.Context(), "Longhorn", "wk2"))
		require("")(c.GiveBack(t.Context(), "Longhorn", "wk2"))
		l.requireSetting(t, "600", "")
		if holds, err := c.Holds(t.Context()); err != nil || len(holds) > 0 {
			t.Errorf("%v, %v", holds, err)
		}

		require(waitSetting + " of Longhorn is 900 instead of 600")(c.HoldRebuild(t.Context(), "Longhorn", "wk1", "run-1", 15*time.Minute))
		l.set(t, "1200", "")
		holds, err = c.Holds(t.Context())
		if err != nil || !strings.HasSuffix(holds[0].String(), "; someone else has set it to 1200 since") || holds[0].Undo != "kubectl --namespace longhorn-system annotate settings.longhorn.io "+waitSetting+" recast.dev/hold-" {
			t.Errorf("%v, %v", holds, err)
		}
		require(waitSetting + " of Longhorn stays 1200: someone else has set that")(c.GiveBack(t.Context(), "Longhorn", "wk1"))
		l.requireSetting(t, "1200", "")
	})
}

// TestHoldSurvivesFaults: a lost answer or a concurrent change neither loses what was before nor
// overwrites another's change.
func TestHoldSurvivesFaults(t *testing.T) {
	type row struct {
		strike func(t *testing.T, l *lab)
		was    string
	}
	cases := map[string]row{
		"the answer is lost": {func(_ *testing.T, l *lab) { l.loseAnswer() }, "600"},
		"the change is lost": {func(_ *testing.T, l *lab) { l.loseChange() }, "600"},
		"a person is faster": {func(t *testing.T, l *lab) { l.atFirstPatch(func() error { l.set(t, "700", ""); return nil }) }, "700"},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		l, c := withSetting(t)
		tc.strike(t, l)
		must.Get(c.HoldRebuild(t.Context(), "Longhorn", "wk1", "run-1", 15*time.Minute))(t)
		l.requireSetting(t, "900", `{"was":"`+tc.was+`","set":"900","nodes":{"wk1":900}}`)
		must.Get(c.GiveBack(t.Context(), "Longhorn", "wk1"))(t)
		l.requireSetting(t, tc.was, "")
	})
}

// TestHoldRefuses: nothing is written over what can't be understood, or without the right to.
func TestHoldRefuses(t *testing.T) {
	type row struct {
		do   func(t *testing.T, l *lab)
		want string
	}
	cases := map[string]row{
		"an annotation that is not ours": {func(t *testing.T, l *lab) { l.set(t, "600", "{}") }, "annotation recast.dev/hold of Longhorn's setting " + waitSetting + " is not as recast writes it"},
		"an annotation without a number": {func(t *testing.T, l *lab) { l.set(t, "900", `{"was":"{}","set":"900","nodes":{"wk1":900}}`) }, "is not as recast writes it"},
		"no number":                      {func(t *testing.T, l *lab) { l.set(t, "{}", "") }, `Longhorn's setting ` + waitSetting + `: "{}" is not a number`},
		"two settings": {func(t *testing.T, l *lab) {
			u := &unstructured.Unstructured{Object: map[string]any{"value": "1"}}
			u.SetGroupVersionKind(settingsOfLonghorn.GroupVersion().WithKind("Setting"))
			u.SetNamespace("other")
			u.SetName(waitSetting)
			l.put(t, settingsOfLonghorn, u)
		}, "Longhorn has 2 settings " + waitSetting + " instead of one"},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		l, c := withSetting(t)
		tc.do(t, l)
		value, memo := l.setting(t)
		_, err := c.HoldRebuild(t.Context(), "Longhorn", "wk1", "run-1", 15*time.Minute)
		must.FailAs(t, err, fault.Refused, tc.want)
		l.requireSetting(t, value, memo)
	})
}

// TestMayHold: doctor says beforehand that the right is missing; without it nothing is changed.
func TestMayHold(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l, c := withSetting(t)
		must.Pass(t, c.MayHold(t.Context(), "Longhorn"))
		l.Grant("readers", func(r kubeapi.Request) bool { return r.Verb == "get" || r.Verb == "list" })
		reader := l.client(t, "readers")
		must.FailAs(t, reader.MayHold(t.Context(), "Longhorn"), fault.Refused)
		start := time.Now()
		_, err := reader.HoldRebuild(t.Context(), "Longhorn", "wk1", "run-1", 15*time.Minute)
		if fault.KindOf(err) != fault.Refused || len(fault.Hints(err)) == 0 || time.Since(start) > time.Second {
			t.Errorf("%v, hints %q", err, fault.Hints(err))
		}
		l.requireSetting(t, "600", "")
	})
}
