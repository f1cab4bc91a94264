package kube

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// ParseSelector parses the syntax of kubectl -l: "zone=a,!gpu,tier in (web,db)".
func ParseSelector(text string) (cluster.Selector, error) {
	s, err := labels.Parse(text)
	switch {
	case err != nil:
		return cluster.Selector{}, fault.WithHint(fault.Configf("selector %q: %w", text, err), "it is written as for kubectl get nodes -l: key=value,key!=value,key in (a,b),key,!key")
	case s.Empty():
		return cluster.Selector{}, fault.WithHint(fault.Configf("selector %q is empty", text), "without one every node is looked at")
	}
	return cluster.Selector{Text: text, Matches: func(l map[string]string) bool { return s.Matches(labels.Set(l)) }}, nil
}
