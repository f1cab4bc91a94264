package kubeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/internal/sim/record"
)

// Upstream is a real control plane behind the lab's Kubernetes API: a real API server stores the objects, real
// controllers and a real scheduler work on them, and the lab only provides kubelets.
type Upstream struct {
	base      *url.URL
	masters   *http.Transport // with the credentials of a user who may do everything
	anonymous *http.Transport // without credentials
}

// ReadUpstream reads the control plane's address and the credentials of a user who may do everything from a kubeconfig
// with inline certificates. A nil dial uses the network of this machine. The caller closes it.
func ReadUpstream(kubeconfig []byte, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (*Upstream, error) {
	var file struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				CA     []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Certificate []byte `json:"client-certificate-data"`
				Key         []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(kubeconfig, &file); err != nil {
		return nil, fmt.Errorf("read kubeconfig of the control plane: %w", err)
	}
	if len(file.Clusters) != 1 || len(file.Users) != 1 {
		return nil, errors.New("read kubeconfig of the control plane: it has to have one cluster and one user")
	}
	base, err := url.Parse(file.Clusters[0].Cluster.Server)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig of the control plane: %w", err)
	}
	pair, err := tls.X509KeyPair(file.Users[0].User.Certificate, file.Users[0].User.Key)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig of the control plane: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(file.Clusters[0].Cluster.CA) {
		return nil, errors.New("read kubeconfig of the control plane: no certificate authority in it")
	}
	transport := func(certificates ...tls.Certificate) *http.Transport {
		return &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: roots, Certificates: certificates, MinVersion: tls.VersionTLS12},
			MaxIdleConnsPerHost: 16,
			DialContext:         dial,
		}
	}
	return &Upstream{base: base, masters: transport(pair), anonymous: transport()}, nil
}

// Close closes idle connections.
func (u *Upstream) Close() error {
	u.masters.CloseIdleConnections()
	u.anonymous.CloseIdleConnections()
	return nil
}

// The headers for impersonation.
const (
	asUser  = "Impersonate-User"
	asGroup = "Impersonate-Group"
)

// pass forwards a request, unless the request needs the etcd of the lab's own machines and this etcd does not answer.
// A watch is recorded as ended when it begins.
func (s *Server) pass(w http.ResponseWriter, r *http.Request, u user, call record.Call) {
	if s.o.Storage != nil && ofObjects(r.URL.Path) {
		if err := s.o.Storage(r.Context()); err != nil {
			s.o.Recorder.End(call)
			s.write(w, r, unstored(err))
			return
		}
	}
	if isWatch(r) {
		s.o.Recorder.End(call)
	} else {
		defer s.o.Recorder.End(call)
	}
	s.forward(w, r, u)
}

// ofObjects reports whether a path names objects: more than a group and its version.
func ofObjects(path string) bool {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	return parts[0] == "api" && len(parts) > 2 || parts[0] == "apis" && len(parts) > 3
}

// forward forwards a request to the real API server. The real API server does not trust the client's certificate,
// which is the lab's, so the request impersonates the user.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, u user) {
	up := s.o.Upstream
	asOther := r.Header.Get(asUser) != ""
	if asOther && u.name != "" && !slices.Contains(u.groups, masters) {
		s.write(w, r, failed(apierrors.NewForbidden(s.target(r.URL.Path).resource.GroupResource(), "",
			fmt.Errorf("user %q cannot impersonate", u.name))))
		return
	}
	proxy := &httputil.ReverseProxy{
		Transport:     up.anonymous,
		FlushInterval: -1, // a watch is sent without buffering
		ErrorLog:      log.New(io.Discard, "", 0),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(up.base)
			if u.name == "" || asOther {
				return
			}
			p.Out.Header.Set(asUser, u.name)
			p.Out.Header[asGroup] = slices.Clone(u.groups)
		},
		// An API server that is down sends no answer.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	if u.name != "" {
		proxy.Transport = up.masters
	}
	proxy.ServeHTTP(w, r)
}

// Kubeconfig returns a kubeconfig file with inline certificates, like talosctl's. The server is a URL; the rest is PEM.
func Kubeconfig(cluster, server string, ca, cert, key []byte) ([]byte, error) {
	encode := base64.StdEncoding.EncodeToString
	user := "admin@" + cluster
	b, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": user,
		"clusters": []any{map[string]any{"name": cluster, "cluster": map[string]any{
			"server": server, "certificate-authority-data": encode(ca),
		}}},
		"users": []any{map[string]any{"name": user, "user": map[string]any{
			"client-certificate-data": encode(cert), "client-key-data": encode(key),
		}}},
		"contexts": []any{map[string]any{"name": user, "context": map[string]any{
			"cluster": cluster, "user": user, "namespace": "default",
		}}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode kubeconfig: %w", err)
	}
	return b, nil
}
