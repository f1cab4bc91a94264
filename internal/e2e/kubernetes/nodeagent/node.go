// Package nodeagent gives tests nodes for a real control plane. A node is Kubernetes'
// kubelet, in a process of its own, with a container runtime that runs containers as
// processes of this machine. Read package cri for what a container is. It needs root, for
// namespaces and mounts.
package nodeagent

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent/node"
	"github.com/recast-sh/recast/internal/e2e/kubernetes/process"
)

// Image is what a container starts from.
type Image = node.Image

// Container is the record of a container.
type Container = node.Container

// Options are how a node is made.
type Options struct {
	Labels map[string]string // besides the kubelet's own
	// Capacity of the Node; 0: 4 CPUs, 8192 MiB, 50 pods. Nothing limits what containers use.
	CPUs, MemoryMiB, MaxPods int
	// Images are all that can be pulled, by reference.
	Images map[string]Image
}

// Node is a node that runs until its test ends, or Stop.
type Node struct {
	Name string

	t       *testing.T
	config  node.Config
	client  kubernetes.Interface
	kubelet *process.Process
}

// Start starts a node and waits until it is Ready. The credentials are its kubelet's.
func Start(t *testing.T, credentials *rest.Config, name string, o Options) *Node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("package nodeagent needs root: it makes namespaces and mounts")
	}
	dir, err := os.MkdirTemp("", "node") // t.TempDir's name can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	n := &Node{Name: name, t: t, config: node.Config{
		Name: name, Labels: o.Labels, Dir: dir, Kubeconfig: filepath.Join(dir, "kubeconfig"),
		CPUs: cmp.Or(o.CPUs, 4), MemoryMiB: cmp.Or(o.MemoryMiB, 8192), MaxPods: cmp.Or(o.MaxPods, 50),
		Images: maps.Clone(o.Images),
	}}
	if n.client, err = kubernetes.NewForConfig(credentials); err != nil {
		t.Fatal(err)
	}
	if err := writeKubeconfig(n.config.Kubeconfig, credentials); err != nil {
		t.Fatal(err)
	}
	if err := n.config.WriteConfig(); err != nil {
		t.Fatal(err)
	}
	n.Boot()
	return n
}

func writeKubeconfig(file string, c *rest.Config) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["e2e"] = &clientcmdapi.Cluster{
		Server: c.Host, CertificateAuthority: c.CAFile, CertificateAuthorityData: c.CAData,
		TLSServerName: c.ServerName, InsecureSkipTLSVerify: c.Insecure,
	}
	config.AuthInfos["e2e"] = &clientcmdapi.AuthInfo{
		ClientCertificate: c.CertFile, ClientCertificateData: c.CertData, ClientKey: c.KeyFile, ClientKeyData: c.KeyData,
		Token: c.BearerToken, TokenFile: c.BearerTokenFile,
	}
	config.Contexts["e2e"] = &clientcmdapi.Context{Cluster: "e2e", AuthInfo: "e2e"}
	config.CurrentContext = "e2e"
	return clientcmd.WriteToFile(*config, file)
}

// Boot starts the node again after Stop, and waits until it is Ready. Its kubelet and its
// container runtime find on the disk what was there before, as after a power failure.
func (n *Node) Boot() {
	n.t.Helper()
	cmd := exec.Command(process.Built(n.t, "kubelet"), n.config.File())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // its mounts vanish with it
	// The last cleanup to register is the first to run: its containers end after it.
	n.t.Cleanup(n.awaitContainers)
	booted := time.Now()
	n.kubelet = process.Start(n.t, "the kubelet of "+n.Name, cmd)
	var last error
	for range 1800 {
		var found *corev1.Node
		if found, last = n.client.CoreV1().Nodes().Get(n.t.Context(), n.Name, metav1.GetOptions{}); last == nil {
			if ready(found, booted) {
				return
			}
			last = fmt.Errorf("its conditions are %+v", found.Status.Conditions)
		}
		select {
		case <-n.kubelet.Ended():
			n.t.Fatalf("the kubelet of %s has ended:\n%s", n.Name, n.kubelet.Said)
		case <-time.After(100 * time.Millisecond):
		}
	}
	n.t.Fatalf("Node %s is not ready after three minutes: %v\n%s", n.Name, last, n.kubelet.Said)
}

// ready reports whether the kubelet has said that it is ready since then. The API has
// times in seconds.
func ready(n *corev1.Node, since time.Time) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(since.Truncate(time.Second))
		}
	}
	return false
}

// Stop ends the kubelet and all containers at once, as if the machine had died: nobody
// tells the API server. It returns when they have ended.
func (n *Node) Stop() {
	n.t.Helper()
	n.kubelet.Kill()
	n.awaitContainers()
	for _, c := range n.Running() { // by their records, which the kubelet's process would have kept
		c.ExitCode, c.FinishedAt = 255, time.Now()
		if err := n.config.WriteContainer(c); err != nil {
			n.t.Fatal(err)
		}
	}
}

// Wipe loses everything on the disk of a node that is stopped, as if the next Boot were that
// of a new machine. The records and the outputs of its containers stay.
func (n *Node) Wipe() {
	n.t.Helper()
	for _, dir := range []string{n.config.Kubelet(), n.config.PodLogs(), n.config.Runtime()} {
		if err := os.RemoveAll(dir); err != nil {
			n.t.Fatal(err)
		}
	}
}

// awaitContainers waits until all containers have ended, after their kubelet has: the
// kernel kills them.
func (n *Node) awaitContainers() {
	n.t.Helper()
	var left []Container
	for range 100 {
		left = nil
		for _, c := range n.Running() {
			if alive(c.PID) {
				left = append(left, c)
			}
		}
		if len(left) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	n.t.Errorf("node %s: processes of containers outlive their kubelet: %+v", n.Name, left)
}

// alive reports whether a process runs. One that nobody has waited for does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// SetImage adds an image or replaces one, for containers that start from now on.
func (n *Node) SetImage(ref string, i Image) {
	n.t.Helper()
	if n.config.Images == nil {
		n.config.Images = map[string]Image{}
	}
	n.config.Images[ref] = i
	if err := n.config.WriteConfig(); err != nil {
		n.t.Fatal(err)
	}
}
