package pve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
	"github.com/recast-sh/recast/internal/sim/must"
)

const (
	uploadPath = "POST /nodes/pve1/storage/isos/upload"
	isosPath   = "GET /nodes/pve1/storage/isos/content?content=iso"

	mayUploadPath = "GET /access/permissions?path=%2Fstorage%2Fisos"
)

// mayUpload says that the token may upload ISOs.
var mayUpload = data(`{"/storage/isos":{"Datastore.AllocateTemplate":1}}`)

// acceptUploads makes a node take uploads with these answers.
func acceptUploads(f *fake, answers ...route) {
	f.On(isosPath, data(`[]`))
	f.On(mayUploadPath, mayUpload)
	f.On(uploadPath, answers...)
	f.On(statusPath, running, stopped("OK"))
	f.On(logPath, data(`[]`))
}

// countedFile counts the open files.
type countedFile struct {
	io.Reader
	open *atomic.Int32
}

func (f *countedFile) Close() error { f.open.Add(-1); return nil }

// isoOf is an upload of that file, which must be closed when the test ends.
func isoOf(t *testing.T, content []byte) images.Upload {
	t.Helper()
	var open atomic.Int32
	t.Cleanup(func() { must.Equal(t, "open files", int32(0), open.Load()) })
	return images.Upload{
		Host: "pve1", Storage: "isos", Name: "recast-1.iso", SizeBytes: int64(len(content)), SHA256: fmt.Sprintf("%x", sha256.Sum256(content)),
		Open: func() (io.ReadCloser, error) {
			open.Add(1)
			return &countedFile{bytes.NewReader(content), &open}, nil
		},
	}
}

// received is an uploaded form, its file only as a sum.
type received struct {
	parts  []part
	length int64 // of the whole body
}

type part struct{ Name, File, Value string }

func (got *received) read(r *http.Request) error {
	_, boundary, _ := strings.Cut(r.Header.Get("Content-Type"), "boundary=")
	form := multipart.NewReader(r.Body, boundary)
	got.length = r.ContentLength
	for {
		p, err := form.NextRawPart()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var value bytes.Buffer
		sum := sha256.New()
		to := io.Writer(&value)
		if p.FileName() != "" {
			to = sum
		}
		if _, err := io.Copy(to, p); err != nil {
			return err
		}
		if p.FileName() != "" {
			fmt.Fprintf(&value, "%x", sum.Sum(nil))
		}
		got.parts = append(got.parts, part{p.FormName(), p.FileName(), value.String()})
	}
}

// want are the parts in the only order that Proxmox takes.
func (got *received) want(t *testing.T, u images.Upload) {
	t.Helper()
	must.Equal(t, "parts", []part{
		{Name: "content", Value: "iso"},
		{Name: "checksum-algorithm", Value: "sha256"},
		{Name: "checksum", Value: u.SHA256},
		{Name: "filename", File: u.Name, Value: u.SHA256},
	}, got.parts)
}

// take answers with a task.
func (got *received) take(w http.ResponseWriter, r *http.Request) {
	if err := got.read(r); err != nil {
		raw("400 "+err.Error(), "")(w, r)
		return
	}
	data(`"`+testUPID+`"`)(w, r)
}

func TestUpload(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		var got received
		acceptUploads(pve1, got.take)
		u := isoOf(t, bytes.Repeat([]byte("talos"), 200_000))
		var last int64
		u.Progress = func(sent int64) {
			if sent <= last {
				t.Errorf("progress goes from %d to %d", last, sent)
			}
			last = sent
		}
		must.Do(t, c.Upload(t.Context(), u))
		got.want(t, u)
		if last != u.SizeBytes || got.length <= last {
			t.Errorf("progress ends at %d of %d, the request had %d bytes", last, u.SizeBytes, got.length)
		}
	})
}

