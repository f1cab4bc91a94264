package pveapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/recast-sh/recast/internal/sim/world"
)

// maxBodyBytes limits the body of everything except uploads.
const maxBodyBytes = 512 << 10

// request is one request, completely read.
type request struct {
	method string
	path   []string // unescaped segments after /api2/json
	params map[string]string
	spool  *world.Spool // of an upload
}

// readHeader reads the header. It makes the checks of process_header and authenticate_and_handle_request in
// AnyEvent.pm.
func readHeader(r *http.Request) (request, error) {
	q := request{method: r.Method, params: map[string]string{}}
	if !slices.Contains([]string{"GET", "POST", "PUT", "DELETE"}, r.Method) {
		return q, bare(http.StatusNotImplemented, fmt.Sprintf("method '%s' not available", r.Method))
	}
	if len(r.TransferEncoding) > 0 {
		return q, plain(http.StatusNotImplemented, "chunked transfer encoding not supported")
	}
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), "/api2/json")
	if !ok {
		return q, plain(http.StatusInternalServerError, "no such file '%s'", r.URL.Path)
	}
	for segment := range strings.SplitSeq(strings.Trim(rest, "/"), "/") {
		name, err := url.PathUnescape(segment)
		if err != nil {
			return q, bare(http.StatusBadRequest, "Bad Request")
		}
		q.path = append(q.path, name)
	}
	return q, nil
}

// isUpload reports whether the request is an upload, the only request whose body may be large.
func (q *request) isUpload() bool {
	return q.method == http.MethodPost && len(q.path) == 5 && q.path[0] == "nodes" && q.path[2] == "storage" && q.path[4] == "upload"
}

// drop closes the file of an abandoned upload.
func (q *request) drop() {
	if q.spool != nil {
		q.spool.Close()
	}
}

// readBody reads the body: form, JSON or multipart. Parameters in the query string win; in uploads the parts win.
func (s *Server) readBody(r *http.Request, q *request) error {
	query := map[string]string{}
	for name, values := range r.URL.Query() {
		query[name] = strings.Join(values, "\x00") // like CGI.pm
	}
	if r.ContentLength > 0 && r.Method != http.MethodPost && r.Method != http.MethodPut {
		return plain(http.StatusNotImplemented, "Unexpected content for method '%s'", r.Method)
	}
	kind, options, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil && r.Header.Get("Content-Type") == "" {
		kind = "application/x-www-form-urlencoded"
	}
	switch {
	case r.ContentLength <= 0:
	case q.isUpload():
		if kind != "multipart/form-data" || options["boundary"] == "" {
			return errNoAnswer // an uncaught exception
		}
		if _, ok := query["tmpfilename"]; ok {
			return errNoAnswer // an uncaught exception
		}
		q.params, q.spool = query, s.world.NewSpool(s.host)
		return readUpload(r.Body, r.ContentLength, options["boundary"], q.params, q.spool)
	case r.ContentLength > maxBodyBytes:
		return errNoAnswer // meant to be "for data too large", but the connection is closed first
	case kind != "application/json" && kind != "application/x-www-form-urlencoded":
		return plain(http.StatusVariantAlsoNegotiates, "upload 'Content-Type '%s' not implemented", r.Header.Get("Content-Type"))
	default:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return errClientGone
		}
		if kind == "application/json" {
			err = readJSON(body, q.params)
		} else {
			err = readForm(body, q.params)
		}
		if err != nil {
			return err
		}
	}
	maps.Copy(q.params, query)
	return nil
}

func readForm(body []byte, params map[string]string) error {
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return bare(http.StatusBadRequest, "Bad Request")
	}
	for name, list := range values {
		params[name] = strings.Join(list, "\x00") // like CGI.pm
	}
	return nil
}

