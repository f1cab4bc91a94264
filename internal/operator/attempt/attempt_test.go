package attempt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestEdited(t *testing.T) {
	t.Parallel()
	type example struct {
		text  string
		edits [][2]string
		want  string // "": an error
	}
	cases := map[string]example{
		"replaced":    {"# ours\ntalos:\n  # renovate: x\n  version: v1.13.8 # now\n", [][2]string{{"talos.version", "v1.13.9"}}, "# ours\ntalos:\n    # renovate: x\n    version: v1.13.9 # now\n"},
		"added":       {"talos: {version: v1}\n", [][2]string{{"kubernetes.version", "v1.36.0"}}, "talos: {version: v1}\nkubernetes:\n    version: v1.36.0\n"},
		"both":        {"a:\n  b: c\n", [][2]string{{"a.b", "1"}, {"a.c", "2"}}, "a:\n    b: \"1\"\n    c: \"2\"\n"},
		"no mapping":  {"talos: v1\n", [][2]string{{"talos.version", "v1"}}, ""},
		"not YAML":    {"a: [", nil, ""},
		"empty":       {"", nil, ""},
		"no document": {"- a\n", nil, ""},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		got, err := edited([]byte(c.text), c.edits)
		if c.want == "" {
			must.Hold(t, err != nil, "no error, but %q", got)
			return
		}
		diff := cmp.Diff(c.want, string(got))
		must.Hold(t, err == nil && diff == "", "%v (-want +got):\n%s", err, diff)
	})
}

// TestSaid reads what recast prints on stderr.
func TestSaid(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var events []event
	l := &lineReader{log: &log, onEvent: func(e event) { events = append(events, e) }}
	said := `{"time":"2026-11-27T21:32:15Z","msg":"step","step":"roll/workers/wk1","status":"started","node":"wk1","title":"recreate wk1"}
{not JSON
error: an earlier one
{"time":"2026-11-27T21:32:15Z","msg":"said","text":"error: 2 nodes can't be rolled"}
  wk1: no quorum
safe: nothing was changed
hint: wait
hint: or ask
runbook: recast runbook refused (https://example.com)
`
	for _, part := range []string{said[:30], said[30:120], said[120:]} { // pipes have no lines
		must.Get(l.Write([]byte(part)))(t)
	}
	must.Equal(t, "trouble", "2 nodes can't be rolled; wk1: no quorum; wait; or ask", l.trouble().String())
	must.Equal(t, "runbook", "refused", l.trouble().Runbook)
	must.Hold(t, len(events) == 1 && events[0].Node == "wk1", "events: %+v", events)
	must.Equal(t, "the log has", said, log.String())
}

func TestProgress(t *testing.T) {
	t.Parallel()
	a := &Attempt{Now: metav1.Now}
	p := &progress{total: 3, planned: []string{"wk1", "wk2", "cp1"}, done: map[string]bool{"wk2": true}}
	for _, e := range []event{
		{Step: "build", Status: "started", Title: "build images"},
		{Step: "roll/canary/wk1", Status: "started", Node: "wk1", Title: "recreate wk1"},
		{Step: "roll/canary/wk1/take-down/drain", Status: "note", Node: "wk1", Title: "drain", Text: "3 pods are left"},
	} {
		p.see(e)
	}
	got := p.now(a)
	got.Updated = nil
	want := v1alpha1.Progress{Done: 1, Total: 3, Summary: "1/3", Finished: []string{"wk2"}, Node: "wk1", Message: "drain: 3 pods are left"}
	must.Equal(t, "", want, got)
	p.see(event{Step: "roll/canary/wk1", Status: "done", Node: "wk1"})
	p.see(event{Step: "roll/unfinished/other", Status: "done", Node: "other"}) // of an earlier plan
	must.Equal(t, "then", "2/3", p.now(a).Summary)
}

