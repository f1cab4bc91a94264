package attempt

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/redact"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func (a *Attempt) stop(ctx context.Context, code int, message string) (int, error) {
	return code, a.report(ctx, map[string]any{"outcome": v1alpha1.Outcome{Job: a.Job, ExitCode: int32(code), Message: message}})
}

func (a *Attempt) roll(ctx context.Context, planDir string) (int, error) {
	if err := a.takeOver(ctx); err != nil {
		return ExitFailed, err
	}
	plan, err := a.unpackPlan(planDir)
	if err != nil {
		return ExitFailed, exit{ExitRefused, fmt.Errorf("the ConfigMap %s-plan: %w: make another ImageRoll", a.Roll, err)}
	}
	if err := a.secretFiles(a.Recast.Dir); err != nil {
		return ExitFailed, err
	}
	if problems := a.missing(); len(problems) > 0 {
		return a.stop(ctx, ExitConfig, strings.Join(problems, "; "))
	}
	command, p, err := a.approved(plan)
	if err != nil {
		return ExitFailed, err
	}
	if a.Kind == Kubernetes && !a.begun {
		if code, message, err := a.stillApproved(ctx); err != nil || code != ExitDone {
			if err != nil {
				return ExitFailed, err
			}
			return a.stop(ctx, code, message)
		}
	}
	a.tellNow(ctx, p) // so that a pod that replaces this one continues the roll
	stop := a.tell(ctx, p)
	e, err := a.Recast.run(ctx, p.see, command...)
	stop()
	if err != nil {
		return ExitFailed, err
	}
	return e.code, a.finish(ctx, e, p)
}

// approved returns the command that carries out the approved plan, and the progress before it. It fails if the plan
// is another one, or no plan.
func (t Task) approved(text []byte) (command []string, p *progress, err error) {
	if t.Kind == Kubernetes {
		return []string{"upgrade-k8s", "--yes", "-o", "json", "--progress", "json"}, newProgress([]string{""}, nil), nil
	}
	id, nodes, err := unfinished(text)
	if err == nil && len(nodes) > 0 {
		if id != t.PlanHash {
			return nil, nil, t.otherPlan(id)
		}
		command = []string{"roll", "--only", strings.Join(nodes, ","), "--yes", "-o", "json", "--progress", "json"}
		if t.AcceptOutage {
			command = append(command, "--accept-outage")
		}
		return command, newProgress(nodes, t.Finished), nil
	}
	plan, err := planning.Read(text)
	if err != nil {
		return nil, nil, exit{ExitRefused, fmt.Errorf("the plan in the ConfigMap %s-plan: %w: make another ImageRoll", t.Roll, err)}
	}
	if plan.ID != t.PlanHash {
		return nil, nil, t.otherPlan(plan.ID)
	}
	for _, n := range plan.Work() {
		nodes = append(nodes, n.Node)
	}
	command = []string{"roll", "--plan", KeyPlan, "--yes", "-o", "json", "--progress", "json"}
	if t.Continue {
		command = append(command, "--continue")
	}
	return command, newProgress(nodes, t.Finished), nil
}

func (t Task) otherPlan(id string) error {
	return exit{ExitRefused, fmt.Errorf("the ConfigMap %s-plan has plan %s, but %s was approved: make another ImageRoll", t.Roll, id, t.PlanHash)}
}

// finish reports how a roll ended, and then keeps the report.
func (a *Attempt) finish(ctx context.Context, e ended, p *progress) error {
	outcome := v1alpha1.Outcome{Job: a.Job, ExitCode: int32(e.code), Message: e.String()}
	results, failed := a.Recast.describeReport(&outcome, e.stdout)
	if failed != nil {
		outcome.Message = joined(outcome.Message, failed.Error())
	}
	if len(results) > 0 {
		outcome.Report = a.Results
	}
	if err := a.report(ctx, map[string]any{"outcome": outcome, "progress": p.now(a)}); err != nil {
		return err
	}
	if err := a.keep(ctx, results); err != nil {
		outcome.Report, outcome.Message = "", joined(outcome.Message, a.notKept(err))
		return a.report(ctx, map[string]any{"outcome": outcome})
	}
	return nil
}

