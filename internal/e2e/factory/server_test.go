package factory

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
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

// depot is a registry at 127.0.0.1, the only address for which container tools use plain HTTP. Its blobs are on disk.
type depot struct {
	addr    string
	handler http.Handler
	content atomic.Int64 // requests that read blobs
	writes  atomic.Int64 // requests that change something
}

func newDepot(t *testing.T) *depot {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	d := &depot{addr: l.Addr().String()}
	handler := registry.New(
		registry.WithBlobHandler(registry.NewDiskBlobHandler(t.TempDir())),
		registry.WithReferrersSupport(true),
		registry.Logger(log.New(io.Discard, "", 0)),
	)
	d.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			d.writes.Add(1)
		case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/"):
			d.content.Add(1)
		}
		handler.ServeHTTP(w, r)
	})
	serve(t, &http.Server{Handler: d.handler}, func(s *http.Server) error { return s.Serve(l) })
	return d
}

// servesTLS serves the same at another address, with certificates of an authority. HTTP/2 is disabled: of parallel
// uploads on one connection, this registry reads one at a time (the lock of PATCH in go-containerregistry's
// pkg/registry/blobs.go), and the others' data would fill the connection's window.
func (d *depot) servesTLS(t *testing.T, ca *authority) (addr string) {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	server := &http.Server{Handler: d.handler, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.ErrorLog = log.New(io.Discard, "", 0) // tests use clients that do not trust the certificate
	serve(t, server, func(s *http.Server) error { return s.ServeTLS(l, ca.certFile, ca.keyFile) })
	return l.Addr().String()
}

func serve(t *testing.T, server *http.Server, run func(*http.Server) error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- run(server) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// tag is a reference to the registry: "siderolabs/imager:v1.13.9".
func (d *depot) tag(t *testing.T, path string) name.Tag {
	t.Helper()
	return must(name.NewTag(d.addr + "/" + path))(t)
}

func (d *depot) push(t *testing.T, path string, what remote.Taggable) {
	t.Helper()
	mustDo(t, remote.Push(d.tag(t, path), what, remote.WithContext(t.Context())))
}

func (d *depot) forgets(t *testing.T, path string) {
	t.Helper()
	repository := must(name.NewRepository(d.addr + "/" + path))(t)
	tags, err := remote.List(repository, remote.WithContext(t.Context()))
	if err != nil || len(tags) == 0 {
		t.Fatalf("%s has the tags %q: %v", repository, tags, err)
	}
	for _, tag := range tags {
		mustDo(t, remote.Delete(repository.Tag(tag), remote.WithContext(t.Context())))
	}
}

// digest is the digest of a tag; "" if there is none.
func (d *depot) digest(t *testing.T, path string) string {
	t.Helper()
	desc, err := remote.Head(d.tag(t, path), remote.WithContext(t.Context()))
	if err != nil {
		return ""
	}
	return desc.Digest.String()
}

func digestOf(t *testing.T, what interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h := must(what.Digest())(t)
	return fmt.Sprint(h)
}

// front is the address of an Image Factory, in front of one or several processes like a load balancer.
type front struct {
	addr, url string
	images    atomic.Int64 // requests that make the factory build

	mu               sync.Mutex
	lists, otherwise *url.URL // targets of requests for lists and certificates, and of all others
}

func newFront(t *testing.T) *front {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	f := &front{addr: l.Addr().String(), url: "http://" + l.Addr().String()}
	serve(t, &http.Server{Handler: &httputil.ReverseProxy{Rewrite: f.route, FlushInterval: -1}}, func(s *http.Server) error { return s.Serve(l) })
	return f
}

func (f *front) route(r *httputil.ProxyRequest) {
	path := r.In.URL.Path
	if strings.HasPrefix(path, "/image/") || strings.HasPrefix(path, "/v2/") && strings.Contains(path, "/manifests/v") {
		f.images.Add(1)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	to := f.otherwise
	if strings.HasPrefix(path, "/version/") || strings.HasPrefix(path, "/secureboot/") {
		to = f.lists
	}
	r.SetURL(to)
	r.Out.Host = r.In.Host
}

// leads sends every request to one factory.
func (f *front) leads(t *testing.T, to *running) { f.splits(t, to, to) }

// splits sends requests for lists and certificates to one factory and all others to another, as may happen with replicas.
func (f *front) splits(t *testing.T, lists, otherwise *running) {
	t.Helper()
	parse := func(r *running) *url.URL {
		return must(url.Parse(r.url))(t)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists, f.otherwise = parse(lists), parse(otherwise)
}

// authority is a private CA, which no system trusts.
type authority struct {
	file  string // its certificate, PEM
	about *x509.Certificate
	key   *ecdsa.PrivateKey
	roots *x509.CertPool

	certFile, keyFile string // of every server at 127.0.0.1, PEM
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	dir := t.TempDir()
	a := &authority{file: filepath.Join(dir, "ca.pem"), certFile: filepath.Join(dir, "server.crt"), keyFile: filepath.Join(dir, "server.key"), roots: x509.NewCertPool()}
	a.key = newKey(t)
	a.about = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA of this test"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	own := a.signs(t, a.about, a.key)
	write(t, a.file, own)
	a.roots.AppendCertsFromPEM(own)
	server := newKey(t)
	write(t, a.certFile, a.signs(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: a.about.NotBefore, NotAfter: a.about.NotAfter, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, server))
	der := must(x509.MarshalPKCS8PrivateKey(server))(t)
	write(t, a.keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
}

func (a *authority) signs(t *testing.T, about *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der := must(x509.CreateCertificate(rand.Reader, about, a.about, &key.PublicKey, a.key))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (a *authority) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: a.roots}}}
}

var (
	recastBinary = flag.String("recast", "../../../bin/recast", "the recast to drive")
	diskBinary   = flag.String("disk", "../../../bin/e2e/disk", "what is built of internal/e2e/disk: recast's verification of disk images")
	realBinary   = flag.String("real", "../../../bin/e2e/real", "what is built of ./real: the Image Factory and the imager")
)

// program is the Image Factory or the imager.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return exec.Command(absolute(t, *realBinary), args...)
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path = must(filepath.Abs(path))(t)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: make e2e builds it", err)
	}
	return path
}

