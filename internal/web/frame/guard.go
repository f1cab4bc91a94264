package frame

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
)

// Local reads an address to listen on. It refuses every one that others could reach: the pages
// are not encrypted.
func Local(text string) (netip.AddrPort, error) {
	address, err := netip.ParseAddrPort(text)
	if err == nil && address.Addr() == netip.AddrFrom4([4]byte{127, 0, 0, 1}) {
		return address, nil
	}
	return address, fmt.Errorf("%q: write 127.0.0.1:PORT, since the pages show whole clusters and are not encrypted", text)
}

// Guard lets only requests through whose Host header names this machine: a page of another site
// whose name was made to resolve to 127.0.0.1 (DNS rebinding) sends its own. With port "", any
// port will do: kubectl port-forward may listen on another one than the pages.
func Guard(port string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Referrer-Policy", "same-origin") // no-referrer would take the Origin from forms
		h.Set("Cache-Control", "no-store")
		if name, at, err := net.SplitHostPort(r.Host); err == nil && (name == "127.0.0.1" || name == "localhost") && (at == port || port == "") {
			next.ServeHTTP(w, r)
			return
		}
		Refuse(w, "the address of these pages begins with http://127.0.0.1:"+port+" or http://localhost:"+port)
	})
}

const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Refuse answers to a request that is not allowed.
func Refuse(w http.ResponseWriter, why string) { http.Error(w, "refused: "+why, http.StatusForbidden) }
