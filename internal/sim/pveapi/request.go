package pveapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
)

// maxBodyBytes bounds the body of everything but an upload.
const maxBodyBytes = 512 << 10

// request is one request, read completely.
type request struct {
	method string
	path   []string // unescaped segments after /api2/json
	params map[string]string
	file   *file // of an upload
}

// readRequest reads the body in whatever form it comes: form, JSON or multipart.
func readRequest(r *http.Request) (request, error) {
	q := request{method: r.Method, params: map[string]string{}}
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), "/api2/json")
	if !ok {
		return q, notImplemented(r.Method, r.URL.Path)
	}
	for segment := range strings.SplitSeq(strings.Trim(rest, "/"), "/") {
		plain, err := url.PathUnescape(segment)
		if err != nil {
			return q, &earlyError{http.StatusBadRequest, "Bad Request"}
		}
		q.path = append(q.path, plain)
	}
	if len(r.TransferEncoding) > 0 {
		_, _ = io.Copy(io.Discard, r.Body) // else the client is still writing when the answer comes
		return q, &earlyError{http.StatusNotImplemented, "chunked transfer encoding not supported"}
	}
	for name, values := range r.URL.Query() {
		q.params[name] = values[len(values)-1]
	}
	kind, options, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	upload := err == nil && kind == "multipart/form-data"
	if !upload && r.ContentLength > maxBodyBytes {
		_, _ = io.Copy(io.Discard, r.Body)
		return q, &earlyError{http.StatusNotImplemented, "for data too large"}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || len(body) == 0 {
		return q, err
	}
	switch {
	case upload:
		q.file, err = readUpload(body, options["boundary"], q.params)
	case kind == "application/json":
		err = readJSON(body, q.params)
	default:
		err = readForm(body, q.params)
	}
	return q, err
}

func readForm(body []byte, params map[string]string) error {
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return &earlyError{http.StatusBadRequest, "Bad Request"}
	}
	for name, list := range values {
		params[name] = list[len(list)-1]
	}
	return nil
}

// readJSON flattens a JSON object to the strings that a form would hold.
func readJSON(body []byte, params map[string]string) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var values map[string]any
	if err := decoder.Decode(&values); err != nil {
		return &earlyError{http.StatusBadRequest, "Bad Request"}
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