func TestFormBeginsEachPartWithItsDisposition(t *testing.T) {
	t.Parallel()
	f := must.Get(newForm(images.Upload{Name: "a.iso", SHA256: "00"}))(t)
	_, boundary, _ := strings.Cut(f.contentType, "boundary=")
	parts := strings.Split(string(f.head), "--"+boundary+"\r\n")[1:]
	if len(parts) != 4 {
		t.Fatalf("%d parts", len(parts))
	}
	for _, p := range parts {
		if !strings.HasPrefix(p, "Content-Disposition: form-data; name=") {
			t.Errorf("part begins %q", p)
		}
	}
}

// swallow answers after receiving the whole request.
func swallow(then route) route {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		then(w, r)
	}
}

func TestUploadFails(t *testing.T) {
	content := bytes.Repeat([]byte("x"), 1<<20)
	type row struct {
		answer route
		task   string // how it ends
		size   int64
		is     error
		want   string // part of the error
	}
	onEachNode(t, map[string]row{
		"checksum":        {answer: swallow(data(`"` + testUPID + `"`)), task: "checksum mismatch: got 'a' != expect 'b'", want: "checksum mismatch: got 'a'"},
		"full storage":    {answer: swallow(data(`"` + testUPID + `"`)), task: "cp: error writing: No space left on device", is: api.ErrNoSpace, want: "No space left"},
		"refused":         {answer: swallow(raw("500 storage 'isos' does not support 'iso' content", "")), want: "POST /nodes/pve1/storage/isos/upload: 500 storage 'isos' does not support 'iso' content"},
		"no such storage": {answer: swallow(raw("500 storage 'isos' does not exist", "")), is: images.ErrNoStorage, want: "does not exist"},
		"file is shorter": {answer: swallow(data(`"` + testUPID + `"`)), size: 2 << 20, is: io.ErrUnexpectedEOF, want: "the file ends after 1048576 of 2097152 bytes"},
		"context ends":    {answer: swallow(after(time.Hour, lost)), is: context.DeadlineExceeded, want: "deadline"},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		acceptUploads(pve1, tc.answer)
		pve1.On(statusPath, stopped(tc.task))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		u := isoOf(t, content)
		u.SizeBytes = max(tc.size, u.SizeBytes)
		wantError(t, c.Upload(ctx, u), tc.is, tc.want)
	})
}

// TestUploadThatProxmoxWouldRefuse is not started: the refusal could not be received.
func TestUploadThatProxmoxWouldRefuse(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		acceptUploads(pve1, lost)
		pve1.On(mayUploadPath, data(`{"/storage/isos":{"Datastore.Audit":1}}`))
		err := c.Upload(t.Context(), isoOf(t, bytes.Repeat([]byte("x"), 1<<20)))
		const want = "403 Permission check failed (/storage/isos, Datastore.AllocateTemplate)"
		if err == nil || !strings.Contains(err.Error(), want) || fault.CodeOf(err) != fault.TokenPrivileges || fault.KindOf(err) != fault.Refused {
			t.Errorf("%v", err)
		}
		must.Equal(t, "changes", []string{}, changes(pve1.Requests()))
	})
}

func TestUploadGoesToAnotherEndpoint(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newSite(t)
		pve2 := s.Node(t, "pve2")
		var got received
		acceptUploads(pve2, got.take)
		u := isoOf(t, []byte("small"))
		must.Do(t, s.client(t, "pve1", "pve2").Upload(t.Context(), u))
		got.want(t, u)
	})
}

