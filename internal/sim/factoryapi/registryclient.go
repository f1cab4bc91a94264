package factoryapi

import (
	"context"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// registryClient is a registry client of the factory and of publishers.
type registryClient struct {
	registry  name.Registry
	transport http.RoundTripper
}

func newRegistryClient(host string, transport http.RoundTripper) (registryClient, error) {
	reg, err := name.NewRegistry(host, name.Insecure)
	if err != nil {
		return registryClient{}, fmt.Errorf("registry %q: %w", host, err)
	}
	return registryClient{registry: reg, transport: transport}, nil
}

func (c registryClient) options(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithTransport(c.transport)}
}

func (c registryClient) index(ctx context.Context, repo, digest string) (v1.ImageIndex, error) {
	idx, err := remote.Index(c.registry.Repo(repo).Digest(digest), c.options(ctx)...)
	if err != nil {
		return nil, fmt.Errorf("pull %s@%s: %w", repo, digest, err)
	}
	return idx, nil
}

func (c registryClient) image(ctx context.Context, repo, tag string) (v1.Image, error) {
	img, err := remote.Image(c.registry.Repo(repo).Tag(tag), c.options(ctx)...)
	if err != nil {
		return nil, fmt.Errorf("pull %s:%s: %w", repo, tag, err)
	}
	return img, nil
}

func (c registryClient) push(ctx context.Context, repo, tag string, what remote.Taggable) error {
	if err := remote.Push(c.registry.Repo(repo).Tag(tag), what, c.options(ctx)...); err != nil {
		return fmt.Errorf("push %s:%s: %w", repo, tag, err)
	}
	return nil
}