// needed are the programs that imager runs, and those that build a Talos for it and sign it.
var needed = []string{"mksquashfs", "unsquashfs", "cpio", "zstd", "mkfs.vfat", "mcopy", "mattrib", "xorrisofs", "grub-mkrescue", "depmod", "qemu-img", "sfdisk", "osslsigncode"}

// programs is a directory for the front of PATH: mksquashfs before 4.6, in some
// distributions, lacks imager's option to leave extended attributes out.
func programs(t *testing.T) string {
	t.Helper()
	for _, name := range needed {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v: make e2e-deps", err)
		}
	}
	bin := t.TempDir()
	help, _ := exec.CommandContext(t.Context(), "mksquashfs", "-help").CombinedOutput() // exits 1
	if strings.Contains(string(help), "-xattrs-exclude") {
		return bin
	}
	path := must(exec.LookPath("mksquashfs"))(t)
	shim := fmt.Sprintf(`#!/bin/sh
skip=
for arg do
	shift
	if [ -n "$skip" ]; then skip=; continue; fi
	if [ "$arg" = -xattrs-exclude ]; then skip=1; continue; fi
	set -- "$@" "$arg"
done
exec %s "$@"
`, path)
	mustDo(t, os.WriteFile(filepath.Join(bin, "mksquashfs"), []byte(shim), 0o755))
	return bin
}

// must is the value of a call, whose error ends the test: must(os.ReadFile(name))(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		mustDo(t, err)
		return v
	}
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
