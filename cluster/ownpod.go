package cluster

import (
	"fmt"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// The environment that names the pod, from Kubernetes' downward API.
const (
	PodNamespaceVar = "RECAST_POD_NAMESPACE"
	PodNameVar      = "RECAST_POD_NAME"
	PodUIDVar       = "RECAST_POD_UID"
)

// OwnPod is the pod in which recast runs, as the environment names it; the zero OwnPod: it names none. It may be
// one of another cluster than that which is rolled: the UID tells. If it is one of that cluster, recast evicts it last
// from its node, and ends; the pod that replaces it goes on.
type OwnPod struct{ Namespace, Name, UID string }

func (p OwnPod) String() string { return p.Namespace + "/" + p.Name }

// OwnPodFromEnv reads the environment. It refuses one that names only a part of a pod.
func OwnPodFromEnv(getenv func(string) string) (OwnPod, error) {
	p := OwnPod{Namespace: getenv(PodNamespaceVar), Name: getenv(PodNameVar), UID: getenv(PodUIDVar)}
	var missing []string
	for _, v := range []struct{ name, value string }{{PodNamespaceVar, p.Namespace}, {PodNameVar, p.Name}, {PodUIDVar, p.UID}} {
		if v.value == "" {
			missing = append(missing, v.name)
		}
	}
	if len(missing) == 0 || p == (OwnPod{}) {
		return p, nil
	}
	return OwnPod{}, fault.WithHint(fault.Configf("the environment names only a part of the pod in which recast runs: %s not set", strings.Join(missing, " and ")),
		"set %s, %s and %s by fieldRef (metadata.namespace, metadata.name, metadata.uid), or none of them", PodNamespaceVar, PodNameVar, PodUIDVar)
}

// OwnPodEvicted is the error of a drain that ends because recast's own pod ends. Its kind is Interrupted.
func OwnPodEvicted(node string) error {
	return fault.WithHint(fault.As(fault.Interrupted, fmt.Errorf("this run's own pod was evicted from %s; the roll goes on from the pod that replaces it", node)),
		"a Job replaces its pod by itself; where nothing does, run the same command again")
}