// describeReport fills in the outcome from recast's output, and returns the results to keep.
func (r Recast) describeReport(outcome *v1alpha1.Outcome, stdout []byte) (map[string][]byte, error) {
	if len(stdout) == 0 {
		return nil, nil
	}
	var report struct {
		Run     string   `json:"run"`
		Outcome string   `json:"outcome"`
		Pages   []string `json:"pages"`
	}
	if err := json.Unmarshal(stdout, &report); err != nil {
		return nil, fmt.Errorf("read the report of recast: %w", err)
	}
	outcome.Run = report.Run
	outcome.Message = cmp.Or(outcome.Message, report.Outcome)
	results := map[string][]byte{KeyReport: stdout}
	if n := len(report.Pages); n > 0 {
		page, err := os.ReadFile(filepath.Join(r.Dir, report.Pages[n-1]))
		if err == nil {
			results[KeyHTML] = page
		}
	}
	return results, nil
}

func joined(message, further string) string { return strings.TrimPrefix(message+"; "+further, "; ") }

// unpackPlan unpacks the files of the plan, writes plan.json beside recast.yaml, and returns the text of plan.json. It
// fails unless plan and files are what was approved: others may write to the ConfigMap that has them.
func (a *Attempt) unpackPlan(dir string) ([]byte, error) {
	packed, err := os.ReadFile(filepath.Join(dir, KeyFiles))
	if err != nil {
		return nil, err
	}
	text, err := result(dir, KeyPlan)
	if err != nil {
		return nil, err
	}
	if found := contents(text, packed); found != a.Contents {
		return nil, fmt.Errorf("its plan and files are not those that were approved: they have %s, and status.plan.contents was %q", found, a.Contents)
	}
	if err := unpack(a.Recast.Dir, bytes.NewReader(packed)); err != nil {
		return nil, err
	}
	return text, os.WriteFile(filepath.Join(a.Recast.Dir, KeyPlan), text, 0o600)
}

// takeOverPatience is how long a roll waits for the Kubernetes API before it begins without the API.
const takeOverPatience = 30 * time.Second

// takeOver prepares for continuing the work of an earlier pod of this Job: an evicted pod is replaced by a pod with the
// same task. takeOver removes the outcome that the earlier pod may have reported, and reads what the pod has done. If
// the API is unreachable, the task is used unchanged: without --continue recast refuses a plan that has begun, which
// changes nothing; with --continue recast would accept nodes that someone else has changed since the approval.
func (a *Attempt) takeOver(ctx context.Context) error {
	a.begun = a.Continue
	r := &v1alpha1.ImageRoll{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Roll}}
	reporter := a.Reporter
	reporter.Patient = min(reporter.Patient, takeOverPatience)
	err := reporter.lastWords(ctx, "read what was done of ImageRoll "+a.Roll, func(ctx context.Context) error {
		return reporter.status(ctx, r, map[string]any{"outcome": nil})
	})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("ImageRoll %s was deleted: %w", a.Roll, err)
	}
	if err != nil {
		fmt.Fprintf(a.Reporter.Log, "%v: the roll begins as its task says\n", err)
		return nil
	}
	n, p := len(r.Status.Attempts), r.Status.Progress
	a.begun = p != nil
	if n == 0 || p == nil || p.Updated == nil {
		return nil
	}
	if newest := r.Status.Attempts[n-1]; newest.Job == a.Job && newest.Started != nil && !p.Updated.Before(newest.Started) {
		a.Continue, a.Finished = true, p.Finished
	}
	return nil
}

// kubernetesPlan is the part of recast upgrade-k8s --dry-run -o json that changes only if someone changes the
// cluster. It has no times, no warnings, and not which pods are restarting.
type kubernetesPlan struct {
	Cluster string `json:"cluster"`
	To      string `json:"to"`
	Nodes   []struct {
		Node    string        `json:"node"`
		Role    string        `json:"role"`
		UUID    string        `json:"uuid"`
		Address string        `json:"address"`
		Talos   string        `json:"talos"`
		Changes []imageChange `json:"changes"`
	} `json:"nodes"`
	Proxy *imageChange `json:"kubeProxy"`
}

