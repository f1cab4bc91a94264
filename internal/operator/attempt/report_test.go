package attempt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// TestKeep: a large text is compressed, and what was kept of it before goes.
func TestKeep(t *testing.T) {
	t.Parallel()
	a, api := testAttempt(t, Roll, interceptor.Funcs{}, results("lab-1-report"))
	for _, text := range []string{strings.Repeat("a", maxText+1), "small", strings.Repeat("b", maxText+1)} {
		if err := a.keep(t.Context(), map[string][]byte{KeyPlan: []byte(text)}); err != nil {
			t.Fatal(err)
		}
		m := &corev1.ConfigMap{}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(results("lab-1-report")), m); err != nil {
			t.Fatal(err)
		}
		if len(m.Data)+len(m.BinaryData) != 1 {
			t.Errorf("%d and %d keys", len(m.Data), len(m.BinaryData))
		}
		dir := t.TempDir() // as the kubelet mounts it
		for key, b := range m.BinaryData {
			write(t, filepath.Join(dir, key), string(b))
		}
		for key, s := range m.Data {
			write(t, filepath.Join(dir, key), s)
		}
		if got, err := result(dir, KeyPlan); err != nil || string(got) != text {
			t.Errorf("%d bytes of %d: %v", len(got), len(text), err)
		}
	}
}

var noConfigMaps = interceptor.Funcs{Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
	return errors.New("etcdserver: request is too large")
}}

// TestFinishUnkept: how a roll ended is known even if its report can't be kept.
func TestFinishUnkept(t *testing.T) {
	t.Parallel()
	a, api := testAttempt(t, Roll, noConfigMaps, imageRoll(nil), results("lab-1-report"))
	e := ended{stdout: []byte(`{"run":"r1","outcome":"done"}`)}
	if err := a.finish(t.Context(), e, newProgress([]string{"wk1"}, []string{"wk1"})); err != nil {
		t.Fatal(err)
	}
	s := statusOf(t, api)
	if s.Outcome == nil || s.Outcome.Run != "r1" || s.Outcome.Report != "" || !strings.HasPrefix(s.Outcome.Message, "done; the ConfigMap lab-1-report has no results of this: ") {
		t.Errorf("outcome: %+v", s.Outcome)
	}
	if s.Progress == nil || s.Progress.Summary != "1/1" {
		t.Errorf("progress: %+v", s.Progress)
	}
	e = ended{code: 1, stdout: []byte("no report"), trouble: trouble{Error: "wk1 is not ready"}}
	if err := a.finish(t.Context(), e, newProgress(nil, nil)); err != nil {
		t.Fatal(err)
	}
	if o := statusOf(t, api).Outcome; o.ExitCode != 1 || !strings.HasPrefix(o.Message, "wk1 is not ready; read the report of recast: ") {
		t.Errorf("outcome: %+v", o)
	}
}

// TestCheckUnkept: a check is reported even if its results can't be kept.
func TestCheckUnkept(t *testing.T) {
	t.Parallel()
	c := &v1alpha1.TalosCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "lab"}}
	a, api := testAttempt(t, Check, noConfigMaps, c)
	found := v1alpha1.Check{Job: "lab-check-1", ExitCode: 2, Problems: []string{"wk1: no answer"}}
	if err := a.conclude(t.Context(), found, map[string]any{"nodes": v1alpha1.Nodes{Total: 3}}, map[string][]byte{KeyDrift: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(c), c); err != nil {
		t.Fatal(err)
	}
	if got := c.Status.Check; got == nil || got.ExitCode != 2 || c.Status.Nodes == nil || len(got.Problems) != 2 || !strings.HasPrefix(got.Problems[1], "the ConfigMap lab-1-report has no results of this: ") {
		t.Errorf("check: %+v", got)
	}
}

// TestPlanGone: what the kubelet mounts of a ConfigMap without the plan is no plan.
func TestPlanGone(t *testing.T) {
	t.Parallel()
	a, _ := testAttempt(t, Roll, interceptor.Funcs{}, imageRoll(nil))
	dir := planOf(t, "{}")
	if err := os.Remove(filepath.Join(dir, KeyPlan)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.roll(t.Context(), dir); exitOf(err) != ExitRefused {
		t.Errorf("%v", err)
	}
}
