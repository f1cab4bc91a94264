package attempt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/schematics"
	"go.yaml.in/yaml/v4"
	"golang.org/x/mod/semver"
)

// maxLines is the most lines of a list in a status; the ConfigMap has all lines.
const maxLines = 20

// drift is the output of recast drift -o json: docs/schemas/drift.schema.json.
type drift struct {
	Unread int `json:"unread"`
	Stale  int `json:"stale"`
	Nodes  []struct {
		Node    string   `json:"node"`
		Stale   bool     `json:"stale"`
		Unread  []string `json:"unread"`
		Talos   string   `json:"talos"`
		Reasons []struct {
			Code string `json:"code"`
			Text string `json:"text"`
			Old  string `json:"old"`
		} `json:"reasons"`
	} `json:"nodes"`
}

// kubernetesReason is the code of a reason for drift that only upgrade-k8s removes.
const kubernetesReason = "kubernetes-version"

// check compares the cluster with its files.
func (a *Attempt) check(ctx context.Context) (int, error) {
	c := v1alpha1.Check{Job: a.Job, For: a.For, Started: new(a.Now())}
	fields := map[string]any{}
	results, err := a.compare(ctx, &c, fields)
	if err != nil {
		return ExitFailed, err
	}
	return ExitDone, a.conclude(ctx, c, fields, results)
}

// conclude keeps the results, and reports the check last: the operator may make an ImageRoll at once, which takes the
// lock from the results.
func (a *Attempt) conclude(ctx context.Context, c v1alpha1.Check, fields map[string]any, results map[string][]byte) error {
	if err := a.keep(ctx, results); err != nil {
		c.Problems = append(c.Problems, a.notKept(err))
	}
	c.Ended = new(a.Now())
	fields["check"] = c
	return a.report(ctx, fields)
}

// compare fills in the check and further fields of the status. After an error nothing is known about the cluster;
// another attempt may succeed.
func (a *Attempt) compare(ctx context.Context, c *v1alpha1.Check, fields map[string]any) (map[string][]byte, error) {
	var err error
	c.Revision, c.Files, err = a.files(ctx)
	if err != nil {
		c.ExitCode, c.Problems = ExitConfig, []string{err.Error()}
		return nil, nil
	}
	if c.Problems = a.missing(); len(c.Problems) > 0 {
		c.ExitCode = ExitConfig
		return nil, nil
	}
	results := map[string][]byte{}
	compared, err := a.locked(ctx, "drift", "-o", "json")
	if err != nil {
		return nil, err
	}
	a.describeLock(c, fields, results)
	c.ExitCode = int32(compared.code)
	var d drift
	if len(compared.stdout) > 0 {
		if err := json.Unmarshal(compared.stdout, &d); err != nil {
			return nil, fmt.Errorf("read what recast drift printed: %w", err)
		}
		results[KeyDrift] = compared.stdout
		a.describeDrift(ctx, d, c, fields)
	}
	if compared.code == ExitDone || compared.code == ExitDrift {
		return results, nil
	}
	if compared.Error != "" {
		c.Problems = append(c.Problems, compared.String())
	}
	return results, a.Recast.examine(ctx, c, results)
}

// describeLock reads the builds from recast.lock.
func (a *Attempt) describeLock(c *v1alpha1.Check, fields map[string]any, results map[string][]byte) {
	lock, err := schematics.ReadLock(filepath.Join(a.Recast.Dir, KeyLock))
	if err != nil {
		return // recast drift reports why
	}
	c.Lock = lock.Key()
	builds := []v1alpha1.Build{}
	for _, name := range lock.Names() {
		builds = append(builds, v1alpha1.Build{Schematic: name, ID: lock.Schematics[name].BuildID})
	}
	fields["builds"] = builds
	fields["talos"] = v1alpha1.Versions{Wanted: lock.Talos}
	if a.Lock == v1alpha1.LockUpdate {
		if text, err := os.ReadFile(filepath.Join(a.Recast.Dir, KeyLock)); err == nil {
			results[KeyLock] = text
		}
	}
}

// describeDrift counts nodes and determines versions.
func (a *Attempt) describeDrift(ctx context.Context, d drift, c *v1alpha1.Check, fields map[string]any) {
	nodes := v1alpha1.Nodes{Total: int32(len(d.Nodes)), Stale: int32(d.Stale), Unread: int32(d.Unread)}
	talos, _ := fields["talos"].(v1alpha1.Versions)
	kubernetes := v1alpha1.Versions{Wanted: a.Recast.wantedKubernetes()}
	c.OnlyKubernetes = d.Stale > 0
	for _, n := range d.Nodes {
		if !n.Stale && len(n.Unread) == 0 {
			nodes.InSync++
		}
		talos.Current = older(talos.Current, n.Talos)
		for _, r := range n.Reasons {
			c.Reasons = append(c.Reasons, n.Node+": "+r.Text)
			if r.Code == kubernetesReason {
				kubernetes.Current = older(kubernetes.Current, r.Old)
			} else {
				c.OnlyKubernetes = false
			}
		}
		for _, text := range n.Unread {
			c.Problems = append(c.Problems, n.Node+": "+text)
		}
	}
	if kubernetes.Current == "" && nodes.Unread == 0 {
		kubernetes.Current = kubernetes.Wanted
	}
	c.Reasons, c.Problems = firstLines(c.Reasons), firstLines(c.Problems)
	newest, newestKubernetes := a.Available(ctx, filepath.Join(a.Recast.Dir, configFile), talos.Current, kubernetes.Current)
	talos.Available, kubernetes.Available = ifNewer(newest, talos.Wanted), ifNewer(newestKubernetes, kubernetes.Wanted)
	fields["nodes"], fields["talos"], fields["kubernetes"] = nodes, talos, kubernetes
}

