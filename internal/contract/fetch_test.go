package contract

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// nowhere is a URL without a server.
const nowhere = "http://127.0.0.1:1/x.iso"

// known caches the result of source on a real server.
var known string

// source is a file on the node's own web server that the node can fetch: it may not reach
// itself by the address that we use. Only a download shows that: query-url-metadata uses
// HEAD, which Proxmox's web server refuses (known_methods in AnyEvent.pm).
func (s *server) source() string {
	s.t.Helper()
	if known != "" && s.sim == nil {
		return known
	}
	hosts := []string{"https://127.0.0.1:8006"}
	for _, o := range s.rows("/cluster/status") {
		if o["name"] == s.place.node && o["ip"] != nil {
			hosts = append(hosts, "https://"+net.JoinHostPort(text(o["ip"]), "8006"))
		}
	}
	for _, host := range append(hosts, s.place.endpoint) {
		for _, path := range []string{"/pve2/images/logo-128.png", "/api2/json/access/domains"} {
			if e := s.wait(s.download(host+path, s.isoName())); e.Exit != "OK" {
				continue
			}
			if s.sim == nil {
				known = host + path
			}
			return host + path
		}
	}
	s.skipf("needs a node that can fetch something from itself")
	return ""
}

// beside is another path on the server of source.
func (s *server) beside(path string) string {
	s.t.Helper()
	u, err := url.Parse(s.source())
	must(s.t, err)
	u.Path = path
	return u.String()
}

// fetches skips a test unless the token may make the node fetch URLs.
func (s *server) fetches() {
	s.t.Helper()
	if s.sim != nil {
		s.holds("/nodes/"+s.place.node, "Sys.AccessNetwork")
	}
	node, root := s.privileges("/nodes/"+s.place.node), s.privileges("/")
	if !slices.Contains(node, "Sys.AccessNetwork") && (!slices.Contains(root, "Sys.Audit") || !slices.Contains(root, "Sys.Modify")) {
		s.skipf("needs Sys.AccessNetwork on /nodes/%s", s.place.node)
	}
	if s.sim != nil {
		s.sim.world.SetDial(s.sim.network.Dialer().DialContext)
	}
}

// web serves files on the simulated network; "/slow.iso" never ends, "/silent.iso" never begins.
func web(t *testing.T, s *server) (url string) {
	t.Helper()
	mux := http.NewServeMux()
	ended := make(chan struct{})
	mux.HandleFunc("/talos.iso", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/octet-stream; charset=binary")
		rw.Header().Set("Content-Disposition", `attachment; filename="metal-amd64.iso"`)
		_, _ = rw.Write([]byte("talos"))
	})
	mux.HandleFunc("/image.iso", func(rw http.ResponseWriter, r *http.Request) {
		http.ServeContent(rw, r, "image.iso", time.Time{}, strings.NewReader("the image"))
	})
	mux.HandleFunc("/disk.qcow2", func(rw http.ResponseWriter, r *http.Request) {
		http.ServeContent(rw, r, "disk.qcow2", time.Time{}, strings.NewReader(tinyImage(t)))
	})
	mux.HandleFunc("/slow.iso", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = rw.Write([]byte("half"))
		_ = http.NewResponseController(rw).Flush()
		select {
		case <-r.Context().Done():
		case <-ended:
		}
	})
	mux.HandleFunc("/silent.iso", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-ended:
		}
	})
	const addr = "127.42.9.200:80"
	listener, err := s.sim.network.Listen(addr)
	must(t, err)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func(l net.Listener) { served <- server.Serve(l) }(listener)
	t.Cleanup(func() {
		close(ended)
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
	return "http://" + addr
}
