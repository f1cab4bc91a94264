// Package ownpod is about the pod in which recast runs, if it runs in one. Where that is a pod of the
// cluster that recast rolls, recast evicts it last from its node, and ends; the pod that
// replaces it goes on.
package ownpod

import (
	"fmt"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// The environment that names the pod, from Kubernetes' downward API.
const (
	NamespaceVar = "RECAST_POD_NAMESPACE"
	NameVar      = "RECAST_POD_NAME"
	UIDVar       = "RECAST_POD_UID"
)

// Pod is the pod that the environment names; the zero Pod: it names none. It may be one of another
// cluster than that which is rolled: the UID tells.
type Pod struct{ Namespace, Name, UID string }

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// FromEnv reads the environment. It refuses one that names only a part of a pod.
func FromEnv(getenv func(string) string) (Pod, error) {
	p := Pod{Namespace: getenv(NamespaceVar), Name: getenv(NameVar), UID: getenv(UIDVar)}
	var missing []string
	for _, v := range []struct{ name, value string }{{NamespaceVar, p.Namespace}, {NameVar, p.Name}, {UIDVar, p.UID}} {
		if v.value == "" {
			missing = append(missing, v.name)
		}
	}
	if len(missing) == 0 || p == (Pod{}) {
		return p, nil
	}
	return Pod{}, fault.WithHint(fault.Configf("the environment names only a part of the pod in which recast runs: %s not set", strings.Join(missing, " and ")),
		"set %s, %s and %s by fieldRef (metadata.namespace, metadata.name, metadata.uid), or none of them", NamespaceVar, NameVar, UIDVar)
}

// Evicted is the error of a drain that ends because recast's own pod ends. Its kind is Interrupted.
func Evicted(node string) error {
	return fault.WithHint(fault.As(fault.Interrupted, fmt.Errorf("this run's own pod was evicted from %s; the roll goes on from the pod that replaces it", node)),
		"a Job replaces its pod by itself; where nothing does, run the same command again")
}
