package attempt

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/sim/must"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

var began = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// clock is a time so many seconds after the attempt began.
func clock(seconds int) *metav1.Time {
	return new(metav1.NewTime(began.Add(time.Duration(seconds) * time.Second)))
}

func testAttempt(t *testing.T, kind Kind, calls interceptor.Funcs, objects ...client.Object) (*Attempt, client.Client) {
	t.Helper()
	s := runtime.NewScheme()
	must.Do(t, errors.Join(corev1.AddToScheme(s), v1alpha1.AddToScheme(s)))
	api := fake.NewClientBuilder().WithScheme(s).WithStatusSubresource(&v1alpha1.TalosCluster{}, &v1alpha1.ImageRoll{}).
		WithObjects(objects...).WithInterceptorFuncs(calls).Build()
	return &Attempt{
		Task:      Task{Kind: kind, Namespace: "clusters", Cluster: "lab", Roll: "lab-1", Job: "lab-1-roll-2", Results: "lab-1-report"},
		Recast:    Recast{Dir: t.TempDir(), Log: t.Output()},
		Reporter:  Reporter{Client: api, Log: t.Output(), Patient: 10 * time.Millisecond},
		Available: func(context.Context, string, string, string) (string, string) { return "", "" },
		Now:       func() metav1.Time { return *clock(60) },
	}, api
}

func imageRoll(p *v1alpha1.Progress) *v1alpha1.ImageRoll {
	return &v1alpha1.ImageRoll{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "lab-1"},
		Status: v1alpha1.ImageRollStatus{
			Attempts: []v1alpha1.Attempt{{Job: "lab-1-plan-1"}, {Job: "lab-1-roll-2", Started: clock(0)}},
			Outcome:  &v1alpha1.Outcome{Job: "lab-1-roll-2", ExitCode: 130}, Progress: p,
		},
	}
}

// statusOf reads the status that an attempt has written.
func statusOf(t *testing.T, api client.Client) v1alpha1.ImageRollStatus {
	t.Helper()
	r := imageRoll(nil)
	must.Do(t, api.Get(t.Context(), client.ObjectKeyFromObject(r), r))
	return r.Status
}

// TestTakeOver: the pod that replaces an evicted one continues, though its task is the same.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	finished := []string{"wk1", "wk2"}
	type example struct {
		progress *v1alpha1.Progress
		job      string
		want     bool
	}
	cases := map[string]example{
		"first pod":             {nil, "", false},
		"after another attempt": {&v1alpha1.Progress{Finished: finished, Updated: clock(-10)}, "", false},
		"after another pod":     {&v1alpha1.Progress{Finished: finished, Updated: clock(0)}, "", true},
		"outdated Job":          {&v1alpha1.Progress{Finished: finished, Updated: clock(9)}, "lab-1-roll-1", false},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		a, api := testAttempt(t, Roll, interceptor.Funcs{}, imageRoll(c.progress))
		if c.job != "" {
			a.Job = c.job
		}
		must.Do(t, a.takeOver(t.Context()))
		must.Equal(t, "continued", c.want, a.Continue)
		must.Equal(t, "what is finished is known", c.want, len(a.Finished) == len(finished))
		if o := statusOf(t, api).Outcome; o != nil {
			t.Errorf("an outcome is left: %+v", o)
		}
	})
}

// TestTakeOverWithoutAPI: the roll begins as its task says; of a deleted ImageRoll nothing does.
func TestTakeOverWithoutAPI(t *testing.T) {
	t.Parallel()
	away := interceptor.Funcs{SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
		return errors.New("connection refused")
	}}
	a, _ := testAttempt(t, Roll, away, imageRoll(&v1alpha1.Progress{Finished: []string{"wk1"}, Updated: clock(1)}))
	if err := a.takeOver(t.Context()); err != nil || a.Continue {
		t.Errorf("continue: %v: %v", a.Continue, err)
	}
	a, _ = testAttempt(t, Roll, interceptor.Funcs{})
	if err := a.takeOver(t.Context()); err == nil {
		t.Error("the roll of a deleted ImageRoll begins")
	}
}

