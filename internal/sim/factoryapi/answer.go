package factoryapi

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"

	"github.com/recast-sh/recast/internal/sim/record"
)

// answer buffers a response until the server has finished acting.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func newAnswer() *answer { return &answer{header: http.Header{}} }

var _ http.ResponseWriter = (*answer)(nil)

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// send sends the answer.
func (a *answer) send(w http.ResponseWriter) {
	a.WriteHeader(http.StatusOK)
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // fails only if the client is gone
}

// response is the answer as a client gets it.
func (a *answer) response(req *http.Request) *http.Response {
	a.WriteHeader(http.StatusOK)
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.status, http.StatusText(a.status)), StatusCode: a.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body.Bytes())),
		ContentLength: int64(a.body.Len()), Request: req,
	}
}

// recorded calls the recorder's hooks around next; if the recorder refuses a request, it
// breaks the connection.
func recorded(rec *record.Recorder, proto string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call, err := rec.Begin(record.Call{
			Proto: proto, Target: r.Host, Method: r.Method, Path: r.URL.RequestURI(),
			Mutation: r.Method != http.MethodGet && r.Method != http.MethodHead,
		})
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		a := newAnswer()
		next.ServeHTTP(a, r)
		rec.End(call)
		a.send(w)
	})
}