func TestPack(t *testing.T) {
	t.Parallel()
	from, into := t.TempDir(), t.TempDir()
	for file, text := range map[string]string{"recast.yaml": "a", "schematics/base.yaml": "b", ".recast/runs/x": "secret", "machine/cp1.yaml": "secret"} {
		file = filepath.Join(from, file)
		must.Do(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must.Do(t, os.WriteFile(file, []byte(text), 0o600))
	}
	packed := must.Get(pack(from, []v1alpha1.SecretFile{{Path: "machine//cp1.yaml"}}))(t)
	must.Do(t, unpack(into, bytes.NewReader(packed)))
	var files []string
	err := filepath.WalkDir(into, func(file string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s is no program: %v %v", file, info, err)
			}
			files = append(files, strings.TrimPrefix(file, into+"/"))
		}
		return err
	})
	diff := cmp.Diff([]string{"recast.yaml", "schematics/base.yaml"}, files)
	must.Hold(t, err == nil && diff == "", "%v (-want +got):\n%s", err, diff)
}

func TestDoctorLines(t *testing.T) {
	t.Parallel()
	got := doctorLines([]byte(`{"checks":[{"what":"quorum","state":"ok","seen":"yes"},{"what":"VM.Audit on /vms","state":"problem","seen":"missing","remedy":["pveum role add A","pveum acl modify /vms"]}]}`))
	must.Equal(t, "", []string{"doctor: VM.Audit on /vms: missing: pveum role add A; pveum acl modify /vms"}, got)
	many := make([]string, 30)
	if got := firstLines(many); len(got) != maxLines || got[maxLines-1] != "and 11 more" {
		t.Errorf("%d lines, the last one: %s", len(got), got[len(got)-1])
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	must.Equal(t, "the older one", "v1.13.9", older(older("", "v1.13.9"), "v1.13.10"))
	must.Equal(t, "the newer ones are", "v1.13.10", ifNewer("v1.13.9", "v1.13.9")+ifNewer("v1.13.10", "v1.13.9"))
}

func TestTask(t *testing.T) {
	t.Parallel()
	want := Task{Kind: Roll, Namespace: "a", Cluster: "b", Roll: "b-1", Job: "b-1-roll-2", PlanHash: "1234", Source: v1alpha1.Source{ConfigMap: &v1alpha1.ConfigMapSource{Name: "c"}}}
	got, err := ReadTask(want.String())
	diff := cmp.Diff(want, got)
	must.Hold(t, err == nil && diff == "", "%v (-want +got):\n%s", err, diff)
	for _, text := range []string{"", "{"} {
		if _, err := ReadTask(text); err == nil {
			t.Errorf("%q is a task", text)
		}
	}
}

// TestMissing names what the kubelet could not mount, and how to make it.
func TestMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), "secret\n")
	write(t, filepath.Join(dir, "blank"), " \n")
	write(t, filepath.Join(dir, "env", "HOOK_TOKEN"), "secret")
	must.Do(t, os.MkdirAll(filepath.Join(dir, "absent", "..data"), 0o700))
	a := &Attempt{Task: Task{Namespace: "clusters", Secrets: []Mounted{
		{Path: filepath.Join(dir, "token"), Secret: "a", Key: "token", Field: "spec.secrets.proxmoxToken"},
		{Path: filepath.Join(dir, "blank"), Secret: "b", Key: "talosconfig", Field: "spec.secrets.talosconfig"},
		{Path: filepath.Join(dir, "env"), Secret: "c", Field: "spec.secrets.envFrom"},
		{Path: filepath.Join(dir, "absent"), Secret: "d", Field: "spec.secrets.envFrom"},
		{Path: filepath.Join(dir, "trust", "ca.crt"), Secret: "e", ConfigMap: true, Key: "ca.crt", Field: "spec.job.trustBundle"},
	}}}
	want := []string{
		"spec.secrets.talosconfig: the Secret b has no key talosconfig, or is missing in the namespace clusters: kubectl -n clusters create secret generic b --from-file=talosconfig=FILE",
		"spec.secrets.envFrom: the Secret d has no keys, or is missing in the namespace clusters: kubectl -n clusters create secret generic d --from-literal=NAME=VALUE",
		"spec.job.trustBundle: the ConfigMap e has no key ca.crt, or is missing in the namespace clusters: kubectl -n clusters create configmap e --from-file=ca.crt=FILE",
	}
	must.Equal(t, "", want, a.missing())
}

