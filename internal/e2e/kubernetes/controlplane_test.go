package kubernetes

import (
	"bytes"
	"encoding/base64"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

var controlplaneBinary = flag.String("controlplane", "../../../bin/e2e/controlplane", "what is built of ./controlplane")

// controlPlane is a real one on the loopback interface, with one process per server.
type controlPlane struct {
	t    *testing.T
	dir  string // contains its kubeconfig
	ca   *authority
	port string // of the API server
	etcd string // URL
	api  *server
	// controllers is kube-controller-manager.
	controllers *server

	admin  *rest.Config
	client *kubernetes.Clientset // may do everything
}

// server is one of its processes.
type server struct {
	cmd   *exec.Cmd
	log   *tail
	ended chan struct{}
}

// startControlPlane starts etcd, the API server, the controllers and the scheduler.
func startControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	p := &controlPlane{t: t, dir: t.TempDir(), ca: newAuthority(t), port: freePort(t)}
	p.ca.files(p.dir)
	p.writeKubeconfig()
	p.etcd = "http://127.0.0.1:" + freePort(t)
	peer := "http://127.0.0.1:" + freePort(t)
	p.start("etcd", "--name=e2e", "--data-dir="+filepath.Join(p.dir, "etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls="+p.etcd, "--advertise-client-urls="+p.etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=e2e="+peer)
	p.startAPI()
	p.waitReady()
	kubeconfig := "--kubeconfig=" + filepath.Join(p.dir, "kubeconfig")
	p.controllers = p.start("kube-controller-manager", kubeconfig, "--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=false",
		"--service-account-private-key-file="+p.file("sa.key"), "--root-ca-file="+p.file("ca.crt"),
		"--cluster-signing-cert-file="+p.file("ca.crt"), "--cluster-signing-key-file="+p.file("ca.key"),
		"--allocate-node-cidrs=false", "--node-monitor-period=1s", "--node-monitor-grace-period="+gracePeriod.String())
	p.start("kube-scheduler", kubeconfig, "--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=false")
	return p
}

// gracePeriod is how long a kubelet may be silent; at the lab's speed it renews its Lease
// every half second. A busy machine stalls processes for seconds.
const gracePeriod = 30 * time.Second

func (p *controlPlane) startAPI() {
	p.t.Helper()
	p.api = p.start("kube-apiserver", "--etcd-servers="+p.etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port="+p.port,
		"--allow-privileged=true", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/12", "--authorization-mode=Node,RBAC",
		"--client-ca-file="+p.file("ca.crt"), "--tls-cert-file="+p.file("apiserver.crt"), "--tls-private-key-file="+p.file("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+p.file("sa.key"),
		"--service-account-signing-key-file="+p.file("sa.key"), "--cert-dir="+p.dir, "--shutdown-delay-duration=0s")
}

// stopAPI kills the API server, as when a node fails.
func (p *controlPlane) stopAPI() {
	p.t.Helper()
	if err := p.api.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	<-p.api.ended
}

// waitReady waits until the API server serves everything.
func (p *controlPlane) waitReady() {
	p.t.Helper()
	var last []byte
	var err error
	for range 600 {
		last, err = p.client.RESTClient().Get().AbsPath("/readyz").Param("verbose", "1").DoRaw(p.t.Context())
		if err == nil {
			return
		}
		select {
		case <-p.api.ended:
			p.t.Fatalf("the API server has ended:\n%s", p.api.log)
		case <-time.After(100 * time.Millisecond):
		}
	}
	p.t.Fatalf("the API server is not ready after a minute: %v\n%s\n%s", err, last, p.api.log)
}

func (p *controlPlane) file(name string) string { return filepath.Join(p.dir, name) }

// start runs a server until the test ends.
func (p *controlPlane) start(name string, args ...string) *server {
	p.t.Helper()
	binary, err := filepath.Abs(*controlplaneBinary)
	if err == nil {
		_, err = os.Stat(binary)
	}
	if err != nil {
		p.t.Fatalf("%v: make e2e-k8s builds it", err)
	}
	s := &server{cmd: exec.Command(binary, append([]string{name}, args...)...), log: new(tail), ended: make(chan struct{})}
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = p.dir, s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() { _ = s.cmd.Wait(); close(s.ended) }()
	p.t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it may have ended
		<-s.ended
		if p.t.Failed() {
			p.t.Logf("the end of what %s said:\n%s", name, s.log)
		}
	})
	return s
}

// writeKubeconfig writes credentials of a user who may do everything.
func (p *controlPlane) writeKubeconfig() {
	p.t.Helper()
	admin := p.ca.issue("e2e", "system:masters")
	encode := base64.StdEncoding.EncodeToString
	kubeconfig := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: e2e
clusters: [{name: e2e, cluster: {server: "https://127.0.0.1:%s", certificate-authority-data: %s}}]
users: [{name: e2e, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: e2e, context: {cluster: e2e, user: e2e}}]
`, p.port, encode(p.ca.pem), encode(admin.cert), encode(admin.key))
	if err := os.WriteFile(p.file("kubeconfig"), []byte(kubeconfig), 0o600); err != nil {
		p.t.Fatal(err)
	}
	var err error
	if p.admin, err = clientcmd.RESTConfigFromKubeConfig([]byte(kubeconfig)); err != nil {
		p.t.Fatal(err)
	}
	p.admin.QPS = -1
	if p.client, err = kubernetes.NewForConfig(p.admin); err != nil {
		p.t.Fatal(err)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// tail keeps the end of a process's output.
type tail struct {
	mu   sync.Mutex
	said bytes.Buffer
}

func (l *tail) Write(b []byte) (int, error) {
	const kept = 64 << 10
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.said.Len() > 2*kept {
		l.said.Next(l.said.Len() - kept)
	}
	return l.said.Write(b)
}

func (l *tail) String() string {
	const lines = 30
	l.mu.Lock()
	defer l.mu.Unlock()
	all := strings.SplitAfter(l.said.String(), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}
