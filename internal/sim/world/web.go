package world

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"
)

// DialFunc connects to "host:port", as net.Dialer.DialContext does.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// SetDial sets how hosts connect outside of the datacentre. Without it they can't.
func (w *World) SetDial(dial DialFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dial = dial
}

// SetOutbound sets whether a host can connect outside of the datacentre.
func (w *World) SetOutbound(host string, open bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isolated[host] = !open
}

// webRequest is a host's request to a web server.
type webRequest struct {
	host, method, url string
	insecure          bool            // certificates are not verified
	stop              <-chan struct{} // closed to cancel
	patience          time.Duration   // timeout for the answer; 0: none
}

// fetch sends a request. The caller closes the body and calls done.
func (w *World) fetch(r webRequest) (res *http.Response, done func(), err error) {
	w.mu.Lock()
	dial := w.dial
	if w.isolated[r.host] {
		dial = nil
	}
	w.mu.Unlock()
	if dial == nil {
		return nil, nil, syscall.ENETUNREACH
	}
	req, err := http.NewRequest(r.method, r.url, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("fetch %s: %w", r.url, err)
	}
	ctx, cancel := context.WithCancel(req.Context())
	w.mu.Lock()
	spawned := w.spawn(func() {
		var late <-chan time.Time
		if r.patience > 0 {
			late = time.After(w.scaled(r.patience))
		}
		select {
		case <-late:
		case <-r.stop:
		case <-w.done:
		case <-ctx.Done():
		}
		cancel()
	})
	w.mu.Unlock()
	if !spawned {
		cancel()
		return nil, nil, ErrClosed
	}
	transport := &http.Transport{
		DialContext: dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: r.insecure},
	}
	res, err = (&http.Client{Transport: transport}).Do(req.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, nil, plain(err)
	}
	return res, cancel, nil
}

// plain is err without net/http's prefix about the request.
func plain(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// reason is the C library's message about a failed connection.
func reason(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "Connection refused"
	case errors.Is(err, syscall.EHOSTUNREACH):
		return "No route to host"
	case errors.Is(err, syscall.ENETUNREACH):
		return "Network is unreachable"
	case errors.Is(err, context.Canceled):
		return "Connection timed out"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "certificate verify failed"
	}
	return err.Error()
}
