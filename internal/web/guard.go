package web

import (
	"crypto/subtle"
	"net/http"

	"github.com/recast-sh/recast/internal/web/frame"
)

// guard lets only the user's own browser through, besides what frame.Guard does.
//
//   - The first URL has a token and sets a cookie, since every user of this machine can
//     connect. Its path is random: a browser sends cookies to all ports of a host, so
//     another user's server on this machine would get one with the path "/".
//   - What is not a plain read must come from a page of ours.
func (s *Site) guard(port string, next http.Handler) http.Handler {
	return frame.Guard(port, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet && same(r.URL.Path, "/"+s.token):
			s.enter(w)
		case !s.entered(r):
			frame.Refuse(w, "open the URL that recast ui has printed")
		case r.Method != http.MethodGet && r.Method != http.MethodHead && r.Header.Get("Origin") != "http://"+r.Host:
			frame.Refuse(w, "this request does not come from a page of recast ui")
		default:
			next.ServeHTTP(w, r)
		}
	}))
}

// reportPolicy is for reports, which have their style within.
const reportPolicy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"

const cookie = "recast"

// enter sets the cookie. A redirect would not do: a browser that was sent here from
// elsewhere keeps a strict cookie back on the next request, except if a page of ours makes it.
func (s *Site) enter(w http.ResponseWriter) {
	http.SetCookie(w, &http.Cookie{Name: cookie, Value: s.session, Path: s.frame.Base, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	s.frame.Render(w, http.StatusOK, "enter", frame.View{Title: "recast"})
}

func (s *Site) entered(r *http.Request) bool {
	c, err := r.Cookie(cookie)
	return err == nil && same(c.Value, s.session)
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
