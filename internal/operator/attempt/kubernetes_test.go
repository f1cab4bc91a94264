package attempt

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/recast-sh/recast/api/v1alpha1"
)

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
		h, err := kubernetesHash([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	planned := hash("", "")
	for old, replaced := range map[string]string{
		"23:14:34":                  "23:59:59",
		"cp1 is the only":           "cp2 is the only",
		`"changes":[`:               `"lacks":["kube-scheduler is not ready"],"changes":[`,
		`{"component":"kubelet","f`: `{"component":"kube-proxy","from":"a","to":"a"},{"component":"kubelet","f`,
	} {
		if hash(old, replaced) != planned {
			t.Errorf("%s → %s is another plan", old, replaced)
		}
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
	packed, err := pack(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, KeyFiles), string(packed))
	write(t, filepath.Join(dir, KeyPlan), plan)
	return dir
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestKubernetesAsApproved: the upgrade begins only while the dry run is as it was approved.
func TestKubernetesAsApproved(t *testing.T) {
	t.Parallel()
	planned, err := kubernetesHash([]byte(kubernetesReport))
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		dryRun   string // commands that stand for recast upgrade-k8s --dry-run
		progress *v1alpha1.Progress
		code     int
		message  string
		upgraded bool
	}{
		"as planned":  {dryRun: "echo '" + kubernetesReport + "'", message: "done", upgraded: true},
		"changed":     {dryRun: "echo '" + strings.Replace(kubernetesReport, "u1", "u2", 1) + "'", code: ExitRefused, message: "things are no longer as planned: make another ImageRoll"},
		"unreachable": {dryRun: "echo 'error: no answer' >&2; exit 1", code: ExitFailed, message: "no answer"},
		"begun":       {dryRun: "exit 1", progress: &v1alpha1.Progress{Updated: clock(-60)}, message: "done", upgraded: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
}
