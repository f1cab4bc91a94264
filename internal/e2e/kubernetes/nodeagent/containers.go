package nodeagent

import (
	"context"
	"os"
	"slices"
	"syscall"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Containers are all that the node has ever created, in that order.
func (n *Node) Containers() []Container {
	n.t.Helper()
	all, err := n.config.ReadContainers()
	if err != nil {
		n.t.Fatal(err)
	}
	return all
}

// Running are the containers whose process runs.
func (n *Node) Running() []Container {
	n.t.Helper()
	return slices.DeleteFunc(n.Containers(), func(c Container) bool { return !c.Running() })
}

// Pods is the number of pods of which the node has ever started a container.
func (n *Node) Pods() int {
	n.t.Helper()
	pods := map[string]bool{}
	for _, c := range n.Containers() {
		if c.PID != 0 {
			pods[c.PodUID] = true
		}
	}
	return len(pods)
}

// Find is the newest container of that name in a pod, nil if there is none.
func (n *Node) Find(namespace, pod, name string) *Container {
	n.t.Helper()
	for _, c := range slices.Backward(n.Containers()) {
		if c.Namespace == namespace && c.Pod == pod && c.Name == name {
			return &c
		}
	}
	return nil
}

// Output is what a container has written to stdout and stderr until now. It outlives the
// pod.
func (n *Node) Output(c Container) string {
	n.t.Helper()
	b, err := os.ReadFile(c.Log)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(b)
}

// Signal sends a signal to the first process of a running container, as someone on the
// machine would. SIGKILL ends all of its processes.
func (n *Node) Signal(c Container, s syscall.Signal) {
	n.t.Helper()
	if !c.Running() {
		n.t.Fatalf("container %s of pod %s/%s does not run", c.Name, c.Namespace, c.Pod)
	}
	if err := syscall.Kill(c.PID, s); err != nil {
		n.t.Fatalf("signal container %s of pod %s/%s: %v", c.Name, c.Namespace, c.Pod, err)
	}
}

// OOMKill kills a running container such that the kubelet takes the kernel for the
// killer, for want of memory.
func (n *Node) OOMKill(c Container) {
	n.t.Helper()
	if err := os.WriteFile(n.config.OOM(c.ID), nil, 0o600); err != nil {
		n.t.Fatal(err)
	}
	n.Signal(c, syscall.SIGKILL)
}

// Evict asks the API server to evict a pod, as a drain does.
func Evict(ctx context.Context, client kubernetes.Interface, namespace, pod string) error {
	return client.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}})
}
