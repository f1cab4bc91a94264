// Package registry is the adapter to OCI registries: a [Client] resolves references,
// reads, copies and deletes images, and lists the official extensions of a Talos version.
package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/authn/github"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/trust"
	"github.com/recast-sh/recast/schematics"
)

// OfficialExtensions is the repository whose tags, one for each Talos version,
// list the official extensions.
const OfficialExtensions = "ghcr.io/siderolabs/extensions"

var (
	_ images.Registry    = (*Client)(nil)
	_ images.Copier      = (*Client)(nil)
	_ images.Puller      = (*Client)(nil)
	_ schematics.Catalog = (*Client)(nil)

	_ schematics.ExtensionImages = (*Client)(nil)
)

// Options says which lists to read, and how to reach registries.
type Options struct {
	Extensions string // repository; "": OfficialExtensions
	// Transport carries every request; nil: a new one, with the system's proxy and
	// root certificates.
	Transport http.RoundTripper
	CAFile    string                                    // PEM file of CAs in addition to the system's; "": none
	Wrap      func(http.RoundTripper) http.RoundTripper // wraps Transport; nil: nothing
	// Keychain; nil: the login files of docker and podman with their credential
	// helpers; otherwise, for ghcr.io, GITHUB_TOKEN.
	Keychain authn.Keychain
}

// Client reads registries, and writes to the mirror.
type Client struct{ access }

// New returns a client without connecting. A malformed repository is an error of kind Config.
func New(o Options) (*Client, error) {
	if o.Extensions == "" {
		o.Extensions = OfficialExtensions
	}
	repository, err := name.NewRepository(o.Extensions)
	if err != nil {
		return nil, fault.Configf("list of official extensions: %w", err)
	}
	c := &Client{access{extensions: repository, transport: o.Transport, keychain: o.Keychain}}
	if c.transport == nil {
		if c.transport, err = trust.Transport(o.CAFile); err != nil {
			return nil, err
		}
	}
	if o.Wrap != nil {
		c.transport = o.Wrap(c.transport)
	}
	if c.keychain == nil {
		c.keychain = authn.NewMultiKeychain(authn.DefaultKeychain, github.Keychain)
	}
	return c, nil
}

// Close closes idle connections. Requests in flight end with their contexts.
func (c *Client) Close() error {
	if t, ok := c.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
	return nil
}

// Digest returns the digest of what a reference names, which may be an index. It
// fetches and hashes the manifest, so a registry cannot claim another digest.
func (c *Client) Digest(ctx context.Context, ref string) (string, bool, error) {
	r, err := name.ParseReference(ref)
	if err != nil {
		return "", false, fault.Configf("image reference %q: %w", ref, err)
	}
	r = c.relocate(r)
	// GET instead of HEAD: only its answer has the registry's message when it refuses.
	d, err := remote.Get(r, c.options(ctx)...)
	if notFound(err) {
		return "", false, nil
	}
	if err != nil {
		return "", false, explain(err, r.Context())
	}
	return d.Digest.String(), true, nil
}

func notFound(err error) bool {
	e, ok := errors.AsType[*transport.Error](err)
	return ok && e.StatusCode == http.StatusNotFound
}

// denied is images.ErrDenied with the registry's own message.
type denied struct{ error }

func (d denied) Unwrap() error        { return d.error }
func (d denied) Is(target error) bool { return target == images.ErrDenied }

func explain(err error, r name.Repository) error {
	err = fmt.Errorf("registry %s: %w", r.RegistryStr(), foreign.Error(err))
	if isStalled(err) {
		return fault.WithHint(err, "run it again: blobs that were transferred completely are not sent again")
	}
	if explained, ok := trust.Explain(err); ok {
		return explained
	}
	if explained, ok := damaged(err); ok {
		return explained
	}
	e, ok := errors.AsType[*transport.Error](err)
	_, unreachable := errors.AsType[*url.Error](err)
	switch {
	case !ok && unreachable && !errors.Is(err, context.Canceled):
		return fault.WithHint(fault.Unreachable.Of(err), "see whether %s is a registry that can be reached from here: images.extensions, images.mirror and images.factory in recast.yaml name registries", r.RegistryStr())
	case !ok:
		return err
	case e.StatusCode == http.StatusUnauthorized || e.StatusCode == http.StatusForbidden:
		return fault.WithHint(fault.Credentials.Of(denied{err}), "log in with `docker login %s`, or see whether the repository's name is right", r.RegistryStr())
	case e.StatusCode == http.StatusRequestEntityTooLarge:
		return fault.WithHint(fault.BuildFailed.Of(err), "a proxy before %s limits the size of what is uploaded (client_max_body_size of nginx): images have layers of hundreds of MiB", r.RegistryStr())
	case e.StatusCode == http.StatusMethodNotAllowed && e.Request != nil && e.Request.Method == http.MethodPost: // the start of an upload
		return fault.WithHint(fault.BuildFailed.Of(err), "%s accepts no images, like a cache of another registry: see images.mirror in recast.yaml", r.RegistryStr())
	case e.StatusCode == http.StatusTooManyRequests:
		return fault.WithHint(fault.BuildFailed.Of(err), "the registry limits how often it answers: wait, or log in with `docker login %s`", r.RegistryStr())
	}
	return err
}