// TestUploadWithoutAnswer: the outcome of an upload is looked up, and only one without effect is sent again.
func TestUploadWithoutAnswer(t *testing.T) {
	const (
		nodes  = "GET /nodes"
		tasks  = "/tasks?limit=500&source=all&typefilter=imgcopy"
		copied = "UPID:pve2:0000ABCD:00012345:386D4380:imgcopy::recast@pve!roll:"
		other  = "UPID:pve2:0000ABCE:00012345:386D4380:imgcopy::else@pve!roll:"
	)
	content := bytes.Repeat([]byte("x"), 4<<20)
	there := data(`[{"volid":"isos:iso/recast-1.iso","size":4194304}]`)
	ok := swallow(data(`"` + testUPID + `"`))
	type row struct {
		answers []route
		isos    []route
		tasks   []route // of pve2, which receives the upload
		exit    string  // of the task there
		sent    int
		quick   bool // it cannot have had an effect, so nothing is looked up
		is      error
		fails   string
	}
	inEachBubble(t, map[string]row{
		"its task is found":        {answers: []route{swallow(lost)}, tasks: []route{data(`[]`), data(`[{"upid":"` + copied + `"},{"upid":"` + other + `"}]`)}, exit: "OK", sent: 1},
		"its task has failed":      {answers: []route{swallow(lost)}, tasks: []route{data(`[{"upid":"` + copied + `"}]`)}, exit: "checksum mismatch: got 'a'", sent: 1, fails: "checksum mismatch: got 'a'"},
		"the file shows":           {answers: []route{swallow(lost)}, isos: []route{data(`[]`), data(`[]`), there}, sent: 1},
		"cut off, then sent again": {answers: []route{lost, ok}, sent: 2, quick: true},
		"a file was there before":  {answers: []route{swallow(lost), ok}, isos: []route{there}, sent: 2},
		"no answer comes ever":     {answers: []route{swallow(lost)}, sent: 3, is: cluster.ErrLostAnswer, fails: "since then neither a task nor the file has appeared"},
		"a proxy cancels it":       {answers: []route{swallow(raw("596 Connection timed out", "")), ok}, sent: 2},
		"nothing can be looked up": {answers: []route{swallow(lost)}, tasks: []route{raw("403 Permission check failed", "")}, sent: 1, is: cluster.ErrLostAnswer, fails: "403 Permission check failed"},
	}, func(t *testing.T, tc row) {
		s := newSite(t)
		pve2 := s.Node(t, "pve2")
		acceptUploads(pve2, tc.answers...)
		if tc.isos != nil {
			pve2.On(isosPath, tc.isos...)
		}
		pve2.On(nodes, data(`[{"node":"pve1","status":"online"},{"node":"pve2","status":"online"},{"node":"pve3","status":"offline"}]`))
		pve2.On("GET /nodes/pve1"+tasks, data(`[]`))
		pve2.On("GET /nodes/pve2"+tasks, data(`[]`))
		if tc.tasks != nil {
			pve2.On("GET /nodes/pve2"+tasks, tc.tasks...)
		}
		pve2.On("GET /nodes/pve2/status", data(`{"uptime":745}`))
		pve2.On("GET /nodes/pve2/tasks/"+url.PathEscape(copied)+"/status", running, stopped(tc.exit))
		pve2.On("GET /nodes/pve2/tasks/"+url.PathEscape(copied)+"/log?limit=500", data(`[]`))
		begun := time.Now()
		wantError(t, s.client(t, "pve2").Upload(t.Context(), isoOf(t, content)), tc.is, tc.fails)
		if took := time.Since(begun); tc.quick && took > lateness/2 {
			t.Errorf("it took %s", took)
		}
		must.Equal(t, "sent", tc.sent, len(changes(pve2.Requests())))
	})
}

// TestUploadIsCancelled at once, although the server reads nothing, without reading
// more of the file than fits in transit. The next upload succeeds.
func TestUploadIsCancelled(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		var got received
		release := make(chan struct{})
		acceptUploads(pve1, func(http.ResponseWriter, *http.Request) { <-release }, got.take)
		u := isoOf(t, bytes.Repeat([]byte("talos"), 2<<20))
		var read atomic.Int64
		u.Progress = read.Store
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Upload(ctx, u) }()
		synctest.Wait()
		if n := read.Load(); n > 1<<20 {
			t.Errorf("%d bytes were read, but none was received", n)
		}
		begun := time.Now()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || time.Since(begun) > time.Second {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		close(release)
		must.Do(t, c.Upload(t.Context(), u))
		got.want(t, u)
	})
}

