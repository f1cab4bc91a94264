package factory

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// factoryServer starts factories that share a registry and a key.
type factoryServer struct {
	core, own *depot
	front     *front
	key       string
	keys      string // directory with the keys for Secure Boot
	bin       string // directory at the front of imager's PATH
	dir       string
	started   int
}

func newFactoryServer(t *testing.T, core, own *depot, at *front, bin string) *factoryServer {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must(x509.MarshalPKCS8PrivateKey(key))(t)
	f := &factoryServer{core: core, own: own, front: at, bin: bin, dir: t.TempDir()}
	f.key = filepath.Join(f.dir, "signing.key")
	write(t, f.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	f.keys = filepath.Join(f.dir, "secureboot")
	secureBootKeys(t, f.keys)
	return f
}

// running is one process.
type running struct {
	url, log string
	process  *exec.Cmd
	took     time.Duration
	ended    chan error
}

// start runs a factory behind the front and waits until it answers.
func (f *factoryServer) start(t *testing.T) *running {
	t.Helper()
	addr := freeAddress(t)
	return f.run(t, http.DefaultClient, "http://"+addr, addr, f.front.url)
}

// startTLS runs one with its own public address and certificates of an authority.
func (f *factoryServer) startTLS(t *testing.T, ca *authority) *running {
	t.Helper()
	addr := freeAddress(t)
	return f.run(t, ca.client(), "https://"+addr, addr, "https://"+addr, ca.certFile, ca.keyFile)
}

// run starts a factory at url and waits until it answers a client.
func (f *factoryServer) run(t *testing.T, client *http.Client, url, listen, known string, certificate ...string) *running {
	t.Helper()
	f.started++
	tmp := filepath.Join(f.dir, fmt.Sprintf("tmp%d", f.started))
	mustDo(t, os.Mkdir(tmp, 0o700))
	r := &running{url: url, log: filepath.Join(f.dir, fmt.Sprintf("factory%d.log", f.started)), ended: make(chan error, 1)}
	log := must(os.Create(r.log))(t)
	defer log.Close() // the child has its own
	r.process = program(t, append([]string{"factory", listen, known, f.core.addr, f.own.addr, f.key, f.keys}, certificate...)...)
	r.process.Stdout, r.process.Stderr = log, log
	r.process.Env = append(os.Environ(), "TMPDIR="+tmp, "PATH="+f.bin+":"+os.Getenv("PATH"))
	began := time.Now()
	mustDo(t, r.process.Start())
	go func() { r.ended <- r.process.Wait() }()
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(r.log) // for the failure message; it may be missing
			t.Logf("what the factory had to say:\n%s", complaints(string(b)))
		}
		r.stop(t)
	})
	for !answers(t, client, r.url+"/versions") {
		select {
		case err := <-r.ended:
			r.ended <- err
			b, _ := os.ReadFile(r.log)
			t.Fatalf("the factory has ended: %v\n%s", err, b)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Since(began) > time.Minute {
			t.Fatal("the factory does not answer")
		}
	}
	r.took = time.Since(began)
	return r
}

// stop ends the process, as a service manager does.
func (r *running) stop(t *testing.T) {
	t.Helper()
	if r.process == nil {
		return
	}
	if err := r.process.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	if err := <-r.ended; err != nil && !t.Failed() {
		t.Errorf("the factory, asked to end: %v", err)
	}
	r.process = nil
}

func answers(t *testing.T, client *http.Client, url string) bool {
	t.Helper()
	req := must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// freeAddress is an unused address.
func freeAddress(t *testing.T) string {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().String()
}

// complaints are the warnings and errors of a log.
func complaints(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		if strings.HasPrefix(line, `{"level":"`) && !strings.HasPrefix(line, `{"level":"info"`) {
			b.WriteString(line)
		}
	}
	return b.String()
}
