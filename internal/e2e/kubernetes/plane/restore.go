package plane

import (
	"io"
	"net"
	"os"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/process"
)

// member is the name of etcd's only member.
const member = "e2e"

// SaveEtcd writes a snapshot of etcd to a file, from the call of etcd's API that a machine makes for recast backup.
func (p *ControlPlane) SaveEtcd() (file string) {
	p.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{p.etcd}, Logger: zap.NewNop()})
	if err != nil {
		p.t.Fatal(err)
	}
	defer client.Close()
	r, err := client.Snapshot(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		p.t.Fatal(err)
	}
	file = p.file("etcd.snapshot")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return file
}

// RestoreEtcd replaces etcd by a snapshot with etcd's own code, called as by Talos: the revision is the snapshot's
// (recoverFromSnapshot in internal/app/machined/pkg/system/services/etcd.go of siderolabs/talos). The API server is
// a new process afterwards, and ready.
func (p *ControlPlane) RestoreEtcd(file string) {
	p.t.Helper()
	p.StopAPI()
	p.store.Kill()
	if err := os.RemoveAll(p.file("etcd")); err != nil {
		p.t.Fatal(err)
	}
	if err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: member, OutputDataDir: p.file("etcd"), PeerURLs: []string{p.peer}, InitialCluster: member + "=" + p.peer,
	}); err != nil {
		p.t.Fatalf("restore etcd: %v", err)
	}
	p.startEtcd()
	p.StartAPI()
	p.WaitReady()
}

// Write raises etcd's revision by n.
func (p *ControlPlane) Write(n int) {
	p.t.Helper()
	for range n {
		_, err := p.Client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(p.t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "write-"},
		}, metav1.CreateOptions{})
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// Door is another address of the API server, which refuses connections while it is shut, as a node's load balancer
// may that sends nobody to a server that is not ready.
type Door struct {
	// Addr is host and port.
	Addr string

	t        *testing.T
	to       string
	mu       sync.Mutex
	listener net.Listener
	open     []net.Conn
}

// Door makes an open one.
func (p *ControlPlane) Door() *Door {
	p.t.Helper()
	d := &Door{Addr: process.FreeAddress(p.t), t: p.t, to: "127.0.0.1:" + p.port}
	d.Open()
	p.t.Cleanup(d.Shut)
	return d
}

// Open accepts connections.
func (d *Door) Open() {
	d.t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(d.t.Context(), "tcp", d.Addr)
	if err != nil {
		d.t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listener = l
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // it is shut
			}
			go d.forward(c)
		}
	}()
}

// Shut ends all connections, and refuses new ones.
func (d *Door) Shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.listener.Close() // it may be shut
	for _, c := range d.open {
		_ = c.Close()
	}
	d.open = nil
}

func (d *Door) forward(from net.Conn) {
	to, err := net.Dial("tcp", d.to)
	if err != nil {
		_ = from.Close()
		return
	}
	d.mu.Lock()
	d.open = append(d.open, from, to)
	d.mu.Unlock()
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // either end may close
			_ = from.Close()
			_ = to.Close()
		}()
	}
}