// wantedKubernetes returns the version of Kubernetes in recast.yaml; "" if it names none.
func (r Recast) wantedKubernetes() string {
	var c struct {
		Kubernetes struct {
			Version string `yaml:"version"`
		} `yaml:"kubernetes"`
	}
	if text, err := os.ReadFile(filepath.Join(r.Dir, configFile)); err != nil || yaml.Unmarshal(text, &c) != nil {
		return ""
	}
	return c.Kubernetes.Version
}

// examine asks recast doctor what is wrong with a cluster that could not be read.
func (r Recast) examine(ctx context.Context, c *v1alpha1.Check, results map[string][]byte) error {
	found, err := r.run(ctx, nil, "doctor", "-o", "json")
	if err != nil {
		return err
	}
	results[KeyDoctor] = found.stdout
	c.Problems = firstLines(slices.Concat(c.Problems, doctorLines(found.stdout)))
	return nil
}

// doctorLines returns the problems found by recast doctor -o json, with their remedies.
func doctorLines(text []byte) []string {
	var d struct {
		Checks []struct {
			What   string   `json:"what"`
			State  string   `json:"state"`
			Seen   string   `json:"seen"`
			Remedy []string `json:"remedy"`
		} `json:"checks"`
	}
	if json.Unmarshal(text, &d) != nil {
		return nil // recast printed an error instead
	}
	var lines []string
	for _, check := range d.Checks {
		if check.State != "problem" {
			continue
		}
		line := "doctor: " + check.What + ": " + check.Seen
		if len(check.Remedy) > 0 {
			line += ": " + strings.Join(check.Remedy, "; ")
		}
		lines = append(lines, line)
	}
	return lines
}

// firstLines returns at most maxLines lines; the last line says how many are left out.
func firstLines(lines []string) []string {
	if len(lines) <= maxLines {
		return lines
	}
	return append(slices.Clone(lines[:maxLines-1]), fmt.Sprintf("and %d more", len(lines)-maxLines+1))
}

// older returns the older of two versions; "" is no version.
func older(a, b string) string {
	if a == "" || b != "" && semver.Compare(b, a) < 0 {
		return b
	}
	return a
}

// ifNewer returns version if it is newer than the version than; otherwise "".
func ifNewer(version, than string) string {
	if version == "" || semver.Compare(version, than) <= 0 {
		return ""
	}
	return version
}

// plan makes the plan of an ImageRoll, and keeps it with the files that it was made from.
func (a *Attempt) plan(ctx context.Context) (int, error) {
	revision, _, err := a.files(ctx)
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
	if len(packed) > maxFiles {
		return a.stop(ctx, ExitConfig, fmt.Sprintf("the files of the cluster take %d KiB compressed, %d fit beside a plan: name the directory with recast.yaml in spec.source", len(packed)>>10, maxFiles>>10))
	}
	if err := a.keep(ctx, map[string][]byte{KeyPlan: made.stdout, KeyFiles: packed}); err != nil {
		return ExitFailed, err
	}
	return ExitDone, a.report(ctx, map[string]any{"plan": p})
}

// planCommand returns the command that makes a plan and changes nothing.
func (t Task) planCommand() []string {
	if t.KubernetesRoll {
		return kubernetesDryRun()
	}
	command := []string{"plan", "-o", "json"}
	if len(t.Only) > 0 {
		command = append(command, "--only", strings.Join(t.Only, ","))
	}
	if t.AcceptOutage {
		command = append(command, "--accept-outage")
	}
	return command
}

