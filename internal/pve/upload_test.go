package pve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
)

const uploadPath = "POST /nodes/pve1/storage/isos/upload"

// part is one part of an uploaded form, as it came.
type part struct{ Name, File, Value string }

// countedFile counts how many are open.
type countedFile struct {
	io.Reader
	open *atomic.Int32
}

func (f *countedFile) Close() error { f.open.Add(-1); return nil }

// isoOf is an upload of that file, said to have size bytes.
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
		pve1 := s.node(t, "pve1")
		var parts []part
		var length int64
		pve1.on(uploadPath, receive(&parts, &length))
		pve1.on(statusPath, running, stopped("OK"))
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

func TestUploadFails(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("x"), 1<<20)
	swallow := func(then route) route {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			then(w, r)
		}
	}
	cases := map[string]struct {
		answer route
		task   route
		size   int64
		ctx    time.Duration
		is     error
		want   string // part of the error
	}{
		"checksum":           {answer: swallow(data(`"` + testUPID + `"`)), task: stopped("checksum mismatch: got 'a' != expect 'b'"), want: "checksum mismatch: got 'a'"},
		"full storage":       {answer: swallow(data(`"` + testUPID + `"`)), task: stopped("cp: error writing: No space left on device"), is: ErrNoSpace, want: "No space left"},
		"refused":            {answer: swallow(raw("500 storage 'isos' does not support 'iso' content", "")), want: "POST /nodes/pve1/storage/isos/upload: 500 storage 'isos' does not support 'iso' content"},
		"no such storage":    {answer: swallow(raw("500 storage 'isos' does not exist", "")), is: images.ErrNoStorage, want: "does not exist"},
		"file is shorter":    {answer: swallow(data(`"` + testUPID + `"`)), size: 2 << 20, is: io.ErrUnexpectedEOF, want: "the file ends after 1048576 of 2097152 bytes"},
		"answer is lost":     {answer: swallow(lost), is: cluster.ErrLostAnswer, want: "no answer"},
		"context ends":       {answer: swallow(after(time.Hour, lost)), ctx: time.Minute, is: context.DeadlineExceeded, want: "deadline"},
		"breaks off halfway": {answer: lost, is: cluster.ErrLostAnswer, want: "no answer"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				pve1 := s.node(t, "pve1")
				pve1.on(uploadPath, tc.answer)
				pve1.on(logPath, data(`[]`))
				if tc.task != nil {
					pve1.on(statusPath, tc.task)
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

func TestUploadGoesToAnotherEndpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve2 := s.node(t, "pve2")
		var parts []part
		var length int64
		pve2.on(uploadPath, receive(&parts, &length))
		pve2.on(statusPath, stopped("OK"))
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

func TestStorage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.node(t, "pve1")
		pve1.on("GET /nodes/pve1/storage", data(`[{"storage":"isos","type":"cephfs","content":"iso,vztmpl","shared":1,"active":1,"enabled":1,"avail":1.5e+15,"used":1,"total":2e15},
			{"storage":"off","content":"images","shared":0,"active":0,"enabled":1}]`))
		pve1.on("GET /nodes/pve1/storage/isos/content?content=iso", data(`[{"volid":"isos:iso/a.iso","size":1048576},{"volid":"isos:iso/b.iso","size":"7"}]`))
		pve1.on("GET /nodes/pve1/storage/fast/content", data(`[{"volid":"fast:101/vm-101-disk-0.raw","size":1048576,"vmid":101}]`))
		pve1.on("GET /nodes/pve1/storage/nosuch/content?content=iso", raw("500 storage 'nosuch' does not exist", ""))
		c := s.client(t, "pve1")
		got, err := c.Storage(t.Context(), "pve1", "isos")
		if err != nil {
			t.Fatal(err)
		}
		want := images.StorageInfo{Active: true, Shared: true, Content: []string{"iso", "vztmpl"}, FreeBytes: 1_500_000_000_000_000}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("storage (-want +got):\n%s", diff)
		}
		if got, err := c.Storage(t.Context(), "pve1", "off"); err != nil || got.Active {
			t.Errorf("inactive storage: %+v, error %v", got, err)
		}
		if _, err := c.Storage(t.Context(), "pve1", "nosuch"); !errors.Is(err, images.ErrNoStorage) {
			t.Errorf("unknown storage: %v", err)
		}
		isos := map[string]string{"a.iso": "1048576 true <nil>", "b.iso": "7 true <nil>", "c.iso": "0 false <nil>"}
		for name, want := range isos {
			size, found, err := c.ISO(t.Context(), "pve1", "isos", name)
			if got := fmt.Sprint(size, found, err); got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
		if _, found, err := c.ISO(t.Context(), "pve1", "nosuch", "a.iso"); found || !errors.Is(err, images.ErrNoStorage) {
			t.Errorf("ISO on an unknown storage: %v %v", found, err)
		}
		volumes := map[string]bool{"isos:iso/a.iso": true, "isos:iso/c.iso": false, "fast:101/vm-101-disk-0.raw": true, "fast:vm-101-disk-0": false}
		for volid, want := range volumes {
			if got, err := c.HasVolume(t.Context(), "pve1", volid); err != nil || got != want {
				t.Errorf("%s: %v, error %v", volid, got, err)
			}
		}
		if _, err := c.HasVolume(t.Context(), "pve1", "none"); err == nil {
			t.Error(`"none" passes for a volume`)
		}
	})
}