type imageChange struct {
	Component string `json:"component"`
	From      string `json:"from"`
	To        string `json:"to"`
}

// kubernetesHash returns the hash of the plan in the report of a dry run.
func kubernetesHash(report []byte) (string, error) {
	var r struct {
		Plan kubernetesPlan `json:"plan"`
	}
	if err := json.Unmarshal(report, &r); err != nil {
		return "", fmt.Errorf("read what recast upgrade-k8s printed: %w", err)
	}
	for i := range r.Plan.Nodes { // drop components that have their image and are not ready yet
		n := &r.Plan.Nodes[i]
		n.Changes = slices.DeleteFunc(n.Changes, func(c imageChange) bool { return c.From == c.To })
	}
	b, err := json.Marshal(r.Plan)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))[:16], nil
}

// stillApproved makes the plan of an upgrade of Kubernetes again, and compares it with the approved one: recast
// upgrade-k8s takes no plan from a file. code is not 0 if the upgrade must not begin; message says why.
func (a *Attempt) stillApproved(ctx context.Context) (code int, message string, err error) {
	made, err := a.Recast.run(ctx, nil, kubernetesDryRun()...)
	if err != nil || made.code != ExitDone {
		return made.code, made.String(), err
	}
	hash, err := kubernetesHash(made.stdout)
	if err != nil {
		return ExitFailed, "", err
	}
	if hash != a.PlanHash {
		return ExitFailed, "", exit{ExitRefused, errors.New("the cluster is no longer as planned: make another ImageRoll")}
	}
	return ExitDone, "", nil
}

func kubernetesDryRun() []string { return []string{"upgrade-k8s", "--dry-run", "-o", "json"} }

// Reporter writes to the Kubernetes API. It repeats a failed write until a deadline: the API may be unreachable for a
// while, since a cluster may roll itself.
type Reporter struct {
	Client  client.Client
	Log     io.Writer
	Patient time.Duration // how long to try to report the end of an attempt
	Hide    redact.Redactor
}

const retryPause = 2 * time.Second

// lastWords calls write until it succeeds, fails for good, or r.Patient is over.
func (r Reporter) lastWords(ctx context.Context, what string, write func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.Patient)
	defer cancel()
	for {
		err := write(ctx)
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err) {
			return err
		}
		fmt.Fprintf(r.Log, "%s: %v; trying again\n", what, err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(retryPause):
		}
	}
}

// status replaces the given fields in the status of an object. Other fields stay.
func (r Reporter) status(ctx context.Context, o client.Object, fields map[string]any) error {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	var patch []operation
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		patch = append(patch, operation{"add", "/status/" + name, fields[name]})
	}
	b, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	return r.Client.Status().Patch(ctx, o, client.RawPatch(types.JSONPatchType, r.Hide.JSON(b)))
}

func (t Task) object() client.Object {
	if t.Kind == Check {
		return &v1alpha1.TalosCluster{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: t.Cluster}}
	}
	return &v1alpha1.ImageRoll{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: t.Roll}}
}

// Limits of a key of a ConfigMap: a larger text is compressed, and the files of a plan fit beside it. All keys
// together may take 1 MiB.
const (
	maxText  = 200 << 10
	maxFiles = 400 << 10
)

