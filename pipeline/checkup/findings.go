package checkup

import (
	"fmt"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Result is everything that a roll needs and what is missing.
type Result struct {
	Cluster string  `json:"cluster"`
	Checks  []Check `json:"checks"`
	// Needs are the privileges that a roll needs, and Grants the commands that grant missing ones.
	Needs   []NeedStatus        `json:"needs"`
	Version string              `json:"proxmoxVersion,omitempty"` // of the node that answered; "": it could not be read
	Grants  []string            `json:"grants,omitempty"`
	Caution string              `json:"caution,omitempty"` // before the grants are given
	Nodes   []survey.Assessment `json:"nodes"`
}

// State is the result of a check.
type State string

// The states of a check.
const (
	OK      State = "ok"
	Warning State = "warning"
	Problem State = "problem"
)

// Groups of checks, in display order.
const (
	GroupProxmox    = "Proxmox"
	GroupPrivileges = "privileges"
	GroupStorage    = "storage"
	GroupTalos      = "Talos"
	GroupKubernetes = "Kubernetes"
	GroupGates      = "gates"
	GroupHooks      = "hooks"
	GroupWebhooks   = "webhooks"
	GroupImages     = "images"
	GroupNodes      = "nodes"
)

// Check is one thing that was checked.
type Check struct {
	Group  string   `json:"group"`
	What   string   `json:"what"`
	State  State    `json:"state"`
	Seen   string   `json:"seen"`
	Remedy []string `json:"remedy,omitempty"`

	kind fault.Kind // of a problem
}

// NeedStatus is a privilege that a roll needs, and whether the token has it.
type NeedStatus struct {
	survey.Need
	Granted bool `json:"granted"`
}

// findings are what a checkup has found so far.
type findings struct{ res Result }

func (f *findings) add(c Check) { f.res.Checks = append(f.res.Checks, c) }

func (f *findings) ok(group, what, format string, args ...any) {
	f.add(Check{Group: group, What: what, State: OK, Seen: fmt.Sprintf(format, args...)})
}

func (f *findings) warn(group, what, remedy, format string, args ...any) {
	f.add(Check{Group: group, What: what, State: Warning, Seen: fmt.Sprintf(format, args...), Remedy: remedies(remedy)})
}

// refuse adds a problem because of which a roll would refuse to start.
func (f *findings) refuse(group, what, remedy, format string, args ...any) {
	f.add(Check{Group: group, What: what, State: Problem, Seen: fmt.Sprintf(format, args...), Remedy: remedies(remedy), kind: fault.Refused})
}

// fail adds a problem from an error, with its hints.
func (f *findings) fail(group, what string, err error) {
	f.add(Check{Group: group, What: what, State: Problem, Seen: err.Error(), Remedy: fault.Hints(err), kind: fault.KindOf(err)})
}

func (f *findings) certificate(group, what, remedy string, expires time.Time) {
	left := time.Until(expires)
	switch {
	case expires.IsZero():
	case left < 0:
		f.add(Check{Group: group, What: what, State: Problem, Seen: "expired on " + expires.Format(time.DateOnly), Remedy: []string{remedy}, kind: fault.Config})
	case left < expiresSoon:
		f.warn(group, what, remedy, "expires on %s", expires.Format(time.DateOnly))
	default:
		f.ok(group, what, "valid until %s", expires.Format(time.DateOnly))
	}
}

// expiresSoon is how long before a certificate's end doctor warns.
const expiresSoon = 30 * 24 * time.Hour

func remedies(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// Err returns an error with the kind of the worst problem; nil if there is none. Things
// that could not be read are worse than refusals, as they may hide more problems.
func (r Result) Err() error {
	problems, kind := 0, fault.Refused
	for _, c := range r.Checks {
		if c.State != Problem {
			continue
		}
		problems++
		if severity(c.kind) > severity(kind) {
			kind = c.kind
		}
	}
	if problems == 0 {
		return nil
	}
	return fault.DoctorFound.Of(fault.As(kind, fmt.Errorf("%s would prevent a roll", words.Counted(problems, "problem"))))
}

func severity(k fault.Kind) int {
	return slices.Index([]fault.Kind{fault.Refused, fault.Failed, fault.Config}, k)
}
