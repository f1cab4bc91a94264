package pve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

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

// part is one part of an uploaded form, as received.
type part struct{ Name, File, Value string }

// countedFile counts the open files.
type countedFile struct {
	io.Reader
	open *atomic.Int32
}

func (f *countedFile) Close() error { f.open.Add(-1); return nil }

// isoOf is an upload of that file with an announced size.
func isoOf(content []byte, size int64, open *atomic.Int32) images.Upload {
	sum := sha256.Sum256(content)
	return images.Upload{
		Host: "pve1", Storage: "isos", Name: "recast-1.iso", SizeBytes: size, SHA256: hex.EncodeToString(sum[:]),
		Open: func() (io.ReadCloser, error) {
			open.Add(1)
			return &countedFile{bytes.NewReader(content), open}, nil
		},
	}
}

// receive reads a form part by part, its file only as a sum.
func receive(parts *[]part, length *int64) route {
	return func(w http.ResponseWriter, r *http.Request) {
		*length = r.ContentLength
		_, boundary, _ := strings.Cut(r.Header.Get("Content-Type"), "boundary=")
		form := multipart.NewReader(r.Body, boundary)
		for {
			p, err := form.NextRawPart()
			if err == io.EOF {
				break
			}
			if err != nil {
				raw("400 "+err.Error(), "")(w, r)
				return
			}
			sum := sha256.New()
			var value bytes.Buffer
			_, _ = io.Copy(io.MultiWriter(sum, &value), p)
			got := part{Name: p.FormName(), File: p.FileName(), Value: value.String()}
			if got.File != "" {
				got.Value = hex.EncodeToString(sum.Sum(nil))
			}
			*parts = append(*parts, got)
		}
		data(`"`+testUPID+`"`)(w, r)
	}
}

func TestUpload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		var parts []part
		var length int64
		pve1.On(isosPath, data(`[]`))
		pve1.On(mayUploadPath, mayUpload)
		pve1.On(uploadPath, receive(&parts, &length))
		pve1.On(statusPath, running, stopped("OK"))
		content := bytes.Repeat([]byte("talos"), 200_000)
		var open atomic.Int32
		u := isoOf(content, int64(len(content)), &open)
		var last int64
		u.Progress = func(sent int64) {
			if sent <= last {
				t.Errorf("progress goes from %d to %d", last, sent)
			}
			last = sent
		}
		if err := s.client(t, "pve1").Upload(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		want := []part{
			{Name: "content", Value: "iso"},
			{Name: "checksum-algorithm", Value: "sha256"},
			{Name: "checksum", Value: u.SHA256},
			{Name: "filename", File: "recast-1.iso", Value: u.SHA256},
		}
		if diff := cmp.Diff(want, parts); diff != "" {
			t.Errorf("parts (-want +got):\n%s", diff)
		}
		if last != u.SizeBytes || length <= last || open.Load() != 0 {
			t.Errorf("progress ends at %d of %d, the request had %d bytes, %d files are open", last, u.SizeBytes, length, open.Load())
		}
	})
}

func TestFormBeginsEachPartWithItsDisposition(t *testing.T) {
	t.Parallel()
	f, err := newForm(images.Upload{Name: "a.iso", SHA256: "00"})
	if err != nil {
		t.Fatal(err)
	}
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
		task   route
		size   int64
		ctx    time.Duration
		is     error
		want   string // part of the error
	}{
		"checksum":        {answer: swallow(data(`"` + testUPID + `"`)), task: stopped("checksum mismatch: got 'a' != expect 'b'"), want: "checksum mismatch: got 'a'"},
		"full storage":    {answer: swallow(data(`"` + testUPID + `"`)), task: stopped("cp: error writing: No space left on device"), is: api.ErrNoSpace, want: "No space left"},
		"refused":         {answer: swallow(raw("500 storage 'isos' does not support 'iso' content", "")), want: "POST /nodes/pve1/storage/isos/upload: 500 storage 'isos' does not support 'iso' content"},
		"no such storage": {answer: swallow(raw("500 storage 'isos' does not exist", "")), is: images.ErrNoStorage, want: "does not exist"},
		"file is shorter": {answer: swallow(data(`"` + testUPID + `"`)), size: 2 << 20, is: io.ErrUnexpectedEOF, want: "the file ends after 1048576 of 2097152 bytes"},
		"context ends":    {answer: swallow(after(time.Hour, lost)), ctx: time.Minute, is: context.DeadlineExceeded, want: "deadline"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				pve1 := s.Node(t, "pve1")
				pve1.On(isosPath, data(`[]`))
				pve1.On(mayUploadPath, mayUpload)
				pve1.On(uploadPath, tc.answer)
				pve1.On(logPath, data(`[]`))
				if tc.task != nil {
					pve1.On(statusPath, tc.task)
				}
				ctx, cancel := context.WithTimeout(t.Context(), max(tc.ctx, time.Nanosecond))
				if tc.ctx == 0 {
					ctx = t.Context()
				}
				defer cancel()
				var open atomic.Int32
				err := s.client(t, "pve1").Upload(ctx, isoOf(content, max(tc.size, int64(len(content))), &open))
				if err == nil || !strings.Contains(err.Error(), tc.want) || tc.is != nil && !errors.Is(err, tc.is) {
					t.Errorf("error is %v, want %q in it", err, tc.want)
				}
				if open.Load() != 0 {
					t.Errorf("%d files are open", open.Load())
				}
			})
		})
	}
}