// readJSON converts a JSON object to the strings of a form.
func readJSON(body []byte, params map[string]string) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var values map[string]any
	if err := decoder.Decode(&values); err != nil {
		return plain(http.StatusInternalServerError,
			"malformed JSON string, neither tag, array, object, number, string or atom, at character offset 0 (before \"%.20s\") at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 927.\n", body)
	}
	for name, value := range values {
		switch v := value.(type) {
		case nil:
		case bool:
			params[name] = fmt.Sprint(bit(v))
		case []any:
			var list []string
			for _, item := range v {
				list = append(list, fmt.Sprint(item))
			}
			params[name] = strings.Join(list, ",")
		default:
			params[name] = fmt.Sprint(v)
		}
	}
	return nil
}

// uploadChunk is how much is read at a time; the parser runs after each chunk.
const uploadChunk = 128 << 10

// multipartBody is an upload being read, as file_upload_multipart of Proxmox' AnyEvent.pm reads it: with patterns
// that are matched against all unconsumed input. Therefore the fields have a fixed order, the file is last, and the
// first header of its part is its Content-Disposition.
type multipartBody struct {
	boundary string
	params   map[string]string
	spool    *world.Spool

	delimiter string // as a pattern
	buf       []byte
	phase     int // before the first boundary; in the fields; in the file; after it
}

const (
	inPreamble = iota
	inFields
	inFile
	afterFile
)

const newline = `\r?\n`

// readUpload reads a body of size bytes into params and spool.
func readUpload(body io.Reader, size int64, boundary string, params map[string]string, spool *world.Spool) error {
	b := &multipartBody{boundary: boundary, params: params, spool: spool, delimiter: `--` + regexp.QuoteMeta(boundary) + newline}
	chunk := make([]byte, uploadChunk)
	for read := int64(0); ; {
		n, err := body.Read(chunk)
		read += int64(n)
		b.buf = append(b.buf, chunk[:n]...)
		if n > 0 {
			if err := b.step(); err != nil {
				return err
			}
		}
		switch {
		case b.phase == afterFile:
			_, _ = io.Copy(io.Discard, body) // anything after the file is ignored
			return nil
		case read >= size:
			return plain(http.StatusInternalServerError, "upload failed at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1370.\n")
		case err != nil:
			return errClientGone
		}
	}
}

// errClientGone says that the client left before its request was complete.
var errClientGone = errors.New("the client has gone")

func (b *multipartBody) step() error {
	if b.phase == inPreamble {
		if at := b.pattern(b.delimiter).FindIndex(b.buf); at != nil {
			b.buf, b.phase = b.buf[at[0]:], inFields
		}
	}
	if b.phase == inFields {
		for _, name := range []string{"content", "checksum-algorithm", "checksum"} {
			if err := b.field(name); err != nil {
				return err
			}
		}
		if err := b.fileHeader(); err != nil {
			return err
		}
	}
	if b.phase == inFile {
		return b.fileContent()
	}
	return nil
}

func (b *multipartBody) pattern(text string) *regexp.Regexp { return regexp.MustCompile(`(?s)` + text) }

// field reads a field's value once the boundary after the value has arrived. The pattern finds the field's name
// anywhere: a part before the field ends up in the disposition.
func (b *multipartBody) field(name string) error {
	match := b.pattern(`^` + b.delimiter + `.*?Content-Disposition: (.*?); name="` + name + `"(.*?` + b.delimiter + `)`).FindSubmatchIndex(b.buf)
	if match == nil {
		return nil
	}
	if err := formData(b.buf[match[2]:match[3]]); err != nil {
		return err
	}
	b.buf = b.buf[match[4]:]
	b.skipHeaders()
	value := b.pattern(`^(.*?)` + b.delimiter).FindSubmatchIndex(b.buf)
	if value == nil {
		return nil
	}
	b.params[name] = strings.TrimSpace(string(b.buf[value[2]:value[3]]))
	b.buf = b.buf[value[3]:]
	return nil
}

