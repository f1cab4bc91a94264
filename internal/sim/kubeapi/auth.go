package kubeapi

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// masters is the group whose members may do everything; there is no other authorization.
const masters = "system:masters"

type user struct {
	name   string // "" for nobody
	groups []string
}

// authenticate takes the client certificate's CN and O as user and groups, as Kubernetes does.
func (s *Server) authenticate(r *http.Request) user {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return user{}
	}
	cert := r.TLS.PeerCertificates[0]
	_, err := cert.Verify(x509.VerifyOptions{Roots: s.o.ClientCA, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return user{}
	}
	return user{name: cert.Subject.CommonName, groups: cert.Subject.Organization}
}

// authorize refuses who is unknown with 401 and who may not with 403. Health
// and version are for everybody.
func (u user) authorize(r *http.Request, t target) error {
	switch r.URL.Path {
	case "/healthz", "/livez", "/readyz", "/version":
		return nil
	}
	if u.name == "" {
		return apierrors.NewUnauthorized("Unauthorized")
	}
	if slices.Contains(u.groups, masters) {
		return nil
	}
	resource := schema.GroupResource{Group: t.resource.Group, Resource: t.resource.Resource}
	return apierrors.NewForbidden(resource, t.name,
		//lint:ignore ST1005 the API server's own wording
		fmt.Errorf("User %q cannot %s resource %q in API group %q at the cluster scope",
			u.name, t.verb(r), resource.Resource, resource.Group))
}
