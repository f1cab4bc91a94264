package nodeagent_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent"
	"github.com/recast-sh/recast/internal/e2e/kubernetes/plane"
)

// TestRestoredEtcd: a kubelet that ran while etcd was restored starts no new pod; once it is
// started again, as recast restore does, it does. TestRestoredEtcd of make e2e-k8s shows why.
func TestRestoredEtcd(t *testing.T) {
	p := plane.Start(t)
	door := p.Door()
	credentials := p.Node("one")
	credentials.Host = "https://" + door.Addr
	n := nodeagent.Start(t, credentials, "one", nodeagent.Options{Images: map[string]nodeagent.Image{"example.com/program:v1": programImage(t)}})
	w := world{T: t, plane: p, nodes: []*nodeagent.Node{n}}
	runs := func(name string) {
		s := spec("exit", "0")
		s.NodeName = "one"
		w.pod(name, s)
	}
	runs("before")
	w.ended("before", corev1.PodSucceeded)
	snapshot := p.SaveEtcd()
	p.Write(1000)
	runs("lost")
	w.ended("lost", corev1.PodSucceeded)

	door.Shut()
	p.RestoreEtcd(snapshot)
	door.Open()
	runs("after")
	time.Sleep(time.Minute) // a kubelet waits half of it at most before it connects again
	if s := w.get("after").Status; s.Phase != corev1.PodPending || len(s.ContainerStatuses) > 0 {
		t.Fatalf("the kubelet has seen the pod: it watches no revision of the future, and nothing is shown by that: %+v", s)
	}
	n.Stop()
	n.Boot()
	w.ended("after", corev1.PodSucceeded)
}