// TestTellNow: what could not be told is told later.
func TestTellNow(t *testing.T) {
	t.Parallel()
	broken := true
	var log bytes.Buffer
	a, api := testAttempt(t, Roll, interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
		if broken {
			return errors.New("connection refused")
		}
		return c.SubResource(sub).Patch(ctx, o, p, opts...)
	}}, imageRoll(nil))
	a.Reporter.Log = &log
	p := &progress{total: 2, planned: []string{"wk1", "wk2"}, done: map[string]bool{"wk1": true}}
	a.tellNow(t.Context(), p)
	if !p.hasChanged() || log.Len() == 0 {
		t.Errorf("it is forgotten, the log has %q", log.String())
	}
	broken = false
	a.tellNow(t.Context(), p)
	got := statusOf(t, api).Progress
	if got == nil || p.hasChanged() {
		t.Fatal("it is not told")
	}
	if diff := cmp.Diff([]string{"wk1"}, got.Finished); diff != "" || !got.Updated.Equal(clock(60)) {
		t.Errorf("at %v (-want +got):\n%s", got.Updated, diff)
	}
}

// TestErrorsAreReported: what keeps the attempt itself from working is in the status.
func TestErrorsAreReported(t *testing.T) {
	t.Parallel()
	a, api := testAttempt(t, Roll, interceptor.Funcs{}, imageRoll(nil))
	if code, err := a.Run(t.Context()); code != ExitRefused || err != nil { // no plan is mounted
		t.Errorf("exit code %d: %v", code, err)
	}
	o := statusOf(t, api).Outcome
	if o == nil || o.Job != a.Job || o.ExitCode != ExitRefused || !strings.HasSuffix(o.Message, "make another ImageRoll") {
		t.Errorf("the outcome without a plan: %+v", o)
	}
	a, api = testAttempt(t, "other", interceptor.Funcs{}, imageRoll(nil))
	if code, err := a.Run(t.Context()); code != ExitConfig || err == nil {
		t.Errorf("exit code %d: %v", code, err)
	}
	if o := statusOf(t, api).Outcome; o == nil || o.ExitCode != ExitConfig || o.Message != `unknown kind of task "other"` {
		t.Errorf("the outcome of another kind: %+v", o)
	}
	c := &v1alpha1.TalosCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "lab"}}
	a, api = testAttempt(t, Check, interceptor.Funcs{}, c)
	a.For, a.Roll = "generation=1", ""
	must.Do(t, a.reportError(t.Context(), ExitFailed, errors.New("start recast: no such file")))
	must.Do(t, api.Get(t.Context(), client.ObjectKeyFromObject(c), c))
	if got := c.Status.Check; got == nil || got.ExitCode != ExitFailed || got.For != a.For || len(got.Problems) != 1 || got.Ended == nil || got.Started == nil {
		t.Errorf("the check: %+v", got)
	}
}

// TestUnfinished: a plan that begins with what an earlier run left is carried out, too.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	text := []byte(`{"version":1,"id":"0123456789abcdef","nodes":[{"node":"cp1"},{"node":"wk1","resume":true,"run":"r1"},{"node":"wk2","strategy":"recreate"},{"node":"wk3","resume":true}]}`)
	a := &Attempt{Task: Task{Kind: Roll, Roll: "lab-1", AcceptOutage: true}, Now: metav1.Now}
	var p v1alpha1.Plan
	must.Do(t, a.describePlan(&p, text))
	want := v1alpha1.Plan{
		Hash: "0123456789abcdef", Unfinished: true, Nodes: 2, LastNode: "wk3",
		Lines: []string{"wk1: finish what an earlier run left", "wk3: finish what an earlier run left"},
	}
	must.Equal(t, "", want, p)
	if _, _, err := a.approved(text); exitOf(err) != ExitRefused {
		t.Errorf("another plan than the approved one: %v", err)
	}
	a.PlanHash, a.Finished = p.Hash, []string{"wk3"}
	command, done, err := a.approved(text)
	must.Do(t, err)
	must.Equal(t, "command", "roll --only wk1,wk3 --yes -o json --progress json --accept-outage", strings.Join(command, " "))
	must.Equal(t, "progress", "1/2", done.now(a).Summary)
	if _, _, err := a.approved([]byte("{")); exitOf(err) != ExitRefused {
		t.Errorf("what is no plan: %v", err)
	}
}

func exitOf(err error) int {
	e, _ := errors.AsType[exit](err)
	return e.code
}

func results(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name}}
}

const kubernetesReport = `{"started":"2026-11-27T23:14:34Z","plan":{"cluster":"lab","from":"v1.35.4","to":"v1.36.1","nodes":[
{"node":"cp1","role":"control-plane","uuid":"u1","address":"10.0.0.1","talos":"v1.13.9","kubelet":"v1.35.4","changes":[{"component":"kubelet","from":"kubelet:v1.35.4","to":"kubelet:v1.36.1"}]}],
"warnings":["cp1 is the only control plane"]},"dryRun":true,"outcome":"nothing to do"}`

