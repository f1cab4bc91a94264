package pve

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
)

const (
	hugeBytes = 4 << 30
	// hugeSHA256 is the checksum of that many zeros.
	hugeSHA256 = "8479e43911dc45e89f934fe48d01297e16f51d17aa561d4d1c216b1ae0fcddca"

	roleVar   = "RECAST_UPLOAD_ROLE" // of the process: "server" or "client"
	serverVar = "RECAST_UPLOAD_SERVER"
	fileVar   = "RECAST_UPLOAD_FILE"
)

// TestUploadMemory uploads 4 GiB over TLS to a server in another process, from a
// client in a third, small one: its peak above that counts. The environment selects
// the role.
func TestUploadMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("long: 4 GiB take a while")
	}
	switch os.Getenv(roleVar) {
	case "server":
		serveUploads(t)
		return
	case "client":
		uploadHuge(t)
		return
	}
	got := measureUpload(t)
	t.Logf("%d MiB at %d MiB/s; %.1f MiB idle, peak %.1f MiB above that; cancelled in %s, %.1f MiB ahead of the server",
		hugeBytes>>20, int(hugeBytes/got.took.Seconds())>>20, got.idleMiB, got.aboveMiB, got.cancelled, got.aheadMiB)
	if got.aboveMiB >= 64 {
		t.Errorf("peak is %.1f MiB above idle", got.aboveMiB)
	}
	if got.cancelled > time.Second {
		t.Errorf("cancelled in %s", got.cancelled)
	}
	// The kernel's buffers on both ends take some of it, but no more.
	if got.aheadMiB > 256 {
		t.Errorf("%.1f MiB were read from the file that the server had not received", got.aheadMiB)
	}
}

func BenchmarkUpload(b *testing.B) {
	b.SetBytes(hugeBytes)
	var last uploadFigures
	for b.Loop() {
		last = measureUpload(b)
	}
	b.ReportMetric(last.aboveMiB, "peak-MiB-above-idle")
	b.ReportMetric(last.cancelled.Seconds()*1000, "ms-to-cancel")
}

// uploadFigures are the cost of one upload.
type uploadFigures struct {
	idleMiB, aboveMiB float64
	took              time.Duration
	cancelled         time.Duration // from the cancel to the return of an upload that the server had stopped reading
	aheadMiB          float64       // what that one had read from its file beyond what the server received
}

// measureUpload runs server and client.
func measureUpload(t testing.TB) uploadFigures {
	t.Helper()
	file := filepath.Join(t.TempDir(), "huge.iso")
	must(t, errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, hugeBytes)))
	server := again(t, "server")
	stop, err := server.StdinPipe()
	must(t, err)
	out, err := server.StdoutPipe()
	must(t, err)
	must(t, server.Start())
	defer func() {
		_ = stop.Close() // ends the server
		_ = server.Wait()
	}()
	where, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	client := again(t, "client", serverVar+"="+strings.TrimSpace(where), fileVar+"="+file)
	said, err := client.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	var got uploadFigures
	line, _, _ := strings.Cut(string(said), "\n")
	if _, err := fmt.Sscan(line, &got.idleMiB, &got.aboveMiB, (*int64)(&got.took), (*int64)(&got.cancelled), &got.aheadMiB); err != nil {
		t.Fatalf("%v in %q", err, said)
	}
	return got
}

// again runs this test in another process, in another role.
func again(t testing.TB, role string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestUploadMemory$")
	cmd.Env = append(os.Environ(), append(env, roleVar+"="+role)...)
	cmd.Stderr = os.Stderr
	return cmd
}

// uploadHuge is the client.
func uploadHuge(t *testing.T) {
	endpoint, fingerprint, _ := strings.Cut(os.Getenv(serverVar), " ")
	c, err := New(api.Options{Endpoints: []string{endpoint}, Fingerprint: fingerprint, Token: []byte(apitest.Token), Poll: 10 * time.Millisecond})
	must(t, err)
	defer c.Close()
	u := images.Upload{
		Host: "pve1", Storage: "isos", Name: "huge.iso", SizeBytes: hugeBytes, SHA256: hugeSHA256,
		Open: func() (io.ReadCloser, error) { return os.Open(os.Getenv(fileVar)) },
	}
	if _, _, err := c.ISO(t.Context(), u.Host, u.Storage, u.Name); err != nil {
		t.Fatal(err)
	}
	var got uploadFigures
	got.idleMiB = memoryMiB(t, "VmRSS")
	got.cancelled, got.aheadMiB = cancelHuge(t, c, u)
	begun := time.Now()
	must(t, c.Upload(t.Context(), u))
	got.took = time.Since(begun)
	got.aboveMiB = memoryMiB(t, "VmHWM") - got.idleMiB
	fmt.Println(got.idleMiB, got.aboveMiB, int64(got.took), int64(got.cancelled), got.aheadMiB)
}

// cancelHuge cancels an upload once the server stops reading.
func cancelHuge(t *testing.T, c *Client, u images.Upload) (took time.Duration, aheadMiB float64) {
	u.Host = stallingHost
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read := make(chan int64)
	u.Progress = func(sent int64) {
		select {
		case read <- sent:
		case <-ctx.Done():
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Upload(ctx, u) }()
	for {
		select {
		case sent := <-read:
			aheadMiB = float64(sent-stallAfter) / (1 << 20)
			continue
		case err := <-ended:
			t.Fatalf("ended by itself: %v", err)
		case <-time.After(500 * time.Millisecond): // the other process reads no more
		}
		break
	}
	begun := time.Now()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	return time.Since(begun), aheadMiB
}

// memoryMiB reads a figure of this process (proc_pid_status(5)).
func memoryMiB(t *testing.T, name string) float64 {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	_, rest, _ := strings.Cut(string(status), name+":")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	must(t, err)
	return float64(kib) / 1024
}

const (
	// stallingHost stops reading an upload after stallAfter bytes.
	stallingHost = "pve2"
	stallAfter   = 64 << 20
)

// serveUploads is a Proxmox node that receives uploads of ISOs and keeps only their
// checksums. It prints its address, and ends with its input.
func serveUploads(t *testing.T) {
	cert := apitest.NewCertificate(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	fmt.Printf("https://%s %s\n", l.Addr(), apitest.Fingerprint(cert.Leaf))
	srv := &http.Server{Handler: &uploadTaker{}, ErrorLog: log.New(io.Discard, "", 0)}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}})) })
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = srv.Close()
	wg.Wait()
}

type uploadTaker struct {
	mu   sync.Mutex
	exit string // of the last task
}

func (s *uploadTaker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/nodes/"+stallingHost+"/"):
		_, _ = io.CopyN(io.Discard, r.Body, stallAfter)
		<-r.Context().Done()
	case r.Method == http.MethodPost:
		var got received
		exit := "OK"
		if err := got.read(r); err != nil || len(got.parts) != 4 || got.parts[3].Value != got.parts[2].Value || got.length <= 0 {
			exit = fmt.Sprintf("received %+v, %v", got, err)
		}
		s.mu.Lock()
		s.exit = exit
		s.mu.Unlock()
		data(`"`+testUPID+`"`)(w, r)
	case strings.HasSuffix(r.URL.Path, "/status"):
		s.mu.Lock()
		defer s.mu.Unlock()
		stopped(s.exit)(w, r)
	case strings.HasSuffix(r.URL.Path, "/access/permissions"):
		data(fmt.Sprintf(`{%q:{"Datastore.AllocateTemplate":1}}`, r.URL.Query().Get("path")))(w, r)
	default:
		data(`[]`)(w, r)
	}
}
