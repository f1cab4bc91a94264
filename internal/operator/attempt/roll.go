package attempt

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/cluster/planning"
)

// stop reports why nothing was carried out.
func (a *Attempt) stop(ctx context.Context, code int, message string) (int, error) {
	return code, a.report(ctx, map[string]any{"outcome": v1alpha1.Outcome{Job: a.Job, ExitCode: int32(code), Message: message}})
}

// roll carries a plan out.
func (a *Attempt) roll(ctx context.Context, planDir string) (int, error) {
	if err := a.takeOver(ctx); err != nil {
		return ExitFailed, err
	}
	plan, err := a.Recast.unpackPlan(planDir)
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
	a.tellNow(ctx, p) // so that a pod that replaces this one continues
	stop := a.tell(ctx, p)
	e, err := a.Recast.run(ctx, p.see, command...)
	stop()
	if err != nil {
		return ExitFailed, err
	}
	return e.code, a.finish(ctx, e, p)
}

// approved returns the command that carries the approved plan out, and the progress before it. An error:
// this is another plan, or none.
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

// finish reports how a roll ended, and then keeps its report.
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

// describeReport fills in the outcome from what recast printed, and returns what is kept of it.
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
	if outcome.Message == "" {
		outcome.Message = report.Outcome
	}
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

// unpackPlan puts the files of the plan together, with plan.json beside recast.yaml, and returns its text.
func (r Recast) unpackPlan(dir string) ([]byte, error) {
	packed, err := os.Open(filepath.Join(dir, KeyFiles))
	if err != nil {
		return nil, err
	}
	defer packed.Close()
	if err := unpack(r.Dir, packed); err != nil {
		return nil, err
	}
	text, err := result(dir, KeyPlan)
	if err != nil {
		return nil, err
	}
	return text, os.WriteFile(filepath.Join(r.Dir, KeyPlan), text, 0o600)
}

// takeOverPatience is how long a roll waits for the Kubernetes API before it begins without it.
const takeOverPatience = 30 * time.Second

// takeOver removes the outcome that an earlier pod of this Job may have reported, and finds out what that
// pod has done: an evicted pod is replaced by one with the same task. While the API is away the task counts as
// it is. Without --continue recast refuses a plan that has been begun, which changes nothing; with it,
// recast would accept nodes that someone else has changed since the approval.
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
