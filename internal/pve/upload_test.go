package pve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
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
	t.Cleanup(func() { same(t, "open files", int32(0), open.Load()) })
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
	same(t, "parts", []part{
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
		must(t, c.Upload(t.Context(), u))
		got.want(t, u)
		if last != u.SizeBytes || got.length <= last {
			t.Errorf("progress ends at %d of %d, the request had %d bytes", last, u.SizeBytes, got.length)
		}
	})
}

func TestFormBeginsEachPartWithItsDisposition(t *testing.T) {
	t.Parallel()
	f, err := newForm(images.Upload{Name: "a.iso", SHA256: "00"})
	must(t, err)
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
	t.Parallel()
	content := bytes.Repeat([]byte("x"), 1<<20)
	cases := map[string]struct {
		answer route
		task   string // how it ends
		size   int64
		is     error
		want   string // part of the error
	}{
		"checksum":        {answer: swallow(data(`"` + testUPID + `"`)), task: "checksum mismatch: got 'a' != expect 'b'", want: "checksum mismatch: got 'a'"},
		"full storage":    {answer: swallow(data(`"` + testUPID + `"`)), task: "cp: error writing: No space left on device", is: api.ErrNoSpace, want: "No space left"},
		"refused":         {answer: swallow(raw("500 storage 'isos' does not support 'iso' content", "")), want: "POST /nodes/pve1/storage/isos/upload: 500 storage 'isos' does not support 'iso' content"},
		"no such storage": {answer: swallow(raw("500 storage 'isos' does not exist", "")), is: images.ErrNoStorage, want: "does not exist"},
		"file is shorter": {answer: swallow(data(`"` + testUPID + `"`)), size: 2 << 20, is: io.ErrUnexpectedEOF, want: "the file ends after 1048576 of 2097152 bytes"},
		"context ends":    {answer: swallow(after(time.Hour, lost)), is: context.DeadlineExceeded, want: "deadline"},
	}
	for name, tc := range cases {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			acceptUploads(pve1, tc.answer)
			pve1.On(statusPath, stopped(tc.task))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			u := isoOf(t, content)
			u.SizeBytes = max(tc.size, u.SizeBytes)
			err := c.Upload(ctx, u)
			if err == nil || !strings.Contains(err.Error(), tc.want) || tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("error is %v, want %q in it", err, tc.want)
			}
		})
	}
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
		same(t, "changes", []string{}, changes(pve1.Requests()))
	})
}

func TestUploadGoesToAnotherEndpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve2 := s.Node(t, "pve2")
		var got received
		acceptUploads(pve2, got.take)
		u := isoOf(t, []byte("small"))
		must(t, s.client(t, "pve1", "pve2").Upload(t.Context(), u))
		got.want(t, u)
	})
}

// TestUploadWithoutAnswer: the outcome of an upload is looked up, and only one
// without effect is sent again.
func TestUploadWithoutAnswer(t *testing.T) {
	t.Parallel()
	const (
		nodes  = "GET /nodes"
		tasks  = "/tasks?limit=500&source=all&typefilter=imgcopy"
		copied = "UPID:pve2:0000ABCD:00012345:386D4380:imgcopy::recast@pve!roll:"
		other  = "UPID:pve2:0000ABCE:00012345:386D4380:imgcopy::else@pve!roll:"
	)
	content := bytes.Repeat([]byte("x"), 4<<20)
	there := data(`[{"volid":"isos:iso/recast-1.iso","size":4194304}]`)
	ok := swallow(data(`"` + testUPID + `"`))
	for name, tc := range map[string]struct {
		answers []route
		isos    []route
		tasks   []route // of pve2, which receives the upload
		exit    string  // of the task there
		sent    int
		quick   bool // it cannot have had an effect, so nothing is looked up
		is      error
		fails   string
	}{
		"its task is found":        {answers: []route{swallow(lost)}, tasks: []route{data(`[]`), data(`[{"upid":"` + copied + `"},{"upid":"` + other + `"}]`)}, exit: "OK", sent: 1},
		"its task has failed":      {answers: []route{swallow(lost)}, tasks: []route{data(`[{"upid":"` + copied + `"}]`)}, exit: "checksum mismatch: got 'a'", sent: 1, fails: "checksum mismatch: got 'a'"},
		"the file shows":           {answers: []route{swallow(lost)}, isos: []route{data(`[]`), data(`[]`), there}, sent: 1},
		"cut off, then sent again": {answers: []route{lost, ok}, sent: 2, quick: true},
		"a file was there before":  {answers: []route{swallow(lost), ok}, isos: []route{there}, sent: 2},
		"no answer comes ever":     {answers: []route{swallow(lost)}, sent: 3, is: cluster.ErrLostAnswer, fails: "since then neither a task nor the file has appeared"},
		"a proxy cancels it":       {answers: []route{swallow(raw("596 Connection timed out", "")), ok}, sent: 2},
		"nothing can be looked up": {answers: []route{swallow(lost)}, tasks: []route{raw("403 Permission check failed", "")}, sent: 1, is: cluster.ErrLostAnswer, fails: "403 Permission check failed"},
	} {
		runInBubble(t, name, func(t *testing.T) {
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
			err := s.client(t, "pve2").Upload(t.Context(), isoOf(t, content))
			if err != nil != (tc.fails != "") || tc.fails != "" && !strings.Contains(err.Error(), tc.fails) || tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("error is %v, want %q in it", err, tc.fails)
			}
			if took := time.Since(begun); tc.quick && took > lateness/2 {
				t.Errorf("it took %s", took)
			}
			same(t, "sent", tc.sent, len(changes(pve2.Requests())))
		})
	}
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
		must(t, c.Upload(t.Context(), u))
		got.want(t, u)
	})
}

// TestUploadRefusesNames that Proxmox would change or reject.
func TestUploadRefusesNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", ".iso", "a b.iso", "a/b.iso", "ä.iso", "a.iso.part", "a.ISO", strings.Repeat("a", 252) + ".iso"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			pve1 := s.Node(t, "pve1")
			c := s.client(t, "pve1")
			err := c.Upload(t.Context(), images.Upload{Host: "pve1", Storage: "isos", Name: name})
			errDownload := c.Download(t.Context(), images.Download{Host: "pve1", Storage: "isos", Name: name})
			if fault.KindOf(err) != fault.Config || fault.KindOf(errDownload) != fault.Config || len(pve1.Requests()) > 0 {
				t.Errorf("%q: %v, %v; sent %q", name, err, errDownload, pve1.Requests())
			}
		})
	}
	if err := checkFileName(strings.Repeat("a", 251) + ".iso"); err != nil {
		t.Error(err)
	}
}
