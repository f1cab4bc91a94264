package factory

import (
	"fmt"
	"net/http"
)

// maxRedirects suffices for a store behind a CDN behind a load balancer.
const maxRedirects = 5

// follow allows redirects to the factory's own store: it answers a GET of an image
// with 302 to S3 or a CDN if it has one (image-factory,
// internal/frontend/http/image.go). net/http drops credentials when the host
// changes.
func follow(next *http.Request, via []*http.Request) error {
	last := via[len(via)-1]
	switch {
	case len(via) > maxRedirects:
		return permanent{fmt.Errorf("redirected more than %d times", maxRedirects)}
	case last.URL.Scheme == "https" && next.URL.Scheme != "https":
		return permanent{fmt.Errorf("redirected to %s, which is not encrypted", next.URL.Host)}
	case next.Method != last.Method:
		// A POST that became a GET asks for something else. A factory behind https
		// does this to a URL with http.
		return permanent{fmt.Errorf("redirected to %s://%s, which a %s does not follow: use that URL in images.factory",
			next.URL.Scheme, next.URL.Host, last.Method)}
	}
	return nil
}