// TestPackSecrets: nothing secret gets into a ConfigMap.
func TestPackSecrets(t *testing.T) {
	t.Parallel()
	type example struct {
		text   string
		secret bool
	}
	cases := map[string]example{
		"PEM":               {"-----BEGIN PRIVATE KEY-----\nabc", true},
		"PEM of a kind":     {"key: |\n  -----BEGIN ED25519 PRIVATE KEY-----\n", true},
		"age":               {"# public key: age1\nAGE-SECRET-KEY-1ABC\n", true},
		"machine":           {"machine:\n  ca:\n    crt: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t\n    key: LS0tLS1CRUdJTiBF\n", true},
		"machine's token":   {"machine:\n  token: abcdef.0123456789abcdef\n", true},
		"cluster's secret":  {"cluster:\n  secret: c2VjcmV0\n", true},
		"cluster's ID":      {"cluster:\n  id: c2VjcmV0\n", true},
		"encryption secret": {"cluster:\n  secretboxEncryptionSecret: c2VjcmV0\n", true},
		"kubeconfig":        {"users:\n  - user:\n      client-key-data: c2VjcmV0\n", true},
		"Proxmox' token":    {"#!/bin/sh\nexport PROXMOX_VE_API_TOKEN='recast@pve!roll=01234567-89ab-cdef-0123-456789abcdef'\n", true},
		"in a comment":      {"# was recast@pve!roll=01234567-89ab-cdef-0123-456789abcdef\n", true},
		"login":             {"curl -H 'Authorization: Bearer abcdef0123456789'\n", true},
		"password in a URL": {"url: https://me:hunter22@git.example/x\n", true},
		"some not by sops":  {"token: abcdef.0123456789abcdef\nsops:\n  mac: ENC[AES256_GCM,data:x]\n", true},
		"variable":          {"#!/bin/sh\nexport TOKEN=\"$OTHER\"; curl -H \"Authorization: Bearer ${TOKEN}\"; PASSWORD=$(pass show x)\n", false},
		"of a workflow":     {"env:\n  PROXMOX_VE_API_TOKEN: ${{ secrets.TOKEN }}\n", false},
		"of a Secret":       {"env:\n  - name: TOKEN\n    valueFrom: {secretKeyRef: {name: recast, key: token}}\n", false},
		"example":           {"# PROXMOX_VE_API_TOKEN has the form user@realm!id=uuid\n", false},
		"recast.yaml":       {"version: 1\nproxmox:\n  fingerprint: AA:BB\n", false},
		"quoted":            {"ca: {crt: \"\", key: \"LS0tLS1CRUdJTiBF\"}", true},
		"JSON":              {`{"crt":"","key":"LS0tLS1CRUdJTiBF"}`, true},
		"folded":            {"key: >-\n    LS0tLS1CRUdJTiBF\n", true},
		"certificate":       {"crt: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t\nca: |\n  -----BEGIN CERTIFICATE-----\n", false},
		"encrypted by sops": {"key: ENC[AES256_GCM,data:LS0tLS1CRUdJTiBF]\nenc: |\n  -----BEGIN AGE ENCRYPTED FILE-----\n", false},
		"public key":        {"-----BEGIN PUBLIC KEY-----\n", false},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "machine", "cp1.yaml"), c.text)
		_, err := pack(dir, nil)
		must.Be(t, (err != nil) == c.secret, "%v", err)
		if c.secret && (exitOf(err) != ExitConfig || !strings.HasPrefix(err.Error(), "machine/cp1.yaml has a ") || !strings.HasSuffix(err.Error(), "put the file into a Secret and name that in spec.secrets.files")) {
			t.Errorf("exit code %d: %v", exitOf(err), err)
		}
		if _, err := pack(dir, []v1alpha1.SecretFile{{Path: "machine/cp1.yaml"}}); err != nil {
			t.Errorf("what is in a Secret is not packed: %v", err)
		}
	})
}