// TestKubernetesHash: it is the same until someone changes the cluster.
func TestKubernetesHash(t *testing.T) {
	t.Parallel()
	hash := func(old, replaced string) string {
		text := strings.Replace(kubernetesReport, old, replaced, 1)
		if text == kubernetesReport && old != "" {
			t.Fatalf("the report has no %s", old)
		}
		h := must.Get(kubernetesHash([]byte(text)))(t)
		return h
	}
	planned := hash("", "")
	for old, replaced := range map[string]string{
		"23:14:34":                  "23:59:59",
		"cp1 is the only":           "cp2 is the only",
		`"changes":[`:               `"lacks":["kube-scheduler is not ready"],"changes":[`,
		`{"component":"kubelet","f`: `{"component":"kube-proxy","from":"a","to":"a"},{"component":"kubelet","f`,
	} {
		must.Equal(t, old+" → "+replaced, planned, hash(old, replaced))
	}
	for old, replaced := range map[string]string{
		`"uuid":"u1"`: `"uuid":"u2"`, `"to":"v1.36.1"`: `"to":"v1.36.2"`, "v1.13.9": "v1.13.10",
		"kubelet:v1.35.4": "kubelet:v1.35.5", `"warnings"`: `"kubeProxy":{"component":"kube-proxy","from":"a","to":"b"},"warnings"`,
	} {
		if hash(old, replaced) == planned {
			t.Errorf("%s → %s is the same plan", old, replaced)
		}
	}
	if _, err := kubernetesHash([]byte("{")); err == nil {
		t.Error("what is no report has a hash")
	}
}

// planOf is a volume with the plan of a roll, as the Plan attempt has kept it.
func planOf(t *testing.T, plan string) string {
	t.Helper()
	files, dir := t.TempDir(), t.TempDir()
	write(t, filepath.Join(files, configFile), "kubernetes: {version: v1.36.1}\n")
	packed := must.Get(pack(files, nil))(t)
	write(t, filepath.Join(dir, KeyFiles), string(packed))
	write(t, filepath.Join(dir, KeyPlan), plan)
	return dir
}

func write(t *testing.T, file, text string) {
	t.Helper()
	must.Do(t, os.MkdirAll(filepath.Dir(file), 0o700))
	must.Do(t, os.WriteFile(file, []byte(text), 0o600))
}

// TestKubernetesAsApproved: the upgrade begins only while the dry run is as it was approved.
func TestKubernetesAsApproved(t *testing.T) {
	t.Parallel()
	planned := must.Get(kubernetesHash([]byte(kubernetesReport)))(t)
	type example struct {
		dryRun   string // commands that stand for recast upgrade-k8s --dry-run
		progress *v1alpha1.Progress
		code     int
		message  string
		upgraded bool
	}
	cases := map[string]example{
		"as planned":  {dryRun: "echo '" + kubernetesReport + "'", message: "done", upgraded: true},
		"changed":     {dryRun: "echo '" + strings.Replace(kubernetesReport, "u1", "u2", 1) + "'", code: ExitRefused, message: "things are no longer as planned: make another ImageRoll"},
		"unreachable": {dryRun: "echo 'error: no answer' >&2; exit 1", code: ExitFailed, message: "no answer"},
		"begun":       {dryRun: "exit 1", progress: &v1alpha1.Progress{Updated: clock(-60)}, message: "done", upgraded: true},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		a, api := testAttempt(t, Kubernetes, interceptor.Funcs{}, imageRoll(c.progress), results("lab-1-report"))
		a.PlanHash, a.Recast.Binary = planned, "/bin/sh" // it runs a file that is named like the command
		write(t, filepath.Join(a.Recast.Dir, "upgrade-k8s"), "[ \"$1\" = --yes ] && { touch upgraded; echo '{\"run\":\"r1\",\"outcome\":\"done\"}'; exit; }\n"+c.dryRun+"\n")
		code, err := a.roll(t.Context(), planOf(t, kubernetesReport))
		if known := exitOf(err); known != 0 {
			code, err = known, a.reportError(t.Context(), known, err)
		}
		if err != nil || code != c.code {
			t.Errorf("exit code %d: %v", code, err)
		}
		if o := statusOf(t, api).Outcome; o == nil || o.Message != c.message {
			t.Errorf("outcome: %+v", o)
		}
		if _, err := os.Stat(filepath.Join(a.Recast.Dir, "upgraded")); (err == nil) != c.upgraded {
			t.Errorf("upgraded: %v", err)
		}
	})
}