// TestUploadRefusesNames that Proxmox would change or reject.
func TestUploadRefusesNames(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		for _, name := range []string{"", ".iso", "a b.iso", "a/b.iso", "ä.iso", "a.iso.part", "a.ISO", strings.Repeat("a", 252) + ".iso"} {
			err := c.Upload(t.Context(), images.Upload{Host: "pve1", Storage: "isos", Name: name})
			errDownload := c.Download(t.Context(), images.Download{Host: "pve1", Storage: "isos", Name: name})
			if fault.KindOf(err) != fault.Config || fault.KindOf(errDownload) != fault.Config || len(pve1.Requests()) > 0 {
				t.Errorf("%q: %v, %v; sent %q", name, err, errDownload, pve1.Requests())
			}
		}
		must.Do(t, checkFileName(strings.Repeat("a", 251)+".iso"))
	})
}

const (
	hugeBytes = 4 << 30
	// hugeSHA256 is the checksum of that many zeros.
	hugeSHA256 = "8479e43911dc45e89f934fe48d01297e16f51d17aa561d4d1c216b1ae0fcddca"

	serverVar = "RECAST_UPLOAD_SERVER" // address and fingerprint
	fileVar   = "RECAST_UPLOAD_FILE"
)

// TestUploadMemory uploads 4 GiB over TLS from a client in another, small process, which
// the environment tells of the server: its peak above that counts.
func TestUploadMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("long: 4 GiB take a while")
	}
	if os.Getenv(serverVar) != "" {
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

// measureUpload serves one upload, of this test run again in another process.
func measureUpload(t testing.TB) uploadFigures {
	t.Helper()
	file := filepath.Join(t.TempDir(), "huge.iso")
	must.Do(t, errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, hugeBytes)))
	where, stop := serveUploads(t)
	defer stop()
	client := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestUploadMemory$")
	client.Env = append(os.Environ(), serverVar+"="+where, fileVar+"="+file)
	client.Stderr = os.Stderr
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

// uploadHuge is the client.
func uploadHuge(t *testing.T) {
	endpoint, fingerprint, _ := strings.Cut(os.Getenv(serverVar), " ")
	c, err := New(api.Options{Endpoints: []string{endpoint}, Fingerprint: fingerprint, Token: []byte(apitest.Token), Poll: 10 * time.Millisecond})
	must.Do(t, err)
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
	must.Do(t, c.Upload(t.Context(), u))
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
	status := must.Get(os.ReadFile("/proc/self/status"))(t)
	_, rest, _ := strings.Cut(string(status), name+":")
	kib := must.Get(strconv.Atoi(strings.Fields(rest)[0]))(t)
	return float64(kib) / 1024
}

const (
	// stallingHost stops reading an upload after stallAfter bytes.
	stallingHost = "pve2"
	stallAfter   = 64 << 20
)

// serveUploads is a Proxmox node that receives uploads of ISOs and keeps only their
// checksums; where is its address and fingerprint.
func serveUploads(t testing.TB) (where string, stop func()) {
	t.Helper()
	taker := &uploadTaker{ended: make(chan struct{})}
	srv := httptest.NewUnstartedServer(taker)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	return srv.URL + " " + apitest.Fingerprint(srv.Certificate()), func() {
		close(taker.ended)
		srv.Close()
	}
}

type uploadTaker struct {
	ended chan struct{} // ends the uploads that have stalled
	exit  atomic.Value  // of the last task: a string
}

func (s *uploadTaker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/nodes/"+stallingHost+"/"):
		_, _ = io.CopyN(io.Discard, r.Body, stallAfter)
		<-s.ended
	case r.Method == http.MethodPost:
		var got received
		exit := "OK"
		if err := got.read(r); err != nil || len(got.parts) != 4 || got.parts[3].Value != got.parts[2].Value || got.length <= 0 {
			exit = fmt.Sprintf("received %+v, %v", got, err)
		}
		s.exit.Store(exit)
		data(`"`+testUPID+`"`)(w, r)
	case strings.HasSuffix(r.URL.Path, "/status"):
		stopped(s.exit.Load().(string))(w, r)
	case strings.HasSuffix(r.URL.Path, "/access/permissions"):
		data(fmt.Sprintf(`{%q:{"Datastore.AllocateTemplate":1}}`, r.URL.Query().Get("path")))(w, r)
	default:
		data(`[]`)(w, r)
	}
}
