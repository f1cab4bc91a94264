package factory

import (
	"fmt"
	"net/http"
)

// maxRedirects is enough for a store behind a CDN behind a load balancer.
const maxRedirects = 5

// follow lets the factory send its clients to a store of its own: it answers a
// GET of an image with 302 to S3 or a CDN where it has one (image-factory,
// internal/frontend/http/image.go). net/http leaves credentials behind when the host changes.
func (c *Client) follow(next *http.Request, via []*http.Request) error {
	last := via[len(via)-1]
	switch {
	case len(via) > maxRedirects:
		return permanent{fmt.Errorf("redirected more than %d times", maxRedirects)}
	case last.URL.Scheme == "https" && next.URL.Scheme != "https":
		return permanent{fmt.Errorf("redirected to %s, which is not encrypted", next.URL.Host)}
	case next.Method != last.Method:
		// A POST that became a GET asks for something else. This is what a factory
		// behind https does to a URL with http.
		return permanent{fmt.Errorf("redirected to %s://%s, where a %s can't follow: name that in images.factory",
			next.URL.Scheme, next.URL.Host, last.Method)}
	}
	return nil
}
