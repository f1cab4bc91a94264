package pveapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

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

// readHeader reads the header; the checks are process_header's and
// authenticate_and_handle_request's of AnyEvent.pm.
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

// isUpload says whether it is an upload, the only request whose body may be large.
func (q *request) isUpload() bool {
	return q.method == http.MethodPost && len(q.path) == 5 && q.path[0] == "nodes" && q.path[2] == "storage" && q.path[4] == "upload"
}

// drop closes the file of an abandoned upload.
func (q *request) drop() {
	if q.spool != nil {
		q.spool.Close()
	}
}

// readBody reads the body: form, JSON or multipart. Parameters in the query string win,
// except for uploads, where the parts do.
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
			return errNoAnswer // likewise
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
