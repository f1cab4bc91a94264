package web

import (
	"crypto/subtle"
	"fmt"
	"net/http"
	"slices"
)

// guard lets only the user's own browser through.
//
//   - The Host header must name this machine: a page of another site whose name was made to
//     resolve to 127.0.0.1 (DNS rebinding) sends its own.
//   - The first URL has a token and sets a cookie, since every user of this machine can
//     connect. Its path is random: a browser sends cookies to all ports of a host, so
//     another user's server on this machine would get one with the path "/".
//   - What is not a plain read must come from a page of ours.
func (s *Site) guard(port string, next http.Handler) http.Handler {
	hosts := []string{"127.0.0.1:" + port, "localhost:" + port}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Referrer-Policy", "same-origin") // no-referrer would take the Origin from forms
		h.Set("Cache-Control", "no-store")
		switch {
		case !slices.Contains(hosts, r.Host):
			refuse(w, fmt.Sprintf("this page has the addresses http://%s and http://%s only", hosts[0], hosts[1]))
		case r.Method == http.MethodGet && same(r.URL.Path, "/"+s.token):
			s.enter(w)
		case !s.entered(r):
			refuse(w, "open the URL that recast ui has printed")
		case r.Method != http.MethodGet && r.Method != http.MethodHead && r.Header.Get("Origin") != "http://"+r.Host:
			refuse(w, "this request does not come from a page of recast ui")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

const (
	pagePolicy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
	// reportPolicy is for reports, which have their style within.
	reportPolicy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)

const cookie = "recast"

// enter sets the cookie. A redirect would not do: a browser that was sent here from
// elsewhere keeps a strict cookie back on the next request, except if a page of ours makes it.
func (s *Site) enter(w http.ResponseWriter) {
	http.SetCookie(w, &http.Cookie{Name: cookie, Value: s.session, Path: s.base, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	s.render(w, http.StatusOK, "enter", view{Title: "recast"})
}

func (s *Site) entered(r *http.Request) bool {
	c, err := r.Cookie(cookie)
	return err == nil && same(c.Value, s.session)
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func refuse(w http.ResponseWriter, why string) { http.Error(w, "refused: "+why, http.StatusForbidden) }