// TestArrange: snapshots go to their volume, and a check finds a secret before a plan does.
func TestArrange(t *testing.T) {
	t.Parallel()
	a, _ := testAttempt(t, Check, interceptor.Funcs{})
	write(t, filepath.Join(a.Recast.Dir, configFile), "version: 1\n")
	must.Do(t, a.arrange())
	b, err := os.ReadFile(filepath.Join(a.Recast.Dir, configFile))
	must.Hold(t, err == nil && strings.Contains(string(b), "etcdSnapshot: "+BackupDir),
		"etcd snapshots would go into memory: %v\n%s", err, b)
	write(t, filepath.Join(a.Recast.Dir, "keys.txt"), "AGE-SECRET-KEY-1ABC")
	if err := a.arrange(); err == nil || !strings.HasPrefix(err.Error(), "keys.txt has a key, a token or a login in line 1") {
		t.Errorf("%v", err)
	}
}

// TestKeep: a large text is compressed, and what was kept of it before goes.
func TestKeep(t *testing.T) {
	t.Parallel()
	a, api := testAttempt(t, Roll, interceptor.Funcs{}, results("lab-1-report"))
	for _, text := range []string{strings.Repeat("a", maxText+1), "small", strings.Repeat("b", maxText+1)} {
		must.Do(t, a.keep(t.Context(), map[string][]byte{KeyPlan: []byte(text)}))
		m := &corev1.ConfigMap{}
		must.Do(t, api.Get(t.Context(), client.ObjectKeyFromObject(results("lab-1-report")), m))
		must.Equal(t, "number of keys", 1, len(m.Data)+len(m.BinaryData))
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
	must.Do(t, a.finish(t.Context(), e, newProgress([]string{"wk1"}, []string{"wk1"})))
	s := statusOf(t, api)
	if s.Outcome == nil || s.Outcome.Run != "r1" || s.Outcome.Report != "" || !strings.HasPrefix(s.Outcome.Message, "done; the ConfigMap lab-1-report has no results of this: ") {
		t.Errorf("outcome: %+v", s.Outcome)
	}
	must.Hold(t, s.Progress != nil && s.Progress.Summary == "1/1", "progress: %+v", s.Progress)
	e = ended{code: 1, stdout: []byte("no report"), trouble: trouble{Error: "wk1 is not ready"}}
	must.Do(t, a.finish(t.Context(), e, newProgress(nil, nil)))
	if o := statusOf(t, api).Outcome; o.ExitCode != 1 || !strings.HasPrefix(o.Message, "wk1 is not ready; read the report of recast: ") {
		t.Errorf("outcome: %+v", o)
	}
}

// TestSecretsStayInThePod: what a program printed has no secret of the pod in a status or a ConfigMap, which more people
// may read; hashes stay whole.
func TestSecretsStayInThePod(t *testing.T) {
	t.Parallel()
	const token, key = "recast@pve!ci=0b5ad5a5-4c0e-4f3c-9a53-4b1f6a1f0d11", "dGhlIGtleSBvZiBhIGNsaWVudCwgd2hpY2ggaXMgbG9uZw=="
	a, api := testAttempt(t, Roll, interceptor.Funcs{}, imageRoll(nil), results("lab-1-report"))
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), token+"\n")
	write(t, filepath.Join(dir, "kubeconfig"), "users: [{name: a, user: {client-key-data: "+key+"}}]\n")
	a.Secrets = []Mounted{{Path: filepath.Join(dir, "token")}, {Path: filepath.Join(dir, "kubeconfig")}, {Path: filepath.Join(dir, "gone")}}
	a.Reporter.Hide = redact.New(a.known())
	p := newProgress([]string{"wk1"}, nil)
	p.see(event{Step: "roll/wk1/settle", Status: "note", Node: "wk1", Text: "the hook printed " + key})
	a.tellNow(t.Context(), p)
	e := ended{code: 1, stdout: []byte(`{"run":"r1","outcome":"failed: ` + token + `"}`), trouble: trouble{Error: "401 for " + token}}
	must.Do(t, a.finish(t.Context(), e, p))
	hash := contents(nil, nil)
	must.Do(t, a.report(t.Context(), map[string]any{"plan": v1alpha1.Plan{Hash: "0123456789abcdef", Contents: hash}}))
	m := &corev1.ConfigMap{}
	must.Do(t, api.Get(t.Context(), client.ObjectKeyFromObject(results("lab-1-report")), m))
	s := statusOf(t, api)
	must.Equal(t, "hash", hash, s.Plan.Contents)
	written := string(must.Get(json.Marshal(s))(t)) + m.Data[KeyReport]
	for _, secret := range []string{key, "0b5ad5a5"} {
		must.Hold(t, !strings.Contains(written, secret), "%s is in\n%s", secret, written)
	}
	must.Hold(t, strings.Contains(s.Outcome.Message, "401 for") && strings.Contains(s.Progress.Message, "the hook printed"), "%+v %+v", s.Outcome, s.Progress)
}

