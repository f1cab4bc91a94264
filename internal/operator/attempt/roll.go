package attempt

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/cluster/planning"
)

// plan makes the plan of an ImageRoll, and keeps it together with the files that it is of.
func (a *Attempt) plan(ctx context.Context) (int, error) {
	revision, err := a.files(ctx)
	if err != nil {
		return a.stop(ctx, ExitConfig, err.Error())
	}
	if problems := a.missing(); len(problems) > 0 {
		return a.stop(ctx, ExitConfig, strings.Join(problems, "; "))
	}
	made, err := a.locked(ctx, a.planCommand()...)
	if err != nil {
		return ExitFailed, err
	}
	if made.code != ExitDone {
		return a.stop(ctx, made.code, made.String())
	}
	p := v1alpha1.Plan{ConfigMap: a.Results, Revision: revision}
	if err := a.describePlan(&p, made.stdout); err != nil {
		return ExitFailed, err
	}
	packed, err := pack(a.Recast.Dir, a.Files)
	if err != nil {
		return ExitFailed, err
	}
	if len(packed) > maxResult {
		return a.stop(ctx, ExitConfig, fmt.Sprintf("the files of the cluster take %d KiB compressed, %d fit beside a plan: name the directory with recast.yaml in spec.source", len(packed)>>10, maxResult>>10))
	}
	if err := a.keep(ctx, map[string][]byte{KeyPlan: made.stdout, KeyFiles: packed}); err != nil {
		return ExitFailed, err
	}
	return ExitDone, a.report(ctx, map[string]any{"plan": p})
}

// planCommand makes a plan without changing anything.
func (a *Attempt) planCommand() []string {
	if a.KubernetesRoll {
		return []string{"upgrade-k8s", "--dry-run", "-o", "json"}
	}
	command := []string{"plan", "-o", "json"}
	if len(a.Only) > 0 {
		command = append(command, "--only", strings.Join(a.Only, ","))
	}
	if a.AcceptOutage {
		command = append(command, "--accept-outage")
	}
	return command
}

// describePlan says in a few words what a plan would do.
func (a *Attempt) describePlan(p *v1alpha1.Plan, text []byte) error {
	if a.KubernetesRoll {
		p.Hash, p.Nodes = fmt.Sprintf("%x", sha256.Sum256(text))[:16], 1
		p.Lines = []string{"upgrade Kubernetes to " + a.wantedKubernetes()}
		return nil
	}
	plan, err := planning.Read(text)
	if err != nil {
		return fmt.Errorf("read what recast plan printed: %w", err)
	}
	p.Hash, p.Refused = plan.ID, firstLines(plan.Refused())
	for _, n := range plan.Work() {
		p.Lines, p.LastNode = append(p.Lines, planLine(n)), n.Node
		p.Nodes++
	}
	p.Lines = firstLines(p.Lines)
	return nil
}

// planLine says what happens to a node: "wk1: recreate, about 2m40s away: extension iscsi-tools …; loses …".
func planLine(n planning.NodePlan) string {
	words := n.Node + ": " + string(n.Strategy)
	if n.OutageSeconds > 0 {
		words += ", about " + (time.Duration(n.OutageSeconds) * time.Second).String() + " away"
	}
	if len(n.Drift.Reasons) > 0 {
		words += ": " + n.Drift.Reasons[0].Text
	}
	if len(n.WillLose) > 0 {
		words += "; loses " + strings.Join(n.WillLose, ", ")
	}
	return words
}

// stop reports why nothing was carried out.
func (a *Attempt) stop(ctx context.Context, code int, message string) (int, error) {
	return code, a.report(ctx, map[string]any{"outcome": v1alpha1.Outcome{Job: a.Job, ExitCode: int32(code), Message: message}})
}

