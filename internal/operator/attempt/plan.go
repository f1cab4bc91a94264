package attempt

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/cluster/planning"
)

// plan makes the plan of an ImageRoll, and keeps it together with the files that it is of.
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

// planCommand makes a plan without changing anything.
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

// describePlan says in a few words what a plan would do.
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

// unfinished returns the nodes of a plan that an earlier run left unfinished, and the plan's ID. recast
// carries such a plan out, but reads none from a file.
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