// TestUploadThatProxmoxWouldRefuse is not started: the refusal could not be received.
func TestUploadThatProxmoxWouldRefuse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		pve1.On(isosPath, data(`[]`))
		pve1.On(mayUploadPath, data(`{"/storage/isos":{"Datastore.Audit":1}}`))
		pve1.On(uploadPath, lost)
		content := bytes.Repeat([]byte("x"), 1<<20)
		var open atomic.Int32
		err := s.client(t, "pve1").Upload(t.Context(), isoOf(content, int64(len(content)), &open))
		const want = "403 Permission check failed (/storage/isos, Datastore.AllocateTemplate)"
		if err == nil || !strings.Contains(err.Error(), want) || fault.CodeOf(err) != fault.TokenPrivileges || fault.KindOf(err) != fault.Refused {
			t.Errorf("%v", err)
		}
		if sent := changes(pve1.Requests()); len(sent) > 0 {
			t.Errorf("sent %q", sent)
		}
	})
}

func TestUploadGoesToAnotherEndpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve2 := s.Node(t, "pve2")
		var parts []part
		var length int64
		pve2.On(isosPath, data(`[]`))
		pve2.On(mayUploadPath, mayUpload)
		pve2.On(uploadPath, receive(&parts, &length))
		pve2.On(statusPath, stopped("OK"))
		content := []byte("small")
		var open atomic.Int32
		u := isoOf(content, int64(len(content)), &open)
		if err := s.client(t, "pve1", "pve2").Upload(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		if len(parts) != 4 || parts[3].Value != u.SHA256 || open.Load() != 0 {
			t.Errorf("received %v, %d files are open", parts, open.Load())
		}
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				pve2 := s.Node(t, "pve2")
				isos, listed := tc.isos, tc.tasks
				if isos == nil {
					isos = []route{data(`[]`)}
				}
				if listed == nil {
					listed = []route{data(`[]`)}
				}
				pve2.On(isosPath, isos...)
				pve2.On(mayUploadPath, mayUpload)
				pve2.On(uploadPath, tc.answers...)
				pve2.On(nodes, data(`[{"node":"pve1","status":"online"},{"node":"pve2","status":"online"},{"node":"pve3","status":"offline"}]`))
				pve2.On("GET /nodes/pve1"+tasks, data(`[]`))
				pve2.On("GET /nodes/pve2"+tasks, listed...)
				pve2.On(statusPath, stopped("OK"))
				pve2.On("GET /nodes/pve2/status", data(`{"uptime":745}`))
				pve2.On("GET /nodes/pve2/tasks/"+url.PathEscape(copied)+"/status", running, stopped(tc.exit))
				pve2.On("GET /nodes/pve2/tasks/"+url.PathEscape(copied)+"/log?limit=500", data(`[]`))
				var open atomic.Int32
				begun := time.Now()
				err := s.client(t, "pve2").Upload(t.Context(), isoOf(content, int64(len(content)), &open))
				if err != nil != (tc.fails != "") || tc.fails != "" && !strings.Contains(err.Error(), tc.fails) || tc.is != nil && !errors.Is(err, tc.is) {
					t.Errorf("error is %v, want %q in it", err, tc.fails)
				}
				if took := time.Since(begun); tc.quick && took > lateness/2 {
					t.Errorf("it took %s", took)
				}
				if sent := len(changes(pve2.Requests())); sent != tc.sent || open.Load() != 0 {
					t.Errorf("sent %d times, want %d; %d files are open", sent, tc.sent, open.Load())
				}
			})
		})
	}
}

// TestUploadIsCancelled at once, although the server reads nothing, without reading
// more of the file than fits in transit. The next upload succeeds.
func TestUploadIsCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		var parts []part
		var length int64
		pve1.On(isosPath, data(`[]`))
		pve1.On(mayUploadPath, mayUpload)
		release := make(chan struct{})
		pve1.On(uploadPath, func(http.ResponseWriter, *http.Request) { <-release }, receive(&parts, &length))
		pve1.On(statusPath, stopped("OK"))
		content := bytes.Repeat([]byte("talos"), 2<<20)
		var open atomic.Int32
		u := isoOf(content, int64(len(content)), &open)
		var read atomic.Int64
		u.Progress = read.Store
		c := s.client(t, "pve1")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Upload(ctx, u) }()
		synctest.Wait()
		if n := read.Load(); n > 1<<20 {
			t.Errorf("%d bytes were read, but none was received", n)
		}
		begun := time.Now()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || time.Since(begun) > time.Second || open.Load() != 0 {
			t.Errorf("after %s: %v; %d files are open", time.Since(begun), err, open.Load())
		}
		close(release)
		if err := c.Upload(t.Context(), u); err != nil || len(parts) != 4 {
			t.Errorf("the next one: %v, received %v", err, parts)
		}
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
	if err := checkISOName(strings.Repeat("a", 251) + ".iso"); err != nil {
		t.Error(err)
	}
}