// describePlan summarizes a plan in a few words.
func (a *Attempt) describePlan(p *v1alpha1.Plan, text []byte) error {
	if a.KubernetesRoll {
		hash, err := kubernetesHash(text)
		if err != nil {
			return err
		}
		p.Hash, p.Nodes = hash, 1
		p.Lines = []string{"upgrade Kubernetes to " + a.Recast.wantedKubernetes()}
		return nil
	}
	id, nodes, err := unfinished(text)
	if err != nil {
		return fmt.Errorf("read what recast plan printed: %w", err)
	}
	if len(nodes) > 0 {
		p.Hash, p.Unfinished, p.Nodes, p.LastNode = id, true, int32(len(nodes)), nodes[len(nodes)-1]
		for _, node := range nodes {
			p.Lines = append(p.Lines, node+": finish what an earlier run left")
		}
		p.Lines = firstLines(p.Lines)
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
	for _, text := range plan.Surge.Lines() {
		p.Lines = append(p.Lines, "surge: "+text)
	}
	p.Lines = firstLines(p.Lines)
	return nil
}

// unfinished returns the nodes that an earlier run left unfinished, and the plan's ID. recast carries out a plan with
// unfinished nodes, but does not read such a plan from a file.
func unfinished(plan []byte) (id string, nodes []string, err error) {
	var p struct {
		ID    string `json:"id"`
		Nodes []struct {
			Node   string `json:"node"`
			Resume bool   `json:"resume"`
		} `json:"nodes"`
	}
	if err := json.Unmarshal(plan, &p); err != nil {
		return "", nil, err
	}
	for _, n := range p.Nodes {
		if n.Resume {
			nodes = append(nodes, n.Node)
		}
	}
	return p.ID, nodes, nil
}

// planLine describes what happens to a node: "wk1: recreate, about 2m40s away: extension iscsi-tools …; loses …".
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

// Recast is the program that does the work.
type Recast struct {
	Binary string
	Dir    string   // directory of recast.yaml
	Env    []string // in addition to this process's environment
	Log    io.Writer
	// Signals are passed on to recast: the first signal makes it finish the nodes in progress, the second stops it at
	// once.
	Signals <-chan os.Signal
}

// ended is the result of a command.
type ended struct {
	code   int
	stdout []byte
	trouble
}

// trouble is the error at the end of recast's stderr, by the words that begin its lines.
type trouble struct {
	Error   string // with its further lines
	Hints   []string
	Runbook string // its code
}

// String returns the error with its remedy, on one line.
func (t trouble) String() string {
	return strings.Join(append([]string{t.Error}, t.Hints...), "; ")
}

// run runs recast to its end. An error means that recast could not be run at all.
func (r Recast) run(ctx context.Context, onEvent func(event), args ...string) (ended, error) {
	cmd := exec.CommandContext(ctx, r.Binary, args...)
	cmd.Dir, cmd.Env = r.Dir, append(os.Environ(), r.Env...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	lines := &lineReader{log: r.Log, onEvent: onEvent}
	cmd.Stderr = lines
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		return ended{}, fmt.Errorf("start recast: %w", err)
	}
	done := make(chan struct{})
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			select {
			case s := <-r.Signals:
				_ = cmd.Process.Signal(s) // recast may have ended
			case <-done:
				return
			}
		}
	})
	err := cmd.Wait()
	close(done)
	passing.Wait()
	e := ended{stdout: stdout.Bytes(), trouble: lines.trouble()}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if e.code = exit.ExitCode(); e.code < 0 {
			return e, fmt.Errorf("recast was killed: %w", err)
		}
		return e, nil
	}
	return e, err
}

// event is a line of --progress json, written by internal/live.
type event struct {
	Msg    string `json:"msg"`
	Step   string `json:"step"`
	Node   string `json:"node"`
	Status string `json:"status"`
	Title  string `json:"title"`
	Text   string `json:"text"`
}

// lineReader passes stderr on, and reads it line by line: events and other lines.
type lineReader struct {
	log     io.Writer
	onEvent func(event)
	partial []byte
	said    []string // the last lines that are no events
}

func (l *lineReader) Write(p []byte) (int, error) {
	l.partial = append(l.partial, p...)
	for {
		line, rest, found := bytes.Cut(l.partial, []byte("\n"))
		if !found {
			return len(p), nil
		}
		l.line(string(line))
		l.partial = rest
	}
}

func (l *lineReader) line(line string) {
	fmt.Fprintln(l.log, line)
	var e event
	if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &e) == nil {
		if e.Msg != "said" {
			if l.onEvent != nil && e.Msg == "step" {
				l.onEvent(e)
			}
			return
		}
		line = e.Text // text printed beside the steps; without --progress json that is every line
	}
	const kept = 100
	l.said = append(l.said, line)
	l.said = l.said[max(0, len(l.said)-kept):]
}

// trouble returns the last error: "error: …", then lines that begin with "safe: ", "hint: " and "runbook: ".
func (l *lineReader) trouble() trouble {
	if len(l.partial) > 0 {
		l.line(string(l.partial))
		l.partial = nil
	}
	var t trouble
	inError := false
	for _, line := range l.said {
		switch {
		case strings.HasPrefix(line, "error: "):
			t, inError = trouble{Error: strings.TrimPrefix(line, "error: ")}, true
		case strings.HasPrefix(line, "hint: "):
			t.Hints, inError = append(t.Hints, strings.TrimPrefix(line, "hint: ")), false
		case strings.HasPrefix(line, "runbook: recast runbook "):
			t.Runbook, _, _ = strings.Cut(strings.TrimPrefix(line, "runbook: recast runbook "), " ")
			inError = false
		case strings.HasPrefix(line, "safe: "):
			inError = false
		case inError && strings.TrimSpace(line) != "":
			t.Error += "; " + strings.TrimSpace(line)
		}
	}
	return t
}