// formData fails with a multi-line text if a part is in the wrong place; the text does not fit into a status line, so
// it becomes 400 (response in AnyEvent.pm).
func formData(disposition []byte) error {
	if string(disposition) == "form-data" {
		return nil
	}
	return plain(http.StatusInternalServerError, "wrong Content-Disposition '%s' in multipart, expected 'form-data'\n", disposition)
}

func (b *multipartBody) skipHeaders() {
	if at := b.pattern(newline + newline).FindIndex(b.buf); at != nil {
		b.buf = b.buf[at[1]:]
	}
}

func (b *multipartBody) fileHeader() error {
	match := b.pattern(`^` + b.delimiter + `Content-Disposition: (.*?); name="(.*?)"; filename="([^"]+)"` + newline).FindSubmatch(b.buf)
	if match == nil {
		return nil
	}
	if err := formData(match[1]); err != nil {
		return err
	}
	if name := string(match[2]); name != "filename" {
		return plain(http.StatusInternalServerError, "wrong field name '%s' for file upload, expected 'filename' at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1325.\n", name)
	}
	b.params["filename"] = strings.TrimSpace(string(match[3]))
	b.buf, b.phase = b.buf[len(match[0]):], inFile
	// Without the end of the part's headers, the content begins with the headers.
	b.skipHeaders()
	return nil
}

// fileContent spools everything that can't be part of the closing boundary.
func (b *multipartBody) fileContent() error {
	end := len(b.buf) - len(b.boundary) - len("\r\n----\r\n")
	if at := bytes.Index(b.buf, []byte("--"+b.boundary+"--")); at >= 0 {
		end, b.phase = at, afterFile
		for _, c := range []byte("\n\r") {
			if end > 0 && b.buf[end-1] == c {
				end--
			} else {
				break
			}
		}
	}
	if end <= 0 {
		return nil
	}
	_, err := b.spool.Write(b.buf[:end])
	b.buf = b.buf[:copy(b.buf, b.buf[end:])]
	if errors.Is(err, syscall.ENOSPC) {
		return plain(http.StatusInternalServerError, "write to temporary file failed - No space left on device\n")
	}
	return err
}

// readAhead is the number of unrequested bytes that a connection may receive (rbuf_max in AnyEvent.pm,
// accept_connections); a connection that receives more is closed.
const readAhead = maxBodyBytes + 8<<10

// requestLine is what AnyEvent.pm takes for the beginning of a request.
var requestLine = regexp.MustCompile(`\S+ \S+ HTTP/\d+\.\d+`)

type servedKey struct{}

// countRequests lets unreadBody distinguish the first request of a connection from later requests.
func countRequests(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, servedKey{}, new(atomic.Int64))
}

// isFirst reports whether a request is the first of its connection, and counts it.
func isFirst(r *http.Request) bool {
	served, ok := r.Context().Value(servedKey{}).(*atomic.Int64)
	return !ok || served.Add(1) == 1
}

// unreadBody returns the error of a request with a body that auth_handler refuses. The error is written three seconds
// later (AnyEvent.pm, authenticate_and_handle_request); meanwhile the body arrives and nobody reads it. If the
// connection has served a request before, on_read is still the one set by finish_response: it takes the body's first
// line for the next request and answers "400 bad request" at once. On any connection, more than readAhead bytes end
// the connection without an answer (AnyEvent::Handle, _drain_rbuf). nil: the client gets the error.
func unreadBody(r *http.Request, first bool) error {
	if r.ContentLength <= 0 {
		return nil
	}
	body := bufio.NewReaderSize(io.LimitReader(r.Body, readAhead+1), readAhead+1)
	for !first {
		line, err := body.ReadString('\n')
		if err != nil {
			break // no complete line
		}
		if line = strings.TrimRight(line, "\r\n"); line != "" && !requestLine.MatchString(line) {
			return plain(http.StatusBadRequest, "bad request")
		}
	}
	if r.ContentLength <= readAhead {
		return nil
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		return errors.Join(errNoAnswer, err)
	}
	return errNoAnswer
}
