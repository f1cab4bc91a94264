package attempt

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// kubernetesPlan is of what recast upgrade-k8s --dry-run -o json prints that which changes only when someone
// changes the cluster: no times, no warnings, and not which pods are restarting.
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

// kubernetesHash is the hash of the plan in the report of a dry run.
func kubernetesHash(report []byte) (string, error) {
	var r struct {
		Plan kubernetesPlan `json:"plan"`
	}
	if err := json.Unmarshal(report, &r); err != nil {
		return "", fmt.Errorf("read what recast upgrade-k8s printed: %w", err)
	}
	for i := range r.Plan.Nodes { // what has its image and is not ready yet
		n := &r.Plan.Nodes[i]
		n.Changes = slices.DeleteFunc(n.Changes, func(c imageChange) bool { return c.From == c.To })
	}
	b, err := json.Marshal(r.Plan)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))[:16], nil
}

// stillApproved makes the plan of an upgrade of Kubernetes again, since recast upgrade-k8s takes none from
// a file. code is not 0 if the upgrade must not begin, for the reason in the message.
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
		return ExitFailed, "", exit{ExitRefused, errors.New("things are no longer as planned: make another ImageRoll")}
	}
	return ExitDone, "", nil
}

func kubernetesDryRun() []string { return []string{"upgrade-k8s", "--dry-run", "-o", "json"} }