// TestCheckUnkept: a check is reported even if its results can't be kept.
func TestCheckUnkept(t *testing.T) {
	t.Parallel()
	c := &v1alpha1.TalosCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "lab"}}
	a, api := testAttempt(t, Check, noConfigMaps, c)
	found := v1alpha1.Check{Job: "lab-check-1", ExitCode: 2, Problems: []string{"wk1: no answer"}}
	must.Do(t, a.conclude(t.Context(), found, map[string]any{"nodes": v1alpha1.Nodes{Total: 3}}, map[string][]byte{KeyDrift: []byte("{}")}))
	must.Do(t, api.Get(t.Context(), client.ObjectKeyFromObject(c), c))
	if got := c.Status.Check; got == nil || got.ExitCode != 2 || c.Status.Nodes == nil || len(got.Problems) != 2 || !strings.HasPrefix(got.Problems[1], "the ConfigMap lab-1-report has no results of this: ") {
		t.Errorf("check: %+v", got)
	}
}

// TestPlanGone: what the kubelet mounts of a ConfigMap without the plan is no plan.
func TestPlanGone(t *testing.T) {
	t.Parallel()
	a, _ := testAttempt(t, Roll, interceptor.Funcs{}, imageRoll(nil))
	dir := planOf(t, a, "{}")
	must.Do(t, os.Remove(filepath.Join(dir, KeyPlan)))
	if _, err := a.roll(t.Context(), dir); exitOf(err) != ExitRefused {
		t.Errorf("%v", err)
	}
}

// TestRewrittenPlan: who may write the ConfigMap of an approved plan decides neither what runs nor what is unpacked,
// though the plan has the same ID.
func TestRewrittenPlan(t *testing.T) {
	t.Parallel()
	const unfinished = `{"version":1,"id":"0123456789abcdef","nodes":[{"node":"wk1","resume":true}]}`
	cases := map[string]func(t *testing.T, a *Attempt, dir string){
		"other files": func(t *testing.T, _ *Attempt, dir string) {
			write(t, filepath.Join(dir, KeyFiles), packedFiles(t, "gates: {http: [{url: http://198.51.100.1}]}\n"))
		},
		"another plan of the same ID": func(t *testing.T, _ *Attempt, dir string) {
			write(t, filepath.Join(dir, KeyPlan), strings.Replace(unfinished, "wk1", "cp1", 1))
		},
		"a task without the hash": func(_ *testing.T, a *Attempt, _ string) { a.Contents = "" },
	}
	must.Each(t, cases, func(t *testing.T, rewrite func(*testing.T, *Attempt, string)) {
		a, _ := testAttempt(t, Roll, interceptor.Funcs{}, imageRoll(nil))
		a.PlanHash, a.Recast.Binary = "0123456789abcdef", "/bin/false"
		dir := planOf(t, a, unfinished)
		rewrite(t, a, dir)
		_, err := a.roll(t.Context(), dir)
		must.Hold(t, exitOf(err) == ExitRefused && strings.Contains(err.Error(), "not those that were approved"), "%v", err)
		must.Equal(t, "unpacked files", 0, len(must.Get(os.ReadDir(a.Recast.Dir))(t)))
	})
}

// TestRewrittenLock: a kept lock that the last check did not write is none.
func TestRewrittenLock(t *testing.T) {
	t.Parallel()
	const kept = "version: 1\n"
	dir := t.TempDir()
	write(t, filepath.Join(dir, KeyLock), kept)
	a, _ := testAttempt(t, Check, interceptor.Funcs{})
	for _, a.KeptLock = range []string{sum([]byte("another")), ""} {
		if _, err := a.keptLock(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", a.KeptLock, err)
		}
	}
	a.KeptLock = sum([]byte(kept))
	must.Equal(t, "lock", kept, string(must.Get(a.keptLock(dir))(t)))
}

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
		Reporter:  Reporter{Client: api, Log: t.Output(), Patient: 10 * time.Millisecond, Hide: redact.New(nil)},
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
		o := statusOf(t, api).Outcome
		must.Hold(t, o == nil, "an outcome is left: %+v", o)
	})
}

