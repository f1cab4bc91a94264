package factoryapi

import (
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"
)

// Trouble is a fault of a request, as its client sees it.
type Trouble func(w http.ResponseWriter, r *http.Request, factory http.Handler)

// strike is a Trouble for future requests.
type strike struct {
	times   int
	prefix  string
	trouble Trouble
}

// Strike applies a Trouble to the next requests, times in number, whose path begins with
// prefix: "/image/".
func (f *Factory) Strike(times int, prefix string, t Trouble) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.strikes = append(f.strikes, strike{times: times, prefix: prefix, trouble: t})
}

// struck returns the handler of a request: the factory's, or a Trouble's.
func (f *Factory) struck(r *http.Request) http.Handler {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, s := range f.strikes {
		if s.times > 0 && strings.HasPrefix(r.URL.Path, s.prefix) {
			f.strikes[i].times--
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, done := f.untilClosed(r.Context())
				defer done()
				s.trouble(w, r.WithContext(ctx), f.recorded)
			})
		}
	}
	return f.recorded
}

// Down is a proxy that can't reach the factory. It answers with its own page, and with
// Retry-After unless that is 0.
func Down(status int, retryAfter time.Duration) Trouble {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		if retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
		}
		page(w, status)
	}
}

// Failing is the factory's own answer to a failure of its registry or tools.
func Failing() Trouble {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		http.Error(w, "internal server error", http.StatusInternalServerError)
	}
}

// Unaware is one of several factories that does not know a schematic yet that another one
// has just stored (siderolabs/image-factory, internal/schematic/storage/cache).
func Unaware() Trouble {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		id := path.Base(path.Dir(path.Dir(r.URL.Path))) // of /image/<id>/<version>/<asset>, /v2/<image>/<id>/manifests/<tag>
		http.Error(w, fmt.Sprintf("schematic ID %q not found", id), http.StatusNotFound)
	}
}

// Refused is a connection that ends without an answer.
func Refused() Trouble {
	return func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }
}

// Impatient is a proxy with a timeout; the factory continues with the request.
func (f *Factory) Impatient(patience time.Duration) Trouble {
	return func(w http.ResponseWriter, r *http.Request, factory http.Handler) {
		a, aborted := newAnswer(), false
		answered := make(chan struct{})
		f.serving.Go(func() {
			defer close(answered)
			defer func() { aborted = recover() != nil }()
			factory.ServeHTTP(a, r)
		})
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-timer.C:
			page(w, http.StatusGatewayTimeout)
		case <-answered:
			if aborted {
				panic(http.ErrAbortHandler)
			}
			a.send(w)
		}
	}
}

// Cut is a connection that breaks after that many bytes of a body.
func Cut(afterBytes int) Trouble {
	return short(afterBytes, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
}

// CutByStore is a factory whose own store breaks after that many bytes. Its error goes
// into the body, because that has begun.
func CutByStore(afterBytes int) Trouble {
	return short(afterBytes, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "internal server error\n") // the client may be gone
	})
}

// Stall is a connection that stalls after that many bytes of a body.
func Stall(afterBytes int) Trouble {
	return short(afterBytes, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	})
}

// short sends the first bytes of an answer and then calls end.
func short(bytes int, end func(http.ResponseWriter, *http.Request)) Trouble {
	return func(w http.ResponseWriter, r *http.Request, factory http.Handler) {
		a := newAnswer()
		factory.ServeHTTP(a, r)
		if a.body.Len() <= bytes {
			a.send(w)
			return
		}
		a.header.Set("Content-Length", strconv.Itoa(a.body.Len()))
		a.body.Truncate(bytes)
		a.send(w)
		_ = http.NewResponseController(w).Flush() // the bytes must be sent
		end(w, r)
	}
}

// page is nginx's error page.
func page(w http.ResponseWriter, status int) {
	text := fmt.Sprintf("%d %s", status, nginx(status))
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<html>\r\n<head><title>%s</title></head>\r\n<body>\r\n<center><h1>%s</h1></center>\r\n"+
		"<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n", text, text) // the client may be gone
}

// nginx is nginx's name of a status, if unusual.
func nginx(status int) string {
	switch status {
	case http.StatusServiceUnavailable:
		return "Service Temporarily Unavailable"
	case http.StatusGatewayTimeout:
		return "Gateway Time-out"
	}
	return http.StatusText(status)
}
