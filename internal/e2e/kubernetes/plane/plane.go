// Package plane starts real control planes of Kubernetes for tests.
package plane

import (
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/process"
)

// ControlPlane is a real one on the loopback interface, with one process per server. It
// ends with its test.
type ControlPlane struct {
	// Dir contains kubeconfig, with the credentials of Admin.
	Dir string
	CA  *Authority
	// Admin may do everything, and so may Client.
	Admin  *rest.Config
	Client *kubernetes.Clientset
	// Controllers is kube-controller-manager.
	Controllers *process.Process

	t        *testing.T
	apiFlags []string // additional ones of the API server
	port     string   // of the API server
	etcd     string   // URL
	peer     string   // URL of etcd for its members
	store    *process.Process
	api      *process.Process
}

// Start starts etcd, the API server, the controllers, with those additional flags, and the
// scheduler.
func Start(t *testing.T, controllerFlags ...string) *ControlPlane {
	t.Helper()
	return StartWith(t, nil, controllerFlags...)
}

// StartWith is Start with additional flags of the API server.
func StartWith(t *testing.T, apiFlags []string, controllerFlags ...string) *ControlPlane {
	t.Helper()
	p := &ControlPlane{t: t, apiFlags: apiFlags, Dir: t.TempDir(), CA: newAuthority(t), port: freePort(t)}
	p.CA.files(p.Dir)
	p.writeKubeconfig()
	p.etcd = "http://127.0.0.1:" + freePort(t)
	p.peer = "http://127.0.0.1:" + freePort(t)
	p.startEtcd()
	p.StartAPI()
	p.WaitReady()
	kubeconfig := "--kubeconfig=" + p.file("kubeconfig")
	p.Controllers = p.start("kube-controller-manager", append([]string{
		kubeconfig, "--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=false",
		"--service-account-private-key-file=" + p.file("sa.key"), "--root-ca-file=" + p.file("ca.crt"),
		"--cluster-signing-cert-file=" + p.file("ca.crt"), "--cluster-signing-key-file=" + p.file("ca.key"),
		"--allocate-node-cidrs=false", "--node-monitor-period=1s", "--node-monitor-grace-period=" + gracePeriod.String(),
	}, controllerFlags...)...)
	p.start("kube-scheduler", kubeconfig, "--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=false")
	return p
}

// gracePeriod is how long a kubelet may be silent; at the lab's speed it renews its Lease
// every half second. A busy machine stalls processes for seconds.
const gracePeriod = 30 * time.Second

func (p *ControlPlane) startEtcd() {
	p.t.Helper()
	p.store = p.start("etcd", "--name="+member, "--data-dir="+p.file("etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls="+p.etcd, "--advertise-client-urls="+p.etcd,
		"--listen-peer-urls="+p.peer, "--initial-advertise-peer-urls="+p.peer, "--initial-cluster="+member+"="+p.peer)
}

// StartAPI starts the API server, the first time or after StopAPI.
func (p *ControlPlane) StartAPI() {
	p.t.Helper()
	p.api = p.start("kube-apiserver", append(slices.Clone(p.apiFlags), "--etcd-servers="+p.etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port="+p.port,
		"--allow-privileged=true", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/12", "--authorization-mode=Node,RBAC",
		"--client-ca-file="+p.file("ca.crt"), "--tls-cert-file="+p.file("apiserver.crt"), "--tls-private-key-file="+p.file("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+p.file("sa.key"),
		"--service-account-signing-key-file="+p.file("sa.key"), "--cert-dir="+p.Dir, "--shutdown-delay-duration=0s")...)
}

// StopAPI kills the API server, as when a node fails.
func (p *ControlPlane) StopAPI() { p.api.Kill() }

// WaitReady waits until the API server serves everything.
func (p *ControlPlane) WaitReady() {
	p.t.Helper()
	var last []byte
	var err error
	for range 600 {
		last, err = p.Client.RESTClient().Get().AbsPath("/readyz").Param("verbose", "1").DoRaw(p.t.Context())
		if err == nil {
			return
		}
		select {
		case <-p.api.Ended():
			p.t.Fatalf("the API server has ended:\n%s", p.api.Said)
		case <-time.After(100 * time.Millisecond):
		}
	}
	p.t.Fatalf("the API server is not ready after a minute: %v\n%s\n%s", err, last, p.api.Said)
}

func (p *ControlPlane) file(name string) string { return filepath.Join(p.Dir, name) }

// start runs a server until the test ends.
func (p *ControlPlane) start(name string, args ...string) *process.Process {
	p.t.Helper()
	cmd := exec.Command(process.Built(p.t, "controlplane"), append([]string{name}, args...)...)
	cmd.Dir = p.Dir
	return process.Start(p.t, name, cmd)
}

// Node is the credentials of a kubelet, which may do with a node of that name what
// kubelets may.
func (p *ControlPlane) Node(name string) *rest.Config {
	p.t.Helper()
	user := p.CA.Issue("system:node:"+name, "system:nodes")
	c := rest.AnonymousClientConfig(p.Admin)
	c.CertData, c.KeyData = user.Cert, user.Key
	return c
}

// writeKubeconfig writes credentials of a user who may do everything.
func (p *ControlPlane) writeKubeconfig() {
	p.t.Helper()
	admin := p.CA.Issue("e2e", "system:masters")
	encode := base64.StdEncoding.EncodeToString
	kubeconfig := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: e2e
clusters: [{name: e2e, cluster: {server: "https://127.0.0.1:%s", certificate-authority-data: %s}}]
users: [{name: e2e, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: e2e, context: {cluster: e2e, user: e2e}}]
`, p.port, encode(p.CA.PEM), encode(admin.Cert), encode(admin.Key))
	if err := os.WriteFile(p.file("kubeconfig"), []byte(kubeconfig), 0o600); err != nil {
		p.t.Fatal(err)
	}
	var err error
	if p.Admin, err = clientcmd.RESTConfigFromKubeConfig([]byte(kubeconfig)); err != nil {
		p.t.Fatal(err)
	}
	p.Admin.QPS = -1
	if p.Client, err = kubernetes.NewForConfig(p.Admin); err != nil {
		p.t.Fatal(err)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(process.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	return port
}