// TestTakeOverWithoutAPI: the roll begins as its task says; of a deleted ImageRoll nothing does.
func TestTakeOverWithoutAPI(t *testing.T) {
	t.Parallel()
	away := interceptor.Funcs{SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
		return errors.New("connection refused")
	}}
	a, _ := testAttempt(t, Roll, away, imageRoll(&v1alpha1.Progress{Finished: []string{"wk1"}, Updated: clock(1)}))
	err := a.takeOver(t.Context())
	must.Hold(t, err == nil && !a.Continue, "continue: %v: %v", a.Continue, err)
	a, _ = testAttempt(t, Roll, interceptor.Funcs{})
	must.Hold(t, a.takeOver(t.Context()) != nil, "the roll of a deleted ImageRoll begins")
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
	must.Be(t, got != nil && !p.hasChanged(), "it is not told")
	diff := cmp.Diff([]string{"wk1"}, got.Finished)
	must.Hold(t, diff == "" && got.Updated.Equal(clock(60)), "at %v (-want +got):\n%s", got.Updated, diff)
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
		must.Be(t, text != kubernetesReport || old == "", "the report has no %s", old)
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
		must.Hold(t, hash(old, replaced) != planned, "%s → %s is the same plan", old, replaced)
	}
	if _, err := kubernetesHash([]byte("{")); err == nil {
		t.Error("what is no report has a hash")
	}
}

// planOf is a volume with the plan of a roll, as the Plan attempt has kept it and a person has approved it.
func planOf(t *testing.T, a *Attempt, plan string) string {
	t.Helper()
	dir := t.TempDir()
	packed := packedFiles(t, "kubernetes: {version: v1.36.1}\n")
	write(t, filepath.Join(dir, KeyFiles), packed)
	write(t, filepath.Join(dir, KeyPlan), plan)
	a.Contents = contents([]byte(plan), []byte(packed))
	return dir
}

func packedFiles(t *testing.T, config string) string {
	t.Helper()
	files := t.TempDir()
	write(t, filepath.Join(files, configFile), config)
	return string(must.Get(pack(files, nil))(t))
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
		"changed":     {dryRun: "echo '" + strings.Replace(kubernetesReport, "u1", "u2", 1) + "'", code: ExitRefused, message: "the cluster is no longer as planned: make another ImageRoll"},
		"unreachable": {dryRun: "echo 'error: no answer' >&2; exit 1", code: ExitFailed, message: "no answer"},
		"begun":       {dryRun: "exit 1", progress: &v1alpha1.Progress{Updated: clock(-60)}, message: "done", upgraded: true},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		a, api := testAttempt(t, Kubernetes, interceptor.Funcs{}, imageRoll(c.progress), results("lab-1-report"))
		a.PlanHash, a.Recast.Binary = planned, "/bin/sh" // it runs a file that is named like the command
		write(t, filepath.Join(a.Recast.Dir, "upgrade-k8s"), "[ \"$1\" = --yes ] && { touch upgraded; echo '{\"run\":\"r1\",\"outcome\":\"done\"}'; exit; }\n"+c.dryRun+"\n")
		code, err := a.roll(t.Context(), planOf(t, a, kubernetesReport))
		if known := exitOf(err); known != 0 {
			code, err = known, a.reportError(t.Context(), known, err)
		}
		must.Hold(t, err == nil && code == c.code, "exit code %d: %v", code, err)
		o := statusOf(t, api).Outcome
		must.Hold(t, o != nil && o.Message == c.message, "outcome: %+v", o)
		if _, err := os.Stat(filepath.Join(a.Recast.Dir, "upgraded")); (err == nil) != c.upgraded {
			t.Errorf("upgraded: %v", err)
		}
	})
}
