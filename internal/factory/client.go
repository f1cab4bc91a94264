// Package factory is the adapter to an Image Factory: its schematics, its list
// of extensions and its ISOs. Installers are pulled from it as from any registry.
package factory

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
	"github.com/siderolabs/image-factory/pkg/client"
	"github.com/siderolabs/image-factory/pkg/schematic"
)

var (
	_ images.Factory         = (*Client)(nil)
	_ schematics.FactoryList = (*Client)(nil)
)

// Options says which factory, and how to reach it.
type Options struct {
	URL string // "https://factory.talos.dev"
	// Transport carries every request. Nil: one of the client's own, with the
	// system's proxy and root certificates.
	Transport http.RoundTripper
}

// Client talks to one Image Factory.
type Client struct {
	base *url.URL
	http *http.Client
	api  *client.Client
}

// New does not talk to the factory yet. A URL that can't be one is an error of kind Config.
func New(o Options) (*Client, error) {
	base, err := url.Parse(o.URL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fault.Configf("image factory: %q is not an HTTP URL", o.URL)
	}
	transport := o.Transport
	if transport == nil {
		transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	c := &Client{base: base, http: &http.Client{Transport: &retry{next: transport}}}
	c.api, err = client.New(o.URL, client.WithClient(*c.http))
	if err != nil {
		return nil, fault.Configf("image factory: %w", err)
	}
	return c, nil
}

// Close closes idle connections. Requests under way end with their contexts.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// Versions lists the Talos versions that the factory builds.
func (c *Client) Versions(ctx context.Context) ([]string, error) {
	versions, err := c.api.Versions(ctx)
	if err != nil {
		return nil, c.explain(err)
	}
	return versions, nil
}

// Extensions lists the official extensions as the factory would build them now.
func (c *Client) Extensions(ctx context.Context, talos string) ([]schematics.OfficialExtension, error) {
	list, err := c.api.ExtensionsVersions(ctx, talos)
	if err != nil {
		err = c.explain(err)
		if hasStatus(err, http.StatusNotFound) {
			return nil, fault.WithHint(fault.As(fault.Config, err), "%s/versions lists the Talos versions that it knows", c.base)
		}
		return nil, err
	}
	official := make([]schematics.OfficialExtension, 0, len(list))
	for _, x := range list {
		ref, version := splitTag(x.Ref)
		official = append(official, schematics.OfficialExtension{
			Name: x.Name, Version: version, Ref: ref, Digest: x.Digest, Author: x.Author, Description: x.Description,
		})
	}
	return official, nil
}

// splitTag cuts a reference at its tag; a port is none.
func splitTag(ref string) (repository, tag string) {
	i := strings.LastIndex(ref, ":")
	if i < strings.LastIndex(ref, "/") {
		return ref, ""
	}
	return ref[:max(i, 0)], ref[i+1:]
}

// Knows says whether a schematic is registered.
func (c *Client) Knows(ctx context.Context, id string) (bool, error) {
	_, err := c.api.SchematicGet(ctx, id)
	if err == nil {
		return true, nil
	}
	err = c.explain(err)
	if hasStatus(err, http.StatusNotFound) {
		return false, nil
	}
	return false, err
}

// Register registers a schematic. One that the factory does not take is an error
// of kind Config with the factory's words.
func (c *Client) Register(ctx context.Context, canonical string) (string, error) {
	doc, err := schematic.Unmarshal([]byte(canonical))
	if err != nil {
		return "", fmt.Errorf("read the schematic: %w", err)
	}
	id, _, err := c.api.SchematicCreate(ctx, *doc)
	if err != nil {
		return "", c.explain(err)
	}
	return id, nil
}

// InstallerRepository is where the factory, which is a registry too, has the
// installers of a schematic.
func (c *Client) InstallerRepository(req images.ISORequest) string {
	return c.base.Host + "/" + req.Platform + "-installer" + suffix(req) + "/" + req.SchematicID
}

func suffix(req images.ISORequest) string {
	if req.SecureBoot {
		return "-secureboot"
	}
	return ""
}

// explain turns an error of the factory or of the way to it into ours.
func (c *Client) explain(err error) error {
	// The library hides the status of every 400 behind an error that can't be unwrapped.
	if client.IsInvalidSchematicError(err) {
		text := err.Error()
		if _, after, ok := strings.Cut(text, "HTTP 400: "); ok {
			text = after
		}
		return c.status(http.StatusBadRequest, text)
	}
	if e, ok := errors.AsType[*client.HTTPError](err); ok {
		return c.status(e.Code, e.Message)
	}
	return c.unreachable(err)
}
