package world

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// URLMetadata is what a web server says about a file without sending it.
type URLMetadata struct {
	Filename, Mimetype string // "": unknown
	Size               int64  // 0: unknown
}

// lwpTimeout is LWP::UserAgent's timeout.
const lwpTimeout = 3 * time.Minute

// QueryURLMetadata is query_url_metadata of API2/Nodes.pm: a HEAD request from the host.
func (w *World) QueryURLMetadata(host, target string, insecure bool) (URLMetadata, error) {
	res, done, err := w.fetch(webRequest{host: host, method: http.MethodHead, url: target, insecure: insecure, patience: lwpTimeout})
	if err != nil {
		// LWP turns a failed connection into a status of its own.
		return URLMetadata{}, failf("invalid server response: '500 Can't connect to %s (%s)'", address(target), reason(err))
	}
	defer done()
	defer func() { _ = res.Body.Close() }() // empty for HEAD
	if res.StatusCode != http.StatusOK {
		return URLMetadata{}, failf("invalid server response: '%s'", res.Status)
	}
	out := URLMetadata{Size: max(0, res.ContentLength)}
	out.Mimetype, _, _ = strings.Cut(res.Header.Get("Content-Type"), ";")
	named := regexp.MustCompile(`filename="([^"]*)"|filename=([^;]*)`).FindStringSubmatch(res.Header.Get("Content-Disposition"))
	if named == nil {
		named = regexp.MustCompile(`^[^?]+/([^?/]*)()(?:\?.*)?$`).FindStringSubmatch(target)
	}
	if named != nil {
		out.Filename = named[1] + named[2]
	}
	return out, nil
}

// address is the host and port of a URL.
func address(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return target
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return fmt.Sprintf("%s:%s", u.Hostname(), port)
}
