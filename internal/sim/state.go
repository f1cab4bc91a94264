package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// State is what a roll must preserve.
type State struct {
	Disks  map[string]string `json:"disks"`            // checksums of the persistent ones: see Lab.Disks
	Etcd   []string          `json:"etcd"`             // voting members, by name
	Broken []string          `json:"broken,omitempty"` // promises broken since the lab came up
	// Requests counts the requests that the servers got, by protocol: see record.Call.
	Requests map[string]int `json:"requests"`
}

// minQuorate is the least number of control planes with which etcd survives the loss of
// one.
const minQuorate = 3

// State looks at the lab from outside, as no client can.
func (l *Lab) State() State {
	s := State{Disks: l.Disks(), Etcd: []string{}, Broken: l.World.Violations(), Requests: l.Recorder.Requests()}
	for _, m := range l.EtcdMembers() {
		if !m.Learner {
			s.Etcd = append(s.Etcd, m.Name)
		}
	}
	if l.o.ControlPlanes >= minQuorate {
		s.Broken = append(s.Broken, l.machines.EtcdViolations()...)
	}
	s.Broken = append(s.Broken, l.machines.BootstrapViolations()...)
	return s
}

// AskState asks the running lab of a working directory for its state when it came up,
// and for the present one.
func AskState(ctx context.Context, dir string) (before, now State, err error) {
	at, err := findLab(dir)
	if err != nil {
		return before, now, err
	}
	answer, err := ask(ctx, http.MethodGet, at.Control+"/state")
	if err != nil {
		return before, now, err
	}
	if err := json.Unmarshal(answer, &now); err != nil {
		return before, now, fmt.Errorf("ask the lab: %w", err)
	}
	return at.Before, now, nil
}