// roll carries a plan out.
func (a *Attempt) roll(ctx context.Context) (int, error) {
	packed, err := os.Open(filepath.Join(PlanDir, KeyFiles))
	if err != nil {
		return ExitFailed, fmt.Errorf("the plan of ImageRoll %s: %w", a.Roll, err)
	}
	defer packed.Close()
	if err := unpack(a.Recast.Dir, packed); err != nil {
		return ExitFailed, fmt.Errorf("the plan of ImageRoll %s: %w", a.Roll, err)
	}
	if err := a.secretFiles(); err != nil {
		return ExitFailed, err
	}
	if problems := a.missing(); len(problems) > 0 {
		return a.stop(ctx, ExitConfig, strings.Join(problems, "; "))
	}
	command := []string{"upgrade-k8s", "--yes", "-o", "json", "--progress", "json"}
	p := &progress{total: 1, done: map[string]bool{}}
	if a.Kind == Roll {
		file, err := a.unpackPlan()
		if err != nil {
			return ExitFailed, err
		}
		plan, err := planning.Read(file)
		if err != nil {
			return ExitFailed, fmt.Errorf("the plan of ImageRoll %s: %w", a.Roll, err)
		}
		if plan.ID != a.PlanHash {
			return a.stop(ctx, ExitRefused, fmt.Sprintf("the ConfigMap %s has plan %s, but %s was approved: make another ImageRoll", a.Roll+"-plan", plan.ID, a.PlanHash))
		}
		p.total = len(plan.Work())
		for _, n := range plan.Work() {
			p.planned = append(p.planned, n.Node)
		}
		for _, node := range a.Finished {
			p.done[node] = true
		}
		command = []string{"roll", "--plan", KeyPlan, "--yes", "-o", "json", "--progress", "json"}
		if a.Continue {
			command = append(command, "--continue")
		}
	}
	stop := a.tell(ctx, p)
	e, err := a.Recast.run(ctx, p.see, command...)
	stop()
	if err != nil {
		return ExitFailed, err
	}
	return e.code, a.finish(ctx, e, p)
}

// finish reports how a roll ended.
func (a *Attempt) finish(ctx context.Context, e ended, p *progress) error {
	outcome := v1alpha1.Outcome{Job: a.Job, ExitCode: int32(e.code), Message: e.String()}
	if len(e.stdout) > 0 {
		var report struct {
			Run     string   `json:"run"`
			Outcome string   `json:"outcome"`
			Pages   []string `json:"pages"`
		}
		if err := json.Unmarshal(e.stdout, &report); err != nil {
			return fmt.Errorf("read the report of recast: %w", err)
		}
		outcome.Run, outcome.Report = report.Run, a.Results
		if outcome.Message == "" {
			outcome.Message = report.Outcome
		}
		results := map[string][]byte{KeyReport: e.stdout}
		if n := len(report.Pages); n > 0 {
			page, err := os.ReadFile(filepath.Join(a.Recast.Dir, report.Pages[n-1]))
			if err == nil {
				results[KeyHTML] = page
			}
		}
		if err := a.keep(ctx, results); err != nil {
			return err
		}
	}
	last := p.now(a)
	return a.report(ctx, map[string]any{"outcome": outcome, "progress": last})
}

// progress is what has happened so far. It may be read while events come.
type progress struct {
	mu      sync.Mutex
	total   int
	planned []string        // nodes
	done    map[string]bool // by name
	node    string
	message string
	changed bool
}

// see takes an event of recast's.
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

// now is the progress at this moment.
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

// tellEvery is how often progress is written at most: it is for people who look at it.
const tellEvery = 3 * time.Second

// tell writes the progress while it changes, until stop is called. Who can't be told misses it: the
// roll does not wait for them.
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
				if err := a.Reporter.status(ctx, a.object(), map[string]any{"progress": p.now(a)}); err != nil && ctx.Err() == nil {
					fmt.Fprintf(a.Reporter.Log, "tell the progress: %v\n", err)
				}
			}
		}
	})
	return func() { cancel(); telling.Wait() }
}

// unpackPlan puts plan.json beside recast.yaml, and returns its text.
func (a *Attempt) unpackPlan() ([]byte, error) {
	text, err := result(PlanDir, KeyPlan)
	if err != nil {
		return nil, fmt.Errorf("the plan of ImageRoll %s: %w", a.Roll, err)
	}
	return text, os.WriteFile(filepath.Join(a.Recast.Dir, KeyPlan), text, 0o600)
}
