package kubeapi

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// masters is the group whose members may do everything; others may do what is granted.
const masters = "system:masters"

// reviews is where everybody may ask for their own permissions (system:basic-user).
const reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

type user struct {
	name   string // "": anonymous
	groups []string
}

// Grant sets what the members of a group may do.
func (s *Server) Grant(group string, may func(Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.granted == nil {
		s.granted = map[string]func(Request) bool{}
	}
	s.granted[group] = may
}

// authenticate takes user and groups from the CN and O of the client certificate, as
// Kubernetes does.
func (s *Server) authenticate(r *http.Request) user {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return user{}
	}
	cert := r.TLS.PeerCertificates[0]
	who, _ := r.Context().Value(identityKey{}).(Identity)
	if who.ClientCA == nil || !s.verifies(cert, who.ClientCA, time.Now()) {
		return user{}
	}
	return user{name: cert.Subject.CommonName, groups: cert.Subject.Organization}
}

// client is a certificate in DER, and whom an API server trusts to issue it.
type client struct {
	cert   string
	issuer *x509.CertPool
}

// verifies says whether a certificate is valid now. Its chains are cached.
func (s *Server) verifies(cert *x509.Certificate, issuer *x509.CertPool, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	who := client{string(cert.Raw), issuer}
	chain, known := s.verified[who]
	if !known {
		chains, err := cert.Verify(x509.VerifyOptions{Roots: issuer, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if err != nil {
			return false
		}
		chain = chains[0]
		s.verified[who] = chain
	}
	return !slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return now.Before(c.NotBefore) || now.After(c.NotAfter) })
}

func (s *Server) may(u user, r Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(u.groups, func(group string) bool {
		may := s.granted[group]
		return group == masters || may != nil && may(r)
	})
}

// authorize refuses unknown users with 401 and others without permission with 403. Health,
// version and reviews are open to everybody.
func (s *Server) authorize(u user, r *http.Request, t target) error {
	switch r.URL.Path {
	case "/healthz", "/livez", "/readyz", "/version":
		return nil
	}
	if u.name == "" {
		return apierrors.NewUnauthorized("Unauthorized")
	}
	asked := t.request(t.verb(r))
	if r.URL.Path == reviews || s.may(u, asked) {
		return nil
	}
	where := "at the cluster scope"
	if t.namespace != "" {
		where = fmt.Sprintf("in the namespace %q", t.namespace)
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: t.resource.Group, Resource: t.resource.Resource}, t.name,
		//lint:ignore ST1005 the API server's own wording
		fmt.Errorf("User %q cannot %s resource %q in API group %q %s", u.name, asked.Verb, asked.Resource, t.resource.Group, where))
}

// review answers whether the user may do something.
func (s *Server) review(r *http.Request, u user) answer {
	b, err := read(r)
	if err != nil {
		return failed(err)
	}
	decoded, err := s.decode(b, authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"))
	if err != nil {
		return failed(err)
	}
	review, ok := decoded.(*authorizationv1.SelfSubjectAccessReview)
	if !ok || review.Spec.ResourceAttributes == nil {
		return failed(apierrors.NewBadRequest("only SelfSubjectAccessReviews of resources are served"))
	}
	a := review.Spec.ResourceAttributes
	resource := strings.TrimSuffix(a.Resource+"/"+a.Subresource, "/")
	review.Status.Allowed = s.may(u, Request{Verb: a.Verb, Resource: resource, Namespace: a.Namespace, Name: a.Name})
	return answer{code: http.StatusCreated, body: review}
}
