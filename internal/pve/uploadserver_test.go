package pve

import (
	"bufio"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"mime"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/recast-sh/recast/internal/pve/api/apitest"
)

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
	if err != nil {
		t.Fatal(err)
	}
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
		got, err := takeUpload(r)
		if err != nil {
			raw("400 "+err.Error(), "")(w, r)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.exit = "OK"
		if got.sum != got.fields["checksum"] {
			s.exit = fmt.Sprintf("checksum mismatch: got '%s' != expect '%s'", got.sum, got.fields["checksum"])
		}
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

// taken is an upload as received.
type taken struct {
	fields map[string]string
	name   string
	sum    string // of the file
}

var (
	fieldHeader = regexp.MustCompile(`^Content-Disposition: form-data; name="([^"]+)"\r\n$`)
	fileHeader  = regexp.MustCompile(`^Content-Disposition: form-data; name="filename"; filename="([^"]+)"\r\n$`)
)

// takeUpload reads a form as strictly as Proxmox's own parser (pve-http-server,
// AnyEvent.pm, file_upload_multipart): a known length, the fields in this order, the
// file last, each part beginning with its Content-Disposition.
func takeUpload(r *http.Request) (taken, error) {
	got := taken{fields: map[string]string{}}
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || r.ContentLength <= 0 || len(r.TransferEncoding) > 0 {
		return got, fmt.Errorf("no form of known length: %d bytes, %v, %w", r.ContentLength, r.TransferEncoding, err)
	}
	body := &countingReader{r: r.Body}
	in := bufio.NewReaderSize(body, 1<<20)
	separator := "--" + params["boundary"] + "\r\n"
	for _, name := range []string{"content", "checksum-algorithm", "checksum"} {
		if err := expect(in, separator); err != nil {
			return got, err
		}
		m := fieldHeader.FindStringSubmatch(line(in))
		if m == nil || m[1] != name {
			return got, fmt.Errorf("%s does not come when expected", name)
		}
		if err := expect(in, "\r\n"); err != nil {
			return got, err
		}
		got.fields[name] = strings.TrimSuffix(line(in), "\r\n")
	}
	if err := expect(in, separator); err != nil {
		return got, err
	}
	m := fileHeader.FindStringSubmatch(line(in))
	if m == nil {
		return got, errors.New("the file does not come last")
	}
	got.name = m[1]
	for header := line(in); header != "\r\n"; header = line(in) {
		if header == "" {
			return got, io.ErrUnexpectedEOF
		}
	}
	tail := "\r\n--" + params["boundary"] + "--\r\n"
	sum := sha256.New()
	if _, err := io.CopyN(sum, in, r.ContentLength-(body.n-int64(in.Buffered()))-int64(len(tail))); err != nil {
		return got, err
	}
	got.sum = hex.EncodeToString(sum.Sum(nil))
	if err := expect(in, tail); err != nil {
		return got, err
	}
	if _, err := in.ReadByte(); err != io.EOF {
		return got, errors.New("more follows than Content-Length says")
	}
	return got, nil
}

func expect(in *bufio.Reader, text string) error {
	b := make([]byte, len(text))
	if _, err := io.ReadFull(in, b); err != nil || string(b) != text {
		return fmt.Errorf("%q where %q should be: %w", b, text, err)
	}
	return nil
}

// line returns the next line with its end; "" at the end of the body.
func line(in *bufio.Reader) string {
	s, err := in.ReadString('\n')
	if err != nil {
		return ""
	}
	return s
}

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