// keep writes results into the ConfigMap that the operator has made for them. A text that is too large is compressed,
// and its key gets the suffix .gz.
func (a *Attempt) keep(ctx context.Context, results map[string][]byte) error {
	if len(results) == 0 {
		return nil
	}
	data, binary := map[string]any{}, map[string]any{}
	for key, b := range results {
		if key == KeyFiles {
			binary[key] = b
			continue
		}
		switch key {
		case KeyDrift, KeyDoctor, KeyReport:
			b = a.Reporter.Hide.JSON(b)
		case KeyHTML:
			b = []byte(a.Reporter.Hide.Text(string(b)))
		}
		data[key], binary[key+".gz"] = string(b), nil // null removes the key that an earlier attempt wrote
		if len(b) <= maxText {
			continue
		}
		var zipped bytes.Buffer
		w := gzip.NewWriter(&zipped)
		if _, err := w.Write(b); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		data[key], binary[key+".gz"] = nil, zipped.Bytes()
	}
	patch, err := json.Marshal(map[string]any{"data": data, "binaryData": binary})
	if err != nil {
		return err
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Results}}
	return a.Reporter.lastWords(ctx, "keep the results in ConfigMap "+a.Results, func(ctx context.Context) error {
		return a.Reporter.Client.Patch(ctx, m, client.RawPatch(types.MergePatchType, patch))
	})
}

func (t Task) notKept(err error) string {
	return fmt.Sprintf("the ConfigMap %s has no results of this: %v", t.Results, err)
}

// result reads what keep has written, from the volume of the ConfigMap.
func result(dir, key string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(dir, key))
	if !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	f, err := os.Open(filepath.Join(dir, key+".gz"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// report replaces the given fields in the status of the object that the task is about.
func (a *Attempt) report(ctx context.Context, fields map[string]any) error {
	return a.Reporter.lastWords(ctx, "report to "+a.Cluster+" "+a.Roll, func(ctx context.Context) error {
		return a.Reporter.status(ctx, a.object(), fields)
	})
}

// progress is the progress of a roll so far. It may be read while events arrive.
type progress struct {
	mu      sync.Mutex
	total   int
	planned []string        // nodes; "": the whole cluster
	done    map[string]bool // by name
	node    string
	message string
	changed bool
}

func newProgress(planned, done []string) *progress {
	p := &progress{total: len(planned), planned: planned, done: map[string]bool{}}
	for _, node := range done {
		p.done[node] = true
	}
	return p
}

func (p *progress) see(e event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, node, below := planning.NodeOfStep(e.Step)
	if node != "" && len(below) == 0 && (e.Status == "done" || e.Status == "skipped") {
		p.done[node] = true
	}
	if e.Node != "" {
		p.node = e.Node
	}
	if e.Status == "started" || e.Status == "note" || e.Status == "failed" {
		p.message = strings.TrimSuffix(e.Title+": "+e.Text, ": ")
	}
	p.changed = true
}

func (p *progress) now(a *Attempt) v1alpha1.Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = false
	var finished []string
	for _, node := range p.planned {
		if p.done[node] {
			finished = append(finished, node)
		}
	}
	return v1alpha1.Progress{
		Done: int32(len(finished)), Total: int32(p.total), Summary: fmt.Sprintf("%d/%d", len(finished), p.total), Finished: finished,
		Node: p.node, Message: p.message, Updated: new(a.Now()),
	}
}

func (p *progress) hasChanged() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// tellEvery is the shortest interval between two writes of the progress, which is for people.
const tellEvery = 3 * time.Second

const tellPatience = 10 * time.Second

// tell writes the progress whenever it has changed, until stop is called. The roll does not wait for these writes: a
// failed one is only repeated.
func (a *Attempt) tell(ctx context.Context, p *progress) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() {
		every := time.NewTicker(tellEvery)
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
			if p.hasChanged() {
				a.tellNow(ctx, p)
			}
		}
	})
	return func() { cancel(); telling.Wait() }
}

// tellNow writes the progress once. If the write fails, tell repeats it at its next tick.
func (a *Attempt) tellNow(ctx context.Context, p *progress) {
	ctx, cancel := context.WithTimeout(ctx, tellPatience)
	defer cancel()
	err := a.Reporter.status(ctx, a.object(), map[string]any{"progress": p.now(a)})
	if err == nil {
		return
	}
	p.mu.Lock()
	p.changed = true
	p.mu.Unlock()
	if !errors.Is(err, context.Canceled) {
		fmt.Fprintf(a.Reporter.Log, "tell the progress: %v\n", err)
	}
}
